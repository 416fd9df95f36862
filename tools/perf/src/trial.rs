//! One collective with known data: filling the buffers, calling, and counting wrong elements.

use ccl_core::types::{Collective, DataType, Rank, ReduceOp};

use super::data::expect::{Place, Segment, Source};
use super::data::generate::{Recipe, premul_scalar};
use super::data::pattern::Table;
use super::geometry::{Counts, Layout};
use super::memory::{Memory, POISON};
use super::subject::{Buffers, Request, Subject, SubjectError};

/// One call on one rank.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    /// Kind of collective.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator, if the collective reduces.
    pub op: ReduceOp,
    /// Root, if the collective has one.
    pub root: Rank,
    /// Counts of the call on this rank.
    pub counts: Counts,
    /// Algorithm that the user has named.
    pub algorithm: Option<&'a str>,
    /// Number of this rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
}

/// A call whose request and buffer sizes are computed in advance.
#[derive(Clone, Copy, Debug)]
pub struct Prepared<'a> {
    request: Request<'a>,
    /// Bytes of the input; `None` for an in-place call.
    input_bytes: Option<usize>,
    output_bytes: usize,
}

impl Prepared<'_> {
    /// Makes the call `times` times.
    ///
    /// # Errors
    /// Errors of the communicator.
    pub fn run(
        &self,
        subject: &mut dyn Subject,
        memory: &mut Memory,
        times: u64,
    ) -> Result<(), SubjectError> {
        let output = memory.output.bytes_mut(self.output_bytes);
        let buffers = match self.input_bytes {
            Some(bytes) => Buffers::OutOfPlace { input: memory.input.bytes(bytes), output },
            None => Buffers::InPlace(output),
        };
        subject.run(&self.request, buffers, times)
    }
}

impl Trial<'_> {
    /// Returns the same call by a given algorithm.
    #[must_use]
    pub fn by<'b>(&self, way: &'b str) -> Trial<'b> {
        let Trial { collective, data_type, op, root, rank, ranks, .. } = *self;
        let counts = self.counts.clone();
        Trial { collective, data_type, op, root, counts, algorithm: Some(way), rank, ranks }
    }

    /// Returns the request for the call.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        let scaled = self.collective.reduces() && self.op == ReduceOp::PremulSum;
        Request {
            collective: self.collective,
            data_type: self.data_type,
            op: self.op,
            scalar: scaled.then(|| premul_scalar(self.data_type, self.rank)),
            root: self.root,
            shape: self.counts.shape(),
            algorithm: self.algorithm,
        }
    }

    /// Returns the sizes and offsets of the buffers, in elements.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.place().layout()
    }

    /// Returns the bytes of the larger buffer.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.layout().whole() * self.data_type.bytes()
    }

    /// Returns the number of bytes of `count` elements.
    fn bytes(&self, count: usize) -> usize {
        count * self.data_type.bytes()
    }

    /// Calls the collective once.
    ///
    /// # Errors
    /// Errors of the communicator.
    pub fn run(
        &self,
        subject: &mut dyn Subject,
        memory: &mut Memory,
        in_place: bool,
    ) -> Result<(), SubjectError> {
        self.prepared(in_place).run(subject, memory, 1)
    }

    /// Prepares the call for repetition, so that the timed loop does nothing but call.
    #[must_use]
    pub fn prepared(&self, in_place: bool) -> Prepared<'_> {
        let layout = self.layout();
        let output = if in_place { layout.whole() } else { layout.output };
        Prepared {
            request: self.request(),
            input_bytes: (!in_place).then(|| self.bytes(layout.input)),
            output_bytes: self.bytes(output),
        }
    }

    /// Writes this rank's input, poisons everything that is not input, and sets up the guards.
    pub fn prepare(&self, memory: &mut Memory, repetition: u64, in_place: bool) {
        let layout = self.layout();
        let (input_bytes, whole_bytes) = (self.bytes(layout.input), self.bytes(layout.whole()));
        let output_bytes = if in_place { whole_bytes } else { self.bytes(layout.output) };
        let output = memory.output.bytes_mut(output_bytes);
        output.fill(POISON);
        let input = if in_place {
            let start = self.bytes(layout.input_offset);
            &mut output[start..start + input_bytes]
        } else {
            memory.input.arm(input_bytes);
            memory.input.bytes_mut(input_bytes)
        };
        let mut rest = input;
        for segment in self.place().input() {
            let (head, tail) = rest.split_at_mut(self.bytes(segment.count));
            if let Some(table) = self.table(segment, repetition) {
                table.fill(head, segment.first);
            }
            rest = tail;
        }
        memory.output.arm(output_bytes);
    }

    /// Counts wrong elements and overwritten guard bytes after a call that
    /// [`prepare`](Self::prepare) prepared with the same arguments. Checks the output and, unless
    /// the call was in place, the input, which must not change.
    #[must_use]
    pub fn wrong(&self, memory: &Memory, repetition: u64, in_place: bool) -> u64 {
        let layout = self.layout();
        let (start, whole) = if in_place {
            (self.bytes(layout.output_offset), self.bytes(layout.whole()))
        } else {
            (0, self.bytes(layout.output))
        };
        let output = &memory.output.bytes(whole)[start..];
        let mut wrong = self.wrong_in(output, &self.place().output(in_place), repetition);
        wrong += memory.output.overrun(whole);
        if !in_place {
            let input_bytes = self.bytes(layout.input);
            let input = memory.input.bytes(input_bytes);
            wrong += self.wrong_in(input, &self.place().input(), repetition);
            wrong += memory.input.overrun(input_bytes);
        }
        wrong
    }

    fn wrong_in(&self, buffer: &[u8], segments: &[Segment], repetition: u64) -> u64 {
        let mut rest = buffer;
        // Successive segments rarely have the same source, so tables are not cached.
        let mut wrong = 0;
        for &segment in segments {
            let (head, tail) = rest.split_at(self.bytes(segment.count));
            wrong += match self.table(segment, repetition) {
                Some(table) => table.wrong(head, segment.first),
                None => poison_lost(head, self.data_type),
            };
            rest = tail;
        }
        wrong
    }

    fn table(&self, segment: Segment, repetition: u64) -> Option<Table> {
        let recipe = Recipe {
            data_type: self.data_type,
            op: self.collective.reduces().then_some(self.op),
            ranks: self.ranks,
            repetition,
        };
        let end = if segment.count == 0 { 0 } else { segment.first + segment.count };
        match segment.source {
            Source::Input { stream } => Some(Table::of_input(recipe, stream, end)),
            Source::Reduction => Some(Table::of_reduction(recipe, end)),
            Source::Untouched => None,
        }
    }

    fn place(&self) -> Place<'_> {
        Place {
            collective: self.collective,
            counts: &self.counts,
            root: self.root,
            rank: self.rank,
            ranks: self.ranks,
        }
    }
}

/// Returns the number of elements in which a byte is no longer poison.
fn poison_lost(buffer: &[u8], data_type: DataType) -> u64 {
    let elements = buffer.chunks_exact(data_type.bytes());
    elements.filter(|element| element.iter().any(|&byte| byte != POISON)).count() as u64
}
