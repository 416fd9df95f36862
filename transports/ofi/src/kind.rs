//! libfabric as a value, for a registry, and its tunables.

use ccl_core::config::table_of;
use ccl_core::registry::{Reach, TransportKind};
use ccl_core::transport::TransportError;
use ccl_socket::Location;

use crate::device::Options;
use crate::provider::providers;
use crate::transport::OfiTransport;

/// Providers that are taken where none is named, the best first.
const USUAL: [&str; 4] = ["efa", "verbs;ofi_rxm", "tcp", "tcp;ofi_rxm"];

ccl_core::tunables! {
    /// Tunables of libfabric alone.
    #[derive(Clone, Debug)]
    pub(crate) struct OfiTunables {
        provider: String = String::new(), "FERROCCL_OFI_PROVIDER", Some("FI_PROVIDER"), true,
            "Provider of libfabric that ofi uses, such as efa or tcp; `ferroccl doctor --ofi` has \
             them. Empty takes efa, else verbs, else tcp.";
    }
}

/// Kind of the transport, for a registry.
pub const KIND: TransportKind = TransportKind {
    name: "ofi",
    id: 4,
    reach: Reach::Network,
    preference: 0,
    adapters: false,
    stripes: false,
    encrypts: false,
    more_flows: None,
    tunables: table_of::<OfiTunables>,
    names_devices: |_| false,
    make: |config, _| {
        let own = config.transport_settings.read::<OfiTunables>();
        let own = own.map_err(|error| TransportError::Usage(error.to_string()))?;
        let interfaces = config.socket_interfaces.clone();
        let options = Options { interfaces, always_writes: false };
        let provider = if own.provider.is_empty() { usual() } else { own.provider };
        Ok(Box::new(OfiTransport::new(&provider, options)))
    },
    fewer_locations: Location::fewer,
};

/// Returns the best provider that there is, or the one that most machines have.
fn usual() -> String {
    let all = providers().unwrap_or_default();
    let found = USUAL.iter().find(|name| all.iter().any(|provider| provider.name == **name));
    found.unwrap_or(&"tcp").to_string()
}
