//! Addresses of this host that are offered to peers.

use std::net::IpAddr;

use ccl_core::transport::TransportError;
use if_addrs::{IfAddr, Interface};
use ipnet::IpNet;

/// Choice of interfaces: names in NCCL's syntax, and networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// True if the filter takes all interfaces but the listed ones.
    exclude: bool,
    /// True if `names` has whole names, not prefixes.
    exact: bool,
    names: Vec<String>,
    networks: Vec<IpNet>,
}

impl Filter {
    /// Reads names or prefixes of names, and networks such as `10.0.0.0/8`, separated by commas.
    /// After a leading `=`, only whole names match. After a leading `^`, the filter takes all
    /// interfaces but the listed ones. `^=` combines both.
    #[must_use]
    pub fn parse(text: &str) -> Filter {
        let text = text.trim();
        let (exclude, text) = strip(text, '^');
        let (exact, text) = strip(text, '=');
        let mut filter = Filter { exclude, exact, ..Filter::default() };
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match (entry.parse::<IpNet>(), entry.parse::<IpAddr>()) {
                (Ok(network), _) => filter.networks.push(network),
                (_, Ok(address)) => filter.networks.push(IpNet::from(address)),
                _ => filter.names.push(entry.to_owned()),
            }
        }
        filter
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.networks.is_empty()
    }

    /// Returns whether the filter takes an interface with this name and address. A filter takes the
    /// interfaces that it lists or, with `^`, those that it does not list. [`addresses`] ignores a
    /// filter that lists nothing.
    #[must_use]
    pub fn takes(&self, name: &str, address: IpAddr) -> bool {
        let named = self.names.iter().any(|pattern| match self.exact {
            true => name == pattern,
            false => name.starts_with(pattern),
        });
        let listed = named || self.networks.iter().any(|network| network.contains(&address));
        listed != self.exclude
    }
}

fn strip(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign).map_or((false, text), |rest| (true, rest))
}

/// Returns the addresses to offer to peers; the first is the most likely to be reachable. `text` is
/// the text of `filter`, for the error.
///
/// # Errors
///
/// When no address is left, or the interfaces cannot be listed.
pub fn addresses(filter: &Filter, text: &str) -> Result<Vec<IpAddr>, TransportError> {
    Ok(chosen(filter, text)?.iter().map(Interface::ip).collect())
}

/// Returns the names of the interfaces that a filter takes; `filter` is the text of a [`Filter`].
///
/// # Errors
///
/// As for [`addresses`].
pub fn interfaces(filter: &str) -> Result<Vec<String>, TransportError> {
    let chosen = chosen(&Filter::parse(filter), filter)?;
    let mut names = Vec::new();
    for Interface { name, .. } in chosen {
        // An interface with several addresses is listed once per address.
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

fn chosen(filter: &Filter, text: &str) -> Result<Vec<Interface>, TransportError> {
    let found = if_addrs::get_if_addrs().map_err(|error| TransportError::Os {
        call: "getifaddrs",
        code: error.raw_os_error().unwrap_or(0),
        reason: error.to_string(),
        advice: "the interfaces of this host cannot be listed",
    })?;
    let chosen = choose(&found, filter);
    if chosen.is_empty() {
        let names: Vec<String> = found.iter().map(|i| format!("{} ({})", i.name, i.ip())).collect();
        let (filter, there) = (text.to_owned(), names.join(", "));
        return Err(TransportError::NoInterface { filter, there });
    }
    Ok(chosen)
}

/// Returns the interfaces to use, the most likely to be reachable first. Loopback is left out
/// unless the filter asks for it or no other interface is usable.
fn choose(found: &[Interface], filter: &Filter) -> Vec<Interface> {
    let mut usable: Vec<&Interface> = found
        .iter()
        // An IPv6 link-local address is valid only with a scope id, which differs on each host.
        .filter(|i| !matches!(&i.addr, IfAddr::V6(v6) if v6.ip.is_unicast_link_local()))
        .filter(|i| filter.is_empty() || filter.takes(&i.name, i.ip()))
        .collect();
    let asked = !filter.is_empty() && !filter.exclude;
    if !asked && usable.iter().any(|i| !i.is_loopback()) {
        usable.retain(|i| !i.is_loopback());
    }
    usable.sort_by_key(|i| (i.is_loopback(), is_virtual(&i.name), i.ip().is_ipv6()));
    usable.into_iter().cloned().collect()
}

/// Returns whether the name is that of a bridge for containers or virtual machines. Such a bridge
/// often has the same address on every host.
fn is_virtual(name: &str) -> bool {
    ["docker", "virbr", "br-", "cni", "flannel"].iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(filter: &str, name: &str, address: &str) -> bool {
        Filter::parse(filter).takes(name, address.parse().unwrap())
    }

    #[test]
    fn a_filter_matches_by_name_by_prefix_or_by_network() {
        assert!(takes("eth,ib", "eth0", "10.0.0.1") && takes("eth,ib", "ib3", "10.0.0.1"));
        assert!(!takes("eth", "weth0", "10.0.0.1"));
        assert!(takes("=eth0", "eth0", "10.0.0.1") && !takes("=eth", "eth0", "10.0.0.1"));
        assert!(!takes("^docker,lo", "docker0", "172.17.0.1"));
        assert!(takes("^docker,lo", "eth0", "10.0.0.1"));
        assert!(takes("^=lo", "lo1", "127.0.0.1") && !takes("^=lo", "lo", "127.0.0.1"));
        assert!(takes("10.0.0.0/8", "any", "10.9.9.9") && !takes("10.0.0.0/8", "any", "11.0.0.1"));
        assert!(takes("fd00::/8", "any", "fd00::7") && takes("10.0.0.7", "any", "10.0.0.7"));
        assert!(!takes("^10.0.0.0/8", "any", "10.9.9.9"));
    }

    #[test]
    fn a_filter_that_matches_no_interface_is_an_error() {
        assert!(!addresses(&Filter::default(), "").unwrap().is_empty());
        let lo = addresses(&Filter::parse("=lo"), "=lo").unwrap();
        assert!(lo.iter().all(IpAddr::is_loopback) && !lo.is_empty());
        let error = addresses(&Filter::parse("nosuch"), "nosuch").unwrap_err().to_string();
        assert!(error.contains("nosuch") && error.contains("lo ("), "{error}");
    }
}
