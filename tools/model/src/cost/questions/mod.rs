//! Named questions about cost: each has a text, a formula with its source, inputs, and an answer
//! function. `super::ask` parses and prints them.

mod collectives;
mod measured;
mod networks;
mod training;

use crate::quantity::Unit;

/// Input of a formula.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// Name by which the input is given.
    pub name: &'static str,
    /// Symbol of the input in the formula.
    pub symbol: &'static str,
    /// Unit of the input.
    pub unit: Unit,
    /// Value of the input if none is given.
    pub default: Option<f64>,
    /// Least value for which the formula is defined.
    pub least: Least,
}

/// Least value of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Least {
    /// Any number that is not less than 0.
    Zero,
    /// A whole number of things, at least one.
    One,
    /// A whole number of things, at least the value of the named input.
    AsMany(&'static str),
}

/// Error for an input outside the range of a formula.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Input less than 0, or not finite.
    #[error("{name} is {given}; give a finite number that is not less than 0")]
    Negative {
        /// The input.
        name: &'static str,
        /// The value given.
        given: f64,
    },
    /// Input that is not a whole number, or is less than one.
    #[error("{name} is {given}; give a whole number, 1 or more")]
    Fraction {
        /// The input.
        name: &'static str,
        /// The value given.
        given: f64,
    },
    /// Input less than the count that bounds it.
    #[error("{name} is {given}, less than {of} ({least}); give {least} or more")]
    Fewer {
        /// The input.
        name: &'static str,
        /// The value given.
        given: f64,
        /// The input that is the lower bound.
        of: &'static str,
        /// Value of that input.
        least: f64,
    },
}

/// One number of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Name of the number.
    pub name: &'static str,
    /// Unit of the number.
    pub unit: Unit,
    /// Value in that unit.
    pub value: f64,
}

/// A question with its formula.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Name by which the question is asked.
    pub name: &'static str,
    /// Text of the question.
    pub asks: &'static str,
    /// The formula, in the symbols of the inputs.
    pub formula: &'static str,
    /// Source of the formula.
    pub source: &'static str,
    /// Inputs in the order in which [`Question::answer`] takes them.
    pub inputs: &'static [Input],
    /// Function from the values of `inputs`, already checked ([`Input::check`],
    /// [`Question::check`]), to the answer.
    pub answer: fn(&[f64]) -> Vec<Output>,
}

impl Input {
    /// Checks a number that was given for the input.
    ///
    /// # Errors
    ///
    /// When the formula is not defined for the number.
    pub fn check(&self, given: f64) -> Result<(), InputError> {
        let Input { name, least, .. } = *self;
        if !given.is_finite() || given < 0.0 {
            return Err(InputError::Negative { name, given });
        }
        if least != Least::Zero && (given < 1.0 || given.fract() != 0.0) {
            return Err(InputError::Fraction { name, given });
        }
        Ok(())
    }
}

impl Question {
    /// Checks the numbers of all inputs against each other.
    ///
    /// # Errors
    ///
    /// When an input is less than the input that bounds it.
    pub fn check(&self, numbers: &[f64]) -> Result<(), InputError> {
        let inputs = || self.inputs.iter().zip(numbers.iter().copied());
        for (input, given) in inputs() {
            let Least::AsMany(of) = input.least else { continue };
            let least =
                inputs().find(|(other, _)| other.name == of).map_or(0.0, |(_, least)| least);
            if given < least {
                return Err(InputError::Fewer { name: input.name, given, of, least });
            }
        }
        Ok(())
    }
}

pub(super) const fn needs(name: &'static str, symbol: &'static str, unit: Unit) -> Input {
    Input { name, symbol, unit, default: None, least: Least::Zero }
}

/// Returns an input that is a whole number of things.
pub(super) const fn counts(name: &'static str, symbol: &'static str) -> Input {
    Input { least: Least::One, ..needs(name, symbol, Unit::Count) }
}

pub(super) const fn no_fewer_than(of: &'static str, input: Input) -> Input {
    Input { least: Least::AsMany(of), ..input }
}

pub(super) const fn else_takes(input: Input, default: f64) -> Input {
    Input { default: Some(default), ..input }
}

pub(super) const fn out(name: &'static str, unit: Unit, value: f64) -> Output {
    Output { name, unit, value }
}

pub(super) const BYTES: Input = needs("bytes", "B", Unit::Bytes);
pub(super) const RANKS: Input = counts("ranks", "N");
pub(super) const NODES: Input = counts("nodes", "M");
pub(super) const RATE: Input = needs("bandwidth", "W", Unit::BytesPerSecond);
pub(super) const NODE_RATE: Input = needs("node-bandwidth", "W_node", Unit::BytesPerSecond);
pub(super) const FLOPS: Input = needs("flops", "C", Unit::OperationsPerSecond);
pub(super) const TOKENS: Input = needs("tokens", "B", Unit::Count);
pub(super) const WIDTH: Input = needs("width", "D", Unit::Count);
pub(super) const NODE_RANKS: Input = else_takes(counts("node-ranks", "D_n"), 8.0);
pub(super) const INNER: Input = counts("inner", "Y");
pub(super) const TOP_K: Input = counts("k", "k");
pub(super) const BUSBW: Input = needs("busbw", "b", Unit::BytesPerSecond);
pub(super) const ACCELERATORS: Input = counts("accelerators", "N");
pub(super) const PARAMETERS: Input = needs("parameters", "P", Unit::Count);

pub(super) const SCALING: &str = "How to Scale Your Model, GPUs";
const PLAYBOOK: &str = "The Smol Training Playbook, interconnects";
const ENGINEERING: &str = "Machine Learning Engineering, network";

/// Returns all questions.
pub fn all() -> impl Iterator<Item = &'static Question> {
    let groups =
        [collectives::QUESTIONS, networks::QUESTIONS, training::QUESTIONS, measured::QUESTIONS];
    groups.into_iter().flatten()
}

/// Returns the question of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Question> {
    all().find(|question| question.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_question_has_an_answer() {
        let names: BTreeSet<&str> = all().map(|question| question.name).collect();
        assert_eq!(names.len(), all().count());
        for question in all() {
            let inputs: BTreeSet<&str> = question.inputs.iter().map(|input| input.name).collect();
            assert_eq!(inputs.len(), question.inputs.len(), "{}", question.name);
            assert!(question.asks.ends_with('?'), "{}", question.asks);
            let given: Vec<f64> =
                question.inputs.iter().map(|input| input.default.unwrap_or(16.0)).collect();
            let answer = (question.answer)(&given);
            assert!(!answer.is_empty());
            assert!(answer.iter().all(|output| output.value.is_finite()), "{answer:?}");
        }
    }

    #[test]
    fn no_answer_is_negative_for_the_least_counts() {
        for question in all() {
            let given = |input: &Input| match input.least {
                Least::Zero => 16.0,
                Least::One | Least::AsMany(_) => 1.0,
            };
            let given: Vec<f64> = question.inputs.iter().map(given).collect();
            let inputs = question.inputs.iter().zip(&given);
            assert!(inputs.clone().all(|(input, given)| input.check(*given) == Ok(())));
            for Output { name, value, .. } in (question.answer)(&given) {
                assert!(value.is_nan() || value >= 0.0, "{}: {name} is {value}", question.name);
            }
        }
    }

    #[test]
    fn inputs_outside_the_range_of_a_formula_are_rejected() {
        let is_fraction = |given| matches!(RANKS.check(given), Err(InputError::Fraction { .. }));
        assert!(is_fraction(0.0) && is_fraction(0.5) && is_fraction(2.5) && !is_fraction(1.0));
        let is_negative = |given| matches!(BYTES.check(given), Err(InputError::Negative { .. }));
        assert!(is_negative(-1.0) && is_negative(f64::NAN) && is_negative(f64::INFINITY));
        assert_eq!((BYTES.check(0.0), BYTES.check(0.5)), (Ok(()), Ok(())));
        let question = find("expert_parallel").unwrap();
        let check = |node, accelerators| {
            question.check(&[990e12, 400e9, node, 1e6, 4096.0, accelerators, 1.0])
        };
        let (name, of) = ("accelerators", "node-ranks");
        let fewer = InputError::Fewer { name, given: 4.0, of, least: 8.0 };
        assert_eq!(check(8.0, 4.0), Err(fewer));
        for (node, accelerators) in [(8.0, 8.0), (4.0, 4.0), (72.0, f64::INFINITY)] {
            assert_eq!(check(node, accelerators), Ok(()));
        }
    }

    #[test]
    fn experts_exchange_over_nodes_of_any_number_of_ranks() {
        let exchanges = |node: f64| {
            let question = find("expert_parallel").unwrap();
            let given = [990e12, 400e9, node, 1e6, 4096.0, 64.0, 1.0];
            let answer = (question.answer)(&given);
            answer.into_iter().find(|output| output.name == "exchanges").unwrap().value
        };
        // 4 B D (Z - D_n) / (W_node Z) min(D_n k / Z, 1), by hand: 4 B D / W_node is 40.96 ms.
        for (node, share) in [(4.0, 60.0 / 64.0 * 4.0 / 64.0), (8.0, 56.0 / 64.0 * 8.0 / 64.0)] {
            crate::cost::about(exchanges(node), 40.96e-3 * share, 1e-12);
        }
    }
}
