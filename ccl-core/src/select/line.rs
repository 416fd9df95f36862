//! Errors in a line of a tuning table.

use thiserror::Error;

use super::variant::VariantError;
use crate::cost::figures::FigureError;

/// Reason why a line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LineError {
    /// A word that is not allowed in its position.
    #[error("{word:?} is not like {like}")]
    Unlike {
        /// Word of the line.
        word: String,
        /// Example of an allowed word.
        like: String,
    },
    /// A line without a colon.
    #[error("there is no `:`; write the line like `{like}`")]
    NoColon {
        /// Example of an allowed line.
        like: &'static str,
    },
    /// A superfluous word.
    #[error("{0:?} is one word too many before the `:`")]
    TooManyWords(String),
    /// A number that is too large.
    #[error("{0} is too large for a number of ranks or hosts")]
    TooLarge(usize),
    /// A name that no collective has.
    #[error("{0:?} is no collective")]
    UnknownCollective(String),
    /// A rule without a collective.
    #[error("the rule names no collective")]
    NoCollective,
    /// A rule whose reason has no closing parenthesis.
    #[error("({0} has no end; close the parenthesis")]
    OpenReason(String),
    /// A measurement or prediction without times.
    #[error("there is no time after the `:`")]
    NoTime,
    /// A measurement or prediction with two times of one variant.
    #[error(
        "the same algorithm (with the same part of a slot) appears twice; remove one of its two \
         times"
    )]
    TwoTimes,
    /// A measurement or prediction that repeats an earlier one.
    #[error("an earlier line has the same collective, ranks, hosts and bytes; keep one")]
    SamePoint,
    /// A tunable that an earlier line sets.
    #[error("{0} is set twice; keep one setting")]
    SetBefore(&'static str),
    /// A setting that a table cannot have.
    #[error(
        "a table cannot have the setting {text:?}; use NAME=VALUE with one of these names: {known}"
    )]
    NotSettable {
        /// Text of the setting.
        text: String,
        /// Tunables that a table may set.
        known: String,
    },
    /// A variant that does not exist.
    #[error(transparent)]
    Variant(#[from] VariantError),
    /// A word of a `model` line that is not the name of a parameter with a valid number.
    #[error(transparent)]
    Figure(#[from] FigureError),
}

impl LineError {
    pub(super) fn unlike(word: &str, like: impl Into<String>) -> LineError {
        LineError::Unlike { word: word.to_owned(), like: like.into() }
    }
}
