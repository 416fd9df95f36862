//! Short messages that are recognised by their seals while rails fail. A seal is a checksum in the
//! slot, which shows that a message is complete, even before its immediate has arrived. The bytes
//! may come over a rail that fails before the immediate arrives, and come again over another rail.

use std::time::Duration;

use ccl_core::admission::{Config, MessageLinks, Peek};
use ccl_core::execution::Link;
use ccl_transport_sim::{Conditions, Cut, Random};

use crate::failing::{conditions, meet};
use crate::sides::TwoSides;

const MESSAGES: [u32; 2] = [600; 2];
/// Time limit, longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn links(sides: &TwoSides) -> [MessageLinks; 2] {
    let config = Config {
        channels: 1,
        slots: 8,
        slots_min: 1,
        slot_bytes: 4096,
        budget_bytes: 1 << 20,
        zero_copy_bytes_min: 4096,
        registered_bytes_max: 0,
    };
    let [one, other] = meet(sides, 0);
    let mut links = sides.devices.each_ref().map(|device| {
        let lane = device.lane().unwrap();
        MessageLinks::new(device.clone(), lane, config, 1).unwrap()
    });
    let offer = links[0].attach(1, one).unwrap();
    let counter_offer = links[1].attach(0, other).unwrap();
    links[1].import(0, &offer).unwrap();
    links[0].import(1, &counter_offer).unwrap();
    links
}

/// Returns the bytes of a side's message. Most messages are short enough to have a seal.
fn payload(side: usize, number: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(number) << 1 | side as u64);
    (0..random.below(80)).map(|_| random.below(256) as u8).collect()
}

#[test]
fn messages_taken_early_come_once_while_rails_fail() {
    let (mut early, mut failures) = (0, 0);
    for seed in 0..40 {
        let sides = TwoSides::new([2, 2], conditions(), seed);
        let (world, mut random) = (&sides.world, Random::new(seed));
        let mut links = links(&sides);
        let (mut sent, mut taken) = ([0; 2], [0; 2]);
        let until = world.now() + PATIENCE;
        let mut next = world.now();
        while taken != MESSAGES {
            let now = world.now();
            assert!(now < until, "seed {seed}: {taken:?} of {sent:?} messages have come");
            let is_whole = |links: &MessageLinks| links.rails().all(|(_, rail)| rail.is_up);
            if now >= next && links.iter().all(is_whole) {
                // Cuts one rail at a time. Some cuts are shorter than the time in which the rail
                // retransmits, and some are longer, so that the rail fails.
                let (from, lasts) = (now, Duration::from_micros(random.below(9000)));
                let cut = Some(Cut {
                    ranks: vec![2 * random.below(2) as u32],
                    from,
                    until: from + lasts,
                });
                world.set_conditions(Conditions { cut, ..world.conditions() });
                next = now + Duration::from_millis(20);
            }
            for side in 0..2 {
                let link = Link { peer: 1 - side as u32, channel: 0 };
                let ours = &mut links[side];
                if sent[side] < MESSAGES[side] && random.chance(0.3) && ours.writable(link) {
                    let bytes = payload(side, sent[side]);
                    // SAFETY: the slot is this rank's until it is published, and is longer than the
                    // bytes.
                    unsafe { ours.to_send(link).copy_from(bytes.as_ptr(), bytes.len()) };
                    ours.publish(link, bytes.len(), 0);
                    sent[side] += 1;
                }
                ours.flush(now).unwrap();
                early += u32::from(ours.peek() == Some(Peek::Message));
                if ours.readable(link) && random.chance(0.5) {
                    let expected = payload(1 - side, taken[side]);
                    assert_eq!(ours.head(link), (expected.len(), 0), "seed {seed}");
                    // SAFETY: the message is there, and stays until it is released.
                    let bytes =
                        unsafe { std::slice::from_raw_parts(ours.received(link), expected.len()) };
                    assert_eq!(bytes, expected, "seed {seed}, message {}", taken[side]);
                    ours.release(link);
                    taken[side] += 1;
                }
                if random.chance(0.3) {
                    ours.poll(now).unwrap();
                }
            }
            world.step();
        }
        for links in &links {
            assert_eq!(links.counters().refused, 0, "seed {seed}");
            failures += links.rails().map(|(_, rail)| rail.failures).sum::<u64>();
        }
    }
    assert!(
        early > 1000 && failures > 40,
        "too few messages were seen early ({early}), or rails failed too rarely ({failures} times)"
    );
}
