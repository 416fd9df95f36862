//! Values of elements: the inputs of the ranks, and the result of their reduction.
//!
//! Exactness is reached as follows, for `n` ranks and a type with `p` significant bits:
//!
//! * *sum*, *avg*, *premul-sum* of floats: integers times a power of two. All ranks have the same
//!   power for the same element. The magnitudes of the integers add up to at most `2^p` over all
//!   ranks. So every partial sum, in any order, is representable. If `n` is so large that not every
//!   rank can contribute, some ranks have zeros; which ranks these are depends on the element.
//! * *prod* of floats: powers of two near one, with random signs; for each element, one rank has a
//!   random mantissa.
//! * *sum*, *prod*, *premul-sum* of integers: any bits, since the results wrap (for *prod*, only
//!   odd factors: even ones would soon give zero).
//! * *avg* of integers: magnitudes so small that the sum does not overflow. So it does not matter
//!   in which width a library sums before it divides.
//! * *min*, *max*: any integer, or any finite normal float.

use ccl_core::types::{DataType, Rank, ReduceOp};

use super::format::{FloatFormat, integer, is_signed};

/// Parameters of the elements besides rank and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator of the reduction; `None` if data are only moved.
    pub op: Option<ReduceOp>,
    /// Number of ranks that take part.
    pub ranks: u32,
    /// Number of the repetition. It changes the elements, so that the check of a call detects a
    /// result that is left over from the call before.
    pub repetition: u64,
}

/// Expected result of a reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Bits of the element.
    pub bits: u64,
    /// True value of a float before rounding. The check of an average needs it, because the
    /// rounding of an average may depend on the method.
    pub true_value: f64,
}

/// Mixes two numbers into one that looks random (the finalizer of splitmix64).
#[must_use]
pub fn mix(seed: u64, counter: u64) -> u64 {
    let mut z = seed.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the factor of a rank under [`ReduceOp::PremulSum`].
#[must_use]
pub fn premul_factor(rank: Rank) -> u64 {
    1 + u64::from(rank % 2)
}

/// Returns the factor of a rank, in the form that a call takes: the bytes of one element, then
/// zeros.
#[must_use]
pub fn premul_scalar(data_type: DataType, rank: Rank) -> [u8; 8] {
    let factor = premul_factor(rank);
    let bits = FloatFormat::of(data_type).map_or(factor, |format| format.encode(factor as f64));
    let mut bytes = Vec::with_capacity(8);
    super::format::push_element(&mut bytes, data_type, bits);
    let mut scalar = [0; 8];
    scalar[..bytes.len()].copy_from_slice(&bytes);
    scalar
}

impl Recipe {
    /// Returns the bits of element `index` of an input; `stream` is the number of the input. Each
    /// rank has one input; in an all-to-all with counts, each pair of ranks has one.
    #[must_use]
    pub fn input(&self, stream: u64, index: u64) -> u64 {
        let common = mix(self.repetition, index);
        let own = mix(common, stream.wrapping_add(1) << 20);
        let Some(op) = self.op else {
            return own & self.mask();
        };
        match FloatFormat::of(self.data_type) {
            None => self.integer_input(op, stream, common, own) & self.mask(),
            Some(format) => self.float_input(format, op, stream, common, own),
        }
    }

    /// Returns the expected element `index` after the reduction over all ranks.
    #[must_use]
    pub fn reduced(&self, index: u64) -> Expected {
        let op = self.op.unwrap_or(ReduceOp::Sum);
        let inputs = (0..self.ranks).map(|rank| (rank, self.input(u64::from(rank), index)));
        match FloatFormat::of(self.data_type) {
            None => self.reduced_integers(op, inputs),
            Some(format) => self.reduced_floats(format, op, inputs),
        }
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - 8 * self.data_type.bytes())
    }

    /// Returns the value of the rank `stream`. The magnitudes of all ranks' values add up to at
    /// most `budget`.
    fn within_budget(&self, budget: u64, stream: u64, common: u64, own: u64) -> i64 {
        let ranks = u64::from(self.ranks);
        let amplitude = budget / ranks;
        if amplitude > 0 {
            return (i128::from(own % (2 * amplitude + 1)) - i128::from(amplitude)) as i64;
        }
        let turn = (stream + common) % ranks;
        match turn < budget {
            true if own & 1 == 0 => 1,
            true => -1,
            false => 0,
        }
    }

    fn integer_input(&self, op: ReduceOp, stream: u64, common: u64, own: u64) -> u64 {
        match op {
            ReduceOp::Prod => own | 1,
            // All ranks share one sign per element: with mixed signs, sums would often be so near
            // zero that their quotient is 0.
            ReduceOp::Avg => {
                let value = self.within_budget(self.mask() >> 1, stream, common, own);
                let negative = is_signed(self.data_type) && common >> 63 == 1;
                let magnitude = value.unsigned_abs();
                if negative { magnitude.wrapping_neg() } else { magnitude }
            }
            _ => own,
        }
    }

    fn float_input(
        &self,
        format: FloatFormat,
        op: ReduceOp,
        stream: u64,
        common: u64,
        own: u64,
    ) -> u64 {
        match op {
            ReduceOp::Min | ReduceOp::Max => finite_normal(format, own),
            ReduceOp::Prod => self.factor(format, stream, common, own),
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum => {
                let largest_factor = if op == ReduceOp::PremulSum { 2 } else { 1 };
                let budget = (1 << (format.mantissa_bits + 1).min(40)) / largest_factor;
                let value = self.within_budget(budget, stream, common, own);
                // All ranks share one exponent per element. It is so small that no type's sum
                // overflows (e4m3 ends at 448).
                let exponent = ((common >> 32) % 6) as i32 - 2;
                format.encode(value as f64 * 2.0_f64.powi(exponent))
            }
        }
    }

    /// Returns a factor of a product. At most four ranks change the exponent (e4m3 has room for six
    /// steps down). One rank has a random mantissa, and every rank has a random sign.
    fn factor(&self, format: FloatFormat, stream: u64, common: u64, own: u64) -> u64 {
        let ranks = u64::from(self.ranks);
        let moves_exponent = (stream + (common >> 8)) % ranks < 4;
        let exponent = if moves_exponent { ((own >> 8) % 3) as i32 - 1 } else { 0 };
        let brings_mantissa = (stream + (common >> 40)).is_multiple_of(ranks);
        let power = format.encode(2.0_f64.powi(exponent));
        let mantissa = (own >> 11) & ((1 << format.mantissa_bits) - 1);
        let sign = (own & 1) << (format.mantissa_bits + format.exponent_bits);
        sign | power | if brings_mantissa { mantissa } else { 0 }
    }

    fn reduced_integers(
        &self,
        op: ReduceOp,
        inputs: impl Iterator<Item = (Rank, u64)>,
    ) -> Expected {
        let data_type = self.data_type;
        let values = inputs.map(|(rank, bits)| (rank, integer(data_type, bits)));
        let result = match op {
            // A library may wrap at any step: the sum modulo 2^width stays the same.
            ReduceOp::Sum => values.fold(0, |sum: i128, (_, value)| sum.wrapping_add(value)),
            ReduceOp::Prod => {
                values.fold(1, |product: i128, (_, value)| product.wrapping_mul(value))
            }
            ReduceOp::PremulSum => values.fold(0, |sum: i128, (rank, value)| {
                sum.wrapping_add(value.wrapping_mul(i128::from(premul_factor(rank))))
            }),
            ReduceOp::Min => values.map(|(_, value)| value).min().unwrap_or(0),
            ReduceOp::Max => values.map(|(_, value)| value).max().unwrap_or(0),
            ReduceOp::Avg => values.map(|(_, value)| value).sum::<i128>() / i128::from(self.ranks),
        };
        Expected { bits: result as u64 & self.mask(), true_value: 0.0 }
    }

    fn reduced_floats(
        &self,
        format: FloatFormat,
        op: ReduceOp,
        inputs: impl Iterator<Item = (Rank, u64)>,
    ) -> Expected {
        let values = inputs.map(|(rank, bits)| (rank, format.decode(bits)));
        let true_value = match op {
            ReduceOp::Sum => values.map(|(_, value)| value).sum(),
            ReduceOp::Prod => values.map(|(_, value)| value).product(),
            ReduceOp::Min => values.map(|(_, value)| value).fold(f64::INFINITY, f64::min),
            ReduceOp::Max => values.map(|(_, value)| value).fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Avg => values.map(|(_, value)| value).sum::<f64>() / f64::from(self.ranks),
            ReduceOp::PremulSum => {
                values.map(|(rank, value)| value * premul_factor(rank) as f64).sum()
            }
        };
        // Adding +0 makes every sum of zeros +0: `sum` of f64 begins with -0.
        Expected { bits: format.encode(true_value + 0.0), true_value }
    }
}

/// Returns random bits of a finite normal number: not zero, subnormal, infinite or NaN.
fn finite_normal(format: FloatFormat, random: u64) -> u64 {
    let exponents = (1 << format.exponent_bits) - 2;
    let field = 1 + (random >> 53) % exponents;
    let mantissa = random & ((1 << format.mantissa_bits) - 1);
    let sign = random >> 52 & 1;
    (sign << format.exponent_bits | field) << format.mantissa_bits | mantissa
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(data_type: DataType, op: ReduceOp, ranks: u32) -> Recipe {
        Recipe { data_type, op: Some(op), ranks, repetition: 3 }
    }

    /// Combines the inputs in rank order, from rank `first` on, and rounds after each step.
    fn stepwise(recipe: Recipe, format: FloatFormat, first: u32, index: u64) -> u64 {
        let value = |rank: u32| {
            let value = format.decode(recipe.input(u64::from(rank), index));
            match recipe.op {
                Some(ReduceOp::PremulSum) => value * premul_factor(rank) as f64,
                _ => value,
            }
        };
        let rounded = |value: f64| format.decode(format.encode(value));
        let all = (0..recipe.ranks).map(|step| value((first + step) % recipe.ranks));
        let combined = all.reduce(|a, b| match recipe.op {
            Some(ReduceOp::Prod) => rounded(a * b),
            Some(ReduceOp::Min) => a.min(b),
            Some(ReduceOp::Max) => a.max(b),
            _ => rounded(a + b),
        });
        format.encode(combined.unwrap() + 0.0)
    }

    #[test]
    fn floats_reduce_to_the_same_bits_in_any_order_with_any_rounding() {
        for data_type in DataType::ALL {
            let Some(format) = FloatFormat::of(data_type) else { continue };
            for op in
                [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::PremulSum]
            {
                for ranks in (1..=17).chain([64, 300]) {
                    let recipe = recipe(data_type, op, ranks);
                    for index in 0..100 {
                        let expected = recipe.reduced(index);
                        for first in [0, 1, ranks / 2] {
                            let got = stepwise(recipe, format, first, index);
                            assert_eq!(
                                got, expected.bits,
                                "{recipe:?}: element {index} differs if rank {first} comes first"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn losing_a_rank_changes_the_result() {
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                for ranks in [2, 3, 8, 17] {
                    let all = recipe(data_type, op, ranks);
                    let differing = (0..500)
                        .filter(|&index| {
                            let fewer = Recipe { ranks: ranks - 1, ..all };
                            // The inputs of a call on all ranks, without the last rank's input.
                            let inputs =
                                (0..ranks - 1).map(|r| (r, all.input(u64::from(r), index)));
                            let without = match FloatFormat::of(data_type) {
                                Some(format) => fewer.reduced_floats(format, op, inputs),
                                None => fewer.reduced_integers(op, inputs),
                            };
                            without.bits != all.reduced(index).bits
                        })
                        .count();
                    assert!(differing > 10, "{all:?}: only {differing} of 500 results differ");
                }
            }
        }
    }

    #[test]
    fn sums_of_integers_to_be_averaged_do_not_overflow() {
        for data_type in [DataType::Int8, DataType::Uint8, DataType::Int64, DataType::Uint64] {
            for ranks in [1, 2, 17, 300, 4096] {
                let recipe = recipe(data_type, ReduceOp::Avg, ranks);
                let largest = i128::from(u64::MAX >> (64 - 8 * data_type.bytes())) / 2;
                for index in 0..50 {
                    let sum: i128 = (0..ranks)
                        .map(|r| integer(data_type, recipe.input(u64::from(r), index)).abs())
                        .sum();
                    assert!(sum <= largest, "{recipe:?}: the sum is {sum}");
                }
            }
        }
    }

    #[test]
    fn premul_scalars_are_encoded_as_elements() {
        assert_eq!(premul_scalar(DataType::Float32, 1)[..4], 2.0_f32.to_ne_bytes());
        assert_eq!(premul_scalar(DataType::Int64, 2), 1_i64.to_ne_bytes());
        assert_eq!(premul_scalar(DataType::Float8E4m3, 0)[0], 0x38);
    }
}
