//! All targets in one program, to link only once: `FERROCCL_FUZZ=NAME cargo fuzz run any`.

#![no_main]

use std::sync::OnceLock;

type Target = fn(&[u8]);

/// Name and function of each target; its corpus has the same name.
const TARGETS: &[(&str, Target)] = &[
    ("configuration", ccl_core::fuzzing::configuration),
    ("control", ccl_bootstrap::fuzzing::control),
    ("frames", ccl_bootstrap::fuzzing::frames),
    ("join_member", ccl_bootstrap::fuzzing::join_member),
    ("join_root", ccl_bootstrap::fuzzing::join_root),
    ("locality", ccl_core::fuzzing::locality),
    ("message", ccl_bootstrap::fuzzing::message),
    ("offer", ccl_core::fuzzing::offer),
    ("unique_id", ccl_bootstrap::fuzzing::unique_id),
    ("shm_address", ccl_transport_shm::fuzzing::shm_address),
    ("shm_handshake", ccl_transport_shm::fuzzing::shm_handshake),
    ("shm_key", ccl_transport_shm::fuzzing::shm_key),
    ("tcp_frames", ccl_transport_tcp::fuzzing::tcp_frames),
    ("tcp_intent", ccl_transport_tcp::fuzzing::tcp_intent),
    ("tcp_key", ccl_transport_tcp::fuzzing::tcp_key),
    ("wire_address", ccl_socket::fuzzing::wire_address),
    ("wire_hello", ccl_socket::fuzzing::wire_hello),
    ("wire_interfaces", ccl_socket::fuzzing::wire_interfaces),
    ("wire_shake", ccl_socket::fuzzing::wire_shake),
    ("chakra_trace", ccl_model::fuzzing::chakra_trace),
    ("environment", ferroccl::fuzzing::environment),
    ("pmi", ferroccl::fuzzing::pmi),
    ("recorded_calls", ccl_model::fuzzing::recorded_calls),
    ("recording", ferroccl::fuzzing::recording),
    ("store", ferroccl::fuzzing::store),
    ("traffic_matrix", ccl_traffic::fuzzing::traffic_matrix),
    ("nccl_net", nccl_net_ferroccl::fuzzing::nccl_net),
];

static CHOSEN: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = std::env::var("FERROCCL_FUZZ").unwrap_or_default();
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.map(|(_, target)| *target).unwrap_or_else(|| {
        let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("FERROCCL_FUZZ={name:?} names no target; the targets are {}", known.join(", "));
        std::process::exit(2)
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| CHOSEN.get_or_init(chosen)(data));
