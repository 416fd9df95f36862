//! Short messages that the receiver recognises in memory by their seals, which are checksums.

use std::time::Duration;

use ccl_core::admission::{Config, MessageLinks, Peek};
use ccl_core::execution::Link;
use ccl_transport_sim::{Conditions, World, mesh};

const SLOTS: u32 = 8;
const TO: Link = Link { peer: 1, channel: 0 };
const FROM: Link = Link { peer: 0, channel: 0 };

/// Returns a world of two ranks, and the links of each rank. The immediate of a put can arrive long
/// after the put's bytes.
fn begin() -> (World, Vec<MessageLinks>) {
    let jitter = Duration::from_millis(1);
    let conditions = Conditions { redirects: false, jitter, ..Conditions::default() };
    let world = World::new(2, conditions, 1);
    let config = Config {
        channels: 1,
        slots: SLOTS,
        slots_min: 1,
        slot_bytes: 4096,
        budget_bytes: 1 << 20,
        zero_copy_bytes_min: 4096,
        registered_bytes_max: 0,
    };
    let links = mesh(&world, config, &mut |_, lane| lane).unwrap();
    (world, links)
}

/// Sends `bytes` bytes, each with this value.
fn send(world: &World, links: &mut MessageLinks, link: Link, bytes: usize, value: u8) {
    assert!(links.writable(link));
    // SAFETY: the slot is this rank's until it is published, and has room for the bytes.
    unsafe { links.to_send(link).write_bytes(value, bytes) };
    links.publish(link, bytes, 0);
    links.flush(world.now()).unwrap();
}

/// Checks that the next message has `bytes` bytes, each with this value, and takes the message.
fn take(links: &mut MessageLinks, bytes: usize, value: u8) {
    assert_eq!(links.head(FROM), (bytes, 0));
    // SAFETY: the message is there, and stays until it is released.
    let payload = unsafe { std::slice::from_raw_parts(links.received(FROM), bytes) };
    assert!(payload.iter().all(|byte| *byte == value));
    links.release(FROM);
}

#[test]
fn short_messages_are_taken_before_their_immediates() {
    let (world, mut links) = begin();
    for round in 0..100u8 {
        let bytes = usize::from(round % 65);
        send(&world, &mut links[0], TO, bytes, round);
        // The receiver is not polled, so it learns of no immediate.
        assert!(!links[1].readable(FROM));
        while links[1].peek() != Some(Peek::Message) {
            world.step();
        }
        assert!(links[1].readable(FROM));
        take(&mut links[1], bytes, round);
        for _ in 0..10 {
            world.step();
            for links in &mut links {
                links.poll(world.now()).unwrap();
                links.flush(world.now()).unwrap();
            }
        }
    }
    assert_eq!((links[1].counters().received, links[1].counters().refused), (100, 0));
}

#[test]
fn a_slot_is_granted_again_only_after_its_immediate() {
    let (world, mut links) = begin();
    (0..SLOTS as u8).for_each(|value| send(&world, &mut links[0], TO, 8, value));
    world.advance(world.now() + Duration::from_secs(1));
    // The messages of at most a quarter of the slots may be taken before their immediates.
    let early = SLOTS as u8 / 4;
    for value in 0..early {
        assert!(links[1].readable(FROM));
        take(&mut links[1], 8, value);
    }
    assert!(!links[1].readable(FROM), "another message is readable before the lane is polled");
    // A message in the other direction carries the credit for all slots that are free.
    let is_granted = |links: &mut [MessageLinks]| {
        send(&world, &mut links[1], FROM, 8, 0);
        world.advance(world.now() + Duration::from_secs(1));
        links[0].poll(world.now()).unwrap();
        links[0].writable(TO)
    };
    assert!(!is_granted(&mut links), "a slot is granted before its immediate has come");
    assert!(links[1].poll(world.now()).unwrap());
    assert!(is_granted(&mut links));
    for value in early..SLOTS as u8 {
        assert!(links[1].readable(FROM));
        take(&mut links[1], 8, value);
    }
    assert_eq!(links[1].counters().refused, 0);
}

#[test]
fn long_messages_have_no_seal() {
    let (world, mut links) = begin();
    send(&world, &mut links[0], TO, 65, 7);
    world.advance(world.now() + Duration::from_secs(1));
    assert!(!links[1].readable(FROM) && links[1].peek() != Some(Peek::Message));
    links[1].poll(world.now()).unwrap();
    assert!(links[1].readable(FROM));
    take(&mut links[1], 65, 7);
}
