use super::*;
use crate::presets::Zone;
use crate::routing::Scheme;
use crate::streams::roofline_s;

fn zone(racks: u32) -> Zone {
    Zone { racks, ..Zone::default() }
}

fn call(collective: Collective, algorithm: &str, bytes: u64) -> Call {
    Call::new(collective, algorithm, bytes).unwrap()
}

fn outcome(
    network: &Network,
    scheme: Scheme,
    call: &Call,
    folding: Folding,
    params: &RunParams,
) -> Outcome {
    run(network, &mut Router::new(scheme, 7), call, folding, params).unwrap()
}

const CASES: [(Collective, &str); 8] = [
    (Collective::AllReduce, "ring"),
    (Collective::AllReduce, "hierarchical"),
    (Collective::AllReduce, "double_tree"),
    (Collective::AllReduce, "halving_doubling"),
    (Collective::AllToAll, "direct"),
    (Collective::AllToAll, "hierarchical"),
    (Collective::AllGather, "ring"),
    (Collective::ReduceScatter, "ring"),
];

/// Checks that the number of messages is near the estimate (the estimated steps divided by four: a
/// message takes four links through two tiers), and that too much work is refused.
#[test]
fn estimated_work_agrees_with_the_number_of_messages() {
    let mut plan = zone(4).plan().unwrap();
    let network = Network::new(plan.clone()).unwrap();
    let folding = Folding::none(network.ranks());
    for (collective, algorithm) in CASES {
        for (bytes, lean) in [(1 << 20, false), (24 << 20, true)] {
            let call = call(collective, algorithm, bytes);
            let params = RunParams { lean, settle_s: 1e-6, ..RunParams::default() };
            let found = outcome(&network, Scheme::HashedPairs, &call, folding, &params);
            let steps = steps(&network, Scheme::HashedPairs, &call, &params).unwrap();
            let over = steps / 4.0 / found.messages as f64;
            assert!(
                (0.5..=2.0).contains(&over),
                "{algorithm} of {collective}: the estimate is {over} times the messages sent"
            );
        }
    }
    plan.work_millions = 0;
    let network = Network::new(plan).unwrap();
    let call = call(Collective::AllReduce, "ring", 1 << 20);
    let mut router = Router::new(Scheme::Spray, 7);
    let error = run(&network, &mut router, &call, folding, &RunParams::default()).unwrap_err();
    assert!(matches!(error, SimError::Work { limit_millions: 0, .. }), "{error}");
}

/// Checks that the links from hosts to their switches carry as many bytes as the schedules send
/// between hosts, and that the bytes in flight never exceed the credits.
#[test]
fn all_bytes_are_carried_and_none_without_a_credit() {
    let network = Network::new(zone(2).plan().unwrap()).unwrap();
    let ranks = network.ranks();
    let hosts = Job::first(4).layout(8);
    for (collective, algorithm) in CASES {
        let call = call(collective, algorithm, 3 << 20);
        for scheme in [Scheme::HashedPairs, Scheme::Spray] {
            let params = RunParams { fold_bytes_per_s: 1e12, ..RunParams::default() };
            let found = outcome(&network, scheme, &call, Folding::none(ranks), &params);
            let mut sent = 0.0;
            for rank in 0..ranks {
                for (peer, bytes) in call.sends(rank, &hosts) {
                    sent += if peer / 8 == rank / 8 { 0.0 } else { bytes as f64 };
                }
            }
            let up = network.tier_links(0, true).map(|link| found.carried_bytes[link as usize]);
            let carried: f64 = up.sum();
            assert!((carried / sent - 1.0).abs() < 1e-9, "{algorithm}: {carried} of {sent} bytes");
            assert!(found.in_flight_bytes_max <= found.credit_bytes_max, "{algorithm}");
            assert!(found.time_s > 0.0 && found.messages > 0);
        }
    }
}

/// Checks that lean ranks ([`RunParams::lean`]) end at the same times, send as many messages, and
/// load each link with as many bytes, as ranks with the real execution and the real admission.
#[test]
fn lean_ranks_do_what_real_ones_do() {
    let network = Network::new(zone(16).plan().unwrap()).unwrap();
    assert_eq!(network.ranks(), 256);
    for (collective, algorithm) in CASES {
        let call = call(collective, algorithm, 1 << 20);
        let real = RunParams { settle_s: 1e-5, ..RunParams::default() };
        let lean = RunParams { lean: true, ..real.clone() };
        let folding = Folding::none(network.ranks());
        let [real, lean] = [real, lean]
            .map(|params| outcome(&network, Scheme::HashedPairs, &call, folding, &params));
        assert_eq!(real.ends_s, lean.ends_s, "{algorithm}");
        assert_eq!(real.messages, lean.messages);
        assert_eq!(real.carried_bytes, lean.carried_bytes);
    }
}

/// Checks that a folded run, in which one rank stands for all ranks that are alike, takes as long
/// as a run of all ranks.
#[test]
fn a_folded_run_takes_as_long_as_a_run_of_all_ranks() {
    let zones = Zone { zones: 2, oversubscription: 2.0, ..zone(4) };
    let full = std::env::var_os("FERROCCL_TEST_FULL").is_some();
    let all = [(zone(3), 48), (zones, 128), (zone(16), 256)];
    for (zone, ranks) in all.into_iter().take(if full { 3 } else { 1 }) {
        let network = Network::new(zone.plan().unwrap()).unwrap();
        assert_eq!(network.ranks(), ranks);
        for (collective, algorithm) in [
            (Collective::AllReduce, "ring"),
            (Collective::AllReduce, "hierarchical"),
            (Collective::AllToAll, "direct"),
        ] {
            let call = call(collective, algorithm, 3 << 20);
            let params = RunParams::default();
            let folding = Folding::closest(&network, Scheme::Spray, &call).unwrap();
            assert!(folding.stride < ranks);
            let all = outcome(&network, Scheme::Spray, &call, Folding::none(ranks), &params);
            let folded = outcome(&network, Scheme::Spray, &call, folding, &params);
            let times = all.ends_s.iter().zip(0..);
            for (time_s, rank) in times {
                let of = folded.ends_s[folding.of(rank) as usize];
                let off = (time_s / of - 1.0).abs();
                assert!(off < 1e-6, "{algorithm}, rank {rank} of {ranks}: {time_s}, folded {of}");
            }
            assert_eq!(all.messages, folded.messages * u64::from(ranks / folding.stride));
        }
    }
}

#[test]
fn ranks_that_differ_are_not_folded() {
    let mut network = Network::new(zone(4).plan().unwrap()).unwrap();
    let ring = call(Collective::AllReduce, "ring", 1 << 20);
    let tree = call(Collective::AllReduce, "double_tree", 1 << 20);
    let why = |network: &Network, scheme, call| {
        Folding::closest(network, scheme, call).unwrap_err().to_string()
    };
    assert!(why(&network, Scheme::Ecmp, &ring).contains("route by spray or pinned"));
    assert!(why(&network, Scheme::Spray, &tree).contains("choose another"));
    let odd = call(Collective::AllReduce, "ring", 1000);
    assert!(why(&network, Scheme::Spray, &odd).contains("a multiple of 256 bytes"));
    network.scale(3, 0.5);
    assert!(why(&network, Scheme::Spray, &ring).contains("slower"));
}

/// Checks that sprayed traffic takes as long over several cables as over a single cable that has
/// their total bandwidth.
#[test]
fn sprayed_traffic_uses_several_cables_like_one() {
    let plan = Zone { zones: 2, oversubscription: 2.0, ..zone(2) }.plan().unwrap();
    let call = call(Collective::AllToAll, "direct", 8 << 20);
    let time_s = |plan| {
        let network = Network::new(plan).unwrap();
        let folding = Folding::none(network.ranks());
        outcome(&network, Scheme::Spray, &call, folding, &RunParams::default()).time_s
    };
    let (many, one) = (time_s(plan.clone()), time_s(plan.collapsed()));
    assert!((many / one - 1.0).abs() < 1e-6, "{many} s over several cables, {one} s over one");
}

#[test]
fn a_call_takes_about_its_roofline_and_a_late_rank_holds_up_all() {
    let network = Network::new(zone(4).plan().unwrap()).unwrap();
    let call = call(Collective::AllReduce, "hierarchical", 64 << 20);
    let folding = Folding::none(network.ranks());
    let found = outcome(&network, Scheme::Spray, &call, folding, &RunParams::default());
    let streams = Job::first(8).streams(&network, &call, 1, 0).unwrap();
    let over = found.time_s / roofline_s(&network, &streams);
    assert!((1.0..2.0).contains(&over), "the call takes {over} times its roofline");
    let late = RunParams { late: vec![(5, 1e-3)], ..RunParams::default() };
    let held_up = outcome(&network, Scheme::Spray, &call, folding, &late);
    assert!(held_up.ends_s.iter().all(|end_s| *end_s > 1e-3));
}

#[test]
fn a_run_that_needs_too_much_memory_is_refused() {
    let mut plan = zone(32).plan().unwrap();
    plan.memory_mib = 64;
    let network = Network::new(plan).unwrap();
    let call = call(Collective::AllToAll, "direct", 1 << 20);
    let folding = Folding::none(network.ranks());
    let mut router = Router::new(Scheme::Spray, 0);
    let error = run(&network, &mut router, &call, folding, &RunParams::default()).unwrap_err();
    assert!(error.to_string().contains("fold ranks that are alike"), "{error}");
}
