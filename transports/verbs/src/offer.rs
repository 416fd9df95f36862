//! What the two sides of a link tell each other before anything is written: which queue pairs are
//! whose, and how to get there.

use rdma_sys::{IBV_MTU_256, IBV_MTU_4096, ibv_mtu};

/// The most queue pairs of a link.
pub(crate) const PAIRS_MAX: usize = 256;
const FIXED_BYTES: usize = 16 + 2 + 1 + 1 + 4 + 2 + 1;

/// One side of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Its port's address, and others that it has.
    pub(crate) gid: [u8; 16],
    pub(crate) others: Vec<[u8; 16]>,
    /// The same in its InfiniBand subnet.
    pub(crate) lid: u16,
    /// `IBV_LINK_LAYER_...`.
    pub(crate) link_layer: u8,
    /// The longest packet that it takes.
    pub(crate) mtu: ibv_mtu,
    /// The number of the first packet of each of its queue pairs, and of those that answer them.
    pub(crate) first_packet: u32,
    /// Its queue pairs; the first of this side is joined with the first of the other.
    pub(crate) pairs: Vec<u32>,
}

impl Offer {
    /// Returns all addresses, that of the port first.
    pub(crate) fn gids(&self) -> Vec<[u8; 16]> {
        std::iter::once(self.gid).chain(self.others.iter().copied()).collect()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.gid.to_vec();
        bytes.extend_from_slice(&self.lid.to_le_bytes());
        bytes.push(self.link_layer);
        bytes.push(self.mtu as u8);
        bytes.extend_from_slice(&self.first_packet.to_le_bytes());
        bytes.extend_from_slice(&(self.pairs.len() as u16).to_le_bytes());
        bytes.push(self.others.len() as u8);
        self.others.iter().for_each(|gid| bytes.extend_from_slice(gid));
        self.pairs.iter().for_each(|pair| bytes.extend_from_slice(&pair.to_le_bytes()));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Offer> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>()?;
        let (gid, fixed) = fixed.split_first_chunk()?;
        let (lid, fixed) = fixed.split_first_chunk()?;
        let ([link_layer, mtu], fixed) = fixed.split_first_chunk()?;
        let (first_packet, fixed) = fixed.split_first_chunk()?;
        let (count, others) = fixed.split_first_chunk::<2>()?;
        let (others, rest) = rest.split_at_checked(16 * usize::from(*others.first()?))?;
        let others = others.as_chunks().0.to_vec();
        let pairs: Vec<u32> =
            rest.as_chunks().0.iter().map(|number| u32::from_le_bytes(*number)).collect();
        let plausible = pairs.len() == usize::from(u16::from_le_bytes(*count))
            && rest.len() == 4 * pairs.len()
            && (1..=PAIRS_MAX).contains(&pairs.len())
            && (IBV_MTU_256..=IBV_MTU_4096).contains(&u32::from(*mtu));
        plausible.then(|| Offer {
            gid: *gid,
            others,
            lid: u16::from_le_bytes(*lid),
            link_layer: *link_layer,
            mtu: u32::from(*mtu),
            first_packet: u32::from_le_bytes(*first_packet),
            pairs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_their_journey_and_nonsense_does_not() {
        let offer = Offer {
            gid: [4; 16],
            others: vec![[5; 16], [6; 16]],
            lid: 9,
            link_layer: 2,
            mtu: IBV_MTU_4096,
            first_packet: 0x12_3456,
            pairs: vec![7, 1 << 23],
        };
        let bytes = offer.encode();
        assert_eq!(Offer::decode(&bytes), Some(offer));
        for cut in 0..bytes.len() {
            assert_eq!(Offer::decode(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(Offer::decode(&[&bytes[..], &[0]].concat()), None, "too long");
        assert_eq!(Offer::decode(&[0; FIXED_BYTES]), None, "no pairs, no packets");
    }
}
