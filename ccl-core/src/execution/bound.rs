//! Program bound to the numbers of one call: every expression is evaluated and every loop unrolled,
//! so that the hot loop only adds, compares and calls the ports.
//!
//! Binding again with the same numbers costs one comparison; binding with other numbers reuses the
//! memory.

use crate::lower::{Fold, Instr, Location, Program, Strand};
use crate::schedule::{Buffer, Counters, DEPTH, Layout, TERM};
use crate::types::Rank;

/// Layouts and sizes of one call.
#[derive(Debug, PartialEq, Eq)]
pub struct CallParams {
    /// Layout of the parts of the input.
    pub input: Layout,
    /// Layout of the parts of the output.
    pub output: Layout,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Longest payload of a message. It must hold at least [`Program::message_parts`] elements: one
    /// of each part of the message with the most parts.
    pub slot_bytes: usize,
}

/// `clone_from` reuses memory, as the `clone_from` of [`Layout`] does.
impl Clone for CallParams {
    fn clone(&self) -> CallParams {
        let CallParams { input, output, element_bytes, slot_bytes } = self;
        let (input, output) = (input.clone(), output.clone());
        CallParams { input, output, element_bytes: *element_bytes, slot_bytes: *slot_bytes }
    }

    fn clone_from(&mut self, from: &CallParams) {
        self.input.clone_from(&from.input);
        self.output.clone_from(&from.output);
        (self.element_bytes, self.slot_bytes) = (from.element_bytes, from.slot_bytes);
    }
}

impl CallParams {
    /// Returns the elements of each part in a chunk: as many as fit into a message, in whole cache
    /// lines if a line fits, and at least one element.
    #[must_use]
    pub fn chunk_elements(&self, program: &Program) -> usize {
        self.elements_of(program.message_parts)
    }

    /// Returns `chunk_elements` for messages of `message_parts` parts.
    pub(crate) fn elements_of(&self, message_parts: u32) -> usize {
        let width = self.element_bytes.max(1);
        let room = self.slot_bytes / width / message_parts.max(1) as usize;
        let line = (64 / width).max(1);
        if room > line { room / line * line } else { room.max(1) }
    }

    /// Returns the bytes of one part of scratch: a chunk, in whole cache lines.
    fn scratch_part_bytes(&self, program: &Program) -> usize {
        (self.chunk_elements(program) * self.element_bytes).next_multiple_of(64)
    }

    /// Returns the bytes of scratch that one channel needs.
    #[must_use]
    pub fn scratch_bytes(&self, program: &Program) -> usize {
        let parts: usize = program.scratch_parts.iter().map(|parts| *parts as usize).sum();
        parts * self.scratch_part_bytes(program)
    }

    fn layout(&self, buffer: Buffer) -> &Layout {
        if buffer == Buffer::Input { &self.input } else { &self.output }
    }
}

/// Memory that an operand refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The caller's input, from this byte on, plus the chunk's offset.
    Input(usize),
    /// The caller's output, from this byte on, plus the chunk's offset.
    Output(usize),
    /// The channel's scratch memory, from this byte on.
    Scratch(usize),
    /// The current slot of the link with this peer.
    Slot(Rank),
}

/// Run of neighbouring elements with its operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Elements over all chunks.
    pub(super) elements: usize,
    /// Index of the first source in `Bound::operands`.
    pub(super) first: u32,
    /// Index of the first target; the operands from `first` up to it are the sources.
    pub(super) middle: u32,
    /// Index after the last target.
    pub(super) end: u32,
}

/// Fold whose links and segments are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundFold {
    pub(super) segments: (u32, u32),
    pub(super) recvs: (u32, u32),
    pub(super) sends: (u32, u32),
    /// Elements over all chunks and segments.
    pub(super) whole: usize,
    /// Index of the instruction in the strand, for reports.
    pub(super) instr: u32,
    pub(super) last: bool,
    /// True if the fold only moves one whole message to the output, and perhaps forwards it. The
    /// message may then be placed in the output directly.
    pub(super) placeable: bool,
    /// True if the message may also be placed in the output before the fold's turn.
    pub(super) early: bool,
}

/// One step of a strand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Fold(BoundFold),
    Await { unit: u32, lag: u32 },
    Done { unit: u32 },
}

/// The only step of a one-step program: a [`BoundFold`] with at most one peer in each direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Single {
    pub(super) recv: Option<Rank>,
    pub(super) send: Option<Rank>,
    /// Elements of the message.
    pub(super) elements: usize,
    /// Index of the first target among the operands; the operands before it are sources.
    pub(super) middle: usize,
    pub(super) last: bool,
    pub(super) placeable: bool,
    pub(super) early: bool,
}

/// Bound program; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Bound {
    pub(super) numbers: Option<CallParams>,
    pub(super) chunks: usize,
    pub(super) chunk_elements: usize,
    pub(super) element_bytes: usize,
    pub(super) scratch_stride: usize,
    /// First step of each strand, and one more entry for the end.
    pub(super) strands: Vec<u32>,
    pub(super) steps: Vec<Step>,
    pub(super) segments: Vec<Segment>,
    pub(super) operands: Vec<Operand>,
    pub(super) peers: Vec<Rank>,
    /// The only step of a one-step program, if the call has one chunk, and the step has one segment
    /// and at most one message in each direction.
    pub(super) single: Option<Single>,
    scratch_starts: Vec<usize>,
}

pub(super) fn range(of: (u32, u32)) -> std::ops::Range<usize> {
    of.0 as usize..of.1 as usize
}

fn index(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl Bound {
    /// Binds the program. Returns at once if the numbers are those of the previous call.
    pub(super) fn bind(&mut self, program: &Program, numbers: &CallParams) {
        if self.numbers.as_ref() == Some(numbers) {
            return;
        }
        self.chunk_elements = numbers.chunk_elements(program);
        self.element_bytes = numbers.element_bytes;
        let longest = numbers.input.longest_part().max(numbers.output.longest_part());
        self.chunks = longest.div_ceil(self.chunk_elements);
        self.lay_out_scratch(program, numbers);
        self.steps.clear();
        self.segments.clear();
        self.operands.clear();
        self.peers.clear();
        self.strands.clear();
        for strand in &program.strands {
            self.strands.push(index(self.steps.len()));
            self.unroll(strand, numbers);
        }
        self.strands.push(index(self.steps.len()));
        self.single = self.find_single();
        match &mut self.numbers {
            Some(known) => known.clone_from(numbers),
            None => self.numbers = Some(numbers.clone()),
        }
    }

    fn find_single(&self) -> Option<Single> {
        let only = |peers: (u32, u32)| match self.peers[range(peers)] {
            [] => Some(None),
            [peer] => Some(Some(peer)),
            _ => None,
        };
        let ([_, _], [Step::Fold(fold)], [segment], 1) =
            (&self.strands[..], &self.steps[..], &self.segments[..], self.chunks)
        else {
            return None;
        };
        let (elements, middle) = (segment.elements, segment.middle as usize);
        let (recv, send) = (only(fold.recvs)?, only(fold.sends)?);
        let BoundFold { last, placeable, early, .. } = *fold;
        Some(Single { recv, send, elements, middle, last, placeable, early })
    }

    fn lay_out_scratch(&mut self, program: &Program, numbers: &CallParams) {
        let part_bytes = numbers.scratch_part_bytes(program);
        self.scratch_starts.clear();
        self.scratch_stride = 0;
        for parts in &program.scratch_parts {
            self.scratch_starts.push(self.scratch_stride);
            self.scratch_stride += *parts as usize * part_bytes;
        }
    }

    fn unroll(&mut self, strand: &Strand, numbers: &CallParams) {
        let mut counters = [0; DEPTH];
        let mut pc = 0;
        while let Some(instr) = strand.code.get(pc) {
            let at = index(pc);
            pc += 1;
            match instr {
                Instr::Fold(fold) => self.bind_fold(fold, at, &mut counters, numbers),
                Instr::Loop { dimension } => counters[usize::from(*dimension)] = 0,
                Instr::Next { dimension, count, start } => {
                    let counter = &mut counters[usize::from(*dimension)];
                    *counter += 1;
                    if *counter < *count {
                        pc = *start as usize;
                    } else {
                        *counter = 0;
                    }
                }
                Instr::Await { unit, lag } => {
                    self.steps.push(Step::Await { unit: *unit, lag: *lag });
                }
                Instr::Done { unit } => self.steps.push(Step::Done { unit: *unit }),
            }
        }
    }

    fn bind_fold(
        &mut self,
        fold: &Fold,
        instr: u32,
        counters: &mut Counters,
        numbers: &CallParams,
    ) {
        let first = index(self.segments.len());
        let layout = numbers.layout(fold.extent.buffer);
        for part in 0..fold.extent.parts.total {
            let (_, elements) = layout.part(fold.extent.parts.part(part, counters));
            if elements > 0 {
                self.bind_segment(fold, part, elements, counters, numbers);
                self.merge(first);
            }
        }
        let segments = (first, index(self.segments.len()));
        if segments.0 == segments.1 {
            return;
        }
        let whole = self.segments[range(segments)].iter().map(|segment| segment.elements).sum();
        let sources = fold.sources.iter().map(|source| (&source.location, source.repeat));
        let recvs = self.bind_peers(sources, counters);
        let targets = fold.targets.iter().map(|target| (&target.location, target.repeat));
        let sends = self.bind_peers(targets, counters);
        let last = fold.last;
        let placeable =
            matches!(&self.segments[range(segments)], [only] if self.is_placeable(only));
        let early = placeable && fold.early;
        let bound = BoundFold { segments, recvs, sends, whole, instr, last, placeable, early };
        self.steps.push(Step::Fold(bound));
    }

    fn is_placeable(&self, segment: &Segment) -> bool {
        let Segment { first, middle, end, .. } = *segment;
        let is_output = |target: &Operand| matches!(target, Operand::Output(_));
        matches!(&self.operands[range((first, middle))], [Operand::Slot(_)])
            && self.operands[range((middle, end))].iter().any(is_output)
    }

    fn bind_peers<'a>(
        &mut self,
        locations: impl Iterator<Item = (&'a Location, u32)>,
        counters: &mut Counters,
    ) -> (u32, u32) {
        let first = index(self.peers.len());
        for (location, repeat) in locations {
            if let Location::Slot(peer) = location {
                for term in 0..repeat {
                    counters[TERM] = term;
                    self.peers.push(peer.eval(counters));
                }
            }
        }
        counters[TERM] = 0;
        (first, index(self.peers.len()))
    }

    fn bind_segment(
        &mut self,
        fold: &Fold,
        part: u32,
        elements: usize,
        counters: &mut Counters,
        numbers: &CallParams,
    ) {
        let first = index(self.operands.len());
        for source in &fold.sources {
            self.bind_operands(&source.location, source.repeat, part, counters, numbers);
        }
        let middle = index(self.operands.len());
        for target in &fold.targets {
            self.bind_operands(&target.location, target.repeat, part, counters, numbers);
        }
        let end = index(self.operands.len());
        self.segments.push(Segment { elements, first, middle, end });
    }

    fn bind_operands(
        &mut self,
        location: &Location,
        repeat: u32,
        part: u32,
        counters: &mut Counters,
        numbers: &CallParams,
    ) {
        for term in 0..repeat {
            counters[TERM] = term;
            let operand = match location {
                Location::Slot(peer) => Operand::Slot(peer.eval(counters)),
                Location::Memory(buffer, parts) => {
                    self.memory(*buffer, parts.part(part, counters), numbers)
                }
            };
            self.operands.push(operand);
        }
        counters[TERM] = 0;
    }

    fn memory(&self, buffer: Buffer, part: u32, numbers: &CallParams) -> Operand {
        let width = self.element_bytes;
        match buffer {
            Buffer::Input => Operand::Input(numbers.input.part(part).0 * width),
            Buffer::Output => Operand::Output(numbers.output.part(part).0 * width),
            Buffer::Scratch(id) => {
                let start = self.scratch_starts.get(usize::from(id)).copied().unwrap_or(0);
                let stride = (self.chunk_elements * width).next_multiple_of(64);
                Operand::Scratch(start + part as usize * stride)
            }
        }
    }

    /// Joins the newest segment to the segment before it if three conditions hold: the call has one
    /// chunk, both segments belong to the same fold, and the segments are adjacent in every
    /// operand. `first` is the index of the newest fold's first segment.
    fn merge(&mut self, first: u32) {
        let [.., before, last] = self.segments.as_slice() else { return };
        if self.segments.len() < first as usize + 2 || self.chunks != 1 {
            return;
        }
        let bytes = before.elements * self.element_bytes;
        let (old, new) = (before.first..before.end, last.first..last.end);
        let neighbours = old.zip(new).all(|(old, new)| {
            match (self.operands[old as usize], self.operands[new as usize]) {
                (Operand::Input(a), Operand::Input(b))
                | (Operand::Output(a), Operand::Output(b))
                | (Operand::Scratch(a), Operand::Scratch(b)) => a + bytes == b,
                (Operand::Slot(a), Operand::Slot(b)) => a == b,
                _ => false,
            }
        });
        if neighbours {
            let (joined, start) = (last.elements, last.first as usize);
            self.operands.truncate(start);
            self.segments.pop();
            if let Some(before) = self.segments.last_mut() {
                before.elements += joined;
            }
        }
    }
}
