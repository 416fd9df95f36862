//! Queue-pair policies as text: `all_to_all: qps=4; bytes>=1M: qps=16 order=split; qps=16`.
//!
//! Rules are separated by `;`. The words before a rule's `:` are its conditions: names of
//! collectives (separated by `,`), `bytes>=`, `bytes<`, `fan_out>=`, `fan_out<`, `tier=`. The
//! words after the `:`, or all words if there is no `:`, are the settings: `qps=`, `order=`,
//! `chunk=`, `in_flight=`, `budget=`, `tc=`. A single number instead of settings is the value of
//! `qps=`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{Order, PAIRS_MAX, Policy, Rule, Striping, Tier};
use crate::value::{Bytes, Value};

/// Error for a policy that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is {problem}; an example of a policy is {EXAMPLE:?}")]
pub struct PolicyError {
    /// Word at which reading stopped.
    pub word: String,
    /// Reason.
    pub problem: &'static str,
}

const EXAMPLE: &str = "all_to_all: qps=4; bytes>=1M: qps=16 order=split; qps=16";

const NAMES: [(Order, &str); 3] =
    [(Order::Split, "split"), (Order::RoundRobin, "round_robin"), (Order::LoadAware, "load_aware")];

const TIERS: [(Tier, &str); 2] = [(Tier::Host, "host"), (Tier::Network, "network")];

fn wrong(word: &str, problem: &'static str) -> PolicyError {
    PolicyError { word: word.to_owned(), problem }
}

fn number(word: &str, text: &str, most: usize) -> Result<usize, PolicyError> {
    let number = Bytes::read(text).map(|Bytes(number)| number).filter(|number| *number <= most);
    number.ok_or_else(|| wrong(word, "not a number, or too large"))
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        let mut rules = rules.map(rule).collect::<Result<Vec<_>, _>>()?;
        let always = |rule: &Rule| *rule == Rule::always(rule.striping);
        if !rules.last().is_some_and(always) {
            rules.extend(Policy::default().rules);
        }
        Ok(Policy { rules })
    }
}

fn rule(text: &str) -> Result<Rule, PolicyError> {
    let (conditions, settings) = text.split_once(':').unwrap_or(("", text));
    let mut rule = Rule::always(Policy::default().otherwise());
    conditions.split_whitespace().try_for_each(|word| condition(&mut rule, word))?;
    if let Ok(pairs) = settings.trim().parse::<u32>() {
        rule.striping.pairs = pairs;
    } else {
        settings.split_whitespace().try_for_each(|word| set(&mut rule.striping, word))?;
    }
    if !(1..=PAIRS_MAX).contains(&rule.striping.pairs) {
        return Err(wrong(settings.trim(), "not a rule with 1 to 64 queue pairs"));
    }
    Ok(rule)
}

fn condition(rule: &mut Rule, word: &str) -> Result<(), PolicyError> {
    let from = |range: &RangeInclusive<usize>, least| least..=*range.end();
    if let Some(least) = word.strip_prefix("bytes>=") {
        rule.bytes = from(&rule.bytes, number(word, least, usize::MAX)?);
    } else if let Some(below) = word.strip_prefix("bytes<") {
        let below = number(word, below, usize::MAX)?;
        let most = below.checked_sub(1).ok_or_else(|| wrong(word, "never true"))?;
        rule.bytes = *rule.bytes.start()..=most;
    } else if let Some(least) = word.strip_prefix("fan_out>=") {
        let least = number(word, least, u32::MAX as usize)? as u32;
        rule.fan_out = least..=*rule.fan_out.end();
    } else if let Some(below) = word.strip_prefix("fan_out<") {
        let below = number(word, below, u32::MAX as usize)? as u32;
        let most = below.checked_sub(1).ok_or_else(|| wrong(word, "never true"))?;
        rule.fan_out = *rule.fan_out.start()..=most;
    } else if let Some(name) = word.strip_prefix("tier=") {
        let tier = TIERS.iter().find(|(_, known)| *known == name);
        rule.tier = Some(tier.ok_or_else(|| wrong(word, "neither host nor network"))?.0);
    } else {
        for name in word.split(',') {
            let found = name.parse();
            rule.collectives.push(found.map_err(|_| wrong(word, "not a known condition"))?);
        }
    }
    Ok(())
}

fn set(striping: &mut Striping, word: &str) -> Result<(), PolicyError> {
    let (name, value) = word.split_once('=').ok_or_else(|| wrong(word, "not like qps=4"))?;
    match name {
        "qps" => striping.pairs = number(word, value, PAIRS_MAX as usize)? as u32,
        "order" => {
            let order = NAMES.iter().find(|(_, known)| *known == value);
            let problem = "not one of split, round_robin and load_aware";
            striping.order = order.ok_or_else(|| wrong(word, problem))?.0;
        }
        "chunk" => striping.chunk_bytes = number(word, value, usize::MAX)?.max(1),
        "in_flight" => striping.in_flight = number(word, value, 1 << 20)?.max(1) as u32,
        "budget" => striping.budget_bytes = number(word, value, usize::MAX)?.max(1),
        "tc" => {
            let class = u8::read(value).ok_or_else(|| wrong(word, "not a number from 0 to 255"));
            striping.traffic_class = Some(class?);
        }
        _ => return Err(wrong(word, "not one of qps, order, chunk, in_flight, budget and tc")),
    }
    Ok(())
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(order, _)| order == self).map_or("", |(_, name)| name))
    }
}

impl fmt::Display for Striping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Striping::default();
        write!(f, "qps={}", self.pairs)?;
        if self.order != default.order {
            write!(f, " order={}", self.order)?;
        }
        if self.chunk_bytes != default.chunk_bytes {
            write!(f, " chunk={}", self.chunk_bytes)?;
        }
        if self.in_flight != default.in_flight {
            write!(f, " in_flight={}", self.in_flight)?;
        }
        if self.budget_bytes != default.budget_bytes {
            write!(f, " budget={}", self.budget_bytes)?;
        }
        self.traffic_class.map_or(Ok(()), |class| write!(f, " tc={class}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut conditions = Vec::new();
        let names: Vec<String> = self.collectives.iter().map(ToString::to_string).collect();
        conditions.extend((!names.is_empty()).then(|| names.join(",")));
        let (least, most) = (*self.bytes.start(), *self.bytes.end());
        conditions.extend((least > 0).then(|| format!("bytes>={least}")));
        conditions.extend((most < usize::MAX).then(|| format!("bytes<{}", most + 1)));
        let (least, most) = (*self.fan_out.start(), *self.fan_out.end());
        conditions.extend((least > 0).then(|| format!("fan_out>={least}")));
        conditions.extend((most < u32::MAX).then(|| format!("fan_out<{}", most + 1)));
        let tier = TIERS.iter().find(|(tier, _)| Some(*tier) == self.tier);
        conditions.extend(tier.map(|(_, name)| format!("tier={name}")));
        if !conditions.is_empty() {
            write!(f, "{}: ", conditions.join(" "))?;
        }
        self.striping.fmt(f)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<String> = self.rules.iter().map(ToString::to_string).collect();
        f.write_str(&rules.join("; "))
    }
}

impl Value for Policy {
    const KIND: &'static str = "a policy such as \"all_to_all: qps=4; bytes>=1M: qps=16 \
                                order=split; qps=16\", or a number of queue pairs";

    fn read(text: &str) -> Option<Policy> {
        text.parse().ok()
    }

    fn problem(text: &str) -> Option<String> {
        text.parse::<Policy>().err().map(|error| error.to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_is_shown_reads_the_same() {
        for text in [
            EXAMPLE,
            "qps=16",
            "all_to_all,all_to_all_v: qps=4; qps=16",
            "bytes>=5 bytes<9 fan_out>=2 fan_out<4 tier=host: qps=3 order=load_aware chunk=7 \
             in_flight=5 budget=9 tc=0; qps=1 order=split",
        ] {
            let policy: Policy = text.parse().unwrap();
            assert_eq!(policy.to_string(), text.replace("1M", "1048576"));
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(Policy::default().to_string(), "all_to_all,all_to_all_v: qps=4; qps=16");
        let alone: Policy = "8".parse().unwrap();
        assert_eq!(alone.to_string(), "qps=8");
        let partial: Policy = "bytes<1k: 2;".parse().unwrap();
        let expected = format!("bytes<1024: qps=2; {}", Policy::default());
        assert_eq!(partial.to_string(), expected, "the default rules come last");
        let split: Policy = "bytes>=1M: order=split; 2".parse().unwrap();
        assert_eq!(split.to_string(), "bytes>=1048576: qps=16 order=split; qps=2");
    }

    #[test]
    fn an_error_names_the_word_that_cannot_be_read() {
        for (text, named) in [
            ("qps=0", "qps=0"),
            ("qps=65", "qps=65"),
            ("order=sideways", "order=sideways"),
            ("all_to_none: qps=4", "all_to_none"),
            ("tier=moon: qps=4", "tier=moon"),
            ("bytes>=x: qps=4", "bytes>=x"),
            ("tc=256", "tc=256"),
            ("speed=9", "speed=9"),
            ("many", "many"),
        ] {
            let error = text.parse::<Policy>().unwrap_err();
            assert_eq!(error.word, named);
            assert!(error.to_string().contains("all_to_all: qps=4"), "{error}");
        }
    }
}
