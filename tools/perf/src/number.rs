//! Numbers for people.

/// Formats a number as C's `%g` does: six significant digits, no trailing zeros.
#[must_use]
pub fn general(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}").to_lowercase();
    }
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let rounded = format!("{value:.5e}");
    let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return trim(&format!("{value:.*}", (5 - exponent) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_c_prints_them() {
        for (value, text) in [
            (0.0, "0"),
            (1.5, "1.5"),
            (12.345_678, "12.3457"),
            (100_000.0, "100000"),
            (1_048_576.0, "1.04858e+06"),
            (0.000_123_456_78, "0.000123457"),
            (0.000_012_345, "1.2345e-05"),
            (999_999.9, "1e+06"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(general(value), text);
        }
    }
}
