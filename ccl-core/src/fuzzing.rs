//! Fuzz targets for code of this crate that reads bytes from outside. Each function takes any bytes
//! and panics if an invariant is broken. `fuzz/` passes the functions to cargo-fuzz; the tests
//! below run them over the kept corpus and its mutations.

use crate::admission::{fuzzed_offer, fuzzed_record};
use crate::config::{Config, Tunables as _};
use crate::transport::Locality;
use std::collections::BTreeMap;

/// Tests the offers that describe a peer's slots, and the CTS records that name a peer's memory.
pub fn offer(data: &[u8]) {
    fuzzed_offer(data);
    fuzzed_record(data);
}

/// Tests values of tunables. Each line is a byte that selects the tunable, then the value. If a
/// configuration can be read, the values that it shows must be readable, too, and give the same
/// queue-pair policy.
pub fn configuration(data: &[u8]) {
    let names: Vec<_> = Config::default().table().iter().map(|known| known.variable).collect();
    let mut given = BTreeMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        let Some((name, value)) = line.split_first() else { continue };
        let name = names[usize::from(*name) % names.len()];
        given.insert(name, String::from_utf8_lossy(value).into_owned());
    }
    match Config::from_lookup(&|name| given.get(name).cloned()) {
        Err(error) => assert!(given.contains_key(&*error.variable), "{error}"),
        Ok(config) => {
            let _ = config.digest(&[]);
            let shown: BTreeMap<_, _> =
                config.table().into_iter().map(|known| (known.variable, known.value)).collect();
            let again = Config::from_lookup(&|name| shown.get(name).cloned());
            let again = again.map(|again| again.ib_policy);
            assert_eq!(again, Ok(config.ib_policy), "the shown policy differs: {given:?}");
        }
    }
}

/// Tests device paths, with or without a NUMA node: the distance to another device must be
/// symmetric.
pub fn locality(data: &[u8]) {
    let Some((known, rest)) = data.split_first() else { return };
    let (numa_node, path) = match rest.split_first_chunk::<4>() {
        Some((node, path)) if *known == 1 => (Some(u32::from_le_bytes(*node)), path),
        _ => (None, rest),
    };
    let Ok(path) = std::str::from_utf8(path) else { return };
    let locality = Locality { numa_node, pci_path: Some(path.to_owned()) };
    let path = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0";
    let other = Locality { numa_node: Some(0), pci_path: Some(path.to_owned()) };
    assert_eq!(locality.distance(&other), other.distance(&locality), "{locality:?}");
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn offers() {
        replay("offer", super::offer);
    }

    #[test]
    fn configurations() {
        replay("configuration", super::configuration);
    }

    #[test]
    fn localities() {
        replay("locality", super::locality);
    }
}
