//! Deterministic mode: a sum whose rounding depends on the order of additions has the same bits
//! with every algorithm that this mode allows.

use ccl_core::config::Bytes;
use ccl_core::types::ReduceOp;
use ccl_harness::data::bits;
use ccl_harness::{config_with, ranks_with};
use ccl_kernels_cpu::{Scalar, reference};
use ferroccl::communicator::Call;
use ferroccl::{Collective, Communicator, Config, Element, Reduction};

const COUNT: usize = 5003;

/// Element type with values of very different magnitude, so that nearly every addition rounds.
trait Rough: Element + PartialEq + std::fmt::Debug {
    fn rough(bits: u64) -> Self;
}

impl Rough for f32 {
    fn rough(bits: u64) -> f32 {
        ((bits >> 40) as f32 - 8_388_608.0) * 2f32.powi((bits % 9) as i32 * 3)
    }
}

impl Rough for half::bf16 {
    fn rough(bits: u64) -> half::bf16 {
        half::bf16::from_f32(f32::rough(bits))
    }
}

fn input<T: Rough>(rank: u32, count: usize) -> Vec<T> {
    (0..count).map(|index| T::rough(bits(rank as usize, 0, index))).collect()
}

/// Returns the sum of the inputs of all ranks, added in rank order.
fn in_rank_order<T: Rough>(ranks: u32) -> Vec<T> {
    let inputs: Vec<Vec<T>> = (0..ranks).map(|rank| input(rank, COUNT)).collect();
    let terms: Vec<_> = inputs.iter().map(|i| (bytemuck::cast_slice(i), false)).collect();
    let scalar = (Scalar::NONE, ranks);
    let bytes = reference::fold(T::DATA_TYPE, ReduceOp::Sum, scalar, &terms, true).unwrap();
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn all_reduce<T: Rough>(c: &mut Communicator, algorithm: Option<&str>, count: usize) -> Vec<T> {
    let call = Call { algorithm, ..Call::even(Collective::AllReduce, T::DATA_TYPE, count) };
    let mut output = input::<T>(c.rank(), count);
    let bytes = bytemuck::cast_slice(&output).to_vec();
    c.call(&call, &bytes, bytemuck::cast_slice_mut(&mut output)).unwrap();
    output
}

/// Checks that all_reduce, reduce_scatter and reduce give the bits of a sum in rank order.
fn all_ways<T: Rough>(c: &mut Communicator) {
    let (rank, n) = (c.rank() as usize, c.ranks());
    let wanted = in_rank_order::<T>(n);
    for algorithm in [None, Some("direct"), Some("direct_two_phase")] {
        for count in [COUNT, 1, 2, 7, 64, 1000, 4099] {
            let got = all_reduce::<T>(c, algorithm, count);
            assert!(got == wanted[..count], "{algorithm:?}: wrong sum of {count} {}", T::DATA_TYPE);
        }
    }
    let mut buffer = input::<T>(c.rank(), COUNT);
    c.all_reduce_in_place(&mut buffer, Reduction::Sum).unwrap();
    assert!(buffer == wanted, "the sum in place is wrong");
    let each = COUNT / n as usize;
    let mut part = input::<T>(0, each);
    let own = input::<T>(c.rank(), each * n as usize);
    c.reduce_scatter(&own, &mut part, Reduction::Sum).unwrap();
    assert!(part == wanted[rank * each..][..each], "the result of reduce_scatter is wrong");
    for root in 0..n {
        let mut output = input::<T>(c.rank(), 999);
        c.reduce(&output.clone(), &mut output, Reduction::Sum, root).unwrap();
        assert!(c.rank() != root || output == wanted[..999], "the reduce to rank {root} is wrong");
    }
}

fn with(n: u32, change: impl FnOnce(&mut Config)) {
    let config = config_with(|config| {
        config.deterministic = true;
        change(config);
    });
    ranks_with(n, config, |c| {
        all_ways::<f32>(c);
        all_ways::<half::bf16>(c);
    });
}

#[test]
fn sums_are_in_rank_order_with_any_number_of_ranks() {
    for n in [1, 2, 3, 5, 8, 17] {
        with(n, |_| {});
    }
}

#[test]
fn sums_are_in_rank_order_with_any_slots_and_channels() {
    for (slots, channels, slot_bytes) in [(1, 1, 4096), (2, 1, 8192), (3, 2, 4096), (8, 3, 65_536)]
    {
        with(5, |config| {
            (config.slots, config.channels) = (slots, channels);
            config.slot_bytes = Bytes(slot_bytes);
        });
    }
}

/// Another order of additions changes the bits of this data's sum; otherwise the tests above would
/// prove nothing.
#[test]
fn another_order_of_additions_gives_other_bits() {
    let differing = ranks_with(5, config_with(|_| {}), |c| {
        let wanted = in_rank_order::<f32>(5);
        let got = all_reduce::<f32>(c, Some("ring"), COUNT);
        wanted.iter().zip(&got).filter(|(wanted, got)| wanted != got).count()
    });
    assert!(differing[0] > COUNT / 4, "too few sums differ: {differing:?}");
    assert!(differing.iter().all(|count| *count == differing[0]), "the ranks have different bits");
}

#[test]
fn algorithms_with_another_order_are_refused() {
    let config = config_with(|config| config.deterministic = true);
    let errors = ranks_with(3, config, |c| {
        let call = |algorithm| Call {
            algorithm: Some(algorithm),
            ..Call::even(Collective::AllReduce, f32::DATA_TYPE, 1)
        };
        let refused = ["ring", "recursive_doubling", "double_tree", "halving_doubling"]
            .map(|name| c.call(&call(name), &[0; 4], &mut [0; 4]).unwrap_err().to_string());
        // Nothing was sent: the communicator is unharmed.
        c.barrier().unwrap();
        refused
    });
    for error in errors.iter().flatten() {
        assert!(error.contains("FERROCCL_DETERMINISTIC=1"), "{error}");
    }
}
