//! The element types of the safe interface.

use bytemuck::{Pod, Zeroable};
use ccl_core::types::DataType;

/// A type that collectives move and reduce.
pub trait Element: Pod + Send + Sync {
    /// Data type of the element in the core.
    const DATA_TYPE: DataType;
}

/// An OCP 8-bit float with 4 exponent and 3 mantissa bits, as raw bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4m3(pub u8);

/// An OCP 8-bit float with 5 exponent and 2 mantissa bits, as raw bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5m2(pub u8);

macro_rules! elements {
    ($($type:ty => $name:ident,)*) => {
        $(impl Element for $type {
            const DATA_TYPE: DataType = DataType::$name;
        })*
    };
}

elements! {
    i8 => Int8,
    u8 => Uint8,
    i32 => Int32,
    u32 => Uint32,
    i64 => Int64,
    u64 => Uint64,
    half::f16 => Float16,
    half::bf16 => Bfloat16,
    f32 => Float32,
    f64 => Float64,
    F8E4m3 => Float8E4m3,
    F8E5m2 => Float8E5m2,
}

/// Operator that combines elements, with the factor of a premultiplied sum where there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction<T> {
    /// a + b; integers wrap.
    Sum,
    /// a × b; integers wrap.
    Prod,
    /// The smaller element.
    Min,
    /// The larger element.
    Max,
    /// The sum divided by the number of ranks.
    Avg,
    /// The sum of each rank's elements times that rank's factor.
    PremulSum(T),
}
