//! Tunables of TCP alone.

ccl_core::tunables! {
    /// Values of TCP's own tunables.
    #[derive(Clone, Debug)]
    pub(crate) struct TcpTunables {
        sockets: u32 = 1, "FERROCCL_SOCKETS", Some("NCCL_NSOCKS_PERTHREAD"), true,
            "TCP connections per pair of ranks, on which messages take turns. More help where one \
             connection does not fill the network.";
        congestion: String = String::new(), "FERROCCL_CONGESTION", None, false,
            "Congestion control of TCP connections, by the kernel's name. Empty leaves its choice, \
             but takes reno where that is bbr, whose pacing holds back the bursts of collectives: \
             what is under way is bounded by credits.";
    }
}
