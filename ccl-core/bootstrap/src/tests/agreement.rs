//! Tests of the agreement under thousands of seeds of kills, cut-offs, splits, stops, leaves and
//! slow connections. Every survivor gets the same verdict in bounded time, no two ranks ever have
//! different verdicts of one epoch, and each verdict is true. Planted faults are found.

use super::net::{Net, Plan, Random, State};
use crate::agreement::Fault;
use crate::{NoVerdict, Verdict};
use ccl_core::types::Rank;
use std::collections::BTreeMap;

/// Time after the last event within which all survivors agree, in milliseconds. Each coordinator
/// that falls silent delays the agreement by 3 s, after which its silence is noticed.
const BOUND_MS: u64 = 12_000;

/// Runs one history: random events at a few ranks around the time of an agreement.
fn history(seed: u64, fault: Option<Fault>) -> Net {
    let mut random = Random(seed);
    let ranks = 2 + random.below(9) as u32;
    let mut net = Net::linked(ranks, seed);
    net.latency_us_max = [300, 3_000, 40_000][random.below(3) as usize];
    if let Some(fault) = fault {
        net.nodes.iter_mut().for_each(|node| node.control.plant(fault));
    }
    net.operate();
    net.run_for(20);
    // Length of the window in which events begin, narrow or wide.
    let window_us = [500, 5_000, 100_000, 6_000_000][random.below(4) as usize];
    for _ in 0..1 + random.below(u64::from(ranks)) {
        // The low ranks coordinate, so more events hit them.
        let bound = if random.below(2) == 0 { ranks.min(3) } else { ranks };
        let rank = random.below(bound.into()) as Rank;
        let after = random.below(window_us);
        let plan = match random.below(12) {
            0..4 => Plan::Kill(rank),
            4..7 => Plan::KillWhileSending(rank, random.below(40)),
            7 => Plan::CutOffWhileSending(rank, random.below(40)),
            8 => Plan::CutOff(rank),
            9 => Plan::Leave(rank),
            10 => Plan::Abort(rank),
            _ => {
                net.plan(after + random.below(9_000_000), Plan::Resume(rank));
                Plan::Stop(rank)
            }
        };
        net.plan(after, plan);
    }
    net.plan(random.below(window_us), Plan::Abort(ranks - 1));
    net.run_for(window_us / 1000 + 10_000);
    net.calm();
    net.run_for(BOUND_MS);
    net
}

/// Checks a history. Returns whether it ends with a verdict, or what is wrong with it.
fn judged(net: &Net) -> Result<bool, String> {
    let mut agreed: BTreeMap<u64, &Verdict> = BTreeMap::new();
    for (rank, node) in net.nodes.iter().enumerate() {
        for (verdict, far) in &node.verdicts {
            let first = agreed.entry(verdict.epoch).or_insert(verdict);
            if *first != verdict {
                return Err(format!("rank {rank} has {verdict:?}, but another rank {first:?}"));
            }
            truthful(net, verdict, far)?;
        }
    }
    for pair in agreed.values().collect::<Vec<_>>().windows(2) {
        let grows = pair[0].dead.iter().all(|rank| pair[1].dead.contains(rank));
        if !grows || pair[0].last_completed != pair[1].last_completed {
            return Err(format!("{:?} contradicts {:?}", pair[1], pair[0]));
        }
    }
    settled(net)
}

/// Checks a verdict against `far`, the progress of all ranks when one rank learned the verdict. At
/// that time, every survivor must have completed operation `last_completed`. Since that time, the
/// survivors must not have completed any operation.
fn truthful(net: &Net, verdict: &Verdict, far: &[u64]) -> Result<(), String> {
    for rank in &verdict.survivors {
        let then = far[*rank as usize];
        let now = net.nodes[*rank as usize].completed.number();
        if then < verdict.last_completed || then != now {
            return Err(format!(
                "rank {rank} had completed operation {then}, and now {now}; the verdict is \
                 {verdict:?}"
            ));
        }
    }
    Ok(())
}

/// Returns true if all ranks that have a verdict have the same one. The verdict's survivors, except
/// those that left, must be exactly the ranks that have the verdict (not checked if a rank lacks a
/// quorum). Returns false if no rank has a verdict and none needs one: each running rank either
/// counts as dead, lacks a quorum, knows of no failure, or has no connection left. The error says
/// what is wrong.
fn settled(net: &Net) -> Result<bool, String> {
    let mut last: Option<&Verdict> = None;
    let mut survivors = Vec::new();
    let (mut too_few, mut unaware) = (false, None);
    for (rank, node) in net.nodes.iter().enumerate() {
        if node.state != State::Runs || node.control.is_detached() && net.running().len() > 1 {
            continue;
        }
        match node.control.verdict() {
            Err(NoVerdict::Condemned(_)) => {}
            Err(NoVerdict::NoQuorum { living, silent }) if living <= silent => too_few = true,
            Err(error) => return Err(format!("rank {rank}: {error}")),
            Ok(None) if node.control.failure().is_none() => unaware = Some(rank),
            Ok(None) => return Err(format!("rank {rank} has no verdict")),
            Ok(Some(verdict)) => {
                if last.is_some_and(|last| last != verdict) {
                    return Err(format!(
                        "rank {rank} ends with {verdict:?}, another with {last:?}"
                    ));
                }
                last = Some(verdict);
                survivors.push(rank as Rank);
            }
        }
    }
    match last {
        Some(verdict) if unaware.is_some() => Err(format!("{unaware:?} missed {verdict:?}")),
        Some(verdict) => {
            let has_left = |rank: &Rank| {
                survivors.iter().any(|s| net.nodes[*s as usize].control.has_left(*rank))
            };
            let mut expected = verdict.survivors.clone();
            expected.retain(|rank| !has_left(rank));
            if expected != survivors && !too_few {
                return Err(format!("ranks {survivors:?} survive, but the verdict is {verdict:?}"));
            }
            Ok(true)
        }
        None => Ok(false),
    }
}

/// Returns the first of these seeds whose history goes wrong, and what is wrong with it.
fn failing(seeds: std::ops::Range<u64>, fault: Option<Fault>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| Some((seed, judged(&history(seed, fault)).err()?)))
}

fn count() -> u64 {
    let full = std::env::var_os("FERROCCL_TEST_FULL").is_some();
    if full { 20_000 } else { 300 }
}

/// Judges the histories of `seeds` seeds, more than `least` of which must have a verdict.
/// `FERROCCL_TEST_SEED` replays one seed instead.
fn judge(seeds: u64, least: u64, history: impl Fn(u64) -> Net) {
    if let Ok(seed) = std::env::var("FERROCCL_TEST_SEED") {
        let net = history(seed.parse().unwrap());
        println!("{}", net.story());
        judged(&net).unwrap();
        return;
    }
    let mut with_verdict = 0;
    for seed in 0..seeds {
        match judged(&history(seed)) {
            Ok(agreed) => with_verdict += u64::from(agreed),
            Err(wrong) => panic!("FERROCCL_TEST_SEED={seed}: {wrong}"),
        }
    }
    assert!(with_verdict > least, "only {with_verdict} histories had a verdict");
}

#[test]
fn survivors_of_any_history_agree() {
    judge(count(), count() / 2, |seed| history(seed, None));
}

/// Runs one history of a network that is split for about as long as the silence after which a rank
/// counts as dead. Often, a rank is stopped for a while, one path is cut in addition, or the ranks
/// of one side are killed, before or after a verdict.
fn split(seed: u64, fault: Option<Fault>) -> Net {
    let mut random = Random(seed);
    let ranks = 2 + random.below(7) as u32;
    let mut net = Net::linked(ranks, seed);
    if let Some(fault) = fault {
        net.nodes.iter_mut().for_each(|node| node.control.plant(fault));
    }
    net.operate();
    let bound = 1 + random.below(u64::from(ranks) - 1) as Rank;
    let lasts = |random: &mut Random| 2_800_000 + random.below(800_000);
    if random.below(4) > 0 {
        net.plan(random.below(500_000), Plan::Split(bound, lasts(&mut random)));
    }
    if random.below(4) == 0 {
        net.plan(random.below(500_000), Plan::Unlink(bound - 1, lasts(&mut random)));
    }
    if random.below(4) > 0 {
        let (rank, stops) = (random.below(ranks.into()) as Rank, random.below(1_000_000));
        net.plan(stops, Plan::Stop(rank));
        net.plan(stops + random.below(4_000_000), Plan::Resume(rank));
    }
    if random.below(2) == 0 {
        let side = if random.below(2) == 0 { 0..bound } else { bound..ranks };
        let ends = 2_900_000 + random.below(1_500_000);
        side.for_each(|rank| net.plan(ends + random.below(100_000), Plan::Kill(rank)));
    }
    net.run_for(6_000);
    net.calm();
    net.run_for(BOUND_MS);
    net
}

/// Both sides of a split network may count each other as dead. At most one of them goes on, even if
/// the split ends while the sides close their connections with each other.
#[test]
fn a_split_that_ends_while_the_sides_part_leaves_one_side() {
    let seeds = count().min(5_000);
    judge(seeds, seeds / 5, |seed| split(seed, None));
}

/// Survivors of kills never lack a quorum, however many ranks are killed at once.
#[test]
fn survivors_of_kills_get_a_verdict() {
    for seed in 0..count() / 10 {
        let mut random = Random(seed);
        let ranks = 2 + random.below(15) as u32;
        let mut net = Net::linked(ranks, seed);
        net.operate();
        let survivor = random.below(ranks.into()) as Rank;
        let killed = (0..ranks).filter(|rank| *rank != survivor && random.below(4) > 0);
        let killed = Vec::from_iter(killed);
        for rank in &killed {
            net.plan(random.below([1, 10_000][seed as usize % 2]), Plan::Kill(*rank));
        }
        net.run_for(BOUND_MS);
        for rank in net.running().into_iter().filter(|_| !killed.is_empty()) {
            let verdict = net.nodes[rank as usize].control.verdict();
            let dead = verdict.map(|verdict| verdict.map(|verdict| verdict.dead.clone()));
            assert_eq!(dead, Ok(Some(killed.clone())), "seed {seed}: {}", net.story());
        }
    }
}

/// Calls [`Control::reconvene`](crate::Control::reconvene) repeatedly on each running rank that has
/// a verdict, except `leaver`. Returns the survivors, on which all these ranks must agree.
fn reconvened(net: &mut Net, leaver: Rank) -> Result<Vec<Rank>, String> {
    let all = net.nodes.iter().enumerate();
    let here = all.filter(|(rank, node)| {
        let agrees = matches!(node.control.verdict(), Ok(Some(_)));
        node.state == State::Runs && agrees && *rank as Rank != leaver
    });
    let here: Vec<Rank> = here.map(|(rank, _)| rank as Rank).collect();
    for _ in 0..10 {
        for rank in &here {
            let now = net.now;
            let _ = net.nodes[*rank as usize].control.reconvene(now);
            net.pump(*rank);
        }
        net.run_for(300);
    }
    let mut last: Option<Verdict> = None;
    for rank in &here {
        let now = net.now;
        let verdict = net.nodes[*rank as usize].control.reconvene(now);
        let verdict = verdict.map_err(|error| format!("rank {rank}: {error}"))?.cloned();
        let verdict = verdict.ok_or_else(|| format!("rank {rank} has no verdict to go on with"))?;
        if last.as_ref().is_some_and(|last| *last != verdict) {
            return Err(format!("rank {rank} goes on with {verdict:?}, another with {last:?}"));
        }
        last = Some(verdict);
    }
    Ok(last.map_or_else(Vec::new, |verdict| verdict.survivors))
}

/// Ranks that go on do not wait for a rank that leaves after an agreement, and their new verdict
/// does not contradict the earlier one.
#[test]
fn survivors_reconvene_without_ranks_that_left() {
    let mut smaller = 0;
    for seed in 0..count() / 4 {
        let mut net = history(seed, None);
        if !matches!(judged(&net), Ok(true)) {
            continue;
        }
        let agreed = net.nodes.iter().find_map(|node| node.control.verdict().ok()?.cloned());
        let Some(agreed) = agreed.filter(|agreed| agreed.survivors.len() > 1) else { continue };
        // The lowest survivor, which coordinates, or another one.
        let leaver = agreed.survivors[seed as usize % 3 % agreed.survivors.len()];
        net.carry_out(Plan::Leave(leaver));
        let survivors =
            reconvened(&mut net, leaver).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert!(!survivors.contains(&leaver), "seed {seed}: rank {leaver} is in {survivors:?}");
        judged(&net).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        smaller += u64::from(!survivors.is_empty());
    }
    assert!(smaller > count() / 20, "only {smaller} histories had survivors after the leave");
}

#[test]
fn planted_faults_are_found() {
    let agreement = [Fault::IgnoreAccepted, Fault::DecideUnaccepted];
    for fault in agreement.into_iter().chain([Fault::ForgetVote, Fault::NeverFreeze]) {
        let found = failing(0..count(), Some(fault));
        println!("{fault:?}: {found:?}");
        assert!(found.is_some(), "no seed reveals {fault:?}");
    }
    let trusts = |seed| judged(&split(seed, Some(Fault::TrustCloses))).is_err();
    assert!((0..count()).any(trusts), "no seed reveals {:?}", Fault::TrustCloses);
}
