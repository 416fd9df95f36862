//! Cases in which an element is right although it differs from the expected bits.
//!
//! Only one case exists: the average of floats over a number of ranks that is no power of two. The
//! sum is exact, but a library may divide it, or multiply it by a rounded reciprocal, in `f32` (in
//! `f64` for `double`), and then round once to the type. So a right result need not be the
//! representable number that is nearest to the true quotient. The result's distance from the
//! quotient may exceed the nearest number's distance by at most twice the error of this arithmetic.
//! The error comes from at most two roundings, each by at most 2^-24 of its result in `f32` and
//! 2^-53 in `f64`. The check allows 2^-22 of the quotient in `f32`, and 2^-50 in `f64`. Everything
//! else must match bit for bit.

use ccl_core::types::{DataType, ReduceOp};

use super::format::{FloatFormat, element_bits};
use super::generate::Recipe;

/// Returns whether `actual` is right although it differs from `expected`.
#[must_use]
pub fn accepts(recipe: Recipe, actual: &[u8], expected: &[u8], true_value: Option<f64>) -> bool {
    let Some(format) = FloatFormat::of(recipe.data_type) else { return false };
    let Some(true_value) = true_value else { return false };
    if recipe.op != Some(ReduceOp::Avg) || recipe.ranks.is_power_of_two() {
        return false;
    }
    let arithmetic = match recipe.data_type {
        DataType::Float64 => 2.0_f64.powi(-50),
        _ => 2.0_f64.powi(-22),
    };
    let actual = format.decode(element_bits(actual));
    let expected = format.decode(element_bits(expected));
    let allowed = (expected - true_value).abs() + arithmetic * true_value.abs();
    (actual - true_value).abs() <= allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(data_type: DataType, op: ReduceOp, ranks: u32) -> Recipe {
        Recipe { data_type, op: Some(op), ranks, repetition: 0 }
    }

    fn accepts_f32(recipe: Recipe, actual: f32, true_value: f64) -> bool {
        let expected = (true_value as f32).to_ne_bytes();
        accepts(recipe, &actual.to_ne_bytes(), &expected, Some(true_value))
    }

    #[test]
    fn an_average_may_differ_only_by_its_arithmetic_error() {
        let average = recipe(DataType::Float32, ReduceOp::Avg, 3);
        let third = 1.0_f32 / 3.0;
        assert!(accepts_f32(average, third.next_up(), 1.0 / 3.0));
        assert!(!accepts_f32(average, third + 1e-6, 1.0 / 3.0));
        assert!(!accepts_f32(average, f32::NAN, 1.0 / 3.0));
    }

    #[test]
    fn results_other_than_inexact_averages_must_match() {
        let up = 1.0_f32.next_up();
        assert!(!accepts_f32(recipe(DataType::Float32, ReduceOp::Avg, 4), up, 1.0));
        assert!(!accepts_f32(recipe(DataType::Float32, ReduceOp::Sum, 3), up, 1.0));
        let integers = recipe(DataType::Int32, ReduceOp::Avg, 3);
        assert!(!accepts(integers, &[1, 0, 0, 0], &[2, 0, 0, 0], Some(1.5)));
    }

    #[test]
    fn an_average_of_a_narrow_type_has_one_right_result_unless_it_is_a_tie() {
        let average = recipe(DataType::Float8E4m3, ReduceOp::Avg, 3);
        let format = FloatFormat::of(DataType::Float8E4m3).unwrap();
        let accepted = |actual: f64, true_value: f64| {
            let byte = |value: f64| [format.encode(value) as u8];
            accepts(average, &byte(actual), &byte(true_value), Some(true_value))
        };
        assert!(!accepted(1.125, 1.0 + 0.02));
        assert!(accepted(1.125, 1.0625), "the tie rounds to 1.0; 1.125 is as near and must pass");
    }
}
