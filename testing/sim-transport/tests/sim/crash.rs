//! Crash of a rank: every survivor ends with a result, or with an error that names the dead rank.

use std::time::Duration;

use ccl_transport_sim::{Conditions, Outcome, Random, World};

use crate::harness::{DEADLINE, Job, Simulated, connect, mapped, operate, seeds};
use crate::schedules::find;
use crate::weather::draw;

/// Checks that every result of a survivor is right, and that `fits` accepts every error.
/// Returns the number of failed ranks.
fn check_survivors(
    simulated: &Simulated,
    expected: &[Vec<u8>],
    dead: u32,
    fits: impl Fn(&str) -> bool,
) -> Result<usize, String> {
    let mut failed = 0;
    for (rank, outcome) in simulated.outcomes.iter().enumerate() {
        match outcome {
            Outcome::Done { .. } if simulated.outputs[rank] != expected[rank] => {
                return Err(format!("rank {rank} has a wrong result"));
            }
            Outcome::Done { .. } => {}
            Outcome::Failed { error, .. } if fits(error) => failed += 1,
            Outcome::Failed { error, .. } => {
                return Err(format!(
                    "rank {rank} has a wrong error after the crash of rank {dead}: {error}"
                ));
            }
            Outcome::Crashed if rank as u32 == dead => {}
            Outcome::Crashed => {
                return Err(format!("rank {rank} crashed, but the test crashes only rank {dead}"));
            }
        }
    }
    Ok(failed)
}

/// Schedules the crash of a random rank at a random point of the run.
fn arm(world: &World, random: &mut Random) -> u32 {
    let dead = random.below(u64::from(world.ranks())) as u32;
    if random.chance(0.5) {
        let after = Duration::from_nanos(random.below(1_000_000));
        world.crash_at(dead, world.now() + after);
    } else {
        world.crash_after(dead, random.below(150));
    }
    dead
}

#[test]
fn survivors_end_with_a_result_or_an_error_that_names_the_dead() {
    let (mut runs, mut failures) = (0, 0);
    seeds(2000, |seed| {
        let (job, world) = draw(seed);
        let inputs = job.inputs(seed);
        let expected = mapped(&job, &inputs);
        let links = connect(&job, &world, &mut |_, lane| lane);
        let dead = arm(&world, &mut Random::new(seed ^ 0xdead));
        let start = world.now();
        let simulated = operate(&job, &inputs, &world, links);
        let name = format!("rank {dead} is gone");
        let failed = check_survivors(&simulated, &expected, dead, |error| error.contains(&name))?;
        if failed > 0 && world.now() - start >= DEADLINE {
            return Err("only the deadline ended the run".to_owned());
        }
        runs += 1;
        failures += u64::from(failed > 0);
        Ok(())
    });
    println!("{failures} of {runs} crashes made a survivor fail");
    assert!(runs == 1 || failures * 3 > runs, "only {failures} of {runs} crashes caused a failure");
}

#[test]
fn after_a_silent_crash_the_deadline_ends_the_survivors() {
    let mut stuck = 0;
    seeds(300, |seed| {
        let (job, world) = draw(seed);
        world.set_conditions(Conditions { silent_crashes: true, ..world.conditions() });
        let inputs = job.inputs(seed);
        let expected = mapped(&job, &inputs);
        let links = connect(&job, &world, &mut |_, lane| lane);
        let dead = arm(&world, &mut Random::new(seed ^ 0xdead));
        let simulated = operate(&job, &inputs, &world, links);
        let names_someone =
            |error: &str| error.contains("has not ended in time") && error.contains("rank ");
        let failed = check_survivors(&simulated, &expected, dead, names_someone)?;
        stuck += u64::from(failed > 0);
        let name = format!("rank {dead} ");
        let named = simulated.outcomes.iter().any(
            |outcome| matches!(outcome, Outcome::Failed { error, .. } if error.contains(&name)),
        );
        if failed > 0 && !named {
            return Err(format!("no error names rank {dead}: {:?}", simulated.outcomes));
        }
        Ok(())
    });
    assert!(
        stuck > 50 || std::env::var("FERROCCL_SIM_SEED").is_ok(),
        "only {stuck} silent crashes made a survivor wait for the deadline"
    );
}

/// A step of a ring that overwrites sent memory first waits until the peer has acknowledged the
/// bytes. The error of such a wait names the peer that does not acknowledge.
#[test]
fn a_rank_that_does_not_acknowledge_is_named() {
    let mut acknowledgements = 0;
    for things in 1..80 {
        let mut job = Job::new(3, find("ring"), 700);
        job.in_place = true;
        let silent = Conditions { silent_crashes: true, ..Conditions::default() };
        let world = World::new(3, Conditions { redirects: false, ..silent }, 1);
        let links = connect(&job, &world, &mut |_, lane| lane);
        world.crash_after(1, things);
        let simulated = operate(&job, &job.inputs(1), &world, links);
        let errors = simulated.outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Failed { error, .. } => Some(error.as_str()),
            _ => None,
        });
        let errors: Vec<&str> = errors.collect();
        let named = errors.iter().any(|error| error.contains("rank 1 "));
        assert!(
            errors.is_empty() || named,
            "no error names rank 1, which crashed after {things} posts and events: {errors:?}"
        );
        let waits = errors.iter().filter(|error| error.contains("acknowledgement from rank 1 "));
        acknowledgements += waits.count();
    }
    assert!(acknowledgements > 0, "nobody had to wait for an acknowledgement");
}

#[test]
fn a_rank_that_crashed_before_the_start_is_soon_named() {
    let job = Job::new(4, find("direct"), 1000);
    let world = World::new(4, Conditions::default(), 1);
    let links = connect(&job, &world, &mut |_, lane| lane);
    let crashed = world.now();
    world.crash_at(2, crashed);
    let inputs = job.inputs(1);
    let simulated = operate(&job, &inputs, &world, links);
    for (rank, outcome) in simulated.outcomes.iter().enumerate() {
        match outcome {
            Outcome::Crashed => assert_eq!(rank, 2),
            Outcome::Failed { error, at } => {
                assert!(error.contains("rank 2 is gone"), "{error}");
                // A sender detects the crash because acknowledgements are missing, long before
                // the keepalive time.
                assert!(*at - crashed < Conditions::default().keepalive / 2, "{at:?}");
            }
            Outcome::Done { .. } => panic!("rank {rank} cannot have a result"),
        }
    }
}
