//! Performance of messages between two processes of one machine. The results show the effect of
//! changes to a plugin, not the performance of a network.

use std::time::{Duration, Instant};

use crate::link::{Flight, Link, Registered, TAG};
use crate::memory::Memory;
use crate::messages::{ChildMessage, Role, Row};
use crate::net::Net;
use crate::points::{Act, Kind, ONE_MESSAGE, Point};
use crate::process::share_of_memory_bytes;
use crate::side::Side;
use crate::stop::{Outcome, skipped};

/// Point (one check of a plugin) that also measures performance.
pub(crate) const POINT: Point = Point {
    name: "performance",
    demand: "Messages of all sizes arrive, in both directions.",
    kind: Kind::Contract,
    patience: 10,
    depends_on: Some(ONE_MESSAGE),
    act: Act::Pair { receive: measure, send: measure },
};

/// Number of messages in flight, the usual number in NCCL.
const IN_FLIGHT: usize = 8;
/// Bytes to send in each direction to measure the latency of one message size, besides the warm-up.
/// At least 20 and at most 2,000 messages are measured in a direction, even if these messages
/// together have more or fewer bytes.
const LATENCY_BYTES: usize = 64 << 20;
/// Bytes to send to measure the bandwidth of one message size, besides the warm-up. At least 16 and
/// at most 4,000 messages are measured, even if these messages together have more or fewer bytes.
const BANDWIDTH_BYTES: usize = 512 << 20;
/// Number of connections whose memory is measured.
const CONNECTIONS: usize = 16;
/// Bytes of each message on these connections.
const EARLY_BYTES: usize = 64 << 10;
/// Time between the sends on such a connection and their receives.
const LATE: Duration = Duration::from_millis(5);

fn measure(side: &Side) -> Outcome {
    let net = side.net()?;
    let bytes_max = side.arguments.sizes.iter().copied().max().unwrap_or(8);
    if bytes_max > net.properties()?.transfer_bytes_max {
        return skipped("the largest of --sizes exceeds the plugin's limit for one transfer");
    }
    measure_memory(side, &net)?;
    let both = Both::open(side, &net, bytes_max)?;
    for &bytes in &side.arguments.sizes {
        side.step(&format!("round trips of {bytes} bytes"));
        let mut times = both.round_trips(bytes)?;
        times.sort_unstable();
        side.step(&format!("a stream of messages of {bytes} bytes"));
        let bandwidth_gbps = both.stream(bytes)?;
        if side.role == Role::Sender {
            let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
            side.write(&ChildMessage::Measured(Row {
                bytes,
                latency_us: microseconds(times[times.len() / 2]),
                latency_p99_us: microseconds(times[times.len() * 99 / 100]),
                bandwidth_gbps,
            }));
        }
    }
    side.barrier()?;
    both.there.close()?;
    both.back.close()
}

/// Measures the memory that a connection takes in this process. Each connection has carried
/// messages whose receives were posted late.
fn measure_memory(side: &Side, net: &Net) -> Outcome {
    let memory = Memory::new(IN_FLIGHT * EARLY_BYTES);
    memory.fill(1);
    let used = || -> Outcome<Link<'_>> {
        let link = Link::open(side, net)?;
        exchange_early(&link, &link.registered(memory)?)?;
        Ok(link)
    };
    side.step("measuring the memory of connections");
    // The first connection also allocates what a process needs once.
    let mut links = vec![used()?];
    let before = share_of_memory_bytes();
    for _ in 0..CONNECTIONS {
        links.push(used()?);
    }
    let held = share_of_memory_bytes().saturating_sub(before) / CONNECTIONS;
    side.write(&ChildMessage::Held(side.role, held));
    side.barrier()?;
    links.into_iter().try_for_each(Link::close)?;
    side.barrier()
}

/// Exchanges messages that are sent some time before their receives are posted.
fn exchange_early(link: &Link<'_>, memory: &Registered) -> Outcome {
    let mut flight = Flight::new(*link);
    let part = |at: usize| memory.part(at * EARLY_BYTES, EARLY_BYTES, TAG);
    if link.side.role == Role::Receiver {
        link.side.receive_value::<()>()?;
        std::thread::sleep(LATE);
        for at in 0..IN_FLIGHT {
            flight.post("an early message", |comm| comm.irecv(&[part(at)]))?;
        }
    } else {
        for at in 0..IN_FLIGHT {
            if !flight.try_post(|comm| comm.isend(&part(at)))? {
                break;
            }
        }
        link.side.send_value(&())?;
        for at in flight.len()..IN_FLIGHT {
            flight.post("an early message", |comm| comm.isend(&part(at)))?;
        }
    }
    (0..IN_FLIGHT).try_for_each(|_| flight.finish_oldest("an early message").map(drop))
}

/// A connection in each direction, and its memory.
struct Both<'a> {
    /// Connection from the sender to the receiver.
    there: Link<'a>,
    back: Link<'a>,
    memory_there: Registered,
    memory_back: Registered,
}

impl<'a> Both<'a> {
    fn open(side: &'a Side, net: &Net, bytes_max: usize) -> Outcome<Both<'a>> {
        let there = Link::open(side, net)?;
        let back = match side.role {
            Role::Receiver => Link::sending(side, net)?,
            Role::Sender => Link::receiving(side, net)?,
        };
        let stride = bytes_max.next_multiple_of(4096);
        let memory_there = there.memory(stride * IN_FLIGHT)?;
        let memory_back = back.memory(stride)?;
        Ok(Both { there, back, memory_there, memory_back })
    }

    /// Returns the one-way times of several messages: half of each round trip.
    fn round_trips(&self, bytes: usize) -> Outcome<Vec<Duration>> {
        let rounds = (LATENCY_BYTES / bytes).clamp(20, 2000);
        let there = self.memory_there.part(0, bytes, TAG);
        let back = self.memory_back.part(0, bytes, TAG);
        let mut times = Vec::with_capacity(rounds);
        // The first rounds are a warm-up.
        for round in 0..rounds + rounds / 10 {
            let start = Instant::now();
            match self.there.side.role {
                Role::Sender => {
                    let answer = self.back.post_receive(&[back], "the answer")?;
                    self.there.send(&there, "the question")?;
                    self.back.finish(answer, "the answer")?;
                }
                Role::Receiver => {
                    self.there.receive(there, "the question")?;
                    self.back.send(&back, "the answer")?;
                }
            }
            if round >= rounds / 10 {
                times.push(start.elapsed() / 2);
            }
        }
        Ok(times)
    }

    /// Returns the bandwidth in 10^9 bytes per second, after a warm-up.
    fn stream(&self, bytes: usize) -> Outcome<f64> {
        let messages = (BANDWIDTH_BYTES / bytes).clamp(16, 4000);
        self.send_all(messages / 8, bytes)?;
        let start = Instant::now();
        self.send_all(messages, bytes)?;
        Ok((messages * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// Transfers `messages` messages of `bytes` bytes, at most `IN_FLIGHT` at a time; returns when
    /// all have arrived.
    fn send_all(&self, messages: usize, bytes: usize) -> Outcome {
        let mut flight = Flight::new(self.there);
        // The messages' buffers are adjacent, as NCCL's slots are. Far apart, the buffers would
        // compete for cache lines.
        let stride = bytes.next_multiple_of(4096);
        for message in 0..messages {
            if flight.len() == IN_FLIGHT {
                flight.finish_oldest("a message of the stream")?;
            }
            let part = self.memory_there.part(message % IN_FLIGHT * stride, bytes, TAG);
            flight.post("a message of the stream", |comm| match self.there.side.role {
                Role::Sender => comm.isend(&part),
                Role::Receiver => comm.irecv(&[part]),
            })?;
        }
        while flight.len() > 0 {
            flight.finish_oldest("a message of the stream")?;
        }
        // The stream ends when the receiver has confirmed all messages.
        let answer = self.memory_back.part(0, 1, TAG);
        match self.there.side.role {
            Role::Sender => self.back.receive(answer, "the final confirmation").map(drop)?,
            Role::Receiver => self.back.send(&answer, "the final confirmation")?,
        }
        Ok(())
    }
}
