//! State that the lanes of a device have in common.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ccl_core::transport::{Caps, Device, Registry};

use crate::memory::LocalKeys;
use crate::rail::Load;

/// The devices, the registry of their memory, and the number of links over them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// Names of the devices.
    pub(crate) names: Vec<String>,
    pub(crate) registry: Arc<Registry<LocalKeys>>,
    /// Loads of the devices.
    pub(crate) loads: Vec<Arc<Load>>,
    /// Number of links made so far.
    pub(crate) links: AtomicUsize,
    pub(crate) caps: Caps,
}
