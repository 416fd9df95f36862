//! Sizes as people write them (`8`, `32k`, `16M`, `1.5G`), and the series of sizes of a sweep.

/// Error for a size that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Text that is not a number with an optional unit.
    #[error("\"{0}\" is not a size; write bytes with an optional unit, such as 8, 32k, 16M or 1G")]
    Malformed(String),
    /// Size with more bytes than can be addressed.
    #[error(
        "\"{0}\" is more than this machine can address; the limit is {max} bytes",
        max = isize::MAX
    )]
    Overflow(String),
}

/// Reads a number of bytes: a decimal number, optionally followed by a unit in upper or lower case.
/// The unit is `B`, or else K, M, G or T, alone or followed by `B` or `iB`. Units are powers of
/// 1024, and fractions of a byte are cut off, as in nccl-tests.
///
/// # Errors
/// [`SizeError`] when the text is no size, or a size that no buffer can have.
pub fn parse_size(text: &str) -> Result<usize, SizeError> {
    let malformed = || SizeError::Malformed(text.to_owned());
    let trimmed = text.trim();
    let digits_end =
        trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits_end);
    let shift = unit_shift(unit.trim()).ok_or_else(malformed)?;
    let overflow = || SizeError::Overflow(text.to_owned());
    if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
        // Whole numbers stay integers: beyond 2^53 a float would round them.
        let whole: usize = number.parse().map_err(|_| overflow())?;
        return whole
            .checked_mul(1 << shift)
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(overflow);
    }
    let value: f64 = number.parse().map_err(|_| malformed())?;
    let bytes = value * (1_u64 << shift) as f64;
    if bytes >= isize::MAX as f64 { Err(overflow()) } else { Ok(bytes as usize) }
}

fn unit_shift(unit: &str) -> Option<u32> {
    match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    }
}

/// Step of a sweep from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds this many bytes, at least 1.
    Bytes(usize),
    /// Multiplies by this, at least 2.
    Factor(usize),
}

impl Step {
    /// Returns the size after `bytes`; `None` past the end of the address space. Zero multiplied by
    /// a factor would stay zero, so with a factor the size after zero is 8 bytes, which hold an
    /// element of any type.
    #[must_use]
    pub fn after(self, bytes: usize) -> Option<usize> {
        match self {
            Step::Bytes(step) => bytes.checked_add(step),
            Step::Factor(_) if bytes == 0 => Some(8),
            Step::Factor(factor) => bytes.checked_mul(factor),
        }
    }
}

impl Step {
    /// Returns the number of sizes of [`sweep`]. For [`Step::Bytes`], this number is computed
    /// without iteration.
    #[must_use]
    pub fn count(self, min: usize, max: usize) -> u64 {
        match self {
            Step::Bytes(step) if min <= max => ((max - min) / step.max(1)) as u64 + 1,
            Step::Bytes(_) => 0,
            Step::Factor(_) => sweep(min, max, self).count() as u64,
        }
    }
}

/// Returns the sizes from `min` up to `max`. `max` itself is included if a step meets it.
pub fn sweep(min: usize, max: usize, step: Step) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(min), move |&bytes| step.after(bytes))
        .take_while(move |&bytes| bytes <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_size_are_read() {
        for (text, bytes) in [
            ("8", 8),
            ("0", 0),
            ("32k", 32 << 10),
            ("32K", 32 << 10),
            ("4KB", 4 << 10),
            ("4kiB", 4 << 10),
            ("16M", 16 << 20),
            ("16 MiB", 16 << 20),
            ("1G", 1 << 30),
            ("1.5k", 1536),
            (".5k", 512),
            ("9007199254740993", 9_007_199_254_740_993),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in ["", "k", "-1", "12q", "1..5", "0x10", "1e9", "8 8", "."] {
            assert!(matches!(parse_size(text), Err(SizeError::Malformed(_))), "{text}");
        }
        for text in ["9G9", "99999999999999999999", "16777216T", "9999999999.5G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_size("8388608T"),
            Err(SizeError::Overflow("8388608T".to_owned())),
            "2^63 bytes are one more than isize::MAX"
        );
    }

    #[test]
    fn no_sweep_exceeds_its_largest_size_or_stays_at_zero() {
        let by = |min, max, step: Step| {
            let sizes = sweep(min, max, step).collect::<Vec<_>>();
            assert_eq!(step.count(min, max), sizes.len() as u64);
            sizes
        };
        assert_eq!(by(8, 64, Step::Factor(2)), [8, 16, 32, 64]);
        assert_eq!(by(8, 9, Step::Factor(2)), [8]);
        assert_eq!(by(0, 16, Step::Factor(2)), [0, 8, 16]);
        assert_eq!(by(1, 10, Step::Bytes(4)), [1, 5, 9]);
        assert_eq!(by(usize::MAX, usize::MAX, Step::Factor(2)), [usize::MAX]);
    }
}
