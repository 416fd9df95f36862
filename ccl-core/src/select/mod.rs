//! Choice of the algorithm of a call: a function of facts that are equal on all ranks.
//!
//! A request of the call or of `FERROCCL_ALGO` decides. Without one, the times in the tuning table
//! ([`tuning`]) decide, then the rules of that table, then the library's own rules ([`rules`]). The
//! library's rules for one host come from measurements; those for several hosts choose algorithms
//! that send few messages or few bytes between hosts. The result is a [`variant`]. If a model is
//! given, a variant that the model predicts to be clearly faster replaces the variant that the
//! library's rules choose.

pub mod line;
pub mod rules;
pub mod tuning;
pub mod variant;

use crate::algorithm::{self, Algorithm, Family, Order, Params};
use crate::topology::Hosts;
use crate::types::Collective;
use rules::Rule;
use tuning::Tuning;
use variant::{SlotFraction, Variant, VariantError};

/// Facts that the choice depends on; equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Situation<'a> {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the larger buffer; 0 if not all ranks know the counts.
    pub bytes: usize,
    /// The ranks, and their placement on hosts.
    pub hosts: &'a Hosts,
    /// True if the bits of the result must depend on nothing but the data.
    pub deterministic: bool,
    /// Largest number of bytes in one message.
    pub slot_bytes: usize,
    /// Variant that the call requests.
    pub call: Option<&'a str>,
    /// Variant that the configuration requests, by name or family; it applies to collectives that
    /// have such an algorithm.
    pub configured: &'a str,
    /// Tuning table with measurements.
    pub tuning: &'a Tuning,
    /// Variants and their times in nanoseconds, as a model predicts them, the fastest first; empty
    /// without a model.
    pub predicted: &'a [(Variant, f64)],
}

/// A variant, and the reason for its choice.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The algorithm.
    pub algorithm: &'static Algorithm,
    /// Part of a slot that a message may fill.
    pub slot_fraction: SlotFraction,
    /// Reason in half a sentence, for `explain`.
    pub reason: &'a str,
    /// Rule that decided, if one did.
    pub rule: Option<&'a Rule>,
}

/// Error for a requested algorithm that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// A variant that does not exist.
    #[error(transparent)]
    Unknown(#[from] VariantError),
    /// An algorithm or family that the configuration requests, but that no collective has.
    #[error("FERROCCL_ALGO={name}: no algorithm or family has this name; use one of: {known}")]
    Configured {
        /// Name that the configuration requests.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// An algorithm that does not keep the order that the deterministic mode demands.
    #[error(
        "{collective} by \"{name}\" does not reduce in rank order, which \
         FERROCCL_DETERMINISTIC=1 demands; leave the choice to the library"
    )]
    Excluded {
        /// The collective.
        collective: Collective,
        /// Algorithm that the call requests.
        name: String,
    },
}

/// Chooses the variant of a call.
///
/// # Errors
///
/// When the call asks for an algorithm that its collective does not have, or one that the
/// deterministic mode excludes, or when the text after a `/` is not 2, 4 or 8.
pub fn choose<'a>(situation: &Situation<'a>) -> Result<Choice<'a>, ChoiceError> {
    let collective = situation.collective;
    if let Some(text) = situation.call {
        let (algorithm, slot_fraction) = variant::find(collective, text)?;
        if allowed(situation, algorithm) {
            let reason = "the call asks for it";
            return Ok(Choice { algorithm, slot_fraction, reason, rule: None });
        }
        return Err(ChoiceError::Excluded { collective, name: text.to_owned() });
    }
    let (configured, slot_fraction) = variant::split(situation.configured)?;
    let named = |algorithm: &&Algorithm| {
        let names = [algorithm.name, family_name(algorithm.family)];
        !configured.is_empty() && names.contains(&configured)
    };
    let mut configured = algorithm::of(collective).filter(named).peekable();
    let excluded = configured.peek().is_some();
    if let Some(algorithm) = configured.find(|algorithm| allowed(situation, algorithm)) {
        let reason = "FERROCCL_ALGO asks for it";
        return Ok(Choice { algorithm, slot_fraction, reason, rule: None });
    }
    let choice = match by_table(situation) {
        Some(choice) => choice,
        None => {
            let rule = by_rule(situation)?;
            faster(situation, &rule).unwrap_or(rule)
        }
    };
    let reason = match excluded {
        true => "FERROCCL_DETERMINISTIC=1 excludes the algorithm of FERROCCL_ALGO",
        false => choice.reason,
    };
    Ok(Choice { reason, ..choice })
}

/// Returns the choice of the table: by a time, or else by a rule.
fn by_table<'a>(situation: &Situation<'a>) -> Option<Choice<'a>> {
    tuned(situation).or_else(|| {
        let rules = situation.tuning.rules.iter();
        rules.filter(|rule| rule.applies(situation)).find_map(|rule| {
            let (algorithm, slot_fraction) = variant_of(situation.collective, rule).ok()?;
            let may = allowed(situation, algorithm) && fits(situation, algorithm);
            let reason = "chosen by a rule of the table (FERROCCL_TUNING)";
            may.then_some(Choice { algorithm, slot_fraction, reason, rule: Some(rule) })
        })
    })
}

fn variant_of(
    collective: Collective,
    rule: &Rule,
) -> Result<(&'static Algorithm, SlotFraction), ChoiceError> {
    let Variant { algorithm, slot_fraction } = rule.variant;
    let found = algorithm::find(collective, algorithm).map_err(VariantError::Unknown)?;
    Ok((found, slot_fraction))
}

/// Returns the choice of the library's own rules.
fn by_rule<'a>(situation: &Situation<'a>) -> Result<Choice<'a>, ChoiceError> {
    let collective = situation.collective;
    let rule = rules::built_in().iter().find(|rule| rule.applies(situation));
    let (algorithm, slot_fraction) = match rule {
        Some(rule) => variant_of(collective, rule)?,
        // A test checks that every collective but `send_recv` has a rule.
        None => variant::find(collective, "direct")?,
    };
    if fits(situation, algorithm) {
        let reason = rule.map_or("", |rule| &rule.reason);
        return Ok(Choice { algorithm, slot_fraction, reason, rule });
    }
    let mut narrow = ["ring", "direct"].into_iter().filter_map(|name| {
        let found = algorithm::find(collective, name).ok()?;
        (allowed(situation, found) && fits(situation, found)).then_some(found)
    });
    Ok(Choice {
        algorithm: narrow.next().unwrap_or(algorithm),
        slot_fraction,
        reason: "with this number of ranks, messages of the preferred algorithm do not fit a slot",
        rule: None,
    })
}

/// Checks that some collective has an algorithm of that name or family, so that the
/// configuration may request it.
///
/// # Errors
///
/// When no collective has such an algorithm (the error lists the names), or when the text after a
/// `/` is not 2, 4 or 8.
pub fn check_configured(text: &str) -> Result<(), ChoiceError> {
    let (name, _) = variant::split(text)?;
    let names = |algorithm: &Algorithm| [algorithm.name, family_name(algorithm.family)];
    if text.is_empty() || algorithm::all().any(|algorithm| names(algorithm).contains(&name)) {
        return Ok(());
    }
    let mut known: Vec<&str> = algorithm::all().flat_map(names).collect();
    known.sort_unstable();
    known.dedup();
    Err(ChoiceError::Configured { name: name.to_owned(), known: known.join(" ") })
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::Ring => "ring",
        Family::Tree => "tree",
        Family::RecursiveDoubling => "recursive_doubling",
        Family::Direct => "direct",
        Family::Bruck => "bruck",
        Family::Hierarchical => "hierarchical",
    }
}

fn allowed(situation: &Situation<'_>, algorithm: &Algorithm) -> bool {
    !situation.deterministic || algorithm.order != Order::Unspecified
}

/// Returns the least size of a slot, in bytes, that an algorithm needs. The slot must hold the
/// algorithm's message with the most parts, with one element of the widest type for each part.
#[must_use]
pub fn message_bytes_min(algorithm: &Algorithm, hosts: &Hosts) -> usize {
    let params = Params { rank: 0, ranks: hosts.ranks(), root: 0, hosts };
    (algorithm.schedule)(&params).message_parts as usize * ELEMENT_BYTES_MAX
}

/// Returns whether the algorithm's messages fit slots. With very many ranks, a slot may be too
/// small for one element per rank.
fn fits(situation: &Situation<'_>, algorithm: &Algorithm) -> bool {
    let parts_max = situation.hosts.ranks() as usize * PARTS_PER_RANK_MAX;
    parts_max * ELEMENT_BYTES_MAX <= situation.slot_bytes
        || message_bytes_min(algorithm, situation.hosts) <= situation.slot_bytes
}

/// Bytes of the widest type.
const ELEMENT_BYTES_MAX: usize = 8;
/// Largest number of parts per rank that any algorithm puts into a message. With few ranks, this
/// bound shows that all messages fit a slot, and [`fits`] makes no schedule.
const PARTS_PER_RANK_MAX: usize = 4;

/// Returns the fastest variant according to the table's measurements. If the table has none for the
/// collective, ranks and hosts of the call, its predictions count.
fn tuned<'a>(situation: &Situation<'a>) -> Option<Choice<'a>> {
    let Situation { collective, bytes, hosts, tuning, .. } = *situation;
    // Not all ranks know the counts, or the call is empty.
    if bytes == 0 {
        return None;
    }
    let may = |name: &str| {
        let found = algorithm::find(collective, name);
        found.is_ok_and(|algorithm| allowed(situation, algorithm) && fits(situation, algorithm))
    };
    let (fastest, is_predicted) =
        tuning.fastest(collective, (hosts.ranks(), hosts.count()), bytes, may)?;
    let algorithm = algorithm::find(collective, fastest.algorithm).ok()?;
    let reason = match is_predicted {
        true => "predicted to be the fastest (FERROCCL_TUNING)",
        false => "measured to be the fastest (FERROCCL_TUNING)",
    };
    Some(Choice { algorithm, slot_fraction: fastest.slot_fraction, reason, rule: None })
}

/// Bound on a ratio: the predicted time of the model's variant divided by that of the rules'
/// variant. The model's variant is taken if the ratio is below the bound. The bound is less than 1,
/// because a model's errors exceed the differences between similar variants.
const WORTH: f64 = 0.9;

/// Returns the variant that the model predicts to be the fastest of those that may be taken; none
/// unless the model predicts it to be clearly faster than the variant of the rules.
fn faster<'a>(situation: &Situation<'a>, rule: &Choice<'a>) -> Option<Choice<'a>> {
    let own = Variant { algorithm: rule.algorithm.name, slot_fraction: rule.slot_fraction };
    let (_, own_ns) = situation.predicted.iter().find(|(fastest, _)| *fastest == own)?;
    let mut others = situation.predicted.iter().filter_map(|(fastest, time_ns)| {
        let algorithm = algorithm::find(situation.collective, fastest.algorithm).ok()?;
        let may = allowed(situation, algorithm) && fits(situation, algorithm);
        may.then_some((algorithm, fastest.slot_fraction, *time_ns))
    });
    let (algorithm, slot_fraction, time_ns) = others.next()?;
    let reason = "predicted by the model in FERROCCL_TUNING to be faster than the rules' choice";
    let is_faster = time_ns < WORTH * own_ns;
    is_faster.then_some(Choice { algorithm, slot_fraction, reason, rule: None })
}

impl Situation<'_> {
    /// Returns whether the choice needs a model's predictions: the table has a model, the number of
    /// bytes is known and not 0, and neither a request of the call nor a time or a rule of the
    /// table decides. Ignores a request of the configuration.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let may_choose = self.tuning.model.is_some() && self.call.is_none() && self.bytes > 0;
        may_choose && by_table(self).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOGETHER: Hosts = Hosts::one(4);

    const LARGE: Situation<'_> = Situation {
        collective: Collective::AllReduce,
        bytes: 1 << 20,
        hosts: &TOGETHER,
        deterministic: false,
        slot_bytes: 64 << 10,
        call: None,
        configured: "",
        tuning: &Tuning::NONE,
        predicted: &[],
    };

    fn taken(situation: Situation<'_>) -> (&'static str, &str) {
        let choice = choose(&situation).unwrap();
        (choice.algorithm.name, choice.reason)
    }

    #[test]
    fn the_configured_algorithm_is_used_or_the_reason_says_why_not() {
        let ring = Situation { configured: "ring", ..LARGE };
        assert_eq!(taken(ring), ("ring", "FERROCCL_ALGO asks for it"));
        let (name, reason) = taken(Situation { deterministic: true, ..ring });
        assert_eq!(name, "direct_two_phase");
        assert!(reason.contains("FERROCCL_DETERMINISTIC=1 excludes"), "{reason}");
        // A broadcast reduces nothing, so the deterministic mode allows a ring.
        let broadcast =
            Situation { collective: Collective::Broadcast, deterministic: true, ..ring };
        assert_eq!(taken(broadcast), ("ring", "FERROCCL_ALGO asks for it"));
    }

    #[test]
    fn measured_times_come_before_the_rules() {
        let line = "all_reduce ranks=4 hosts=1 bytes=1048576: ring=1 direct_two_phase=2";
        let tuning = &line.parse().unwrap();
        let tuned = Situation { tuning, ..LARGE };
        assert_eq!(taken(tuned), ("ring", "measured to be the fastest (FERROCCL_TUNING)"));
        // The deterministic mode takes the fastest algorithm that folds in rank order. A request
        // comes before the times.
        assert_eq!(taken(Situation { deterministic: true, ..tuned }).0, "direct_two_phase");
        assert_eq!(taken(Situation { configured: "direct", ..tuned }).0, "direct");
        assert_eq!(taken(Situation { call: Some("direct"), ..tuned }).0, "direct");
        let others = Hosts::one(3);
        assert_eq!(taken(Situation { hosts: &others, ..tuned }).0, "direct_two_phase");
        let line = "all_reduce ranks=4 hosts=1 bytes=1048576 predicted: ring/8=1 ring=2";
        let tuned = Situation { tuning: &line.parse().unwrap(), ..LARGE };
        let choice = choose(&tuned).unwrap();
        assert_eq!((choice.algorithm.name, choice.slot_fraction.number()), ("ring", 3));
        assert!(choice.reason.contains("predicted"), "{}", choice.reason);
    }

    #[test]
    fn a_model_decides_only_if_the_gain_exceeds_its_errors() {
        let fastest = |text: &str| {
            let (algorithm, slot_fraction) = variant::find(Collective::AllReduce, text).unwrap();
            Variant { algorithm: algorithm.name, slot_fraction }
        };
        let rule = fastest("direct_two_phase");
        let clear = [(fastest("ring/4"), 80.0), (rule, 100.0)];
        let choice = choose(&Situation { predicted: &clear, ..LARGE }).unwrap();
        assert_eq!(
            (choice.algorithm.name, choice.slot_fraction.to_string()),
            ("ring", "/4".into())
        );
        assert!(choice.reason.contains("predicted"), "{}", choice.reason);
        let much_the_same = [(fastest("ring/4"), 91.0), (rule, 100.0)];
        let of_the_rule = taken(LARGE);
        assert_eq!(taken(Situation { predicted: &much_the_same, ..LARGE }), of_the_rule);
        // The deterministic mode excludes an algorithm without rank order. A request comes before
        // the model.
        let ordered = Situation { predicted: &clear, deterministic: true, ..LARGE };
        assert_eq!(taken(ordered).0, "direct_two_phase");
        let asked = Situation { predicted: &clear, call: Some("direct"), ..LARGE };
        assert_eq!(taken(asked).0, "direct");
        // The time of the rules' own variant is unknown.
        assert_eq!(taken(Situation { predicted: &clear[..1], ..LARGE }), of_the_rule);
    }

    #[test]
    fn a_model_is_used_only_if_nothing_else_decides() {
        let model: Tuning = "model".parse().unwrap();
        let open = Situation { tuning: &model, ..LARGE };
        assert!(open.is_open() && !LARGE.is_open());
        assert!(!Situation { call: Some("ring"), ..open }.is_open());
        assert!(!Situation { bytes: 0, ..open }.is_open());
        let line = "model; all_reduce ranks=4 hosts=1 bytes=8: ring=1";
        let measured: Tuning = line.parse().unwrap();
        let known = Situation { tuning: &measured, ..LARGE };
        assert!(!known.is_open());
        assert!(Situation { hosts: &Hosts::one(5), ..known }.is_open());
        // If the deterministic mode excludes an algorithm, its times and rules decide nothing.
        for line in ["all_reduce ranks=4 hosts=1 bytes=8: ring=1", "rule all_reduce: ring (so)"] {
            let excluded: Tuning = format!("model; {line}").parse().unwrap();
            let other = Situation { tuning: &excluded, ..LARGE };
            assert!(!other.is_open(), "{line}");
            assert!(Situation { deterministic: true, ..other }.is_open(), "{line}");
        }
    }

    #[test]
    fn a_call_that_requests_an_unusable_algorithm_is_refused() {
        let call = |name, deterministic| {
            choose(&Situation { call: Some(name), deterministic, ..LARGE })
                .map(|c| (c.algorithm.name, c.slot_fraction.number()))
        };
        assert_eq!(call("ring", false), Ok(("ring", 0)));
        assert_eq!(call("ring/4", false), Ok(("ring", 2)));
        assert!(matches!(call("ring/3", false), Err(ChoiceError::Unknown(_))));
        assert!(matches!(call("ring", true), Err(ChoiceError::Excluded { .. })));
        assert!(matches!(call("rign", false), Err(ChoiceError::Unknown(_))));
        assert!(check_configured("rign").unwrap_err().to_string().contains("ring"));
        assert!(check_configured("ring/4").is_ok() && check_configured("ring/5").is_err());
        let halves = choose(&Situation { configured: "ring/2", ..LARGE }).unwrap();
        assert_eq!((halves.algorithm.name, halves.slot_fraction.number()), ("ring", 1));
    }

    /// Returns the algorithms that the library chooses for a large call and for 8 bytes per rank.
    fn by_itself(ids: &[u32], collective: Collective) -> [&'static str; 2] {
        let hosts = Hosts::of(ids);
        let small = 8 * ids.len();
        [64 << 20, small]
            .map(|bytes| taken(Situation { collective, bytes, hosts: &hosts, ..LARGE }).0)
    }

    #[test]
    fn algorithms_for_hosts_with_several_ranks_send_little_between_hosts() {
        use Collective as C;
        let shared = [0, 0, 0, 1, 1, 1, 1, 1, 2, 2];
        for collective in [C::AllReduce, C::AllGather, C::AllGatherV, C::ReduceScatter] {
            assert_eq!(by_itself(&shared, collective), ["hierarchical"; 2], "{collective}");
        }
        for collective in [C::ReduceScatterV, C::Broadcast, C::Reduce] {
            assert_eq!(by_itself(&shared, collective), ["hierarchical"; 2], "{collective}");
        }
        assert_eq!(by_itself(&shared, C::AllToAll), ["direct", "hierarchical"]);
        assert_eq!(by_itself(&shared, C::AllToAllV), ["direct"; 2]);
        let hosts = Hosts::of(&shared);
        for collective in [C::AllReduce, C::ReduceScatter, C::Reduce, C::Broadcast] {
            let ordered = Situation { collective, deterministic: true, hosts: &hosts, ..LARGE };
            assert_ne!(choose(&ordered).unwrap().algorithm.order, Order::Unspecified);
        }
    }

    #[test]
    fn algorithms_whose_messages_do_not_fit_slots_are_not_chosen() {
        use Collective as C;
        let hosts: Vec<u32> = (0..2048).collect();
        let hosts = Hosts::of(&hosts);
        let small = Situation {
            collective: C::AllGather,
            bytes: 8 * 2048,
            hosts: &hosts,
            slot_bytes: 4096,
            ..LARGE
        };
        let (name, reason) = taken(small);
        assert!(name == "ring" && reason.contains("do not fit a slot"), "{name}: {reason}");
        assert_eq!(taken(Situation { slot_bytes: 64 << 10, ..small }).0, "bruck");
        // Like the rules, a tuning table cannot choose an algorithm whose messages do not fit.
        let line = "all_gather ranks=2048 hosts=2048 bytes=16384: bruck=1 ring=2";
        let tuned = Situation { tuning: &line.parse().unwrap(), ..small };
        assert_eq!(taken(tuned), ("ring", "measured to be the fastest (FERROCCL_TUNING)"));
    }

    #[test]
    fn hosts_with_one_rank_use_the_rules_for_networks() {
        use Collective as C;
        let many: Vec<u32> = (0..32).collect();
        assert_eq!(by_itself(&[0, 1], C::AllReduce), ["direct_two_phase", "recursive_doubling"]);
        assert_eq!(by_itself(&many, C::AllReduce), ["ring", "recursive_doubling"]);
        assert_eq!(by_itself(&many, C::AllGather), ["ring", "bruck"]);
        assert_eq!(by_itself(&many, C::Broadcast), ["double_tree", "tree"]);
        assert_eq!(by_itself(&[7; 4], C::AllReduce), ["direct_two_phase", "direct"]);
    }

    #[test]
    fn there_is_a_rule_for_every_call() {
        let shapes = [&[0][..], &[0; 2], &[0; 40], &[0, 1], &[0, 0, 1], &[0, 0, 1, 1]];
        for (hosts, bytes) in shapes.iter().flat_map(|ids| [(ids, 0), (ids, 8), (ids, 1 << 24)]) {
            for collective in Collective::ALL {
                let hosts = &Hosts::of(hosts);
                let situation = Situation { collective, bytes, hosts, ..LARGE };
                let any = rules::built_in().iter().any(|rule| rule.applies(&situation));
                // `send_recv` has no algorithms to choose from.
                assert!(any || collective == Collective::SendRecv, "{situation:?}");
            }
        }
    }

    #[test]
    fn rules_of_a_table_come_after_times_and_before_built_in_rules() {
        let lines = "rule all_reduce,broadcast ranks<=4 bytes>=1M: ring/2 (of a test)";
        let rules: Tuning = lines.parse().unwrap();
        assert_eq!(rules.lines().trim(), lines.replace("1M", "1024k"));
        let ruled = Situation { tuning: &rules, ..LARGE };
        let choice = choose(&ruled).unwrap();
        assert_eq!((choice.algorithm.name, choice.slot_fraction.number()), ("ring", 1));
        assert!(choice.reason.contains("a rule of the table"), "{}", choice.reason);
        assert_eq!(choice.rule, rules.rules.first());
        // The rule is not used where one of its bounds does not hold, or where the deterministic
        // mode excludes its variant.
        let (of_the_rule, five) = (taken(LARGE), Hosts::one(5));
        assert_eq!(taken(Situation { hosts: &five, ..ruled }), of_the_rule);
        assert_eq!(taken(Situation { bytes: (1 << 20) - 1, ..ruled }), of_the_rule);
        assert_eq!(taken(Situation { deterministic: true, ..ruled }).0, "direct_two_phase");
        let line = "all_reduce ranks=4 hosts=1 bytes=1048576: ring=9 direct=1";
        let measured: Tuning = format!("{lines}; {line}").parse().unwrap();
        assert_eq!(taken(Situation { tuning: &measured, ..LARGE }).0, "direct");
        let model: Tuning = format!("{lines}; model").parse().unwrap();
        let decided = Situation { tuning: &model, ..LARGE };
        assert!(!decided.is_open() && Situation { hosts: &five, ..decided }.is_open());
    }
}
