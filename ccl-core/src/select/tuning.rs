//! Tuning table of measured times, which `ferroccl tune` writes.
//!
//! ```text
//! machine AMD EPYC 7B13, 2 processors
//! set FERROCCL_SLOT_BYTES=262144
//! model call_ns=120 fold_ns=40
//! rule broadcast hosts>=2 bytes>=1M: double_tree (our switches)
//! all_reduce ranks=2 hosts=1 bytes=8: direct=0.26~0.01 ring=1.20~0.05
//! all_reduce ranks=2 hosts=1 bytes=1048576: direct_two_phase/2=52.1~1.3 ring=90.4~2.2
//! all_reduce ranks=8 hosts=4 bytes=1048576 predicted: hierarchical=440 ring=610
//! ```
//!
//! A line that begins with a collective has the numbers of ranks, hosts and bytes (of the larger
//! buffer), and the median time of each variant ([`super::variant`]) in microseconds; the number
//! after `~` is half the distance between the quartiles. A line with `predicted` has the times of a
//! model. A call takes the fastest variant at the nearest size, from measurements if there are any.
//! Only lines with the call's collective, number of ranks and number of hosts are used. `set` gives
//! a tunable the value that was fastest, unless the tunable is set elsewhere; in this value `|`
//! stands for `;`. If the table has no times for the call, its `rule` lines ([`super::rules`]) come
//! next, before the library's own rules. `model` has the parameters of the best-fitting model
//! ([`crate::cost::figures`]). If no `rule` line applies either, the model's fastest variant
//! replaces the variant of the library's own rules where the model predicts it to be clearly
//! faster. Parameters that a `model` line leaves out get defaults, which are right in order of
//! magnitude for this library's own links. An entry ends at the end of its line or at a `;`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::str::FromStr;

use super::line::LineError;
use super::rules::Rule;
use super::variant::{self, Variant};
use crate::cost::figures;
use crate::cost::walk::Model;
use crate::types::Collective;
use crate::value::Value;

/// Variables that a table may set: those that change only the speed of a communicator.
pub const SETTABLE: [&str; 6] = [
    "FERROCCL_CHANNELS",
    "FERROCCL_SLOTS",
    "FERROCCL_SLOT_BYTES",
    "FERROCCL_ZERO_COPY_BYTES",
    "FERROCCL_SOCKETS",
    "FERROCCL_IB_POLICY",
];

/// Tuning table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// Machine that was measured.
    pub machine: Option<String>,
    /// Tunables, from [`SETTABLE`], and their values.
    pub settings: Vec<(&'static str, String)>,
    /// Parameters of the model that fits the measurements best.
    pub model: Option<Model>,
    /// Rules that come before the library's own.
    pub rules: Vec<Rule>,
    /// Measurements and predictions.
    pub points: Vec<Point>,
}

/// Equality is total: reading checks the range of every number of a table, so none is NaN.
impl Eq for Tuning {}

/// Measurement or prediction of a collective at one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The collective.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Bytes of the larger buffer.
    pub bytes: usize,
    /// True if the times are predictions of a model.
    pub is_predicted: bool,
    /// Times of the variants, in any order.
    pub times: Vec<Measured>,
}

/// Time of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The variant.
    pub variant: Variant,
    /// Median time, in nanoseconds.
    pub median_ns: u64,
    /// Half the distance between the quartiles of the measurements, in nanoseconds.
    pub deviation_ns: u64,
}

/// Error for a table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TuningError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Problem with the line.
    pub problem: LineError,
}

/// Change of a point from one table to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Point of the newer table.
    pub point: Point,
    /// Fastest variant of the older table.
    pub old: Measured,
    /// Fastest variant of the newer table.
    pub new: Measured,
    /// True if the newer time exceeds the sum of the older time, the allowed fraction of the older
    /// time, and both deviations ([`Tuning::changes`]).
    pub is_slower: bool,
}

impl Point {
    /// Returns the fastest of the variants that may be taken.
    pub fn fastest(&self, may: impl Fn(&str) -> bool) -> Option<&Measured> {
        let allowed = self.times.iter().filter(|time| may(time.variant.algorithm));
        allowed.min_by_key(|time| time.median_ns)
    }

    fn is_like(&self, other: &Point) -> bool {
        self.key() == other.key() && self.is_predicted == other.is_predicted
    }

    fn key(&self) -> (Collective, u32, u32, usize) {
        (self.collective, self.ranks, self.hosts, self.bytes)
    }
}

impl Tuning {
    /// Table without content.
    pub const NONE: Tuning = Tuning {
        machine: None,
        settings: Vec::new(),
        model: None,
        rules: Vec::new(),
        points: Vec::new(),
    };

    /// Returns the measurement with exactly this number of bytes.
    #[must_use]
    pub fn point(
        &self,
        collective: Collective,
        (ranks, hosts): (u32, u32),
        bytes: usize,
    ) -> Option<&Point> {
        self.measured().find(|point| point.key() == (collective, ranks, hosts, bytes))
    }

    /// Returns the fastest variant at the point nearest to this number of bytes, and whether its
    /// time is predicted. Takes only algorithms for which `may` is true. Returns none if there is
    /// no point with these ranks and hosts, or if no algorithm of the nearest point may be taken.
    pub fn fastest(
        &self,
        collective: Collective,
        (ranks, hosts): (u32, u32),
        bytes: usize,
        may: impl Fn(&str) -> bool,
    ) -> Option<(Variant, bool)> {
        let logarithm = |bytes: usize| (bytes.max(1) as f64).ln();
        let off = |point: &&Point| (logarithm(point.bytes) - logarithm(bytes)).abs();
        let nearest = |predicted: bool| {
            let like = self.points.iter().filter(|point| {
                (point.collective, point.ranks, point.hosts) == (collective, ranks, hosts)
                    && point.is_predicted == predicted
            });
            like.min_by(|one, other| off(one).total_cmp(&off(other)))
        };
        let point = nearest(false).or_else(|| nearest(true))?;
        Some((point.fastest(may)?.variant, point.is_predicted))
    }

    /// Returns the changes of the measured points that both tables have. A point is slower if the
    /// newer time exceeds the sum of the older time, the fraction `allowed` of the older time (0.1:
    /// a tenth), and both deviations: noise does not count.
    #[must_use]
    pub fn changes(&self, newer: &Tuning, allowed: f64) -> Vec<Change> {
        let change = |point: &Point| {
            let older = self.points.iter().find(|older| older.is_like(point))?;
            let (old, new) = (*older.fastest(|_| true)?, *point.fastest(|_| true)?);
            let (was, is) = (old.median_ns as f64, new.median_ns as f64);
            let noise = (old.deviation_ns + new.deviation_ns) as f64;
            let is_slower = is > was * (1.0 + allowed) + noise;
            Some(Change { point: point.clone(), old, new, is_slower })
        };
        newer.measured().filter_map(change).collect()
    }

    /// Returns the points that are measurements.
    pub fn measured(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|point| !point.is_predicted)
    }

    fn text(&self, end: &str) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        if let Some(machine) = &self.machine {
            let _ = write!(text, "machine {machine}{end}");
        }
        for (variable, value) in &self.settings {
            let _ = write!(text, "set {variable}={}{end}", value.replace(';', "|"));
        }
        if let Some(model) = &self.model {
            let _ = write!(text, "model {}{end}", figures::write(model));
        }
        for rule in &self.rules {
            let _ = write!(text, "rule {rule}{end}");
        }
        for Point { collective, ranks, hosts, bytes, is_predicted, times } in &self.points {
            let mark = if *is_predicted { " predicted" } else { "" };
            let _ = write!(text, "{collective} ranks={ranks} hosts={hosts} bytes={bytes}{mark}:");
            for Measured { variant, median_ns, deviation_ns } in times {
                let us = |ns: u64| ns as f64 / 1e3;
                let _ = write!(text, " {variant}={}", us(*median_ns));
                if *deviation_ns > 0 {
                    let _ = write!(text, "~{}", us(*deviation_ns));
                }
            }
            text.push_str(end);
        }
        text
    }

    /// Returns the table, with one line for each entry.
    #[must_use]
    pub fn lines(&self) -> String {
        self.text("\n")
    }

    /// Returns the content of a file: the table after a comment line that describes it.
    #[must_use]
    pub fn file(&self) -> String {
        let head = "# Times measured by `ferroccl tune`, in microseconds: the median and, after ~, \
                    half the distance between the quartiles.\n";
        head.to_owned() + &self.lines()
    }
}

impl FromStr for Tuning {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<Tuning, TuningError> {
        let (mut tuning, mut known) = (Tuning::NONE, BTreeSet::new());
        for (number, row) in text.lines().enumerate() {
            for part in row.split('#').next().unwrap_or_default().split(';') {
                let part = part.trim();
                let wrong = |problem| TuningError { line: number + 1, problem };
                if let Some(machine) = part.strip_prefix("machine ") {
                    tuning.machine = Some(machine.trim().to_owned());
                } else if let Some(setting) = part.strip_prefix("set ") {
                    let (variable, value) = setting_of(setting).map_err(wrong)?;
                    if tuning.settings.iter().any(|(known, _)| *known == variable) {
                        return Err(wrong(LineError::SetBefore(variable)));
                    }
                    tuning.settings.push((variable, value));
                } else if part == "model" {
                    tuning.model = Some(figures::read("").map_err(|error| wrong(error.into()))?);
                } else if let Some(model) = part.strip_prefix("model ") {
                    tuning.model = Some(figures::read(model).map_err(|error| wrong(error.into()))?);
                } else if let Some(rule) = part.strip_prefix("rule ") {
                    tuning.rules.push(Rule::read(rule).map_err(wrong)?);
                } else if !part.is_empty() {
                    let point = point(part).map_err(wrong)?;
                    let (collective, ranks, hosts, bytes) = point.key();
                    let key = (collective.name(), ranks, hosts, bytes, point.is_predicted);
                    if !known.insert(key) {
                        return Err(wrong(LineError::SamePoint));
                    }
                    tuning.points.push(point);
                }
            }
        }
        Ok(tuning)
    }
}

fn setting_of(text: &str) -> Result<(&'static str, String), LineError> {
    let (variable, value) = text.split_once('=').unwrap_or((text, ""));
    let known = SETTABLE.iter().find(|known| **known == variable.trim());
    match known.filter(|_| !value.trim().is_empty()) {
        Some(known) => Ok((known, value.trim().replace('|', ";"))),
        None => Err(LineError::NotSettable { text: text.to_owned(), known: SETTABLE.join(" ") }),
    }
}

fn point(text: &str) -> Result<Point, LineError> {
    let like = "all_reduce ranks=2 hosts=1 bytes=8: direct=0.26~0.01";
    let (what, times) = text.split_once(':').ok_or(LineError::NoColon { like })?;
    let mut words = what.split_whitespace();
    let collective = words.next().unwrap_or_default();
    let collective: Collective =
        collective.parse().map_err(|_| LineError::UnknownCollective(collective.to_owned()))?;
    let mut of = |name: &str| {
        let word = words.next().unwrap_or_default();
        let number = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
        let number = number.and_then(|number| number.parse::<usize>().ok());
        number.ok_or_else(|| LineError::unlike(word, format!("{name}=2")))
    };
    let (ranks, hosts, bytes) = (of("ranks")?, of("hosts")?, of("bytes")?);
    let is_predicted = match words.next() {
        Some("predicted") => true,
        None => false,
        Some(word) => return Err(LineError::TooManyWords(word.to_owned())),
    };
    if let Some(word) = words.next() {
        return Err(LineError::TooManyWords(word.to_owned()));
    }
    let small = |number| u32::try_from(number).map_err(|_| LineError::TooLarge(number));
    let (ranks, hosts) = (small(ranks)?, small(hosts)?);
    let times = times.split_whitespace().map(|word| measured(collective, word));
    let times = times.collect::<Result<Vec<_>, _>>()?;
    if times.is_empty() {
        return Err(LineError::NoTime);
    }
    let variants: BTreeSet<_> =
        times.iter().map(|time| (time.variant.algorithm, time.variant.slot_fraction)).collect();
    if variants.len() < times.len() {
        return Err(LineError::TwoTimes);
    }
    Ok(Point { collective, ranks, hosts, bytes, is_predicted, times })
}

fn measured(collective: Collective, word: &str) -> Result<Measured, LineError> {
    let wrong = || LineError::unlike(word, "direct=0.26~0.01 (microseconds)");
    let (name, times) = word.split_once('=').ok_or_else(wrong)?;
    let (median, deviation) = times.split_once('~').unwrap_or((times, "0"));
    let (algorithm, slot_fraction) = variant::find(collective, name)?;
    let variant = Variant { algorithm: algorithm.name, slot_fraction };
    let ns = |text: &str| {
        let us = text.parse::<f64>().ok().filter(|us| (0.0..1e12).contains(us));
        us.map(|us| (us * 1e3).round() as u64).ok_or_else(wrong)
    };
    Ok(Measured { variant, median_ns: ns(median)?, deviation_ns: ns(deviation)? })
}

impl Value for Tuning {
    const KIND: &'static str = "a table written by `ferroccl tune`, or @ and the name of its file";

    fn read(text: &str) -> Option<Tuning> {
        text.parse().ok()
    }

    fn problem(text: &str) -> Option<String> {
        text.parse::<Tuning>().err().map(|error| error.to_string())
    }

    fn show(&self) -> String {
        self.text("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
        # of a test
        machine a box; set FERROCCL_IB_POLICY=bytes>=1M: qps=16 | qps=4; model fold_ns=33
        all_reduce ranks=2 hosts=1 bytes=8: direct=0.26~0.01 ring=1.2
        all_reduce ranks=2 hosts=1 bytes=1048576: ring=40.5~2 direct_two_phase=90 # noisy
        all_gather ranks=2 hosts=2 bytes=64: ring=9~1
        all_gather ranks=2 hosts=2 bytes=64 predicted: bruck=7
        all_gather ranks=4 hosts=2 bytes=64 predicted: ring/2=7 bruck=8
    ";

    fn table() -> Tuning {
        TABLE.parse().unwrap()
    }

    #[test]
    fn a_table_that_is_shown_reads_the_same() {
        let table = table();
        assert_eq!((table.machine.as_deref(), table.points.len()), (Some("a box"), 5));
        let settings = [("FERROCCL_IB_POLICY", "bytes>=1M: qps=16 ; qps=4".to_owned())];
        assert_eq!(table.settings, settings);
        assert_eq!(table.model.map(|model| model.processor.fold_ns), Some(33.0));
        assert_eq!(Tuning::read(&table.show()).as_ref(), Some(&table));
        assert_eq!(table.lines().parse::<Tuning>().as_ref(), Ok(&table));
        assert_eq!(Tuning::read(""), Some(Tuning::NONE));
        let general = Tuning::read("model").and_then(|table| table.model);
        assert_eq!(general, figures::read("").ok());
    }

    #[test]
    fn the_nearest_size_decides() {
        use Collective as C;
        let table = table();
        let fastest = |collective, of, bytes| {
            table.fastest(collective, of, bytes, |_| true).map(|(variant, _)| variant.algorithm)
        };
        for (bytes, expected) in [
            (0, "direct"),
            (8, "direct"),
            (2000, "direct"),
            (4000, "ring"),
            (1 << 20, "ring"),
            (1 << 30, "ring"),
        ] {
            assert_eq!(fastest(C::AllReduce, (2, 1), bytes), Some(expected), "{bytes}");
        }
        assert_eq!(fastest(C::AllReduce, (3, 1), 8), None);
        assert_eq!(fastest(C::AllReduce, (2, 2), 8), None);
        assert_eq!(fastest(C::Broadcast, (2, 1), 8), None);
        let not_ring = table.fastest(C::AllReduce, (2, 1), 1 << 20, |name| name != "ring");
        assert_eq!(not_ring.map(|(variant, _)| variant.algorithm), Some("direct_two_phase"));
        // Measurements come before predictions.
        let shown = |of| {
            let found = table.fastest(C::AllGather, of, 64, |_| true);
            found.map(|(variant, is_predicted)| (variant.to_string(), is_predicted))
        };
        assert_eq!(shown((2, 2)), Some(("ring".to_owned(), false)));
        assert_eq!(shown((4, 2)), Some(("ring/2".to_owned(), true)));
        assert_eq!(table.fastest(C::AllReduce, (2, 1), 8, |_| false), None);
    }

    #[test]
    fn only_a_change_beyond_the_noise_is_a_slowdown() {
        let slower = |old: &str, new: &str| {
            let line = |times: &str| format!("all_reduce ranks=2 hosts=1 bytes=8: {times}");
            let [old, new] = [old, new].map(|times| line(times).parse::<Tuning>().unwrap());
            old.changes(&new, 0.1).iter().map(|change| change.is_slower).collect::<Vec<_>>()
        };
        assert_eq!(slower("direct=10", "direct=10.9"), [false]);
        assert_eq!(slower("direct=10", "direct=11.1"), [true]);
        assert_eq!(slower("direct=10~0.5", "direct=11.9~0.5"), [false]);
        assert_eq!(slower("direct=10~0.5", "direct=12.1~0.5"), [true]);
        // A new variant is as fast as the old one was.
        assert_eq!(slower("direct=10", "direct=50 ring=10"), [false]);
        // The variant became faster.
        assert_eq!(slower("direct=10", "direct=1"), [false]);
        assert_eq!(table().changes(&Tuning::NONE, 0.1), []);
        // A change of the model is no regression.
        let line = |time| format!("all_reduce ranks=2 hosts=1 bytes=8 predicted: ring={time}");
        let [old, new] = [1, 9].map(|time| line(time).parse::<Tuning>().unwrap());
        assert_eq!(old.changes(&new, 0.1), []);
    }

    #[test]
    fn an_unreadable_line_is_reported_with_its_number() {
        for (text, words) in [
            ("x", "line 1: there is no `:`; write the line like `all_reduce"),
            ("\nall_reduc ranks=2 hosts=1 bytes=8: ring=1", "line 2: \"all_reduc\" is no"),
            ("all_reduce ranks=x hosts=1 bytes=8: ring=1", "\"ranks=x\" is not like ranks=2"),
            ("all_reduce ranks=2 bytes=8: ring=1", "\"bytes=8\" is not like hosts=2"),
            ("all_reduce ranks=9999999999 hosts=1 bytes=8: ring=1", "is too large"),
            ("all_reduce ranks=2 hosts=1 bytes=8:", "no time after"),
            ("all_reduce ranks=2 hosts=1 bytes=8: rign=1", "no algorithm \"rign\""),
            ("all_reduce ranks=2 hosts=1 bytes=8 x: ring=1", "\"x\" is one word too many"),
            ("all_reduce ranks=2 hosts=1 bytes=8: ring=1 ring=2", "appears twice"),
            ("all_reduce ranks=2 hosts=1 bytes=8: ring=-1", "\"ring=-1\" is not like"),
            ("all_reduce ranks=2 hosts=1 bytes=8: ring=nan", "\"ring=nan\" is not like"),
            ("all_reduce ranks=2 hosts=1 bytes=8: ring/3=1", "2, 4 or 8"),
            ("all_reduce ranks=2 hosts=1 bytes=8: ring/2=1 ring/2=2", "appears twice"),
            ("all_reduce ranks=2 hosts=1 bytes=8 predicted x: ring=1", "\"x\" is one word"),
            ("set FERROCCL_TIMEOUT=1", "use NAME=VALUE with one of"),
            ("set FERROCCL_SLOTS=", "use NAME=VALUE with one of"),
            ("set FERROCCL_SLOTS=1; set FERROCCL_SLOTS=1", "FERROCCL_SLOTS is set twice"),
            ("rule all_reduce ranks<8: ring", "line 1: \"ranks<8\" is not like ranks<=8"),
            ("model cal_ns=1", "\"cal_ns=1\" is not like call_ns=120"),
            (
                "all_reduce ranks=2 hosts=1 bytes=8: ring=1\n\
                 all_reduce ranks=2 hosts=1 bytes=8: ring=2",
                "line 2: an earlier line has the same collective",
            ),
        ] {
            let error = text.parse::<Tuning>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
