//! Closing, and peers that end.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Point;
use super::connect::exchange;
use crate::link::{Flight, Link, Registered, TAG};
use crate::messages::Role;
use crate::process;
use crate::side::Side;
use crate::stop::{Outcome, demand};
use crate::stream::Stream;

/// Longest time of a close that must not wait for the peer.
const CLOSING: Duration = Duration::from_secs(2);

/// Number of messages in each round ([`ROUNDS`]).
const MESSAGES: usize = 8;
/// Bytes of a message, unless [`ROUNDS`] or [`LONG_BYTES`] gives its length.
const BYTES: usize = 512 << 10;

/// Bytes of each message, by round. Together, the messages of the first round fit into socket
/// buffers; the messages of the second round exceed the receiver's buffer; the messages of the
/// third round exceed the buffers of both sides.
const ROUNDS: [usize; 3] = [4 << 10, 64 << 10, BYTES];
/// Time for sends to complete while the receiving process is stopped, at the default --timeout.
const STOPPED: Duration = Duration::from_millis(300);

pub(super) const CLOSE_IN_FLIGHT: Point = Point::pair(
    "close_in_flight",
    "A sender that closes as soon as its sends are done loses no data, even if the receiver is \
     slow: the connection delivers the data in flight, and is not reset.",
    |side| {
        let net = side.net()?;
        ROUNDS.into_iter().try_for_each(|bytes| receive_late(&Link::open(side, &net)?, bytes))
    },
    |side| {
        let net = side.net()?;
        ROUNDS.into_iter().try_for_each(|bytes| send_and_close(&Link::open(side, &net)?, bytes))?;
        Ok(net.finalize()?)
    },
);

/// Posts receives, and verifies all messages after the sender has closed. The sender stops this
/// process before the first send.
fn receive_late(link: &Link, bytes: usize) -> Outcome {
    let side = link.side;
    let memory = link.memory(MESSAGES * bytes)?;
    let mut flight = Flight::new(*link);
    for at in 0..MESSAGES {
        let part = memory.part(at * bytes, bytes, TAG);
        flight.post("a message", |comm| comm.irecv(&[part]))?;
    }
    side.step("receives are posted; the process is stopped while the sender closes");
    side.send_value(&std::process::id())?;
    side.receive_value::<()>()?;
    side.step("test, after the sender has closed");
    for at in 0..MESSAGES {
        let name = format!("message {at} of {MESSAGES} ({bytes} bytes)");
        flight.finish_oldest(&name)?;
        let message = memory.memory.part(at * bytes..(at + 1) * bytes);
        message.verify(at as u64, bytes, bytes).map_err(|stop| stop.of(&name, None))?;
    }
    link.close()?;
    side.barrier()
}

/// Stops the receiver's process, sends to it, and closes as soon as all sends are done. Resumes the
/// process after the close, or earlier if the sends do not complete within [`STOPPED`].
fn send_and_close(link: &Link, bytes: usize) -> Outcome {
    let side = link.side;
    let memory = link.memory(MESSAGES * bytes)?;
    let message = |at: usize| memory.part(at * bytes, bytes, TAG);
    (0..MESSAGES).for_each(|at| message(at).memory.fill(at as u64));
    let receiver: i32 = side.receive_value()?;
    side.step("sending to a process that is stopped");
    signal(receiver, Signal::STOP)?;
    // A receiver that is still running could read all messages before the close.
    side.until("the receiver to stop", || Ok(process::is_stopped(receiver).then_some(())))?;
    let mut flight = Flight::new(*link);
    let is_done = side.poll_for(side.arguments.on_this_machine(STOPPED), || {
        while flight.len() < MESSAGES {
            let part = message(flight.len());
            if !flight.try_post(|comm| comm.isend(&part))? {
                return Ok(false);
            }
        }
        flight.is_done()
    })?;
    if !is_done {
        signal(receiver, Signal::CONT)?;
    }
    for at in flight.len()..MESSAGES {
        flight.post("a message", |comm| comm.isend(&message(at)))?;
    }
    for _ in 0..MESSAGES {
        flight.finish_oldest("a message")?;
    }
    link.close()?;
    // Waits, so that a reset can arrive.
    std::thread::sleep(Duration::from_millis(50));
    signal(receiver, Signal::CONT)?;
    side.send_value(&())?;
    side.barrier()
}

/// Sends a signal to the peer, to stop or resume it.
fn signal(peer: i32, signal: Signal) -> Outcome {
    let sent = Pid::from_raw(peer).map(|peer| kill_process(peer, signal));
    demand(matches!(sent, Some(Ok(()))), || format!("cannot send {signal:?} to the receiver"))
}

pub(super) const CLOSE_WITH_REQUESTS: Point = Point::pair(
    "close_with_requests_in_flight",
    "Closing a communicator with requests in flight, as NCCL does when it aborts, does not wait \
     for the peer.",
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
    side.barrier()?;
    side.step("closing, with requests in flight");
    for link in [receives, sends] {
        let start = Instant::now();
        // The close may return an error, but it must return.
        let _may_be_refused = side.watch.call("close", || link.comm.close());
        let taken = start.elapsed();
        demand(taken < side.arguments.on_this_machine(CLOSING), || {
            format!("closing took {} s, but must not wait for the peer", taken.as_secs_f64())
        })?;
        if side.role == Role::Sender {
            // Gives the receiver time to close the second connection first.
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
        // Waits until the sends are done: a send that is pending when this process dies may fail,
        // and this failure is no defect of the plugin.
        side.barrier()?;
        side.die()
    },
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        Stream::of(20, BYTES).send(&link)?;
        side.barrier()?;
        side.step("sending to a process that was killed");
        let memory = link.memory(BYTES)?;
        let part = memory.part(0, BYTES, TAG);
        let mut request = None;
        // At first, sends may complete into system buffers; in the end there must be an error.
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
     says that the receive is done.",
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        Stream::of(20, BYTES).receive(&link)?;
        // The contract allows a plugin to lose messages that have not arrived when the sender dies.
        side.barrier()?;
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
                    demand(false, || "test reported a message that was never sent".to_owned())
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
        side.barrier()?;
        side.die()
    },
);

/// Seed of the content of a long message.
const LONG_SEED: u64 = 9;
/// Bytes of a long message: more than are in flight at any time.
const LONG_BYTES: usize = 64 << 20;
/// Time between the start of a transfer and the kill of one of its processes.
const BEGUN: Duration = Duration::from_millis(2);

/// Opens a connection, with memory for a long message.
fn open_long(side: &Side) -> Outcome<(Link<'_>, Registered)> {
    let link = Link::open(side, &side.net()?)?;
    let memory = link.memory(LONG_BYTES)?;
    Ok((link, memory))
}

pub(super) const RECEIVER_KILLED_WITHIN: Point = Point::pair(
    "receiver_killed_within_a_message",
    "When the receiving process is killed in the middle of a message, test of the send returns an \
     error in time, or says that the send is done.",
    |side| {
        let (link, memory) = open_long(side)?;
        side.barrier()?;
        let wanted = link.post_receive(&[memory.part(0, LONG_BYTES, TAG)], "a long message")?;
        side.poll_for(BEGUN, || Ok(link.comm.net.test(wanted)?.is_some()))?;
        side.die()
    },
    |side| {
        let (link, memory) = open_long(side)?;
        side.barrier()?;
        let sent = link.post_send(&memory.part(0, LONG_BYTES, TAG), "a long message")?;
        side.step("sending to a process that is killed meanwhile");
        let error =
            side.until("the send to end (receiver killed)", || match link.comm.net.test(sent) {
                Ok(done) => Ok(done.map(|_| None)),
                Err(refusal) => Ok(Some(Some(refusal))),
            })?;
        error.into_iter().for_each(|error| side.note(error.to_string()));
        close_after_error(&link)
    },
);

pub(super) const SENDER_KILLED_WITHIN: Point = Point::pair(
    "sender_killed_within_a_message",
    "When the sending process is killed in the middle of a message, test of the receive returns an \
     error in time, or says that the receive is done if the whole message has arrived.",
    |side| {
        let (link, memory) = open_long(side)?;
        side.barrier()?;
        let wanted = link.post_receive(&[memory.part(0, LONG_BYTES, TAG)], "a long message")?;
        side.step("receiving from a process that is killed meanwhile");
        let end = side.until("the receive to end (sender killed)", || {
            match link.comm.net.test(wanted) {
                Ok(done) => Ok(done.map(Ok)),
                Err(refusal) => Ok(Some(Err(refusal))),
            }
        })?;
        match end {
            Ok(_) => memory.memory.verify(LONG_SEED, LONG_BYTES, LONG_BYTES)?,
            Err(error) => side.note(error.to_string()),
        }
        close_after_error(&link)
    },
    |side| {
        let (link, memory) = open_long(side)?;
        memory.memory.fill(LONG_SEED);
        side.barrier()?;
        let sent = link.post_send(&memory.part(0, LONG_BYTES, TAG), "a long message")?;
        side.poll_for(BEGUN, || Ok(link.comm.net.test(sent)?.is_some()))?;
        side.die()
    },
);

/// Closes the connection. The close may fail, but must neither hang nor crash.
fn close_after_error(link: &Link) -> Outcome {
    link.side.step("closing, after the error");
    let _may_be_refused = link.side.watch.call("close", || link.comm.close());
    Ok(())
}
