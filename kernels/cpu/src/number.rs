//! Arithmetic of accumulators. An accumulator holds one number, or several side by side. Both forms
//! give the same bits for the same values of an element type, so all SIMD levels agree.

/// An accumulator: one number, or several side by side that are treated alike.
pub(crate) trait Number: Copy + 'static {
    /// Type of one lane.
    type Lane: Copy + 'static;
    /// Number of lanes.
    const LANES: usize;
    /// Returns one lane.
    fn lane(self, lane: usize) -> Self::Lane;
    /// Makes an accumulator from its lanes, by index.
    fn from_lanes(lane: impl FnMut(usize) -> Self::Lane) -> Self;
    /// Returns the sum; integers wrap.
    fn add(self, other: Self) -> Self;
    /// Returns the product; integers wrap.
    fn mul(self, other: Self) -> Self;
    /// Returns the smaller number; −0 is smaller than +0, and NaN wins over everything.
    fn min(self, other: Self) -> Self;
    /// Returns the larger number; +0 is larger than −0, and NaN wins over everything.
    fn max(self, other: Self) -> Self;
    /// Returns the quotient by a count: correctly rounded for floats, towards zero for integers.
    fn div(self, count: u32) -> Self;
}

/// Implements `Number` for integers. `$wide` holds every value of the type exactly. Where `$wide`
/// is a float, the division may round. If the quotient is not an integer, rounding does not make it
/// one: the quotient is at least `1 / count` away from every integer, far more than the rounding
/// error.
macro_rules! integers {
    ($($int:ty => $wide:ty;)*) => {$(
        impl Number for $int {
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
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn div(self, count: u32) -> Self {
                (self as $wide / count as $wide) as $int
            }
        }
    )*};
}

integers! {
    i8 => f32;
    u8 => f32;
    i32 => f64;
    u32 => f64;
    i64 => i64;
    u64 => u64;
}

/// Implements `Number` for floats. Minimum and maximum compare the values, and return the bits of
/// one operand. Equal operands differ at most in the sign of zero: OR of their bits is the minimum,
/// and AND the maximum. If an operand is NaN, the result has its bits.
macro_rules! floats {
    ($($float:ty)*) => {$(
        impl Number for $float {
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
                self + other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let smaller = if self < other { self } else { other };
                let tie = <$float>::from_bits(self.to_bits() | other.to_bits());
                let ordered = if self == other { tie } else { smaller };
                if self.is_nan() { self } else { ordered }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let larger = if self > other { self } else { other };
                let tie = <$float>::from_bits(self.to_bits() & other.to_bits());
                let ordered = if self == other { tie } else { larger };
                if self.is_nan() { self } else { ordered }
            }
            #[inline(always)]
            fn div(self, count: u32) -> Self {
                self / count as $float
            }
        }
    )*};
}

floats! { f32 f64 }

impl<N: Number, const LANES: usize> Number for [N; LANES] {
    type Lane = N;
    const LANES: usize = LANES;
    #[inline(always)]
    fn lane(self, lane: usize) -> N {
        self[lane]
    }
    #[inline(always)]
    fn from_lanes(lane: impl FnMut(usize) -> N) -> Self {
        std::array::from_fn(lane)
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane].add(other[lane]))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane].mul(other[lane]))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane].min(other[lane]))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane].max(other[lane]))
    }
    #[inline(always)]
    fn div(self, count: u32) -> Self {
        self.map(|lane| lane.div(count))
    }
}

/// Operator: combines two accumulators into one, and finishes the accumulator of all terms.
pub(crate) trait Op: 'static {
    /// True if terms that are marked as scaled are multiplied by the scalar when they are read.
    const SCALES: bool = false;
    /// Returns `a ⊕ b`. Swapped operands give the same bits after `Unit::narrow`, which turns every
    /// NaN into the same NaN.
    fn combine<N: Number>(a: N, b: N) -> N;
    /// Returns the value that is rounded and stored.
    #[inline(always)]
    fn finish<N: Number>(sum: N, _count: u32) -> N {
        sum
    }
}

pub(crate) struct Sum;
pub(crate) struct Prod;
pub(crate) struct Min;
pub(crate) struct Max;
/// A sum that is divided when it is stored.
pub(crate) struct Mean;
/// A sum of terms that may be scaled.
pub(crate) struct ScaledSum;

impl Op for Sum {
    #[inline(always)]
    fn combine<N: Number>(a: N, b: N) -> N {
        a.add(b)
    }
}

impl Op for Prod {
    #[inline(always)]
    fn combine<N: Number>(a: N, b: N) -> N {
        a.mul(b)
    }
}

impl Op for Min {
    #[inline(always)]
    fn combine<N: Number>(a: N, b: N) -> N {
        a.min(b)
    }
}

impl Op for Max {
    #[inline(always)]
    fn combine<N: Number>(a: N, b: N) -> N {
        a.max(b)
    }
}

impl Op for Mean {
    #[inline(always)]
    fn combine<N: Number>(a: N, b: N) -> N {
        a.add(b)
    }
    #[inline(always)]
    fn finish<N: Number>(sum: N, count: u32) -> N {
        sum.div(count)
    }
}

impl Op for ScaledSum {
    const SCALES: bool = true;
    #[inline(always)]
    fn combine<N: Number>(a: N, b: N) -> N {
        a.add(b)
    }
}
