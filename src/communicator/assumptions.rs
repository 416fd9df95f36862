//! Assumptions of the defaults about the network, checked when ranks have joined. A wrong
//! assumption is logged, and the defaults are adjusted as far as possible.
//!
//! A library that was tuned for round trips below 10 µs does badly where a round trip takes longer
//! ([Meta, SIGCOMM 2024], section 7.1): the data in flight towards a rank is bounded, and over a
//! long round trip that bound limits a link's rate. A library that was tuned for a fabric that
//! spreads each flow's packets over all its paths (adaptive routing) does badly where the fabric
//! hashes flows onto paths: there, links need several flows. The rate of a link while all ranks
//! send can only be measured ([`network`](super::network)).
//!
//! [Meta, SIGCOMM 2024]: https://doi.org/10.1145/3651890.3672233

use std::time::Duration;

use ccl_core::config::{Config, NetworkCheck, Value as _};
use ccl_core::topology::Hosts;

use super::segment::Segment;
use crate::transports::Choice;

/// Assumed rate of a link: a port of 100 Gbit/s.
const BYTES_PER_S: f64 = 12.5e9;

/// Largest number of slots; more slots cost more memory than they are worth.
const SLOTS_MAX: u32 = 64;

/// Returns the variable and value that give links the most flows, for a network transport that does
/// not stripe messages. Returns none if there is no such variable, or if the user has set it.
fn untouched_flows(config: &Config) -> Option<(&'static str, &'static str)> {
    let kind = Choice::of(config).network.filter(|kind| !kind.stripes)?;
    let (variable, values) = kind.more_flows?;
    let is_set = config.transport_settings.get(variable).is_some();
    values.last().filter(|_| !is_set).map(|most| (variable, *most))
}

/// Returns the configuration with the number of flows per link that suits the network, and a note
/// on the change. Over verbs, a link has one data queue pair if the fabric routes adaptively, as
/// InfiniBand is assumed to do. If `more` is true, links get more flows, as [`more_flows`]
/// describes. The result is equal on all ranks, as the arguments are. Settings of the user stay.
pub(super) fn flows(config: &Config, is_infiniband: bool, more: bool) -> (Config, Option<String>) {
    let mut config = config.clone();
    if !Choice::of(&config).stripes() {
        if let (true, Some((variable, flows))) = (more, untouched_flows(&config)) {
            config.transport_settings.set(variable, flows);
        }
        return (config, None);
    }
    let is_checked = config.check_network != NetworkCheck::Off;
    let said = config.ib_adaptive_routing;
    let is_adaptive = said.unwrap_or(is_checked && is_infiniband && !more);
    config.ib_adaptive_routing = Some(is_adaptive);
    let before = config.ib_policy.otherwise().pairs;
    if !is_adaptive || config.policy() == config.ib_policy {
        if said.is_none() && is_checked {
            let network = match is_infiniband {
                true => "InfiniBand",
                false => "RoCE (whose fabric is assumed to hash flows onto its paths)",
            };
            tracing::info!("the queue-pair policy over {network} is `{}`", config.ib_policy);
        }
        return (config, None);
    }
    let because = match said {
        Some(_) => "FERROCCL_IB_ADAPTIVE_ROUTING=1",
        None => {
            "all RDMA devices are InfiniBand, whose fabric is assumed to route adaptively \
             (set FERROCCL_IB_ADAPTIVE_ROUTING=0 if it does not)"
        }
    };
    let pairs = config.policy().otherwise().pairs;
    let said = format!(
        "{because}: {pairs} queue pair for the data of each link instead of up to {before}"
    );
    tracing::info!("{said}");
    (config, Some(said))
}

/// Describes the change by which links get more flows than now. `holds` is the configuration now;
/// it was made from `asked`. Returns none if the user has set the number of flows, or if no change
/// would raise it.
pub(super) fn more_flows(asked: &Config, holds: &Config) -> Option<String> {
    let is_infiniband = holds.ib_adaptive_routing == Some(true);
    let mut taken = asked.clone();
    taken.transport.clone_from(&holds.transport);
    let (more, _) = flows(&taken, is_infiniband, true);
    if more.transport_settings != holds.transport_settings {
        let (variable, flows) = untouched_flows(holds)?;
        return Some(format!("{variable}={flows}"));
    }
    let pairs = |config: &Config| config.policy().otherwise().pairs;
    let (pairs, before) = (pairs(&more), pairs(holds));
    (Choice::of(holds).stripes() && pairs > before)
        .then(|| format!("up to {pairs} queue pairs per link instead of {before}"))
}

/// Returns the configuration, with more slots per link if the default number is too small for the
/// round trip between hosts. Also returns a note: on the change or, if nothing changes, on slots
/// that are shorter than with few ranks. The result is equal on all ranks, as the arguments are.
/// Settings of the user stay.
pub(super) fn adjusted(
    config: &Config,
    hosts: &Hosts,
    round_trip: Duration,
) -> (Config, Option<String>) {
    let mut config = config.clone();
    if hosts.count() < 2 || round_trip.is_zero() || config.check_network == NetworkCheck::Off {
        let note = shrunk(&config, hosts);
        return (config, note);
    }
    let needed = round_trip.as_secs_f64() * BYTES_PER_S;
    let window = |config: &Config| {
        let segment = Segment::new(hosts, 0, config);
        f64::from(segment.shape.slots) * segment.shape.slot_bytes as f64
    };
    let links = f64::from(hosts.ranks() - 1) * f64::from(config.channels.max(1));
    let (before, slots) = (window(&config), config.slots);
    if before >= needed || slots != Config::default().slots {
        let note = shrunk(&config, hosts);
        return (config, note);
    }
    // Doubles the number of slots until a link's slots together hold `needed` bytes. Stops earlier
    // at `SLOTS_MAX` slots, or if twice as many slots hold no more bytes in total: the budget may
    // allow only shorter slots if there are more slots.
    let mut best = (slots, before);
    let mut tried = config.clone();
    while tried.slots < SLOTS_MAX && best.1 < needed {
        tried.slots *= 2;
        let under_way = window(&tried);
        // Slots are never shorter than a least length. Many such slots can exceed the budget.
        if under_way <= best.1 || under_way * links > config.budget_bytes.0 as f64 {
            break;
        }
        best = (tried.slots, under_way);
    }
    if best.0 == slots {
        let note = shrunk(&config, hosts);
        return (config, note);
    }
    config.slots = best.0;
    let gbps = 8e-9 * best.1 / round_trip.as_secs_f64();
    let bound = if best.1 < needed {
        "; more slots would exceed FERROCCL_BUDGET_BYTES, or the default limit of 64 slots \
         (FERROCCL_SLOTS can set more)"
    } else {
        ""
    };
    let said = format!(
        "a round trip between hosts takes {} us: each link has {} slots instead of {slots}, and \
         carries up to {gbps:.1} Gbit/s{bound}",
        round_trip.as_micros(),
        best.0
    );
    tracing::info!("{said}");
    (config, Some(said))
}

/// Logs and returns a note if slots are shorter because the ranks are many. The more ranks there
/// are, the less each link may have in flight; users should learn that without measuring.
fn shrunk(config: &Config, hosts: &Hosts) -> Option<String> {
    let segment = |hosts: &Hosts| Segment::new(hosts, 0, config);
    let two: &[u32] = if hosts.count() == hosts.ranks() { &[0, 1] } else { &[0, 0, 1] };
    let (is, would_be) = (segment(hosts), segment(&Hosts::of(two)).shape);
    let fewer = is.fewer_slots();
    let fewer = if fewer.is_empty() { fewer } else { format!(", {fewer}") };
    let is = is.shape;
    let said = (is.slot_bytes < would_be.slot_bytes).then(|| {
        format!(
            "slots hold {} bytes instead of {}{fewer}, because there are {} ranks: the bytes in \
             flight towards any one of them must stay within FERROCCL_BUDGET_BYTES={}; the number \
             of channels stays the same",
            is.slot_bytes,
            would_be.slot_bytes,
            hosts.ranks(),
            config.budget_bytes.show()
        )
    })?;
    tracing::info!("{said}");
    Some(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transports;
    use ccl_core::config::Bytes;

    fn slots(ids: &[u32], us: u64, change: impl Fn(&mut Config)) -> (u32, Option<String>) {
        let mut config = Config::default();
        change(&mut config);
        let (config, said) = adjusted(&config, &Hosts::of(ids), Duration::from_micros(us));
        (config.slots, said)
    }

    #[test]
    fn links_have_more_slots_if_round_trips_are_long() {
        assert_eq!(slots(&[0, 1], 30, |_| {}), (8, None));
        let (many, said) = slots(&[0, 1], 500, |_| {});
        // 6.25 MB in flight, in slots of 256 KiB.
        assert_eq!(many, 32);
        assert!(said.unwrap().contains("takes 500 us: each link has 32 slots"));
        let (many, said) = slots(&[0, 1], 50_000, |_| {});
        assert_eq!(many, 64);
        assert!(
            said.unwrap()
                .contains("2.7 Gbit/s; more slots would exceed FERROCCL_BUDGET_BYTES, or the")
        );
    }

    #[test]
    fn a_link_over_infiniband_has_one_queue_pair() {
        let mut config = Config::default();
        let stripes = transports::all().into_iter().find(|kind| kind.stripes).unwrap();
        config.transport = stripes.name.to_owned();
        let pairs = |config: &Config, is_infiniband, more| {
            let (config, note) = flows(config, is_infiniband, more);
            assert_eq!(note.is_some(), config.policy() != config.ib_policy);
            let said = note.is_none_or(|note| note.contains(": 1 queue pair for the data of each"));
            assert!(said);
            config.policy().otherwise().pairs
        };
        assert_eq!(pairs(&config, true, false), 1);
        assert_eq!(pairs(&config, false, false), 16);
        // With `more`, the fabric is not assumed to route adaptively.
        assert_eq!(pairs(&config, true, true), 16);
        let (holds, note) = flows(&config, true, false);
        assert!(note.unwrap().starts_with("all RDMA devices are InfiniBand,"));
        let more = "up to 16 queue pairs per link instead of 1";
        assert_eq!(more_flows(&config, &holds).as_deref(), Some(more));
        assert_eq!(more_flows(&config, &flows(&config, false, false).0), None, "already 16 pairs");
        config.check_network = NetworkCheck::Off;
        assert_eq!(pairs(&config, true, false), 16);
        config.ib_adaptive_routing = Some(true);
        assert_eq!([false, true].map(|more| pairs(&config, false, more)), [1, 1]);
        assert_eq!(more_flows(&config, &flows(&config, false, false).0), None, "set by the user");
        (config.check_network, config.ib_adaptive_routing) = (NetworkCheck::Assumed, Some(false));
        assert_eq!(pairs(&config, true, false), 16);
        (config.ib_adaptive_routing, config.ib_policy) = (None, "qps=4".parse().unwrap());
        assert_eq!(pairs(&config, true, false), 4);
    }

    #[test]
    fn more_sockets_are_possible_unless_the_user_set_the_number() {
        let mut config = Config::default();
        let (holds, note) = flows(&config, false, false);
        assert_eq!((&holds, note), (&config, None));
        let more = more_flows(&config, &holds).unwrap();
        assert_eq!(more, "FERROCCL_SOCKETS=4");
        let sockets = |config: &Config| {
            let more = flows(config, false, true).0;
            more.transport_settings.get("FERROCCL_SOCKETS").map(str::to_owned)
        };
        assert_eq!(sockets(&config).as_deref(), Some("4"));
        config.transport_settings.set("FERROCCL_SOCKETS", "2");
        assert_eq!(sockets(&config).as_deref(), Some("2"));
        assert_eq!(more_flows(&config, &config), None);
    }

    /// Checks that a link keeps its channels and slots with up to 512 hosts, and that shorter or
    /// fewer slots are logged.
    #[test]
    fn shorter_slots_among_many_hosts_are_reported() {
        let mut config = Config::default();
        config.channels = 2;
        for ranks in [2_u32, 3, 4, 5, 8, 9, 16, 17, 64, 512] {
            let hosts: Vec<u32> = (0..ranks).collect();
            let hosts = Hosts::of(&hosts);
            let (adjusted, said) = adjusted(&config, &hosts, Duration::from_micros(10));
            let segment = Segment::new(&hosts, 0, &adjusted);
            assert_eq!((segment.channels, segment.message_config().slots), (2, 8), "{ranks} ranks");
            let is_whole = segment.shape.slot_bytes == 256 << 10;
            assert_eq!(said.is_none(), is_whole, "{ranks} ranks: {said:?}");
            assert!(said.is_none_or(|said| said.contains("FERROCCL_BUDGET_BYTES=33554432")));
        }
        let hosts = Hosts::of(&(0..3000).collect::<Vec<_>>());
        let said = adjusted(&config, &hosts, Duration::from_micros(10)).1.unwrap();
        assert!(said.contains("slots of each link between hosts: 1, and up to 4 while"), "{said}");
    }

    #[test]
    fn no_slots_are_added_against_a_setting_or_where_they_would_not_help() {
        assert_eq!(slots(&[0, 1], 50_000, |config| config.slots = 4), (4, None));
        assert_eq!(slots(&[0, 0], 50_000, |_| {}), (8, None));
        assert_eq!(slots(&[0, 1], 0, |_| {}), (8, None));
        assert_eq!(
            slots(&[0, 1], 500, |config| config.check_network = NetworkCheck::Off),
            (8, None)
        );
        // Twice as many slots, each half as long, hold no more bytes.
        let tight = |config: &mut Config| config.budget_bytes = Bytes(1 << 20);
        let (many, said) = slots(&[0, 1], 50_000, tight);
        assert_eq!((many, said), (8, None));
    }
}
