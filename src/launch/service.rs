//! Errors of talking with a launcher's service.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

use crate::bootstrap::BootstrapError;

/// The failure of a launcher's service: torchrun's store or a PMI process manager.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The service's host name could not be resolved.
    #[error("cannot connect: {0}")]
    Name(Box<BootstrapError>),
    /// The service's host name has no address.
    #[error("cannot connect: its name has no address")]
    NoAddress,
    /// No connection could be made before the deadline.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The inherited descriptor cannot be used.
    #[error("PMI_FD={fd}: {error}")]
    Descriptor {
        /// The descriptor's number.
        fd: i32,
        /// The cause.
        error: DescriptorError,
    },
    /// The service did not answer in time.
    #[error("no answer within {waited_ms} ms")]
    Late {
        /// The time that was waited, in milliseconds.
        waited_ms: u64,
    },
    /// The service closed the connection.
    #[error("it closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("{0}")]
    Io(Errno),
    /// A value is too long for the protocol, or contains blanks.
    #[error(
        "a value of {bytes} bytes cannot be sent: it must be shorter than {bytes_max} bytes and \
         contain no blanks"
    )]
    Unfit {
        /// Length of the value, in bytes.
        bytes: usize,
        /// The limit of the service, in bytes: a value must be shorter.
        bytes_max: usize,
    },
    /// The answer belongs to another command than the one that was sent.
    #[error("it answered {answer} instead of {expected}")]
    Unexpected {
        /// The command in the answer.
        answer: String,
        /// The command that was expected.
        expected: &'static str,
    },
    /// The service refused a command.
    #[error("{command} failed with code {code}: {message}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The service's error code.
        code: String,
        /// The service's error message.
        message: String,
    },
    /// An answer lacks a field.
    #[error("its answer has no {0}")]
    Lacks(&'static str),
    /// An answer cannot be parsed.
    #[error("its answer cannot be read: {0}")]
    Garbled(&'static str),
    /// The service is not torchrun's store.
    #[error("it says that it holds {keys} keys: is it a TCPStore?")]
    NoStore {
        /// The number of keys in the answer.
        keys: i64,
    },
    /// The store stopped waiting for a key.
    #[error("it stopped waiting for {key} with code {code}")]
    StoppedWaiting {
        /// The key.
        key: String,
        /// The store's error code.
        code: u8,
    },
    /// The value of the key was not written by this library.
    #[error("the value of {key} has {bytes} bytes: ferroccl did not write it")]
    Foreign {
        /// The key.
        key: String,
        /// Length of the value, in bytes.
        bytes: u64,
    },
    /// Rank 0 did not publish its address.
    #[error("rank 0 did not publish its address under {key}: {error}")]
    Unpublished {
        /// The key.
        key: String,
        /// The cause.
        error: Box<ServiceError>,
    },
    /// The value that rank 0 published is not a unique id.
    #[error("the value that rank 0 has published cannot be used: {0}")]
    NoId(ccl_bootstrap::IdentityError),
    /// The barrier of all ranks failed.
    #[error("the barrier of all ranks failed: {0}")]
    Barrier(Box<ServiceError>),
}

/// The reason why an inherited descriptor cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The descriptor is 0, 1 or 2.
    #[error("it is one of the standard streams")]
    Standard,
    /// The process has used the descriptor before.
    #[error("it was used already; pass a unique id for further communicators")]
    Used,
    /// The descriptor is not open.
    #[error("no such descriptor is open")]
    Closed,
    /// The descriptor's close-on-exec flag cannot be set.
    #[error("{0}")]
    Io(Errno),
    /// The descriptor is not a listening socket.
    #[error("it is not a listening socket: {0}")]
    NoListener(io::ErrorKind),
    /// The socket listens on another port.
    #[error("it listens at port {port}, not at {expected}")]
    Elsewhere {
        /// The port that the socket listens on.
        port: u16,
        /// The port that was expected.
        expected: u16,
    },
}
