//! Tests of all values of the small types, and of the rules for special values.

use crate::operands::{element, elements, special_bits};
use ccl_core::types::{DataType, ReduceOp};
use ccl_kernels_cpu::{Kernel, Scalar, SimdLevel, Term, reference};

fn fold(kernel: &Kernel, terms: &[&[u8]], bytes: usize, scaled: bool) -> Vec<u8> {
    let mut result = vec![0; terms[0].len()];
    let operands: Vec<Term> =
        terms.iter().map(|term| Term { data: term.as_ptr(), scaled }).collect();
    let elements = result.len() / bytes;
    // SAFETY: all terms are as long as the first, and the result is a buffer of its own.
    unsafe { kernel.fold(&[result.as_mut_ptr()], &operands, elements, true) };
    result
}

fn check(data_type: DataType, op: ReduceOp, arguments: (Scalar, u32), terms: &[&[u8]]) {
    let operands: Vec<_> = terms.iter().map(|&term| (term, true)).collect();
    let expected = reference::fold(data_type, op, arguments, &operands, true).unwrap_or_default();
    assert_eq!(expected.len(), terms[0].len());
    for level in SimdLevel::available() {
        let kernel = Kernel::select_with(data_type, op, arguments.0, arguments.1, level);
        let result = fold(&kernel, terms, data_type.bytes(), true);
        let wrong = result.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(
            wrong, None,
            "{data_type} {op} {level:?} {arguments:?}: index of the first wrong byte"
        );
    }
}

const SMALL: [DataType; 4] =
    [DataType::Int8, DataType::Uint8, DataType::Float8E4m3, DataType::Float8E5m2];

#[test]
fn all_pairs_of_eight_bit_values_match_the_reference() {
    let left: Vec<u8> = (0..=u16::MAX).map(|pair| (pair >> 8) as u8).collect();
    let right: Vec<u8> = (0..=u16::MAX).map(|pair| pair as u8).collect();
    for data_type in SMALL {
        for op in ReduceOp::ALL {
            check(data_type, op, (Scalar([0x35; 8]), 3), &[&left, &right]);
        }
    }
}

#[test]
fn all_eight_bit_values_match_the_reference_for_all_scalars_and_many_divisors() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    for data_type in SMALL {
        for scalar in 0..=u8::MAX {
            check(data_type, ReduceOp::PremulSum, (Scalar([scalar; 8]), 1), &[&all]);
        }
        for ranks in (1..=300).chain([0, 1 << 16, (1 << 24) + 1, u32::MAX]) {
            check(data_type, ReduceOp::Avg, (Scalar::NONE, ranks), &[&all]);
        }
    }
}

fn all_sixteen_bit_values(data_type: DataType) {
    let all = elements(data_type, 0..=u64::from(u16::MAX));
    let ordinary = [0x1234, 0x3c01, 0xbeef, 0x4d55];
    let mut operands = special_bits(data_type);
    operands.extend(ordinary);
    for (at, &operand) in operands.iter().enumerate() {
        let other = elements(data_type, std::iter::repeat_n(operand, 1 << 16));
        let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];
        // A special operand is tested with two of the operators, an ordinary operand with all four.
        for (turn, op) in ops.into_iter().enumerate() {
            if at % 2 == turn % 2 || ordinary.contains(&operand) {
                check(data_type, op, (Scalar::NONE, 1), &[&all, &other]);
            }
        }
    }
    for scalar in [0x3c01, 0x3fff, 0x0001] {
        let scalar = Scalar(element(data_type, scalar));
        check(data_type, ReduceOp::PremulSum, (scalar, 1), &[&all]);
    }
    for ranks in [3, 7, 24_576] {
        check(data_type, ReduceOp::Avg, (Scalar::NONE, ranks), &[&all]);
    }
}

#[test]
fn all_float16_values_match_the_reference() {
    all_sixteen_bit_values(DataType::Float16);
}

#[test]
fn all_bfloat16_values_match_the_reference() {
    all_sixteen_bit_values(DataType::Bfloat16);
}

#[test]
fn all_pairs_of_special_values_of_each_type_match_the_reference() {
    for data_type in DataType::ALL {
        let specials = special_bits(data_type);
        let pairs: Vec<_> = specials
            .iter()
            .flat_map(|&left| specials.iter().map(move |&right| (left, right)))
            .collect();
        let left = elements(data_type, pairs.iter().map(|pair| pair.0));
        let right = elements(data_type, pairs.iter().map(|pair| pair.1));
        for op in ReduceOp::ALL {
            for ranks in [1, 2, 3, 7, u32::MAX] {
                check(data_type, op, (Scalar(element(data_type, 2)), ranks), &[&left, &right]);
            }
        }
    }
}

fn pair_of_floats(op: ReduceOp, a: f32, b: f32) -> u32 {
    let kernel = Kernel::select(DataType::Float32, op, Scalar::NONE, 1);
    let result = fold(&kernel, &[&a.to_ne_bytes(), &b.to_ne_bytes()], 4, false);
    u32::from_ne_bytes([result[0], result[1], result[2], result[3]])
}

#[test]
fn minimum_and_maximum_propagate_nan_and_order_the_zeros() {
    let odd_nan = f32::from_bits(0xff80_1234);
    for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod] {
        assert_eq!(pair_of_floats(op, odd_nan, 1.0), 0x7fc0_0000);
        assert_eq!(pair_of_floats(op, 1.0, odd_nan), 0x7fc0_0000);
    }
    for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
        assert_eq!(pair_of_floats(ReduceOp::Min, a, b), (-0.0f32).to_bits());
        assert_eq!(pair_of_floats(ReduceOp::Max, a, b), 0.0f32.to_bits());
    }
    assert_eq!(pair_of_floats(ReduceOp::Sum, f32::INFINITY, f32::NEG_INFINITY), 0x7fc0_0000);
}

/// Checks that 1 + 2⁻⁸, the middle of two bfloat16 values, rounds to the even value, 1. With a
/// second 2⁻⁸, the sum is the upper value; rounding after each addition would give 1.
#[test]
fn narrow_floats_round_once_and_to_even() {
    let (one, small) = ([0x80, 0x3f], [0x80, 0x3b]);
    let kernel = Kernel::select(DataType::Bfloat16, ReduceOp::Sum, Scalar::NONE, 1);
    let sum = |terms: &[&[u8]]| fold(&kernel, terms, 2, false);
    if cfg!(target_endian = "little") {
        assert_eq!(sum(&[&one, &small]), [0x80, 0x3f]);
        assert_eq!(sum(&[&one, &small, &small]), [0x81, 0x3f]);
    }
}

#[test]
fn one_term_is_copied_with_its_nan_payload() {
    let nan = 0xff80_1234u32.to_ne_bytes();
    let kernel = Kernel::select(DataType::Float32, ReduceOp::Max, Scalar::NONE, 1);
    assert_eq!(fold(&kernel, &[&nan], 4, true), nan);
}
