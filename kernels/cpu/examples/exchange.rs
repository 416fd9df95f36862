//! What the schedule interpreter costs: a 2-rank float32 sum all_reduce through schedule, program
//! and mapped slots, against a bare hand-written exchange of the same bytes, in one run.
//!
//! `cargo run --release -p ccl-kernels-cpu --example exchange`

use std::hint::black_box;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use ccl_core::execution::{Execution, Numbers, Progress};
use ccl_core::lower::{Alias, lower};
use ccl_core::schedule::{Builder, Layout, RankSchedule, input, output, scratch};
use ccl_core::types::{DataType, ReduceOp};
use ccl_kernels_cpu::mapped::{Duplex, MappedLinks};
use ccl_kernels_cpu::ports::{CallMemory, CpuPorts};
use ccl_kernels_cpu::{Kernel, Scalar, Term};
use ccl_memory::Region;
use ccl_memory::slots::{Receiver, Sender, Shape};

fn one_shot(rank: u32) -> RankSchedule {
    let other = 1 - rank;
    let mut b = Builder::new(rank, 2, 1);
    b.send(other, input(0));
    let theirs = scratch(0, 0, input(0));
    b.recv(other, theirs);
    let (first, second) = if rank == 0 { (input(0), theirs) } else { (theirs, input(0)) };
    b.reduce_last(output(0), &[first.into(), second.into()]);
    b.finish()
}

fn two_shot(rank: u32) -> RankSchedule {
    let other = 1 - rank;
    let mut b = Builder::new(rank, 2, 2);
    b.send(other, input(other));
    let theirs = scratch(0, 0, input(rank));
    b.recv(other, theirs);
    let (first, second) = if rank == 0 { (input(rank), theirs) } else { (theirs, input(rank)) };
    b.reduce_last(output(rank), &[first.into(), second.into()]);
    b.send(other, output(rank));
    b.recv(other, output(other));
    b.finish()
}

const SHAPE: Shape = Shape { slots: 8, slot_bytes: 128 << 10 };

fn ours(rank: u32, regions: &[Region; 2], bytes: usize, iterations: usize, start: &Barrier) -> f64 {
    let schedule = if bytes <= 8192 { one_shot(rank) } else { two_shot(rank) };
    let program = Arc::new(lower(&schedule, Alias::default()));
    let count = bytes / 4;
    let layout = Layout::even(count, schedule.split, 16);
    let numbers = Numbers {
        input: layout.clone(),
        output: layout,
        element_bytes: 4,
        slot_bytes: SHAPE.slot_bytes,
    };
    let mut execution = Execution::new(program, 1);
    start.wait();
    let duplex = Duplex {
        receiver: Receiver::new(&regions[rank as usize], SHAPE).unwrap(),
        sender: Sender::new(&regions[1 - rank as usize], SHAPE).unwrap(),
    };
    let mut links = vec![None, None];
    links[1 - rank as usize] = Some(duplex);
    let mut ports = CpuPorts::new(MappedLinks::new(1, links, vec![None, None]), 2);
    let input = vec![rank as f32 + 1.0; count];
    let mut output = vec![0f32; count];
    let kernel = Kernel::select(DataType::Float32, ReduceOp::Sum, Scalar::NONE, 2);
    let mut times = Vec::new();
    for _ in 0..9 {
        start.wait();
        let begin = Instant::now();
        for tag in 0..iterations {
            // SAFETY: the vectors live through the loop and nobody else touches them.
            let call = unsafe {
                CallMemory::new(
                    input.as_ptr().cast(),
                    output.as_mut_ptr().cast(),
                    std::ptr::null_mut(),
                    kernel,
                    tag as u64,
                )
            };
            ports.bind(call);
            execution.start(&numbers);
            while execution.advance(&mut ports) != Progress::Done {
                std::hint::spin_loop();
            }
        }
        times.push(begin.elapsed().as_secs_f64() / iterations as f64);
    }
    assert!(black_box(&output).iter().all(|x| *x == 3.0));
    median(times)
}

/// The same exchange without schedule, interpreter or slots: two buffers, two flags.
fn bare(rank: u32, regions: &[Region; 2], bytes: usize, iterations: usize, start: &Barrier) -> f64 {
    let count = bytes / 4;
    let input = vec![rank as f32 + 1.0; count];
    let mut output = vec![0f32; count];
    let half = if bytes <= 8192 { 0 } else { count / 2 };
    let mine = &regions[rank as usize];
    let other = &regions[1 - rank as usize];
    let kernel = Kernel::select(DataType::Float32, ReduceOp::Sum, Scalar::NONE, 2);
    let mut times = Vec::new();
    let mut number = 0u32;
    start.wait();
    for _ in 0..9 {
        start.wait();
        let begin = Instant::now();
        for _ in 0..iterations {
            number += 1;
            bare_once(rank, mine, other, &input, &mut output, half, number, kernel);
        }
        times.push(begin.elapsed().as_secs_f64() / iterations as f64);
    }
    assert!(black_box(&output).iter().all(|x| *x == 3.0));
    median(times)
}

#[allow(clippy::too_many_arguments)]
fn bare_once(
    rank: u32,
    mine: &Region,
    other: &Region,
    input: &[f32],
    output: &mut [f32],
    half: usize,
    number: u32,
    kernel: Kernel,
) {
    let flag = |region: &Region, phase: usize, slot: usize| -> *const AtomicU32 {
        region.start().wrapping_add(slot * (256 << 10) + phase * (128 << 10)).cast()
    };
    let slot = number as usize % 2;
    let wait = |phase: usize| {
        // SAFETY: inside the region, aligned.
        while unsafe { &*flag(mine, phase, slot) }.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
    };
    let send = |phase: usize, from: &[f32]| {
        let at = flag(other, phase, slot);
        // SAFETY: inside the region; the flag's line holds 12 floats, longer ones start after it.
        unsafe {
            let skip = if from.len() <= 12 { 16 } else { 64 };
            let to = at.cast::<u8>().add(skip).cast_mut().cast::<f32>();
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
            (*at).store(number, Ordering::Release);
        }
    };
    let got = |phase: usize, count: usize| {
        flag(mine, phase, slot).cast::<u8>().wrapping_add(if count <= 12 { 16 } else { 64 })
    };
    let sum = |to: &mut [f32], own: &[f32], theirs: *const u8| {
        let terms = [own.as_ptr().cast(), theirs].map(Term::new);
        // SAFETY: all of the slices' length.
        unsafe { kernel.fold(&[to.as_mut_ptr().cast()], &terms, own.len(), true) };
    };
    if half == 0 {
        send(0, input);
        wait(0);
        sum(output, input, got(0, input.len()));
        return;
    }
    let (low, high) = (0..half, half..input.len());
    let (own, theirs) = if rank == 0 { (low, high) } else { (high, low) };
    send(0, &input[theirs.clone()]);
    wait(0);
    sum(&mut output[own.clone()], &input[own.clone()], got(0, own.len()));
    send(1, &output[own]);
    wait(1);
    // SAFETY: the peer's half lies in the slot.
    unsafe {
        let to = output[theirs.clone()].as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(got(1, theirs.len()), to, theirs.len() * 4);
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2] * 1e6
}

type Exchange = fn(u32, &[Region; 2], usize, usize, &Barrier) -> f64;

fn both(exchange: Exchange, bytes: usize, iterations: usize) -> f64 {
    let regions = [Region::private(2 << 20), Region::private(2 << 20)];
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| exchange(1, &regions, bytes, iterations, &start));
        let mine = exchange(0, &regions, bytes, iterations, &start);
        mine.max(other.join().unwrap())
    })
}

fn main() {
    println!("{:>8} {:>10} {:>10} {:>6}", "bytes", "ours us", "bare us", "ratio");
    for (bytes, iterations) in
        [(8, 200_000), (1024, 100_000), (8192, 50_000), (65536, 10_000), (131072, 5_000)]
    {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            a.push(both(ours, bytes, iterations) / 1e6);
            b.push(both(bare, bytes, iterations) / 1e6);
        }
        let (a, b) = (median(a), median(b));
        println!("{bytes:>8} {a:>10.3} {b:>10.3} {:>6.2}", a / b);
    }
}
