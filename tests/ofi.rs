//! All collectives over libfabric, with the providers that there are.

use ccl_harness::{config_with, ranks_with, skip};
use ccl_transport_ofi::{KIND, providers};

use crate::collectives::sweep;
use crate::matrix::full;
use crate::nccl_net::{ONE_DEVICE, SHORT, keeps_the_contract};

/// Providers that run anywhere.
const PROVIDERS: [&str; 2] = ["tcp", "tcp;ofi_rxm"];

/// Returns those of the providers that there are; the test is skipped if there are none.
pub(crate) fn present() -> impl Iterator<Item = &'static str> {
    let all = providers().unwrap_or_default();
    if all.is_empty() {
        assert!(std::env::var_os("FERROCCL_TEST_OFI").is_none(), "there is no libfabric");
        skip("there is no libfabric (libfabric1)");
    }
    PROVIDERS.into_iter().filter(move |name| all.iter().any(|provider| provider.name == *name))
}

#[test]
fn all_collectives_run_over_libfabric() {
    for name in present() {
        for ranks in [2, 3, 5, 8] {
            let config = config_with(|config| {
                config.transport = KIND.name.to_owned();
                config.transport_settings.set("FERROCCL_OFI_PROVIDER", name);
            });
            ranks_with(ranks, config, |communicator| {
                assert_eq!(communicator.transport(), KIND.name);
                sweep(communicator, &[0, 1, 1009]);
            });
        }
    }
}

/// Checks the plugin in short, unless all is to be run. It is always so over `ofi_rxm`: each of its
/// endpoints takes so much memory that what malloc keeps of it looks like a leak.
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

/// A provider that is not there is named, with where to look.
#[test]
fn a_provider_that_is_not_there_is_an_error_with_advice() {
    let config = config_with(|config| {
        config.transport = KIND.name.to_owned();
        config.transport_settings.set("FERROCCL_OFI_PROVIDER", "carrier-pigeon");
    });
    let errors = ccl_harness::joining(
        2,
        move |_| config.clone(),
        |joined| match joined {
            Ok(_) => panic!("there is no such provider"),
            Err(error) => error.to_string(),
        },
    );
    for error in errors {
        assert!(error.contains("libfabric"), "{error}");
    }
}
