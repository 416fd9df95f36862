//! Tests of every type, operator and SIMD level against the reference, bit for bit. The tests vary
//! the number of terms, the number of destinations, the size, the alignment and the in-place form.

use crate::operands::{Random, element, element_bits, elements, float_layout};
use ccl_core::types::{DataType, ReduceOp};
use ccl_kernels_cpu::{Kernel, Scalar, SimdLevel, Term, copy, copy_streaming, reference};

const SIZES: [usize; 16] = [0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 127, 1000, 2049, 4097];
const ELEMENTS_MAX: usize = 4097;
const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 64;
const RANKS: u32 = 3;

/// Bytes between guards, at an offset from an aligned address.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new(content: &[u8], offset: usize) -> Buffer {
        let mut bytes = vec![GUARD; content.len() + 2 * GUARD_BYTES + 128];
        let start = GUARD_BYTES + bytes[GUARD_BYTES..].as_ptr().align_offset(64) + offset;
        bytes[start..start + content.len()].copy_from_slice(content);
        Buffer { bytes, start }
    }

    fn data(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    fn check(&self, expected: &[u8], what: &str) {
        let end = self.start + expected.len();
        let content = &self.bytes[self.start..end];
        let wrong = content.iter().zip(expected).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{what}: index of the first wrong byte");
        let mut outside = self.bytes[..self.start].iter().chain(&self.bytes[end..]);
        let is_intact = outside.all(|&byte| byte == GUARD);
        assert!(is_intact, "{what}: a byte outside the buffer was written");
    }
}

/// Index of the term that each destination overwrites, or none.
type Places = Vec<Option<usize>>;

fn places(terms: usize) -> Vec<Places> {
    let last = terms - 1;
    let mut all = vec![
        vec![None],
        vec![None, None],
        vec![None, None, None],
        vec![Some(0)],
        vec![Some(0), None],
        vec![None, Some(0)],
        vec![None, Some(last), None],
    ];
    if last > 0 {
        all.extend([vec![Some(last)], vec![Some(1), Some(0)], vec![Some(last), None, Some(0)]]);
    }
    all
}

struct Case {
    kernel: Kernel,
    terms: Vec<Vec<u8>>,
    expected: Vec<u8>,
    finish: bool,
    what: String,
}

/// Returns whether the test marks a term as scaled: true for terms with an even index. Only
/// operators that scale look at the mark.
fn scaled(term: usize) -> bool {
    term.is_multiple_of(2)
}

fn run(case: &Case, bytes: usize, elements: usize, places: &Places, offset: usize) {
    let layout = format!("{elements} elements, overwritten terms {places:?}, offset {offset}");
    let what = format!("{}, {layout}", case.what);
    let mut terms: Vec<Buffer> =
        case.terms.iter().map(|term| Buffer::new(&term[..bytes], offset)).collect();
    let mut fresh: Vec<Buffer> =
        places.iter().map(|_| Buffer::new(&vec![0; bytes], offset)).collect();
    let sources: Vec<*mut u8> = terms.iter_mut().map(Buffer::data).collect();
    let dsts: Vec<*mut u8> = places
        .iter()
        .zip(&mut fresh)
        .map(|(place, fresh)| place.map_or_else(|| fresh.data(), |term| sources[term]))
        .collect();
    let operands: Vec<Term> =
        sources.iter().enumerate().map(|(at, &data)| Term { data, scaled: scaled(at) }).collect();
    // SAFETY: all buffers have `elements` elements; a destination is a term or another buffer.
    unsafe { case.kernel.fold(&dsts, &operands, elements, case.finish) };
    for (place, fresh) in places.iter().zip(&fresh) {
        let dst = place.map_or(fresh, |term| &terms[term]);
        dst.check(&case.expected[..bytes], &what);
    }
    for (at, term) in terms.iter().enumerate() {
        if !places.contains(&Some(at)) {
            term.check(&case.terms[at][..bytes], &what);
        }
    }
}

fn factor(data_type: DataType) -> Scalar {
    // Slightly more than one in floats, 3 in integers.
    let bits = float_layout(data_type).map_or(3, |(mantissa, bias)| (bias << mantissa) + 1);
    Scalar(element(data_type, bits))
}

fn check_type(data_type: DataType) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 + data_type as u64);
    let terms: Vec<Vec<u8>> = (0..17)
        .map(|_| {
            let bits = (0..ELEMENTS_MAX).map(|_| element_bits(data_type, &mut random));
            elements(data_type, bits.collect::<Vec<_>>())
        })
        .collect();
    let scalar = factor(data_type);
    for op in ReduceOp::ALL {
        for count in [1, 2, 3, 17] {
            for finish in [false, true] {
                let operands: Vec<_> = terms[..count]
                    .iter()
                    .enumerate()
                    .map(|(at, term)| (term.as_slice(), scaled(at)))
                    .collect();
                let expected = reference::fold(data_type, op, (scalar, RANKS), &operands, finish);
                let expected = expected.unwrap_or_default();
                assert_eq!(expected.len(), terms[0].len());
                for level in SimdLevel::available() {
                    let kernel = Kernel::select_with(data_type, op, scalar, RANKS, level);
                    let what = format!("{data_type} {op} {count} terms finish {finish} {level:?}");
                    let (terms, expected) = (terms[..count].to_vec(), expected.clone());
                    check_case(data_type, &Case { kernel, terms, expected, finish, what });
                }
            }
        }
    }
}

fn check_case(data_type: DataType, case: &Case) {
    for (turn, &elements) in SIZES.iter().enumerate() {
        for (at, places) in places(case.terms.len()).iter().enumerate() {
            // Each size from 1000 on is tested with a third of the choices of destinations.
            if elements < 1000 || at % 3 == turn % 3 {
                for offset in [0, 1] {
                    run(case, elements * data_type.bytes(), elements, places, offset);
                }
            }
        }
    }
}

macro_rules! each_type {
    ($($name:ident $data_type:ident;)*) => {$(
        #[test]
        fn $name() {
            check_type(DataType::$data_type);
        }
    )*};
}

each_type! {
    int8 Int8;
    uint8 Uint8;
    int32 Int32;
    uint32 Uint32;
    int64 Int64;
    uint64 Uint64;
    float16 Float16;
    bfloat16 Bfloat16;
    float32 Float32;
    float64 Float64;
    float8_e4m3 Float8E4m3;
    float8_e5m2 Float8E5m2;
}

/// Returns the bytes that a fold of these terms stores.
fn folded(kernel: &Kernel, terms: &[(&[u8], bool)], elements: usize) -> Vec<u8> {
    let mut dst = vec![0; terms[0].0.len()];
    let operands: Vec<Term> =
        terms.iter().map(|&(data, scaled)| Term { data: data.as_ptr(), scaled }).collect();
    // SAFETY: all buffers have `elements` elements, and the destination is a buffer of its own.
    unsafe { kernel.fold(&[dst.as_mut_ptr()], &operands, elements, true) };
    dst
}

#[test]
fn a_scaled_term_gives_the_same_sum_sent_to_a_peer_or_added_directly() {
    for data_type in DataType::ALL {
        let mut random = Random(11 + data_type as u64);
        let mut term = || {
            let bits = (0..777).map(|_| element_bits(data_type, &mut random)).collect::<Vec<_>>();
            elements(data_type, bits)
        };
        let (own, theirs, third) = (term(), term(), term());
        for level in SimdLevel::available() {
            let (op, scalar) = (ReduceOp::PremulSum, factor(data_type));
            let kernel = Kernel::select_with(data_type, op, scalar, RANKS, level);
            let sent = folded(&kernel, &[(&own, true)], 777);
            for others in [&[(&theirs[..], false)][..], &[(&theirs, false), (&third, false)]] {
                let with = |own| [&[own], others].concat();
                let here = folded(&kernel, &with((&own, true)), 777);
                let there = folded(&kernel, &with((&sent, false)), 777);
                assert_eq!(here, there, "{data_type} {level:?}, {} other terms", others.len());
            }
        }
    }
}

#[test]
fn the_two_terms_and_the_destination_may_be_one_buffer() {
    for level in SimdLevel::available() {
        let mut values: Vec<f32> = (0..777).map(|value| value as f32).collect();
        let data = values.as_mut_ptr().cast::<u8>();
        let kernel = Kernel::select_with(DataType::Float32, ReduceOp::Sum, Scalar::NONE, 1, level);
        // SAFETY: the buffer has 777 elements, and the destination equals both terms exactly.
        unsafe { kernel.fold(&[data], &[Term::new(data), Term::new(data)], 777, true) };
        assert!(values.iter().enumerate().all(|(at, &value)| value == 2.0 * at as f32));
    }
}

#[test]
fn nothing_happens_without_terms_or_destinations() {
    let kernel = Kernel::select(DataType::Int32, ReduceOp::Sum, Scalar::NONE, 1);
    let mut value = 5i32;
    let data = (&raw mut value).cast::<u8>();
    // SAFETY: `data` has one element.
    unsafe { kernel.fold(&[data], &[], 1, true) };
    // SAFETY: `data` has one element.
    unsafe { kernel.fold(&[], &[Term::new(data), Term::new(data)], 1, true) };
    assert_eq!(value, 5);
}

#[test]
fn bytes_are_copied_from_any_address_to_any_address() {
    let mut random = Random(7);
    let content: Vec<u8> = (0..100_003).map(|_| random.next() as u8).collect();
    for bytes in [0, 1, 63, 64, 4095, 4096, 4097, 8191, 100_003] {
        for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 17)] {
            let mut src = Buffer::new(&content[..bytes], from);
            let mut dsts = [1, 2].map(|_| Buffer::new(&vec![0; bytes], to));
            let targets = dsts.each_mut().map(Buffer::data);
            let source = src.data();
            // SAFETY: all buffers have `bytes` bytes; a target is the source or another buffer.
            unsafe { copy(&[targets[0], source], source, bytes) };
            // SAFETY: both buffers have `bytes` bytes, and they do not overlap.
            unsafe { copy_streaming(targets[1], source, bytes) };
            for dst in &dsts {
                dst.check(&content[..bytes], &format!("{bytes} bytes from offset {from} to {to}"));
            }
            src.check(&content[..bytes], "source of a copy");
        }
    }
}
