//! Dispatch from a type, an operator and a SIMD level to the functions that fold.

use std::sync::OnceLock;

use ccl_core::types::{DataType, ReduceOp};

use crate::fold::{self, Parameters};
use crate::number::{Max, Mean, Min, Op, Prod, ScaledSum, Sum};
use crate::unit::{Brain, E4m3, E5m2, Half, Native, Unit, Word};
use crate::{SimdLevel, Term};

/// Function for two terms and one destination, which may be the first term.
type Pair = unsafe fn(&Parameters, *mut u8, [Term; 2], usize);
/// Function for any number of terms and destinations.
type Many = unsafe fn(&Parameters, &[*mut u8], &[Term], usize);

/// The loops of one type, operator and level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loops {
    pub(crate) pair: Pair,
    pub(crate) many: Many,
}

/// Defines the two functions of one level; levels differ in `$features` alone.
macro_rules! level {
    ($pair:ident, $many:ident $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $pair<U: Unit, O: Op>(
            parameters: &Parameters,
            dst: *mut u8,
            terms: [Term; 2],
            elements: usize,
        ) {
            // SAFETY: the contract of the called function is the contract of this one.
            unsafe { fold::pair::<U, O>(parameters, dst, terms, elements) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn $many<U: Unit, O: Op>(
            parameters: &Parameters,
            dsts: &[*mut u8],
            terms: &[Term],
            elements: usize,
        ) {
            // SAFETY: the contract of the called function is the contract of this one.
            unsafe { fold::many::<U, O>(parameters, dsts, terms, elements) }
        }
    };
}

level!(pair_plain, many_plain);
#[cfg(target_arch = "x86_64")]
level!(pair_avx2, many_avx2, "avx2,f16c");
#[cfg(target_arch = "x86_64")]
level!(pair_avx512, many_avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c");

/// Returns the best level of this processor, which is detected once.
pub(crate) fn best_level() -> SimdLevel {
    static BEST: OnceLock<SimdLevel> = OnceLock::new();
    *BEST.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> SimdLevel {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq");
    match (avx2, avx512) {
        (true, true) => SimdLevel::Avx512,
        (true, false) => SimdLevel::Avx2,
        (false, _) => SimdLevel::Plain,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> SimdLevel {
    SimdLevel::Plain
}

fn loops<U: Unit, O: Op>(level: SimdLevel) -> Loops {
    match level {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => Loops { pair: pair_avx512::<U, O>, many: many_avx512::<U, O> },
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => Loops { pair: pair_avx2::<U, O>, many: many_avx2::<U, O> },
        _ => Loops { pair: pair_plain::<U, O>, many: many_plain::<U, O> },
    }
}

/// Returns the loops of an operator on `U`. Sums and products use the loops of `M`. If `U` is a
/// signed integer, `M` is the unsigned integer of the same size: both types wrap to the same bits.
/// So signed integers need no sums and products of their own, which saves an eighth of all loops.
fn of_op<U: Unit, M: Unit>(op: ReduceOp, finish: bool, level: SimdLevel) -> Loops {
    match op {
        ReduceOp::Sum => loops::<M, Sum>(level),
        ReduceOp::Prod => loops::<M, Prod>(level),
        ReduceOp::Min => loops::<U, Min>(level),
        ReduceOp::Max => loops::<U, Max>(level),
        ReduceOp::Avg if finish => loops::<U, Mean>(level),
        ReduceOp::Avg => loops::<M, Sum>(level),
        ReduceOp::PremulSum => loops::<M, ScaledSum>(level),
    }
}

/// Returns the loops of an operator on a type that uses its own loops for all operators.
fn alone<U: Unit>(op: ReduceOp, finish: bool, level: SimdLevel) -> Loops {
    of_op::<U, U>(op, finish, level)
}

/// Returns the loops for folds of a reduction. `finish` is true for the fold that completes the
/// reduction; in an average, that fold divides. The processor must have `level`.
pub(crate) fn find(data_type: DataType, op: ReduceOp, finish: bool, level: SimdLevel) -> Loops {
    match data_type {
        DataType::Int8 => of_op::<Native<i8>, Native<u8>>(op, finish, level),
        DataType::Uint8 => alone::<Native<u8>>(op, finish, level),
        DataType::Int32 => of_op::<Native<i32>, Native<u32>>(op, finish, level),
        DataType::Uint32 => alone::<Native<u32>>(op, finish, level),
        DataType::Int64 => of_op::<Native<i64>, Native<u64>>(op, finish, level),
        DataType::Uint64 => alone::<Native<u64>>(op, finish, level),
        DataType::Float32 => alone::<Native<f32>>(op, finish, level),
        DataType::Float64 => alone::<Native<f64>>(op, finish, level),
        DataType::Bfloat16 => alone::<Word<Brain, 2>>(op, finish, level),
        #[cfg(target_arch = "x86_64")]
        DataType::Float16 if level >= SimdLevel::Avx2 => {
            alone::<crate::x86::HalfEight>(op, finish, level)
        }
        DataType::Float16 => alone::<Word<Half, 2>>(op, finish, level),
        DataType::Float8E4m3 => alone::<Word<E4m3, 4>>(op, finish, level),
        DataType::Float8E5m2 => alone::<Word<E5m2, 4>>(op, finish, level),
    }
}
