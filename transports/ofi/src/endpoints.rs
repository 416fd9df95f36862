//! Endpoints of a lane: one for data, and one for credits and CTS where the provider has a traffic
//! class of low latency. Nothing relies on an order between the two.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::native::{Domain, Endpoint, OfiError};

/// Endpoints for the same peers.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) data: Endpoint,
    /// Endpoint in the traffic class of low latency; puts of control go with the data without it.
    control: Option<Endpoint>,
}

/// Addresses of endpoints, for a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Addresses {
    data: Vec<u8>,
    control: Option<Vec<u8>>,
}

/// Fabric addresses (`fi_addr_t`) of a peer's endpoints, by which those of this side reach them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricAddresses {
    data: u64,
    /// Address of the one for control, if both sides have one.
    control: Option<u64>,
}

impl Endpoints {
    /// Opens the endpoints. Where puts are messages, all of them go by one.
    pub(crate) fn open(domain: &Arc<Domain>, writes: bool) -> Result<Endpoints, OfiError> {
        let data = Endpoint::open(domain)?;
        let control = if writes { Endpoint::open_low_latency(domain) } else { Ok(None) };
        // The device may have no room for one more.
        let control = control.unwrap_or_else(|error| {
            tracing::info!(%error, "credits and CTS go with the data, in its traffic class");
            None
        });
        Ok(Endpoints { data, control })
    }

    /// Returns all endpoints.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Endpoint> {
        std::iter::once(&self.data).chain(&self.control)
    }

    /// Returns the addresses that peers insert.
    pub(crate) fn addresses(&self) -> Result<Addresses, OfiError> {
        let control = self.control.as_ref().map(Endpoint::address).transpose()?;
        Ok(Addresses { data: self.data.address()?, control })
    }

    /// Makes a peer known by its addresses.
    pub(crate) fn insert(&self, peer: &Addresses) -> Result<FabricAddresses, OfiError> {
        let control = self.control.as_ref().zip(peer.control.as_ref());
        let control = control.map(|(own, address)| own.insert(address)).transpose()?;
        Ok(FabricAddresses { data: self.data.insert(&peer.data)?, control })
    }

    /// Returns the endpoint that a put goes by, and the peer's address there.
    pub(crate) fn route(&self, to: FabricAddresses, is_control: bool) -> (&Endpoint, u64) {
        match (&self.control, to.control) {
            (Some(control), Some(number)) if is_control => (control, number),
            _ => (&self.data, to.data),
        }
    }
}
