//! Detection of paths that got slower since a baseline was measured.

use std::fmt::Write as _;
use std::path::Path;

use ccl_core::types::Rank;
use serde::Serialize;

use super::baseline::{Baseline, PathTimes, Setting};
use super::culprits::{Culprit, Ranks, culprits};
use crate::number::general;
use crate::significance::{RankTest, holm, least, ratio};
use crate::timing::summary;

/// Probability of a false alarm, over all paths together.
pub const ALARM_RATE: f64 = 0.01;

/// Largest number of slower paths that are printed, one on each line; the JSON report has all.
const LINES_MAX: usize = 64;

/// Kinds of measurement of a path.
const KINDS: [&str; 2] = ["latency", "bandwidth"];

/// Change of a path in one kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Median in the baseline, microseconds.
    pub then_us: f64,
    /// Median now, microseconds.
    pub now_us: f64,
    /// Median of the ratios of all new times to all times in the baseline.
    pub ratio: f64,
    /// One-sided p-value of [`RankTest::longer`] for these times, corrected by [`holm`] for the
    /// number of tests.
    pub p: f64,
    /// True if the time is longer by more than is allowed, and `p` is at most [`ALARM_RATE`].
    pub is_slower: bool,
}

/// Change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PathChange {
    /// Rank that sends.
    pub from: Rank,
    /// Rank that receives.
    pub to: Rank,
    /// Change of half a round trip.
    pub latency: Change,
    /// Change of the time in which the sender sends a group of messages and receives an answer.
    pub bandwidth: Change,
}

impl PathChange {
    /// Returns whether the path got slower, in latency or bandwidth.
    #[must_use]
    pub fn is_slower(&self) -> bool {
        self.latency.is_slower || self.bandwidth.is_slower
    }
}

/// Change of all paths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Name of the baseline's file.
    pub baseline: String,
    /// Date of the baseline.
    pub date: String,
    /// Version of ferroccl that measured the baseline.
    pub version: String,
    /// Number of samples of each path and kind, in the baseline and now.
    pub rounds: [usize; 2],
    /// Relative slowdown that is allowed (0.1: a tenth longer).
    pub allowed: f64,
    /// Probability of a false alarm.
    pub alarm_rate: f64,
    /// Changes of every path.
    pub paths: Vec<PathChange>,
    /// Common features of the paths that got slower.
    pub common: Vec<Culprit>,
}

/// Compares the current times with a baseline, which has the same paths in the same order.
#[must_use]
pub fn compare(
    (file, old): (&Path, &Baseline),
    new: &[PathTimes],
    nics: &[String],
    allowed: f64,
) -> Comparison {
    let mut test = RankTest::default();
    let pairs = || {
        old.paths.iter().zip(new).flat_map(|(old, new)| {
            [(&old.latency_us, &new.latency_us), (&old.bandwidth_us, &new.bandwidth_us)]
        })
    };
    let plain: Vec<f64> = pairs().map(|(old, new)| test.longer(old, new)).collect();
    let mut changes = pairs().zip(holm(&plain)).map(|((old, new), p)| {
        let median = |times: &Vec<f64>| summary(times.clone()).p50_us;
        let ratio = ratio(old, new);
        let is_slower = p <= ALARM_RATE && ratio > 1.0 + allowed;
        Change { then_us: median(old), now_us: median(new), ratio, p, is_slower }
    });
    let mut paths = Vec::with_capacity(new.len());
    for path in new {
        let (Some(latency), Some(bandwidth)) = (changes.next(), changes.next()) else { break };
        paths.push(PathChange { from: path.from, to: path.to, latency, bandwidth });
    }
    let ranks = Ranks { hosts: &old.head.setting.hosts, nics };
    let seen: Vec<_> = paths.iter().map(|path| (path.from, path.to, path.is_slower())).collect();
    let rounds = [&old.paths[..], new].map(|all| all.first().map_or(0, |one| one.latency_us.len()));
    Comparison {
        baseline: file.display().to_string(),
        date: old.head.date.clone(),
        version: old.head.version.clone(),
        rounds,
        allowed,
        alarm_rate: ALARM_RATE,
        common: culprits(ranks, &seen),
        paths,
    }
}

/// Checks that the rounds of the baseline (`then`) and of this run (`now`) are enough to detect a
/// slower path among all paths.
///
/// # Errors
/// Advice with the number of rounds that both measurements need.
pub fn enough(setting: &Setting, [then, now]: [usize; 2]) -> Result<(), String> {
    let tests = (KINDS.len() * setting.pairs().count()) as f64;
    let tells = |then, now| least(then, now) * tests <= ALARM_RATE;
    if tells(then, now) {
        return Ok(());
    }
    let needed = (1..64).find(|rounds| tells(*rounds, *rounds)).unwrap_or(64);
    Err(format!(
        "{then} rounds in the baseline and {now} in the later run are too few to detect which of \
         the {tests} latencies and bandwidths got worse; give --rounds {needed} or more, both with \
         --save-baseline and with --baseline"
    ))
}

impl Comparison {
    /// Returns the number of paths that got slower.
    #[must_use]
    pub fn slower(&self) -> usize {
        self.paths.iter().filter(|path| path.is_slower()).count()
    }

    /// Formats the comparison for people.
    #[must_use]
    pub fn text(&self, hosts: &[String]) -> String {
        let ranks = Ranks { hosts, nics: &[] };
        let Comparison { baseline, date, version, rounds: [then, now], .. } = self;
        let (paths, slower) = (self.paths.len(), self.slower());
        let mut text = format!(
            "# Compared with {baseline}, measured {date} by ferroccl {version}: {paths} paths, \
             {then} rounds then, {now} now\n\
             # Slower paths take more than {} % longer (median of the ratios of each new time \
             to each old time)\n\
             # with p <= {ALARM_RATE} (Mann-Whitney U, one-sided, Holm's correction over {} \
             tests)\n",
            general(self.allowed * 100.0),
            KINDS.len() * paths
        );
        for path in self.paths.iter().filter(|path| path.is_slower()).take(LINES_MAX) {
            let (from, to) = (ranks.name(path.from), ranks.name(path.to));
            let kinds = KINDS.iter().zip([path.latency, path.bandwidth]);
            let told: Vec<String> = kinds
                .filter(|(_, change)| change.is_slower)
                .map(|(kind, change)| {
                    let Change { then_us, now_us, ratio, p, .. } = change;
                    let [then_us, now_us, p] =
                        [then_us, now_us, p].map(|value| general(round(value)));
                    format!("{kind} {ratio:.2} times the time ({then_us} us -> {now_us} us, p {p})")
                })
                .collect();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# SLOWER {from} -> {to}: {}", told.join(", "));
        }
        if slower > LINES_MAX {
            let _ = writeln!(text, "# ... and {} more; --json lists all", slower - LINES_MAX);
        }
        for Culprit { what, paths, slower } in &self.common {
            let _ = writeln!(text, "# In common: {what}, {slower} of {paths} paths slower");
        }
        let verdict = if slower == 0 { "OK" } else { "SLOWER" };
        text + &format!("# Slower paths         : {slower} of {paths} {verdict}\n")
    }
}

/// Rounds a value to three digits.
fn round(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use ccl_core::random::Random;

    use super::super::baseline::Head;
    use super::*;

    /// Returns times of four ranks on two hosts: skewed, with a few outliers. `factor` multiplies
    /// the latency and the bandwidth time of a path.
    fn measured(seed: u64, rounds: usize, factor: impl Fn(Rank, Rank) -> [f64; 2]) -> Baseline {
        let mut random = Random::new(seed);
        let setting = Setting {
            hosts: ["n0", "n0", "n1", "n1"].map(str::to_owned).to_vec(),
            transport: "tcp".to_owned(),
            latency_bytes: 8,
            bandwidth_bytes: 4096,
            bandwidth_messages: 16,
            iterations: 20,
        };
        let paths = setting.pairs().map(|(from, to)| {
            let mut times = |scale: f64| -> Vec<f64> {
                let one = |_| {
                    let far = if random.chance(0.1) { 10.0 } else { 1.0 };
                    scale * (1.0 + 0.2 * random.unit() * random.unit()) * far
                };
                (0..rounds).map(one).collect()
            };
            let [latency, bandwidth] = factor(from, to);
            PathTimes {
                latency_us: times(5.0 * latency),
                bandwidth_us: times(90.0 * bandwidth),
                ..PathTimes::new((from, to))
            }
        });
        let paths = paths.collect();
        Baseline { head: Head::new("2026-11-18T00:00:00Z", setting), paths }
    }

    fn compared(factor: impl Fn(Rank, Rank) -> [f64; 2]) -> (Comparison, String) {
        let (mut old, new) = (measured(1, 20, |_, _| [1.0; 2]), measured(2, 20, factor));
        old.head.version = "0.1.0".to_owned();
        let comparison = compare((Path::new("good.paths"), &old), &new.paths, &[], 0.1);
        let text = comparison.text(&old.head.setting.hosts);
        (comparison, text)
    }

    #[test]
    fn slower_paths_are_named_with_what_they_share() {
        let (comparison, text) = compared(|from, to| {
            [
                if from / 2 == to / 2 { 1.0 } else { 1.3 },
                if (from, to) == (3, 0) { 2.0 } else { 1.0 },
            ]
        });
        assert_eq!(comparison.slower(), 8, "{text}");
        let line = text.lines().find(|line| line.contains("rank 3 on n1 -> rank 0 on n0")).unwrap();
        assert!(line.contains("latency 1.3") && line.contains("bandwidth 2.0"), "{line}");
        assert!(text.contains("the network between all hosts, 8 of 8 paths slower"), "{text}");
        assert!(text.contains("over 24 tests") && text.contains("more than 10 %"), "{text}");
        assert!(text.ends_with("# Slower paths         : 8 of 12 SLOWER\n"), "{text}");
        assert!(text.lines().all(|line| line.starts_with('#')));
    }

    #[test]
    fn the_docs_page_shows_the_printed_comparison() {
        let slow = |from: Rank, to: Rank| if from > 1 && to < 2 { 1.3 } else { 1.0 };
        let (_, text) = compared(|from, to| [1.0, slow(from, to)]);
        let page = include_str!("../../../../docs/paths.md");
        assert!(page.contains(&format!("```text\n{text}```")), "docs/paths.md should have\n{text}");
    }

    #[test]
    fn small_slowdowns_and_speedups_raise_no_alarm() {
        let (comparison, text) = compared(|_, _| [1.06, 0.5]);
        assert!(comparison.paths.iter().any(|path| path.latency.p < ALARM_RATE), "{text}");
        assert_eq!(comparison.slower(), 0, "{text}");
        assert!(text.ends_with("0 of 12 OK\n"), "{text}");
        // One outlier of 1 s makes the mean of its path far longer, but raises no alarm.
        let old = measured(1, 20, |_, _| [1.0; 2]);
        let mut new = measured(2, 20, |_, _| [1.0; 2]);
        new.paths[0].latency_us[3] = 1e6;
        assert_eq!(compare((Path::new(""), &old), &new.paths, &[], 0.0).slower(), 0);
    }

    #[test]
    fn false_alarms_are_as_rare_as_promised_if_no_slowdown_is_allowed() {
        let runs = if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 400 } else { 60 };
        let alarms = (0..runs).filter(|run| {
            let [old, new] = [2 * run, 2 * run + 1].map(|seed| measured(seed, 20, |_, _| [1.0; 2]));
            compare((Path::new(""), &old), &new.paths, &[], 0.0).slower() > 0
        });
        let alarms = alarms.count();
        // At most 1 % of the runs are expected to raise an alarm. The limit is four standard
        // deviations above 1 %.
        let mean = f64::from(runs as u32) / 100.0;
        assert!(alarms as f64 <= mean + 4.0 * mean.sqrt(), "{alarms} alarms in {runs} runs");
    }

    #[test]
    fn too_few_rounds_are_refused_with_the_number_needed() {
        let setting = measured(1, 1, |_, _| [1.0; 2]).head.setting;
        let error = enough(&setting, [3, 3]).unwrap_err();
        assert!(error.contains("give --rounds 7 or more"), "{error}");
        assert!(enough(&setting, [7, 7]).is_ok() && enough(&setting, [6, 6]).is_err());
        assert!(enough(&setting, [4, 40]).is_ok() && enough(&setting, [1, 100]).is_err());
        // The default of 20 rounds is enough for 512 ranks, the most that ferroccl starts on one
        // machine.
        let hosts = vec![String::new(); 512];
        assert!(enough(&Setting { hosts, ..setting }, [20, 20]).is_ok());
    }
}
