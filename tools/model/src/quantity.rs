//! Numbers with units, as text.

/// Unit of a number.
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

const BYTES: [(&str, f64); 10] = [
    ("", 1.0),
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
];
const DECIMAL: [(&str, f64); 8] = [
    ("", 1.0),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("B", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("%", 0.01),
];
const SECONDS: [(&str, f64); 6] =
    [("", 1.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9)];

/// Reads a number and its unit: `4GB`, `64KiB`, `450GB/s`, `400Gb/s` (bits), `990T`, `16k`, `45%`.
///
/// # Errors
///
/// When the text does not begin with a number, or its unit is unknown. An error about the unit
/// names valid units.
pub(crate) fn parse(text: &str, unit: Unit) -> Result<f64, String> {
    let wrong = |advice: &str| format!("{text:?} is not a valid quantity: {advice}");
    // The longest prefix that is a number gives the value; the rest of the text is the unit.
    let ends = (1..=text.len()).rev().filter(|end| text.is_char_boundary(*end));
    let number = ends.map(|end| text.split_at(end)).find_map(|(number, rest)| {
        let is_digit = number.ends_with(|last: char| last.is_ascii_digit() || last == '.');
        let value = number.parse::<f64>().ok().filter(|_| is_digit)?;
        Some((value, rest.trim()))
    });
    let (value, suffix) = number.ok_or_else(|| wrong("it must begin with a number"))?;
    let of = |table: &[(&str, f64)], suffix: &str| {
        table.iter().find(|(name, _)| *name == suffix).map(|(_, factor)| *factor)
    };
    let factor = match unit {
        Unit::Bytes => of(&BYTES, suffix).ok_or_else(|| {
            wrong("write bytes, or a unit such as GB (10^9 bytes) or GiB (2^30 bytes)")
        })?,
        Unit::BytesPerSecond => rate(suffix, &of).ok_or_else(|| {
            wrong("write bytes per second, or a unit such as GB/s, or Gb/s (bits)")
        })?,
        Unit::Seconds => {
            of(&SECONDS, suffix).ok_or_else(|| wrong("write seconds, ms, us or ns"))?
        }
        Unit::Count => of(&DECIMAL, suffix).ok_or_else(|| {
            wrong("write a number, with k, M, B or T if needed, such as 16k or 70B")
        })?,
        Unit::Operations | Unit::OperationsPerSecond => {
            let plain = suffix.trim_end_matches("/s").trim_end_matches("S");
            let plain = plain.trim_end_matches("FLOP").trim_end_matches("flop");
            of(&DECIMAL, plain).ok_or_else(|| wrong("write a number, such as 990T"))?
        }
    };
    Ok(value * factor)
}

/// Returns the value of a unit, such as `GB/s` or `Gb/s` (bits), in bytes per second.
fn rate(suffix: &str, of: &impl Fn(&[(&str, f64)], &str) -> Option<f64>) -> Option<f64> {
    if suffix.is_empty() {
        return Some(1.0);
    }
    let per_second = suffix.strip_suffix("/s").or_else(|| suffix.strip_suffix("ps"))?;
    let bits = per_second.strip_suffix("bit").or_else(|| per_second.strip_suffix('b'));
    match bits {
        Some(prefix) => of(&DECIMAL, prefix).map(|factor| factor / 8.0),
        None => of(&BYTES, per_second),
    }
}

/// Formats a number with five significant digits. A number with more than five digits before the
/// decimal point keeps all of them. Trailing zeros after the point are left out. Numbers below 1e-5
/// or from 1e12 on have an exponent.
fn digits(value: f64) -> String {
    let magnitude = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    if !(-5..12).contains(&magnitude) {
        return format!("{value:.4e}");
    }
    let text = format!("{value:.*}", (4 - magnitude).max(0) as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Formats a number in the largest unit that is not greater than the number, or in the smallest
/// unit if all units are greater.
fn scaled(value: f64, units: &[(&str, f64)]) -> String {
    let unit = units.iter().rev().find(|(_, factor)| value.abs() >= *factor * 0.99999);
    let (name, factor) = unit.or(units.first()).copied().unwrap_or(("", 1.0));
    format!("{} {name}", digits(value / factor))
}

/// Formats a number with its unit, for people.
#[must_use]
pub(crate) fn show(value: f64, unit: Unit) -> String {
    if value.is_nan() {
        return "undefined".to_owned();
    }
    match unit {
        Unit::Seconds if value.is_infinite() => "never".to_owned(),
        _ if value.is_infinite() => "unbounded".to_owned(),
        Unit::Seconds if value == 0.0 => "0 s".to_owned(),
        Unit::Seconds => scaled(
            value,
            &[("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("days", 86_400.0)],
        ),
        Unit::Bytes => scaled(value, &BYTES[1..6]),
        Unit::BytesPerSecond => scaled(
            value,
            &[("B/s", 1.0), ("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12)],
        ),
        Unit::Operations | Unit::OperationsPerSecond => {
            let units =
                [("FLOP", 1.0), ("GFLOP", 1e9), ("TFLOP", 1e12), ("EFLOP", 1e18), ("YFLOP", 1e24)];
            let text = scaled(value, &units);
            if unit == Unit::Operations { text } else { text + "/s" }
        }
        Unit::Count => digits(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_their_units() {
        for (text, unit, expected) in [
            ("4GB", Unit::Bytes, 4e9),
            ("64KiB", Unit::Bytes, 65536.0),
            ("1.5e3", Unit::Bytes, 1500.0),
            ("450GB/s", Unit::BytesPerSecond, 450e9),
            ("450GBps", Unit::BytesPerSecond, 450e9),
            ("400Gb/s", Unit::BytesPerSecond, 50e9),
            ("400 Gbps", Unit::BytesPerSecond, 50e9),
            ("12.8TB/s", Unit::BytesPerSecond, 12.8e12),
            ("990T", Unit::OperationsPerSecond, 990e12),
            ("990TFLOPS", Unit::OperationsPerSecond, 990e12),
            ("990TFLOP/s", Unit::OperationsPerSecond, 990e12),
            ("70B", Unit::Count, 70e9),
            ("16k", Unit::Count, 16e3),
            ("45%", Unit::Count, 0.45),
            ("2.5us", Unit::Seconds, 2.5e-6),
        ] {
            let seen = parse(text, unit).unwrap();
            assert!((seen / expected - 1.0).abs() < 1e-12, "{text}: {seen}");
        }
        for (text, unit) in [
            ("", Unit::Count),
            ("x", Unit::Count),
            ("inf", Unit::Count),
            ("4G", Unit::Bytes),
            ("4GB/h", Unit::BytesPerSecond),
            ("4m", Unit::Seconds),
            ("é3", Unit::Count),
            ("3é", Unit::Count),
        ] {
            assert!(parse(text, unit).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_shown_with_five_digits() {
        assert_eq!(show(1.0438759e-3, Unit::Seconds), "1.0439 ms");
        assert_eq!(show(3.45e6, Unit::Seconds), "39.931 days");
        assert_eq!(show(0.32, Unit::Seconds), "320 ms");
        assert_eq!(show(3.6e12, Unit::BytesPerSecond), "3.6 TB/s");
        assert_eq!(show(79_200.0, Unit::Count), "79200");
        assert_eq!(show(39.6e6, Unit::Count), "39600000");
        assert_eq!(show(0.030711, Unit::Count), "0.030711");
        assert_eq!(show(6.3e24, Unit::Operations), "6.3 YFLOP");
        assert_eq!(show(700e9, Unit::Bytes), "700 GB");
        assert_eq!(show(0.0, Unit::Seconds), "0 s");
        assert_eq!(show(f64::INFINITY, Unit::Seconds), "never");
    }
}
