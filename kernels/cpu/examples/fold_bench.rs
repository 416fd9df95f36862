//! Benchmark of folds of two terms (for each type), of a few other folds, and of copies:
//! `cargo run --release --example fold_bench`. The rates of folds are GB/s of one operand; the
//! memory traffic of a fold of two terms is three times as much.

use std::time::Instant;

use ccl_core::types::{DataType, ReduceOp};
use ccl_kernels_cpu::{Kernel, Scalar, SimdLevel, Term, copy_streaming};

/// Returns the time of the best of seven rounds, in nanoseconds per call.
fn time(mut work: impl FnMut(), calls: u32) -> f64 {
    work();
    let round = |_| {
        let start = Instant::now();
        for _ in 0..calls {
            work();
        }
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    (0..7).map(round).fold(f64::INFINITY, f64::min)
}

/// Returns the GB/s of one operand in a fold of `terms` operands of `bytes` bytes each.
fn bandwidth(kernel: &Kernel, data_type: DataType, bytes: usize, terms: usize, place: bool) -> f64 {
    // The same byte everywhere: a small number in any float type. Each operand begins in its own
    // cache line, and no two operands begin at the same offset in a page.
    let mut room = vec![0x21u8; (bytes + 4096 + 256) * (terms + 1) + 64];
    let first = room.as_mut_ptr().wrapping_add(room.as_ptr().align_offset(64));
    let data: Vec<*mut u8> =
        (0..=terms).map(|at| first.wrapping_add(at * (bytes + 4096 + 256))).collect();
    let operands: Vec<Term> = data[1..].iter().map(|&data| Term::new(data)).collect();
    let dst = if place { data[1] } else { data[0] };
    let elements = bytes / data_type.bytes();
    // SAFETY: each buffer holds `elements` elements, and the destination is either the first term
    // or overlaps no term.
    let work = || unsafe { kernel.fold(&[dst], &operands, elements, false) };
    bytes as f64 / time(work, (64 << 20 >> bytes.ilog2()).clamp(8, 1 << 16))
}

fn main() {
    println!("sum of two terms: GB/s of one operand (in brackets: in place); ns for 8 bytes");
    for level in SimdLevel::available() {
        println!("\n{level:?}\n{:<10} {:>15} {:>15} {:>6}", "type", "16 KiB", "512 KiB", "8 B");
        for data_type in DataType::ALL {
            let kernel = Kernel::select_with(data_type, ReduceOp::Sum, Scalar::NONE, 2, level);
            let cell = |bytes| {
                let apart = bandwidth(&kernel, data_type, bytes, 2, false);
                let place = bandwidth(&kernel, data_type, bytes, 2, true);
                format!("{apart:.1} ({place:.1})")
            };
            let small_ns = 8.0 / bandwidth(&kernel, data_type, 8, 2, false);
            let name = data_type.name();
            println!("{name:<10} {:>15} {:>15} {small_ns:>6.1}", cell(16 << 10), cell(512 << 10));
        }
    }
    println!("\nother folds: GB/s at 16 KiB and 512 KiB, best SIMD level");
    for (data_type, op, terms) in [
        (DataType::Float32, ReduceOp::Max, 2),
        (DataType::Float32, ReduceOp::Sum, 3),
        (DataType::Float32, ReduceOp::Sum, 8),
        (DataType::Bfloat16, ReduceOp::Max, 2),
        (DataType::Bfloat16, ReduceOp::Sum, 8),
        (DataType::Float16, ReduceOp::Sum, 8),
    ] {
        let kernel = Kernel::select(data_type, op, Scalar::NONE, 2);
        let [near, far] =
            [16, 512].map(|kib| bandwidth(&kernel, data_type, kib << 10, terms, false));
        println!("{data_type:<10} {op:<4} {terms} terms: {near:>6.1} {far:>6.1}");
    }
    let (bytes, mut to) = (64 << 20, vec![0u8; 64 << 20]);
    let from = vec![1u8; bytes];
    let target = to.as_mut_ptr();
    // SAFETY: both buffers have `bytes` bytes, and they do not overlap.
    let stream_ns = time(|| unsafe { copy_streaming(target, from.as_ptr(), bytes) }, 3);
    // SAFETY: both buffers have `bytes` bytes, and they do not overlap.
    let copy_ns = time(|| unsafe { ccl_kernels_cpu::copy(&[target], from.as_ptr(), bytes) }, 3);
    let gb_s = |ns: f64| bytes as f64 / ns;
    println!("\n64 MiB: copy {:.1} GB/s, streaming {:.1} GB/s", gb_s(copy_ns), gb_s(stream_ns));
}
