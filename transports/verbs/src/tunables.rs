//! Tunables that only the verbs transport has.

ccl_core::tunables! {
    /// Tunables of the verbs transport. The tunables that it shares with the other transports that
    /// stripe are in [`Config`](ccl_core::config::Config).
    #[derive(Clone, Debug)]
    pub(crate) struct RdmaTunables {
        devices: String = String::new(), "FERROCCL_IB_HCA", Some("NCCL_IB_HCA"), false,
            "RDMA devices that verbs uses: names or prefixes of names, separated by commas. A name \
             may have a port (mlx5_0:1), and then a rail and a plane of the network \
             (mlx5_0:1:0:0), which the NCCL plugin reports to NCCL. A leading = matches whole \
             names only, a leading ^ excludes the names that follow. Empty takes all. Of these \
             devices, a rank takes those nearest to the accelerator of FERROCCL_NEAR_PCI or, if no \
             accelerator is named, those of the NUMA node that its process runs on. Ranks of a \
             host with the same nearest devices divide them up.";
        gid_index: Option<u32> = None, "FERROCCL_IB_GID_INDEX", Some("NCCL_IB_GID_INDEX"), false,
            "Row of the port's GID table with the address that verbs uses. With -1, verbs chooses \
             the row: for RoCE, an address of RoCE v2, preferably routed and IPv4.";
        address_family: String = String::new(), "FERROCCL_IB_ADDR_FAMILY",
            Some("NCCL_IB_ADDR_FAMILY"), false,
            "Use only RoCE addresses of this family: AF_INET or AF_INET6; empty takes both.";
        address_range: String = String::new(), "FERROCCL_IB_ADDR_RANGE",
            Some("NCCL_IB_ADDR_RANGE"), false,
            "Use only RoCE addresses of these networks, such as 10.0.0.0/8, separated by commas; \
             empty takes all.";
        partition: u8 = 0, "FERROCCL_IB_PKEY", Some("NCCL_IB_PKEY"), false,
            "Row of the port's partition key (P_Key) table with the key that verbs uses.";
        control_traffic_class: Option<u8> = None, "FERROCCL_IB_CONTROL_TC", Some("NCCL_IB_FIFO_TC"),
            false,
            "Traffic class of credits and CTS, which have a queue pair of their own. A class with \
             priority keeps them from waiting behind data. -1 takes the class of the \
             fabric's congestion notifications if the driver reports it, else FERROCCL_IB_TC.";
        service_level: u8 = 0, "FERROCCL_IB_SL", Some("NCCL_IB_SL"), false,
            "Service level of all packets that verbs sends.";
        timeout: u8 = 18, "FERROCCL_IB_TIMEOUT", Some("NCCL_IB_TIMEOUT"), false,
            "Exponent of the time that the hardware waits for an acknowledgement: 4.096 \
             microseconds times two to the power of this value; 18 is about a second.";
        retries: u8 = 6, "FERROCCL_IB_RETRY_CNT", Some("NCCL_IB_RETRY_CNT"), false,
            "How often the hardware sends a packet again before the peer counts as gone. With 7 \
             some devices never give up.";
        rnr_retries: u8 = 7, "FERROCCL_IB_RNR_RETRY_CNT", None, false,
            "How often the hardware retries when the receiver has no receive request left. 7 \
             means no limit: the hardware then also waits for a stopped peer, which runs out of \
             receive requests.";
        mtu: u32 = 4096, "FERROCCL_IB_MTU", None, false,
            "Longest payload of a packet: 256, 512, 1024, 2048 or 4096 bytes, or the port's MTU \
             if that is less. A link uses the smaller of the values of its two sides.";
        relaxed_ordering: u8 = 1, "FERROCCL_IB_PCI_RELAXED_ORDERING",
            Some("NCCL_IB_PCI_RELAXED_ORDERING"), false,
            "Let writes of RDMA devices overtake each other on the PCIe bus, if the devices can; 0 \
             keeps the order of writes. ferroccl does not rely on that order.";
    }
}
