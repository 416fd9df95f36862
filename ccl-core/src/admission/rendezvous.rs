//! Rendezvous of links: a peer is connected when a schedule first needs it.
//!
//! Both ends request a connection: one to send, the other to receive. The higher rank dials and the
//! lower rank accepts, so that a pair makes a single connection. While a peer is busy and does not
//! poll, the connection waits.

use std::time::Duration;

use crate::time::Instant;
use crate::transport::{Address, Connected, Connecting, Device, Listener, Secret, TransportError};
use crate::types::Rank;

/// Addresses of the peers of a rank.
#[derive(Debug)]
pub struct Directory {
    /// This rank.
    pub own: Rank,
    /// Address of each peer, by rank. None for this rank, and for ranks that it reaches over
    /// other links.
    pub addresses: Vec<Option<Address>>,
    /// Secret that all these ranks share.
    pub secret: Secret,
    /// Timeout of dialling a peer.
    pub within: Duration,
}

/// The outcome of a request for a connection to a peer.
#[derive(Debug)]
pub(super) enum PeerOutcome {
    /// The peer is connected.
    Connected(Rank, Connected),
    /// The peer cannot be connected.
    Failed(Rank, TransportError),
}

/// Connections in the making.
#[derive(Debug)]
pub(super) struct Rendezvous {
    listener: Box<dyn Listener>,
    directory: Directory,
    /// Requested peers that are not connected yet. This rank dials those of lower rank.
    requested: Vec<Rank>,
    dialling: Vec<(Rank, Box<dyn Connecting>)>,
}

impl Rendezvous {
    pub(super) fn new(listener: Box<dyn Listener>, directory: Directory) -> Rendezvous {
        Rendezvous { listener, directory, requested: Vec::new(), dialling: Vec::new() }
    }

    /// Returns the address of a peer, if it is in the directory.
    pub(super) fn address(&self, rank: Rank) -> Option<&Address> {
        self.directory.addresses.get(rank as usize)?.as_ref()
    }

    /// Requests a connection to a peer that is not connected.
    pub(super) fn request(&mut self, rank: Rank) {
        if self.address(rank).is_some() && !self.requested.contains(&rank) {
            self.requested.push(rank);
        }
    }

    /// Returns whether no request is open.
    pub(super) fn is_idle(&self) -> bool {
        self.requested.is_empty()
    }

    /// Returns whether this side is dialling the peer, which may have accepted already.
    pub(super) fn is_dialling(&self, rank: Rank) -> bool {
        self.dialling.iter().any(|(peer, _)| *peer == rank)
    }

    /// Dials, accepts, and reports the outcomes.
    pub(super) fn poll(
        &mut self,
        device: &dyn Device,
        now: Instant,
        outcomes: &mut Vec<PeerOutcome>,
    ) -> Result<(), TransportError> {
        self.dial(device, now)?;
        self.dialling.retain_mut(|(peer, connecting)| match connecting.poll(now) {
            Ok(None) => true,
            Ok(Some(connected)) => {
                outcomes.push(PeerOutcome::Connected(*peer, connected));
                false
            }
            Err(error) => {
                outcomes.push(PeerOutcome::Failed(*peer, error));
                false
            }
        });
        let own = self.directory.own;
        if self.requested.iter().any(|peer| *peer > own) {
            while let Some(connected) = self.listener.poll(now)? {
                let hello: Option<[u8; 4]> = connected.hello.as_slice().try_into().ok();
                let caller = hello.map(Rank::from_le_bytes);
                // A caller with the secret but a bad hello is dropped.
                let is_known = |peer: &Rank| {
                    let address = self.directory.addresses.get(*peer as usize);
                    *peer > own && address.is_some_and(Option::is_some)
                };
                if let Some(peer) = caller.filter(is_known) {
                    outcomes.push(PeerOutcome::Connected(peer, connected));
                }
            }
        }
        self.requested.retain(|rank| {
            !outcomes.iter().any(|outcome| match outcome {
                PeerOutcome::Connected(peer, _) | PeerOutcome::Failed(peer, _) => peer == rank,
            })
        });
        Ok(())
    }

    fn dial(&mut self, device: &dyn Device, now: Instant) -> Result<(), TransportError> {
        let Directory { own, addresses, secret, within } = &self.directory;
        for peer in self.requested.iter().copied().filter(|peer| peer < own) {
            if self.dialling.iter().any(|(dialled, _)| *dialled == peer) {
                continue;
            }
            let Some(Some(address)) = addresses.get(peer as usize) else { continue };
            let deadline = now + *within;
            let connecting = device.connect(address, secret, &own.to_le_bytes(), deadline)?;
            self.dialling.push((peer, connecting));
        }
        Ok(())
    }
}
