//! Parameters of a model by name, so that they can be written, read and fitted.

use std::fmt::Write as _;

use thiserror::Error;

use super::walk::{Hop, Model, Owner, Processor};

/// Accessor of a parameter of a model.
pub type Figure = fn(&mut Model) -> &mut f64;

/// Named parameters of a model of ranks on processors, without GPUs. All are in nanoseconds or
/// nanoseconds per byte, except `network_bytes_per_s`.
pub const FIGURES: [(&str, Figure); 12] = [
    ("call_ns", |model| &mut model.processor.call_ns),
    ("within_latency_ns", |model| &mut model.within.latency_ns),
    ("within_message_ns", |model| &mut model.within.message_ns),
    ("fold_ns", |model| &mut model.processor.fold_ns),
    ("slot_byte_ns", |model| &mut model.processor.slot_ns),
    ("near_byte_ns", |model| &mut model.processor.memory_ns[0]),
    ("shared_byte_ns", |model| &mut model.processor.memory_ns[1]),
    ("far_byte_ns", |model| &mut model.processor.memory_ns[2]),
    ("network_latency_ns", |model| &mut model.between.latency_ns),
    ("network_message_ns", |model| &mut model.between.message_ns),
    ("network_byte_ns", |model| &mut model.between.byte_ns),
    ("network_bytes_per_s", |model| &mut model.between.bytes_per_s),
];

/// Assumed bandwidth of an unknown network, in bytes per second.
pub const NETWORK_BYTES_PER_S: f64 = 10e9;

/// Default parameters for ranks on processors: the order of magnitude of this library's own links.
const PROCESSOR: Processor =
    Processor { call_ns: 120.0, fold_ns: 40.0, slot_ns: 0.03, memory_ns: [0.03, 0.06, 0.12] };
const MEMORY: Hop =
    Hop { message_ns: 10.0, byte_ns: 0.0, latency_ns: 90.0, bytes_per_s: f64::INFINITY };
const SOCKET: Hop =
    Hop { message_ns: 4000.0, byte_ns: 0.1, latency_ns: 15_000.0, bytes_per_s: f64::INFINITY };

/// Returns the default model of ranks on processors, for hosts with this network bandwidth.
#[must_use]
pub fn processors(network_bytes_per_s: f64) -> Model {
    Model {
        processor: PROCESSOR,
        within: MEMORY,
        between: Hop { bytes_per_s: network_bytes_per_s, ..SOCKET },
        network_ports: Owner::Host,
    }
}

/// Returns each name with its number: `call_ns=120 fold_ns=40 …`.
#[must_use]
pub fn write(model: &Model) -> String {
    let (mut text, mut model) = (String::new(), *model);
    for (name, figure) in FIGURES {
        let space = if text.is_empty() { "" } else { " " };
        // Three digits: no measurement is more exact. Writing to a string does not fail.
        let number = *figure(&mut model);
        let scale = 10_f64.powi(2 - number.abs().max(1e-9).log10().floor() as i32);
        let _ = write!(text, "{space}{name}={}", (number * scale).round() / scale);
    }
    text
}

/// Error for a word that is not a parameter with a valid number.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{word:?} is not like call_ns=120; use a number of at least 1e-9 and below 1e13, and one of \
     these names: {}",
    FIGURES.map(|(known, _)| known).join(" ")
)]
pub struct FigureError {
    /// Word that was read.
    pub word: String,
}

/// Parses the output of [`write()`]. Parameters that are left out get the defaults of
/// `processors` with `NETWORK_BYTES_PER_S`.
///
/// # Errors
///
/// When a word is not a parameter with a valid number.
pub fn read(text: &str) -> Result<Model, FigureError> {
    let mut model = processors(NETWORK_BYTES_PER_S);
    for word in text.split_whitespace() {
        let (name, number) = word.split_once('=').unwrap_or((word, ""));
        let figure = FIGURES.iter().find(|(known, _)| *known == name);
        let number = number.parse().ok().filter(|number| (1e-9..1e13).contains(number));
        let (Some((_, figure)), Some(number)) = (figure, number) else {
            return Err(FigureError { word: word.to_owned() });
        };
        *figure(&mut model) = number;
    }
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_written_parameters_and_writing_them_again_gives_the_same_text() {
        let mut model = processors(12.5e9);
        model.processor.fold_ns = 41.25;
        let text = write(&model);
        assert!(text.contains("fold_ns=41.3 ") && text.contains("s=12500000000"), "{text}");
        let again = read(&text).unwrap();
        assert_eq!(write(&again), text);
        assert_eq!(read(""), Ok(processors(NETWORK_BYTES_PER_S)));
        for wrong in ["call_ns", "call_ns=0", "call_ns=nan", "cal_ns=1", "call_ns=-1", "=3"] {
            assert_eq!(read(wrong).unwrap_err().word, wrong);
        }
    }
}
