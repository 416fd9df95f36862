//! Which algorithm a call takes: a function of what all ranks know alike.
//!
//! The rules are few and readable because they are measured defaults for ranks that share a host;
//! the planner proper (a cost model over a topology) will replace the thresholds, not the
//! interface.

use crate::algorithm::{self, Algorithm, Family, Order, UnknownAlgorithm};
use crate::types::Collective;

/// What the choice depends on; equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation<'a> {
    /// What is called.
    pub collective: Collective,
    /// Bytes of the larger buffer; 0 where the counts are not known to all ranks.
    pub bytes: usize,
    /// Ranks.
    pub ranks: u32,
    /// Whether the bits may depend on nothing but the data.
    pub deterministic: bool,
    /// The most bytes in one message.
    pub slot_bytes: usize,
    /// The algorithm that the call asks for, by name.
    pub call: Option<&'a str>,
    /// The algorithm that the configuration asks for wherever there is one of that name or family.
    pub configured: &'a str,
}

/// An algorithm and why it was taken.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: &'static Algorithm,
    /// A half sentence for `explain`.
    pub reason: &'static str,
}

/// Why an algorithm that was asked for is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// There is none of that name.
    #[error(transparent)]
    Unknown(#[from] UnknownAlgorithm),
    /// The configuration asks for one that no collective has.
    #[error(
        "FERROCCL_ALGO={name}: no collective has such an algorithm or family; there are: {known}"
    )]
    Configured {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// It does not keep the order that the deterministic mode demands.
    #[error(
        "{collective} by \"{name}\" does not reduce in rank order, which \
         FERROCCL_DETERMINISTIC=1 demands; leave the choice to the library"
    )]
    Excluded {
        /// What was called.
        collective: Collective,
        /// What was asked for.
        name: String,
    },
}

/// Chooses.
///
/// # Errors
///
/// When the call asks for an algorithm that its collective does not have, or one that the
/// deterministic mode excludes.
pub fn choose(situation: &Situation<'_>) -> Result<Choice, ChoiceError> {
    let collective = situation.collective;
    if let Some(name) = situation.call {
        let algorithm = algorithm::find(collective, name)?;
        if allowed(situation, algorithm) {
            return Ok(Choice { algorithm, reason: "the call asks for it" });
        }
        return Err(ChoiceError::Excluded { collective, name: name.to_owned() });
    }
    let named = |algorithm: &&Algorithm| {
        let names = [algorithm.name, family_name(algorithm.family)];
        !situation.configured.is_empty() && names.contains(&situation.configured)
    };
    let mut configured = algorithm::of(collective).filter(named).peekable();
    let excluded = configured.peek().is_some();
    if let Some(algorithm) = configured.find(|algorithm| allowed(situation, algorithm)) {
        return Ok(Choice { algorithm, reason: "FERROCCL_ALGO asks for it" });
    }
    let (name, reason) = default(situation);
    let reason = match excluded {
        true => "FERROCCL_DETERMINISTIC=1 excludes what FERROCCL_ALGO asks for",
        false => reason,
    };
    Ok(Choice { algorithm: algorithm::find(collective, name)?, reason })
}

/// Whether some collective has an algorithm of that name or family: what the configuration may ask
/// for.
///
/// # Errors
///
/// If none has; the error lists the names.
pub fn check_configured(name: &str) -> Result<(), ChoiceError> {
    let names = |algorithm: &Algorithm| [algorithm.name, family_name(algorithm.family)];
    if name.is_empty() || algorithm::all().any(|algorithm| names(algorithm).contains(&name)) {
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
    }
}

fn allowed(situation: &Situation<'_>, algorithm: &Algorithm) -> bool {
    !situation.deterministic || algorithm.order != Order::Unspecified
}

/// The rule for each collective.
fn default(situation: &Situation<'_>) -> (&'static str, &'static str) {
    use Collective as C;
    let Situation { bytes, ranks, slot_bytes, deterministic, .. } = *situation;
    let small = bytes <= (8 << 10).min(slot_bytes);
    let each = bytes / ranks.max(1) as usize;
    match situation.collective {
        C::AllReduce if small && ranks <= 8 => ("direct", "small: one message between any two"),
        C::AllReduce if deterministic => ("direct_two_phase", "deterministic: rank order"),
        C::AllReduce if small => ("recursive_doubling", "small, many ranks: few steps"),
        C::AllReduce if ranks <= 16 => {
            ("direct_two_phase", "ranks share memory: every byte crosses once per phase")
        }
        C::AllReduce => ("ring", "large, many ranks: neighbours only"),
        C::AllGather | C::AllGatherV if each <= 256 && ranks > 8 => {
            ("bruck", "small, many ranks: few steps")
        }
        C::AllGather | C::AllGatherV if ranks <= 16 => ("direct", "ranks share memory"),
        C::AllGather | C::AllGatherV => ("ring", "large, many ranks: neighbours only"),
        C::ReduceScatter | C::ReduceScatterV if deterministic || ranks <= 16 => {
            ("direct", "ranks share memory: each part is folded where it is needed")
        }
        C::ReduceScatter | C::ReduceScatterV => ("ring", "large, many ranks: neighbours only"),
        C::Broadcast if ranks <= 4 => ("direct", "few ranks: the root sends to all"),
        C::Broadcast => ("tree", "many ranks: few steps, pieces pipelined"),
        C::Reduce if deterministic || ranks <= 8 => ("direct", "few ranks: the root folds all"),
        C::Reduce => ("tree", "many ranks: few steps"),
        C::AllToAll if each <= 256 && ranks > 16 => ("bruck", "small, many ranks: few steps"),
        C::Barrier => ("dissemination", "few steps"),
        _ => ("direct", "every byte goes straight to where it is needed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Situation<'_> = Situation {
        collective: Collective::AllReduce,
        bytes: 1 << 20,
        ranks: 4,
        deterministic: false,
        slot_bytes: 64 << 10,
        call: None,
        configured: "",
    };

    fn taken(situation: Situation<'_>) -> (&'static str, &'static str) {
        let choice = choose(&situation).unwrap();
        (choice.algorithm.name, choice.reason)
    }

    #[test]
    fn the_configuration_is_obeyed_or_told_why_not() {
        let ring = Situation { configured: "ring", ..LARGE };
        assert_eq!(taken(ring), ("ring", "FERROCCL_ALGO asks for it"));
        let (name, reason) = taken(Situation { deterministic: true, ..ring });
        assert_eq!(name, "direct_two_phase");
        assert!(reason.contains("FERROCCL_DETERMINISTIC=1 excludes"), "{reason}");
        // A broadcast reduces nothing.
        let broadcast =
            Situation { collective: Collective::Broadcast, deterministic: true, ..ring };
        assert_eq!(taken(broadcast), ("ring", "FERROCCL_ALGO asks for it"));
    }

    #[test]
    fn a_call_that_asks_for_what_cannot_be_had_is_refused() {
        let call = |name, deterministic| {
            choose(&Situation { call: Some(name), deterministic, ..LARGE })
                .map(|c| c.algorithm.name)
        };
        assert_eq!(call("ring", false), Ok("ring"));
        assert!(matches!(call("ring", true), Err(ChoiceError::Excluded { .. })));
        assert!(matches!(call("rign", false), Err(ChoiceError::Unknown(_))));
        assert!(check_configured("rign").unwrap_err().to_string().contains("ring"));
    }
}
