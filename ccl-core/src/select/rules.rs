//! Selection rules as data, one rule per line; the first rule that applies decides.
//!
//! ```text
//! rule all_reduce,reduce hosts>=2 host_ranks<=1 bytes<=8k: tree/2 (small, across hosts)
//! ```
//!
//! A line names collectives, then bounds that must all hold, then the variant ([`super::variant`])
//! and, in parentheses, the reason. There are bounds on: `ranks`; `hosts`; `host_ranks` and
//! `host_ranks_min`, the numbers of ranks on the largest and the smallest host; `bytes`, of the
//! larger buffer; `bytes_per_rank`; and `messages`, the number of slots that the bytes fill. The
//! word `deterministic` limits a rule to that mode. The library's own rules are in `rules.txt`; the
//! tuning table in `FERROCCL_TUNING` can have further rules, which come first.

use std::fmt;
use std::sync::LazyLock;

use super::Situation;
use super::line::LineError;
use super::variant::{self, Variant};
use crate::types::Collective;
use crate::value::{Bytes, Value};

/// Text of the library's own rules.
pub const TEXT: &str = include_str!("rules.txt");

static BUILT_IN: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    // A test checks that every line can be read.
    TEXT.lines().filter_map(|line| Rule::read(line.strip_prefix("rule ")?).ok()).collect()
});

/// Returns the library's own rules, in order.
#[must_use]
pub fn built_in() -> &'static [Rule] {
    &BUILT_IN
}

/// A rule: the variant for calls of some kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Collectives that the rule applies to.
    pub collectives: Vec<Collective>,
    /// True if the rule is for the deterministic mode alone.
    pub deterministic: bool,
    /// Bounds that must all hold.
    pub bounds: Vec<Bound>,
    /// Variant that the rule chooses. Every collective of the rule has the variant's algorithm.
    pub variant: Variant,
    /// Reason, in half a sentence; may be empty.
    pub reason: String,
}

/// Bound on a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    quantity: Quantity,
    /// True if the quantity must be at least `number`; false if it must be at most `number`.
    at_least: bool,
    number: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Ranks,
    Hosts,
    HostRanks,
    HostRanksMin,
    Bytes,
    BytesPerRank,
    Messages,
}

const QUANTITIES: [(&str, Quantity); 7] = [
    ("ranks", Quantity::Ranks),
    ("hosts", Quantity::Hosts),
    ("host_ranks", Quantity::HostRanks),
    ("host_ranks_min", Quantity::HostRanksMin),
    ("bytes", Quantity::Bytes),
    ("bytes_per_rank", Quantity::BytesPerRank),
    ("messages", Quantity::Messages),
];

impl Quantity {
    fn of(self, situation: &Situation<'_>) -> usize {
        let Situation { hosts, bytes, slot_bytes, .. } = situation;
        match self {
            Quantity::Ranks => hosts.ranks() as usize,
            Quantity::Hosts => hosts.count() as usize,
            Quantity::HostRanks => hosts.largest() as usize,
            Quantity::HostRanksMin => hosts.smallest() as usize,
            Quantity::Bytes => *bytes,
            Quantity::BytesPerRank => bytes / hosts.ranks().max(1) as usize,
            Quantity::Messages => bytes.div_ceil((*slot_bytes).max(1)),
        }
    }
}

impl Rule {
    /// Returns whether the rule applies in a situation.
    #[must_use]
    pub fn applies(&self, situation: &Situation<'_>) -> bool {
        let holds = |bound: &Bound| {
            let quantity = bound.quantity.of(situation);
            if bound.at_least { quantity >= bound.number } else { quantity <= bound.number }
        };
        self.collectives.contains(&situation.collective)
            && (situation.deterministic || !self.deterministic)
            && self.bounds.iter().all(holds)
    }

    /// Parses the text after the word `rule`.
    pub(super) fn read(text: &str) -> Result<Rule, LineError> {
        let like = "rule all_reduce ranks<=8 bytes<=8k: direct (few ranks)";
        let (conditions, taken) = text.split_once(':').ok_or(LineError::NoColon { like })?;
        let (name, reason) = match taken.split_once('(') {
            Some((name, reason)) => match reason.trim().strip_suffix(')') {
                Some(reason) => (name, reason),
                None => return Err(LineError::OpenReason(reason.to_owned())),
            },
            None => (taken, ""),
        };
        let mut words = conditions.split_whitespace();
        let names = words.next().unwrap_or_default().split(',');
        let named =
            |name: &str| name.parse().map_err(|_| LineError::UnknownCollective(name.to_owned()));
        let collectives = names.map(named).collect::<Result<Vec<Collective>, _>>()?;
        let (mut deterministic, mut bounds) = (false, Vec::new());
        for word in words {
            match word {
                "deterministic" => deterministic = true,
                word => bounds.push(bound(word)?),
            }
        }
        let mut variant = None;
        for collective in &collectives {
            let (algorithm, slot_fraction) = variant::find(*collective, name.trim())?;
            variant = Some(Variant { algorithm: algorithm.name, slot_fraction });
        }
        let variant = variant.ok_or(LineError::NoCollective)?;
        Ok(Rule { collectives, deterministic, bounds, variant, reason: reason.to_owned() })
    }
}

fn bound(word: &str) -> Result<Bound, LineError> {
    let wrong = || {
        let names = QUANTITIES.map(|(name, _)| name).join(", ");
        let like = format!("ranks<=8 or bytes>=1M; the conditions are {names} and deterministic");
        LineError::unlike(word, like)
    };
    let (name, number, at_least) = match (word.split_once("<="), word.split_once(">=")) {
        (Some((name, number)), _) => (name, number, false),
        (_, Some((name, number))) => (name, number, true),
        _ => return Err(wrong()),
    };
    let (_, quantity) = QUANTITIES.iter().find(|(known, _)| *known == name).ok_or_else(wrong)?;
    let Bytes(number) = Bytes::read(number).ok_or_else(wrong)?;
    Ok(Bound { quantity: *quantity, at_least, number })
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = QUANTITIES.iter().find(|(_, quantity)| *quantity == self.quantity);
        let sign = if self.at_least { ">=" } else { "<=" };
        let (name, number) = (known.map_or("", |(name, _)| name), self.number);
        match number {
            kibibytes if kibibytes >= 1024 && kibibytes % 1024 == 0 => {
                write!(f, "{name}{sign}{}k", kibibytes / 1024)
            }
            number => write!(f, "{name}{sign}{number}"),
        }
    }
}

/// Text form of a rule, as it is read after the word `rule`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { collectives, deterministic, bounds, variant, reason } = self;
        let names: Vec<&str> = collectives.iter().map(|collective| collective.name()).collect();
        f.write_str(&names.join(","))?;
        if *deterministic {
            f.write_str(" deterministic")?;
        }
        bounds.iter().try_for_each(|bound| write!(f, " {bound}"))?;
        write!(f, ": {variant}")?;
        if reason.is_empty() { Ok(()) } else { write!(f, " ({reason})") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_librarys_rules_are_shown_as_in_their_file() {
        let lines = TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let shown = built_in().iter().map(|rule| format!("rule {rule}"));
        assert_eq!(lines.collect::<Vec<_>>(), shown.collect::<Vec<_>>());
    }

    #[test]
    fn malformed_rules_are_reported() {
        for (text, words) in [
            ("all_reduce ranks<=8", "there is no `:`"),
            ("all_reduc: ring", "\"all_reduc\" is no collective"),
            (": ring", "\"\" is no collective"),
            (
                "all_reduce,broadcast: recursive_doubling",
                "no algorithm \"recursive_doubling\" for broadcast",
            ),
            ("all_reduce ranks<8: ring", "\"ranks<8\" is not like ranks<=8"),
            ("all_reduce rank<=8: ring", "\"rank<=8\" is not like"),
            ("all_reduce bytes<=8x: ring", "\"bytes<=8x\" is not like"),
            ("all_reduce: ring/3", "2, 4 or 8"),
            ("all_reduce: ring (why", "close the parenthesis"),
        ] {
            let error = Rule::read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
