//! Bits of elements: their bytes in memory, and conversion between floats of any width and `f64`.

use ccl_core::types::DataType;

/// Widths of an IEEE-like float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatFormat {
    /// Number of bits of the exponent.
    pub exponent_bits: u32,
    /// Number of bits of the mantissa, without the leading one.
    pub mantissa_bits: u32,
}

impl FloatFormat {
    /// Returns the format of a type; `None` for integers.
    #[must_use]
    pub const fn of(data_type: DataType) -> Option<FloatFormat> {
        let (exponent_bits, mantissa_bits) = match data_type {
            DataType::Float8E4m3 => (4, 3),
            DataType::Float8E5m2 => (5, 2),
            DataType::Float16 => (5, 10),
            DataType::Bfloat16 => (8, 7),
            DataType::Float32 => (8, 23),
            DataType::Float64 => (11, 52),
            _ => return None,
        };
        Some(FloatFormat { exponent_bits, mantissa_bits })
    }

    const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// Returns the bits of the number of this format that is nearest to `value`, ties to even.
    /// `value` must be in the format's range: a larger value gives meaningless bits.
    #[must_use]
    pub fn encode(self, value: f64) -> u64 {
        let bits = value.to_bits();
        if self.mantissa_bits == 52 {
            return bits;
        }
        let sign = bits >> 63 << (self.exponent_bits + self.mantissa_bits);
        let magnitude = value.abs();
        if magnitude == 0.0 {
            return sign;
        }
        let exponent = ((bits >> 52 & 0x7FF) as i32 - 1023).max(1 - self.bias());
        // The scaling to units of the last place is exact: only `round_ties_even` rounds.
        let scale = 2.0_f64.powi(self.mantissa_bits as i32 - exponent);
        let units = (magnitude * scale).round_ties_even() as u64;
        // The high bits of `units` add 1 to `field` for a normal number (its leading one), 0 for a
        // subnormal number, and 1 more if rounding carries into these bits.
        let field = (exponent + self.bias() - 1) as u64;
        sign | ((field << self.mantissa_bits) + units)
    }

    /// Returns the number that the bits encode. Infinities and NaNs are recognised only in `f64`;
    /// those of narrower types are decoded like finite numbers.
    #[must_use]
    pub fn decode(self, bits: u64) -> f64 {
        let mantissa = bits & ((1 << self.mantissa_bits) - 1);
        let field = (bits >> self.mantissa_bits & ((1 << self.exponent_bits) - 1)) as i32;
        if self.mantissa_bits == 52 {
            return f64::from_bits(bits);
        }
        let leading = if field == 0 { 0 } else { 1 << self.mantissa_bits };
        let exponent = field.max(1) - self.bias() - self.mantissa_bits as i32;
        let magnitude = (mantissa | leading) as f64 * 2.0_f64.powi(exponent);
        let negative = bits >> (self.exponent_bits + self.mantissa_bits) & 1 == 1;
        if negative { -magnitude } else { magnitude }
    }
}

/// Returns whether the integer type has a sign.
#[must_use]
pub const fn is_signed(data_type: DataType) -> bool {
    matches!(data_type, DataType::Int8 | DataType::Int32 | DataType::Int64)
}

/// Appends the low bytes of `bits`, in the machine's order.
pub fn push_element(bytes: &mut Vec<u8>, data_type: DataType, bits: u64) {
    match data_type.bytes() {
        1 => bytes.push(bits as u8),
        2 => bytes.extend_from_slice(&(bits as u16).to_ne_bytes()),
        4 => bytes.extend_from_slice(&(bits as u32).to_ne_bytes()),
        _ => bytes.extend_from_slice(&bits.to_ne_bytes()),
    }
}

/// Returns the bits of one element from its bytes.
#[must_use]
pub fn element_bits(element: &[u8]) -> u64 {
    match *element {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// Returns the integer that the bits encode.
#[must_use]
pub fn integer(data_type: DataType, bits: u64) -> i128 {
    let unused = 64 - 8 * data_type.bytes() as u32;
    if is_signed(data_type) {
        i128::from((bits << unused) as i64 >> unused)
    } else {
        i128::from(bits << unused >> unused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats_agree_with_the_half_crate_on_all_bits() {
        let half = FloatFormat::of(DataType::Float16).unwrap();
        let brain = FloatFormat::of(DataType::Bfloat16).unwrap();
        for bits in 0..=u16::MAX {
            let reference = half::f16::from_bits(bits);
            if reference.is_finite() {
                assert_eq!(half.decode(bits.into()), reference.to_f64());
                assert_eq!(half.encode(reference.to_f64()), u64::from(bits));
            }
            let reference = half::bf16::from_bits(bits);
            if reference.is_finite() {
                assert_eq!(brain.decode(bits.into()), reference.to_f64());
                assert_eq!(brain.encode(reference.to_f64()), u64::from(bits));
            }
        }
    }

    #[test]
    fn encoding_rounds_to_nearest_even() {
        let half = FloatFormat::of(DataType::Float16).unwrap();
        let single = FloatFormat::of(DataType::Float32).unwrap();
        for step in 0..200_000 {
            let value = f64::from(step) * 0.000_37 - 31.0;
            assert_eq!(half.encode(value), u64::from(half::f16::from_f64(value).to_bits()));
            assert_eq!(single.encode(value), u64::from((value as f32).to_bits()));
        }
        let e4m3 = FloatFormat::of(DataType::Float8E4m3).unwrap();
        assert_eq!(e4m3.encode(1.0), 0x38);
        assert_eq!(e4m3.decode(0x7E), 448.0);
        assert_eq!(e4m3.encode(1.0625), 0x38, "a tie goes to the even neighbour");
        assert_eq!(e4m3.encode(1.1875), 0x3A, "a tie goes to the even neighbour");
        assert_eq!(e4m3.decode(0x01), 2.0_f64.powi(-9));
        let e5m2 = FloatFormat::of(DataType::Float8E5m2).unwrap();
        assert_eq!((e5m2.decode(0x7B), e5m2.encode(-57344.0)), (57344.0, 0xFB));
    }

    #[test]
    fn doubles_and_integers_keep_their_values() {
        let double = FloatFormat::of(DataType::Float64).unwrap();
        for value in [1.0, -0.1, 1e300, 1e-300, 0.0] {
            assert_eq!(double.encode(value), value.to_bits());
            assert_eq!(double.decode(value.to_bits()), value);
        }
        assert_eq!(integer(DataType::Int8, 0xFF), -1);
        assert_eq!(integer(DataType::Uint8, 0xFF), 255);
        assert_eq!(integer(DataType::Int64, u64::MAX), -1);
        assert_eq!(integer(DataType::Uint64, u64::MAX), i128::from(u64::MAX));
    }
}
