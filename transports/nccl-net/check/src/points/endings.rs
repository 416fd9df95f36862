//! Closing, and peers that end.

use std::time::{Duration, Instant};

use super::Point;
use super::connect::exchange;
use crate::link::{Flight, Link, TAG};
use crate::messages::Role;
use crate::side::Side;
use crate::stop::{Outcome, demand};
use crate::stream::Stream;

/// How long the receiver does nothing while the sender closes.
const A_WHILE: Duration = Duration::from_millis(500);
/// How long closing may take that must not wait for the peer.
const CLOSING: Duration = Duration::from_secs(2);

/// Messages, and the bytes of each: more than sockets take.
const MESSAGES: usize = 8;
const BYTES: usize = 512 << 10;

pub(super) const CLOSE_IN_FLIGHT: Point = Point::pair(
    "close_in_flight",
    "A sender that closes as soon as its sends are done loses nothing: what is on its way is \
     drained, not reset.",
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        let memory = link.memory(MESSAGES * BYTES)?;
        let mut flight = Flight::new(link);
        for at in 0..MESSAGES {
            let part = memory.part(at * BYTES, BYTES, TAG);
            flight.post("a message", |comm| comm.irecv(&[part]))?;
        }
        side.step("receives are posted, and not tested while the sender sends and closes");
        side.meet()?;
        std::thread::sleep(A_WHILE);
        side.step("test, after the sender has closed");
        for at in 0..MESSAGES {
            flight.finish_oldest(format_args!("message {at} of {MESSAGES}"))?;
            let message = memory.memory.part(at * BYTES..(at + 1) * BYTES);
            message
                .verify(1 + at as u64, BYTES, BYTES)
                .map_err(|stop| stop.of(&format!("message {at} of {MESSAGES}"), None))?;
        }
        link.close()
    },
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        side.meet()?;
        Stream::of(MESSAGES, BYTES).send(&link)?;
        link.close()?;
        side.step("finalize, right after closing");
        Ok(net.finalize()?)
    },
);

pub(super) const CLOSE_WITH_REQUESTS: Point = Point::pair(
    "close_with_requests_in_flight",
    "When NCCL aborts, communicators are closed with requests in flight: that does not wait for \
     the peer.",
    close_with_requests,
    close_with_requests,
);

fn close_with_requests(side: &Side) -> Outcome {
    let net = side.net()?;
    let (receives, sends) = (Link::open(side, &net)?, Link::open(side, &net)?);
    let other = Link::open(side, &net)?;
    let link = if side.role == Role::Receiver { receives } else { sends };
    let memory = link.memory(BYTES)?;
    for _ in 0..4 {
        let part = memory.part(0, BYTES, TAG);
        let _unanswered = match side.role {
            Role::Receiver => link.comm.irecv(&[part])?,
            Role::Sender => link.comm.isend(&part)?,
        };
    }
    side.meet()?;
    side.step("closing, with requests in flight");
    for link in [receives, sends] {
        let start = Instant::now();
        // An error may be what it says; what counts is that it returns.
        let _may_be_refused = side.watch.call("close", || link.comm.close());
        let taken = start.elapsed();
        demand(taken < CLOSING, || {
            format!("closing took {} s, expected it not to wait", taken.as_secs_f64())
        })?;
        if side.role == Role::Sender {
            // First one side closes, then the other.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    exchange(&other)
}

pub(super) const RECEIVER_KILLED: Point = Point::pair(
    "receiver_killed",
    "When the receiving process is killed, isend or test returns an error in time: a lost message \
     must not become a hang.",
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        Stream::of(20, BYTES).receive(&link)?;
        side.die()
    },
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        Stream::of(20, BYTES).send(&link)?;
        side.step("sending to a process that was killed");
        let memory = link.memory(BYTES)?;
        let part = memory.part(0, BYTES, TAG);
        let mut request = None;
        // Some may be done, into buffers of the system; not without end.
        let error = side.until("an error, as the receiver is dead", || {
            let step = match request {
                None => link.comm.isend(&part).map(|taken| request = taken),
                Some(sent) => net.test(sent).map(|done| {
                    if done.is_some() {
                        request = None;
                    }
                }),
            };
            Ok(step.err())
        })?;
        side.note(error.to_string());
        close_after_error(&link)
    },
);

pub(super) const SENDER_KILLED: Point = Point::pair(
    "sender_killed",
    "When the sending process is killed, test of a receive returns an error in time, and never \
     says that it is done.",
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        Stream::of(20, BYTES).receive(&link)?;
        let memory = link.memory(BYTES)?;
        let part = memory.part(0, BYTES, TAG);
        side.step("receiving from a process that was killed");
        let mut request = None;
        let error = side.until("an error, as the sender is dead", || match request {
            None => match link.comm.irecv(&[part]) {
                Ok(taken) => {
                    request = taken;
                    Ok(None)
                }
                Err(refusal) => Ok(Some(refusal)),
            },
            Some(request) => match net.test(request) {
                Ok(None) => Ok(None),
                Ok(Some(_)) => {
                    demand(false, || "test said that a receive is done that nobody sent".to_owned())
                        .map(|()| None)
                }
                Err(refusal) => Ok(Some(refusal)),
            },
        })?;
        side.note(error.to_string());
        close_after_error(&link)
    },
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        Stream::of(20, BYTES).send(&link)?;
        side.die()
    },
);

/// Closing neither hangs nor crashes, whatever it returns.
fn close_after_error(link: &Link) -> Outcome {
    link.side.step("closing, after the error");
    let _may_be_refused = link.side.watch.call("close", || link.comm.close());
    Ok(())
}
