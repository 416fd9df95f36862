//! Plain specification of a fold, without regard to speed: one element after the other, and
//! conversions by searching for the nearest number. The kernels are tested against this module.

use std::cmp::Ordering;

use ccl_core::types::{DataType, ReduceOp};

use crate::Scalar;

/// An operand: its bytes, and whether it is scaled.
pub type Operand<'a> = (&'a [u8], bool);

/// An element, in the type in which it is reduced.
#[derive(Clone, Copy)]
enum Value {
    Integer(i128),
    Single(f32),
    Double(f64),
}

/// Returns the bytes that [`crate::Kernel::fold`] stores to each destination; `None` without terms.
/// All terms have the same length, a multiple of an element's length.
#[must_use]
pub fn fold(
    data_type: DataType,
    op: ReduceOp,
    (scalar, ranks): (Scalar, u32),
    terms: &[Operand<'_>],
    finish: bool,
) -> Option<Vec<u8>> {
    let (first, others) = terms.split_first()?;
    let divides = op == ReduceOp::Avg && finish;
    let scales = |&(_, scaled): &Operand<'_>| scaled && op == ReduceOp::PremulSum;
    if others.is_empty() && !divides && !scales(first) {
        return Some(first.0.to_vec());
    }
    let width = data_type.bytes();
    let mut result = Vec::with_capacity(first.0.len());
    for start in (0..first.0.len()).step_by(width) {
        let element = |term: &Operand<'_>| {
            let value = decode(data_type, &term.0[start..start + width]);
            if scales(term) {
                let factor = decode(data_type, &scalar.0[..width]);
                // The product is converted to the type, as if it had been stored and loaded.
                let product = combine(ReduceOp::Prod, value, factor);
                decode(data_type, &encode(data_type, product))
            } else {
                value
            }
        };
        let mut total = element(first);
        for term in others {
            total = wrap(data_type, combine(op, total, element(term)));
        }
        if divides {
            total = divide(total, ranks.max(1));
        }
        result.extend_from_slice(&encode(data_type, total)[..width]);
    }
    Some(result)
}

fn combine(op: ReduceOp, a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => Value::Integer(match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum => a.wrapping_add(b),
            ReduceOp::Prod => a.wrapping_mul(b),
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
        }),
        (Value::Single(a), Value::Single(b)) => Value::Single(match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum => a + b,
            ReduceOp::Prod => a * b,
            _ if a.is_nan() || b.is_nan() => f32::NAN,
            ReduceOp::Min => choose(a, b, a.total_cmp(&b) == Ordering::Less),
            ReduceOp::Max => choose(a, b, a.total_cmp(&b) == Ordering::Greater),
        }),
        (Value::Double(a), Value::Double(b)) => Value::Double(match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum => a + b,
            ReduceOp::Prod => a * b,
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            ReduceOp::Min => choose(a, b, a.total_cmp(&b) == Ordering::Less),
            ReduceOp::Max => choose(a, b, a.total_cmp(&b) == Ordering::Greater),
        }),
        // Never reached: both values have the same type.
        _ => a,
    }
}

fn choose<T>(a: T, b: T, first: bool) -> T {
    if first { a } else { b }
}

fn divide(value: Value, count: u32) -> Value {
    match value {
        Value::Integer(value) => Value::Integer(value / i128::from(count)),
        Value::Single(value) => Value::Single(value / count as f32),
        Value::Double(value) => Value::Double(value / f64::from(count)),
    }
}

/// Wraps an integer to the range of the type; returns a float unchanged.
fn wrap(data_type: DataType, value: Value) -> Value {
    match value {
        Value::Integer(_) => decode(data_type, &encode(data_type, value)),
        Value::Single(_) | Value::Double(_) => value,
    }
}

/// Decodes the element at the start of `bytes`.
fn decode(data_type: DataType, bytes: &[u8]) -> Value {
    let mut all = [0; 8];
    for (byte, &given) in all.iter_mut().zip(&bytes[..data_type.bytes()]) {
        *byte = given;
    }
    let bits = if cfg!(target_endian = "little") {
        u64::from_le_bytes(all)
    } else {
        u64::from_be_bytes(all) >> (64 - 8 * data_type.bytes())
    };
    match data_type {
        DataType::Int8 => Value::Integer(i128::from(bits as i8)),
        DataType::Int32 => Value::Integer(i128::from(bits as i32)),
        DataType::Int64 => Value::Integer(i128::from(bits as i64)),
        DataType::Uint8 | DataType::Uint32 | DataType::Uint64 => Value::Integer(i128::from(bits)),
        DataType::Float32 => Value::Single(f32::from_bits(bits as u32)),
        DataType::Float64 => Value::Double(f64::from_bits(bits)),
        DataType::Float16 => Value::Single(FLOAT16.decode(bits as u32)),
        DataType::Bfloat16 => Value::Single(BFLOAT16.decode(bits as u32)),
        DataType::Float8E4m3 => Value::Single(FLOAT8_E4M3.decode(bits as u32)),
        DataType::Float8E5m2 => Value::Single(FLOAT8_E5M2.decode(bits as u32)),
    }
}

/// Encodes an element into the first bytes of the result.
fn encode(data_type: DataType, value: Value) -> [u8; 8] {
    let bits = match value {
        Value::Integer(value) => value as u64,
        Value::Double(value) if value.is_nan() => 0x7ff8_0000_0000_0000,
        Value::Double(value) => value.to_bits(),
        Value::Single(value) => u64::from(match data_type {
            DataType::Float16 => FLOAT16.encode(value),
            DataType::Bfloat16 => BFLOAT16.encode(value),
            DataType::Float8E4m3 => FLOAT8_E4M3.encode(value),
            DataType::Float8E5m2 => FLOAT8_E5M2.encode(value),
            _ if value.is_nan() => 0x7fc0_0000,
            _ => value.to_bits(),
        }),
    };
    if cfg!(target_endian = "little") {
        bits.to_le_bytes()
    } else {
        (bits << (64 - 8 * data_type.bytes())).to_be_bytes()
    }
}

/// A float of 8 or 16 bits. A *magnitude* is its bits without the sign.
pub(crate) struct Narrow {
    bits: u32,
    mantissa_bits: u32,
    /// The magnitude of infinity, for types that have one.
    infinity: Option<u32>,
    /// The magnitude that is stored for values that are too large: that of infinity or of the
    /// largest finite number.
    pub(crate) largest: u32,
    nan: u32,
}

pub(crate) const FLOAT16: Narrow =
    Narrow { bits: 16, mantissa_bits: 10, infinity: Some(0x7c00), largest: 0x7c00, nan: 0x7e00 };
pub(crate) const BFLOAT16: Narrow =
    Narrow { bits: 16, mantissa_bits: 7, infinity: Some(0x7f80), largest: 0x7f80, nan: 0x7fc0 };
pub(crate) const FLOAT8_E4M3: Narrow =
    Narrow { bits: 8, mantissa_bits: 3, infinity: None, largest: 0x7e, nan: 0x7f };
pub(crate) const FLOAT8_E5M2: Narrow =
    Narrow { bits: 8, mantissa_bits: 2, infinity: Some(0x7c), largest: 0x7b, nan: 0x7f };

impl Narrow {
    /// Returns the number that a magnitude stands for. For infinity, returns the power of two above
    /// the largest finite number: in float16 and bfloat16, `encode` gives infinity for each value
    /// from the middle between these two numbers on.
    pub(crate) fn value(&self, magnitude: u32) -> f64 {
        let exponent_bits = self.bits - 1 - self.mantissa_bits;
        let bias = (1 << (exponent_bits - 1)) - 1;
        let ulps = f64::from(magnitude & ((1 << self.mantissa_bits) - 1));
        let fraction = ulps / f64::from(1 << self.mantissa_bits);
        match (magnitude >> self.mantissa_bits) as i32 {
            0 => fraction * 2f64.powi(1 - bias),
            exponent => (1.0 + fraction) * 2f64.powi(exponent - bias),
        }
    }

    pub(crate) fn decode(&self, code: u32) -> f32 {
        let sign_bit = 1 << (self.bits - 1);
        let magnitude = code & (sign_bit - 1);
        let value = match self.infinity {
            Some(infinity) if magnitude == infinity => f32::INFINITY,
            Some(infinity) if magnitude > infinity => f32::NAN,
            None if magnitude > self.largest => f32::NAN,
            _ => self.value(magnitude) as f32,
        };
        if code & sign_bit == 0 { value } else { -value }
    }

    /// Returns the code of the nearest magnitude, ties to even, with the sign of `value`.
    pub(crate) fn encode(&self, value: f32) -> u32 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { 1 << (self.bits - 1) } else { 0 };
        let target = f64::from(value.abs());
        // Magnitudes are ordered by value: halve the range until `below` is the largest magnitude
        // whose value is at most the target.
        let (mut below, mut above) = (0, self.largest + 1);
        while above - below > 1 {
            let middle = below.midpoint(above);
            if self.value(middle) <= target { below = middle } else { above = middle }
        }
        if below == self.largest {
            return sign | below;
        }
        let (down, up) = (target - self.value(below), self.value(above) - target);
        let rounds_up = down > up || (down == up && below % 2 == 1);
        sign | if rounds_up { above } else { below }
    }
}
