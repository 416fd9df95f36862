//! Buffers that messages are received into.

use std::sync::Arc;

use crate::memory::Mr;
use crate::table::Id;

/// A buffer to receive into.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffer {
    /// Registration of the buffer; none for an empty buffer.
    pub(crate) mr: Option<(Id, Arc<Mr>)>,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) tag: i32,
}
