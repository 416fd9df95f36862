//! Calls to the other process, and the connection that carries them.

use std::io::{Error, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ccl_core::encoding;
use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, EndpointId, MrKey, RemoteKey, RemoteMr, Secret, TransportError, WorkRequest,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Environment variable that makes a process serve a device. The variable's value is the port to
/// which the process connects.
pub(crate) const PORT: &str = "FERROCCL_TEST_REMOTE_DEVICE";
const PEER: &str = "the process of the device";
/// Secret of the second connection between the two processes: a connection of the shared-memory
/// transport, over which they share memory.
pub(crate) const SECRET: Secret = Secret([0x3a; 32]);
/// Longest wait for an answer. The drop of a lane can wait for the lane's peer for some seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Call to the device. The answer is a `Result`, whose error is a [`Failure`]. The comment of each
/// call but [`Call::OfLane`] gives the type of the `Result`'s value. Times are those of the host's
/// clock, which both processes share.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Maps memory of the calling process and registers it: [`MrKey`].
    Register(RemoteKey),
    /// `()`.
    Deregister(MrKey),
    /// The listener's number and address: `(usize, Address)`.
    Listen { secret: [u8; 32] },
    /// The connection's number and hello: `Option<(usize, Vec<u8>)>`.
    PollListener(usize, Instant),
    /// `u64`.
    Rejected(usize),
    /// `()`.
    DropListener(usize),
    /// The number of the connection attempt: `usize`.
    Connect { address: Address, secret: [u8; 32], hello: Vec<u8>, deadline: Instant },
    /// The connection's number and hello: `Option<(usize, Vec<u8>)>`.
    PollConnecting(usize, Instant),
    /// `()`.
    DropConnecting(usize),
    /// `()`.
    DropConnected(usize),
    /// The lane's number: `usize`.
    Lane,
    /// Call to the lane with this number.
    OfLane(usize, LaneCall),
}

/// Call to a lane, named like a method of [`ccl_core::transport::Lane`] and answered with that
/// method's result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum LaneCall {
    Attach(usize),
    Detach(EndpointId),
    PollShutdown(Option<EndpointId>),
    Abort(EndpointId),
    Share(EndpointId, MrKey),
    Import(EndpointId, RemoteKey),
    Forget(EndpointId, RemoteMr),
    Post(Instant, Vec<WorkRequest>),
    Note(EndpointId, Vec<u8>),
    Poll(Instant),
    Peek,
    PollTimeout,
    IsDrained,
    IsAcknowledged,
    FlushAcknowledgements(Instant),
    Sleep(Duration),
    Drop,
}

/// Error that the answer to a failed call carries.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    text: String,
    /// True if the error is that a deadline has passed: callers distinguish it from other errors.
    is_deadline: bool,
}

impl From<TransportError> for Failure {
    fn from(error: TransportError) -> Failure {
        let is_deadline = matches!(error, TransportError::Deadline { .. });
        Failure { text: error.to_string(), is_deadline }
    }
}

impl From<Failure> for TransportError {
    fn from(Failure { text, is_deadline }: Failure) -> TransportError {
        match is_deadline {
            true => TransportError::Deadline { what: "a call", peer: text, after: Duration::ZERO },
            false => TransportError::Refused { peer: PEER.to_owned(), reason: text },
        }
    }
}

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Wire(TcpStream);

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Wire {
        stream.set_nodelay(true).unwrap();
        Wire(stream)
    }

    /// Sends an encoded record, preceded by its length.
    pub(crate) fn send(&mut self, record: &[u8]) -> Result<(), Error> {
        let length = u32::try_from(record.len()).map_err(Error::other)?;
        self.0.write_all(&[&length.to_le_bytes(), record].concat())
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut bytes)?;
        encoding::decode(&bytes).map_err(Error::other)
    }

    /// Makes a call and returns its answer.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, call: &Call) -> Result<T, TransportError> {
        let answer = self.send(&encoding::encode(call)).and_then(|()| self.receive());
        let answer: Result<T, Failure> = answer.map_err(|error| TransportError::Lost {
            peer: PEER.to_owned(),
            reason: error.to_string(),
        })?;
        answer.map_err(TransportError::from)
    }
}
