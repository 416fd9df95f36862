//! Demands beyond the contract: about calls that NCCL never makes, but that a caller under
//! development may make, and about the cost of an idle connection.

use std::time::Duration;

use nccl_net_abi::{HANDLE_BYTES, HOST, NcclResult};

use super::Point;
use super::connect::exchange;
use crate::calls::Part;
use crate::link::{Link, TAG};
use crate::memory::Memory;
use crate::messages::Role;
use crate::process::computed;
use crate::side::Side;
use crate::stop::{Outcome, demand};

pub(super) const IDLE_COSTS_NOTHING: Point = Point::pair(
    "idle_costs_nothing",
    "A connection on which nothing happens burns less than 5 % of a processor; a longer \
     --timeout than the default raises this limit in proportion, up to 50 %.",
    idle,
    idle,
)
.robustness();

fn idle(side: &Side) -> Outcome {
    let net = side.net()?;
    let link = Link::open(side, &net)?;
    exchange(&Link::open(side, &net)?)?;
    std::thread::sleep(Duration::from_millis(200));
    side.step("doing nothing for 1 s, with a connection");
    let before = computed();
    std::thread::sleep(Duration::from_secs(1));
    let percent = computed().saturating_sub(before).as_secs_f64() * 100.0;
    side.note(format!("{}: {percent:.1} % of a processor", side.role.name()));
    let percent_max = (5.0 * side.arguments.slowness()).min(50.0);
    demand(percent < percent_max, || {
        format!("the plugin burnt {percent:.1} % of a processor with nothing to do")
    })?;
    exchange(&link)
}

/// Fails unless the call returned an error.
fn refused(what: &str, result: NcclResult) -> Outcome {
    demand(result != NcclResult::SUCCESS, || {
        format!("{what} returned ncclSuccess, expected an error such as ncclInvalidArgument")
    })
}

pub(super) const NULL_ARGUMENTS: Point = Point::alone(
    "null_arguments",
    "Calls with NULL for a communicator, a registration or a request return an error.",
    |side| {
        let net = side.net()?;
        let calls = net.calls;
        let memory = Memory::new(64);
        let part = Part { memory, registration: 0, tag: TAG, event: 0 };
        side.step("accept with NULL");
        refused("accept with a NULL listener", calls.accept(0).0)?;
        side.step("regMr with NULL");
        refused("regMr with a NULL communicator", calls.register(0, memory, HOST).0)?;
        side.step("deregMr with NULL");
        refused("deregMr with a NULL communicator", calls.deregister(0, 0))?;
        side.step("isend with NULL");
        refused("isend with a NULL communicator", calls.isend(0, &part).0)?;
        side.step("irecv with NULL");
        refused("irecv with a NULL communicator", calls.irecv(0, &[part], 0).0)?;
        side.step("test with NULL");
        refused("test with a NULL request", calls.test(0, None).0)?;
        // Closing NULL may succeed, as freeing NULL does.
        side.step("closeSend with NULL");
        let _either = calls.close_send(0);
        side.step("closeRecv with NULL");
        let _either = calls.close_receive(0);
        side.step("closeListen with NULL");
        let _either = calls.close_listen(0);
        Ok(())
    },
)
.robustness();

pub(super) const NO_SUCH_DEVICE: Point = Point::alone(
    "no_such_device",
    "getProperties, listen and connect return an error for a device that does not exist.",
    |side| {
        let net = side.net()?;
        let count = net.devices()?;
        for device in [-1, count, i32::MAX] {
            side.step(&format!("getProperties, listen, connect for the missing device {device}"));
            let refusal = |call: &str, is_refused: bool| {
                demand(is_refused, || {
                    format!(
                        "{call} succeeded for the missing device {device}; the number of devices \
                         is {count}"
                    )
                })
            };
            let net = net.on(device);
            refusal("getProperties", net.properties().is_err())?;
            refusal("listen", net.listen().is_err())?;
            // No listener has this handle. A plugin that checks the device only after it has
            // connected therefore returns no communicator, and passes too.
            let connected = net.dial(&[0; HANDLE_BYTES]).try_poll()?;
            refusal("connect", !matches!(connected, Ok(Some(_))))?;
        }
        Ok(())
    },
)
.robustness();

pub(super) const REQUEST_AFTER_COMPLETION: Point = Point::pair(
    "request_after_completion",
    "test returns an error for a request that it has already reported as done.",
    after_completion,
    after_completion,
)
.robustness();

fn after_completion(side: &Side) -> Outcome {
    let net = side.net()?;
    let link = Link::open(side, &net)?;
    let memory = link.memory(1000)?;
    let part = memory.part(0, 1000, TAG);
    let request = match side.role {
        Role::Receiver => link.post_receive(&[part], "the message")?,
        Role::Sender => link.post_send(&part, "the message")?,
    };
    link.finish(request, "the message")?;
    side.step("test of a request that was already reported as done");
    let (result, done) = net.calls.test(request, None);
    demand(result != NcclResult::SUCCESS, || match done {
        0 => "test returned ncclSuccess and \"not done\" for a request that was done".to_owned(),
        _ => "test reported the same request as done twice".to_owned(),
    })?;
    exchange(&link)
}

pub(super) const DOUBLE_CLOSE: Point = Point::pair(
    "double_close",
    "A second close, or any other call on a closed listener or communicator, returns an error.",
    double_close,
    double_close,
)
.robustness();

fn double_close(side: &Side) -> Outcome {
    let net = side.net()?;
    let (listener, _) = net.listen()?;
    listener.close()?;
    side.step("closeListen, for the second time");
    demand(listener.close().is_err(), || "closeListen succeeded twice".to_owned())?;
    side.step("accept, with a closed listener");
    demand(listener.accept().is_err(), || "accept succeeded with a closed listener".to_owned())?;
    let link = Link::open(side, &net)?;
    side.barrier()?;
    link.close()?;
    side.step("closing a communicator for the second time");
    demand(link.comm.close().is_err(), || "closing one communicator succeeded twice".to_owned())?;
    side.step("regMr, with a closed communicator");
    demand(link.comm.register(Memory::new(64)).is_err(), || {
        "regMr succeeded with a closed communicator".to_owned()
    })
}
