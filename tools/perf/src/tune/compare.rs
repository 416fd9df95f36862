//! Comparison of an older tuning table with a newer one. `ferroccl tune --compare` fails if a point
//! got slower. A point is a measured collective with its numbers of ranks, hosts and bytes.

use std::fmt::Write as _;

use ccl_core::select::tuning::{Change, Measured, Point, Tuning};

/// Comparison of the points that both tables have.
#[derive(Debug)]
pub struct Comparison {
    /// Text with a line for each point, and a summary.
    pub text: String,
    /// True if any point got slower by more than the allowed share plus the deviations of both
    /// times.
    pub is_slower: bool,
}

/// Compares an older table with a newer one; `allowed` is the share by which a point may be slower
/// (0.1: a tenth).
///
/// # Errors
///
/// When the older table has measured points, but none in common with the newer one.
pub fn compare(old: &Tuning, new: &Tuning, allowed: f64) -> Result<Comparison, String> {
    let changes = old.changes(new, allowed);
    if changes.is_empty() && old.measured().next().is_some() {
        return Err("the tables have no point in common: measure both with the same numbers of \
                    ranks and hosts, and the same sizes"
            .to_owned());
    }
    let us = |time: &Measured| time.median_ns as f64 / 1e3;
    let line = |change: &Change| {
        let Change { point, old, new, is_slower } = change;
        let Point { collective, ranks, hosts, bytes, .. } = point;
        let (was, is) = (us(old), us(new));
        let verdict = if *is_slower { "  SLOWER" } else { "" };
        format!(
            "{collective} ranks={ranks} hosts={hosts} bytes={bytes}: {was} us ({}) -> {is} us \
             ({}), {:.2} times{verdict}\n",
            old.variant,
            new.variant,
            is / was.max(1e-3)
        )
    };
    let mut text: String = changes.iter().map(line).collect();
    let missing = old.measured().count() - changes.len();
    let slower = changes.iter().filter(|change| change.is_slower).count();
    let _ = writeln!(
        text,
        "{} points in both tables, {slower} slower by more than {} % plus the deviations of both \
         times",
        changes.len(),
        allowed * 100.0
    );
    if missing > 0 {
        let _ = writeln!(text, "{missing} points of the older table are not in the newer one");
    }
    if old.machine != new.machine {
        let name = |tuning: &Tuning| tuning.machine.clone().unwrap_or_default();
        let _ = writeln!(
            text,
            "the older table was measured on \"{}\", the newer one on \"{}\"",
            name(old),
            name(new)
        );
    }
    Ok(Comparison { text, is_slower: slower > 0 })
}
