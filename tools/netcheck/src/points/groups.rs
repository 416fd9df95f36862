//! Several receives in one request, told apart by tags. A plugin whose `receives_max` is 1 may
//! ignore tags: order is enough then.

use super::Point;
use crate::calls::{GROUP_MAX, Part};
use crate::link::{Flight, Link, Registered, received};
use crate::memory::GUARD;
use crate::side::Side;
use crate::stop::{Outcome, demand, skipped};

/// Bytes that each receive has room for.
const ROOM: usize = 3000;
/// Bytes from the memory of one send or receive to that of the next.
const STRIDE: usize = 3072 + GUARD;

/// Opens a connection; also returns the largest number of receives in a group.
fn open(side: &Side) -> Outcome<(Link<'_>, usize)> {
    let net = side.net()?;
    let receives_max = usize::try_from(net.properties()?.receives_max).unwrap_or(1);
    if receives_max < 2 {
        return skipped("maxRecvs is less than 2: the plugin supports no grouped receives");
    }
    Ok((Link::open(side, &net)?, receives_max.min(GROUP_MAX)))
}

/// Returns the number of bytes of the send that has this seed.
fn bytes_of(seed: usize) -> usize {
    (seed * 37) % ROOM
}

/// Sends messages with these tags and seeds, in this order. A message that the plugin does not take
/// is tried again. Messages with other tags do not wait for it, as NCCL's channels do not wait for
/// each other.
fn send_all(link: &Link, messages: &[(i32, usize)]) -> Outcome {
    let memory = link.memory(messages.len() * STRIDE)?;
    let parts: Vec<Part> = messages
        .iter()
        .enumerate()
        .map(|(at, (tag, seed))| {
            let part = memory.part(at * STRIDE, bytes_of(*seed), *tag);
            part.memory.fill(*seed as u64);
            part
        })
        .collect();
    let mut requests = vec![None; parts.len()];
    let mut is_done = vec![false; parts.len()];
    link.side.until("all messages to be sent", || {
        for at in 0..parts.len() {
            // Messages with the same tag keep their order.
            let waits =
                |earlier: usize| parts[earlier].tag == parts[at].tag && requests[earlier].is_none();
            if requests[at].is_none() && !(0..at).any(waits) {
                requests[at] = link.comm.isend(&parts[at])?;
            }
            if let Some(request) = requests[at]
                && !is_done[at]
            {
                is_done[at] = link.comm.net.test(request)?.is_some();
            }
        }
        Ok(is_done.iter().all(|done| *done).then_some(()))
    })
}

/// Posts groups of receives, and verifies the data. Each receive is given as its tag and the seed
/// of the data that it expects.
fn receive_all(link: &Link, groups: &[Vec<(i32, usize)>]) -> Outcome {
    let slots: usize = groups.iter().map(Vec::len).sum();
    let memory = link.memory(slots * STRIDE)?;
    let mut flight = Flight::new(*link);
    let (mut posted, mut ended) = (0, 0);
    let mut finish = |flight: &mut Flight, index: usize| {
        let group = &groups[index];
        let sizes = flight.finish_oldest(format_args!("group {index}"))?;
        for (at, (tag, seed)) in group.iter().enumerate() {
            let place = format!("part {at} of {} (tag {tag}) in group {index}", group.len());
            let bytes = received(&sizes, at, format_args!("group {index}"))?;
            verify(&memory, ended, *seed, bytes, &place)?;
            ended += 1;
        }
        Ok::<(), crate::stop::Stop>(())
    };
    for (index, group) in groups.iter().enumerate() {
        if flight.len() == 8 {
            finish(&mut flight, index - 8)?;
        }
        let parts: Vec<Part> = group
            .iter()
            .enumerate()
            .map(|(at, (tag, _))| memory.part((posted + at) * STRIDE, ROOM, *tag))
            .collect();
        posted += parts.len();
        link.side.step(&format!("irecv of group {index}"));
        flight.post(format_args!("group {index}"), |comm| comm.irecv(&parts))?;
    }
    let left = flight.len();
    (groups.len() - left..groups.len()).try_for_each(|index| finish(&mut flight, index))
}

fn verify(memory: &Registered, slot: usize, seed: usize, bytes: usize, place: &str) -> Outcome {
    let expected = bytes_of(seed);
    demand(bytes == expected, || {
        format!("test reported {bytes} bytes for {place}, expected {expected} (send {seed})")
    })?;
    let slot = memory.memory.part(slot * STRIDE..(slot + 1) * STRIDE);
    slot.verify(seed as u64, bytes, ROOM).map_err(|stop| stop.of(place, None))
}

/// Both sides of a point (one check of a plugin): the groups of the receiver, and the sends of the
/// sender, in order.
type Plan = (Vec<Vec<(i32, usize)>>, Vec<(i32, usize)>);

fn receive(side: &Side, plan: fn(usize) -> Plan) -> Outcome {
    let (link, receives_max) = open(side)?;
    receive_all(&link, &plan(receives_max).0)?;
    side.barrier()?;
    link.close()
}

fn send(side: &Side, plan: fn(usize) -> Plan) -> Outcome {
    let (link, receives_max) = open(side)?;
    side.step("sending to groups");
    send_all(&link, &plan(receives_max).1)?;
    side.barrier()?;
    link.close()
}

pub(super) const GROUPED_RECEIVES: Point = Point::pair(
    "grouped_receives",
    "A receive of several buffers, up to maxRecvs, matches each buffer to a send by its tag, and \
     test fills in all sizes.",
    |side| receive(side, all_lengths),
    |side| send(side, all_lengths),
);

/// Returns a group of each length. The sends to each group are in reverse order.
fn all_lengths(receives_max: usize) -> Plan {
    let (mut groups, mut sends) = (Vec::new(), Vec::new());
    for length in 1..=receives_max {
        let group: Vec<(i32, usize)> =
            (0..length).map(|at| (10 + at as i32, 100 * length + at + 1)).collect();
        sends.extend(group.iter().rev());
        groups.push(group);
    }
    (groups, sends)
}

pub(super) const EQUAL_TAGS: Point = Point::pair(
    "equal_tags_in_a_group",
    "Receives with equal tags in a group get the sends with that tag in the order of posting.",
    |side| receive(side, equal_tags),
    |side| send(side, equal_tags),
);

fn equal_tags(receives_max: usize) -> Plan {
    let groups: Vec<Vec<(i32, usize)>> = (0..10)
        .map(|group| (0..receives_max).map(|at| (5, 1 + group * receives_max + at)).collect())
        .collect();
    let sends = groups.concat();
    (groups, sends)
}

pub(super) const INTERLEAVED_TAGS: Point = Point::pair(
    "tags_interleaved_over_groups",
    "Groups are served strictly in order, even if sends for later groups come early.",
    |side| receive(side, interleaved),
    |side| send(side, interleaved),
);

/// Returns groups of tags 1 and 2; all sends with tag 2 come before all with tag 1.
fn interleaved(_receives_max: usize) -> Plan {
    let groups: Vec<Vec<(i32, usize)>> =
        (0..12).map(|group| vec![(1, 2 * group + 1), (2, 2 * group + 2)]).collect();
    let mut sends = groups.concat();
    sends.sort_by_key(|(tag, _)| -tag);
    (groups, sends)
}

pub(super) const WRONG_TAG_WAITS: Point = Point::pair(
    "wrong_tag_waits",
    "A send waits until a group with its tag is posted, and goes to no other group.",
    |side| {
        let (link, _) = open(side)?;
        let memory = link.memory(2 * STRIDE)?;
        side.step("irecv with tag 9");
        let request = link.post_receive(&[memory.part(0, ROOM, 9)], "the receive with tag 9")?;
        side.barrier()?;
        let sizes = link.finish(request, "the receive with tag 9")?;
        verify(&memory, 0, 90, received(&sizes, 0, "the receive")?, "the receive with tag 9")?;
        side.step("irecv with tag 7");
        let bytes = link.receive(memory.part(STRIDE, ROOM, 7), "the receive with tag 7")?;
        verify(&memory, 1, 70, bytes, "the receive with tag 7")?;
        side.barrier()?;
        link.close()
    },
    |side| {
        let (link, _) = open(side)?;
        side.barrier()?;
        side.step("isend with tag 7, then tag 9, while only irecv with tag 9 is posted");
        send_all(&link, &[(7, 70), (9, 90)])?;
        side.barrier()?;
        link.close()
    },
);
