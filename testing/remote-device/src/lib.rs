//! A device of another process, behind the traits of a device. It allows a test to run its two
//! sides in separate processes.
//!
//! The test starts a [`RemoteProcess`], which runs the same test binary, limited to one test that
//! calls [`serve()`]. Calls travel over a TCP connection and are answered one at a time.
//! Memory is shared memory of [`ccl_transport_shm`]: both processes see its bytes at once.

#![forbid(unsafe_code)]
#![expect(clippy::panic, clippy::unwrap_used, reason = "it serves tests, which may panic")]

mod calls;
mod remote;
mod serve;

pub use remote::{RemoteDevice, RemoteProcess};
pub use serve::serve;
