//! Memory that every rank of a host maps. All ranks make it together, with the same size on each.

use std::marker::PhantomData;

use ccl_core::transport::TransportError;
use ccl_memory::Region;

use ccl_socket::fork;

use super::call::usage;
use super::element::Element;
use super::{Communicator, Error};

/// Part of this rank in memory that every local rank maps. Only this rank's own calls see the part
/// as a slice: peers reach it only through collectives that this rank takes part in.
#[derive(Debug)]
pub struct SymmetricBuffer<T> {
    regions: Vec<Region>,
    own: usize,
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
        self.regions.len()
    }

    /// Returns this rank's memory, which a forked child does not have.
    fn own_region(&self) -> Result<&Region, Error> {
        if self.generation == fork::generation() {
            Ok(&self.regions[self.own])
        } else {
            Err(Error::Forked)
        }
    }

    /// Copies `data` to the elements from `start` on.
    ///
    /// # Errors
    ///
    /// When `data` does not fit.
    pub fn write(&mut self, start: usize, data: &[T]) -> Result<(), Error> {
        let offset = start.saturating_mul(size_of::<T>());
        let region = self.own_region()?;
        region.write(offset, bytemuck::cast_slice(data)).map_err(|error| usage(error.to_string()))
    }

    /// Copies the elements from `start` on to `data`.
    ///
    /// # Errors
    ///
    /// When there are not as many elements.
    pub fn read(&self, start: usize, data: &mut [T]) -> Result<(), Error> {
        let offset = start.saturating_mul(size_of::<T>());
        let region = self.own_region()?;
        let bytes = bytemuck::cast_slice_mut(data);
        region.read(offset, bytes).map_err(|error| usage(error.to_string()))
    }
}

impl Communicator {
    /// Allocates memory of `count` zeroed elements on every rank, which all ranks of its host map.
    /// All ranks call it with the same count. The memory is freed when the buffer is dropped on all
    /// ranks.
    ///
    /// # Errors
    ///
    /// When one rank cannot make that much shared memory, all ranks get an error.
    pub fn alloc<T: Element>(&mut self, count: usize) -> Result<SymmetricBuffer<T>, Error> {
        self.usable()?;
        let bytes = count
            .checked_mul(size_of::<T>())
            .ok_or_else(|| usage(format!("{count} elements are more than memory can hold")))?;
        let rank = self.rank() as usize;
        let (regions, own) = match &mut self.engine.wiring {
            Some(wiring) => {
                let shared = wiring.share(bytes.max(1), |_| Ok(()));
                let regions = shared.map_err(|error| self.or_failure(error, "alloc"))?;
                let own = regions[..rank].iter().flatten().count();
                (regions.into_iter().flatten().collect(), own)
            }
            None => (vec![Region::allocate(bytes).map_err(TransportError::from)?], 0),
        };
        let generation = fork::generation();
        Ok(SymmetricBuffer { regions, own, count, generation, elements: PhantomData })
    }
}
