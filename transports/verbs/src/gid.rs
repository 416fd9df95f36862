//! Choice of one of a port's addresses by a rule, with the reason for the choice.
//!
//! The GID table of a RoCE port has a row for each combination of an IP address of the port's
//! interface and a version of RoCE, and some rows may be empty. Only version 2 can cross routers.
//! Among the version 2 addresses of the requested family and networks, one that is not link-local
//! (a routed address) is better than a link-local one, IPv4 is better than IPv6, and among equals
//! the lowest row wins.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rdma_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND,
};
use thiserror::Error;

use crate::native::GidRow;

/// Rule for the choice of an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Row of the GID table to take, whatever address it holds.
    pub index: Option<u32>,
    /// Family that the address must have; none for any.
    pub family: Option<Family>,
    /// Networks, one of which must contain the address; empty for any.
    pub networks: Vec<IpNet>,
}

/// A family of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Address that was chosen, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) row: GidRow,
    pub(crate) why: String,
}

/// Reason why no address of a port is used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GidError {
    /// The row that is asked for has no address.
    #[error(
        "row {index} of the GID table has no address; rows with an address: {there} \
         (FERROCCL_IB_GID_INDEX)"
    )]
    EmptyRow {
        /// Row that is asked for.
        index: u32,
        /// Rows that have an address.
        there: String,
    },
    /// A port of InfiniBand without an address.
    #[error("the port has no address; is its subnet managed?")]
    Unmanaged,
    /// A port of Ethernet without an address.
    #[error("the port has no address: bring its interface up, and give it an IP address")]
    NoAddress,
    /// No address that fits the rule.
    #[error(
        "none of the port's addresses is of RoCE v2 and of the requested family and networks \
         (FERROCCL_IB_ADDR_FAMILY, FERROCCL_IB_ADDR_RANGE); the port has {there}"
    )]
    NoneFits {
        /// Addresses of the port, with their rows and versions.
        there: String,
    },
}

/// Address that the transport would choose, for tools that only describe the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Row of the GID table.
    pub index: u32,
    /// IP address that the row stands for.
    pub ip: IpAddr,
    /// True if the address is of RoCE version 2, which can be routed.
    pub is_v2: bool,
    /// True if the address is link-local: valid only on its own network segment.
    pub is_link_local: bool,
    /// Reason why the address would be taken.
    pub why: String,
}

/// Returns the IP address that a RoCE address stands for.
pub(crate) fn ip(gid: [u8; 16]) -> IpAddr {
    let ip = Ipv6Addr::from(gid);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), |ip: Ipv4Addr| IpAddr::V4(ip))
}

/// Returns whether an address is valid only on its own network segment.
pub(crate) fn is_link_local(gid: [u8; 16]) -> bool {
    merit(ip(gid)) == Merit::LinkLocal
}

/// Largest number of addresses that a side offers besides its first choice.
const OTHERS_MAX: usize = 7;

/// Returns the indices of the two addresses that a link uses: one of the side that dialled, and one
/// of the other side. Both sides pass the same arguments, and so agree. The pair with the greatest
/// [`merit_of`] wins, and among equal pairs the first.
pub(crate) fn meet(dialler: &[[u8; 16]], other: &[[u8; 16]]) -> (usize, usize) {
    let mut best = None;
    for (at, one) in dialler.iter().enumerate() {
        for (to, another) in other.iter().enumerate() {
            let merit = merit_of(*one, *another);
            if best.is_none_or(|(known, _)| merit > known) {
                best = Some((merit, (at, to)));
            }
        }
    }
    best.map_or((0, 0), |(_, found)| found)
}

/// Returns the sort key of a pair of addresses; the best pair has the greatest key. First, two
/// addresses of one IP family are better than two of different families. Next comes the number of
/// common leading bits (0 unless both addresses are routed and in one subnet), and last the merit
/// of the worse address. A port does not report the length of its subnet's prefix: 24 bits are
/// assumed for IPv4, and 64 for IPv6.
fn merit_of(one: [u8; 16], other: [u8; 16]) -> (bool, u32, Merit) {
    let (first, second) = (ip(one), ip(other));
    let merit = merit(first).min(merit(second));
    let shared = (u128::from_be_bytes(one) ^ u128::from_be_bytes(other)).leading_zeros();
    let subnet = if first.is_ipv4() { 96 + 24 } else { 64 };
    let near = merit > Merit::LinkLocal && shared >= subnet;
    (first.is_ipv4() == second.is_ipv4(), if near { shared } else { 0 }, merit)
}

/// Merit of an address; the best is last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Merit {
    /// Address that is valid only on its own network segment.
    LinkLocal,
    /// Routed address of IPv6.
    V6,
    /// Routed address of IPv4.
    V4,
}

fn merit(ip: IpAddr) -> Merit {
    match ip {
        IpAddr::V4(ip) if ip.is_link_local() => Merit::LinkLocal,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Merit::LinkLocal,
        IpAddr::V4(_) => Merit::V4,
        IpAddr::V6(_) => Merit::V6,
    }
}

impl Rule {
    /// Returns the address that would be chosen for a port, without opening its device. Each of
    /// `rows` holds the number of a row, and the texts of `gids/N` and `gid_attrs/types/N` in
    /// sysfs.
    ///
    /// # Errors
    ///
    /// When no address fits.
    pub fn pick(&self, rows: &[(u32, String, String)], ethernet: bool) -> Result<Picked, GidError> {
        let row = |(index, gid, kind): &(u32, String, String)| {
            let gid = gid.parse::<Ipv6Addr>().ok().filter(|gid| !gid.is_unspecified())?.octets();
            // The kernel uses the same name for InfiniBand and for RoCE version 1.
            let kind = if kind == "RoCE v2" { IBV_GID_TYPE_ROCE_V2 } else { IBV_GID_TYPE_IB };
            Some(GidRow { index: *index, gid, kind })
        };
        let rows: Vec<GidRow> = rows.iter().filter_map(row).collect();
        let layer = if ethernet { IBV_LINK_LAYER_ETHERNET } else { IBV_LINK_LAYER_INFINIBAND };
        let Choice { row, why } = self.choose(&rows, layer)?;
        let ip = ip(row.gid);
        Ok(Picked {
            index: row.index,
            ip,
            is_v2: row.kind == IBV_GID_TYPE_ROCE_V2,
            is_link_local: merit(ip) == Merit::LinkLocal,
            why,
        })
    }

    /// Returns the address to use for a port.
    pub(crate) fn choose(&self, rows: &[GidRow], link_layer: u8) -> Result<Choice, GidError> {
        if let Some(index) = self.index {
            let row = rows.iter().find(|row| row.index == index);
            let row = row.ok_or_else(|| {
                let there = rows.iter().map(|row| row.index.to_string()).collect::<Vec<_>>();
                GidError::EmptyRow { index, there: there.join(", ") }
            })?;
            return Ok(Choice { row: *row, why: format!("row {index}, as asked for") });
        }
        if link_layer != IBV_LINK_LAYER_ETHERNET {
            let row = rows.first().ok_or(GidError::Unmanaged)?;
            return Ok(Choice { row: *row, why: "the port's own".to_owned() });
        }
        let row = *self.fitting(rows).first().ok_or_else(|| nothing(rows))?;
        let ip = ip(row.gid);
        let reach = match merit(ip) {
            Merit::LinkLocal => "which is link-local; better give the interface an IP address",
            Merit::V6 | Merit::V4 => "which is routed",
        };
        Ok(Choice { row: *row, why: format!("RoCE v2 over {ip}, {reach}") })
    }

    /// Returns the other addresses that fit the rule, the best first. One of them may be nearer to
    /// the peer than the chosen one.
    pub(crate) fn others(&self, rows: &[GidRow], link_layer: u8, chosen: GidRow) -> Vec<GidRow> {
        if self.index.is_some() || link_layer != IBV_LINK_LAYER_ETHERNET {
            return Vec::new();
        }
        let others = self.fitting(rows).into_iter().filter(|row| **row != chosen);
        others.copied().take(OTHERS_MAX).collect()
    }

    /// Returns the addresses of RoCE v2 that fit the rule, the best first. Among equals the lowest
    /// row comes first, which usually holds the interface's oldest address.
    fn fitting<'r>(&self, rows: &'r [GidRow]) -> Vec<&'r GidRow> {
        let fits = |row: &&GidRow| row.kind == IBV_GID_TYPE_ROCE_V2 && self.takes(ip(row.gid));
        let mut rows: Vec<&GidRow> = rows.iter().filter(fits).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(merit(ip(row.gid))));
        rows
    }

    fn takes(&self, ip: IpAddr) -> bool {
        let family = match self.family {
            Some(Family::V4) => ip.is_ipv4(),
            Some(Family::V6) => ip.is_ipv6(),
            None => true,
        };
        let network = self.networks.is_empty() || self.networks.iter().any(|net| net.contains(&ip));
        family && network
    }
}

fn nothing(rows: &[GidRow]) -> GidError {
    let shown = |row: &GidRow| {
        let version = if row.kind == IBV_GID_TYPE_ROCE_V2 { 2 } else { 1 };
        format!("{}: {} (v{version})", row.index, ip(row.gid))
    };
    match rows.iter().map(shown).collect::<Vec<_>>() {
        there if there.is_empty() => GidError::NoAddress,
        there => GidError::NoneFits { there: there.join(", ") },
    }
}

#[cfg(test)]
mod tests {
    use rdma_sys::{IBV_GID_TYPE_ROCE_V1, IBV_LINK_LAYER_INFINIBAND};

    use super::*;

    fn row(index: u32, ip: &str, kind: u32) -> GidRow {
        let gid = match ip.parse::<IpAddr>().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        GidRow { index, gid, kind }
    }

    /// Returns the table of an mlx5 port, with gaps.
    fn table() -> Vec<GidRow> {
        let (one, two) = (IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2);
        vec![
            row(0, "fe80::1", one),
            row(1, "fe80::1", two),
            row(4, "10.0.0.1", one),
            row(5, "10.0.0.1", two),
            row(7, "fd00::1", two),
            row(9, "192.168.7.1", two),
        ]
    }

    fn chosen(rule: &Rule) -> u32 {
        rule.choose(&table(), IBV_LINK_LAYER_ETHERNET).unwrap().row.index
    }

    #[test]
    fn a_routed_v2_address_is_chosen_unless_the_rule_requests_another() {
        assert_eq!(chosen(&Rule::default()), 5);
        assert_eq!(chosen(&Rule { family: Some(Family::V6), ..Rule::default() }), 7);
        let networks = vec!["192.168.0.0/16".parse().unwrap()];
        assert_eq!(chosen(&Rule { networks, ..Rule::default() }), 9);
        assert_eq!(chosen(&Rule { index: Some(4), ..Rule::default() }), 4);
    }

    #[test]
    fn the_subnet_of_the_peer_decides_between_addresses() {
        let gids = |ips: &[&str]| Vec::from_iter(ips.iter().map(|ip| row(0, ip, 0).gid));
        let met = |one: &[&str], other: &[&str]| {
            let (at, to) = meet(&gids(one), &gids(other));
            (one[at].to_owned(), other[to].to_owned())
        };
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        let own = ["10.0.0.1", "192.168.7.1", "fd00:7::1", "fe80::1"];
        assert_eq!(met(&own, &["192.168.7.2"]), pair("192.168.7.1", "192.168.7.2"));
        assert_eq!(met(&own, &["172.16.0.2", "fd00:7::2"]), pair("fd00:7::1", "fd00:7::2"));
        // Without a common subnet, the first routed pair is taken.
        assert_eq!(met(&own, &["172.16.0.2", "10.0.9.2"]), pair("10.0.0.1", "172.16.0.2"));
        assert_eq!(met(&own, &["fe80::2"]), pair("fd00:7::1", "fe80::2"));
        assert_eq!(met(&["fe80::1"], &["10.0.0.1", "fe80::2"]), pair("fe80::1", "fe80::2"));
        let others = Rule::default().others(&table(), IBV_LINK_LAYER_ETHERNET, table()[3]);
        assert_eq!(Vec::from_iter(others.iter().map(|row| row.index)), [9, 7, 1]);
        let asked = Rule { index: Some(5), ..Rule::default() };
        assert_eq!(asked.others(&table(), IBV_LINK_LAYER_ETHERNET, table()[3]), []);
    }

    #[test]
    fn an_address_is_picked_from_the_texts_of_sysfs() {
        let row = |index, gid: &str, kind: &str| (index, gid.to_owned(), kind.to_owned());
        let rows = [
            row(0, "fe80:0000:0000:0000:0000:00ff:fe00:0001", "IB/RoCE v1"),
            row(1, "fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"),
            row(2, "0000:0000:0000:0000:0000:0000:0000:0000", ""),
            row(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
            row(4, "nonsense", "RoCE v2"),
        ];
        let picked = Rule::default().pick(&rows, true).unwrap();
        assert_eq!((picked.index, picked.ip.to_string().as_str()), (3, "10.0.0.1"));
        assert!(picked.is_v2 && !picked.is_link_local);
        let local = Rule::default().pick(&rows[..3], true).unwrap();
        assert!(local.index == 1 && local.is_link_local);
        assert!(Rule::default().pick(&rows[..1], true).is_err());
        assert_eq!(Rule::default().pick(&rows[..1], false).unwrap().index, 0);
    }

    #[test]
    fn a_choice_comes_with_its_reason() {
        let choice = Rule::default().choose(&table(), IBV_LINK_LAYER_ETHERNET).unwrap();
        assert_eq!(choice.why, "RoCE v2 over 10.0.0.1, which is routed");
        let local = Rule::default().choose(&table()[..2], IBV_LINK_LAYER_ETHERNET).unwrap();
        assert!(
            local.row.index == 1 && local.why.contains("give the interface an IP"),
            "{local:?}"
        );
        let own = Rule::default().choose(&table()[..1], IBV_LINK_LAYER_INFINIBAND).unwrap();
        assert_eq!((own.row.index, own.why.as_str()), (0, "the port's own"));
    }

    #[test]
    fn an_error_lists_the_rows_or_addresses_that_exist() {
        let none = Rule { index: Some(2), ..Rule::default() };
        let error = none.choose(&table(), IBV_LINK_LAYER_ETHERNET).unwrap_err().to_string();
        assert!(error.contains("0, 1, 4, 5, 7, 9"), "{error}");
        let error =
            Rule::default().choose(&table()[..1], IBV_LINK_LAYER_ETHERNET).unwrap_err().to_string();
        assert!(error.contains("0: fe80::1 (v1)"), "{error}");
        let error = Rule::default().choose(&[], IBV_LINK_LAYER_ETHERNET).unwrap_err().to_string();
        assert!(error.contains("bring its interface up"), "{error}");
    }
}
