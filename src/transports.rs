//! The transports that there are. Adding one is a crate with a [`TransportKind`] and a line here;
//! nobody else knows a transport by name.

use std::sync::OnceLock;

use ccl_core::config::Config;
use ccl_core::registry::{Reach, TransportKind};

/// All of them.
pub static ALL: [&TransportKind; 3] =
    [&ccl_transport_shm::KIND, &ccl_transport_tcp::KIND, &ccl_transport_verbs::KIND];

/// The name that leaves the choice to the library.
pub const AUTO: &str = "auto";

/// Returns the transports of this reach, the preferred one first.
pub fn of_reach(reach: Reach) -> Vec<&'static TransportKind> {
    let mut all = Vec::from_iter(ALL.into_iter().filter(|kind| kind.reach == reach));
    all.sort_by_key(|kind| std::cmp::Reverse(kind.preference));
    all
}

/// A name that `FERROCCL_TRANSPORT` cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("FERROCCL_TRANSPORT={name}: there is no such transport; use {known}")]
pub struct UnknownTransport {
    name: String,
    known: String,
}

/// The transports that a communicator uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Joins ranks of one host; where there is none, the network joins these, too.
    pub host: Option<&'static TransportKind>,
    /// Joins ranks of different hosts, if there is one.
    pub network: Option<&'static TransportKind>,
}

impl Choice {
    /// Returns what `FERROCCL_TRANSPORT` names: one transport, `HOST+NETWORK`, or `auto`, which is
    /// what needs no adapters until ranks have agreed on something better.
    ///
    /// # Errors
    ///
    /// When there is no such transport.
    pub fn named(name: &str) -> Result<Choice, UnknownTransport> {
        let all = choices();
        let found = all.iter().find(|(known, _)| known == name).map(|(_, choice)| *choice);
        found.ok_or_else(|| {
            let known = Vec::from_iter(all.iter().map(|(known, _)| known.as_str())).join(", ");
            UnknownTransport { name: name.to_owned(), known }
        })
    }

    /// The same of a configuration, and nothing if it names no transport.
    pub fn of(config: &Config) -> Choice {
        Choice::named(&config.transport).unwrap_or(Choice { host: None, network: None })
    }

    /// Returns its name in `FERROCCL_TRANSPORT`; empty if it joins nobody.
    pub fn name(&self) -> &'static str {
        let same = |(name, choice): &&(String, Choice)| name != AUTO && choice == self;
        choices().iter().find(same).map_or("", |(name, _)| name)
    }

    /// Returns whether messages between hosts are spread over queue pairs.
    pub fn spreads(&self) -> bool {
        self.network.is_some_and(|kind| kind.spreads)
    }
}

/// Every name, and what it chooses.
fn choices() -> &'static [(String, Choice)] {
    static CHOICES: OnceLock<Vec<(String, Choice)>> = OnceLock::new();
    CHOICES.get_or_init(make_choices)
}

fn make_choices() -> Vec<(String, Choice)> {
    let (hosts, networks) = (of_reach(Reach::Host), of_reach(Reach::Network));
    let anywhere = networks.iter().copied().rfind(|kind| !kind.adapters);
    let auto = Choice { host: hosts.first().copied(), network: anywhere };
    let mut all = vec![(AUTO.to_owned(), auto)];
    let mut add = |host: Option<&'static TransportKind>, network| {
        let names = Vec::from_iter(host.into_iter().chain(network).map(|kind| kind.name));
        all.push((names.join("+"), Choice { host, network }));
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
    fn names_and_numbers_are_of_one_transport_each() {
        let names = BTreeSet::from_iter(ALL.iter().map(|kind| kind.name));
        let ids = BTreeSet::from_iter(ALL.iter().map(|kind| kind.id));
        assert_eq!((names.len(), ids.len()), (ALL.len(), ALL.len()));
    }

    #[test]
    fn a_choice_has_a_name_and_a_name_a_choice() {
        for (name, choice) in choices() {
            assert_eq!(Choice::named(name).unwrap(), *choice);
            assert!(name == AUTO || choice.name() == name, "{name}");
        }
        assert!(Choice::of(&Config::default()).network.is_some_and(|kind| !kind.adapters));
        let error = Choice::named("carrier-pigeon").unwrap_err().to_string();
        assert!(error.contains("use auto, "), "{error}");
    }
}
