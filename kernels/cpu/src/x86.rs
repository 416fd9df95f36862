//! float16 by the processor's own conversions (F16C), eight at a time. float16 is the one type for
//! which the compiler makes no good vector code out of plain loops.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256, _CMP_EQ_OQ, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_cvtph_ps,
    _mm_cvtps_ph, _mm_cvtsi128_si32, _mm_cvtss_f32, _mm_set_ss, _mm256_add_ps, _mm256_and_ps,
    _mm256_blendv_ps, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_div_ps,
    _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_or_ps, _mm256_set1_ps,
};

use crate::number::Number;
use crate::unit::{Half, Single, Unit};

/// The float32 NaN whose conversion to float16 is the NaN that folds store.
const NAN: f32 = f32::from_bits(0x7fc0_0000);

/// Eight float32. This type is made and used only by the functions of [`crate::dispatch`] that
/// enable F16C and AVX2. These functions run only if the processor has F16C and AVX2: each `unsafe`
/// below relies on that.
#[derive(Clone, Copy)]
pub(crate) struct Eight(__m256);

#[inline]
#[target_feature(enable = "avx")]
fn min(a: __m256, b: __m256) -> __m256 {
    // The instruction gives the second operand for a tie and for NaN.
    settle(a, _mm256_min_ps(a, b), _mm256_or_ps(a, b), _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b))
}

#[inline]
#[target_feature(enable = "avx")]
fn max(a: __m256, b: __m256) -> __m256 {
    settle(a, _mm256_max_ps(a, b), _mm256_and_ps(a, b), _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b))
}

/// Returns `chosen`, but `tie` where the operands are equal, and `a` where `a` is NaN.
#[inline]
#[target_feature(enable = "avx")]
fn settle(a: __m256, chosen: __m256, tie: __m256, equal: __m256) -> __m256 {
    let ordered = _mm256_blendv_ps(chosen, tie, equal);
    _mm256_blendv_ps(ordered, a, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a))
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn narrow_eight(a: __m256) -> __m128i {
    let nan = _mm256_set1_ps(NAN);
    let a = _mm256_blendv_ps(a, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a)
}

#[inline]
#[target_feature(enable = "f16c")]
fn widen_one(raw: u16) -> f32 {
    let lanes: __m128i;
    // The compiler would emit a load into one lane of a register. That load waits for the
    // register's previous use, so four elements take 26 ns instead of 6.
    // SAFETY: an AVX instruction (F16C implies AVX) that only copies one register to another.
    unsafe {
        asm!(
            "vmovd {lanes}, {raw:e}",
            raw = in(reg) u32::from(raw),
            lanes = lateout(xmm_reg) lanes,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    _mm_cvtss_f32(_mm_cvtph_ps(lanes))
}

#[inline]
#[target_feature(enable = "f16c")]
fn narrow_one(a: f32) -> u16 {
    let a = if a.is_nan() { NAN } else { a };
    _mm_cvtsi128_si32(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(a))) as u16
}

impl Eight {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: the processor has AVX (see the type).
        Eight(unsafe { _mm256_set1_ps(value) })
    }
}

impl Number for Eight {
    type Lane = Self;
    const LANES: usize = 1;
    #[inline(always)]
    fn lane(self, _lane: usize) -> Self {
        self
    }
    #[inline(always)]
    fn from_lanes(mut lane: impl FnMut(usize) -> Self) -> Self {
        lane(0)
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the processor has AVX (see the type).
        Eight(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: the processor has AVX (see the type).
        Eight(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: the processor has AVX (see the type).
        Eight(unsafe { min(self.0, other.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: the processor has AVX (see the type).
        Eight(unsafe { max(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, count: u32) -> Self {
        // SAFETY: the processor has AVX (see the type).
        Eight(unsafe { _mm256_div_ps(self.0, Eight::splat(count as f32).0) })
    }
}

/// Eight float16.
pub(crate) struct HalfEight;

impl Unit for HalfEight {
    type Raw = __m128i;
    type Acc = Eight;
    type Tail = HalfOne;
    const ELEMENTS: usize = 8;
    #[inline(always)]
    fn widen(raw: __m128i) -> Eight {
        // SAFETY: the processor has F16C (see `Eight`).
        Eight(unsafe { _mm256_cvtph_ps(raw) })
    }
    #[inline(always)]
    fn narrow(acc: Eight) -> __m128i {
        // SAFETY: the processor has F16C (see `Eight`).
        unsafe { narrow_eight(acc.0) }
    }
    #[inline(always)]
    fn broadcast(scalar: [u8; 8]) -> Eight {
        Eight::splat(Single::<Half>::broadcast(scalar))
    }
}

/// One float16.
pub(crate) struct HalfOne;

impl Unit for HalfOne {
    type Raw = u16;
    type Acc = f32;
    type Tail = Self;
    const ELEMENTS: usize = 1;
    #[inline(always)]
    fn widen(raw: u16) -> f32 {
        // SAFETY: the processor has F16C (see `Eight`).
        unsafe { widen_one(raw) }
    }
    #[inline(always)]
    fn narrow(acc: f32) -> u16 {
        // SAFETY: the processor has F16C (see `Eight`).
        unsafe { narrow_one(acc) }
    }
    #[inline(always)]
    fn broadcast(scalar: [u8; 8]) -> f32 {
        Single::<Half>::broadcast(scalar)
    }
}
