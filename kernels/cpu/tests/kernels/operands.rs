//! Operands for the tests: special values and random values of each type, and their bytes.

use ccl_core::types::DataType;

/// A small generator of random numbers: the same sequence on every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Returns a float type's number of stored significand bits and its exponent bias; `None` for an
/// integer type.
pub(crate) fn float_layout(data_type: DataType) -> Option<(u32, u64)> {
    match data_type {
        DataType::Float16 => Some((10, 15)),
        DataType::Bfloat16 => Some((7, 127)),
        DataType::Float32 => Some((23, 127)),
        DataType::Float64 => Some((52, 1023)),
        DataType::Float8E4m3 => Some((3, 7)),
        DataType::Float8E5m2 => Some((2, 15)),
        _ => None,
    }
}

/// Returns zeros, subnormals, the ends of the range, infinities and NaN with and without payload;
/// for integers, values near zero and near the ends of the signed and the unsigned range.
pub(crate) fn special_bits(data_type: DataType) -> Vec<u64> {
    let sign = 1u64 << (8 * data_type.bytes() - 1);
    let magnitudes = match float_layout(data_type) {
        None => vec![0, 1, 2, sign - 1, sign - 2],
        Some((mantissa, bias)) => {
            let one = bias << mantissa;
            let infinity = (2 * bias + 1) << mantissa;
            let ulp = 1 << mantissa;
            vec![
                0,
                1,
                ulp - 1,
                ulp,
                ulp + 1,
                one,
                one + 1,
                infinity - ulp,
                infinity - 1,
                infinity,
                infinity + 1,
                infinity + ulp / 2,
                infinity + ulp - 1,
            ]
        }
    };
    magnitudes.iter().flat_map(|&bits| [bits, bits | sign]).collect()
}

/// Returns the bits of one random element. Most floats have magnitudes from 1/8 to 8; a few are
/// special values or random bits. Most integers are random bits; a few are special values.
pub(crate) fn element_bits(data_type: DataType, random: &mut Random) -> u64 {
    let specials = special_bits(data_type);
    let (choice, bits) = (random.next() % 32, random.next());
    match (choice, float_layout(data_type)) {
        (0, _) => bits,
        (1, _) => specials[bits as usize % specials.len()],
        (_, None) => bits,
        (_, Some((mantissa, bias))) => {
            let sign = (bits >> 63) << (8 * data_type.bytes() - 1);
            let exponent = bias - 3 + random.next() % 6;
            sign | exponent << mantissa | bits & ((1 << mantissa) - 1)
        }
    }
}

/// Returns the element with these bits, in the first bytes of the result.
pub(crate) fn element(data_type: DataType, bits: u64) -> [u8; 8] {
    if cfg!(target_endian = "little") {
        bits.to_le_bytes()
    } else {
        (bits << (64 - 8 * data_type.bytes())).to_be_bytes()
    }
}

/// Returns the bytes of elements with these bits.
pub(crate) fn elements(data_type: DataType, bits: impl IntoIterator<Item = u64>) -> Vec<u8> {
    bits.into_iter()
        .flat_map(|bits| element(data_type, bits).into_iter().take(data_type.bytes()))
        .collect()
}
