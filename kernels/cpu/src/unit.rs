//! Units of elements: their layout in memory, and their conversion to accumulators and back.

use std::convert::identity;
use std::marker::PhantomData;

use crate::number::Number;

/// The elements that one turn of a loop reads and writes: one element, or a few neighbours at once.
pub(crate) trait Unit: 'static {
    /// Form of the unit in memory. A loop reads and writes it unaligned.
    type Raw: Copy + 'static;
    /// The type in which the unit is reduced.
    type Acc: Number;
    /// The unit for the elements after the last whole unit; holds one element.
    type Tail: Unit;
    /// Number of elements in one unit.
    const ELEMENTS: usize;
    /// Converts a unit to an accumulator, exactly.
    fn widen(raw: Self::Raw) -> Self::Acc;
    /// Rounds an accumulator to nearest, ties to even. Every NaN becomes the same NaN: the payload
    /// that hardware computes depends on the instruction and on the order of its operands.
    fn narrow(acc: Self::Acc) -> Self::Raw;
    /// Returns an accumulator whose lanes all hold the element in the first bytes of `scalar`.
    fn broadcast(scalar: [u8; 8]) -> Self::Acc;
}

/// Unit of a type that is reduced without conversion.
pub(crate) struct Native<T>(PhantomData<T>);

macro_rules! native {
    ($($type:ty: $narrow:expr;)*) => {$(
        impl Unit for Native<$type> {
            type Raw = $type;
            type Acc = $type;
            type Tail = Self;
            const ELEMENTS: usize = 1;
            #[inline(always)]
            fn widen(raw: $type) -> $type {
                raw
            }
            #[inline(always)]
            fn narrow(acc: $type) -> $type {
                $narrow(acc)
            }
            #[inline(always)]
            fn broadcast(scalar: [u8; 8]) -> $type {
                <$type>::from_ne_bytes(std::array::from_fn(|byte| scalar[byte]))
            }
        }
    )*};
}

native! {
    i8: identity;
    u8: identity;
    i32: identity;
    u32: identity;
    i64: identity;
    u64: identity;
    f32: |acc: f32| if acc.is_nan() { f32::from_bits(0x7fc0_0000) } else { acc };
    f64: |acc: f64| if acc.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { acc };
}

/// A float of 8 or 16 bits. A *code* is its bits in the low end of a `u32`; a *magnitude* is a
/// code without its sign.
pub(crate) trait Format: 'static {
    /// The stored bits.
    type Bits: Copy + 'static;
    /// Bits of one element.
    const WIDTH: u32;
    /// Number of stored bits of the significand.
    const MANTISSA: u32;
    /// Bias of the exponent.
    const BIAS: u32;
    /// The first magnitude that is not a finite number.
    const SPECIAL: u32;
    /// The magnitude for values that are too large: infinity, or the largest finite number.
    const OVERFLOW: u32;
    /// The code of NaN.
    const NAN: u32;
    /// Returns the code of stored bits.
    fn code(bits: Self::Bits) -> u32;
    /// Returns the stored bits of a code.
    fn bits(code: u32) -> Self::Bits;
}

/// float16.
pub(crate) struct Half;
/// bfloat16.
pub(crate) struct Brain;
/// float8 e4m3 ("FN": no infinity, one NaN per sign).
pub(crate) struct E4m3;
/// float8 e5m2.
pub(crate) struct E5m2;

macro_rules! formats {
    ($($format:ty: $bits:ty, mantissa $mantissa:literal, bias $bias:literal,
       special $special:literal, overflow $overflow:literal, nan $nan:literal;)*) => {$(
        impl Format for $format {
            type Bits = $bits;
            const WIDTH: u32 = <$bits>::BITS;
            const MANTISSA: u32 = $mantissa;
            const BIAS: u32 = $bias;
            const SPECIAL: u32 = $special;
            const OVERFLOW: u32 = $overflow;
            const NAN: u32 = $nan;
            #[inline(always)]
            fn code(bits: $bits) -> u32 {
                u32::from(bits)
            }
            #[inline(always)]
            fn bits(code: u32) -> $bits {
                code as $bits
            }
        }
    )*};
}

formats! {
    Half: u16, mantissa 10, bias 15, special 0x7c00, overflow 0x7c00, nan 0x7e00;
    Brain: u16, mantissa 7, bias 127, special 0x7f80, overflow 0x7f80, nan 0x7fc0;
    E4m3: u8, mantissa 3, bias 7, special 0x7f, overflow 0x7e, nan 0x7f;
    E5m2: u8, mantissa 2, bias 15, special 0x7c, overflow 0x7b, nan 0x7f;
}

/// Returns the difference between float32's exponent field and the format's, for the same number.
const fn rebias<F: Format>() -> u32 {
    (127 - F::BIAS) << 23
}

/// Returns the exact value of a code. NaN stays NaN; its payload may change.
#[inline(always)]
fn decode<F: Format>(code: u32) -> f32 {
    let sign = (code >> (F::WIDTH - 1)) << 31;
    let magnitude = code & ((1 << (F::WIDTH - 1)) - 1);
    let shifted = magnitude << (23 - F::MANTISSA);
    if rebias::<F>() == 0 {
        return f32::from_bits(sign | shifted);
    }
    let normal = shifted + rebias::<F>();
    // Rebiasing twice turns the format's largest exponent into float32's largest one.
    let special = normal + rebias::<F>();
    // A subnormal is read as if it had a leading one, which is then subtracted, exactly.
    let leading_one = rebias::<F>() + (1 << 23);
    let subnormal = (f32::from_bits(shifted + leading_one) - f32::from_bits(leading_one)).to_bits();
    let finite = if magnitude < 1 << F::MANTISSA { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= F::SPECIAL { special } else { finite })
}

/// Returns the nearest code, ties to even.
#[inline(always)]
fn encode<F: Format>(value: f32) -> u32 {
    let sign = (value.to_bits() >> 31) << (F::WIDTH - 1);
    let bits = value.to_bits() & 0x7fff_ffff;
    let shift = 23 - F::MANTISSA;
    let odd = (bits >> shift) & 1;
    let rounded = (bits + ((1 << (shift - 1)) - 1) + odd) >> shift;
    let magnitude = if rebias::<F>() == 0 {
        rounded
    } else {
        let normal = rounded.wrapping_sub(rebias::<F>() >> shift) as i32;
        // The comparison is signed: every vector instruction set has signed comparisons.
        let normal = Ord::min(normal, F::OVERFLOW as i32) as u32;
        // `ruler` is a power of two, chosen so that the last bit of the sum below is worth the
        // format's smallest subnormal. So the addition rounds to a multiple of that subnormal.
        let ruler = rebias::<F>() + ((shift + 1) << 23);
        let subnormal =
            (f32::from_bits(bits) + f32::from_bits(ruler)).to_bits().wrapping_sub(ruler);
        if bits < rebias::<F>() + (1 << 23) { subnormal } else { normal }
    };
    if bits > 0x7f80_0000 { F::NAN } else { sign | magnitude }
}

/// One narrow float.
pub(crate) struct Single<F>(PhantomData<F>);

impl<F: Format> Unit for Single<F> {
    type Raw = F::Bits;
    type Acc = f32;
    type Tail = Self;
    const ELEMENTS: usize = 1;
    #[inline(always)]
    fn widen(raw: F::Bits) -> f32 {
        decode::<F>(F::code(raw))
    }
    #[inline(always)]
    fn narrow(acc: f32) -> F::Bits {
        F::bits(encode::<F>(acc))
    }
    #[inline(always)]
    fn broadcast(scalar: [u8; 8]) -> f32 {
        let wide = if F::WIDTH == 8 {
            u32::from(scalar[0])
        } else {
            u32::from(u16::from_ne_bytes([scalar[0], scalar[1]]))
        };
        decode::<F>(wide)
    }
}

/// A `u32` that holds `LANES` narrow floats. Shifts of the `u32` take the floats apart and put them
/// together. Each lane of a vector register holds one `u32`, so loops over words vectorise well.
pub(crate) struct Word<F, const LANES: usize>(PhantomData<F>);

impl<F: Format, const LANES: usize> Unit for Word<F, LANES> {
    type Raw = u32;
    type Acc = [f32; LANES];
    type Tail = Single<F>;
    const ELEMENTS: usize = LANES;
    #[inline(always)]
    fn widen(raw: u32) -> [f32; LANES] {
        std::array::from_fn(|lane| {
            let code = raw >> (F::WIDTH * lane as u32);
            decode::<F>(code & (u32::MAX >> (32 - F::WIDTH)))
        })
    }
    #[inline(always)]
    fn narrow(acc: [f32; LANES]) -> u32 {
        let mut raw = 0;
        for (lane, value) in acc.into_iter().enumerate() {
            raw |= encode::<F>(value) << (F::WIDTH * lane as u32);
        }
        raw
    }
    #[inline(always)]
    fn broadcast(scalar: [u8; 8]) -> [f32; LANES] {
        [Single::<F>::broadcast(scalar); LANES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, Narrow};

    fn check<F: Format>(value: f32, narrow: &Narrow) {
        for value in [value, -value] {
            let (code, expected) = (encode::<F>(value), narrow.encode(value));
            assert_eq!(code, expected, "{value:e} ({:#x}) -> {code:#x}", value.to_bits());
        }
    }

    /// Compares the decoding of every code, and the encoding of values of both signs, with the
    /// reference. The values are all magnitudes, the midpoints between magnitudes, the two float32
    /// neighbours of each of these values, and float32 values at regular steps.
    fn check_format<F: Format>(narrow: &Narrow) {
        for code in 0..1 << F::WIDTH {
            let (value, expected) = (decode::<F>(code), narrow.decode(code));
            assert!(value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan());
        }
        for magnitude in 0..=narrow.largest {
            let middle = narrow.value(magnitude).midpoint(narrow.value(magnitude + 1)) as f32;
            for value in [narrow.value(magnitude) as f32, middle] {
                check::<F>(value, narrow);
                check::<F>(value.next_up(), narrow);
                check::<F>(value.next_down(), narrow);
            }
        }
        for bits in (0..=u32::MAX >> 1).step_by(40_009) {
            check::<F>(f32::from_bits(bits), narrow);
        }
    }

    #[test]
    fn decoding_is_exact_and_encoding_rounds_to_nearest_even() {
        check_format::<Half>(&FLOAT16);
        check_format::<Brain>(&BFLOAT16);
        check_format::<E4m3>(&FLOAT8_E4M3);
        check_format::<E5m2>(&FLOAT8_E5M2);
    }

    #[test]
    fn sixteen_bit_conversions_agree_with_the_half_crate() {
        for code in 0..=u16::MAX {
            let (ours, theirs) = (decode::<Half>(code.into()), half::f16::from_bits(code).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan());
            let (ours, theirs) =
                (decode::<Brain>(code.into()), half::bf16::from_bits(code).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan());
        }
        for bits in (0..=0x7f80_0000u32).step_by(10_007) {
            let value = f32::from_bits(bits);
            assert_eq!(encode::<Half>(value), u32::from(half::f16::from_f32(value).to_bits()));
            assert_eq!(encode::<Brain>(value), u32::from(half::bf16::from_f32(value).to_bits()));
        }
    }

    #[test]
    fn large_values_are_infinity_in_sixteen_bits_and_saturate_in_eight() {
        assert_eq!(encode::<Half>(65_519.0), 0x7bff);
        assert_eq!(encode::<Half>(65_520.0), 0x7c00);
        assert_eq!(encode::<Brain>(f32::MAX), 0x7f80);
        assert_eq!(encode::<E4m3>(1e9), 0x7e);
        assert_eq!(encode::<E4m3>(f32::NEG_INFINITY), 0xfe);
        assert_eq!(encode::<E5m2>(f32::INFINITY), 0x7b);
        assert_eq!(decode::<E4m3>(0x7e), 448.0);
        assert_eq!(decode::<E5m2>(0x7b), 57_344.0);
    }
}
