//! Life of requests.

use std::collections::VecDeque;
use std::time::Duration;

use nccl_net_abi::{CUDA, DMA_BUF, OPTIONAL_COMPLETION, REQUESTS_MAX};

use super::Point;
use crate::calls::{Opaque, Part};
use crate::library::Api;
use crate::link::{Link, TAG, received};
use crate::memory::GUARD;
use crate::messages::Role;
use crate::net::{Net, accepted};
use crate::profiler;
use crate::side::Side;
use crate::stop::{Outcome, demand, failed, skipped};
use crate::stream::Stream;

/// Time that one side waits, so that the other side goes ahead as far as it can.
const A_WHILE: Duration = Duration::from_millis(300);
/// Time, at the default --timeout, within which a plugin must take 32 requests.
const SOON: Duration = Duration::from_secs(2);

/// Bytes of a message.
const BYTES: usize = 64 << 10;
/// Bytes from the start of one slot to the start of the next.
const STRIDE: usize = BYTES + GUARD;

pub(super) const THIRTY_TWO_IN_FLIGHT: Point = Point::pair(
    "thirty_two_in_flight",
    "A communicator takes 32 receives before anything is sent, and the 32 sends for them. These \
     requests may be tested in any order.",
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        let memory = link.memory(REQUESTS_MAX * STRIDE)?;
        side.step("irecv 32 times, before anything is sent");
        let parts = |at: usize| memory.part(at * STRIDE, BYTES, TAG);
        let requests = take_all("irecv", side, |at| Ok(link.comm.irecv(&[parts(at)])?))?;
        side.barrier()?;
        side.step("test of all requests, the last request first");
        for (at, request) in requests.into_iter().enumerate().rev() {
            let sizes = link.finish(request, format_args!("receive {at}"))?;
            let bytes = received(&sizes, 0, format_args!("receive {at}"))?;
            demand(bytes == BYTES, || format!("test reported {bytes} bytes, expected {BYTES}"))?;
            let slot = memory.memory.part(at * STRIDE..(at + 1) * STRIDE);
            slot.verify(at as u64, BYTES, BYTES)
                .map_err(|stop| stop.of(&format!("receive {at}"), None))?;
        }
        side.barrier()?;
        link.close()
    },
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        let memory = link.memory(REQUESTS_MAX * STRIDE)?;
        let part = |at: usize| memory.part(at * STRIDE, BYTES, TAG);
        (0..REQUESTS_MAX).for_each(|at| part(at).memory.fill(at as u64));
        side.barrier()?;
        side.step("isend 32 times, for receives that are posted");
        let requests = take_all("isend", side, |at| Ok(link.comm.isend(&part(at))?))?;
        side.step("test of all requests, the last request first");
        for (at, request) in requests.into_iter().enumerate().rev() {
            link.finish(request, format_args!("send {at}"))?;
        }
        side.barrier()?;
        link.close()
    },
);

/// Posts as many requests as NCCL may have in flight, without testing any.
fn take_all(
    call: &str,
    side: &Side,
    mut take: impl FnMut(usize) -> Outcome<Option<usize>>,
) -> Outcome<Vec<usize>> {
    let mut requests = Vec::new();
    let soon = side.arguments.on_this_machine(SOON);
    let all = side.poll_for(soon, || {
        while requests.len() < REQUESTS_MAX {
            match take(requests.len())? {
                Some(request) => requests.push(request),
                None => return Ok(false),
            }
        }
        Ok(true)
    })?;
    demand(all, || {
        let (taken, seconds) = (requests.len(), soon.as_secs());
        format!(
            "{call} took {taken} requests and no more for {seconds} s, expected it to take \
             {REQUESTS_MAX}"
        )
    })?;
    for (at, request) in requests.iter().enumerate() {
        let other = requests[..at].iter().position(|other| other == request);
        demand(other.is_none(), || format!("{call} gave the same request twice, while in flight"))?;
    }
    Ok(requests)
}

pub(super) const OPTIONAL_COMPLETION_HINT: Point = Point::pair(
    "optional_completion",
    "If *request has the hint 0x1, irecv replaces the hint by a request or NULL.",
    |side| {
        if side.plugin()?.api < Api::V9 {
            return skipped("the hint came with version 9");
        }
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        let memory = link.memory(BYTES + GUARD)?;
        for seed in 0..16 {
            side.step(&format!("irecv with the hint, message {seed}"));
            memory.memory.clear();
            let part = memory.part(0, BYTES, TAG);
            let request = side.until("irecv to take a message", || {
                let request = link.comm.irecv_over(&[part], OPTIONAL_COMPLETION)?;
                if request == Some(OPTIONAL_COMPLETION) {
                    return failed("irecv left 0x1 in *request: NCCL would call test with it");
                }
                Ok(request)
            })?;
            side.send_value(&())?;
            // With the hint, a request may be done before its data is there, because NCCL itself
            // checks the data.
            let mut is_done = false;
            side.until("the request to be done and the data to be right", || {
                is_done = is_done || net.test(request)?.is_some();
                Ok((is_done && part.memory.holds(seed)).then_some(()))
            })?;
            memory.memory.verify(seed, BYTES, BYTES)?;
            side.barrier()?;
        }
        link.close()
    },
    |side| {
        if side.plugin()?.api < Api::V9 {
            return skipped("the hint came with version 9");
        }
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        let memory = link.memory(BYTES)?;
        for seed in 0..16 {
            side.receive_value::<()>()?;
            memory.memory.fill(seed);
            link.send(&memory.part(0, BYTES, TAG), "the message")?;
            side.barrier()?;
        }
        link.close()
    },
);

pub(super) const NULL_IS_RETRIED: Point = Point::pair(
    "null_request_is_retried",
    "isend or irecv, called before the peer's matching call or with too many requests in flight, \
     gives NULL or a request; repeated calls give a request in the end.",
    eager,
    eager,
);

/// Transfers a stream twice: with the sender ahead, then with the receiver ahead. 32 messages are
/// in flight, the most that NCCL asks for.
fn eager(side: &Side) -> Outcome {
    let net = side.net()?;
    let link = Link::open(side, &net)?;
    let stream = Stream { in_flight: REQUESTS_MAX, ..Stream::of(200, 10_000) };
    for ahead in [Role::Sender, Role::Receiver] {
        side.step(&format!("the {} goes ahead", ahead.name()));
        if side.role != ahead {
            std::thread::sleep(A_WHILE);
        }
        match side.role {
            Role::Receiver => stream.receive(&link)?,
            Role::Sender => stream.send(&link)?,
        }
        side.barrier()?;
    }
    link.close()
}

pub(super) const TEST_SEMANTICS: Point = Point::pair(
    "test_semantics",
    "test says done when the data is there and not before; it fills in the sizes of the parts and \
     no more; for a send, the sizes may be NULL.",
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        let memory = link.memory(STRIDE)?;
        let part: Part = memory.part(0, BYTES, TAG);
        for seed in 0..50 {
            memory.memory.clear();
            let request = link.post_receive(&[part], "a message")?;
            side.step("test, before anything is sent");
            for _ in 0..100 {
                let done = net.test(request)?;
                demand(done.is_none(), || {
                    "test said that a receive is done before anything was sent".to_owned()
                })?;
            }
            side.send_value(&())?;
            side.step("test, while the message is sent");
            let sizes = link.finish(request, "the message")?;
            memory.memory.verify(seed, BYTES, BYTES)?;
            let bytes = received(&sizes, 0, "the message")?;
            demand(bytes == BYTES, || {
                format!("test reported {bytes} bytes received, expected {BYTES}")
            })?;
            demand(sizes[1..].iter().all(|size| *size == i32::MIN), || {
                "test wrote more than one size, although the receive has one buffer".to_owned()
            })?;
        }
        side.barrier()?;
        link.close()
    },
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        let memory = link.memory(BYTES)?;
        let part = memory.part(0, BYTES, TAG);
        for seed in 0..50 {
            memory.memory.fill(seed);
            side.receive_value::<()>()?;
            let request = link.post_send(&part, "a message")?;
            side.step("test of a send, with NULL for the sizes");
            finish_without_sizes(side, &net, request, "the send")?;
        }
        side.barrier()?;
        link.close()
    },
);

/// Number of messages.
const CONSUMED: usize = 64;
/// Number of receives in flight at once.
const AT_ONCE: usize = 8;

pub(super) const CONSUMED_RECEIVES: Point = Point::pair(
    "consumed_receives",
    "irecvConsumed, which may be NULL, accepts a receive that test reported as done; receives in \
     flight stay untouched.",
    |side| {
        let net = side.net()?;
        if !net.calls.has_consumed() {
            return skipped("irecvConsumed is NULL, which is allowed");
        }
        let link = Link::open(side, &net)?;
        let memory = link.memory(AT_ONCE * STRIDE)?;
        let post = |at: usize| {
            let start = at % AT_ONCE * STRIDE;
            memory.memory.part(start..start + STRIDE).clear();
            link.post_receive(&[memory.part(start, BYTES, TAG)], format_args!("message {at}"))
        };
        let mut requests = (0..AT_ONCE).map(post).collect::<Outcome<VecDeque<_>>>()?;
        for at in 0..CONSUMED {
            let Some(request) = requests.pop_front() else { return failed("a request is gone") };
            let sizes = link.finish(request, format_args!("message {at}"))?;
            let bytes = received(&sizes, 0, format_args!("message {at}"))?;
            demand(bytes == BYTES, || format!("test reported {bytes} bytes, expected {BYTES}"))?;
            let start = at % AT_ONCE * STRIDE;
            let slot = memory.memory.part(start..start + STRIDE);
            slot.verify(at as u64, BYTES, BYTES)?;
            // A new receive is posted before irecvConsumed is called for message `at`, as can
            // happen in NCCL. The plugin may give the new receive the request pointer of message
            // `at`, because the receive of message `at` is done.
            if at + AT_ONCE < CONSUMED {
                requests.push_back(post(at + AT_ONCE)?);
            }
            side.step(&format!("irecvConsumed of message {at}, which is done"));
            link.comm.consumed(request)?;
        }
        side.barrier()?;
        link.close()
    },
    |side| {
        let net = side.net()?;
        if !net.calls.has_consumed() {
            return skipped("irecvConsumed is NULL, which is allowed");
        }
        let link = Link::open(side, &net)?;
        let memory = link.memory(BYTES)?;
        for at in 0..CONSUMED {
            memory.memory.fill(at as u64);
            link.send(&memory.part(0, BYTES, TAG), format_args!("message {at}"))?;
        }
        side.barrier()?;
        link.close()
    },
);

pub(super) const FLUSH: Point = Point::pair(
    "flush",
    "iflush of received memory gives a request that test reports as done, or NULL if there is \
     nothing to flush; it may return an error only if ptrSupport is HOST.",
    |side| {
        let net = side.net()?;
        let is_needed = net.properties()?.memory_kinds & (CUDA | DMA_BUF) != 0;
        let link = Link::open(side, &net)?;
        let memory = link.memory(STRIDE)?;
        let part = memory.part(0, BYTES, TAG);
        for seed in 0..16 {
            memory.memory.clear();
            link.receive(part, "the message")?;
            side.step(&format!("iflush of message {seed}"));
            let request = match link.comm.iflush(&[part]) {
                Ok(request) => request,
                Err(refusal) if !is_needed => {
                    return skipped(format!(
                        "{refusal}; ptrSupport is HOST: NCCL does not call iflush"
                    ));
                }
                Err(refusal) => return Err(refusal.into()),
            };
            if let Some(request) = request {
                finish_without_sizes(side, &net, request, "the flush")?;
            }
            memory.memory.verify(seed, BYTES, BYTES)?;
        }
        side.barrier()?;
        link.close()
    },
    |side| {
        let net = side.net()?;
        let link = Link::open(side, &net)?;
        let memory = link.memory(BYTES)?;
        for seed in 0..16 {
            memory.memory.fill(seed);
            link.send(&memory.part(0, BYTES, TAG), "the message")?;
        }
        side.barrier()?;
        link.close()
    },
);

/// Tests the request with NULL for the sizes, until it is done.
fn finish_without_sizes(side: &Side, net: &Net, request: Opaque, what: &str) -> Outcome {
    side.until(format_args!("test to say that {what} is done"), || {
        let (result, done) = net.calls.test(request, None);
        accepted("test", result)?;
        Ok((done != 0).then_some(()))
    })
}

pub(super) const PROFILED: Point = Point::pair(
    "profiled_requests",
    "A profiler given to init, and events given to isend and irecv, do no harm; each report of the \
     plugin to the profiler belongs to one of these events.",
    profiled,
    profiled,
);

fn profiled(side: &Side) -> Outcome {
    if side.plugin()?.api < Api::V10 {
        return skipped("the profiler came with version 10");
    }
    let net = side.net_with(profiler::profiler())?;
    let link = Link::open(side, &net)?;
    let memory = link.memory(STRIDE)?;
    // NCCL profiles only some requests.
    for (seed, event) in (0..16).zip([profiler::event(), 0].into_iter().cycle()) {
        let kind = if event == 0 { "no event" } else { "an event" };
        side.step(&format!("message {seed}, with {kind}"));
        let part = Part { event, ..memory.part(0, BYTES, TAG) };
        match side.role {
            Role::Receiver => {
                memory.memory.clear();
                link.receive(part, "the message")?;
                memory.memory.verify(seed, BYTES, BYTES)?;
            }
            Role::Sender => {
                part.memory.fill(seed);
                link.send(&part, "the message")?;
            }
        }
        profiler::verify()?;
    }
    side.barrier()?;
    link.close()?;
    profiler::verify()
}
