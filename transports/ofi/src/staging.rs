//! Memory for writes whose bytes lie in two ranges. The bytes are copied into one range first. With
//! remote CQ data, a device can write from only one range; for more ranges, the provider would send
//! messages instead.

use std::sync::Arc;

use ccl_core::transport::TransportError;
use ccl_memory::Region;

use crate::memory::Registered;
use crate::native::Domain;
use crate::requests::Write;

/// Largest number of writes to a peer that are staged at once.
const STAGED_MAX: usize = 16;
/// Granularity of the memory for one write, in bytes. Rounding up to a power of two would waste
/// almost half, since a slot with its header is a little longer than a power of two.
const STEP_BYTES: usize = 64 << 10;

/// Staging memory of a link.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    all: Vec<Arc<Registered>>,
}

impl Staging {
    /// Copies the bytes of a write. Returns the memory of the copy; none if all memory is in use.
    ///
    /// # Errors
    ///
    /// When there is no memory, or registering it fails.
    pub(crate) fn take(
        &mut self,
        domain: &Arc<Domain>,
        write: &Write,
    ) -> Result<Option<Arc<Registered>>, TransportError> {
        let bytes = write.bytes();
        // Any other owner is a write that is under way.
        let is_free = |memory: &Arc<Registered>| Arc::strong_count(memory) == 1;
        let free = self.all.iter().position(|memory| is_free(memory) && memory.bytes() >= bytes);
        let at = match free {
            Some(at) => at,
            None => {
                let small = self.all.iter().position(is_free);
                if self.all.len() >= STAGED_MAX && small.is_none() {
                    return Ok(None);
                }
                if let Some(small) = small.filter(|_| self.all.len() >= STAGED_MAX) {
                    self.all.swap_remove(small);
                }
                let region = Region::allocate(bytes.next_multiple_of(STEP_BYTES))?;
                self.all.push(Registered::new(domain, &region)?);
                self.all.len() - 1
            }
        };
        write.copy_to(self.all[at].region())?;
        Ok(Some(Arc::clone(&self.all[at])))
    }
}
