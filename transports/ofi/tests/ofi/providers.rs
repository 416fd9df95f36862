//! Tests of the providers of the installed libfabric.

use std::time::Duration;

use ccl_transport_ofi::{OfiError, TestError, providers, test_provider};

/// Time limit of a provider's test; a busy machine is slow.
const WITHIN: Duration = Duration::from_secs(60);

#[test]
fn installed_software_providers_pass_their_test() {
    let all = match providers() {
        Err(OfiError::Library(error)) => {
            assert!(std::env::var_os("FERROCCL_TEST_OFI").is_none(), "{error}");
            println!("\nSKIPPED: {error}");
            return;
        }
        all => all.unwrap(),
    };
    println!("{all:#?}");
    for name in ["shm", "tcp", "tcp;ofi_rxm"] {
        let Some(provider) = all.iter().find(|provider| provider.name == name) else { continue };
        let passed = test_provider(name, WITHIN).unwrap();
        assert_eq!(passed.wrote, provider.writes && provider.write_data, "{name}");
    }
    let found = all.iter().filter(|found| ["shm", "tcp", "tcp;ofi_rxm"].contains(&&*found.name));
    assert!(found.count() >= 2, "libfabric has fewer than two of shm, tcp and tcp;ofi_rxm");
    let error = test_provider("carrier-pigeon", WITHIN).unwrap_err();
    assert_eq!(error, TestError::Unknown("carrier-pigeon".to_owned()));
    let error = test_provider("no\0zeros", WITHIN).unwrap_err().to_string();
    assert!(error.contains("must not contain zero bytes"), "{error}");
}
