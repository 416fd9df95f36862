//! Registered memory of the caller.

use std::sync::{Arc, PoisonError, RwLock};

use ccl_core::transport::{Device, MrKey};
use ccl_memory::{Region, RegionError};

use crate::error::NetError;

/// Registration of the caller's memory with a device.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) key: MrKey,
    region: Region,
    /// True until the memory is withdrawn. The caller may free it after [`Mr::deregister`].
    is_there: RwLock<bool>,
}

impl Mr {
    pub(crate) fn new(device: &Arc<dyn Device>, region: Region) -> Result<Mr, NetError> {
        let key = device.register(&region)?;
        Ok(Mr { device: Arc::clone(device), key, region, is_there: RwLock::new(true) })
    }

    /// Returns the offset of `address` in the memory; fails unless the memory contains all of the
    /// `bytes` bytes that begin at `address`.
    pub(crate) fn offset(&self, address: usize, bytes: usize) -> Result<usize, NetError> {
        let start = self.region.start().addr();
        let offset = address.wrapping_sub(start);
        let inside = offset <= self.region.bytes() && bytes <= self.region.bytes() - offset;
        if address >= start && inside {
            return Ok(offset);
        }
        Err(NetError::argument(format!(
            "{bytes} bytes at {address:#x} do not lie in the registered {} bytes at {start:#x}",
            self.region.bytes()
        )))
    }

    /// Runs `work` on the memory; fails once the memory is withdrawn.
    pub(crate) fn with(
        &self,
        work: impl FnOnce(&Region) -> Result<(), RegionError>,
    ) -> Result<(), NetError> {
        let is_there = self.is_there.read().unwrap_or_else(PoisonError::into_inner);
        if !*is_there {
            let text = "memory was deregistered while a request for it was under way";
            return Err(NetError::argument(text));
        }
        work(&self.region).map_err(|error| NetError::argument(error.to_string()))
    }

    /// Withdraws the memory: waits for running calls of [`Mr::with`], and makes later ones fail.
    pub(crate) fn withdraw(&self) {
        *self.is_there.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Deregisters the memory. No write to it occurs after this returns.
    pub(crate) fn deregister(&self) -> Result<(), NetError> {
        Ok(self.device.deregister(self.key)?)
    }
}
