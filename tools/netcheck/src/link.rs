//! A connection in one direction, its memory, and how NCCL drives it: a request that the plugin
//! cannot take now is tried again while the requests in flight are tested.

use std::collections::VecDeque;
use std::fmt::Display;

use crate::calls::{Opaque, Part};
use crate::memory::Memory;
use crate::messages::Role;
use crate::net::{Comm, Net, Sizes};
use crate::side::Side;
use crate::stop::{Outcome, Refusal, failed};

/// Tag of messages where tags do not matter.
pub(crate) const TAG: i32 = 3;

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link<'a> {
    /// Side that has this end.
    pub(crate) side: &'a Side,
    /// Communicator that the plugin made: NCCL's `sendComm` or `recvComm`.
    pub(crate) comm: Comm,
}

/// Memory and its registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    /// Memory that is registered.
    pub(crate) memory: Memory,
    /// Registration that the plugin returned.
    pub(crate) registration: Opaque,
}

impl Registered {
    /// Returns a part of the memory, as a buffer for a transfer.
    pub(crate) fn part(&self, start: usize, bytes: usize, tag: i32) -> Part {
        let memory = self.memory.part(start..start + bytes);
        Part { memory, registration: self.registration, tag, event: 0 }
    }
}

impl<'a> Link<'a> {
    /// Opens one connection, from the sender to the receiver.
    pub(crate) fn open(side: &'a Side, net: &Net) -> Outcome<Link<'a>> {
        match side.role {
            Role::Receiver => Link::receiving(side, net),
            Role::Sender => Link::sending(side, net),
        }
    }

    /// Opens the end that listens. As NCCL does, closes the listener as soon as the connection is
    /// accepted.
    pub(crate) fn receiving(side: &'a Side, net: &Net) -> Outcome<Link<'a>> {
        side.step("listening");
        let (listener, handle) = net.listen()?;
        side.send_value(&handle)?;
        side.step("accepting");
        let comm = side.until("accept to give a communicator", || Ok(listener.accept()?))?;
        listener.close()?;
        Ok(Link { side, comm })
    }

    /// Opens the end that connects, with a handle from the peer.
    pub(crate) fn sending(side: &'a Side, net: &Net) -> Outcome<Link<'a>> {
        let handle: Vec<u8> = side.receive_value()?;
        Link::to(side, net, &handle)
    }

    /// Opens the end that connects, with that handle.
    pub(crate) fn to(side: &'a Side, net: &Net, handle: &[u8]) -> Outcome<Link<'a>> {
        side.step("connecting");
        let mut dial = net.dial(handle);
        let comm = side.until("connect to give a communicator", || dial.poll())?;
        side.step("connected");
        Ok(Link { side, comm })
    }

    /// Allocates memory and registers it.
    pub(crate) fn memory(&self, bytes: usize) -> Outcome<Registered> {
        self.registered(Memory::new(bytes))
    }

    /// Registers memory.
    pub(crate) fn registered(&self, memory: Memory) -> Outcome<Registered> {
        Ok(Registered { memory, registration: self.comm.register(memory)? })
    }

    /// Repeats `isend` of a part until the plugin takes it; returns the request.
    pub(crate) fn post_send(&self, part: &Part, what: impl Display) -> Outcome<Opaque> {
        self.side.until(format_args!("isend to take {what}"), || Ok(self.comm.isend(part)?))
    }

    /// Repeats `irecv` of a group of parts until the plugin takes it; returns the request.
    pub(crate) fn post_receive(&self, parts: &[Part], what: impl Display) -> Outcome<Opaque> {
        self.side.until(format_args!("irecv to take {what}"), || Ok(self.comm.irecv(parts)?))
    }

    /// Tests the request until it is done.
    pub(crate) fn finish(&self, request: Opaque, what: impl Display) -> Outcome<Sizes> {
        self.side.until(format_args!("test to say that {what} is done"), || {
            Ok(self.comm.net.test(request)?)
        })
    }

    /// Sends one message, and waits until it is done.
    pub(crate) fn send(&self, part: &Part, what: impl Display) -> Outcome {
        let request = self.post_send(part, &what)?;
        self.finish(request, what).map(|_| ())
    }

    /// Receives one message, waits until it is done, and returns its size in bytes.
    pub(crate) fn receive(&self, part: Part, what: impl Display) -> Outcome<usize> {
        let request = self.post_receive(&[part], &what)?;
        let sizes = self.finish(request, &what)?;
        received(&sizes, 0, what)
    }

    /// Closes the connection.
    pub(crate) fn close(self) -> Outcome {
        self.side.step("closing");
        Ok(self.comm.close()?)
    }
}

/// Returns the number of bytes that `test` reported for a part of a receive.
pub(crate) fn received(sizes: &Sizes, part: usize, what: impl Display) -> Outcome<usize> {
    usize::try_from(sizes[part]).or_else(|_| match sizes[part] {
        i32::MIN => failed(format!(
            "test said that {what} is done, but did not write the size of part {part}"
        )),
        size => failed(format!("test reported {size} bytes for part {part} of {what}")),
    })
}

/// Requests in flight, in the order in which they were posted.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    link: Link<'a>,
    /// Requests, the oldest first, each with its sizes once it is done.
    requests: VecDeque<(Opaque, Option<Sizes>)>,
}

impl<'a> Flight<'a> {
    /// Makes an empty queue of requests.
    pub(crate) fn new(link: Link<'a>) -> Flight<'a> {
        Flight { link, requests: VecDeque::new() }
    }

    /// Returns the number of requests that are in flight, or done but not removed yet.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Repeats a call until it returns a request. Tests the requests in flight meanwhile, as NCCL
    /// does.
    pub(crate) fn post(
        &mut self,
        what: impl Display,
        mut call: impl FnMut(&Comm) -> Result<Option<Opaque>, Refusal>,
    ) -> Outcome {
        let side = self.link.side;
        side.until(format_args!("isend or irecv to take {what}"), || {
            Ok(self.try_post(&mut call)?.then_some(()))
        })
    }

    /// Makes a call; returns whether it gave a request. If it did not, tests the requests in
    /// flight.
    pub(crate) fn try_post(
        &mut self,
        call: impl FnOnce(&Comm) -> Result<Option<Opaque>, Refusal>,
    ) -> Outcome<bool> {
        let request = call(&self.link.comm)?;
        if request.is_none() {
            self.test_all()?;
        }
        self.requests.extend(request.map(|request| (request, None)));
        Ok(request.is_some())
    }

    /// Returns whether all requests are done.
    pub(crate) fn is_done(&mut self) -> Outcome<bool> {
        self.test_all()?;
        Ok(self.requests.iter().all(|(_, done)| done.is_some()))
    }

    /// Removes the oldest request as soon as it is done, and returns its sizes.
    pub(crate) fn finish_oldest(&mut self, what: impl Display) -> Outcome<Sizes> {
        let side = self.link.side;
        side.until(format_args!("test to say that {what} is done"), || {
            if let Some((_, Some(sizes))) = self.requests.front() {
                let sizes = *sizes;
                self.requests.pop_front();
                return Ok(Some(sizes));
            }
            self.test_all()?;
            Ok(None)
        })
    }

    /// Tests each request that is not known to be done, the newest first: a plugin must allow tests
    /// in any order.
    fn test_all(&mut self) -> Outcome {
        for (request, done) in self.requests.iter_mut().rev().filter(|(_, done)| done.is_none()) {
            *done = self.link.comm.net.test(*request)?;
        }
        Ok(())
    }
}
