//! Points on messages, one or many in flight: their data, sizes and order.

use super::Point;
use crate::link::{Link, TAG};
use crate::memory::GUARD;
use crate::messages::Role;
use crate::side::Side;
use crate::stop::{Outcome, demand, skipped};
use crate::stream::Stream;

/// Sizes around the limits of plugins' protocols: inline, eager, packets, chunks.
const SIZES: [usize; 22] = [
    0,
    1,
    7,
    8,
    9,
    63,
    64,
    65,
    127,
    128,
    129,
    511,
    1025,
    4095,
    4096,
    4097,
    8193,
    65_535,
    65_536,
    65_537,
    262_147,
    (1 << 20) + 3,
];

/// Transfers the stream over one connection, then closes the connection.
fn run(side: &Side, stream: &Stream) -> Outcome {
    let net = side.net()?;
    let link = Link::open(side, &net)?;
    match side.role {
        Role::Receiver => stream.receive(&link)?,
        Role::Sender => stream.send(&link)?,
    }
    side.barrier()?;
    link.close()
}

pub(super) const SEND_RECEIVE: Point = Point::pair(
    "send_receive",
    "Messages of any size arrive whole in receives of exactly that size, and nothing past the \
     receive buffer is written.",
    send_receive,
    send_receive,
);

fn send_receive(side: &Side) -> Outcome {
    let net = side.net()?;
    let link = Link::open(side, &net)?;
    for bytes in SIZES {
        side.step(&format!("a message of {bytes} bytes"));
        let stream = Stream { seed: bytes as u64, ..Stream::of(2, bytes) };
        match side.role {
            Role::Receiver => stream.receive(&link)?,
            Role::Sender => stream.send(&link)?,
        }
    }
    side.barrier()?;
    link.close()
}

pub(super) const LARGE: Point = Point::pair(
    "large",
    "A message of 256 MiB arrives whole; with --full, one of 1 GiB, the longest that NCCL sends.",
    large,
    large,
)
.patient(3);

fn large(side: &Side) -> Outcome {
    let bytes = if side.arguments.full { 1 << 30 } else { 256 << 20 };
    let bytes_max = side.net()?.properties()?.transfer_bytes_max;
    if bytes > bytes_max {
        return skipped(format!("the plugin takes at most {bytes_max} bytes in one transfer"));
    }
    run(side, &Stream { in_flight: 1, ..Stream::of(1, bytes) })
}

pub(super) const ZERO_SIZES: Point = Point::pair(
    "zero_sizes",
    "Messages of 0 bytes arrive in order among the others, and test reports size 0 for them.",
    |side| run(side, &zero_sizes()),
    |side| run(side, &zero_sizes()),
);

fn zero_sizes() -> Stream {
    let sizes = [0, 0, 5, 0, 100, 0, 0, 0, 0, 0, 0, 0, 3000, 0];
    Stream { sizes: sizes.to_vec(), in_flight: 8, seed: 40 }
}

pub(super) const SEND_SMALLER_THAN_RECEIVE: Point = Point::pair(
    "send_smaller_than_receive",
    "A receive may be longer than its send: test reports the bytes that were sent.",
    |side| run(side, &Stream::of_odd_sizes(60, 20_000, 70)),
    |side| run(side, &Stream::of_odd_sizes(60, 20_000, 70)),
);

/// Bytes sent and bytes received of each truncated message.
const TRUNCATED: [(usize, usize); 4] = [(2000, 1000), (100, 99), (1 << 20, 70_000), (64, 0)];

pub(super) const TRUNCATION: Point = Point::pair(
    "truncation",
    "Where registrations are global, a send that is longer than its receive is cut off: the \
     bytes that fit arrive, and test reports their number.",
    |side| {
        let net = side.net()?;
        if net.properties()?.registration_is_global == 0 {
            return skipped("registrations are not global");
        }
        let link = Link::open(side, &net)?;
        for (seed, (sent, room)) in TRUNCATED.into_iter().enumerate() {
            side.step(&format!("receiving {room} bytes of {sent}"));
            let memory = link.memory(room + GUARD)?;
            let bytes = link.receive(memory.part(0, room, TAG), "the message that is cut off")?;
            demand(bytes == room, || {
                format!("{sent} bytes were sent to a receive of {room}: test reported {bytes}")
            })?;
            memory.memory.verify(seed as u64, room, room)?;
        }
        side.barrier()?;
        link.close()
    },
    |side| {
        let net = side.net()?;
        if net.properties()?.registration_is_global == 0 {
            return skipped("registrations are not global");
        }
        let link = Link::open(side, &net)?;
        for (seed, (sent, _)) in TRUNCATED.into_iter().enumerate() {
            side.step(&format!("sending {sent} bytes to a shorter receive"));
            let memory = link.memory(sent)?;
            memory.memory.fill(seed as u64);
            link.send(&memory.part(0, sent, TAG), "the message that is cut off")?;
        }
        side.barrier()?;
        link.close()
    },
);

pub(super) const IN_ORDER: Point = Point::pair(
    "in_order",
    "Messages arrive in the order in which they were sent, long and short ones mixed.",
    |side| run(side, &in_order()),
    |side| run(side, &in_order()),
);

/// Returns a stream of alternating long and short messages, with enough of each length to detect
/// swapped messages.
fn in_order() -> Stream {
    let size = |index: usize| [16, 300_000, 64, 9000, 16, 70_000, 8, 64][index % 8];
    Stream { sizes: (0..400).map(size).collect(), in_flight: 8, seed: 1000 }
}

/// Largest number of messages that NCCL has in flight.
const UNTESTED: usize = nccl_net_abi::REQUESTS_MAX;

pub(super) const ISEND_WITHOUT_TEST: Point = Point::pair(
    "isend_progresses_without_test",
    "A message that isend accepted is sent even if the sender never calls test.",
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        side.step("receiving messages whose sends are not tested");
        Stream { in_flight: UNTESTED, ..Stream::of(UNTESTED, 4096) }.receive(&link)?;
        side.step("all messages have arrived");
        side.barrier()?;
        side.barrier()?;
        link.close()
    },
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        let memory = link.memory(UNTESTED * 4096)?;
        let mut requests = Vec::new();
        for index in 0..UNTESTED {
            side.step(&format!("isend {index}, without any test"));
            let part = memory.part(index * 4096, 4096, TAG);
            part.memory.fill(1 + index as u64);
            requests.push(link.post_send(&part, format_args!("message {index}"))?);
        }
        side.step("waiting, without calling test, until the receiver has all messages");
        side.barrier()?;
        side.step("test, after all messages have arrived");
        for request in requests {
            link.finish(request, "a message that has arrived")?;
        }
        side.barrier()?;
        link.close()
    },
);
