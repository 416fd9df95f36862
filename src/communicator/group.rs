//! Point-to-point messages, alone or grouped. A group's messages move side by side, so that two
//! ranks which both send first do not wait for each other.

use std::marker::PhantomData;

use ccl_core::types::Rank;

use super::element::Element;
use super::{CallError, Communicator, Error};

/// One direction of a group: peers, addresses and lengths.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) peers: Vec<Rank>,
    /// Exposed addresses.
    pub(super) addresses: Vec<usize>,
    pub(super) bytes: Vec<usize>,
}

impl Side {
    pub(super) fn push(&mut self, peer: Rank, address: usize, bytes: usize) {
        self.peers.push(peer);
        self.addresses.push(address);
        self.bytes.push(bytes);
    }
}

/// Returns the lengths of the messages of `side` that a rank exchanges with itself.
fn own(side: &Side, rank: Rank) -> impl Iterator<Item = usize> {
    let pairs = side.peers.iter().zip(&side.bytes);
    pairs.filter(move |(peer, _)| **peer == rank).map(|(_, bytes)| *bytes)
}

/// Sends and receives of a group.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) sends: Side,
    pub(super) recvs: Side,
}

impl Messages {
    /// Checks that a rank receives each message to itself with the length that it sends.
    pub(super) fn check_own(&self, rank: Rank) -> Result<(), Error> {
        let mut pairs = own(&self.sends, rank).zip(own(&self.recvs, rank));
        match pairs.find(|(sent, expected)| sent != expected) {
            None => Ok(()),
            Some((sent, expected)) => Err(CallError::OwnMessage { rank, sent, expected }.into()),
        }
    }

    fn clear(&mut self) {
        for side in [&mut self.sends, &mut self.recvs] {
            side.peers.clear();
            side.addresses.clear();
            side.bytes.clear();
        }
    }
}

/// A group of sends and receives in the making. The first send from rank A to rank B matches B's
/// first receive from A, and so on; both must have the same length.
#[derive(Debug)]
#[must_use = "nothing moves until `run`"]
pub struct Group<'c, 'b> {
    /// Communicator, which holds the lists of the group's messages. So the next group reuses the
    /// memory of these lists, and a group is cheap to move.
    communicator: &'c mut Communicator,
    buffers: PhantomData<&'b mut [u8]>,
}

impl<'c, 'b> Group<'c, 'b> {
    pub(super) fn new(communicator: &'c mut Communicator) -> Self {
        // Drops the messages of the previous group: perhaps nobody ran that group.
        communicator.messages.clear();
        Group { communicator, buffers: PhantomData }
    }

    /// Adds a send to `peer`, which may be this rank if the group also has a receive from it.
    pub fn send<T: Element>(self, data: &'b [T], peer: Rank) -> Self {
        let address = data.as_ptr().expose_provenance();
        self.communicator.messages.sends.push(peer, address, size_of_val(data));
        self
    }

    /// Adds a receive from `peer`.
    pub fn recv<T: Element>(self, data: &'b mut [T], peer: Rank) -> Self {
        let address = data.as_mut_ptr().expose_provenance();
        self.communicator.messages.recvs.push(peer, address, size_of_val(data));
        self
    }

    /// Moves all messages; returns when they are done on this rank.
    ///
    /// # Errors
    ///
    /// A peer that does not exist, lengths that differ, a failed rank, a deadline that has passed.
    pub fn run(self) -> Result<(), Error> {
        self.communicator.run_messages()
    }
}
