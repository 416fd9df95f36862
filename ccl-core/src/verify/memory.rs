//! Memory of one rank, element by element: the values, and the latest accesses.

use super::spec::Setup;
use super::value::{Exprs, GARBAGE, NOTHING, Value};
use crate::execution::{Operand, Task};
use crate::schedule::Buffer;

/// Identity of an access: the strand, the channel, and the number of the task in that strand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// The strand on its channel: `channel × strands + strand`, where `strands` is the number of
    /// strands of the rank.
    pub(super) thread: u32,
    /// Number of the task in its strand, from 1; 0 for no access.
    pub(super) epoch: u32,
}

const NOBODY: Stamp = Stamp { thread: 0, epoch: 0 };

#[derive(Clone, Debug)]
struct Cell {
    value: Value,
    writer: Stamp,
    /// The latest read by each strand since the last write. A correct write is ordered after all of
    /// these reads.
    readers: Vec<Stamp>,
}

/// Run of neighbouring cells.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    base: usize,
    elements: usize,
}

/// Earlier access that is not ordered before the present one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unordered {
    pub(super) cell: usize,
    pub(super) earlier: Stamp,
    pub(super) earlier_writes: bool,
}

/// Memory of one rank; see the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    cells: Vec<Cell>,
    input: Region,
    output: Region,
    scratch: Region,
    /// True if input and output share memory (in place), so that the input may be written.
    in_place: bool,
}

impl Memory {
    /// Returns the memory before the collective begins.
    pub(super) fn new(setup: &Setup, scratch_elements: usize, exprs: &Exprs) -> Memory {
        let in_place = setup.in_place && setup.has_input && setup.has_output;
        let (inputs, outputs) = setup.elements();
        let (mut input, mut output) =
            (Region { base: 0, elements: inputs }, Region { base: inputs, elements: outputs });
        if in_place {
            (input.base, output.base) = setup.bases();
        }
        let user = (input.base + inputs).max(output.base + outputs);
        let scratch = Region { base: user, elements: scratch_elements };
        let empty = Cell { value: NOTHING, writer: NOBODY, readers: Vec::new() };
        let mut cells = vec![empty; user + scratch_elements];
        if setup.has_input {
            for block in 0..setup.blocks.0 {
                for (index, at) in setup.numbers.input.block_elements(block).enumerate() {
                    let element = setup.element(block, index);
                    let expr = exprs.raw(setup.rank);
                    cells[input.base + at].value = Value { element, expr };
                }
            }
        }
        Memory { cells, input, output, scratch, in_place }
    }

    /// Returns the first cell of an operand, or, if the operand exceeds its buffer, the number of
    /// elements of that buffer as an error.
    pub(super) fn locate(
        &self,
        operand: Operand,
        task: &Task<'_>,
        element_bytes: usize,
    ) -> Result<usize, usize> {
        let (region, bytes) = match operand {
            Operand::Input(at) => (self.input, at + task.chunk_offset),
            Operand::Output(at) => (self.output, at + task.chunk_offset),
            Operand::Scratch(at) => (self.scratch, at + task.scratch_offset),
            Operand::Slot(_) => return Err(0),
        };
        let first = bytes / element_bytes;
        let inside = first + task.elements <= region.elements && bytes % element_bytes == 0;
        if inside { Ok(region.base + first) } else { Err(region.elements) }
    }

    /// Returns the buffer of a cell, and the index of the cell's element in that buffer.
    pub(super) fn name(&self, cell: usize) -> (Buffer, usize) {
        let named = [
            (Buffer::Scratch(0), self.scratch),
            (Buffer::Output, self.output),
            (Buffer::Input, self.input),
        ];
        named
            .into_iter()
            .find(|(_, region)| (region.base..region.base + region.elements).contains(&cell))
            .map_or((Buffer::Scratch(0), cell), |(buffer, region)| (buffer, cell - region.base))
    }

    pub(super) fn value(&self, cell: usize) -> Value {
        self.cells[cell].value
    }

    pub(super) fn output_value(&self, element: usize) -> Value {
        self.cells[self.output.base + element].value
    }

    /// Returns the first output element that was written although `ours` is false for it.
    pub(super) fn touched(&self, mut ours: impl FnMut(usize) -> bool) -> Option<usize> {
        (0..self.output.elements).find(|&element| {
            self.cells[self.output.base + element].writer != NOBODY && !ours(element)
        })
    }

    /// Records a read. Fails if the last write of one of the cells is not ordered before this read;
    /// `ordered` returns whether an access is ordered before this read.
    pub(super) fn read(
        &mut self,
        cells: std::ops::Range<usize>,
        stamp: Stamp,
        ordered: impl Fn(Stamp) -> bool,
    ) -> Result<(), Unordered> {
        // Out of place, the input is never written, so its readers need not be recorded.
        let constant = !self.in_place && cells.start < self.input.elements;
        for cell in cells {
            let Cell { writer, readers, .. } = &mut self.cells[cell];
            if *writer != NOBODY && !ordered(*writer) {
                return Err(Unordered { cell, earlier: *writer, earlier_writes: true });
            }
            if constant {
                continue;
            }
            match readers.iter_mut().find(|reader| reader.thread == stamp.thread) {
                Some(reader) => reader.epoch = stamp.epoch,
                None => readers.push(stamp),
            }
        }
        Ok(())
    }

    /// Writes values and records the write. Fails if the last write of one of the cells, or a read
    /// since then, is not ordered before this write; `ordered` is as in [`Memory::read`].
    pub(super) fn write(
        &mut self,
        first: usize,
        values: &[Value],
        stamp: Stamp,
        ordered: impl Fn(Stamp) -> bool,
    ) -> Result<(), Unordered> {
        for (offset, value) in values.iter().enumerate() {
            let at = first + offset;
            let cell = &mut self.cells[at];
            if cell.writer != NOBODY && !ordered(cell.writer) {
                return Err(Unordered { cell: at, earlier: cell.writer, earlier_writes: true });
            }
            if let Some(&reader) = cell.readers.iter().find(|reader| !ordered(**reader)) {
                return Err(Unordered { cell: at, earlier: reader, earlier_writes: false });
            }
            debug_assert!(value.expr != GARBAGE);
            cell.writer = stamp;
            cell.readers.clear();
            cell.value = *value;
        }
        Ok(())
    }
}
