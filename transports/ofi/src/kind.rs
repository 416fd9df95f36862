//! The transport kind for a registry, and its tunables.

use std::ffi::OsStr;

use ccl_core::config::{Config, table_of};
use ccl_core::registry::{Reach, TransportKind};
use ccl_core::transport::TransportError;
use ccl_socket::Location;

use crate::device::Options;
use crate::native::{EFA, functions};
use crate::provider::{EAGER_LIMIT, best, providers};
use crate::transport::OfiTransport;

/// Default providers if none is named, the best first.
const USUAL: [&str; 3] = [EFA, "tcp", "tcp;ofi_rxm"];

ccl_core::tunables! {
    /// Tunables that no other transport has.
    #[derive(Clone, Debug)]
    pub(crate) struct OfiTunables {
        provider: String = String::new(), "FERROCCL_OFI_PROVIDER", Some("FI_PROVIDER"), true,
            "Provider of libfabric that ofi uses, such as efa or tcp; `ferroccl doctor --ofi` \
             lists the providers. If the setting is empty, ofi takes efa, else tcp.";
        eager_limit: String = String::new(), "FI_OFI_RXM_EAGER_LIMIT", None, false,
            "Largest message, in bytes, that libfabric's tcp;ofi_rxm sends without first asking \
             the receiver. ferroccl sends no message beyond this limit. Only libfabric before 1.18 \
             reads the variable; there, two ranks with different values cannot connect. If the \
             variable is not set, ferroccl sets it to 524288 for the ranks that it starts.";
    }
}

/// Variable that lets a rank fork on systems where EFA's provider would otherwise end the rank.
const FORK_SAFE: (&str, &str) = ("FI_EFA_FORK_SAFE", "1");

/// Software providers. A setting whose first provider is one of these does not count as naming
/// devices ([`TransportKind::names_devices`]), because `FI_PROVIDER` may be set for another
/// program, such as MPI.
const SOFTWARE: [&str; 6] = ["tcp", "net", "udp", "sockets", "shm", "sm2"];

/// Returns the providers that a setting names, in its order. `FI_PROVIDER` may be a list, or a list
/// of exclusions (`^`), which names none.
fn alternatives(named: &str) -> Vec<&str> {
    if named.starts_with('^') {
        return Vec::new();
    }
    named.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
}

/// Returns whether the first provider that a setting names drives adapters.
fn is_hardware(named: &str) -> bool {
    let first = alternatives(named).first().copied().unwrap_or_default();
    let lowest = first.split(';').next().unwrap_or_default();
    !lowest.is_empty() && !SOFTWARE.contains(&lowest)
}

/// Kind of the transport, for a registry.
pub const KIND: TransportKind = TransportKind {
    name: "ofi",
    id: 4,
    reach: Reach::Network,
    preference: 2,
    adapters: true,
    stripes: false,
    encrypts: false,
    more_flows: None,
    rank_environment: &[EAGER_LIMIT, FORK_SAFE],
    tunables: table_of::<OfiTunables>,
    names_devices: |config| own(config).is_ok_and(|own| is_hardware(&own.provider)),
    make: |config, setup| {
        let OfiTunables { provider: named, eager_limit } = own(config)?;
        let provider = match alternatives(&named).as_slice() {
            [] => usual(config)?,
            [only] => (*only).to_owned(),
            several @ [first, ..] => {
                let all = providers().unwrap_or_default();
                let is_there = |name: &&&str| all.iter().any(|provider| provider.name == **name);
                (*several.iter().find(is_there).unwrap_or(first)).to_owned()
            }
        };
        let options = Options {
            interfaces: config.socket_interfaces.clone(),
            acknowledged: setup.acknowledged,
            woken: !setup.has_core,
            link_within: setup.link_within,
            silent_within: setup.silent_within,
            join_within: config.timeout.max(setup.silent_within),
            eager_limit,
            ..Options::default()
        };
        Ok(Box::new(OfiTransport::new(&provider, options)))
    },
    fewer_locations: Location::fewer,
};

fn own(config: &Config) -> Result<OfiTunables, TransportError> {
    Ok(config.transport_settings.read()?)
}

/// Returns the best provider found (`tcp` if none is found), if the configuration names this
/// transport. Otherwise returns `efa` on a host with an EFA adapter, and an error on other hosts:
/// loading libfabric just to search for providers would be slow, and some providers set signal
/// handlers.
fn usual(config: &Config) -> Result<String, TransportError> {
    let is_named = config.transport.split('+').any(|name| name == KIND.name);
    let has_efa = has_efa();
    let offers = |name: &str| {
        // Without libfabric, opening the provider fails with the reason.
        let Ok(library) = functions() else { return false };
        let offer = best(library, name).inspect_err(|error| {
            tracing::warn!(%error, "libfabric's provider {name} is not used");
        });
        offer.is_ok_and(|offer| offer.is_some())
    };
    let Some(found) = choose(is_named, has_efa, offers) else {
        let reason =
            "this host has no EFA adapter; FERROCCL_TRANSPORT=ofi uses other providers".to_owned();
        return Err(TransportError::Unusable { what: "EFA".to_owned(), reason });
    };
    if has_efa && found != EFA && functions().is_ok() {
        tracing::warn!(
            "this host has an EFA adapter, but libfabric does not offer it (no provider efa, no \
             access to the adapter, or an exclusion in FI_PROVIDER): ofi uses {found}"
        );
    }
    Ok(found.to_owned())
}

/// Returns the provider to use: the first of [`USUAL`] that libfabric offers, or `tcp`, if the
/// transport is named; else `efa` on a host with an EFA adapter.
fn choose(is_named: bool, has_efa: bool, offers: impl Fn(&str) -> bool) -> Option<&'static str> {
    match is_named {
        true => Some(USUAL.into_iter().find(|name| offers(name)).unwrap_or("tcp")),
        false => has_efa.then_some(EFA),
    }
}

/// Returns whether the kernel has an adapter for EFA.
fn has_efa() -> bool {
    let adapters = std::fs::read_dir("/sys/bus/pci/drivers/efa");
    let is_adapter = |name: &OsStr| name.as_encoded_bytes().contains(&b':');
    adapters.is_ok_and(|entries| entries.flatten().any(|entry| is_adapter(&entry.file_name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_names_one_provider_or_several_or_none() {
        assert_eq!(alternatives("tcp;ofi_rxm"), ["tcp;ofi_rxm"]);
        assert_eq!(alternatives("efa, tcp"), ["efa", "tcp"]);
        assert!(alternatives("^shm,udp").is_empty() && alternatives("").is_empty());
    }

    #[test]
    fn the_first_usual_provider_that_libfabric_offers_is_taken() {
        for has_efa in [false, true] {
            assert_eq!(choose(true, has_efa, |_| true), Some("efa"));
            assert_eq!(choose(true, has_efa, |name| name != "efa"), Some("tcp"));
            assert_eq!(choose(true, has_efa, |name| name == "tcp;ofi_rxm"), Some("tcp;ofi_rxm"));
            assert_eq!(choose(true, has_efa, |_| false), Some("tcp"));
        }
        assert_eq!(choose(false, true, |_| panic!("libfabric is asked")), Some("efa"));
        assert_eq!(choose(false, false, |_| panic!("libfabric is asked")), None);
    }

    #[test]
    fn hardware_providers_are_distinguished_from_software() {
        for (named, expected) in [
            ("efa", true),
            ("verbs;ofi_rxm", true),
            ("efa,tcp", true),
            ("tcp", false),
            ("tcp;ofi_rxm", false),
            ("^efa", false),
            ("", false),
        ] {
            assert_eq!(is_hardware(named), expected, "{named}");
        }
    }
}
