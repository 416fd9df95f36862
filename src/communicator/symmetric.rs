//! Memory that every rank of a host maps. All ranks allocate it together, with equal sizes. Each
//! rank writes its own part and reads all parts.

use std::marker::PhantomData;

use ccl_core::transport::TransportError;
use ccl_core::types::Rank;
use ccl_memory::Region;

use ccl_socket::fork;

use super::element::Element;
use super::{CallError, Communicator, Error};

/// Memory that every rank of a host maps: a part for each rank, which only that rank writes.
///
/// The memory is never exposed as a slice, because other ranks may read it at any time. A read
/// during another rank's write returns old data, new data or a mix. A
/// [`Communicator::barrier`] between the write and the read orders them, and so does any call in
/// which every rank waits for all others.
#[derive(Debug)]
pub struct SymmetricBuffer<T> {
    /// The parts by rank; none for ranks whose memory is not mapped.
    parts: Vec<Option<Region>>,
    rank: Rank,
    count: usize,
    generation: u32,
    elements: PhantomData<T>,
}

impl<T: Element> SymmetricBuffer<T> {
    /// Returns the number of elements on each rank.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of ranks that map the memory.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.parts.iter().flatten().count()
    }

    /// Returns a rank's part; fails in a forked child.
    fn part(&self, rank: Rank) -> Result<&Region, Error> {
        if self.generation != fork::generation() {
            return Err(Error::Forked);
        }
        match self.parts.get(rank as usize) {
            Some(Some(part)) => Ok(part),
            Some(None) => Err(CallError::NotMapped { rank }.into()),
            None => Err(CallError::NoSuchRank { rank, ranks: self.parts.len() as u32 }.into()),
        }
    }

    /// Copies `data` into this rank's elements, beginning at `start`.
    ///
    /// # Errors
    ///
    /// When `data` does not fit.
    pub fn write(&mut self, start: usize, data: &[T]) -> Result<(), Error> {
        let offset = start.saturating_mul(size_of::<T>());
        let written = self.part(self.rank)?.write(offset, bytemuck::cast_slice(data));
        Ok(written.map_err(CallError::Range)?)
    }

    /// Copies this rank's elements, beginning at `start`, into `data`.
    ///
    /// # Errors
    ///
    /// When `data` is longer than the elements from `start` on.
    pub fn read(&self, start: usize, data: &mut [T]) -> Result<(), Error> {
        self.read_from(self.rank, start, data)
    }

    /// Copies a rank's elements, beginning at `start`, into `data`. That rank takes no part in the
    /// copy.
    ///
    /// # Errors
    ///
    /// When the rank's memory is not mapped here, or `data` is longer than the elements from
    /// `start` on.
    pub fn read_from(&self, rank: Rank, start: usize, data: &mut [T]) -> Result<(), Error> {
        let offset = start.saturating_mul(size_of::<T>());
        let read = self.part(rank)?.read(offset, bytemuck::cast_slice_mut(data));
        Ok(read.map_err(CallError::Range)?)
    }
}

const ALLOC_ADVICE: &str = "The communicator is unharmed: ask for less memory on every rank, or \
                            raise the limit that was reached";

impl Communicator {
    /// Allocates `count` zeroed elements on every rank, in memory that all ranks of the same host
    /// map. All ranks call this method with the same count. The memory is freed when the buffer is
    /// dropped on all ranks.
    ///
    /// # Errors
    ///
    /// If any rank cannot make that much shared memory, all ranks get an error.
    pub fn alloc<T: Element>(&mut self, count: usize) -> Result<SymmetricBuffer<T>, Error> {
        self.usable()?;
        let bytes = count.checked_mul(size_of::<T>());
        let bytes = bytes.ok_or(CallError::TooManyElements { count })?;
        let made = match &mut self.engine.wiring {
            Some(wiring) => wiring.share(bytes.max(1), |_| Ok(())),
            None => match Region::allocate(bytes) {
                Ok(own) => Ok(vec![Some(own)]),
                Err(error) => Err(TransportError::from(error).into()),
            },
        };
        let parts = made.map_err(|error| match self.or_failure(error, "alloc") {
            Error::Transport(error) if error.is_own_shortage() => {
                let (doing, error) = ("alloc", Box::new(error.into()));
                Error::Unmade { doing, error, advice: ALLOC_ADVICE }
            }
            other => other,
        })?;
        let (rank, generation) = (self.rank(), fork::generation());
        Ok(SymmetricBuffer { parts, rank, count, generation, elements: PhantomData })
    }
}
