//! Registering memory.

use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nccl_net_abi::DMA_BUF;

use super::Point;
use super::connect::exchange;
use crate::link::{Link, Registered, TAG};
use crate::memory::{GUARD, Memory};
use crate::messages::Role;
use crate::side::Side;
use crate::stop::{Outcome, Stop, demand, failed, skipped};
use crate::stream::Stream;

pub(super) const DURING_TRANSFERS: Point = Point::pair(
    "registration_during_transfers",
    "regMr and deregMr may be called on a communicator by one thread while another sends, receives \
     and tests on it.",
    during_transfers,
    during_transfers,
);

/// Number of threads that register memory while another thread transfers.
const REGISTRARS: usize = 3;

fn during_transfers(side: &Side) -> Outcome {
    let net = side.net()?;
    let link = Link::open(side, &net)?;
    let stream = Stream::of_odd_sizes(1000, 40_000, 5000);
    let ring = link.memory(stream.stride() * stream.in_flight)?;
    let is_over = AtomicBool::new(false);
    side.step("transfers in one thread, regMr and deregMr in three others");
    let outcome = std::thread::scope(|scope| {
        let registrars: Vec<_> = (0..REGISTRARS)
            .map(|at| {
                let (is_over, ring) = (&is_over, &ring);
                scope.spawn(move || register_until(is_over, &link, ring.memory, at))
            })
            .collect();
        let transferred = match side.role {
            Role::Receiver => stream.receive_into(&link, &ring),
            Role::Sender => stream.send_from(&link, &ring),
        };
        is_over.store(true, Ordering::Relaxed);
        let mut registered = 0;
        for registrar in registrars {
            let joined = registrar.join();
            registered += joined.unwrap_or_else(|_| failed("a thread panicked"))?;
        }
        transferred?;
        demand(registered > 0, || "no memory was registered while data was moved".to_owned())
    });
    outcome?;
    link.comm.deregister(ring.registration)?;
    side.barrier()?;
    link.close()
}

/// Registers own memory and parts of the transferred memory, repeatedly, until `is_over`. Returns
/// the number of repetitions.
fn register_until(is_over: &AtomicBool, link: &Link, shared: Memory, at: usize) -> Outcome<usize> {
    let own = Memory::new(256 << 10);
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) && !link.side.watch.is_over() {
        let start = (count * 4096 + at) % (shared.len() / 2);
        let parts = [own.part(at..own.len()), shared.part(start..shared.len()), shared];
        let mut registrations = Vec::new();
        for part in parts {
            registrations.push(link.comm.register(part)?);
        }
        for registration in registrations {
            link.comm.deregister(registration)?;
        }
        count += 1;
        if count % 16 == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(count)
}

pub(super) const FROM_OTHER_COMM: Point = Point::pair(
    "registration_from_other_comm",
    "Where regIsGlobal is 1, communicators of one device may use each other's registered memory.",
    from_other_comm,
    from_other_comm,
);

fn from_other_comm(side: &Side) -> Outcome {
    let net = side.net()?;
    if net.properties()?.registration_is_global == 0 {
        return skipped("regIsGlobal is 0");
    }
    let (first, second) = (Link::open(side, &net)?, Link::open(side, &net)?);
    let stream = Stream::of_odd_sizes(40, 100_000, 1);
    let ring = first.memory(stream.stride() * stream.in_flight)?;
    side.step("transfers on the second communicator, in memory registered with the first");
    transfer(&second, &stream, &ring)?;
    side.barrier()?;
    second.close()?;
    side.step("transfers on the first communicator, after the second was closed");
    transfer(&first, &stream, &ring)?;
    first.comm.deregister(ring.registration)?;
    side.barrier()?;
    first.close()
}

fn transfer(link: &Link, stream: &Stream, ring: &Registered) -> Outcome {
    match link.side.role {
        Role::Receiver => stream.receive_into(link, ring),
        Role::Sender => stream.send_from(link, ring),
    }
}

pub(super) const PARTS_AND_OVERLAPS: Point = Point::pair(
    "registration_parts_and_overlaps",
    "A transfer may use any part of a registration; registrations may overlap, and deregistering \
     one leaves the others usable.",
    parts_and_overlaps,
    parts_and_overlaps,
);

fn parts_and_overlaps(side: &Side) -> Outcome {
    const BYTES: usize = 1 << 20;
    let net = side.net()?;
    let link = Link::open(side, &net)?;
    let memory = Memory::new(BYTES + GUARD);
    let registered = |memory: Memory| link.registered(memory);
    let whole = registered(memory)?;
    let again = registered(memory)?;
    let middle = registered(memory.part(5000..BYTES / 2))?;
    let small = registered(memory.part(6001..6002))?;
    let message = |of: &Registered, start: usize, bytes: usize, what: &str| {
        side.step(what);
        let part = of.part(start, bytes, TAG);
        let seed = (start + bytes) as u64;
        match side.role {
            Role::Sender => {
                part.memory.fill(seed);
                link.send(&part, what)
            }
            Role::Receiver => {
                part.memory.clear();
                let received = link.receive(part, what)?;
                demand(received == bytes, || {
                    format!("{what}: test reported {received} bytes, expected {bytes}")
                })?;
                part.memory.verify(seed, bytes, bytes).map_err(|stop| stop.of(what, None))
            }
        }
    };
    message(&whole, 0, BYTES, "all of the registration")?;
    message(&whole, 4097, 70_001, "an odd part of the registration")?;
    message(&middle, 1, 100_000, "a registration within another")?;
    message(&small, 0, 1, "a registration of one byte")?;
    link.comm.deregister(small.registration)?;
    link.comm.deregister(again.registration)?;
    message(&whole, 6000, 3000, "a registration whose duplicate has ended")?;
    link.comm.deregister(whole.registration)?;
    message(&middle, 1000, 3000, "a registration whose enclosing registration has ended")?;
    link.comm.deregister(middle.registration)?;
    side.barrier()?;
    link.close()
}

pub(super) const DEREGISTER_IN_FLIGHT: Point = Point::pair(
    "deregister_with_requests_in_flight",
    "When NCCL aborts, it calls deregMr with requests in flight, then closes the communicator: \
     neither call hangs, and other connections still work.",
    deregister_in_flight,
    deregister_in_flight,
);

fn deregister_in_flight(side: &Side) -> Outcome {
    const BYTES: usize = 4 << 20;
    let net = side.net()?;
    let (receives, sends) = (Link::open(side, &net)?, Link::open(side, &net)?);
    let other = Link::open(side, &net)?;
    // `receives` gets receives without sends, and `sends` gets sends without receives.
    let link = if side.role == Role::Receiver { receives } else { sends };
    let memory = link.memory(BYTES)?;
    side.step("four requests that the peer does not answer");
    for _ in 0..4 {
        let part = memory.part(0, BYTES, TAG);
        let _unanswered = match side.role {
            Role::Receiver => link.comm.irecv(&[part])?,
            Role::Sender => link.comm.isend(&part)?,
        };
    }
    side.barrier()?;
    side.step("deregMr with requests in flight");
    abandon(side, "deregMr", || link.comm.deregister(memory.registration).map_err(Stop::from))?;
    side.step("closing, with requests in flight");
    for link in [receives, sends] {
        // The peer may have closed already: an error is allowed.
        abandon(side, "close", || {
            let _may_be_refused = link.comm.close();
            Ok(())
        })?;
    }
    exchange(&other)
}

/// Makes a call that must not wait for the peer.
fn abandon(side: &Side, name: &'static str, call: impl FnOnce() -> Outcome) -> Outcome {
    side.watch.call(name, call)
}

pub(super) const DMA_BUF_REGISTRATION: Point = Point::pair(
    "dma_buf_registration",
    "Where ptrSupport has DMABUF, regMrDmaBuf exists, refuses a number that is no descriptor, and \
     does not close a descriptor that it gets; transfers still work.",
    dma_buf,
    dma_buf,
);

fn dma_buf(side: &Side) -> Outcome {
    let net = side.net()?;
    if net.properties()?.memory_kinds & DMA_BUF == 0 {
        return skipped("ptrSupport has no DMABUF: NCCL does not call regMrDmaBuf");
    }
    let link = Link::open(side, &net)?;
    let memory = Memory::new(1 << 16);
    side.step("regMrDmaBuf with descriptor -1");
    match link.comm.register_dma_buf(memory, -1) {
        None => return failed("ptrSupport has DMABUF (4), but regMrDmaBuf is NULL"),
        Some(Err(_refused)) => {}
        Some(Ok(_)) => {
            return failed("regMrDmaBuf accepted descriptor -1, so it ignores the descriptor");
        }
    }
    side.step("regMrDmaBuf with the descriptor of /dev/null, which is no DMA-BUF");
    let file = std::fs::File::open("/dev/null");
    let file = file.map_err(|error| Stop::Skipped(format!("cannot open /dev/null: {error}")))?;
    if let Some(Ok(registration)) = link.comm.register_dma_buf(memory, file.as_raw_fd()) {
        link.comm.deregister(registration)?;
    }
    if file.metadata().is_err() {
        // The plugin has closed the descriptor; its number may soon belong to another file.
        let _not_closed_again = file.into_raw_fd();
        return failed("regMrDmaBuf closed the descriptor: only NCCL may close it");
    }
    exchange(&link)
}
