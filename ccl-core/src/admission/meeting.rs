//! How links come to stand: a peer is connected to when a schedule first asks for it.
//!
//! Both ends of a link want it, because what one sends the other receives. The higher rank dials
//! and the lower one listens, so that one connection comes of it. A peer that is busy with other
//! things lets the connection wait.

use std::time::Duration;

use crate::time::Instant;
use crate::transport::{Address, Connected, Connecting, Device, Listener, Secret, TransportError};
use crate::types::Rank;

/// Where the peers of a rank are.
#[derive(Debug)]
pub struct Directory {
    /// This rank.
    pub own: Rank,
    /// By rank: where each listens. None for this rank and for those that other links join.
    pub addresses: Vec<Option<Address>>,
    /// The key that all of them know.
    pub secret: Secret,
    /// How long a connection may take to be made, from when it is wanted.
    pub within: Duration,
}

/// What has become of a peer that was wanted.
#[derive(Debug)]
pub(super) enum Met {
    /// It is connected.
    Connected(Rank, Connected),
    /// It cannot be.
    Failed(Rank, TransportError),
}

/// Connections in the making.
#[derive(Debug)]
pub(super) struct Meeting {
    listener: Box<dyn Listener>,
    directory: Directory,
    /// Not connected yet; the lower ones of them are being dialled.
    wanted: Vec<Rank>,
    dialling: Vec<(Rank, Box<dyn Connecting>)>,
}

impl Meeting {
    pub(super) fn new(listener: Box<dyn Listener>, directory: Directory) -> Meeting {
        Meeting { listener, directory, wanted: Vec::new(), dialling: Vec::new() }
    }

    /// Where a peer is, if it is one of these.
    pub(super) fn address(&self, rank: Rank) -> Option<&Address> {
        self.directory.addresses.get(rank as usize)?.as_ref()
    }

    /// Asks for a peer that is not connected.
    pub(super) fn want(&mut self, rank: Rank) {
        if self.address(rank).is_some() && !self.wanted.contains(&rank) {
            self.wanted.push(rank);
        }
    }

    /// Whether nobody is waited for.
    pub(super) fn is_idle(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Whether this side dials the peer just now: it may have taken the connection already.
    pub(super) fn is_dialling(&self, rank: Rank) -> bool {
        self.dialling.iter().any(|(peer, _)| *peer == rank)
    }

    /// Makes progress.
    pub(super) fn poll(
        &mut self,
        device: &dyn Device,
        now: Instant,
        met: &mut Vec<Met>,
    ) -> Result<(), TransportError> {
        self.dial(device, now)?;
        self.dialling.retain_mut(|(peer, connecting)| match connecting.poll(now) {
            Ok(None) => true,
            Ok(Some(connected)) => {
                met.push(Met::Connected(*peer, connected));
                false
            }
            Err(error) => {
                met.push(Met::Failed(*peer, error));
                false
            }
        });
        let own = self.directory.own;
        if self.wanted.iter().any(|peer| *peer > own) {
            while let Some(connected) = self.listener.poll(now)? {
                let hello: Option<[u8; 4]> = connected.hello.as_slice().try_into().ok();
                let caller = hello.map(Rank::from_le_bytes);
                // Who knows the secret and says something else is dropped.
                if let Some(peer) = caller.filter(|peer| *peer > own) {
                    met.push(Met::Connected(peer, connected));
                }
            }
        }
        self.wanted.retain(|rank| {
            !met.iter().any(|met| match met {
                Met::Connected(peer, _) | Met::Failed(peer, _) => peer == rank,
            })
        });
        Ok(())
    }

    fn dial(&mut self, device: &dyn Device, now: Instant) -> Result<(), TransportError> {
        let Directory { own, addresses, secret, within } = &self.directory;
        for peer in self.wanted.iter().copied().filter(|peer| peer < own) {
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
