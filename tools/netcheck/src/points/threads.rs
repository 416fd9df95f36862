//! Threads and processes.

use super::Point;
use super::connect::exchange;
use crate::link::{Link, TAG};
use crate::memory::Memory;
use crate::messages::Role;
use crate::net::Handle;
use crate::side::Side;
use crate::stop::{Outcome, demand, failed};
use crate::stream::Stream;

pub(super) const FOUR_THREADS: Point = Point::pair(
    "four_threads",
    "Four threads transfer at once, each on a communicator of its own.",
    four_threads,
    four_threads,
);

fn four_threads(side: &Side) -> Outcome {
    let net = side.net()?;
    let links: Vec<Link> = (0..4).map(|_| Link::open(side, &net)).collect::<Outcome<_>>()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = links
            .iter()
            .enumerate()
            .map(|(at, link)| {
                scope.spawn(move || {
                    let stream = Stream::of_odd_sizes(500, 50_000, 10_000 * at as u64);
                    match side.role {
                        Role::Receiver => stream.receive(link),
                        Role::Sender => stream.send(link),
                    }
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<Outcome>| {
            thread.join().unwrap_or_else(|_| failed("a thread panicked"))
        };
        threads.into_iter().try_for_each(join)
    })?;
    side.barrier()?;
    links.into_iter().try_for_each(Link::close)
}

pub(super) const CALLS_FROM_OTHER_THREADS: Point = Point::pair(
    "calls_from_other_threads",
    "Any thread may use objects that another thread created: NCCL connects, registers and \
     transfers in different threads.",
    |side| {
        let net = elsewhere(|| side.net())?;
        let (listener, handle) = elsewhere(|| net.listen())?;
        side.send_value(&handle)?;
        let comm =
            side.until("accept to give a communicator", || elsewhere(|| Ok(listener.accept()?)))?;
        elsewhere(|| Ok(listener.close()?))?;
        let link = Link { side, comm };
        let memory = elsewhere(|| link.memory(100_000))?;
        for seed in 0..20 {
            memory.memory.clear();
            let part = memory.part(0, 90_000, TAG);
            let request = elsewhere(|| link.post_receive(&[part], "a message"))?;
            elsewhere(|| link.finish(request, "the message"))?;
            memory.memory.verify(seed, 90_000, 90_000)?;
        }
        elsewhere(|| Ok(comm.deregister(memory.registration)?))?;
        side.barrier()?;
        elsewhere(|| link.close())
    },
    |side| {
        let net = elsewhere(|| side.net())?;
        let handle: Handle = side.receive_value()?;
        let mut dial = net.dial(&handle);
        let comm = side.until("connect to give a communicator", || elsewhere(|| dial.poll()))?;
        let link = Link { side, comm };
        let memory = elsewhere(|| link.registered(Memory::new(90_000)))?;
        for seed in 0..20 {
            memory.memory.fill(seed);
            let part = memory.part(0, 90_000, TAG);
            let request = elsewhere(|| link.post_send(&part, "a message"))?;
            elsewhere(|| link.finish(request, "the message"))?;
        }
        elsewhere(|| Ok(comm.deregister(memory.registration)?))?;
        side.barrier()?;
        elsewhere(|| link.close())
    },
);

/// Runs `what` in a thread of its own, which then ends.
fn elsewhere<T: Send>(what: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    std::thread::scope(|scope| {
        scope.spawn(what).join().unwrap_or_else(|_| failed("a thread panicked"))
    })
}

pub(super) const FORK_AFTER_INIT: Point = Point::pair(
    "fork_after_init",
    "Programs fork to run commands: a child that ends at once disturbs nothing.",
    fork_after_init,
    fork_after_init,
);

fn fork_after_init(side: &Side) -> Outcome {
    let net = side.net()?;
    crate::fork::fork_and_reap()?;
    let link = Link::open(side, &net)?;
    side.step("fork, with a connection");
    crate::fork::fork_and_reap()?;
    demand(net.devices()? > 0, || "there is no device after a fork".to_owned())?;
    let stream = Stream::of_odd_sizes(50, 100_000, 1);
    match side.role {
        Role::Receiver => stream.receive(&link)?,
        Role::Sender => stream.send(&link)?,
    }
    exchange(&link)
}
