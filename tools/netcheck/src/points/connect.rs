//! Listening, connecting, accepting.

use std::time::Duration;

use super::{HANDLE, LOADS, Point};
use crate::link::{Link, TAG};
use crate::memory::GUARD;
use crate::messages::Role;
use crate::net::{Handle, Net};
use crate::side::Side;
use crate::stop::{Outcome, Stop, demand, failed, skipped};
use crate::stream::Stream;

/// Longest time for which a point calls accept or connect again and again, if the calls need not
/// succeed. The point with a closed listener takes twice as long.
const A_WHILE: Duration = Duration::from_millis(300);

pub(super) const HANDLE_IS_128_BYTES: Point = Point::pair(
    HANDLE,
    "listen and connect write nothing past the 128 bytes of a handle.",
    |side| {
        let net = side.net()?;
        let (listener, handle) = net.listen()?;
        side.send_value(&handle)?;
        side.step("accept");
        side.poll_for(A_WHILE, || Ok(listener.accept()?.is_some()))?;
        side.barrier()
    },
    // `Net` and `Dial` check the bytes after the handle: using the handle is enough.
    |side| {
        let net = side.net()?;
        let mut dial = net.dial(&side.receive_value::<Handle>()?);
        side.step("connect");
        side.poll_for(A_WHILE, || Ok(dial.poll()?.is_some()))?;
        side.barrier()
    },
)
.depending_on(Some(LOADS));

pub(super) const CONNECTS: Point = Point::pair(
    super::CONNECTS,
    "connect and accept, called repeatedly, return a communicator on each side.",
    connects,
    connects,
)
.depending_on(Some(HANDLE));

fn connects(side: &Side) -> Outcome {
    let net = side.net()?;
    let _stays_open = Link::open(side, &net)?;
    side.barrier()
}

pub(super) const ONE_MESSAGE: Point = Point::pair(
    super::ONE_MESSAGE,
    "The first message of a connection arrives whole, and both sides close.",
    one_message,
    one_message,
)
.depending_on(Some(super::CONNECTS));

fn one_message(side: &Side) -> Outcome {
    let net = side.net()?;
    exchange(&Link::open(side, &net)?)
}

/// Sends or receives one message, and closes the connection.
pub(super) fn exchange(link: &Link) -> Outcome {
    let stream = Stream::of(1, 1000);
    match link.side.role {
        Role::Receiver => stream.receive(link)?,
        Role::Sender => stream.send(link)?,
    }
    link.side.barrier()?;
    link.close()
}

pub(super) const NEVER_BLOCK: Point = Point::pair(
    "listen_connect_accept_never_block",
    "listen, connect and accept return at once, no matter what the peer does.",
    |side| {
        let net = side.net()?;
        side.step("listen");
        let (listener, handle) = side.promptly("listen", || net.listen())?;
        side.step("accept, before anybody connects");
        side.poll_for(A_WHILE, || match side.promptly("accept", || Ok(listener.accept()?))? {
            Some(_) => failed("accept gave a communicator before anybody connected"),
            None => Ok(false),
        })?;
        side.send_value(&handle)?;
        // The peer connects now; this side does not accept.
        side.barrier()?;
        side.step("accept, while the peer connects");
        let comm = side.until("accept to give a communicator", || {
            side.promptly("accept", || Ok(listener.accept()?))
        })?;
        listener.close()?;
        exchange(&Link { side, comm })
    },
    |side| {
        let net = side.net()?;
        let handle: Handle = side.receive_value()?;
        side.step("connect, before anybody accepts");
        let mut dial = net.dial(&handle);
        let mut comm = None;
        side.poll_for(A_WHILE, || {
            if comm.is_none() {
                comm = side.promptly("connect", || dial.poll())?;
            }
            Ok(false)
        })?;
        side.barrier()?;
        side.step("connect, while the peer accepts");
        let comm = side.until("connect to give a communicator", || match comm {
            Some(comm) => Ok(Some(comm)),
            None => side.promptly("connect", || dial.poll()),
        })?;
        exchange(&Link { side, comm })
    },
);

pub(super) const GIVES_UP: Point = Point::pair(
    "connect_gives_up",
    "connect neither blocks nor makes a communicator when the listener is closed.",
    |side| {
        let net = side.net()?;
        let (listener, handle) = net.listen()?;
        listener.close()?;
        side.send_value(&handle)?;
        side.barrier()
    },
    |side| {
        let net = side.net()?;
        let handle: Handle = side.receive_value()?;
        side.step("connect to a listener that is closed");
        let mut dial = net.dial(&handle);
        let mut ended = "every call of connect returned ncclSuccess without a communicator";
        side.poll_for(2 * A_WHILE, || match side.promptly("connect", || dial.try_poll())? {
            Ok(None) => Ok(false),
            Ok(Some(_)) => failed("connect gave a communicator, but the listener is closed"),
            Err(_) => {
                ended = "connect returned an error";
                Ok(true)
            }
        })?;
        side.note(ended.to_owned());
        side.barrier()
    },
)
.depending_on(Some(HANDLE));

/// Number of connections from one listener.
const CONNECTIONS: usize = 10;

pub(super) const SEVERAL_FROM_ONE_LISTENER: Point = Point::pair(
    "several_connections_from_one_listener",
    "One listener accepts ten connections, which stay usable after the listener is closed.",
    |side| {
        let net = side.net()?;
        let (listener, handle) = net.listen()?;
        side.send_value(&handle)?;
        let mut links = Vec::new();
        for index in 0..CONNECTIONS {
            side.step(&format!("accepting connection {index}"));
            let comm = side.until("accept to give a communicator", || Ok(listener.accept()?))?;
            links.push(Link { side, comm });
            side.barrier()?;
        }
        listener.close()?;
        for (index, link) in links.iter().enumerate() {
            side.step(&format!("receiving over connection {index}"));
            Stream { seed: 100 * index as u64, ..Stream::of(3, 5000) }.receive(link)?;
        }
        side.barrier()?;
        links.into_iter().try_for_each(Link::close)
    },
    |side| {
        let net = side.net()?;
        let handle: Handle = side.receive_value()?;
        let mut links = Vec::new();
        for index in 0..CONNECTIONS {
            side.step(&format!("making connection {index}"));
            links.push(Link::to(side, &net, &handle)?);
            side.barrier()?;
        }
        for (index, link) in links.iter().enumerate() {
            side.step(&format!("sending over connection {index}"));
            Stream { seed: 100 * index as u64, ..Stream::of(3, 5000) }.send(link)?;
        }
        side.barrier()?;
        links.into_iter().try_for_each(Link::close)
    },
);

/// Number of listeners at once.
const LISTENERS: usize = 8;

pub(super) const LISTENERS_HAVE_OWN_HANDLES: Point = Point::pair(
    "listeners_have_own_handles",
    "Each listener has its own handle, and connect reaches the listener whose handle it gets.",
    |side| {
        let net = side.net()?;
        let mut listeners = Vec::new();
        for index in 0..LISTENERS {
            let (listener, handle) = net.listen()?;
            let same = listeners.iter().position(|(_, other)| *other == handle);
            if let Some(other) = same {
                return failed(format!("listeners {other} and {index} have the same handle"));
            }
            listeners.push((listener, handle));
        }
        side.send_value(&listeners.iter().map(|(_, handle)| handle).collect::<Vec<_>>())?;
        for (index, (listener, _)) in listeners.into_iter().enumerate().rev() {
            side.step(&format!("accepting from listener {index}"));
            let comm = side.until("accept to give a communicator", || Ok(listener.accept()?))?;
            listener.close()?;
            let link = Link { side, comm };
            Stream { seed: index as u64, ..Stream::of(1, 64) }.receive(&link)?;
            side.barrier()?;
            link.close()?;
        }
        Ok(())
    },
    |side| {
        let net = side.net()?;
        let handles: Vec<Handle> = side.receive_value()?;
        for (index, handle) in handles.iter().enumerate().rev() {
            let link = Link::to(side, &net, handle)?;
            Stream { seed: index as u64, ..Stream::of(1, 64) }.send(&link)?;
            side.barrier()?;
            link.close()?;
        }
        Ok(())
    },
);

pub(super) const BOTH_WAYS_AT_ONCE: Point = Point::pair(
    "both_ways_at_once",
    "Two peers that each connect and accept in turns, on one thread, get both connections.",
    both_ways,
    both_ways,
);

fn both_ways(side: &Side) -> Outcome {
    let net = side.net()?;
    let (listener, handle) = net.listen()?;
    side.send_value(&handle)?;
    let mut dial = net.dial(&side.receive_value::<Handle>()?);
    let (mut out, mut into) = (None, None);
    side.step("connecting and accepting in turns");
    side.until("both connections", || {
        if out.is_none() {
            out = dial.poll()?;
        }
        if into.is_none() {
            into = listener.accept()?;
        }
        Ok(out.zip(into).map(|_| ()))
    })?;
    let (Some(out), Some(into)) = (out, into) else { return failed("a communicator is gone") };
    listener.close()?;
    let (out, into) = (Link { side, comm: out }, Link { side, comm: into });
    side.step("a message each way");
    let (sends, receives) = (out.memory(4096)?, into.memory(4096 + GUARD)?);
    sends.memory.fill(7);
    let received = into.post_receive(&[receives.part(0, 4096, TAG)], "the message")?;
    let sent = out.post_send(&sends.part(0, 4096, TAG), "the message")?;
    let (mut is_received, mut is_sent) = (false, false);
    side.until("test to say that both requests are done", || {
        is_received = is_received || net.test(received)?.is_some();
        is_sent = is_sent || net.test(sent)?.is_some();
        Ok((is_received && is_sent).then_some(()))
    })?;
    receives.memory.verify(7, 4096, 4096)?;
    side.barrier()?;
    out.close()?;
    into.close()
}

pub(super) const CROSS_DEVICE: Point = Point::pair(
    "cross_device",
    "Any device connects to any other; tested with the devices of the peer in reverse order.",
    cross_device,
    cross_device,
);

fn cross_device(side: &Side) -> Outcome {
    let net = side.net()?;
    let count = net.devices()?;
    if count < 2 {
        return skipped("there is only one device");
    }
    for device in 0..count {
        let device = match side.role {
            Role::Receiver => device,
            Role::Sender => count - 1 - device,
        };
        let net: Net = net.on(device);
        let link = Link::open(side, &net)?;
        exchange(&link).map_err(|stop| match stop {
            Stop::Failed(why) => Stop::Failed(format!("device {device}: {why}")),
            stop => stop,
        })?;
    }
    demand(net.devices()? == count, || "the number of devices has changed".to_owned())
}
