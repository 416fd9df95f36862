//! Tests of the kernels against the reference, bit for bit.

mod exhaustive;
mod matrix;
mod operands;
