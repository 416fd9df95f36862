//! Loops that fold. They are inlined into the functions of [`crate::dispatch`], which set the
//! vector instructions that the compiler may use.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::Term;
use crate::number::{Number, Op};
use crate::unit::Unit;

/// Parameters of a loop besides its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    /// The factor of scaled terms: one element, as its bytes.
    pub(crate) scalar: [u8; 8],
    /// Divisor of an average.
    pub(crate) count: u32,
}

/// A value that need not be aligned.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Packed<T: Copy>(T);

/// Returns the `count` units at `data` as a slice to read.
///
/// # Safety
/// `data` is valid for reading `count` units for as long as the slice is used, and nobody
/// writes there meanwhile.
#[inline(always)]
unsafe fn source<'a, U: Unit>(data: *const u8, count: usize) -> &'a [Packed<U::Raw>] {
    // SAFETY: the caller's promise; packed values have no alignment.
    unsafe { std::slice::from_raw_parts(data.cast(), count) }
}

/// Returns the `count` units at `data` as a slice to write.
///
/// # Safety
/// `data` is valid for reading and writing `count` units for as long as the slice is used, and
/// nobody else touches them meanwhile.
#[inline(always)]
unsafe fn target<'a, U: Unit>(data: *mut u8, count: usize) -> &'a mut [Packed<U::Raw>] {
    // SAFETY: the caller's promise; packed values have no alignment.
    unsafe { std::slice::from_raw_parts_mut(data.cast(), count) }
}

/// Returns the factor of a term, if the term is scaled.
#[inline(always)]
fn factor<U: Unit>(parameters: &Parameters, term: Term) -> Option<U::Acc> {
    term.scaled.then(|| U::broadcast(parameters.scalar))
}

/// Reads one unit and scales it. A product is rounded to the element type before it is added: peers
/// get the scaled term in that type, and this rank must add exactly the number that they add.
#[inline(always)]
fn read<U: Unit, O: Op>(raw: Packed<U::Raw>, factor: Option<U::Acc>) -> U::Acc {
    let value = U::widen(raw.0);
    match factor {
        Some(factor) if O::SCALES => U::widen(U::narrow(value.mul(factor))),
        _ => value,
    }
}

#[inline(always)]
fn write<U: Unit, O: Op>(acc: U::Acc, count: u32) -> Packed<U::Raw> {
    Packed(U::narrow(O::finish(acc, count)))
}

/// Computes `dst = left ⊕ right`, where `dst` is neither operand.
#[inline(always)]
fn join<U: Unit, O: Op>(
    dst: &mut [Packed<U::Raw>],
    (left, left_factor): (&[Packed<U::Raw>], Option<U::Acc>),
    (right, right_factor): (&[Packed<U::Raw>], Option<U::Acc>),
    count: u32,
) {
    for ((dst, &left), &right) in dst.iter_mut().zip(left).zip(right) {
        let left = read::<U, O>(left, left_factor);
        *dst = write::<U, O>(O::combine(left, read::<U, O>(right, right_factor)), count);
    }
}

/// Computes `dst = dst ⊕ right`.
#[inline(always)]
fn join_in_place<U: Unit, O: Op>(
    (dst, left_factor): (&mut [Packed<U::Raw>], Option<U::Acc>),
    (right, right_factor): (&[Packed<U::Raw>], Option<U::Acc>),
    count: u32,
) {
    for (dst, &right) in dst.iter_mut().zip(right) {
        let left = read::<U, O>(*dst, left_factor);
        *dst = write::<U, O>(O::combine(left, read::<U, O>(right, right_factor)), count);
    }
}

/// Folds two terms into one destination, in one pass.
///
/// # Safety
/// The requirements of [`crate::Kernel::fold`], and `dst` is not the second term. `dst` may be the
/// first term.
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

/// Does what [`pair`] does, for whole units.
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
    // SAFETY: the caller's promise; nobody else uses the destination.
    let dst = unsafe { target::<U>(dst, units) };
    // SAFETY: the caller's promise; the second term is not the destination.
    let right = (unsafe { source::<U>(right.data, units) }, right_factor);
    if in_place {
        return join_in_place::<U, O>((dst, left_factor), right, parameters.count);
    }
    // SAFETY: the caller's promise; the first term is not the destination, as just checked.
    let left = (unsafe { source::<U>(left.data, units) }, left_factor);
    join::<U, O>(dst, left, right, parameters.count);
}

/// Bytes of the accumulators of one block, which stay in the first-level cache.
const BLOCK_BYTES: usize = 4096;

/// Room for the accumulators of one block.
#[repr(C, align(64))]
struct Room(MaybeUninit<[u8; BLOCK_BYTES]>);

/// Accumulators of one block. Lane 0 of all units comes first, then lane 1 of all units. So one
/// load fills a vector register, however many lanes a unit has.
struct Accumulators<'a, N: Number> {
    lanes: *mut N::Lane,
    room: PhantomData<&'a mut Room>,
}

impl<'a, N: Number> Accumulators<'a, N> {
    /// Number of units that fit.
    const CAPACITY: usize = BLOCK_BYTES / size_of::<N::Lane>() / N::LANES;

    #[inline(always)]
    fn new(room: &'a mut Room) -> Self {
        Accumulators { lanes: room.0.as_mut_ptr().cast(), room: PhantomData }
    }

    /// # Safety
    /// `unit` is below the capacity and has been set.
    #[inline(always)]
    unsafe fn at(&self, unit: usize) -> N {
        N::from_lanes(|lane| {
            let at = self.lanes.wrapping_add(lane * Self::CAPACITY + unit);
            // SAFETY: within the room, aligned (as the room is) and set, by the caller's promise.
            unsafe { at.read() }
        })
    }

    /// # Safety
    /// `unit` is below the capacity.
    #[inline(always)]
    unsafe fn set(&mut self, unit: usize, value: N) {
        for lane in 0..N::LANES {
            let at = self.lanes.wrapping_add(lane * Self::CAPACITY + unit);
            // SAFETY: within the room and aligned (as the room is), by the caller's promise.
            unsafe { at.write(value.lane(lane)) };
        }
    }
}

/// Folds any number of terms into any number of destinations, block by block. Each term is read
/// from memory once and each destination is written once.
///
/// # Safety
/// The requirements of [`crate::Kernel::fold`].
#[inline(always)]
pub(crate) unsafe fn many<U: Unit, O: Op>(
    parameters: &Parameters,
    dsts: &[*mut u8],
    terms: &[Term],
    elements: usize,
) {
    let Some((&first_dst, other_dsts)) = dsts.split_first() else { return };
    if terms.is_empty() {
        return;
    }
    let bytes = size_of::<<U::Tail as Unit>::Raw>();
    let mut room = Room(MaybeUninit::uninit());
    let block_elements = Accumulators::<U::Acc>::CAPACITY * U::ELEMENTS;
    for start in (0..elements).step_by(block_elements) {
        let count = Ord::min(block_elements, elements - start);
        let whole = count - count % U::ELEMENTS;
        // SAFETY: the caller's promise; `room` has space for the units of a block.
        unsafe {
            block::<U, O>(parameters, &mut room, first_dst, terms, (start * bytes, whole));
        }
        if whole < count {
            let rest = ((start + whole) * bytes, count - whole);
            // SAFETY: the caller's promise; the rest is shorter than one unit, so `room` has space.
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

/// Folds `elements` elements of one block, from the byte `offset` on.
///
/// # Safety
/// The requirements of [`crate::Kernel::fold`], and `room` has space for the accumulators of
/// `elements` elements.
#[inline(always)]
unsafe fn block<U: Unit, O: Op>(
    parameters: &Parameters,
    room: &mut Room,
    dst: *mut u8,
    terms: &[Term],
    (offset, elements): (usize, usize),
) {
    let units = elements / U::ELEMENTS;
    let mut accumulators = Accumulators::<U::Acc>::new(room);
    let dst = dst.wrapping_add(offset);
    let operand = |term: &Term| {
        let data = term.data.wrapping_add(offset);
        // SAFETY: the caller's promise; nothing is written to the operand while the slice is used.
        (unsafe { source::<U>(data, units) }, factor::<U>(parameters, *term))
    };
    let (joined, last) = match terms {
        [joined @ .., last] if !std::ptr::eq(dst, last.data.wrapping_add(offset)) => {
            (joined, Some(last))
        }
        _ => (terms, None),
    };
    for (turn, term) in joined.iter().enumerate() {
        let (data, factor) = operand(term);
        for (unit, &raw) in data.iter().enumerate() {
            let value = read::<U, O>(raw, factor);
            // SAFETY: within the room, and set by the turn before.
            let joined = || O::combine(unsafe { accumulators.at(unit) }, value);
            let value = if turn == 0 { value } else { joined() };
            // SAFETY: within the room.
            unsafe { accumulators.set(unit, value) };
        }
    }
    // SAFETY: the caller's promise; from here on, the only term read is `last`, which is not `dst`.
    let dst = unsafe { target::<U>(dst, units) };
    let Some(last) = last else {
        for (unit, dst) in dst.iter_mut().enumerate() {
            // SAFETY: within the room, and set, since there is a term.
            let acc = unsafe { accumulators.at(unit) };
            *dst = write::<U, O>(acc, parameters.count);
        }
        return;
    };
    let (data, factor) = operand(last);
    for (unit, (dst, &raw)) in dst.iter_mut().zip(data).enumerate() {
        let value = read::<U, O>(raw, factor);
        // SAFETY: within the room, and set if there is an earlier term.
        let joined_value = || O::combine(unsafe { accumulators.at(unit) }, value);
        let value = if joined.is_empty() { value } else { joined_value() };
        *dst = write::<U, O>(value, parameters.count);
    }
}
