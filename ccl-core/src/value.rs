//! The types that tunables have, and the error for a value that cannot be read.

use std::time::Duration;

/// A type of tunable: how it is read and shown.
pub trait Value: Sized {
    /// Description of a value, to be read after "is not".
    const KIND: &'static str;
    /// Reads a value.
    fn read(text: &str) -> Option<Self>;
    /// Returns the exact problem with a text that cannot be read, if it is known.
    fn problem(text: &str) -> Option<String> {
        let _ = text;
        None
    }
    /// Shows a value so that it can be read again.
    fn show(&self) -> String;
}

/// Error for a tunable's value that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{variable}={given:?} is not {expected}{}; leave it unset for the default, {default}",
    problem.as_ref().map_or_else(String::new, |problem| format!(" ({problem})"))
)]
pub struct ConfigError {
    /// Name of the variable that was set.
    pub variable: String,
    /// Value that the variable was set to.
    pub given: String,
    /// Description of the values that can be read.
    pub expected: &'static str,
    /// Exact problem with the value, where more is known.
    pub problem: Option<String>,
    /// Default that holds if the variable is not set.
    pub default: String,
}

/// A number of bytes; read with the suffixes k, M and G (powers of 1,024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub usize);

impl Value for Bytes {
    const KIND: &'static str = "a number of bytes such as 4096, 64k or 1M";

    fn read(text: &str) -> Option<Bytes> {
        let (digits, shift) = match text.char_indices().last()? {
            (at, 'k' | 'K') => (&text[..at], 10),
            (at, 'm' | 'M') => (&text[..at], 20),
            (at, 'g' | 'G') => (&text[..at], 30),
            _ => (text, 0),
        };
        let number: usize = digits.parse().ok()?;
        number.checked_mul(1 << shift).map(Bytes)
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl Value for bool {
    const KIND: &'static str = "0 or 1";

    fn read(text: &str) -> Option<bool> {
        match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Some(true),
            "0" | "false" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    fn show(&self) -> String {
        u8::from(*self).to_string()
    }
}

/// A bool; an empty text, -1 and NCCL's default of -2 leave the choice open.
impl Value for Option<bool> {
    const KIND: &'static str = "0, 1, or -1 to leave the choice to the library";

    fn read(text: &str) -> Option<Option<bool>> {
        match text {
            "" | "-1" | "-2" => Some(None),
            _ => bool::read(text).map(Some),
        }
    }

    fn show(&self) -> String {
        self.map_or_else(|| "-1".to_owned(), |is| is.show())
    }
}

/// Extent of the network checks that ranks make when they join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkCheck {
    /// No checks.
    Off,
    /// Ranks check what the defaults assume about the network; this check sends no messages.
    Assumed,
    /// Ranks also measure the network by sending messages.
    Measure,
}

impl Value for NetworkCheck {
    const KIND: &'static str = "0, 1 or measure";

    fn read(text: &str) -> Option<NetworkCheck> {
        if text.eq_ignore_ascii_case("measure") {
            return Some(NetworkCheck::Measure);
        }
        bool::read(text).map(|is| if is { NetworkCheck::Assumed } else { NetworkCheck::Off })
    }

    fn show(&self) -> String {
        match self {
            NetworkCheck::Off => "0",
            NetworkCheck::Assumed => "1",
            NetworkCheck::Measure => "measure",
        }
        .to_owned()
    }
}

impl Value for u32 {
    const KIND: &'static str = "a number from 1 to 4294967295";

    fn read(text: &str) -> Option<u32> {
        text.parse().ok().filter(|&number| number > 0)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A number in base 10, or in base 16 such as `0x6a`; -1, which leaves the choice open in NCCL,
/// reads as 0.
impl Value for u8 {
    const KIND: &'static str = "a number from 0 to 255";

    fn read(text: &str) -> Option<u8> {
        match (text, text.strip_prefix("0x")) {
            ("-1", _) => Some(0),
            (_, Some(digits)) => u8::from_str_radix(digits, 16).ok(),
            (_, None) => text.parse().ok(),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A number in base 10 or 16; an empty text or -1 leaves the choice open.
impl Value for Option<u8> {
    const KIND: &'static str = "a number from 0 to 255, or -1";

    fn read(text: &str) -> Option<Option<u8>> {
        match text {
            "" | "-1" => Some(None),
            _ => u8::read(text).map(Some),
        }
    }

    fn show(&self) -> String {
        self.map_or_else(|| "-1".to_owned(), |number| number.to_string())
    }
}

/// Index in a table such as the GID table, from 0; an empty text or -1 leaves the choice open.
impl Value for Option<u32> {
    const KIND: &'static str = "a number of at least 0, or -1";

    fn read(text: &str) -> Option<Option<u32>> {
        match text {
            "" | "-1" => Some(None),
            _ => text.parse().ok().map(Some),
        }
    }

    fn show(&self) -> String {
        self.map_or_else(|| "-1".to_owned(), |row| row.to_string())
    }
}

impl Value for String {
    const KIND: &'static str = "a text";

    fn read(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

/// Time in seconds, with the suffix `s` or without one; with the suffix `ms` or `us`, in
/// milliseconds or microseconds.
impl Value for Duration {
    const KIND: &'static str = "a time such as 2s, 0.5, 500ms or 50us";

    fn read(text: &str) -> Option<Duration> {
        let (digits, unit) = match text {
            _ if text.ends_with("us") => (text.strip_suffix("us")?, 1e-6),
            _ if text.ends_with("ms") => (text.strip_suffix("ms")?, 1e-3),
            _ => (text.strip_suffix('s').unwrap_or(text), 1.0),
        };
        let number: f64 = digits.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * unit).ok()
    }

    fn show(&self) -> String {
        let micros = self.as_micros();
        let unit = |length, name: &str| {
            micros.is_multiple_of(length).then(|| format!("{}{name}", micros / length))
        };
        unit(1_000_000, "s").or_else(|| unit(1000, "ms")).unwrap_or_else(|| format!("{micros}us"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_with_their_suffixes() {
        assert_eq!(Bytes::read("1G"), Some(Bytes(1 << 30)));
        assert_eq!(Bytes::read("99999999999G"), None);
        assert_eq!(Bytes::read(""), None);
        assert_eq!(Duration::read("50us"), Some(Duration::from_micros(50)));
        assert_eq!(Duration::read("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(Duration::read("-1"), None);
        for text in ["0s", "1800s", "1500ms", "50us", "1001us"] {
            assert_eq!(Duration::read(text).map(|time| time.show()).as_deref(), Some(text));
        }
        assert_eq!(u32::read("0"), None);
    }

    #[test]
    fn network_checks_and_open_choices_are_read_and_shown() {
        use NetworkCheck::{Assumed, Measure, Off};
        for (text, check) in [("0", Off), ("1", Assumed), ("measure", Measure)] {
            assert_eq!(NetworkCheck::read(text), Some(check));
            assert_eq!(check.show(), text);
        }
        assert_eq!(["on", "2"].map(NetworkCheck::read), [Some(Assumed), None]);
        let routing = ["1", "0", "-1", "-2", ""].map(Option::<bool>::read);
        assert_eq!(
            routing,
            [Some(Some(true)), Some(Some(false)), Some(None), Some(None), Some(None)]
        );
        assert_eq!([Some(true), None].map(|is| is.show()), ["1", "-1"]);
    }

    #[test]
    fn numbers_are_read_as_users_of_nccl_write_them() {
        assert_eq!([u8::read("106"), u8::read("0x6a")], [Some(106); 2]);
        assert_eq!([u8::read("-1"), u8::read("256"), u8::read("0x")], [Some(0), None, None]);
        assert_eq!(Option::<u32>::read("3"), Some(Some(3)));
        assert_eq!([Option::<u32>::read("-1"), Option::<u32>::read("")], [Some(None); 2]);
        assert_eq!(Option::<u32>::read("x"), None);
    }
}
