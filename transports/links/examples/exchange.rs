//! Benchmark of the engine: a float32 sum all_reduce of 2 ranks, once through schedule, program and
//! mapped slots, and once as a hand-written exchange of the same bytes. Prints the median of five
//! runs for each; the time of a run is itself a median of seven repetitions.
//!
//! `cargo run --release -p ccl-links --example exchange`

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ccl_core::algorithm::{self, Params};
use ccl_core::execution::{CallParams, Execution, Progress};
use ccl_core::lower::{Alias, lower};
use ccl_core::schedule::Layout;
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, DataType, ReduceOp};
use ccl_kernels_cpu::{Kernel, Scalar, Term};
use ccl_links::Links;
use ccl_links::mapped::{Duplex, MappedLinks};
use ccl_links::ports::{CallMemory, CpuPorts};
use ccl_memory::slots::{Receiver, Sender, Shape};
use ccl_memory::{Region, RegionError};

type Failure = Box<dyn Error + Send + Sync>;

const SHAPE: Shape = Shape { slots: 8, slot_bytes: 128 << 10 };
/// Largest message that both ranks send whole, in bytes; beyond it, each rank reduces one half.
const ONE_SHOT_BYTES_MAX: usize = 8 << 10;
const REPETITIONS: usize = 7;

/// Barrier for the two ranks; a waiting rank spins.
#[derive(Default)]
struct Gate(AtomicU64);

impl Gate {
    fn meet(&self) {
        let all = self.0.fetch_add(1, Ordering::SeqCst) / 2 * 2 + 2;
        while self.0.load(Ordering::SeqCst) < all {
            std::hint::spin_loop();
        }
    }
}

/// One of the two ranks; each is a thread.
struct Rank<'a> {
    rank: usize,
    regions: &'a [Region; 2],
    gate: &'a Gate,
    bytes: usize,
    iterations: usize,
}

impl Rank<'_> {
    /// Returns the time of an exchange, in microseconds: the median over [`REPETITIONS`].
    fn time(
        &self,
        mut exchange: impl FnMut(&[f32], &mut [f32]) -> Result<(), RegionError>,
    ) -> Result<f64, Failure> {
        let input = vec![self.rank as f32 + 1.0; self.bytes / 4];
        let mut output = vec![0f32; self.bytes / 4];
        let mut times = Vec::new();
        for _ in 0..REPETITIONS {
            self.gate.meet();
            let begin = Instant::now();
            for _ in 0..self.iterations {
                exchange(&input, &mut output)?;
            }
            times.push(begin.elapsed().as_secs_f64() * 1e6 / self.iterations as f64);
        }
        if black_box(&output).iter().any(|x| *x != 3.0) {
            return Err("an exchange ended with wrong sums".into());
        }
        Ok(median(times))
    }

    /// Measures an exchange through the engine.
    fn ours(&self) -> Result<f64, Failure> {
        let name = if self.bytes <= ONE_SHOT_BYTES_MAX { "direct" } else { "direct_two_phase" };
        let algorithm = algorithm::find(Collective::AllReduce, name)?;
        let hosts = Hosts::one(2);
        let params = Params { rank: self.rank as u32, ranks: 2, root: 0, hosts: &hosts };
        let schedule = (algorithm.schedule)(&params);
        let layout = Layout::even(self.bytes / 4, schedule.split, 16);
        let (input, output) = (layout.clone(), layout);
        let numbers = CallParams { input, output, element_bytes: 4, slot_bytes: SHAPE.slot_bytes };
        let mut execution = Execution::new(Arc::new(lower(&schedule, Alias::APART)), 1);
        let receiver = Receiver::new(&self.regions[self.rank], SHAPE)?;
        self.gate.meet();
        let sender = Sender::new(&self.regions[1 - self.rank], SHAPE)?;
        let mut links = vec![None, None];
        links[1 - self.rank] = Some(Duplex { sender, receiver });
        let mut ports =
            CpuPorts::new(Links::new(MappedLinks::new(1, links, vec![None, None]), None), 2);
        let mut tag = 0;
        self.time(|input, output| {
            tag += 1;
            let (input, output) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
            // SAFETY: the slices live until the call ends and are as long as the call's buffers;
            // nobody else touches them, and the program needs no scratch.
            let call = unsafe { CallMemory::new(input, output, std::ptr::null_mut(), sum(), tag) };
            ports.bind(call);
            execution.start(&numbers);
            while execution.advance(&mut ports) != Progress::Done {
                std::hint::spin_loop();
            }
            Ok(())
        })
    }

    /// Measures the hand-written exchange: each phase uses two buffers in turn, each with a flag
    /// before the data.
    fn bare(&self) -> Result<f64, Failure> {
        self.gate.meet();
        let mut number = 0u32;
        self.time(|input, output| {
            number += 1;
            let half = if self.bytes <= ONE_SHOT_BYTES_MAX { 0 } else { input.len() / 2 };
            if half == 0 {
                self.send(0, number, input)?;
                self.wait(0, number)?;
                self.add(0, number, input, output);
                return Ok(());
            }
            let (low, high) = (0..half, half..input.len());
            let (own, theirs) = if self.rank == 0 { (low, high) } else { (high, low) };
            self.send(1, number, &input[theirs.clone()])?;
            self.wait(1, number)?;
            self.add(1, number, &input[own.clone()], &mut output[own.clone()]);
            self.send(2, number, &output[own])?;
            self.wait(2, number)?;
            let from = place(2, number) + skip(theirs.len() * 4);
            let to = bytes_of_mut(&mut output[theirs]);
            self.regions[self.rank].read(from, to)
        })
    }

    fn send(&self, phase: usize, number: u32, data: &[f32]) -> Result<(), RegionError> {
        let (other, at) = (&self.regions[1 - self.rank], place(phase, number));
        other.write(at + skip(data.len() * 4), bytes_of(data))?;
        other.word32(at)?.store(number, Ordering::Release);
        Ok(())
    }

    fn wait(&self, phase: usize, number: u32) -> Result<(), RegionError> {
        let flag = self.regions[self.rank].word32(place(phase, number))?;
        while flag.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn add(&self, phase: usize, number: u32, own: &[f32], to: &mut [f32]) {
        let at = place(phase, number) + skip(own.len() * 4);
        let theirs = self.regions[self.rank].start().wrapping_add(at).cast_const();
        let terms = [Term::new(own.as_ptr().cast()), Term::new(theirs)];
        // SAFETY: both terms and the target have the slice's length; the peer has published its
        // part, and overwrites it only after this rank's next message.
        unsafe { sum().fold(&[to.as_mut_ptr().cast()], &terms, own.len(), true) };
    }
}

fn sum() -> Kernel {
    Kernel::select(DataType::Float32, ReduceOp::Sum, Scalar::NONE, 2)
}

/// Returns the offset of a phase's buffer for this exchange.
fn place(phase: usize, number: u32) -> usize {
    (phase * 2 + number as usize % 2) * (256 << 10)
}

/// Returns the offset of the data from the flag: up to 48 bytes share the flag's cache line.
fn skip(bytes: usize) -> usize {
    if bytes <= 48 { 16 } else { 64 }
}

fn bytes_of(data: &[f32]) -> &[u8] {
    // SAFETY: floats are plain bytes.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

fn bytes_of_mut(data: &mut [f32]) -> &mut [u8] {
    // SAFETY: floats are plain bytes, and any bytes are floats.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Runs an exchange on both ranks; returns the slower rank's time, in microseconds.
fn both(
    exchange: impl Fn(&Rank<'_>) -> Result<f64, Failure> + Sync,
    bytes: usize,
    iterations: usize,
) -> Result<f64, Failure> {
    let regions = [Region::private(2 << 20), Region::private(2 << 20)];
    let gate = Gate::default();
    let rank = |rank| Rank { rank, regions: &regions, gate: &gate, bytes, iterations };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| exchange(&rank(1)));
        let mine = exchange(&rank(0))?;
        let theirs = other.join().map_err(|_| "the other rank panicked")??;
        Ok(mine.max(theirs))
    })
}

fn main() -> Result<(), Failure> {
    println!("{:>8} {:>10} {:>10} {:>6}", "bytes", "engine us", "bare us", "ratio");
    let sizes = [(8, 50_000), (1024, 30_000), (8192, 10_000), (65536, 3_000), (131_072, 1_500)];
    for (bytes, iterations) in sizes {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            ours.push(both(|rank| rank.ours(), bytes, iterations)?);
            bare.push(both(|rank| rank.bare(), bytes, iterations)?);
        }
        let (ours, bare) = (median(ours), median(bare));
        println!("{bytes:>8} {ours:>10.3} {bare:>10.3} {:>6.2}", ours / bare);
    }
    Ok(())
}
