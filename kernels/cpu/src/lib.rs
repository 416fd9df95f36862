//! Reductions on CPU memory.
//!
//! Every step of every collective is one primitive, the *fold*: some terms are combined element
//! by element, strictly from left to right, and the result is stored to one or more destinations.
//! [`Kernel`] is a fold made ready for a type, an operator and this processor; [`copy()`] and
//! [`copy_streaming`] move bytes without looking at them.
//!
//! # Arithmetic
//!
//! The same operands give the same bits on every path: any [`SimdLevel`], any alignment, any
//! split into blocks, in place or not. [`mod@reference`] is the slow, plain specification.
//!
//! * **Integers** wrap in sums and products. An average is the (wrapped) sum divided by the number
//!   of ranks, rounded towards zero.
//! * **float32 and float64** are reduced in their own type. An average is the sum divided by the
//!   number of ranks, correctly rounded (not multiplied by a reciprocal).
//! * **float16, bfloat16 and float8** are reduced in float32 over all terms of one fold and rounded
//!   once, to nearest with ties to even, when the result is stored. Where an algorithm needs
//!   several folds for one element, each fold rounds. Within a fold, only scaled terms (below) are
//!   rounded to the element's type before the result is stored.
//! * **Subnormals** are kept everywhere.
//! * **Overflow**: float16 and bfloat16 go to infinity. Both float8 types saturate to their largest
//!   finite number (448 and 57344), like the CUDA conversions that NCCL uses (`__NV_SATFINITE`);
//!   an infinity of e5m2 in a reduction saturates, too.
//! * **Premultiplied sums**: a scaled term is multiplied by the scalar and rounded to the element's
//!   type before it is added, as if the product had been stored and loaded. So the product
//!   that a rank adds equals the product that it sends. Multiply and add are never fused.
//! * **NaN**: a fold that meets a NaN, or makes one (∞ − ∞, 0 × ∞), stores NaN, for every operator.
//!   In particular, minimum and maximum propagate NaN. NCCL's documentation leaves this open, and
//!   an operator that drops NaN on some paths would hide a diverged rank. The stored NaN is always
//!   the same one: quiet, without sign or payload (float8: `0x7f`).
//! * **Zeros**: −0 is smaller than +0 in minimum and maximum; sums and products follow IEEE 754.
//! * A fold of one term that is neither scaled nor averaged is a copy: its bits, NaN payloads and
//!   infinities included, pass unchanged.

mod copy;
mod dispatch;
mod fold;
mod number;
pub mod reference;
mod unit;
#[cfg(target_arch = "x86_64")]
mod x86;

use ccl_core::types::{DataType, ReduceOp};

pub use copy::{copy, copy_streaming};
use dispatch::Loops;
use fold::Parameters;

/// One operand of a fold.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// Address of the first element; any alignment.
    pub data: *const u8,
    /// True if each element is multiplied by this rank's scalar when it is read. A
    /// [`ReduceOp::PremulSum`] needs this for raw inputs; other operators ignore this field.
    pub scaled: bool,
}

impl Term {
    /// Makes a term that is not scaled.
    #[must_use]
    pub const fn new(data: *const u8) -> Self {
        Term { data, scaled: false }
    }

    /// Makes a term that is multiplied by this rank's scalar.
    #[must_use]
    pub const fn scaled(data: *const u8) -> Self {
        Term { data, scaled: true }
    }

    /// Returns the address of the first element.
    #[inline]
    #[must_use]
    pub const fn data(&self) -> *const u8 {
        self.data
    }

    /// Returns the term that begins `bytes` bytes later.
    #[inline(always)]
    fn at(self, bytes: usize) -> Self {
        Term { data: self.data.wrapping_add(bytes), ..self }
    }
}

/// This rank's factor in a [`ReduceOp::PremulSum`]: one element of the reduction's type, in the
/// first bytes. Other operators ignore the scalar: pass [`Scalar::NONE`] for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scalar(pub [u8; 8]);

impl Scalar {
    /// Scalar of operators that use none.
    pub const NONE: Scalar = Scalar([0; 8]);

    /// Makes a scalar from the bytes of one element. Missing bytes are zero; bytes after the eighth
    /// are ignored.
    #[must_use]
    pub fn from_element(element: &[u8]) -> Scalar {
        let mut bytes = [0; 8];
        for (byte, &given) in bytes.iter_mut().zip(element) {
            *byte = given;
        }
        Scalar(bytes)
    }
}

/// The vector instructions that a kernel may use. All levels give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// Instructions that the target always has (x86-64: SSE2; AArch64: NEON).
    Plain,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ, with AVX2 and F16C.
    Avx512,
}

impl SimdLevel {
    /// Returns the best level that this processor has.
    #[must_use]
    pub fn best() -> SimdLevel {
        dispatch::best_level()
    }

    /// Iterates over all levels that this processor has.
    pub fn available() -> impl Iterator<Item = SimdLevel> {
        let all = [SimdLevel::Plain, SimdLevel::Avx2, SimdLevel::Avx512];
        all.into_iter().filter(|&level| level <= SimdLevel::best())
    }
}

/// Prepared fold: chosen once per call of a collective, cheap to copy, `Send` and `Sync`.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Loops for folds that leave the reduction incomplete.
    partial: Loops,
    /// Loops for folds that complete the reduction.
    last: Loops,
    parameters: Parameters,
    element_bytes: usize,
    scales: bool,
    averages: bool,
}

impl Kernel {
    /// Returns the fold of a type and operator with the best instructions of this processor.
    ///
    /// `scalar` is this rank's factor in a premultiplied sum; `ranks` is the divisor of an average
    /// (0 counts as 1). An operator ignores what it does not use.
    #[must_use]
    pub fn select(data_type: DataType, op: ReduceOp, scalar: Scalar, ranks: u32) -> Kernel {
        Kernel::select_with(data_type, op, scalar, ranks, SimdLevel::best())
    }

    /// Does what [`Kernel::select`] does, with instructions of at most `level`.
    #[must_use]
    pub fn select_with(
        data_type: DataType,
        op: ReduceOp,
        scalar: Scalar,
        ranks: u32,
        level: SimdLevel,
    ) -> Kernel {
        let level = Ord::min(level, SimdLevel::best());
        Kernel {
            partial: dispatch::find(data_type, op, false, level),
            last: dispatch::find(data_type, op, true, level),
            parameters: Parameters { scalar: scalar.0, count: Ord::max(ranks, 1) },
            element_bytes: data_type.bytes(),
            scales: op == ReduceOp::PremulSum,
            averages: op == ReduceOp::Avg,
        }
    }

    /// Returns the bytes of an element.
    #[inline]
    #[must_use]
    pub fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// Returns whether a fold of this single term is a plain copy.
    #[inline]
    #[must_use]
    pub fn copies(&self, only: Term, finish: bool) -> bool {
        !(only.scaled && self.scales || finish && self.averages)
    }

    /// Stores `terms[0] ⊕ terms[1] ⊕ …`, element by element, to each of `dsts`. `finish` is true if
    /// this fold completes the reduction: an average is divided then. Without terms or destinations
    /// the fold does nothing.
    ///
    /// # Safety
    /// Each term is valid for reading `elements` elements, and each destination for reading and
    /// writing as many. During the call, nothing else writes to a term, or reads or writes a
    /// destination. A destination is *exactly equal* to a term (in place) or does not overlap it.
    /// Destinations do not overlap each other; terms may. No alignment is assumed.
    #[inline]
    pub unsafe fn fold(&self, dsts: &[*mut u8], terms: &[Term], elements: usize, finish: bool) {
        let loops = if finish { &self.last } else { &self.partial };
        match (dsts, terms) {
            (&[dst], &[left, right]) if !std::ptr::eq(dst, right.data) => {
                // SAFETY: the caller's promise; the destination is not the second term.
                unsafe { (loops.pair)(&self.parameters, dst, [left, right], elements) };
            }
            // The operators are commutative.
            (&[dst], &[left, right]) if !std::ptr::eq(dst, left.data) => {
                // SAFETY: the caller's promise; `left`, now second, is not the destination.
                unsafe { (loops.pair)(&self.parameters, dst, [right, left], elements) };
            }
            (_, &[only]) if self.copies(only, finish) => {
                // SAFETY: the caller's promise.
                unsafe { copy(dsts, only.data, elements * self.element_bytes) };
            }
            _ => {
                // SAFETY: the caller's promise.
                unsafe { (loops.many)(&self.parameters, dsts, terms, elements) };
            }
        }
    }
}
