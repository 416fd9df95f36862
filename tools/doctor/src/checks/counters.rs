//! Counters of ports: losses, retransmissions, and congestion (PFC, ECN).

use super::super::finding::Finding;
use super::super::host::Host;
use super::rdma;
use ccl_machine::devices::Port;

/// Errors per million packets above which bandwidth suffers.
const BAD_PER_MILLION: u64 = 10;

/// Counters that should not increase, and their meanings.
const BAD: [(&str, &str); 25] = [
    ("counters/symbol_error", "bits were wrong on the wire"),
    ("counters/link_error_recovery", "the link had to be retrained"),
    ("counters/link_downed", "the link was lost"),
    ("counters/port_rcv_errors", "packets arrived corrupt"),
    ("counters/port_rcv_remote_physical_errors", "packets were marked as corrupt on their way"),
    ("counters/port_xmit_discards", "packets were dropped before they were sent"),
    ("counters/local_link_integrity_errors", "errors of the link exceeded the threshold"),
    ("counters/excessive_buffer_overrun_errors", "flow control failed"),
    ("counters/VL15_dropped", "messages of the subnet manager were dropped"),
    ("hw_counters/out_of_sequence", "packets arrived out of order: earlier ones were lost"),
    ("hw_counters/packet_seq_err", "peers asked for lost packets again"),
    ("hw_counters/local_ack_timeout_err", "acknowledgements did not come in time"),
    ("hw_counters/implied_nak_seq_err", "responses arrived out of order"),
    ("hw_counters/duplicate_request", "peers sent requests again"),
    ("hw_counters/rnr_nak_retry_err", "receivers were not ready (RNR NAK)"),
    ("hw_counters/out_of_buffer", "messages found no receive request"),
    ("hw_counters/rx_icrc_encapsulated", "packets arrived with a wrong checksum"),
    ("hw_counters/roce_adp_retrans", "packets were sent again (adaptive retransmission)"),
    ("hw_counters/roce_adp_retrans_to", "packets timed out and were sent again (adaptive)"),
    ("hw_counters/rp_cnp_ignored", "notices of congestion were ignored"),
    ("hw_counters/rx_drops", "packets were dropped on arrival (EFA)"),
    ("hw_counters/retrans_timeout_events", "packets were sent again after a timeout (EFA)"),
    ("hw_counters/unresponsive_remote_events", "peers did not answer (EFA)"),
    ("hw_counters/retry_exceeded_err", "a packet was sent again too often (rxe)"),
    ("hw_counters/completer_retry_err", "requests had to be sent again (rxe)"),
];

/// Counters of congestion control: an increase is normal.
const CONGESTION: [(&str, &str); 3] = [
    ("hw_counters/np_ecn_marked_roce_packets", "packets received with a congestion mark (ECN)"),
    ("hw_counters/np_cnp_sent", "congestion notices sent to senders (CNP)"),
    ("hw_counters/rp_cnp_handled", "congestion notices that slowed this host down (CNP)"),
];

fn active(host: &Host) -> Vec<Port> {
    rdma::asked(host).into_iter().filter(|port| port.is_active(host)).collect()
}

fn count(host: &Host, port: &Port, name: &str) -> Option<u64> {
    port.text(host, name)?.parse().ok()
}

/// Reports the errors that the ports have counted since the driver was loaded.
pub(super) fn losses(host: &Host) -> Vec<Finding> {
    let ports = active(host);
    if ports.is_empty() {
        let text = "there is no active RDMA port in use, so there are no counters to read";
        return vec![Finding::ok("", text)];
    }
    ports.iter().map(|port| losses_of(host, port)).collect()
}

fn losses_of(host: &Host, port: &Port) -> Finding {
    let told: Vec<(&str, &str, u64)> = BAD
        .iter()
        .filter_map(|(name, meaning)| Some((*name, *meaning, count(host, port, name)?)))
        .collect();
    if told.is_empty() {
        let remedy = "try `rdma statistic show`, or the driver's own tools";
        let evidence = "the driver has no error counters in sysfs";
        return Finding::unknown(port.name.clone(), evidence, remedy);
    }
    let risen: Vec<String> = told
        .iter()
        .filter(|(_, _, count)| *count > 0)
        .map(|(name, meaning, count)| {
            let name = name.rsplit('/').next().unwrap_or(name);
            format!("{name} {count} ({meaning})")
        })
        .collect();
    let of = |name| count(host, port, name);
    let packets = of("counters/port_rcv_packets").or_else(|| of("hw_counters/rcvd_pkts"));
    if risen.is_empty() {
        return Finding::ok(port.name.clone(), format!("all {} error counters are 0", told.len()));
    }
    let most = told.iter().map(|(_, _, count)| *count).max().unwrap_or(0);
    let evidence = match packets {
        Some(packets) => format!("{}; packets received: {packets}", risen.join("; ")),
        None => risen.join("; "),
    };
    let remedy = "the counters count from the time when the driver was loaded: see whether they \
                  rise while a job runs. For wrong bits and lost links, check cable and \
                  transceiver. If RoCE loses packets, PFC or ECN is not set alike on hosts and \
                  switches";
    let often = packets.filter(|packets| *packets > 0).is_some_and(|packets| {
        u128::from(most) * 1_000_000 > u128::from(packets) * u128::from(BAD_PER_MILLION)
    });
    match often {
        true => Finding::warning(port.name.clone(), evidence, remedy),
        false => Finding::advice(port.name.clone(), evidence, remedy),
    }
}

/// Reports how RoCE ports signal and handle congestion.
pub(super) fn congestion(host: &Host) -> Vec<Finding> {
    let mut ports = active(host);
    // A software device, such as Soft-RoCE, has no queues that fill up.
    ports.retain(|port| port.is_ethernet(host) && port.device.function().is_some());
    if ports.is_empty() {
        return vec![Finding::ok("", "no RoCE port of a network card is in use")];
    }
    ports.iter().map(|port| congestion_of(host, port)).collect()
}

fn congestion_of(host: &Host, port: &Port) -> Finding {
    let counted: Vec<String> = CONGESTION
        .iter()
        .filter_map(|(name, meaning)| Some((meaning, count(host, port, name)?)))
        .map(|(meaning, count)| format!("{count} {meaning}"))
        .collect();
    let interface = port.interface(host).unwrap_or_default();
    let ecn: Vec<(&str, bool)> =
        [("roce_np", "sends no notices to senders"), ("roce_rp", "ignores notices")]
            .iter()
            .filter_map(|(side, what)| {
                let directory = format!("/sys/class/net/{interface}/ecn/{side}/enable");
                let values = host.names(&directory);
                let values = values.iter().map(|name| host.text(&format!("{directory}/{name}")));
                let values: Vec<String> = values.flatten().collect();
                let any = values.iter().any(|value| value != "0");
                (!values.is_empty()).then_some((*what, any))
            })
            .collect();
    let off: Vec<&str> = ecn.iter().filter(|(_, on)| !on).map(|(what, _)| *what).collect();
    let pauses = super::pauses::of(host, &interface);
    let seen: Vec<String> = counted.into_iter().chain(pauses).collect();
    if !off.is_empty() {
        let evidence = format!(
            "congestion notices (ECN, CNP): at all priorities, {interface} {} (ecn/*/enable)",
            off.join(" and ")
        );
        let remedy = "nothing, if PFC alone is meant to hold back senders. If DCQCN is meant, \
                      switch it on for the priority that RoCE uses, on all hosts and switches: \
                      `echo 1 > /sys/class/net/IF/ecn/roce_np/enable/PRIO`, likewise roce_rp";
        return Finding::advice(port.name.clone(), evidence, remedy);
    }
    if seen.is_empty() {
        let evidence = "neither sysfs nor the driver tells whether PFC and ECN are set";
        let remedy = "look at `mlnx_qos -i IF`, `dcb pfc show dev IF` and the switch; without PFC \
                      or ECN, RoCE loses packets when links fill up";
        return Finding::unknown(port.name.clone(), evidence, remedy);
    }
    Finding::ok(port.name.clone(), seen.join("; "))
}
