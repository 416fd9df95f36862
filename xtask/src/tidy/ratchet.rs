//! Ratchet for sizes: a giant (a file or function over the limit) may stay if the baseline lists
//! its size, but must not grow. When a giant shrinks, a finding demands that its entry be lowered,
//! or removed if the size is within the limit.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Finding;
use super::sizes::{FILE_LINES_MAX, FUNCTION_LINES_MAX, Giant, Giants};
use crate::Outcome;

/// Tolerated sizes of files and functions, keyed by name, and tolerated circles.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Baseline {
    files: BTreeMap<String, usize>,
    functions: BTreeMap<String, usize>,
    /// Number of modules that use each other in circles, keyed by the folder of the crate's source.
    pub(super) circles: BTreeMap<String, usize>,
}

/// Reads the baseline's text.
pub(super) fn parse(text: &str) -> Outcome<Baseline> {
    toml::from_str(text).map_err(|error| format!("the tidy baseline does not parse: {error}"))
}

/// Compares the giants of the tree with the baseline; returns each difference. `at` is the path of
/// the baseline.
pub(super) fn compare(at: &str, giants: &Giants, baseline: &Baseline) -> Vec<Finding> {
    let mut findings = compare_kind(at, &giants.files, &baseline.files, FILE_LINES_MAX);
    findings.extend(compare_kind(at, &giants.functions, &baseline.functions, FUNCTION_LINES_MAX));
    findings
}

fn compare_kind(
    at: &str,
    giants: &BTreeMap<String, Giant>,
    tolerated: &BTreeMap<String, usize>,
    limit: usize,
) -> Vec<Finding> {
    let grown = giants.iter().filter_map(|(name, giant)| {
        let lines = giant.lines;
        let message = match tolerated.get(name) {
            None => format!("has {lines} lines, but at most {limit} are allowed: split it"),
            Some(known) if lines > *known => {
                format!("grew from {known} to {lines} lines; above {limit} it may only shrink")
            }
            Some(_) => return None,
        };
        let (path, function) = name.split_once("::").unwrap_or((name, ""));
        let what =
            if function.is_empty() { String::new() } else { format!("function `{function}` ") };
        Some(Finding::new(path, giant.line, format!("{what}{message}")))
    });
    let shrunk = tolerated.iter().filter_map(|(name, known)| {
        let message = match giants.get(name).map(|giant| giant.lines) {
            None => format!("`{name}` is no longer above the limit: remove its entry"),
            Some(lines) if lines < *known => {
                format!("`{name}` shrank from {known} to {lines} lines: lower its entry")
            }
            Some(_) => return None,
        };
        Some(Finding::new(at, 0, message))
    });
    grown.chain(shrunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(lines: Option<usize>, baseline: &str) -> Vec<String> {
        let mut giants = Giants::default();
        if let Some(lines) = lines {
            giants.functions.insert("a.rs::f".to_owned(), Giant { line: 3, lines });
        }
        let findings = compare("baseline", &giants, &parse(baseline).unwrap());
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_giant_may_stay_but_neither_grow_nor_leave_a_stale_entry() {
        let known = "[functions]\n\"a.rs::f\" = 80\n";
        assert_eq!(messages(Some(80), known), [""; 0]);
        assert!(messages(Some(81), known)[0].contains("a.rs:3: function `f` grew from 80 to 81"));
        assert!(messages(Some(79), known)[0].contains("lower its entry"));
        assert!(messages(None, known)[0].contains("remove its entry"));
        assert!(messages(Some(80), "")[0].contains("at most 70"));
    }

    #[test]
    fn a_misspelt_baseline_is_an_error() {
        assert!(parse("[function]\n").unwrap_err().contains("does not parse"));
    }

    #[test]
    fn the_committed_baseline_parses() {
        assert!(parse(include_str!("../../tidy-baseline.toml")).is_ok());
    }
}
