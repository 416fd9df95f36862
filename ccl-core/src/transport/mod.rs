//! What joins two ranks: the traits that every transport implements, and nothing of any of them.
//!
//! A [`Transport`] finds [`Device`]s; a device registers memory, listens, connects and makes
//! [`Lane`]s; a lane moves bytes into memory that the other side has shared. Planners read
//! [`Caps`], never names: a capability that a device claims is a test of the conformance suite
//! that it passes.
//!
//! Nothing here blocks. What takes time is polled, with the time handed in, and has a deadline.

mod fault;
pub mod handshake;
mod locality;
mod named;
mod registry;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ccl_memory::{OutOfMemory, Region};
use serde::{Deserialize, Serialize};

use crate::queue_pairs::{Flow, Striping};
use crate::time::Instant;

pub use fault::{FaultInjector, Faults, FaultyDevice};
pub use locality::{Locality, pci_address};
pub use named::{Imported, NamedMemory, Slice, Understood, take};
pub use registry::{Registration, Registry};

/// A kind of connection between ranks, for example shared memory.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Its name in options and messages: `shm`, `tcp`, `verbs`…
    fn name(&self) -> &'static str;
    /// The devices there are; none is not an error, whatever library or hardware is missing.
    fn devices(&self) -> Vec<DeviceInfo>;
    /// Why there is no device, for who wants one: what is missing, and what to do.
    fn why_none(&self) -> String {
        "none was found".to_owned()
    }
    /// Opens a device.
    ///
    /// # Errors
    ///
    /// When there is no such device, or it cannot be opened.
    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError>;
}

/// Which device of a transport.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub String);

/// A device before it is opened.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Its name for [`Transport::open`].
    pub id: DeviceId,
    /// One line for people.
    pub description: String,
    /// What it can do.
    pub caps: Caps,
    /// The memory that is nearest to it, where that is known.
    pub numa_node: Option<u32>,
    /// The canonical path of its PCI function in sysfs, where it has one ([`Locality::pci_path`]).
    pub pci_path: Option<String>,
    /// Where in the network it is.
    pub fabric: Fabric,
}

/// Where in the network a device is, as far as anybody has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// The same for all ports of one card.
    pub card: Option<u64>,
    /// Which of the networks that reach the same rank of every host, or nearly.
    pub rail: Option<u16>,
    /// Which of the parallel networks within a rail.
    pub plane: Option<u16>,
    /// What its links are.
    pub layer: Option<LinkLayer>,
}

/// What the links of a network are: devices of different ones do not reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// Ethernet.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
}

/// What a device can do: facts, each tested.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// Whether [`Lane::map`] gives direct access to the peer's memory.
    pub mapped: bool,
    /// Whether puts on one endpoint arrive in the order in which they were posted.
    pub ordered: bool,
    /// Whether the places that puts read from and write to may change while they are under way
    /// ([`Lane::relocate`], [`Lane::redirect`]): this side's processor moves the bytes, late.
    pub redirects: bool,
    /// Whether a put is [done](Event::Done) only when the peer has it, and never if its connection
    /// ends before: so that one that is not done may be put another way.
    pub acknowledged: bool,
    /// Fewer bytes are copied rather than registered for a single call: that costs more.
    pub register_bytes_min: usize,
    /// The most bytes in one put.
    pub message_bytes_max: usize,
    /// The most puts outstanding on one endpoint.
    pub depth_max: usize,
    /// Rough bandwidth in one direction.
    pub bandwidth_bytes_per_s: f64,
    /// Rough time for a small message, one way.
    pub latency_ns: u64,
}

/// Proves membership: known to the ranks of a communicator and to nobody else. Its text is never
/// printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Where a listener can be reached, in its transport's own bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address(pub Vec<u8>);

/// Memory registered with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MrKey(pub u64);

/// What a peer needs to reach shared memory, in the transport's own bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteKey(pub Vec<u8>);

/// A peer's memory as one lane knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMr(pub u64);

/// The greatest immediate: a transport may need the other four bits to count the parts of a put.
pub const IMMEDIATE_MAX: u32 = (1 << 28) - 1;

/// The longest CTS.
pub const CTS_BYTES_MAX: usize = 200;

/// The longest text that a connection can be made with.
pub const HELLO_BYTES_MAX: usize = 96;

/// The longest note.
pub const NOTE_BYTES_MAX: usize = 4096;

/// Whether a note is as short as notes must be, for lanes that take one.
///
/// # Errors
///
/// When it is longer than [`NOTE_BYTES_MAX`].
pub fn check_note(bytes: &[u8]) -> Result<(), TransportError> {
    if bytes.len() <= NOTE_BYTES_MAX {
        return Ok(());
    }
    let bytes = bytes.len();
    Err(TransportError::Usage(format!(
        "a note of {bytes} bytes; at most {NOTE_BYTES_MAX} are possible"
    )))
}

/// A connection of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u32);

/// One opened device, shared by all communicators and threads of the process.
pub trait Device: Send + Sync + fmt::Debug {
    /// What it can do.
    fn caps(&self) -> &Caps;

    /// Makes zeroed memory that can be shared ([`Lane::share`]) and, on mapped transports, mapped
    /// by peers; registered already.
    ///
    /// # Errors
    ///
    /// When there is not enough memory of the kind that the device needs.
    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError>;

    /// Makes memory known to the device so that puts may name it. Any thread, at any time.
    ///
    /// # Errors
    ///
    /// When the device cannot reach that memory, or a limit is met.
    fn register(&self, region: &Region) -> Result<MrKey, TransportError>;

    /// The opposite. When it returns, the device writes nothing there any more.
    ///
    /// # Errors
    ///
    /// When the key is not registered.
    fn deregister(&self, key: MrKey) -> Result<(), TransportError>;

    /// Listens for peers that prove the secret.
    ///
    /// # Errors
    ///
    /// When nothing can be listened on.
    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError>;

    /// Starts to connect to a listener; `hello` (at most [`HELLO_BYTES_MAX`] bytes)
    /// tells it who comes.
    ///
    /// # Errors
    ///
    /// When the address is not one of this transport.
    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError>;

    /// A lane with a completion queue of its own.
    ///
    /// # Errors
    ///
    /// When a limit of the device is met.
    fn lane(&self) -> Result<Box<dyn Lane>, TransportError>;
}

/// Waits for peers. Strangers are dropped and counted, and cost no more than a bounded time.
pub trait Listener: Send + fmt::Debug {
    /// Where peers connect to.
    fn address(&self) -> Address;

    /// A peer that has proved the secret, if there is one.
    ///
    /// # Errors
    ///
    /// When listening itself has failed; a stranger is no error.
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError>;

    /// Connections dropped so far because they proved nothing.
    fn rejected(&self) -> u64;
}

/// A connection in the making.
pub trait Connecting: Send + fmt::Debug {
    /// The connection, once both sides have proved the secret.
    ///
    /// # Errors
    ///
    /// When the peer cannot be reached, proves nothing, or the deadline has passed.
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError>;
}

/// A connection to a peer that proved the secret, not yet used by a lane.
#[derive(Debug)]
pub struct Connected {
    /// What the connecting side said of itself; empty on that side.
    pub hello: Vec<u8>,
    /// The transport's own part, for [`Lane::attach`] of the same device.
    pub inner: Box<dyn Inner>,
}

/// A transport's own part of a [`Connected`].
pub trait Inner: Any + Send + fmt::Debug {
    /// For the transport to get its own type back.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// Moves bytes. Used by one thread at a time; nothing blocks, nothing calls back.
pub trait Lane: Send + fmt::Debug {
    /// Takes a connection over.
    ///
    /// # Errors
    ///
    /// When the connection is of another device, or a limit is met.
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError>;

    /// Closes an endpoint. When it returns, the peer can write nothing through it any more.
    fn detach(&mut self, endpoint: EndpointId);

    /// Hands over what was posted to an endpoint, or to all of them with none, and returns whether
    /// the peers have it or are not waited for any more. [`Lane::detach`] and dropping wait until
    /// this returns true, at most up to a deadline that begins with the first call. Whoever ends
    /// several lanes calls this for each of them in turn first: then they are waited for together.
    fn say_farewell(&mut self, endpoint: Option<EndpointId>) -> bool {
        let _ = endpoint;
        true
    }

    /// Closes an endpoint at once: what was posted need not have arrived, and is never done if it
    /// has not.
    fn cut(&mut self, endpoint: EndpointId) {
        self.detach(endpoint);
    }

    /// Lets the endpoint's peer reach memory of this side. The key reaches the peer by whatever
    /// way the caller likes, after this has returned. Where memory can be mapped, the peer can
    /// import or map it even if it is deregistered here meanwhile.
    ///
    /// # Errors
    ///
    /// When the memory is not registered or cannot be shared.
    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError>;

    /// The peer's memory, for puts.
    ///
    /// # Errors
    ///
    /// When the key is not of that peer.
    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError>;

    /// The opposite: no put names the memory again, and what is kept for that may go.
    fn forget(&mut self, at: EndpointId, mr: RemoteMr) {
        let _ = (at, mr);
    }

    /// The peer's memory, to load from and store to; only with [`Caps::mapped`]. It stays as long
    /// as the region (and its clones), whatever becomes of the endpoint. A key is mapped once:
    /// keep the region. (One that was imported before, as often as wanted.)
    ///
    /// # Errors
    ///
    /// When the key is not of that peer or has been mapped before, or the transport cannot map.
    fn map(&mut self, at: EndpointId, key: &RemoteKey) -> Result<Region, TransportError>;

    /// Posts work, in order, and returns how many requests were taken: fewer than given is
    /// back-pressure, not an error; poll and post the rest again.
    ///
    /// # Errors
    ///
    /// When a request names memory, an endpoint or a range that there is not; none after it was
    /// taken.
    fn post(&mut self, now: Instant, work: &[WorkRequest]) -> Result<usize, TransportError>;

    /// Writes a few bytes to the endpoint's peer, at most [`NOTE_BYTES_MAX`], which has them as an
    /// [`Event::Note`]: what it must know before it can put anything. Notes arrive once and in the
    /// order of their writing, before or after puts. For setting up; not for the data path.
    ///
    /// # Errors
    ///
    /// When there is no such endpoint, or the note is too long.
    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError>;

    /// Has a put that is not done read its [`WorkRequest::Put::tail`] from here from now on: the
    /// same bytes, in another place. When this returns, nothing reads them in the first place any
    /// more. Puts that are done, or were never taken, are left alone.
    ///
    /// # Errors
    ///
    /// When the bytes lie in no registered memory or are not as many as the tail has, or the
    /// transport cannot ([`Caps::redirects`]).
    fn relocate(
        &mut self,
        endpoint: EndpointId,
        id: u64,
        tail: LocalSlice,
    ) -> Result<(), TransportError> {
        let (EndpointId(number), bytes) = (endpoint, tail.bytes);
        Err(TransportError::Usage(format!(
            "other {bytes} bytes for request {id} to endpoint {number}: this transport reads \
             memory at its own time"
        )))
    }

    /// Has what the peer next puts at `from`, which is memory shared with it, arrive in `into`
    /// instead, which is as long: the bytes of one put, from the beginning of `from` to at most
    /// its end. What the put writes before `from` stays where it is. None takes that back: nothing
    /// is written to `into` any more, and what had come of an unfinished put is where it would
    /// have been. Returns no if such a put has come too far, or reaches beyond; nothing is changed
    /// then. To be asked when every [`Event`] has been taken: a put that has come whole is not
    /// known here any more.
    ///
    /// # Errors
    ///
    /// When one of the two lies in no registered memory, `from` is not shared with that peer, or
    /// the transport cannot ([`Caps::redirects`]).
    fn redirect(
        &mut self,
        endpoint: EndpointId,
        from: LocalSlice,
        into: Option<LocalSlice>,
    ) -> Result<bool, TransportError> {
        let (EndpointId(number), bytes) = (endpoint, from.bytes);
        let _ = into;
        Err(TransportError::Usage(format!(
            "another place for {bytes} bytes of endpoint {number}: this transport writes where \
             the peer says"
        )))
    }

    /// The flows that puts to the endpoint's peer are spread over now, as an Ethernet fabric sees
    /// them; none if the endpoint is not connected yet, or none of its data goes as such.
    fn flows(&self, endpoint: EndpointId) -> Vec<Flow> {
        let _ = endpoint;
        Vec::new()
    }

    /// The rails that lead to the endpoint's peer, if it is reached over several devices.
    fn rails(&self, endpoint: EndpointId) -> Vec<RailState> {
        let _ = endpoint;
        Vec::new()
    }

    /// The traffic class (DSCP and ECN) of what goes to peers that are attached from now on, unless
    /// a [`Striping`] says otherwise; nothing where packets have none.
    fn classify(&mut self, traffic_class: u8) {
        let _ = traffic_class;
    }

    /// How puts to the endpoint's peer are spread over its queue pairs from now on, as far as there
    /// are so many; nothing where there are none.
    fn set_striping(&mut self, endpoint: EndpointId, striping: &Striping) {
        let _ = (endpoint, striping);
    }

    /// Makes progress and appends what has happened.
    ///
    /// # Errors
    ///
    /// When the lane itself is broken; a lost peer is an [`Event`].
    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError>;

    /// When to poll even if nothing seems to happen.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Whether everything that was posted is out of this process's hands: nobody need wait for
    /// another [`Lane::poll`] of it. Where hardware or the peer's memory takes requests over when
    /// they are posted, always.
    fn is_drained(&self) -> bool {
        true
    }

    /// Whether the peers have everything that was posted, also what was [done](Event::Done) before
    /// they had it.
    fn is_acknowledged(&self) -> bool {
        true
    }

    /// This side has what it waited for, and may not poll again for long: peers that wait to have
    /// much memory back ([`Event::Done`]) are told at once.
    fn conclude(&mut self, now: Instant) {
        let _ = now;
    }

    /// Sleeps until something may have happened, at most so long. May return early, and does at
    /// once where nothing can wake it.
    fn sleep(&mut self, longest: Duration) {
        let _ = longest;
    }
}

/// One of several ways to a peer, each over a device of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RailState {
    /// This side's device.
    pub device: String,
    /// Whether it carries anything now.
    pub is_up: bool,
    /// How often it has failed.
    pub failures: u64,
    /// Why it failed last.
    pub failure: Option<String>,
    /// Puts that were done over it.
    pub puts: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The bandwidth that was measured lately, or what the device says of itself.
    pub bytes_per_s: u64,
}

/// Bytes of registered memory of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSlice {
    /// Which registration.
    pub key: MrKey,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
}

/// One thing for a lane to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkRequest {
    /// Writes local bytes into the peer's memory. All of them are there before the peer sees the
    /// immediate. Without an immediate the peer sees nothing but the bytes.
    Put {
        /// To whom.
        endpoint: EndpointId,
        /// What; not to be changed until [`Event::Done`].
        local: LocalSlice,
        /// What follows it, from another place; not to be changed either.
        tail: Option<LocalSlice>,
        /// Whether it says what may be sent instead of being that: where a transport can, it waits
        /// behind no put of data. At most [`CTS_BYTES_MAX`] long.
        is_control: bool,
        /// Where to.
        remote: RemoteMr,
        /// First byte there.
        remote_offset: usize,
        /// A name of the peer's choice, at most [`IMMEDIATE_MAX`], and another than that of any put
        /// to the same endpoint that has not arrived yet.
        immediate: Option<u32>,
        /// Comes back with [`Event::Done`].
        id: u64,
    },
}

/// Something that has happened on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The local memory of a request may be used again.
    Done {
        /// The request's.
        id: u64,
    },
    /// A peer's put with an immediate is there in full.
    Arrived {
        /// From whom.
        endpoint: EndpointId,
        /// Its name.
        immediate: u32,
        /// Its length.
        bytes: usize,
    },
    /// A peer has written a note.
    Note {
        /// Who.
        endpoint: EndpointId,
        /// What.
        bytes: Vec<u8>,
    },
    /// The peer is gone; nothing more comes from it and requests to it are void.
    Lost {
        /// Who.
        endpoint: EndpointId,
        /// Why, as a sentence.
        reason: String,
    },
}

/// What can go wrong with a transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The operating system refused.
    #[error("{call} failed: {reason} (error {code}); {advice}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error number.
        code: i32,
        /// Its text.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// Something was not done in time.
    #[error(
        "{what} with {peer} was not done within {after:?}; is that process alive and not stopped?"
    )]
    Deadline {
        /// What.
        what: &'static str,
        /// With whom.
        peer: String,
        /// After how long.
        after: Duration,
    },
    /// The other side is not who it should be.
    #[error("{peer} is refused: {reason}")]
    Refused {
        /// Who.
        peer: String,
        /// Why.
        reason: String,
    },
    /// The peer closed the connection, or died.
    #[error("{peer} is gone: {reason}")]
    Lost {
        /// Who.
        peer: String,
        /// How it was noticed.
        reason: String,
    },
    /// A call that the transport cannot carry out as given.
    #[error("{0}")]
    Usage(String),
    /// Memory for slots, or for what is reduced on the way, is not to be had.
    #[error(
        "{0}; take smaller slots (FERROCCL_SLOT_BYTES, FERROCCL_BUDGET_BYTES), or raise the limit \
         (`ulimit -v`, the memory of the container)"
    )]
    Memory(#[from] OutOfMemory),
}

impl TransportError {
    /// Whether less memory might do: `ENOMEM` of the system.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self, TransportError::Os { code: 12, .. } | TransportError::Memory(_))
    }
}
