//! The loops. Everything here is inlined into the functions of [`crate::dispatch`], which set the
//! vector instructions that the compiler may use.

use std::mem::MaybeUninit;

use crate::Term;
use crate::number::{Number, Op};
use crate::unit::Unit;

/// What a loop knows beside its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    /// The factor of scaled terms, as an element.
    pub(crate) scalar: [u8; 8],
    /// What an average is divided by.
    pub(crate) count: u32,
}

/// A value at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Packed<T: Copy>(T);

/// Units to read.
///
/// # Safety
/// `data` is valid for reading `count` units for as long as the slice is used, and nobody
/// writes there meanwhile.
#[inline(always)]
unsafe fn source<'a, U: Unit>(data: *const u8, count: usize) -> &'a [Packed<U::Raw>] {
    // SAFETY: the caller's promise; packed values have no alignment.
    unsafe { std::slice::from_raw_parts(data.cast(), count) }
}

/// Units to write.
///
/// # Safety
/// `data` is valid for reading and writing `count` units for as long as the slice is used, and
/// nobody else touches them meanwhile.
#[inline(always)]
unsafe fn target<'a, U: Unit>(data: *mut u8, count: usize) -> &'a mut [Packed<U::Raw>] {
    // SAFETY: the caller's promise; packed values have no alignment.
    unsafe { std::slice::from_raw_parts_mut(data.cast(), count) }
}

/// What a term is multiplied by: a factor of one changes no bit.
#[inline(always)]
fn factor<U: Unit>(parameters: &Parameters, term: Term) -> U::Acc {
    if term.scaled { U::broadcast(parameters.scalar) } else { U::Acc::one() }
}

#[inline(always)]
fn read<U: Unit, O: Op>(raw: Packed<U::Raw>, factor: U::Acc) -> U::Acc {
    let value = U::widen(raw.0);
    if O::SCALES { value.mul(factor) } else { value }
}

#[inline(always)]
fn write<U: Unit, O: Op>(acc: U::Acc, count: u32) -> Packed<U::Raw> {
    Packed(U::narrow(O::finish(acc, count)))
}

/// `dst = left ⊕ right`, where `dst` is neither.
#[inline(always)]
fn join<U: Unit, O: Op>(
    dst: &mut [Packed<U::Raw>],
    (left, left_factor): (&[Packed<U::Raw>], U::Acc),
    (right, right_factor): (&[Packed<U::Raw>], U::Acc),
    count: u32,
) {
    for ((dst, &left), &right) in dst.iter_mut().zip(left).zip(right) {
        let left = read::<U, O>(left, left_factor);
        *dst = write::<U, O>(O::combine(left, read::<U, O>(right, right_factor)), count);
    }
}

/// `dst = dst ⊕ right`.
#[inline(always)]
fn join_in_place<U: Unit, O: Op>(
    (dst, left_factor): (&mut [Packed<U::Raw>], U::Acc),
    (right, right_factor): (&[Packed<U::Raw>], U::Acc),
    count: u32,
) {
    for (dst, &right) in dst.iter_mut().zip(right) {
        let left = read::<U, O>(*dst, left_factor);
        *dst = write::<U, O>(O::combine(left, read::<U, O>(right, right_factor)), count);
    }
}

/// Two terms, one destination: one pass.
///
/// # Safety
/// As [`crate::Kernel::fold`], and `dst` may be the first term but not the second.
#[inline(always)]
pub(crate) unsafe fn pair<U: Unit, O: Op>(
    parameters: &Parameters,
    dst: *mut u8,
    terms: [Term; 2],
    elements: usize,
) {
    // SAFETY: the caller's promise, for all whole units.
    unsafe { pair_of::<U, O>(parameters, dst, terms, elements / U::ELEMENTS) };
    let rest = elements % U::ELEMENTS;
    if rest == 0 {
        return;
    }
    let offset = (elements - rest) * size_of::<<U::Tail as Unit>::Raw>();
    let terms = terms.map(|term| term.at(offset));
    // SAFETY: the caller's promise, for the elements after the last whole unit.
    unsafe { pair_of::<U::Tail, O>(parameters, dst.wrapping_add(offset), terms, rest) };
}

/// [`pair`], of whole units.
#[inline(always)]
unsafe fn pair_of<U: Unit, O: Op>(
    parameters: &Parameters,
    dst: *mut u8,
    [left, right]: [Term; 2],
    units: usize,
) {
    let left_factor = factor::<U>(parameters, left);
    let right_factor = factor::<U>(parameters, right);
    let in_place = std::ptr::eq(dst, left.data);
    // SAFETY: the caller's promise; written by nobody else.
    let dst = unsafe { target::<U>(dst, units) };
    // SAFETY: the caller's promise; it is not the destination.
    let right = (unsafe { source::<U>(right.data, units) }, right_factor);
    if in_place {
        return join_in_place::<U, O>((dst, left_factor), right, parameters.count);
    }
    // SAFETY: the caller's promise; it is not the destination, as just seen.
    let left = (unsafe { source::<U>(left.data, units) }, left_factor);
    join::<U, O>(dst, left, right, parameters.count);
}

/// Bytes of accumulators that are worked on at once: they stay in the first-level cache.
const BLOCK_BYTES: usize = 4096;

/// Room for the accumulators of one block.
#[repr(C, align(64))]
struct Accumulators([MaybeUninit<u8>; BLOCK_BYTES]);

impl Accumulators {
    #[inline(always)]
    fn units<U: Unit>(&mut self) -> &mut [MaybeUninit<U::Acc>] {
        let count = BLOCK_BYTES / size_of::<U::Acc>();
        // SAFETY: large and aligned enough for that many, and none needs to be initialised.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }
}

/// Any number of terms and destinations, block by block: each term is read from memory once and
/// each destination written once.
///
/// # Safety
/// As [`crate::Kernel::fold`].
#[inline(always)]
pub(crate) unsafe fn many<U: Unit, O: Op>(
    parameters: &Parameters,
    dsts: &[*mut u8],
    terms: &[Term],
    elements: usize,
) {
    let Some((&first_dst, other_dsts)) = dsts.split_first() else { return };
    let bytes = size_of::<<U::Tail as Unit>::Raw>();
    let mut room = Accumulators([MaybeUninit::uninit(); BLOCK_BYTES]);
    let block_elements = room.units::<U>().len() * U::ELEMENTS;
    for start in (0..elements).step_by(block_elements) {
        let count = Ord::min(block_elements, elements - start);
        let whole = count - count % U::ELEMENTS;
        // SAFETY: the caller's promise; as many units as there is room for at most.
        unsafe {
            block::<U, O>(parameters, &mut room, first_dst, terms, (start * bytes, whole));
        }
        if whole < count {
            let rest = ((start + whole) * bytes, count - whole);
            // SAFETY: the caller's promise; fewer elements than one unit has.
            unsafe { block::<U::Tail, O>(parameters, &mut room, first_dst, terms, rest) };
        }
        for dst in other_dsts {
            let result = first_dst.wrapping_add(start * bytes).cast_const();
            let dst = dst.wrapping_add(start * bytes);
            // SAFETY: the caller's promise; destinations do not overlap each other.
            unsafe { std::ptr::copy_nonoverlapping(result, dst, count * bytes) };
        }
    }
}

/// The units of one block, from a byte `offset` on, of a count that is in elements.
#[inline(always)]
unsafe fn block<U: Unit, O: Op>(
    parameters: &Parameters,
    room: &mut Accumulators,
    dst: *mut u8,
    terms: &[Term],
    (offset, elements): (usize, usize),
) {
    let units = elements / U::ELEMENTS;
    let Some(accumulators) = room.units::<U>().get_mut(..units) else { return };
    let read_term = |term: &Term| {
        let data = term.data.wrapping_add(offset);
        // SAFETY: the caller's promise; the destination is not written before the end.
        (unsafe { source::<U>(data, units) }, factor::<U>(parameters, *term))
    };
    let (accumulators, others) = match terms {
        [] => return,
        [only] => (load::<U, O>(accumulators, read_term(only)), &[][..]),
        [left, right, others @ ..] => {
            (load_pair::<U, O>(accumulators, read_term(left), read_term(right)), others)
        }
    };
    for term in others {
        let (data, factor) = read_term(term);
        for (acc, &raw) in accumulators.iter_mut().zip(data) {
            *acc = O::combine(*acc, read::<U, O>(raw, factor));
        }
    }
    // SAFETY: the caller's promise; the terms' slices are not used from here on.
    let dst = unsafe { target::<U>(dst.wrapping_add(offset), units) };
    for (dst, &acc) in dst.iter_mut().zip(accumulators.iter()) {
        *dst = write::<U, O>(acc, parameters.count);
    }
}

/// The accumulators of one term.
#[inline(always)]
fn load<'a, U: Unit, O: Op>(
    accumulators: &'a mut [MaybeUninit<U::Acc>],
    (data, factor): (&[Packed<U::Raw>], U::Acc),
) -> &'a mut [U::Acc] {
    for (acc, &raw) in accumulators.iter_mut().zip(data) {
        acc.write(read::<U, O>(raw, factor));
    }
    // SAFETY: `data` is as long as `accumulators`, so that all of them have been written.
    unsafe { initialised(accumulators) }
}

/// The accumulators of two terms.
#[inline(always)]
fn load_pair<'a, U: Unit, O: Op>(
    accumulators: &'a mut [MaybeUninit<U::Acc>],
    (left, left_factor): (&[Packed<U::Raw>], U::Acc),
    (right, right_factor): (&[Packed<U::Raw>], U::Acc),
) -> &'a mut [U::Acc] {
    for ((acc, &left), &right) in accumulators.iter_mut().zip(left).zip(right) {
        let left = read::<U, O>(left, left_factor);
        acc.write(O::combine(left, read::<U, O>(right, right_factor)));
    }
    // SAFETY: both are as long as `accumulators`, so that all of them have been written.
    unsafe { initialised(accumulators) }
}

/// # Safety
/// All are initialised.
#[inline(always)]
unsafe fn initialised<T>(values: &mut [MaybeUninit<T>]) -> &mut [T] {
    // SAFETY: the caller's promise; the layouts are the same.
    unsafe { &mut *(std::ptr::from_mut(values) as *mut [T]) }
}
