//! Repeated cycles: a plugin releases all resources that it takes.

use std::time::Duration;

use super::Point;
use super::connect::exchange;
use crate::link::Link;
use crate::memory::Memory;
use crate::messages::Role;
use crate::process::{Holdings, threads};
use crate::side::Side;
use crate::stop::{Outcome, Stop, demand, skipped};
use crate::stream::Stream;

pub(super) const LISTEN_CLOSE: Point = Point::alone(
    "listen_close_cycles",
    "A thousand listeners (ten thousand with --full), one after another, leave no descriptor, \
     thread or memory behind.",
    |side| {
        let net = side.net()?;
        let cycle = || net.listen()?.0.close().map_err(Stop::from);
        side.step("the first 50 cycles of listen and closeListen");
        (0..50).try_for_each(|_| cycle())?;
        let before = Holdings::now();
        let cycles = if side.arguments.full { 10_000 } else { 1_000 };
        for index in 0..cycles {
            if index % 100 == 0 {
                side.step(&format!("listen and closeListen, {index} times"));
            }
            cycle()?;
        }
        before.demand_no_growth(side, &format!("{cycles} listeners"))
    },
)
.patient(3);

/// Number of connections that are made between the two measurements.
const CONNECTIONS: usize = 60;
/// Number of connections that are made before the first measurement.
const WARM_UP: usize = 10;

pub(super) const CONNECTIONS_CYCLE: Point = Point::pair(
    "connection_cycles",
    "Connections that are made, used and closed leave no descriptor, thread or memory behind.",
    connection_cycles,
    connection_cycles,
)
.patient(2);

fn connection_cycles(side: &Side) -> Outcome {
    let net = side.net()?;
    let stream = Stream::of_odd_sizes(10, 50_000, 1);
    let memory = Memory::new(stream.stride() * stream.in_flight);
    let mut before = Holdings::now();
    for index in 0..WARM_UP + CONNECTIONS {
        if index == WARM_UP {
            side.barrier()?;
            // Resources that are released in the background may need a moment.
            std::thread::sleep(Duration::from_millis(100));
            before = Holdings::now();
        }
        let link = Link::open(side, &net)?;
        let ring = link.registered(memory)?;
        match side.role {
            Role::Receiver => stream.receive_into(&link, &ring)?,
            Role::Sender => stream.send_from(&link, &ring)?,
        }
        link.comm.deregister(ring.registration)?;
        link.close()?;
    }
    side.barrier()?;
    before.demand_no_growth(side, &format!("{CONNECTIONS} connections"))
}

pub(super) const INIT_FINALIZE: Point = Point::alone(
    "init_finalize_cycles",
    "init and finalize leave no resources behind, for any number of communicators, whether these \
     exist one after another or at the same time.",
    |side| {
        let plugin = side.plugin()?;
        if !plugin.calls.has_contexts() {
            return skipped(format!("interface {} has no finalize", plugin.api));
        }
        let cycle = || {
            let (first, second) = (side.init(&plugin)?, side.init(&plugin)?);
            let (listener, _) = first.listen()?;
            second.finalize()?;
            listener.close()?;
            Ok::<_, Stop>(first.finalize()?)
        };
        (0..5).try_for_each(|_| cycle())?;
        let before = Holdings::now();
        (0..100).try_for_each(|_| cycle())?;
        std::mem::forget(plugin);
        before.demand_no_growth(side, "100 cycles of init and finalize")
    },
);

/// Runs a plugin from `init` to `finalize`, with a connection that is used.
fn whole_life(side: &Side, plugin: &crate::library::Plugin) -> Outcome {
    let net = side.init(plugin)?;
    exchange(&Link::open(side, &net)?)?;
    side.step("finalize");
    Ok(net.finalize()?)
}

pub(super) const FINALIZE_JOINS_THREADS: Point = Point::pair(
    "finalize_joins_threads",
    "The last finalize ends the threads of the plugin: its code may be unmapped afterwards.",
    finalize_joins_threads,
    finalize_joins_threads,
);

fn finalize_joins_threads(side: &Side) -> Outcome {
    let plugin = side.plugin()?;
    if !plugin.calls.has_contexts() {
        return skipped(format!("interface {} has no finalize", plugin.api));
    }
    let before = threads();
    whole_life(side, &plugin)?;
    // For a moment, the kernel still counts a thread that was joined.
    let a_moment = side.arguments.on_this_machine(Duration::from_millis(200));
    side.poll_for(a_moment, || Ok(threads() <= before))?;
    let after = threads();
    std::mem::forget(plugin);
    demand(after <= before, || {
        format!("{} threads of the plugin run on after finalize", after - before)
    })
}

pub(super) const DLCLOSE: Point = Point::pair(
    "dlclose_is_harmless",
    "NCCL closes the library when its last communicator is gone; the process survives this, and \
     may open the library again.",
    dlclose,
    dlclose,
);

fn dlclose(side: &Side) -> Outcome {
    for round in ["first", "second"] {
        let plugin = side.plugin()?;
        whole_life(side, &plugin)?;
        side.step(&format!("dlclose, for the {round} time"));
        plugin.close().map_err(Stop::Failed)?;
        // A thread that still runs in unmapped code crashes now.
        std::thread::sleep(Duration::from_millis(300));
        std::thread::scope(|scope| {
            // This thread ends at once, and runs the functions that libraries registered for the
            // end of a thread. If the code of such a function is unmapped, the call crashes now.
            scope.spawn(|| ());
        });
    }
    Ok(())
}
