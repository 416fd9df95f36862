//! A device that lives in another process and is used through the device traits. It allows a test
//! to run its two sides in separate processes.
//!
//! The test starts a [`RemoteProcess`], which runs the same test binary, limited to one test that
//! calls [`serve()`]. Calls travel over a TCP connection and are answered one at a time.
//! Allocated memory is shared memory of [`ccl_transport_shm`], which both processes map. Other
//! registered memory has a copy in shared memory ([`RemoteDevice`] says when bytes are copied).

#![forbid(unsafe_code)]
#![expect(clippy::panic, clippy::unwrap_used, reason = "it serves tests, which may panic")]

mod calls;
mod remote;
mod serve;

pub use remote::{RemoteDevice, RemoteProcess};
pub use serve::serve;
