//! A device of another process behind the traits of a device, so that the two sides of a test are
//! processes of their own.
//!
//! The test starts a [`RemoteProcess`], which is this test binary again with one of its tests; that
//! test calls [`serve()`]. Calls travel over a TCP connection and are answered one at a time.
//! Memory is shared memory of [`ccl_transport_shm`]: both processes see its bytes at once.

#![forbid(unsafe_code)]
#![expect(clippy::panic, clippy::unwrap_used, reason = "it serves tests, which fail with it")]

mod calls;
mod remote;
mod serve;

pub use remote::{RemoteDevice, RemoteProcess};
pub use serve::serve;
