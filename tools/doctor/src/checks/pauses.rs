//! Pause frames (PFC), which drivers count and sysfs does not show.

use super::super::ethtool;
use super::super::host::Host;

/// Returns the pauses that an interface's driver has counted. Returns none unless `host` is the
/// running machine: a copy of a machine's files does not contain these counters.
pub(super) fn of(host: &Host, interface: &str) -> Vec<String> {
    match host.is_live() && !interface.is_empty() {
        true => tell(&ethtool::counters(interface)),
        false => Vec::new(),
    }
}

/// Returns a line for each per-priority pause counter that is not zero. If all such counters are
/// zero, returns one line that says that no pause was counted; if the driver has no such counter,
/// returns no line. Per-priority pause counters are found by their usual names (`rx_prio3_pause`,
/// `tx_pfc_frames_prio3`).
fn tell(counters: &[(String, u64)]) -> Vec<String> {
    let is_pause = |name: &str| {
        let by_priority = name.contains("prio") || name.contains("pfc") || name.contains("ctrl");
        let frames = name.contains("pause") || name.contains("pfc");
        frames && by_priority && !name.contains("duration") && !name.contains("transition")
    };
    let pauses = counters.iter().filter(|(name, _)| is_pause(name));
    let (risen, still): (Vec<_>, Vec<_>) = pauses.partition(|(_, count)| *count > 0);
    if risen.is_empty() && still.is_empty() {
        return Vec::new();
    }
    if risen.is_empty() {
        return vec!["no pause frame was counted (ethtool -S)".to_owned()];
    }
    risen.iter().map(|(name, count)| format!("{name} {count}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_priority_pause_counters_are_found_among_all_counters() {
        let all = |names: &[(&str, u64)]| {
            Vec::from_iter(names.iter().map(|(name, count)| ((*name).to_owned(), *count)))
        };
        let mlx5 = all(&[
            ("rx_packets", 7),
            ("rx_prio3_pause", 12),
            ("rx_prio3_pause_duration", 99),
            ("tx_prio3_pause", 0),
        ]);
        assert_eq!(tell(&mlx5), ["rx_prio3_pause 12"]);
        assert_eq!(tell(&mlx5[..1]), [""; 0]);
        assert!(tell(&mlx5[3..])[0].contains("no pause frame"));
    }
}
