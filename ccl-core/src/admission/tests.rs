//! Tests of edge cases of message numbers, credits, sizes and encodings. Other tests run links over
//! the simulated transport.

use super::cts::{RECORD_BYTES, Record};
use super::immediate::{ahead, behind};
use super::inbound::Inbound;
use super::offer::Offer;
use super::outbound::{CreditOutcome, Outbound};
use super::seal::{SEAL_BYTES, SEALED_BYTES_MAX, is_sealed, seal};
use super::*;
use ccl_memory::Region;

use crate::time::Instant;
use crate::transport::{IMMEDIATE_MAX, RemoteKey};

const NOW: Option<Instant> = Some(Instant::ZERO);
const WRAP: u64 = 1 << 20;

fn config(slots: u32, slots_min: u32, budget_bytes: usize) -> Config {
    let (slot_bytes, zero_copy_bytes_min) = (100 - HEADER_BYTES, 0);
    let registered_bytes_max = 0;
    Config {
        channels: 2,
        slots,
        slots_min,
        slot_bytes,
        budget_bytes,
        zero_copy_bytes_min,
        registered_bytes_max,
    }
}

#[test]
fn immediates_survive_encoding() {
    for channel in [0, 1, CHANNELS_MAX - 1] {
        for number in [0, 1, WRAP - 1, WRAP, 5 * WRAP + 77] {
            let immediates = [Immediate::message, Immediate::placed, Immediate::credit];
            for immediate in immediates.map(|immediate| immediate(channel, number)) {
                assert_eq!(Immediate::decode(immediate.encode()), Some(immediate));
            }
        }
    }
    let (message, credit) = (Immediate::message(3, 4).encode(), Immediate::credit(3, 4).encode());
    assert_ne!(message, credit);
    assert_eq!(Immediate::decode(IMMEDIATE_MAX + 1), None);
    assert_ne!(message, Immediate::message(4, 4).encode());
}

#[test]
fn distances_between_message_numbers_wrap_around() {
    assert_eq!(ahead(WRAP - 2, 3), 5);
    assert_eq!(ahead(7 * WRAP + 9, 9), 0);
    assert!(behind(ahead(10, 9)) && behind(ahead(WRAP, WRAP as u32 - 5)));
    assert!(!behind(ahead(10, 11)));
}

#[test]
fn seals_cover_number_header_and_payload() {
    let region = Region::allocate(256).unwrap();
    let header = 48;
    let put = |offset, bytes: &[u8]| region.write(offset, bytes).unwrap();
    assert!(!is_sealed(&region, header, 0), "a slot that was never written is sealed");
    for bytes in [0, 1, 7, 8, 9, SEALED_BYTES_MAX] {
        put(header, &(bytes as u64 | 5 << 32).to_le_bytes());
        put(header + HEADER_BYTES, &[3; SEALED_BYTES_MAX]);
        let sealed = seal(&region, header, bytes, 9).unwrap();
        put(header - SEAL_BYTES, &sealed.to_le_bytes());
        assert!(is_sealed(&region, header, 9), "{bytes}");
        assert!(!is_sealed(&region, header, 8) && !is_sealed(&region, header, 10), "{bytes}");
        for at in header - SEAL_BYTES..header + HEADER_BYTES + SEALED_BYTES_MAX {
            let mut old = [0];
            region.read(at, &mut old).unwrap();
            put(at, &[old[0] ^ 1]);
            // Bytes of an older message after the payload do not count.
            let counts = at < header + HEADER_BYTES + bytes;
            assert_ne!(is_sealed(&region, header, 9), counts, "{bytes} bytes, byte {at} changed");
            put(at, &old);
        }
    }
}

#[test]
fn seals_of_payloads_of_small_floats_differ() {
    let region = Region::allocate(256).unwrap();
    let header = 48;
    region.write(header, &16u64.to_le_bytes()).unwrap();
    let values = [0.0, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0, 3.0, -3.0, 0.5f32];
    let mut seals = std::collections::BTreeSet::new();
    for index in 0..10_000 {
        for at in 0..4 {
            let value = values[index / 10usize.pow(at) % 10];
            let offset = header + HEADER_BYTES + 4 * at as usize;
            region.write(offset, &value.to_le_bytes()).unwrap();
        }
        assert!(seals.insert(seal(&region, header, 16, 9)), "{index}");
    }
}

#[test]
fn credits_wait_for_immediates_that_come_late() {
    // Number of slots, and number of messages that may be taken before their immediates.
    for (slots, early) in [(1, 0), (2, 0), (3, 0), (4, 1), (8, 2), (64, 16)] {
        let mut inbound = Inbound::new(slots, slots);
        let mut first = 0;
        // Enough laps for the slot indices to wrap around.
        for lap in 0..50u64 {
            let count = (0..slots).take_while(|_| {
                let may = inbound.may_take_early();
                if may {
                    inbound.arrive_early();
                    assert!(inbound.ready() && !inbound.may_take_early());
                    assert_eq!(inbound.expect(inbound.next() as u32), None);
                    assert_eq!(inbound.release(), None, "a credit came before the immediate");
                }
                may
            });
            assert_eq!(count.count(), early, "{slots} slots");
            assert_eq!(inbound.renew(), first + u64::from(slots), "{slots} slots, lap {lap}");
            for number in (first..inbound.next()).rev() {
                assert!(inbound.take_late(number as u32), "{number}");
                assert!(!inbound.take_late(number as u32), "an immediate must count once");
                let _ = inbound.settle();
                let next = inbound.next();
                let settled = if number == first { next } else { first };
                assert_eq!(inbound.renew(), settled + u64::from(slots), "{slots} slots");
            }
            // Takes one more message, after its immediate has come.
            let slot = inbound.expect(inbound.next() as u32).unwrap();
            inbound.arrive(slot, None);
            let _ = inbound.release();
            first = inbound.next();
        }
    }
}

/// Sends `messages` messages through an outbound and an inbound end, in the worst order that the
/// slots allow.
fn pump(slots: u32, messages: u64) {
    let (mut outbound, mut inbound) = (Outbound::new(slots), Inbound::new(slots, slots));
    outbound.open(slots, slots);
    let (mut stalls, mut sent, mut taken) = (0, 0, 0);
    while taken < messages {
        let mut under_way = Vec::new();
        while outbound.ready(NOW, &mut stalls) {
            under_way.push((outbound.staging(), outbound.next() as u32 & (WRAP as u32 - 1)));
            outbound.sent(1);
            sent += 1;
        }
        assert!(!under_way.is_empty() && sent - taken <= u64::from(slots));
        for &(staging, number) in under_way.iter().rev() {
            let slot = inbound.expect(number).unwrap();
            inbound.arrive(slot, None);
            assert_eq!(inbound.expect(number), None, "an immediate must count once");
            assert_eq!(outbound.done(staging), 1);
        }
        let mut credits = Vec::new();
        while inbound.ready() {
            credits.extend(inbound.release());
            taken += 1;
        }
        // The newest credit arrives first, so the older ones are late.
        let low = |below: &u64| *below as u32 & (WRAP as u32 - 1);
        let verdicts: Vec<_> =
            credits.iter().rev().map(|below| outbound.credit(low(below))).collect();
        assert_eq!(verdicts.first(), Some(&CreditOutcome::Taken), "{slots} slots: no new credit");
        assert!(verdicts[1..].iter().all(|verdict| *verdict == CreditOutcome::Late));
        let stale = (taken.wrapping_sub(1)) as u32 & (WRAP as u32 - 1);
        assert_eq!(inbound.expect(stale), None, "the number of a released message was accepted");
    }
    assert!(stalls > 0);
}

#[test]
fn messages_flow_over_many_laps_around_the_slots() {
    for slots in [1, 2, 3, 4, 7, 8, 64] {
        pump(slots, 1000);
    }
}

#[test]
fn message_numbers_may_wrap_around() {
    pump(256, WRAP + 5000);
}

#[test]
fn credits_for_more_messages_than_slots_are_refused() {
    let mut outbound = Outbound::new(4);
    outbound.open(4, 4);
    assert_eq!(outbound.credit(5), CreditOutcome::Forged);
    outbound.sent(1);
    assert_eq!(outbound.credit(5), CreditOutcome::Taken);
    assert_eq!(outbound.credit(5), CreditOutcome::Late);
    assert_eq!(outbound.credit(4), CreditOutcome::Late);
    assert_eq!(outbound.credit(1 << 18), CreditOutcome::Forged);
    assert_eq!(outbound.forget(), 1);
    assert!(!outbound.ready(NOW, &mut 0));
}

#[test]
fn a_piggybacked_credit_is_accepted_up_to_the_number_of_slots() {
    let mut outbound = Outbound::new(4);
    assert!(outbound.piggybacked_credit(99), "a credit that overtakes the offer is stored");
    outbound.open(4, 4);
    assert!(!outbound.piggybacked_credit(5) && outbound.piggybacked_credit(4));
    for number in 0..3 * WRAP {
        outbound.sent(1);
        outbound.done(outbound.staging());
        assert!(outbound.piggybacked_credit(number as u32 + 5));
    }
    // Old credits are accepted, however old.
    for old in [4, WRAP as u32, 2 * WRAP as u32 + 7, 3 * WRAP as u32] {
        assert!(outbound.piggybacked_credit(old), "{old}");
    }
    assert!(!outbound.piggybacked_credit(3 * WRAP as u32 + 5), "a forged credit was accepted");
}

#[test]
fn a_staging_slot_is_not_reused_before_its_message_is_done() {
    let mut outbound = Outbound::new(2);
    outbound.open(3, 3);
    let mut stalls = 0;
    for (slot, staging) in [(0, 0), (1, 1)] {
        assert!(outbound.ready(NOW, &mut stalls));
        assert_eq!((outbound.slot(), outbound.staging()), (slot, staging));
        outbound.sent(100);
    }
    assert!(!outbound.ready(NOW, &mut stalls) && !outbound.ready(NOW, &mut stalls));
    assert_eq!(stalls, 1, "a stall counts once");
    assert_eq!(outbound.done(1), 100);
    assert!(!outbound.ready(NOW, &mut stalls), "staging slot 0 is in use");
    assert_eq!(outbound.done(0), 100);
    assert!(outbound.ready(NOW, &mut stalls));
    assert_eq!((outbound.slot(), outbound.staging()), (2, 0));
    assert_eq!((outbound.done(0), outbound.done(7)), (0, 0), "no message is in these slots");
}

#[test]
fn a_receiver_expects_only_messages_that_have_a_credit() {
    let inbound = Inbound::new(4, 4);
    assert_eq!(inbound.expect(3), Some(3));
    for number in [4, 5, 1 << 18, WRAP as u32 - 1] {
        assert_eq!(inbound.expect(number), None, "{number}");
    }
    let mut nothing_there = Inbound::new(1, 1);
    assert_eq!(nothing_there.release(), None, "a slot without a message was released");
}

#[test]
fn a_budget_is_shared_among_the_links() {
    // Three peers on two channels: six links, whose messages have 100 bytes.
    for (budget, slots_min, equal, reserved, pool) in [
        (100_000, 0, 8, 8, 0),
        (4800, 1, 8, 8, 0),
        (4799, 1, 7, 3, 47 - 18),
        (2450, 1, 4, 2, 24 - 12),
        (1200, 1, 2, 2, 0),
        (1199, 1, 1, 1, 11 - 6),
        (600, 1, 1, 1, 0),
        (0, 0, 1, 1, 0),
        (0, 2, 2, 2, 0),
    ] {
        let config = config(8, slots_min, budget);
        let slots = (config.equal_slots(3), config.reserved_slots(3), config.pool_slots(3));
        assert_eq!(slots, (equal, reserved, pool), "{budget}");
        let bytes = (6 * reserved as usize + pool) * 100;
        assert_eq!(config.in_flight_bytes_max(3), bytes, "{budget}");
        assert!(bytes <= budget.max(600 * slots_min.max(1) as usize), "{budget}");
    }
    assert_eq!(config(8, 1, 100).in_flight_bytes_max(0), 0);
}

#[test]
fn impossible_sizes_are_refused() {
    let good = config(4, 1, 1000);
    good.check(100).unwrap();
    for bad in [
        Config { channels: 0, ..good },
        Config { channels: CHANNELS_MAX + 1, ..good },
        Config { slots: 0, ..good },
        Config { slots: SLOTS_MAX + 1, ..good },
        Config { slot_bytes: 100 - HEADER_BYTES + 1, ..good },
        Config { slot_bytes: usize::MAX, ..good },
    ] {
        let error = bad.check(100).unwrap_err().to_string();
        assert!(error.contains("use "), "{error}");
    }
}

#[test]
fn cts_records_survive_encoding_and_long_keys_are_refused() {
    for bytes in [0, 1, 37, 39, 167] {
        let key = vec![9; bytes];
        let record = Record { number: 1 << 40, offset: 77, bytes: 5, tag: 1 << 50, key: &key };
        let (mut written, used) = record.encode().unwrap();
        // Bytes left by an earlier, longer record are ignored.
        written[used..].fill(0x55);
        assert_eq!(Record::decode(&written), Some(record));
    }
    let long = Record { number: 0, offset: 0, bytes: 0, tag: 0, key: &[0; 168] };
    assert_eq!(long.encode(), None);
    for nonsense in [0, 0xff] {
        assert_eq!(Record::decode(&[nonsense; RECORD_BYTES]), None);
    }
}

/// Checks that a record does not decode while only some of its words, or only its first bytes, have
/// been written.
#[test]
fn a_torn_record_does_not_decode() {
    let record = |number, fill| {
        let key = [fill; 37];
        Record { number, offset: number << 12, bytes: 5, tag: 3, key: &key }.encode().unwrap()
    };
    let nothing = ([0; RECORD_BYTES], 0);
    for ((old, _), (new, used)) in [(nothing, record(0, 1)), (record(8, 1), record(16, 2))] {
        for words in 1..(1 << (used / 8)) - 1u32 {
            let of = |at: usize| if words >> (at / 8) & 1 == 1 { new[at] } else { old[at] };
            let mut torn = [0; RECORD_BYTES];
            torn[..used].iter_mut().enumerate().for_each(|(at, byte)| *byte = of(at));
            let is_torn = torn != old && torn != new;
            assert!(!is_torn || Record::decode(&torn).is_none(), "{words:#b}");
        }
        for bytes in 1..used {
            let of = |at: usize| if at < bytes { new[at] } else { old[at] };
            let torn: [u8; RECORD_BYTES] = std::array::from_fn(of);
            let is_torn = torn != old && torn != new;
            assert!(!is_torn || Record::decode(&torn).is_none(), "{bytes} bytes");
        }
    }
}

#[test]
fn an_offer_survives_encoding_and_is_refused_if_cut_or_of_another_version() {
    let key = RemoteKey(vec![1, 2, 3]);
    let (slot_bytes, seals) = (5 << 33, true);
    let offer = Offer { channels: 3, slots: 8, reserved: 2, records: 4, slot_bytes, seals, key };
    let bytes = offer.encode();
    assert_eq!(Offer::decode(&bytes), Ok(offer));
    assert!(Offer::decode(&bytes[..bytes.len() - 1]).is_err());
    let mut other = bytes.clone();
    other[0] = 100;
    assert_eq!(Offer::decode(&other), Err(OfferError::Version(100)));
}

#[test]
fn a_piggybacked_credit_needs_no_message_of_its_own() {
    let (mut outbound, mut inbound) = (Outbound::new(4), Inbound::new(4, 4));
    outbound.open(4, 4);
    for number in 0..100u32 {
        let slot = inbound.expect(number).unwrap();
        outbound.sent(1);
        inbound.arrive(slot, None);
        assert_eq!(inbound.release(), None, "message {number}: no credit is due yet");
        // A message goes in the other direction.
        assert!(outbound.piggybacked_credit(inbound.renew() as u32));
        assert!(outbound.ready(NOW, &mut 0), "message {number}: the sender has no credit");
        assert_eq!(outbound.done(slot), 1);
    }
    // No message goes in the other direction.
    let due: Vec<_> = (100..104u32)
        .filter_map(|number| {
            let slot = inbound.expect(number).unwrap();
            inbound.arrive(slot, None);
            inbound.release()
        })
        .collect();
    assert_eq!(due, [106, 108]);
}

/// Returns the number of the first message that may not be sent, the number of pool credits that
/// the link has, and whether the link waits for more pool credits.
fn standing(inbound: &mut Inbound) -> (u64, usize, bool) {
    (inbound.renew(), inbound.pooled(), inbound.asks_again())
}

#[test]
fn a_credit_of_the_pool_lasts_for_one_message() {
    let mut inbound = Inbound::new(8, 2);
    assert!(!inbound.extend(), "nothing is preposted");
    inbound.preposts.prepost_to(5);
    assert!(!inbound.asks_for(1), "message 1 has a reserved credit");
    assert!(inbound.asks_for(2) && !inbound.asks_for(3), "a link must ask the pool only once");
    assert!(inbound.extend() && inbound.asks_again());
    assert_eq!(inbound.unannounced(), Some(3));
    assert_eq!(inbound.unannounced(), None);
    assert!(inbound.extend() && inbound.extend() && !inbound.extend());
    assert_eq!(standing(&mut inbound), (5, 3, false));
    for number in 0..5 {
        let slot = inbound.expect(number).unwrap();
        inbound.arrive(slot, None);
    }
    assert_eq!(inbound.expect(5), None, "message 5 has no credit");
    for pooled in [2, 1, 0] {
        assert_eq!(inbound.release(), None);
        assert_eq!(inbound.pooled(), pooled);
    }
    assert_eq!(inbound.release(), Some(6), "a credit for the reserved slots is due");
    inbound.preposts.prepost_to(100);
    while inbound.extend() {}
    assert_eq!(standing(&mut inbound), (4 + 8, 6, false), "credits are limited by slots");
    assert_eq!((inbound.forget(), inbound.pooled()), (6, 0));
    assert!(!inbound.extend(), "the peer of the link is gone");
}

/// Checks a link that takes messages while it waits for a pool credit: its reserved credits grow
/// meanwhile, and must be announced to the sender.
#[test]
fn credits_that_grow_while_a_link_waits_are_announced() {
    let (slots, reserved) = (16, 7);
    let (mut inbound, mut outbound) = (Inbound::new(slots, reserved), Outbound::new(slots));
    outbound.open(slots, reserved);
    for number in 0..100u64 {
        inbound.preposts.prepost_to(number + 8);
        inbound.asks_for(number + 7);
        assert!(outbound.ready(NOW, &mut 0), "message {number} has no credit");
        outbound.sent(1);
        outbound.done((number % u64::from(slots)) as usize);
        let slot = inbound.expect(number as u32).unwrap();
        inbound.arrive(slot, None);
        let credits = inbound.release();
        // The link is served only now, and needs no pool credit any more.
        let served = inbound.extend();
        assert!(!served && !inbound.asks_again());
        if let Some(below) = credits {
            assert_ne!(outbound.credit(below as u32), CreditOutcome::Forged);
        }
    }
}

#[test]
fn a_credit_that_overtakes_the_offer_counts() {
    for tell in [
        |outbound: &mut Outbound| outbound.piggybacked_credit(5),
        |outbound: &mut Outbound| outbound.credit(5) == CreditOutcome::Taken,
    ] {
        let mut outbound = Outbound::new(8);
        assert!(tell(&mut outbound) && !outbound.ready(NOW, &mut 0));
        outbound.open(8, 1);
        let sent = (0..8).take_while(|_| {
            let ready = outbound.ready(NOW, &mut 0);
            outbound.sent(1);
            ready
        });
        assert_eq!(sent.count(), 5);
    }
    let mut outbound = Outbound::new(8);
    assert_eq!(outbound.credit(500), CreditOutcome::Taken);
    outbound.open(8, 1);
    assert_eq!(outbound.credit(9), CreditOutcome::Forged, "the slots allow only 8 messages");
}
