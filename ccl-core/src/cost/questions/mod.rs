//! Questions about cost that have a name: what each asks, its formula and where that comes from,
//! what must be known, and the answer. For whoever asks by text.

mod collectives;
mod measured;
mod networks;
mod training;

/// What a number is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, or a ratio.
    Count,
    /// Bytes.
    Bytes,
    /// Bytes per second, in one direction.
    BytesPerSecond,
    /// Seconds.
    Seconds,
    /// Operations.
    Operations,
    /// Operations per second.
    OperationsPerSecond,
}

/// What must be known.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// By which it is given.
    pub name: &'static str,
    /// In the formula.
    pub symbol: &'static str,
    /// Of what it is.
    pub unit: Unit,
    /// Unless it is given.
    pub default: Option<f64>,
}

/// One number of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// What it is.
    pub name: &'static str,
    /// Of what it is.
    pub unit: Unit,
    /// How much.
    pub value: f64,
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// By which it is asked.
    pub name: &'static str,
    /// What it asks.
    pub asks: &'static str,
    /// The formula, in the symbols of the inputs.
    pub formula: &'static str,
    /// Where the formula is from.
    pub source: &'static str,
    /// What must be known, in the order in which [`Question::answer`] takes it.
    pub inputs: &'static [Input],
    /// The answer, for as many numbers as there are inputs.
    pub answer: fn(&[f64]) -> Vec<Output>,
}

pub(super) const fn needs(name: &'static str, symbol: &'static str, unit: Unit) -> Input {
    Input { name, symbol, unit, default: None }
}

pub(super) const fn else_takes(input: Input, default: f64) -> Input {
    Input { default: Some(default), ..input }
}

pub(super) const fn out(name: &'static str, unit: Unit, value: f64) -> Output {
    Output { name, unit, value }
}

pub(super) const BYTES: Input = needs("bytes", "B", Unit::Bytes);
pub(super) const RANKS: Input = needs("ranks", "N", Unit::Count);
pub(super) const NODES: Input = needs("nodes", "M", Unit::Count);
pub(super) const RATE: Input = needs("bandwidth", "W", Unit::BytesPerSecond);
pub(super) const NODE_RATE: Input = needs("node-bandwidth", "W_node", Unit::BytesPerSecond);
pub(super) const FLOPS: Input = needs("flops", "C", Unit::OperationsPerSecond);
pub(super) const TOKENS: Input = needs("tokens", "B", Unit::Count);
pub(super) const WIDTH: Input = needs("width", "D", Unit::Count);
pub(super) const NODE_RANKS: Input = else_takes(needs("node-ranks", "D_n", Unit::Count), 8.0);
pub(super) const INNER: Input = needs("inner", "Y", Unit::Count);
pub(super) const TOP_K: Input = needs("k", "k", Unit::Count);
pub(super) const BUSBW: Input = needs("busbw", "b", Unit::BytesPerSecond);
pub(super) const ACCELERATORS: Input = needs("accelerators", "N", Unit::Count);
pub(super) const PARAMETERS: Input = needs("parameters", "P", Unit::Count);

pub(super) const SCALING: &str = "How to Scale Your Model, GPUs";
const PLAYBOOK: &str = "The Smol Training Playbook, interconnects";
const ENGINEERING: &str = "Machine Learning Engineering, network";

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Question> {
    let groups =
        [collectives::QUESTIONS, networks::QUESTIONS, training::QUESTIONS, measured::QUESTIONS];
    groups.into_iter().flatten()
}

/// The question of that name.
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
}
