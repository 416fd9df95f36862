//! Loss, duplication, reordering, delay, slow ranks and tight budgets change times, never results.

use std::time::Duration;

use ccl_core::admission::Counters;
use ccl_core::execution::Link;
use ccl_core::types::DataType;
use ccl_transport_sim::{Conditions, Random, Stats, World};

use crate::harness::{Job, connect, mapped, operate, seeds, simulate};
use crate::schedules::{INCAST, ONE_SENDER, all, find};

/// Returns a job and a world drawn from a seed.
pub(crate) fn draw(seed: u64) -> (Job, World) {
    let mut random = Random::new(seed);
    let ranks = 2 + random.below(5) as u32;
    let all = all();
    let algorithm = all[random.below(all.len() as u64) as usize];
    let mut job = Job::new(ranks, algorithm, random.below(1500) as usize);
    job.root = random.below(u64::from(ranks)) as u32;
    let types = [DataType::Float32, DataType::Bfloat16, DataType::Int64, DataType::Uint8];
    job.data_type = types[random.below(4) as usize];
    job.config.slots = 1 + random.below(6) as u32;
    job.config.channels = 1 + random.below(3) as u32;
    job.config.slot_bytes = 64 << random.below(4);
    job.config.budget_bytes = 1 << (8 + random.below(10));
    job.in_place = job.has_in_place() && random.chance(0.3);
    job.config.zero_copy_bytes_min = [1, 100, usize::MAX][random.below(3) as usize];
    let mut conditions = Conditions::hostile();
    conditions.ordered = random.chance(0.2);
    conditions.depth_max = 1 + random.below(12) as usize;
    conditions.redirects = random.chance(0.5);
    if random.chance(0.3) {
        conditions.slow = vec![(random.below(u64::from(ranks)) as u32, 10)];
    }
    (job, World::new(ranks, conditions, seed))
}

#[test]
fn hostile_networks_deliver_the_right_results() {
    let mut total = Stats::default();
    let mut stalls = 0;
    let mut late = 0;
    let mut direct = [0; 4];
    seeds(400, |seed| {
        let (job, world) = draw(seed);
        let inputs = job.inputs(seed);
        let simulated = simulate(&job, &inputs, &world);
        let named = |error| format!("{}: {error}", job.name());
        simulated.check(&mapped(&job, &inputs)).map_err(named)?;
        if simulated.refused() != 0 {
            return Err(format!("{} messages were refused", simulated.refused()));
        }
        for rank in 0..job.ranks {
            let (most, allowed) = (world.in_flight_bytes_max(rank), job.in_flight_bytes_max());
            if most > allowed {
                return Err(format!(
                    "{most} bytes were under way towards rank {rank}; at most {allowed} are allowed"
                ));
            }
        }
        let stats = world.stats();
        if stats.changed != 0 {
            return Err(format!(
                "the source bytes of {} puts changed before the puts were done",
                stats.changed
            ));
        }
        total.puts += stats.puts;
        total.lost += stats.lost;
        total.duplicates += stats.duplicates;
        total.overtakings += stats.overtakings;
        stalls += simulated.counters.iter().map(|counters| counters.stalls).sum::<u64>();
        late += simulated.counters.iter().map(|counters| counters.late_credits).sum::<u64>();
        for Counters {
            zero_copy_sent: sent,
            zero_copy_reclaimed: reclaimed,
            zero_copy_received: received,
            cts_sent,
            ..
        } in simulated.counters
        {
            let more = [sent, reclaimed, received, cts_sent];
            direct = std::array::from_fn(|at| direct[at] + more[at]);
        }
        Ok(())
    });
    println!("{total:?}, {stalls} stalls, {late} late credits");
    let [sent, reclaimed, received, cts_sent] = direct;
    println!("{sent} zero-copy sends, {reclaimed} of them reclaimed; {received} placed directly");
    println!("{cts_sent} CTS");
    if std::env::var("FERROCCL_SIM_SEED").is_err() {
        let seen = [total.lost, total.duplicates, total.overtakings, stalls, late];
        assert!(direct.iter().all(|&count| count > 100), "zero copy was too rare: {direct:?}");
        assert!(seen.iter().all(|&count| count > 100), "faults or stalls were too rare: {seen:?}");
    }
}

#[test]
fn the_budget_is_shared_and_reached() {
    const MESSAGE: usize = 16 + 256;
    for (budget_bytes, reserved, pool) in [
        (100_000, 4, 0),
        (4 * 7 * MESSAGE, 4, 0),
        (20 * MESSAGE + 1, 2, 6),
        (10 * MESSAGE, 1, 3),
        (7 * MESSAGE, 1, 0),
        (1, 1, 0),
    ] {
        let mut job = Job::new(8, &INCAST, 20_000);
        job.config.budget_bytes = budget_bytes;
        assert_eq!((job.config.reserved_slots(7), job.config.pool_slots(7)), (reserved, pool));
        let allowed = job.config.in_flight_bytes_max(7);
        assert!(allowed <= budget_bytes.max(7 * (16 + 256)));
        let inputs = job.inputs(1);
        let world = World::new(8, Conditions::default(), 1);
        let simulated = simulate(&job, &inputs, &world);
        simulated.check(&mapped(&job, &inputs)).unwrap();
        let most = world.in_flight_bytes_max(0);
        // A slot is empty while its pool credit travels to a sender. So a run with a pool has to
        // reach only three quarters of the allowed bytes.
        let reached = if pool > 0 { allowed * 3 / 4 } else { allowed };
        assert!((reached..=allowed).contains(&most), "{most} bytes in flight, {allowed} allowed");
        assert!(simulated.counters[1].stalls > 0);
        assert_eq!(simulated.counters[0].pool_credits > 0, pool > 0);
    }
}

/// The budget has 60 slots for 15 links; two slots are reserved for each link. The window of the
/// only link in use grows from its two reserved slots to all eight slots that a link can have.
#[test]
fn idle_peers_leave_their_credits_to_others() {
    let time = |slots: u32| {
        let mut job = Job::new(16, &ONE_SENDER, 100_000);
        job.config.budget_bytes = 15 * 4 * (16 + 256);
        (job.config.slots, job.config.slots_min) = (slots, 2);
        let inputs = job.inputs(1);
        let world = World::new(16, Conditions::default(), 1);
        let links = connect(&job, &world, &mut |_, lane| lane);
        let start = world.now();
        let simulated = operate(&job, &inputs, &world, links);
        simulated.check(&mapped(&job, &inputs)).unwrap();
        let time = world.now() - start;
        assert_eq!(world.in_flight_bytes_max(0), slots as usize * (16 + 256));
        (time, simulated.counters[0].pool_credits)
    };
    let ((with, pooled), (without, none)) = (time(8), time(2));
    assert!(pooled > 100 && none == 0, "pool credits: {pooled} with eight slots, {none} with two");
    assert!(with * 3 < without, "{with:?} with eight slots, {without:?} with two");
}

/// Two links that request credits of the pool at the same time get one credit each in turn, so both
/// get equally many.
#[test]
fn links_that_ask_at_the_same_time_get_equally_many_credits() {
    let mut job = Job::new(3, &INCAST, 1);
    // Two slots for each link, and four in the pool.
    (job.config.slots, job.config.budget_bytes) = (8, 8 * (16 + 256));
    let world = World::new(3, Conditions::default(), 1);
    let mut all = connect(&job, &world, &mut |_, lane| lane);
    let link = |peer| Link { peer, channel: 0 };
    for peer in [1, 2] {
        while all[0].may_prepost(link(peer)) {
            all[0].prepost(link(peer), None);
        }
    }
    for _ in 0..100 {
        world.advance(world.now() + Duration::from_micros(10));
        for links in &mut all {
            links.flush(world.now()).unwrap();
            links.poll(world.now()).unwrap();
        }
    }
    for sender in &mut all[1..] {
        let writable = (0..8).take_while(|_| {
            let writable = sender.writable(link(0));
            if writable {
                sender.publish(link(0), 0, 0);
            }
            writable
        });
        assert_eq!(writable.count(), 4);
    }
}

#[test]
fn links_serve_one_operation_after_the_other() {
    let job = Job::new(4, find("direct_two_phase"), 700);
    let world = World::new(4, Conditions::hostile(), 9);
    let mut links = connect(&job, &world, &mut |_, lane| lane);
    for number in 0..20 {
        let inputs = job.inputs(number);
        let simulated = operate(&job, &inputs, &world, links);
        simulated.check(&mapped(&job, &inputs)).unwrap();
        links = simulated.links;
    }
    assert!(links.iter().all(|links| links.counters().sent > 20));
}

#[test]
fn a_slow_rank_costs_time_only() {
    let job = Job::new(4, find("direct_two_phase"), 5000);
    let inputs = job.inputs(1);
    let time = |slow: Vec<(u32, u32)>| -> Duration {
        let world = World::new(4, Conditions { slow, ..Conditions::default() }, 1);
        let links = connect(&job, &world, &mut |_, lane| lane);
        let start = world.now();
        operate(&job, &inputs, &world, links).check(&mapped(&job, &inputs)).unwrap();
        world.now() - start
    };
    assert!(time(vec![(2, 20)]) > time(Vec::new()) * 5);
}
