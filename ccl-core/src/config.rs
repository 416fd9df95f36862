//! Configuration, declared once: every tunable with its variable, type, default and reason.
//!
//! The core does not read the environment. [`Config::read`] takes a function that looks variables
//! up, and a table of each transport's own tunables. When ranks join, they compare a digest
//! ([`Config::digest`]) of the tunables that must be equal on all ranks, so that no two ranks can
//! plan differently. The launcher, not the configuration, decides how ranks find each other.

mod tunables;

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::queue_pairs::Policy;
use crate::select::tuning::Tuning;

pub use crate::value::{Bytes, ConfigError, NetworkCheck, Value};
pub use tunables::{Lookup, Table, TransportSettings, Tunable, Tunables, read, table_of};

/// Least `FERROCCL_DEAD_AFTER`: on a busy machine, a living rank can be silent for tens of
/// milliseconds.
const DEAD_AFTER_MIN: Duration = Duration::from_millis(100);

crate::tunables! {
    /// Values of all common tunables, and of each transport's own tunables that are set.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Config {
        transport: String = "auto".to_owned(), "FERROCCL_TRANSPORT", None, true,
            "Transport to use: auto, the name of a transport, or HOST+NETWORK, a transport within \
             hosts and one between hosts. A network transport named alone also connects ranks of \
             one host. auto takes the preferred transport of those that all ranks have; between \
             hosts, the order of preference is verbs, ofi, tcp. For auto, adapters count only if \
             they are on the PCI bus, or if their transport's own settings name them.";
        socket_interfaces: String = String::new(), "FERROCCL_SOCKET_IFNAME",
            Some("NCCL_SOCKET_IFNAME"), false,
            "Interfaces whose addresses tcp sends to its peers: prefixes of names, or networks \
             such as 10.0.0.0/8, separated by commas. A leading = matches whole names only, a \
             leading ^ takes all interfaces but the listed ones. If empty, tcp sends the \
             addresses of all interfaces, but those of loopback only if there is no other. Each \
             pair of ranks uses the first address that answers.";
        tls: bool = false, "FERROCCL_TLS", None, true,
            "Encrypt what ranks send each other over TCP (TLS 1.3), on networks where others can \
             read or write. Every byte is then encrypted, copied and decrypted by a core. Data \
             over shared memory needs no encryption; the messages of the control plane stay \
             readable.";
        ib_rails: u8 = 4, "FERROCCL_IB_RAILS", None, true,
            "The most RDMA devices that one rank spreads its messages over, up to 16. A device \
             that fails is taken out without loss, and is used again when it recovers. 1 uses one \
             device, without failover. A CTS has room for the keys of four devices: with more \
             devices, long messages are received through slots.";
        near_pci: String = String::new(), "FERROCCL_NEAR_PCI", None, false,
            "PCI address, such as 0000:17:00.0 (`lspci -D`), of the accelerator whose data this \
             rank sends. The library cannot find out this address. verbs takes the RDMA devices \
             nearest to the accelerator: below the same PCIe switch, else the same root port, else \
             the same host bridge, else on the same NUMA node. If empty, verbs takes the RDMA \
             devices of the NUMA node that the process runs on.";
        ib_policy: Policy = Policy::default(), "FERROCCL_IB_POLICY",
            Some("NCCL_IB_QPS_PER_CONNECTION"), true,
            "How messages are spread over the queue pairs of each pair of ranks: rules separated \
             by ;, and the first one that matches applies. A rule has conditions before its : \
             (collectives, bytes>=, bytes<, fan_out>=, fan_out<, tier=host or network) and \
             settings after it: qps=, order= (split, round_robin, load_aware), chunk= (with \
             order=split: bytes of a part of a message, at least; the last part may be shorter), \
             in_flight= (messages under way over each device, at most), budget= (bytes under way \
             from a port, at most), tc= (traffic class). A number alone sets that many queue pairs \
             for all messages. With more queue pairs, an Ethernet fabric has more flows to hash \
             onto its links.";
        ib_adaptive_routing: Option<bool> = None, "FERROCCL_IB_ADAPTIVE_ROUTING",
            Some("NCCL_IB_ADAPTIVE_ROUTING"), true,
            "Whether the fabric routes adaptively, that is, spreads the packets of one queue pair \
             over its paths: each link then gets only one queue pair for its data, unless \
             FERROCCL_IB_POLICY is set. 1: yes. 0: no. -1: yes for InfiniBand and no for RoCE \
             (within NCCL: no for both).";
        ib_traffic_class: u8 = 0, "FERROCCL_IB_TC", Some("NCCL_IB_TC"), false,
            "Traffic class (DSCP and ECN) of the packets that verbs sends.";
        host_id: String = String::new(), "FERROCCL_HOSTID", Some("NCCL_HOSTID"), false,
            "Name of this host: ranks with equal names share memory. If empty, the machine's boot \
             id and network namespace are the name. Different names split a machine into hosts.";
        algorithm: String = String::new(), "FERROCCL_ALGO", Some("NCCL_ALGO"), true,
            "Name or family (ring, direct, double_tree, …) of the algorithm to use wherever a \
             collective has it; empty lets the planner choose. `ferroccl explain` lists the \
             algorithms.";
        tuning: Tuning = Tuning::NONE, "FERROCCL_TUNING", None, true,
            "Table of the algorithms that were measured to be the fastest, written by `ferroccl \
             tune`: @ and the name of a file (@/etc/ferroccl.tuning), or the lines of the table. \
             Empty leaves the choice to rules; the word \"model\" adds a general cost model to the \
             rules. A table of another machine is refused.";
        deterministic: bool = false, "FERROCCL_DETERMINISTIC", None, true,
            "Reduce every element in rank order in one accumulator, so that the bits depend on the \
             data alone: not on length, chunk, algorithm, transport or placement.";
        check_calls: bool = true, "FERROCCL_CHECK_CALLS", None, true,
            "Compare each message's call (collective, count, type, op, root) with this rank's own. \
             Costs a comparison per message; without it, ranks that disagree hang or get wrong \
             data.";
        check_network: NetworkCheck = NetworkCheck::Assumed, "FERROCCL_CHECK_NETWORK", None, true,
            "Check, when ranks join, what the defaults assume about the network, and adapt \
             defaults that do not suit it. Tunables that are set keep their values; \
             `FERROCCL_DEBUG=info` logs the changes. 1: check round trips between hosts (links get \
             more slots if the default number limits their bandwidth), and whether RDMA devices \
             are of a fabric that routes adaptively. measure: check also the bandwidth of each \
             pair of hosts, one pair at a time and all pairs at once; more connections or queue \
             pairs are then used if they help. Each host sends up to 128 MiB for this at every \
             start. 0: check nothing.";
        channels: u32 = 1, "FERROCCL_CHANNELS", Some("NCCL_MAX_NCHANNELS"), true,
            "Parallel channels per pair of ranks; chunks of a message use them in turn.";
        slots: u32 = 8, "FERROCCL_SLOTS", None, true,
            "Slots per link: number of messages that can be under way before the receiver takes \
             the first.";
        slot_bytes: Bytes = Bytes(128 << 10), "FERROCCL_SLOT_BYTES", None, true,
            "Largest payload of a slot. It is smaller where the budget demands it, and twice as \
             large where no two ranks share a host. It should be well below the size of a \
             core's L2 cache.";
        budget_bytes: Bytes = Bytes(32 << 20), "FERROCCL_BUDGET_BYTES", None, true,
            "Most bytes that all peers together may have under way towards one rank. The same \
             limit holds for an RDMA device; the ranks that use the device share it. If the budget \
             does not hold all slots of every link, each link keeps some slots, and busy links \
             share the rest. With many ranks, slots shrink too, to 1 KiB at least.";
        zero_copy_bytes: Bytes = Bytes(16 << 10), "FERROCCL_ZERO_COPY_BYTES", None, false,
            "Over a network, messages of at least this length are sent from the caller's buffers \
             and received into them, where the algorithm and the transport allow it; others are \
             copied through slots. If this is larger than a slot, all messages are copied.";
        registered_bytes: Bytes = Bytes(16 << 30), "FERROCCL_REGISTERED_BYTES", None, false,
            "A program can register buffers with a communicator. At most this many bytes of those \
             buffers stay registered for RDMA between calls. Beyond this limit, the least recently \
             used buffer is deregistered, and registered again when it is used. A buffer larger \
             than this limit is registered for each call.";
        net_slots: u8 = 16, "FERROCCL_NET_SLOTS", None, false,
            "Within NCCL: slots of each connection for messages that come before their receive is \
             known, 2 to 16. Must be equal on all hosts.";
        net_slot_bytes: Bytes = Bytes(16 << 10), "FERROCCL_NET_SLOT_BYTES", None, false,
            "Within NCCL: payload of a slot. Messages up to this length do not wait for their \
             receive. Over TCP this limit is 64 times as long, at most 1 MiB, because TCP \
             allocates memory for such messages only when they arrive. Must be equal on all hosts.";
        net_threads: Option<u8> = None, "FERROCCL_NET_THREADS", None, false,
            "Within NCCL: threads of this process that send and receive long messages beside \
             NCCL's own thread, over TCP and shared memory, where CPUs copy the bytes. They sleep \
             while there are no long messages. At most 16; -1: one for every 8 CPUs, at most 2.";
        net_warn_after: Duration = Duration::from_secs(60), "FERROCCL_NET_WARN_AFTER", None, false,
            "Within NCCL: when a transfer makes no progress for this long, NCCL's log names it and \
             says whether other transfers of its connection make progress.";
        net_timeout: Duration = Duration::from_secs(1800), "FERROCCL_NET_TIMEOUT", None, false,
            "Within NCCL: a transfer that makes no progress for this long ends with an error, even \
             if other transfers of its connection make progress. NCCL posts receives as soon as it \
             is called, and they wait for a sender that is behind, so this must exceed the longest \
             time by which a rank may be behind the others. The death of a peer is noticed at \
             once.";
        timeout: Duration = Duration::from_secs(600), "FERROCCL_TIMEOUT", None, false,
            "An operation that makes no progress for this long ends with an error.";
        join_timeout: Duration = Duration::from_secs(60), "FERROCCL_JOIN_TIMEOUT", None, false,
            "How long ranks wait for each other to join.";
        heartbeat: Duration = Duration::from_millis(500), "FERROCCL_HEARTBEAT", None, true,
            "Interval between two heartbeats of a rank; at most a sixth of FERROCCL_DEAD_AFTER.";
        dead_after: Duration = Duration::from_secs(3), "FERROCCL_DEAD_AFTER", None, true,
            "A rank that is silent for this long counts as dead; at least 100ms.";
        spin: Duration = Duration::from_micros(100), "FERROCCL_SPIN", None, false,
            "How long a waiting rank spins before it yields its core to other threads. Ranks do \
             not spin if their host has more ranks than cores.";
        park_after: Duration = Duration::from_micros(2000), "FERROCCL_PARK_AFTER", None, false,
            "How long a waiting rank yields before it sleeps until it is woken.";
        recorder: bool = true, "FERROCCL_RECORDER", None, false,
            "Keep a recording of the last operations, which peers, dumps and `ferroccl status` \
             read. Costs at most 20 instructions per operation.";
        dump: String = "stderr".to_owned(), "FERROCCL_DUMP", None, false,
            "Where a rank's recording goes when its communicator breaks, and on SIGUSR1: stderr, \
             none, or a file that is appended to (%p stands for the process, %r for the rank; a \
             name that ends in .json gets a line of JSON).";
        dump_signal: bool = true, "FERROCCL_DUMP_SIGNAL", None, false,
            "Dump the recording on SIGUSR1. This has no effect if the program handles or ignores \
             that signal itself.";
        trace: String = String::new(), "FERROCCL_TRACE", None, false,
            "File to which a rank appends each call, with its start and duration, as a line of \
             JSON (%p stands for the process, %r for the rank), for `ferroccl trace export`. \
             Written when a communicator ends, and from time to time before; costs a reading of \
             the clock before and after each call.";
        debug: String = "warn".to_owned(), "FERROCCL_DEBUG", Some("NCCL_DEBUG"), false,
            "What is logged to stderr: error, warn, info, debug, trace, or a filter such as \
             ferroccl=debug.";
        .. transport_settings: TransportSettings,
            "Values of the transports' own tunables that are set.";
    }
}

impl Config {
    /// Returns the queue-pair policy: the configured one, else one queue pair if the fabric is
    /// known to route adaptively, else the default.
    #[must_use]
    pub fn policy(&self) -> Policy {
        match self.ib_adaptive_routing {
            Some(true) if self.ib_policy == Policy::default() => Policy::adaptive(),
            _ => self.ib_policy.clone(),
        }
    }

    /// Reads the tunables that `lookup` knows; the others have their defaults. `tables` has the
    /// transports' own tunables.
    ///
    /// # Errors
    ///
    /// When a value cannot be read as its type, and those of [`Config::check`].
    pub fn read(lookup: Lookup<'_>, tables: &[Table]) -> Result<Config, ConfigError> {
        let mut config = Config::from_lookup(lookup)?;
        config.transport_settings.take(lookup, tables)?;
        config.check()?;
        Ok(config)
    }

    /// Checks the limits of values. A configuration that a program has changed needs this check.
    ///
    /// # Errors
    ///
    /// When a value is outside its limits.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.dead_after >= DEAD_AFTER_MIN {
            return Ok(());
        }
        Err(ConfigError {
            variable: "FERROCCL_DEAD_AFTER".to_owned(),
            given: self.dead_after.show(),
            expected: "at least 100ms",
            problem: Some("a living rank can be silent for longer".to_owned()),
            default: Config::default().dead_after.show(),
        })
    }

    /// Lists all tunables, those of `tables` included, with their values in this configuration.
    ///
    /// # Errors
    ///
    /// When the value of a transport's own tunable cannot be read, or the tunable is in no table.
    pub fn list(&self, tables: &[Table]) -> Result<Vec<Tunable>, ConfigError> {
        let mut all = self.table();
        all.extend(self.transport_settings.list(tables)?);
        Ok(all)
    }

    /// Returns a digest of the tunables that must be equal on all ranks.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Config::list`].
    pub fn digest(&self, tables: &[Table]) -> Result<[u8; 32], ConfigError> {
        let mut hash = Sha256::new();
        for tunable in self.list(tables)?.iter().filter(|tunable| tunable.agreed) {
            hash.update(tunable.variable.as_bytes());
            hash.update([0]);
            hash.update(tunable.value.as_bytes());
            hash.update([0]);
        }
        Ok(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_are_read_and_invalid_values_are_named() {
        let lookup = |name: &str| match name {
            "NCCL_ALGO" => Some("ring".to_owned()),
            "FERROCCL_SLOT_BYTES" => Some("64k".to_owned()),
            "FERROCCL_TIMEOUT" => Some("0.5".to_owned()),
            "FERROCCL_DETERMINISTIC" => Some("1".to_owned()),
            _ => None,
        };
        let config = Config::from_lookup(&lookup).unwrap();
        assert_eq!(config.algorithm, "ring");
        assert_eq!(config.slot_bytes, Bytes(64 << 10));
        assert_eq!(config.timeout, Duration::from_millis(500));
        assert!(config.deterministic);
        let wrong = |name: &str| (name == "FERROCCL_SLOTS").then(|| "many".to_owned());
        let error = Config::from_lookup(&wrong).unwrap_err().to_string();
        assert!(error.contains("FERROCCL_SLOTS") && error.contains("many"), "{error}");
        let wrong = |name: &str| (name == "FERROCCL_IB_POLICY").then(|| "qps=4 odd=1".to_owned());
        let error = Config::from_lookup(&wrong).unwrap_err().to_string();
        assert!(error.contains("(\"odd=1\" is "), "the error must name the word: {error}");
    }

    #[test]
    fn a_time_of_silence_that_a_living_rank_may_reach_is_refused() {
        let read = |text: &str| {
            let lookup = |name: &str| (name == "FERROCCL_DEAD_AFTER").then(|| text.to_owned());
            Config::read(&lookup, &[])
        };
        assert_eq!(read("100ms").unwrap().dead_after, DEAD_AFTER_MIN);
        let error = read("99ms").unwrap_err().to_string();
        assert!(error.contains("FERROCCL_DEAD_AFTER") && error.contains("at least"), "{error}");
    }

    #[test]
    fn only_tunables_that_must_agree_are_digested() {
        let base = Config::default();
        let patient = Config { timeout: Duration::from_secs(1), ..base.clone() };
        let other = Config { slots: 3, ..base.clone() };
        assert_eq!(base.digest(&[]), patient.digest(&[]));
        assert_ne!(base.digest(&[]), other.digest(&[]));
    }

    #[test]
    fn adaptive_routing_gives_one_queue_pair_unless_a_policy_is_set() {
        let pairs = |text: &str, policy: Option<&str>| {
            let lookup = |name: &str| match name {
                "NCCL_IB_ADAPTIVE_ROUTING" => Some(text.to_owned()),
                "FERROCCL_IB_POLICY" => policy.map(str::to_owned),
                _ => None,
            };
            Config::from_lookup(&lookup).unwrap().policy().otherwise().pairs
        };
        assert_eq!(["1", "0", "-1", "-2", ""].map(|text| pairs(text, None)), [1, 16, 16, 16, 16]);
        assert_eq!(pairs("1", Some("qps=4")), 4);
    }

    #[test]
    fn shown_values_can_be_read_back() {
        for tunable in Config::default().table() {
            let lookup = |name: &str| (name == tunable.variable).then(|| tunable.value.clone());
            assert_eq!(Config::from_lookup(&lookup).unwrap(), Config::default());
        }
    }
}
