//! Ranks with two devices each, on two separate networks.

use std::time::{Duration, Instant};

use super::faults::{Down, sums};
use super::{over, rails, sums_and_exchanges};
use ccl_core::transport::RailState;
use ccl_harness::joining;
use ferroccl::{Communicator, Config};

/// Time limit for the failure and the recovery of a device together; processors may be emulated.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs two ranks, each on a nominal host of its own and with the devices of one side.
fn on_two_hosts<T: Send + 'static>(
    sides: &[Vec<String>; 2],
    change: impl Fn(&mut Config) + Send + Sync + 'static,
    run: impl Fn(&mut Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let sides = sides.clone();
    let config = move |rank: u32| {
        over(&sides[rank as usize], |config| {
            config.host_id = format!("host {rank}");
            config.ib_policy = "2".parse().unwrap();
            change(config);
        })
    };
    joining(2, config, move |communicator| run(&mut communicator.unwrap()))
}

fn rails_of(communicator: &Communicator) -> Vec<RailState> {
    communicator.rails().map(|(_, rail)| rail).collect()
}

/// Returns the final state of the rails, once all ranks have read theirs. A rank that left earlier
/// would close rails.
fn rails_at_last(communicator: &mut Communicator) -> Vec<RailState> {
    let rails = rails_of(communicator);
    communicator.barrier().unwrap();
    rails
}

#[test]
fn messages_are_striped_over_two_devices() {
    let Some((sides, _turn)) = rails() else { return };
    let seen = on_two_hosts(
        &sides,
        |_| (),
        |communicator| {
            sums_and_exchanges(communicator);
            for _ in 0..20 {
                let mut data = vec![1.0f32; 300_000];
                communicator.all_reduce_in_place(&mut data, ferroccl::Reduction::Sum).unwrap();
                assert!(data.iter().all(|value| *value == 2.0));
            }
            rails_at_last(communicator)
        },
    );
    for (rails, names) in seen.iter().zip(&sides) {
        println!("{rails:?}");
        let devices: Vec<&String> = rails.iter().map(|rail| &rail.device).collect();
        assert_eq!(devices, names.iter().collect::<Vec<_>>());
        let all: u64 = rails.iter().map(|rail| rail.bytes).sum();
        for rail in rails {
            assert!(rail.is_up && rail.failures == 0 && rail.bytes > all / 20, "{rails:?}");
        }
    }
}

#[test]
fn a_device_that_loses_its_link_is_taken_out_and_comes_back() {
    let Some((sides, _turn)) = rails() else { return };
    let lost = sides[1][0].clone();

    let seen = on_two_hosts(
        &sides,
        // A time-out of 67 ms.
        |config| config.transport_settings.set("FERROCCL_IB_TIMEOUT", "14"),
        move |communicator| {
            let start = Instant::now();
            let late = || assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
            sums(communicator, || start.elapsed() > Duration::from_millis(300)).unwrap();
            let down = (communicator.rank() == 1).then(|| Down::new(&lost));
            // The ranks go on until all of them have seen the failure.
            let mut has_failed = false;
            while !has_failed {
                late();
                let begun = Instant::now();
                sums(communicator, || begun.elapsed() > Duration::from_millis(100)).unwrap();
                let mut failed = [u32::from(rails_of(communicator)[0].failures > 0)];
                communicator.all_reduce_in_place(&mut failed, ferroccl::Reduction::Min).unwrap();
                has_failed = failed[0] > 0;
            }
            let took = start.elapsed();
            drop(down);
            let mut is_back = false;
            while !is_back {
                late();
                let begun = Instant::now();
                sums(communicator, || begun.elapsed() > Duration::from_millis(100)).unwrap();
                let mut up = [u32::from(rails_of(communicator).iter().all(|rail| rail.is_up))];
                communicator.all_reduce_in_place(&mut up, ferroccl::Reduction::Min).unwrap();
                is_back = up[0] > 0;
            }
            let before = rails_of(communicator)[0].bytes;
            sums_and_exchanges(communicator);

            (took, start.elapsed(), before, rails_at_last(communicator))
        },
    );
    for (took, back, before, rails) in seen {
        println!("failed after {took:?}, back after {back:?}: {rails:?}");
        assert!(rails[0].bytes > before, "the recovered rail 0 is not used: {rails:?}");
        assert_eq!(rails[1].failures, 0, "{rails:?}");
    }
}
