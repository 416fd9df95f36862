//! All collectives over libfabric, with the installed providers and with software providers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl_core::registry::{Make, NO_TUNABLES, TransportKind};
use ccl_core::transport::Transport;
use ccl_core::types::Collective::{AllReduce, AllToAll};
use ccl_harness::data::{Case, check};
use ccl_harness::processes::{Case as Part, Processes};
use ccl_harness::{config_with, ranks_with, skip, stretched};
use ccl_soft_ofi::{Limits, SoftProvider, functions};
use ccl_transport_ofi::{KIND, OfiTransport, Options, providers};
use ferroccl::{Communicator, Error, transports};
use rustix::process::Signal;

use crate::cluster::{LONG, all_well};
use crate::collectives::{movers, sweep};
use crate::faults::{WORK, assert_named, work};
use crate::matrix::full;
use crate::nccl_net::{ONE_DEVICE, SHORT, keeps_the_contract};

pub(crate) const CASES: &[Part] = &[("every algorithm", every_algorithm), ("writes", writes)];

/// Longest time from a death to the end of all other ranks.
const ENDED: Duration = Duration::from_secs(15);
/// Providers that run anywhere.
const PROVIDERS: [&str; 3] = ["tcp", "tcp;ofi_rxm", SHM];
/// Provider that crashes if several ranks of one process use it.
pub(crate) const SHM: &str = "shm";

/// Returns the [`PROVIDERS`] that are installed. Without any provider, reports a skipped test, or
/// panics if `FERROCCL_TEST_OFI` is set.
pub(crate) fn present() -> impl Iterator<Item = &'static str> {
    let all = providers().unwrap_or_default();
    if all.is_empty() {
        assert!(std::env::var_os("FERROCCL_TEST_OFI").is_none(), "no libfabric provider is found");
        skip("no libfabric provider is found (package libfabric1)");
    }
    PROVIDERS.into_iter().filter(move |name| all.iter().any(|provider| provider.name == *name))
}

/// Returns the version of libfabric that an installed provider belongs to, such as 2.5.
pub(crate) fn version(name: &str) -> String {
    let all = providers().unwrap_or_default();
    let found = all.iter().find(|provider| provider.name == name);
    let major: u32 = found.unwrap().version.split('.').next().unwrap().parse().unwrap();
    format!("{}.{}", major / 100, major % 100)
}

/// Returns whether processes that use an installed provider share locks, so that a process that is
/// killed can make others wait without a limit.
pub(crate) fn shares_locks(name: &str) -> bool {
    let all = providers().unwrap_or_default();
    all.iter().any(|provider| provider.name == name && provider.shares_locks())
}

fn every_algorithm() -> Result<(), Error> {
    let mut communicator = Communicator::from_environment()?;
    assert_eq!(communicator.transport(), KIND.name);
    check_all(&mut communicator);
    communicator.barrier()
}

/// Checks all collectives, two of them with long messages, which take several messages of a
/// provider.
fn check_all(communicator: &mut Communicator) {
    sweep(communicator, &[0, 1, 1009]);
    if full() || communicator.ranks() <= 3 {
        for collective in [AllReduce, AllToAll] {
            check(communicator, &Case::new(collective, 300_007));
        }
    }
}

#[test]
fn all_collectives_run_over_libfabric() {
    for name in present() {
        for ranks in (2..=8).filter(|ranks| full() || [2, 3, 5, 8].contains(ranks)) {
            let ranks = Processes::ranks(ranks, "every algorithm", |_, command| {
                command.env("FERROCCL_TRANSPORT", KIND.name).env("FERROCCL_OFI_PROVIDER", name);
            });
            all_well(&ranks.end(LONG));
        }
    }
}

/// Each rank reaches all of its 64 peers through one endpoint of libfabric.
#[test]
fn sixty_five_ranks_exchange_over_libfabric() {
    if !full() {
        return skip("only the deep tier has 65 ranks");
    }
    for name in present().filter(|name| *name != SHM) {
        let config = config_with(|config| {
            config.transport = KIND.name.to_owned();
            config.transport_settings.set("FERROCCL_OFI_PROVIDER", name);
        });
        ranks_with(65, config, |communicator| {
            check(communicator, &Case::new(AllToAll, 65));
            check(communicator, &Case::new(AllReduce, 1009));
        });
    }
}

/// Waits until no other test of this process has software providers; returns the right to have
/// some. A rank takes the first provider of a name, no matter which test has made it.
pub(crate) fn software_providers() -> MutexGuard<'static, ()> {
    static ONE_TEST: Mutex<()> = Mutex::new(());
    ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Transport, and the function that returns the limits of its provider for a seed.
type Soft = (TransportKind, fn(u64) -> Limits);

/// Transports over software providers, whose requests overtake each other.
static SOFT: [Soft; 2] = [
    (kind("soft-efa", 254, |_, _| Ok(over("efa"))), Limits::efa),
    (kind("soft-sockets", 253, |_, _| Ok(over("soft"))), Limits::sockets),
];

const fn kind(name: &'static str, id: u8, make: Make) -> TransportKind {
    // The lowest preference: other tests of this process let the library choose a transport, and it
    // must not choose this one.
    let preference = 0;
    TransportKind { name, id, preference, adapters: false, tunables: NO_TUNABLES, make, ..KIND }
}

fn over(provider: &str) -> Box<dyn Transport> {
    let options = Options { interfaces: "lo".to_owned(), ..Options::default() };
    Box::new(OfiTransport::over(functions(), provider, options))
}

fn with_kind(
    kind: &'static TransportKind,
    ranks: u32,
    work: impl Fn(&mut Communicator) + Send + Sync + 'static,
) {
    assert!(transports::add(kind));
    let config = config_with(|config| config.transport = kind.name.to_owned());
    ranks_with(ranks, config, move |communicator| {
        assert_eq!(communicator.transport(), kind.name);
        work(communicator);
    });
}

#[test]
fn all_collectives_run_over_software_providers() {
    let _turn = software_providers();
    for (kind, limits) in &SOFT {
        for ranks in (2..=8).filter(|ranks| full() || [2, 5].contains(ranks)) {
            let _provider = SoftProvider::new(limits(u64::from(ranks)));
            with_kind(kind, ranks, |communicator| sweep(communicator, &[0, 1, 1009]));
        }
    }
}

/// Transports whose puts are writes, over providers of the installed libfabric.
static WRITES: [TransportKind; 2] = [
    kind("ofi-writes", 250, |_, _| Ok(by_writes("tcp"))),
    kind("ofi-writes-rxm", 251, |_, _| Ok(by_writes("tcp;ofi_rxm"))),
];

fn by_writes(provider: &str) -> Box<dyn Transport> {
    let interfaces = "lo".to_owned();
    let options = Options { interfaces, always_writes: true, ..Options::default() };
    Box::new(OfiTransport::new(provider, options))
}

#[test]
fn all_collectives_run_by_writes_of_libfabric() {
    for name in present().filter(|name| *name != SHM) {
        let transport = by_writes(name);
        let device = transport.open(&transport.devices()[0].id).unwrap();
        assert!(device.caps().written_early, "puts over {name} are messages");
        let kind = &WRITES[usize::from(name.contains(';'))];
        for ranks in (2..=8).filter(|ranks| full() || [2, 5].contains(ranks)) {
            with_kind(kind, ranks, check_all);
        }
    }
}

/// Repeats one kind of call, by writes of the installed libfabric.
fn writes() -> Result<(), Error> {
    WRITES.iter().for_each(|kind| assert!(transports::add(kind)));
    work()
}

#[test]
fn a_rank_killed_in_mid_write_is_named() {
    for name in present().filter(|name| *name != SHM) {
        let kind = &WRITES[usize::from(name.contains(';'))];
        for victim in [0, 1] {
            let ranks = Processes::ranks(3, "writes", |_, command| {
                command.env("FERROCCL_TRANSPORT", kind.name).env(WORK, "all_reduce 400000");
            });
            (0..3).for_each(|rank| ranks.await_text(rank, "working", LONG));
            ranks.signal(victim, Signal::KILL);
            assert_named(&ranks.end(stretched(ENDED)), victim);
        }
    }
}

#[test]
fn collectives_run_over_software_providers_with_a_hundred_seeds() {
    let _turn = software_providers();
    for seed in 0..if full() { 1000 } else { 100 } {
        let (kind, limits) = &SOFT[seed as usize % SOFT.len()];
        let _provider = SoftProvider::new(limits(seed));
        with_kind(kind, 2 + seed as u32 % 3, move |communicator| {
            let also = movers().nth(seed as usize % movers().count());
            for collective in also.into_iter().chain([AllReduce, AllToAll]) {
                check(communicator, &Case::new(collective, 5_011));
            }
        });
    }
}

/// Checks all points of `ferroccl netcheck` in the deep tier, else only [`SHORT`]. Over `ofi_rxm`,
/// checks only [`SHORT`] in both tiers: each endpoint of libfabric takes much memory, and malloc
/// keeps so much of that memory after a free that netcheck would report a leak.
#[test]
fn the_plugin_keeps_nccls_contract() {
    for name in present() {
        let variables = [("FERROCCL_TRANSPORT", "ofi"), ("FI_PROVIDER", name)];
        match full() && !name.contains(';') {
            true => keeps_the_contract(&[], &variables, &ONE_DEVICE),
            false => keeps_the_contract(&["--only", SHORT], &variables, &[]),
        }
    }
}

/// The error about a missing provider names it; without libfabric, the error names libfabric.
#[test]
fn a_missing_provider_is_an_error_that_names_it() {
    let config = config_with(|config| {
        config.transport = KIND.name.to_owned();
        config.transport_settings.set("FERROCCL_OFI_PROVIDER", "carrier-pigeon");
    });
    let errors = ccl_harness::joining(
        2,
        move |_| config.clone(),
        |joined| match joined {
            Ok(_) => panic!("ranks joined with a provider that does not exist"),
            Err(error) => error.to_string(),
        },
    );
    for error in errors {
        let is_there = providers().is_ok();
        let name = if is_there { "libfabric has no provider carrier-pigeon" } else { "libfabric" };
        assert!(error.contains(name), "{error}");
    }
}
