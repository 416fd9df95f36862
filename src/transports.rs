//! The registry of transports. A new transport needs a crate with a [`TransportKind`], and a line
//! in this file. No other module chooses a transport by name. A program can [`add`] its own
//! transports.

use std::sync::{Mutex, PoisonError};

use ccl_core::config::{Config, Table};
use ccl_core::registry::{Reach, TransportKind};

/// The transports of the library.
static OWN: [&TransportKind; 4] = [
    &ccl_transport_shm::KIND,
    &ccl_transport_tcp::KIND,
    &ccl_transport_verbs::KIND,
    &ccl_transport_ofi::KIND,
];

/// The transports that programs have added.
static ADDED: Mutex<Vec<&'static TransportKind>> = Mutex::new(Vec::new());

/// Adds a transport that the program defines. All ranks must add it. `FERROCCL_TRANSPORT` can then
/// name the transport. Returns false if another transport has the same name or number.
pub fn add(kind: &'static TransportKind) -> bool {
    let mut added = ADDED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_taken = |known: &&&TransportKind| known.name == kind.name || known.id == kind.id;
    match OWN.iter().chain(added.iter()).find(is_taken) {
        Some(known) => known.name == kind.name && known.id == kind.id,
        None => {
            added.push(kind);
            true
        }
    }
}

/// Returns all transports.
pub fn all() -> Vec<&'static TransportKind> {
    let added = ADDED.lock().unwrap_or_else(PoisonError::into_inner);
    OWN.iter().chain(added.iter()).copied().collect()
}

/// Returns the tables of the transports' own tunables, for [`Config::read`] and [`Config::list`].
pub fn tables() -> Vec<Table> {
    Vec::from_iter(all().into_iter().map(|kind| kind.tunables))
}

/// The name that leaves the choice to the library.
pub const AUTO: &str = "auto";

/// Returns the transports of this reach, the preferred one first.
pub fn of_reach(reach: Reach) -> Vec<&'static TransportKind> {
    let mut all = all();
    all.retain(|kind| kind.reach == reach);
    all.sort_by_key(|kind| std::cmp::Reverse(kind.preference));
    all
}

/// Error for a value of `FERROCCL_TRANSPORT` that names no transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("FERROCCL_TRANSPORT={name}: there is no such transport; use {known}")]
pub struct UnknownTransport {
    name: String,
    known: String,
}

/// The transports that a communicator uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Transport between ranks of one host; if there is none, the network joins these ranks, too.
    pub host: Option<&'static TransportKind>,
    /// Transport between ranks of different hosts, if there is one.
    pub network: Option<&'static TransportKind>,
}

impl Choice {
    /// Returns the transports that `FERROCCL_TRANSPORT` names: one transport, `HOST+NETWORK`, or
    /// `auto`. Until the ranks have agreed on something better, `auto` takes transports that need
    /// no adapters.
    ///
    /// # Errors
    ///
    /// When there is no such transport.
    pub fn named(name: &str) -> Result<Choice, UnknownTransport> {
        let all = choices();
        let found = all.iter().find(|(known, _)| *known == name).map(|(_, choice)| *choice);
        found.ok_or_else(|| {
            let known = Vec::from_iter(all.iter().map(|(known, _)| *known)).join(", ");
            UnknownTransport { name: name.to_owned(), known }
        })
    }

    /// Returns the transports that a configuration names; those of `auto` if the name is unknown.
    pub fn of(config: &Config) -> Choice {
        let auto = || choices().first().map(|(_, auto)| *auto);
        let named = Choice::named(&config.transport).ok().or_else(auto);
        named.unwrap_or(Choice { host: None, network: None })
    }

    /// Returns the name of this choice in `FERROCCL_TRANSPORT`; empty if it joins no ranks.
    pub fn name(&self) -> &'static str {
        match (self.host, self.network) {
            (None, None) => "",
            (Some(only), None) | (None, Some(only)) => only.name,
            (Some(host), Some(network)) => pair_name(host, network),
        }
    }

    /// Returns whether messages between hosts are striped over queue pairs.
    pub fn stripes(&self) -> bool {
        self.network.is_some_and(|kind| kind.stripes)
    }
}

/// Returns the name of two transports. Names are kept for the life of the process: there are few.
fn pair_name(host: &'static TransportKind, network: &'static TransportKind) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let name = format!("{}+{}", host.name, network.name);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| **known == name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.push(name);
    name
}

/// Returns every name and the transports that it chooses.
fn choices() -> Vec<(&'static str, Choice)> {
    let (hosts, networks) = (of_reach(Reach::Host), of_reach(Reach::Network));
    let anywhere = networks.iter().copied().find(|kind| !kind.adapters);
    let auto = Choice { host: hosts.first().copied(), network: anywhere };
    let mut all = vec![(AUTO, auto)];
    let mut add = |host, network| {
        let choice = Choice { host, network };
        all.push((choice.name(), choice));
    };
    hosts.iter().for_each(|host| add(Some(*host), None));
    networks.iter().for_each(|network| add(None, Some(*network)));
    for host in &hosts {
        networks.iter().for_each(|network| add(Some(*host), Some(*network)));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_transports_share_a_name_or_a_number() {
        let names = BTreeSet::from_iter(OWN.iter().map(|kind| kind.name));
        let ids = BTreeSet::from_iter(OWN.iter().map(|kind| kind.id));
        assert_eq!((names.len(), ids.len()), (OWN.len(), OWN.len()));
        let all = all().len();
        assert!(add(OWN[0]), "a known transport was refused");
        static OTHER: TransportKind =
            TransportKind { name: "carrier-pigeon", ..ccl_transport_tcp::KIND };
        assert!(!add(&OTHER), "a taken number was accepted");
        assert_eq!(super::all().len(), all);
    }

    #[test]
    fn every_choice_has_a_name_that_leads_back_to_it() {
        for (name, choice) in choices() {
            assert_eq!(Choice::named(name).unwrap(), choice);
            assert!(name == AUTO || choice.name() == name, "{name}");
        }
        assert!(Choice::of(&Config::default()).network.is_some_and(|kind| !kind.adapters));
        let error = Choice::named("carrier-pigeon").unwrap_err().to_string();
        assert!(error.contains("use auto, "), "{error}");
    }
}
