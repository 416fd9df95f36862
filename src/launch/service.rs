//! What can go wrong in talking with a launcher's service.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

use crate::bootstrap::BootstrapError;

/// Why a launcher's service (torchrun's store, a PMI process manager) did not do what was asked of
/// it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// Its host's name could not be resolved.
    #[error("cannot connect: {0}")]
    Name(Box<BootstrapError>),
    /// Its host's name has no address.
    #[error("cannot connect: its name has no address")]
    NoAddress,
    /// Nobody let this process in until the deadline.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The descriptor that was to lead to it is of no use.
    #[error("PMI_FD={fd}: {error}")]
    Descriptor {
        /// Its number.
        fd: i32,
        /// Why.
        error: DescriptorError,
    },
    /// It did not answer in time.
    #[error("no answer within {waited_ms} ms")]
    Late {
        /// How long that was, in milliseconds.
        waited_ms: u64,
    },
    /// It hung up.
    #[error("it closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("{0}")]
    Io(Errno),
    /// A value that its protocol cannot carry.
    #[error("a value of {bytes} bytes does not fit its {bytes_max} bytes")]
    Unfit {
        /// Length of the value, in bytes.
        bytes: usize,
        /// The most that it takes.
        bytes_max: usize,
    },
    /// It answers something else than was asked.
    #[error("it answers {answer} where {expected} is due")]
    Unexpected {
        /// What it says.
        answer: String,
        /// What it should.
        expected: &'static str,
    },
    /// It refuses.
    #[error("{command} failed with code {code}: {message}")]
    Refused {
        /// What was asked for.
        command: &'static str,
        /// Its code for why not.
        code: String,
        /// Its words for that.
        message: String,
    },
    /// Its answer lacks something.
    #[error("its answer has no {0}")]
    Lacks(&'static str),
    /// It says something that cannot be read.
    #[error("its answer cannot be read: {0}")]
    Garbled(&'static str),
    /// It is no store of torchrun's.
    #[error("it says that it holds {keys} keys: is it a TCPStore?")]
    NoStore {
        /// What it takes for the number of its keys.
        keys: i64,
    },
    /// It gave up on a key.
    #[error("it stopped waiting for {key} with code {code}")]
    StoppedWaiting {
        /// The key.
        key: String,
        /// Its code for why.
        code: u8,
    },
    /// The value of our key is somebody else's.
    #[error("the value of {key} has {bytes} bytes: it is not ours")]
    Foreign {
        /// The key.
        key: String,
        /// Length of the value, in bytes.
        bytes: u64,
    },
    /// Rank 0 published nothing that could be read.
    #[error("rank 0 did not publish its address under {key}: {error}")]
    Unpublished {
        /// The key.
        key: String,
        /// Why.
        error: Box<ServiceError>,
    },
    /// What rank 0 published is no unique id.
    #[error("what rank 0 has published is {0}")]
    NoId(ccl_core::bootstrap::IdentityError),
    /// Not all ranks came to the barrier.
    #[error("not all ranks came: {0}")]
    Barrier(Box<ServiceError>),
}

/// Why an inherited descriptor is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// It is 0, 1 or 2.
    #[error("it is one of the standard streams")]
    Standard,
    /// This process has used it before.
    #[error("it was used already; pass a unique id for further communicators")]
    Used,
    /// It is not open.
    #[error("no such descriptor is open")]
    Closed,
    /// It cannot be made private to this process.
    #[error("{0}")]
    Io(Errno),
    /// It is no socket that listens.
    #[error("it is no socket that listens: {0}")]
    NoListener(io::ErrorKind),
    /// It listens elsewhere than was said.
    #[error("it listens at port {port}, not at {expected}")]
    Elsewhere {
        /// Where it listens.
        port: u16,
        /// Where it should.
        expected: u16,
    },
}
