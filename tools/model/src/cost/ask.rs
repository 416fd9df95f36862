//! Questions about cost in text form: inputs are given as `name=value`, with units.

use std::fmt;

use crate::cost::questions::{Input, Output, Question, all, find};
use serde::Serialize;

use crate::quantity::{parse, show};

/// An answer with its question.
#[derive(Debug)]
pub struct Answer {
    question: &'static Question,
    given: Vec<f64>,
    outputs: Vec<Output>,
}

/// Answers the question of that name; inputs are given as `name=value`.
///
/// # Errors
///
/// When there is no such question; when an input is missing, unknown, given twice, not a number of
/// its unit, or has no meaning for the formula.
pub fn answer(name: &str, given: &[String]) -> Result<Answer, String> {
    let question = find(name).ok_or_else(|| {
        let names: Vec<&str> = all().map(|question| question.name).collect();
        format!("there is no question {name:?}; the questions are {}", names.join(", "))
    })?;
    let mut values: Vec<Option<f64>> = vec![None; question.inputs.len()];
    for text in given {
        let (name, value) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
        let at = question.inputs.iter().position(|input| input.name == name);
        let at = at.ok_or_else(|| {
            format!("{} has no input {name:?}; it takes {}", question.name, inputs(question))
        })?;
        let value = parse(value, question.inputs[at].unit)?;
        question.inputs[at].check(value).map_err(|error| error.to_string())?;
        if values[at].replace(value).is_some() {
            return Err(format!("{name} is given twice"));
        }
    }
    let known = question.inputs.iter().zip(values).map(|(input, value)| value.or(input.default));
    let missing = question.inputs.iter().zip(known.clone()).find(|(_, value)| value.is_none());
    if let Some((Input { name, .. }, _)) = missing {
        return Err(format!("{} needs {name}; it takes {}", question.name, inputs(question)));
    }
    let given: Vec<f64> = known.flatten().collect();
    question.check(&given).map_err(|error| error.to_string())?;
    let outputs = (question.answer)(&given);
    Ok(Answer { question, given, outputs })
}

/// Names the inputs of a question, with their defaults, for people.
fn inputs(question: &Question) -> String {
    let input = |input: &Input| match input.default {
        Some(value) if value.is_finite() => {
            format!("[{}={}]", input.name, show(value, input.unit).replace(' ', ""))
        }
        Some(_) => format!("[{}]", input.name),
        None => input.name.to_owned(),
    };
    question.inputs.iter().map(input).collect::<Vec<_>>().join(" ")
}

/// Lists all questions, one paragraph each.
#[must_use]
pub fn list() -> String {
    let paragraph = |question: &Question| {
        let Question { name, asks, formula, .. } = question;
        format!("{name}  {}\n    {asks}\n    {formula}\n", inputs(question))
    };
    all().map(paragraph).collect()
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Question { asks, formula, source, inputs, .. } = self.question;
        writeln!(f, "{asks}\n  {formula}\n  ({source})")?;
        for (input, value) in inputs.iter().zip(&self.given) {
            let Input { name, symbol, unit, .. } = input;
            writeln!(f, "  with {name} {symbol} = {}", show(*value, *unit))?;
        }
        let width = self.outputs.iter().map(|output| output.name.len()).max().unwrap_or(0);
        for Output { name, unit, value } in &self.outputs {
            writeln!(f, "{name:width$}  {}", show(*value, *unit))?;
        }
        Ok(())
    }
}

impl Serialize for Answer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Number<'n> {
            name: &'n str,
            value: Option<f64>,
            text: String,
        }
        #[derive(Serialize)]
        struct Shown<'s> {
            question: &'s str,
            asks: &'s str,
            formula: &'s str,
            source: &'s str,
            inputs: Vec<Number<'s>>,
            answer: Vec<Number<'s>>,
        }
        let number = |name, unit, value: f64| Number {
            name,
            value: Some(value).filter(|value| value.is_finite()),
            text: show(value, unit),
        };
        let Question { name, asks, formula, source, inputs, .. } = self.question;
        let inputs = inputs.iter().zip(&self.given);
        let inputs = inputs.map(|(input, value)| number(input.name, input.unit, *value)).collect();
        let outputs = self.outputs.iter();
        let answer = outputs.map(|output| number(output.name, output.unit, output.value)).collect();
        Shown { question: name, asks, formula, source, inputs, answer }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(name: &str, given: &str) -> Result<String, String> {
        let given: Vec<String> = given.split_whitespace().map(str::to_owned).collect();
        answer(name, &given).map(|answer| answer.to_string())
    }

    #[test]
    fn answers_show_the_formula_and_numbers_with_five_digits() {
        let text = ask("all_gather", "bytes=536870912 ranks=8 bandwidth=450GB/s").unwrap();
        assert!(text.contains("T = B (N - 1) / (N W)"), "{text}");
        assert!(text.contains("time            1.0439 ms"), "{text}");
        let text = ask("pod_all_gather", "bytes=1GB").unwrap();
        assert!(text.contains("of all         412.9 GB/s"), "{text}");
        let text = ask("data_parallel", "flops=990T bandwidth=400GB/s experts=128 k=4").unwrap();
        assert!(text.contains("79200"), "{text}");
        let text = ask("data_parallel", "flops=990T bandwidth=400GB/s groups=2").unwrap();
        assert!(text.contains("1237.5"), "{text}");
        let text = ask("transfer", "bytes=16GB bandwidth=400Gb/s").unwrap();
        assert!(text.contains("320 ms"), "{text}");
        let text = ask("wire_rate", "busbw=480GB/s ranks=8").unwrap();
        assert!(text.contains("308.57 GB/s"), "{text}");
    }

    #[test]
    fn unknown_questions_and_wrong_inputs_are_reported() {
        for (name, given, words) in [
            ("all_gathr", "", "there is no question \"all_gathr\"; the questions are all_gather, "),
            ("all_gather", "bytes=1GB ranks=8", "needs bandwidth; it takes bytes ranks bandwidth"),
            ("all_gather", "bytes=1GB ranks=8 width=3", "has no input \"width\""),
            ("all_gather", "bytes=1GB bytes=2GB", "bytes is given twice"),
            ("all_gather", "bytes", "is not NAME=VALUE"),
            ("all_gather", "bytes=1G", "GB (10^9 bytes) or GiB (2^30 bytes)"),
            ("all_gather", "bytes=-1GB", "not less than 0"),
            ("all_gather", "ranks=nan", "nan"),
            (
                "all_gather",
                "bytes=1GB ranks=0.5 bandwidth=1GB/s",
                "ranks is 0.5; give a whole number, 1 or more",
            ),
            ("pod_all_gather", "bytes=1GB units=0.5", "units is 0.5; give a whole number"),
            ("pod_all_gather", "bytes=1GB units=2.5", "units is 2.5; give a whole number"),
            (
                "expert_parallel",
                "flops=1T node-bandwidth=1GB/s tokens=1M width=4k accelerators=4",
                "accelerators is 4, less than node-ranks (8); give 8 or more",
            ),
        ] {
            let error = ask(name, given).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        // One rank has no peer to send to; without bandwidth the time is infinite.
        let text = ask("all_gather", "bytes=1GB ranks=1 bandwidth=1GB/s").unwrap();
        assert!(text.contains("time            0 s"), "{text}");
        let text = ask("all_gather", "bytes=1GB ranks=2 bandwidth=0").unwrap();
        assert!(text.contains("never"), "{text}");
    }

    #[test]
    fn every_question_is_listed_with_its_inputs() {
        let text = list();
        assert!(all().all(|question| text.contains(question.asks)));
        assert!(
            text.contains("pod_all_gather  bytes [node-ranks=8] [bandwidth=450GB/s]"),
            "{text}"
        );
    }
}
