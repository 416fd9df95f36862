//! Offers that the two sides of a link exchange before anything is written: the queue pairs of each
//! side, and how to reach them.

use ccl_core::encoding::{decode, encode};
use rdma_sys::{IBV_MTU_256, IBV_MTU_4096, ibv_mtu};
use serde::{Deserialize, Serialize};

/// Largest number of queue pairs of a link.
pub(crate) const PAIRS_MAX: usize = 256;

/// Offer of one side of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Preferred address of this side's port.
    pub(crate) gid: [u8; 16],
    /// Further addresses of the port.
    pub(crate) others: Vec<[u8; 16]>,
    /// Address of the port in its InfiniBand subnet.
    pub(crate) lid: u16,
    /// Link layer of the port: `IBV_LINK_LAYER_...`.
    pub(crate) link_layer: u8,
    /// Code of the longest packet that this side takes: `IBV_MTU_...`.
    pub(crate) mtu: ibv_mtu,
    /// Sequence number (PSN) of the first packet of every queue pair of the link, in both
    /// directions. Both sides use the value that the dialling side offers.
    pub(crate) first_psn: u32,
    /// Numbers of this side's queue pairs. The first one is connected with the peer's first one,
    /// and so on.
    pub(crate) pairs: Vec<u32>,
}

impl Offer {
    /// Returns all addresses, `gid` first.
    pub(crate) fn gids(&self) -> Vec<[u8; 16]> {
        std::iter::once(self.gid).chain(self.others.iter().copied()).collect()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Offer> {
        let offer: Offer = decode(bytes).ok()?;
        let plausible = (1..=PAIRS_MAX).contains(&offer.pairs.len())
            && (IBV_MTU_256..=IBV_MTU_4096).contains(&offer.mtu);
        plausible.then_some(offer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_offers_are_decoded_and_nonsense_is_refused() {
        let offer = Offer {
            gid: [4; 16],
            others: vec![[5; 16], [6; 16]],
            lid: 9,
            link_layer: 2,
            mtu: IBV_MTU_4096,
            first_psn: 0x12_3456,
            pairs: vec![7, 1 << 23],
        };
        let bytes = offer.encode();
        assert_eq!(Offer::decode(&bytes), Some(offer));
        for cut in 0..bytes.len() {
            assert_eq!(Offer::decode(&bytes[..cut]), None, "cut to {cut} bytes");
        }
        assert_eq!(Offer::decode(&[&bytes[..], &[0]].concat()), None, "a trailing byte");
        assert_eq!(Offer::decode(&[0; 23]), None, "an offer without queue pairs and MTU");
    }
}
