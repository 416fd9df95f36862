//! Tunables of TCP alone.

ccl_core::tunables! {
    /// Values of TCP's own tunables.
    #[derive(Clone, Debug)]
    pub(crate) struct TcpTunables {
        sockets: u32 = 1, "FERROCCL_SOCKETS", Some("NCCL_NSOCKS_PERTHREAD"), true,
            "TCP connections per pair of ranks, on which messages take turns. More connections \
             help where one does not fill the network.";
        congestion: String = String::new(), "FERROCCL_CONGESTION", None, false,
            "Congestion control of TCP connections, by the kernel's name. Empty leaves the \
             kernel's choice, but replaces bbr with reno: the pacing of bbr delays the bursts of \
             collectives, and credits and CTS already bound the bytes in flight.";
    }
}
