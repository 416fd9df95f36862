//! Where on its host this process runs.

use std::collections::BTreeSet;
use std::fs;

use ccl_core::config::Config;

use super::error::Error;
use super::exchange::{Topic, exchange};
use crate::bootstrap::ControlPlane;

/// The NUMA nodes of all ranks, where it matters for the devices that each takes: empty elsewhere.
/// All ranks call it.
pub(super) fn nodes(control: &ControlPlane, config: &Config) -> Result<Vec<Option<u32>>, Error> {
    if config.transport != "verbs" {
        return Ok(Vec::new());
    }
    let own = numa_node().map_or(Vec::new(), |node| node.to_le_bytes().to_vec());
    let all = exchange(control, Topic::Nodes, &own, config.join_timeout)?;
    Ok(all.iter().map(|node| node.as_slice().try_into().ok().map(u32::from_le_bytes)).collect())
}

/// The NUMA node of all processors that this process may run on, if they are of one.
fn numa_node() -> Option<u32> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let allowed: BTreeSet<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let nodes = fs::read_dir("/sys/devices/system/node").ok()?.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, fs::read_to_string(entry.path().join("cpulist")).ok()?))
    });
    node_of(&allowed, nodes)
}

/// The node whose list of processors, such as `0-3,8-11`, has all of these.
fn node_of(cpus: &BTreeSet<usize>, nodes: impl Iterator<Item = (u32, String)>) -> Option<u32> {
    let mut nodes = nodes.filter(|(_, list)| {
        let there = processors(list);
        !cpus.is_empty() && cpus.iter().all(|cpu| there.contains(cpu))
    });
    nodes.next().map(|(number, _)| number)
}

fn processors(list: &str) -> BTreeSet<usize> {
    let range = |text: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_on_the_node_that_has_all_its_processors() {
        let nodes = || [(0, "0-3,8-11\n".to_owned()), (1, "4-7,12-15\n".to_owned())].into_iter();
        let of = |cpus: &[usize]| node_of(&cpus.iter().copied().collect(), nodes());
        assert_eq!(of(&[0, 9, 11]), Some(0));
        assert_eq!(of(&[4]), Some(1));
        assert_eq!(of(&[3, 4]), None);
        assert_eq!(of(&[16]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(processors("\n"), BTreeSet::new());
    }
}
