//! Variants: an algorithm and the length of its messages, such as `ring`, or `ring/4` for a quarter
//! of a slot.
//!
//! Shorter messages fill a pipeline of several steps sooner, but cost more per byte. The better
//! choice depends on the algorithm, the length of the call and the machine.

use std::fmt;

use crate::algorithm::{self, Algorithm};
use crate::types::Collective;

/// Part of a slot that a message may fill: the whole, a half, a quarter or an eighth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotFraction(u8);

/// An algorithm of some collective, and the part of a slot that its messages may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// Part of a slot that a message may fill.
    pub slot_fraction: SlotFraction,
}

/// Error for a variant that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariantError {
    /// A name that no algorithm of the collective has.
    #[error(transparent)]
    Unknown(#[from] algorithm::UnknownAlgorithm),
    /// A divisor after the `/` that is not 2, 4 or 8.
    #[error("\"{0}\": use 2, 4 or 8 after the /, for messages of 1/2, 1/4 or 1/8 of a slot")]
    SlotFraction(String),
}

impl SlotFraction {
    /// Whole slots: messages are as long as slots.
    pub const WHOLE: SlotFraction = SlotFraction(0);
    /// All fractions, the longest messages first.
    pub const ALL: [SlotFraction; 4] =
        [SlotFraction(0), SlotFraction(1), SlotFraction(2), SlotFraction(3)];

    /// Returns the index of the fraction in [`SlotFraction::ALL`].
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns the fraction at an index of [`SlotFraction::ALL`]; none for an index beyond its end.
    #[must_use]
    pub const fn of_number(number: u8) -> Option<SlotFraction> {
        if number < 4 { Some(SlotFraction(number)) } else { None }
    }

    /// Returns the largest payload of a message, in bytes. For whole slots, the result is
    /// `slot_bytes`. For other fractions, the result is the larger of `least` and the fraction of
    /// `slot_bytes`, rounded up to a multiple of 64 bytes, but at most `slot_bytes`.
    #[must_use]
    pub fn bytes(self, slot_bytes: usize, least: usize) -> usize {
        let part = (slot_bytes >> self.0).max(least).next_multiple_of(64);
        if self == SlotFraction::WHOLE { slot_bytes } else { part.min(slot_bytes) }
    }
}

/// Empty text for whole slots, otherwise `/` and the divisor.
impl fmt::Display for SlotFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == SlotFraction::WHOLE { Ok(()) } else { write!(f, "/{}", 1 << self.0) }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.algorithm, self.slot_fraction)
    }
}

/// Splits a text such as `ring/4` into the name and the fraction of a slot.
///
/// # Errors
///
/// When the text after a `/` is not 2, 4 or 8.
pub fn split(text: &str) -> Result<(&str, SlotFraction), VariantError> {
    let Some((name, divisor)) = text.split_once('/') else {
        return Ok((text, SlotFraction::WHOLE));
    };
    let slot_fraction = match divisor {
        "2" => SlotFraction(1),
        "4" => SlotFraction(2),
        "8" => SlotFraction(3),
        _ => return Err(VariantError::SlotFraction(text.to_owned())),
    };
    Ok((name, slot_fraction))
}

/// Returns the algorithm and the fraction of a slot that a text such as `ring/4` names.
///
/// # Errors
///
/// When the collective has no algorithm of that name, or the text after a `/` is not 2, 4 or 8.
pub fn find(
    collective: Collective,
    text: &str,
) -> Result<(&'static Algorithm, SlotFraction), VariantError> {
    let (name, slot_fraction) = split(text)?;
    Ok((algorithm::find(collective, name)?, slot_fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_that_is_shown_reads_the_same() {
        for slot_fraction in SlotFraction::ALL {
            let shown = Variant { algorithm: "ring", slot_fraction }.to_string();
            assert_eq!(split(&shown), Ok(("ring", slot_fraction)));
            assert_eq!(SlotFraction::of_number(slot_fraction.number()), Some(slot_fraction));
        }
        assert_eq!(SlotFraction::of_number(4), None);
        for wrong in ["ring/", "ring/1", "ring/3", "ring/16", "ring/4/2", "ring/-2", "/"] {
            let error = find(Collective::AllReduce, wrong).unwrap_err().to_string();
            assert!(error.contains("2, 4 or 8"), "{error}");
        }
        assert!(matches!(find(Collective::AllReduce, "/2"), Err(VariantError::Unknown(_))));
    }

    #[test]
    fn message_sizes_are_whole_cache_lines_from_the_minimum_up_to_a_slot() {
        let bytes = |number, slot, least| SlotFraction(number).bytes(slot, least);
        assert_eq!(bytes(0, 131_072, 0), 131_072);
        assert_eq!(bytes(2, 131_072, 0), 32_768);
        assert_eq!(bytes(3, 4_160, 0), 576);
        assert_eq!(bytes(3, 4_096, 1_000), 1_024);
        assert_eq!(bytes(3, 4_096, 9_000), 4_096);
    }
}
