//! Traits that every transport implements, without anything of a particular transport.
//!
//! A [`Transport`] finds [`Device`]s; a device registers memory, listens, connects and makes
//! [`Lane`]s; a lane moves bytes into memory that the other side has shared. Callers of these
//! traits choose how to move data by [`Caps`], never by the names of transports or devices. They
//! can rely on [`Caps`], because the conformance suite tests each capability that a device claims.
//!
//! An operation that takes time has a deadline; the caller polls the operation and passes the
//! current time. Only [`Lane::sleep`], [`Lane::detach`] and the drop of a lane block their caller.

mod error;
mod fault;
pub mod handshake;
mod locality;
mod memory_table;
mod registry;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ccl_memory::Region;
use serde::{Deserialize, Serialize};

use crate::queue_pairs::{Flow, Striping};
use crate::time::Instant;

pub use error::TransportError;
pub use fault::{FaultInjector, Faults, FaultyDevice};
pub use locality::{Locality, pci_address};
pub use memory_table::{Imported, MemoryTable, ResolvedPut, Slice, take};
pub use registry::{Registration, Registry};

/// A kind of connection between ranks, for example shared memory.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Returns the name in options and messages: `shm`, `tcp`, `verbs`…
    fn name(&self) -> &'static str;
    /// Returns the devices; an empty list when a library or the hardware is missing.
    fn devices(&self) -> Vec<DeviceInfo>;
    /// Returns the reason why there is no device, and the remedy.
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

/// Name of a device of a transport.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub String);

/// A device before it is opened.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Name for [`Transport::open`].
    pub id: DeviceId,
    /// One-line description, for people.
    pub description: String,
    /// Capabilities of the device.
    pub caps: Caps,
    /// NUMA node of the memory that is nearest to the device, where that is known.
    pub numa_node: Option<u32>,
    /// Canonical path of the PCI function in sysfs, where there is one ([`Locality::pci_path`]).
    pub pci_path: Option<String>,
    /// Position of the device in the network.
    pub fabric: Fabric,
}

/// Position of a device in the network, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// Number that all ports of one card share.
    pub card: Option<u64>,
    /// Number of the rail, which is one of several networks. As a rule, a rail connects the NICs in
    /// the same position on all hosts.
    pub rail: Option<u16>,
    /// Number of the plane, which is one of the parallel networks within a rail.
    pub plane: Option<u16>,
    /// Link layer of the links.
    pub layer: Option<LinkLayer>,
}

/// Link layer of a network: devices of different link layers do not reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// Ethernet.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
}

/// Capabilities of a device: facts, each tested.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// True if [`Lane::map`] gives direct access to the peer's memory.
    pub mapped: bool,
    /// True if puts on one endpoint arrive in the order in which they were posted.
    pub ordered: bool,
    /// True if a put under way can get another source ([`Lane::relocate`]) or another target
    /// ([`Lane::redirect`]), because the CPU of this side copies the bytes late.
    pub redirects: bool,
    /// True if a device writes the bytes of a put to memory some time before the event that reports
    /// the put. A receiver can then take a short message before its event: a checksum in the slot
    /// shows that the message is complete.
    pub written_early: bool,
    /// True if a put is [done](Event::Done) only when the peer has the data, and never if its
    /// connection ends earlier. A put that is not done can then be repeated over another path. If
    /// puts are messages, the data are then in a receive buffer of the peer's lane, whose next poll
    /// takes them in.
    pub acknowledged: bool,
    /// True if a [`Lane::poll`] that finds nothing makes system calls, so that it takes longer than
    /// a reading of the clock.
    pub polls_by_system_call: bool,
    /// Smallest size of a buffer that is registered for one call alone; copying a smaller buffer
    /// costs less than registering it.
    pub register_bytes_min: usize,
    /// The most bytes in one put.
    pub message_bytes_max: usize,
    /// The most puts of data outstanding on one endpoint; credits and CTS do not count.
    pub depth_max: usize,
    /// Rough bandwidth in one direction.
    pub bandwidth_bytes_per_s: f64,
    /// Rough time for a small message, one way.
    pub latency_ns: u64,
}

/// Secret that proves membership: the ranks of a communicator know it, and nobody else does. The
/// secret is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Address where a listener can be reached, in its transport's own bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address(pub Vec<u8>);

/// Key of memory that is registered with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MrKey(pub u64);

/// Key by which a peer reaches memory that is shared with it ([`Lane::share`]), in the transport's
/// own bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteKey(pub Vec<u8>);

/// Number that a lane gives to a peer's memory on import ([`Lane::import`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteMr(pub u64);

/// The greatest immediate: a transport may need the other four bits to count the parts of a put.
pub const IMMEDIATE_MAX: u32 = (1 << 28) - 1;

/// Largest number of bytes of a CTS.
pub const CTS_BYTES_MAX: usize = 200;

/// Largest number of bytes of the hello that a connection is made with.
pub const HELLO_BYTES_MAX: usize = 96;

/// Largest number of bytes of a note.
pub const NOTE_BYTES_MAX: usize = 4096;

/// Checks the length of a note, for implementations of [`Lane::note`].
///
/// # Errors
///
/// When the note is longer than [`NOTE_BYTES_MAX`].
pub fn check_note(bytes: &[u8]) -> Result<(), TransportError> {
    if bytes.len() <= NOTE_BYTES_MAX {
        return Ok(());
    }
    Err(TransportError::TooLong { what: "note", bytes: bytes.len(), most: NOTE_BYTES_MAX })
}

/// A connection of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointId(pub u32);

impl EndpointId {
    /// Returns the id of a lane's next endpoint, for lanes that number their endpoints from 0 and
    /// never use a number again. `count` is the number of endpoints that the lane has had, and
    /// `most` the number that it can have.
    ///
    /// # Errors
    ///
    /// When the lane has had `most` endpoints.
    pub fn next(count: usize, most: usize) -> Result<EndpointId, TransportError> {
        let id = u32::try_from(count).ok().filter(|_| count < most).map(EndpointId);
        let count = count.saturating_add(1);
        id.ok_or(TransportError::Count { what: "endpoints of one lane", count, most })
    }
}

/// One opened device, which any thread may use.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the capabilities of the device.
    fn caps(&self) -> &Caps;

    /// Allocates zeroed memory that can be shared ([`Lane::share`]) and, on mapped transports,
    /// mapped by peers. The memory is registered already.
    ///
    /// # Errors
    ///
    /// When there is not enough memory of the kind that the device needs.
    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError>;

    /// Registers memory with the device so that puts may name it. Any thread may do so, at any
    /// time.
    ///
    /// # Errors
    ///
    /// When the device cannot reach that memory, or a limit is met.
    fn register(&self, region: &Region) -> Result<MrKey, TransportError>;

    /// Deregisters memory. When this returns, the device no longer writes to that memory.
    ///
    /// # Errors
    ///
    /// When the key is not registered.
    fn deregister(&self, key: MrKey) -> Result<(), TransportError>;

    /// Listens for peers that prove the secret.
    ///
    /// # Errors
    ///
    /// When the device cannot listen.
    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError>;

    /// Starts to connect to a listener; `hello` (at most [`HELLO_BYTES_MAX`] bytes) identifies this
    /// side to the listener.
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

    /// Makes a lane with a completion queue of its own.
    ///
    /// # Errors
    ///
    /// When a limit of the device is met.
    fn lane(&self) -> Result<Box<dyn Lane>, TransportError>;
}

/// Listener for peers. Strangers are dropped and counted, and cost no more than a bounded time.
pub trait Listener: Send + fmt::Debug {
    /// Returns the address that peers connect to.
    fn address(&self) -> Address;

    /// Returns a peer that has proved the secret, if there is one.
    ///
    /// # Errors
    ///
    /// When listening itself has failed; a stranger is no error.
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError>;

    /// Returns the number of connections dropped so far because they proved nothing.
    fn rejected(&self) -> u64;
}

/// A connection in the making.
pub trait Connecting: Send + fmt::Debug {
    /// Returns the connection, once both sides have proved the secret.
    ///
    /// # Errors
    ///
    /// When the peer cannot be reached, proves nothing, or the deadline has passed.
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError>;
}

/// A connection to a peer that proved the secret, not yet used by a lane.
#[derive(Debug)]
pub struct Connected {
    /// Hello of the connecting side; empty on that side.
    pub hello: Vec<u8>,
    /// The transport's own part, for [`Lane::attach`] of the same device.
    pub inner: Box<dyn Inner>,
}

impl Connected {
    /// Returns the transport's own part, for a lane whose device has made it.
    ///
    /// # Errors
    ///
    /// [`TransportError::OtherDevice`], when the part is not a `T`, or `is_own` returns false.
    pub fn into_own<T: Inner>(
        self,
        is_own: impl FnOnce(&T) -> bool,
    ) -> Result<Box<T>, TransportError> {
        let inner = self.inner.into_any().downcast::<T>().ok();
        inner.filter(|inner| is_own(inner)).ok_or(TransportError::OtherDevice)
    }
}

/// A transport's own part of a [`Connected`].
pub trait Inner: Any + Send + fmt::Debug {
    /// Converts the part, so that the transport gets its own type back.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// Lane that moves bytes. One thread uses a lane at a time; there are no callbacks.
pub trait Lane: Send + fmt::Debug {
    /// Takes a connection over.
    ///
    /// # Errors
    ///
    /// When the connection is of another device, or a limit is met.
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError>;

    /// Closes an endpoint. When this returns, the peer can write nothing through the endpoint any
    /// more.
    fn detach(&mut self, endpoint: EndpointId);

    /// Flushes the requests posted to an endpoint, or to all if `endpoint` is none. Returns true
    /// once the peers have the data, or once a time limit since the first call has passed.
    /// [`Lane::detach`] and the drop of the lane wait until this returns true. To end several
    /// lanes, first call this for all of them in turn: their waits then overlap.
    fn poll_shutdown(&mut self, endpoint: Option<EndpointId>) -> bool {
        let _ = endpoint;
        true
    }

    /// Closes an endpoint at once, without waiting. Afterwards, requests that have not arrived get
    /// no [`Event::Done`].
    fn abort(&mut self, endpoint: EndpointId) {
        self.detach(endpoint);
    }

    /// Lets the endpoint's peer reach memory of this side. After this returns, the caller passes
    /// the returned key to the peer by any means. Where memory can be mapped, the peer can import
    /// or map it even if this side deregisters it meanwhile.
    ///
    /// # Errors
    ///
    /// When the memory is not registered or cannot be shared.
    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError>;

    /// Imports the peer's memory, for puts.
    ///
    /// # Errors
    ///
    /// When the key is not of that peer.
    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError>;

    /// Forgets imported memory; the caller must not name that memory in later puts. The lane may
    /// free what it stores about the memory.
    fn forget(&mut self, at: EndpointId, mr: RemoteMr) {
        let _ = (at, mr);
    }

    /// Maps the peer's memory, to load from and store to; only with [`Caps::mapped`]. The mapping
    /// lives as long as the region and its clones, even after the endpoint is gone. A key that was
    /// not imported can be mapped only once, so keep the region; an imported key can be mapped any
    /// number of times.
    ///
    /// # Errors
    ///
    /// When the key is not of that peer, when it was mapped before and is not imported, or when the
    /// transport cannot map.
    fn map(&mut self, at: EndpointId, key: &RemoteKey) -> Result<Region, TransportError>;

    /// Posts work in order, and returns how many requests were taken. Fewer than given is
    /// back-pressure, not an error: poll, then post the rest.
    ///
    /// # Errors
    ///
    /// When the first request names memory, an endpoint or a range that does not exist. After an
    /// error, no request was taken.
    fn post(&mut self, now: Instant, work: &[WorkRequest]) -> Result<usize, TransportError>;

    /// Writes a note of at most [`NOTE_BYTES_MAX`] bytes to the endpoint's peer, which gets it as
    /// an [`Event::Note`]. A note has information that the peer needs before it can put anything.
    /// Notes arrive once and in order, but in any order relative to puts. Notes are for setting up,
    /// not for the data path.
    ///
    /// # Errors
    ///
    /// When there is no such endpoint, or the note is too long.
    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError>;

    /// Makes a put read its [`WorkRequest::Put::tail`] from a new location, the argument `tail`.
    /// The new location holds the same bytes. After this returns, nothing reads the old location
    /// any more. Does nothing if the put is done or was never taken.
    ///
    /// # Errors
    ///
    /// When the bytes lie in no registered memory or differ in length from the tail, or the
    /// transport cannot do this ([`Caps::redirects`]).
    fn relocate(
        &mut self,
        endpoint: EndpointId,
        id: u64,
        tail: LocalSlice,
    ) -> Result<(), TransportError> {
        let _ = (endpoint, id, tail);
        Err(TransportError::Unsupported {
            what: "relocate the bytes of a put",
            reason: "its device may read the memory at any time; check `Caps::redirects` first",
        })
    }

    /// Makes the peer's next put to `from` arrive in `into` instead. `from` is memory shared with
    /// that peer, and `into` has the same length. The redirection covers the bytes of one put from
    /// the beginning of `from` on; the put must not reach beyond the end of `from`. Bytes that the
    /// put writes at offsets below the beginning of `from` are not redirected. `None` cancels the
    /// redirection: nothing is written to `into` any more, and the bytes of an unfinished put are
    /// where they would be without the redirection. Returns false, and changes nothing, if too much
    /// of the put has arrived, or if the put reaches beyond `from`. Take all [`Event`]s before
    /// calling this: the lane forgets a put that has arrived whole, and would redirect the put
    /// after it.
    ///
    /// # Errors
    ///
    /// When `from` or `into` lies in no registered memory, `from` is not shared with that peer, or
    /// the transport cannot do this ([`Caps::redirects`]).
    fn redirect(
        &mut self,
        endpoint: EndpointId,
        from: LocalSlice,
        into: Option<LocalSlice>,
    ) -> Result<bool, TransportError> {
        let _ = (endpoint, from, into);
        Err(TransportError::Unsupported {
            what: "redirect a put of the peer",
            reason: "its device writes where the peer says; check `Caps::redirects` first",
        })
    }

    /// Permits the lane to leave puts to `memory` in its receive buffers, if they have immediates.
    /// The memory must be shared with its peers before this call. A later call with the same key
    /// replaces the permission. Returns whether the lane leaves any puts in receive buffers; if so,
    /// call [`Lane::receive_buffer`] for each [`Event::Arrived`].
    fn use_receive_buffers(&mut self, memory: LocalSlice) -> bool {
        let _ = memory;
        false
    }

    /// Returns the bytes of the put that has arrived with this immediate, if they are in a receive
    /// buffer; none if they are in the memory that the put names. The bytes stay unchanged until
    /// the region and its clones are gone. The lane has few such buffers, and copies the bytes of
    /// other puts. If several puts have the same immediate, this returns the oldest one first.
    fn receive_buffer(&mut self, endpoint: EndpointId, immediate: u32) -> Option<Region> {
        let _ = (endpoint, immediate);
        None
    }

    /// Returns the flows that puts to the endpoint's peer are spread over now, as an Ethernet
    /// fabric sees them; none if the endpoint is not connected yet, or if the puts do not travel in
    /// such flows.
    fn flows(&self, endpoint: EndpointId) -> Vec<Flow> {
        let _ = endpoint;
        Vec::new()
    }

    /// Returns the rails that lead to the endpoint's peer, if it is reached over several devices.
    fn rails(&self, endpoint: EndpointId) -> Vec<RailState> {
        let _ = endpoint;
        Vec::new()
    }

    /// Sets the traffic class (DSCP and ECN) towards peers that are attached from now on, unless a
    /// [`Striping`] says otherwise. Does nothing where packets have no traffic class.
    fn set_traffic_class(&mut self, traffic_class: u8) {
        let _ = traffic_class;
    }

    /// Sets how puts are spread over the endpoint's queue pairs from now on, limited to the queue
    /// pairs that exist. Does nothing where there are no queue pairs.
    fn set_striping(&mut self, endpoint: EndpointId, striping: &Striping) {
        let _ = (endpoint, striping);
    }

    /// Makes progress. Pushes onto `events` what has happened since the previous poll.
    ///
    /// # Errors
    ///
    /// When the lane itself is broken; a lost peer is an [`Event`].
    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError>;

    /// Returns whether [`Lane::poll`] has events or work; none if only a poll can tell. Threads
    /// that wait call this: it is cheaper than a poll, and reads no clock. Poll the lane now and
    /// then, regardless of the result.
    fn peek(&mut self) -> Option<bool> {
        None
    }

    /// Returns the time when the lane must be polled even if nothing seems to happen.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Returns whether all posted requests have left this process, so that none needs another
    /// [`Lane::poll`]. A request that was possibly lost in a break of the connection counts as
    /// having left only once the break has lasted longer than a peer is allowed to be unreachable.
    /// Always true where hardware or the peer's memory takes requests over when they are posted.
    fn is_drained(&self) -> bool {
        true
    }

    /// Returns whether all posted puts have reached the peers, including puts that were
    /// [done](Event::Done) before they arrived.
    fn is_acknowledged(&self) -> bool {
        true
    }

    /// Tells the lane that this side has all that it waited for: the next poll may be much later.
    /// The lane acknowledges long puts at once, so that the peers get their [`Event::Done`].
    fn flush_acknowledgements(&mut self, now: Instant) {
        let _ = now;
    }

    /// Sleeps until something may have happened, at most for `longest`. May return early. A lane
    /// that nothing can wake returns at once, or after a short sleep.
    fn sleep(&mut self, longest: Duration) {
        let _ = longest;
    }
}

/// One of several rails to a peer, each over a device of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RailState {
    /// Device of this side.
    pub device: String,
    /// True if the rail carries anything now.
    pub is_up: bool,
    /// Number of times that the rail has failed.
    pub failures: u64,
    /// Reason of the last failure.
    pub failure: Option<String>,
    /// Number of puts that were done over the rail.
    pub puts: u64,
    /// Bytes of the puts that were done over the rail.
    pub bytes: u64,
    /// Bandwidth that was measured lately, or that the device claims.
    pub bytes_per_s: u64,
}

/// Bytes of registered memory of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalSlice {
    /// Key of the registration.
    pub key: MrKey,
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// Request to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkRequest {
    /// Put of local bytes into the peer's memory. All bytes are there, or in a receive buffer
    /// ([`Lane::receive_buffer`]), before the peer sees the immediate. Without an immediate, the
    /// peer sees nothing but the bytes.
    Put {
        /// Endpoint of the peer.
        endpoint: EndpointId,
        /// Bytes to put, which must not change until [`Event::Done`].
        local: LocalSlice,
        /// Bytes that follow, from another location; these must not change either.
        tail: Option<LocalSlice>,
        /// True for a credit or a CTS, which has at most [`CTS_BYTES_MAX`] bytes. If the transport
        /// is able to, such a put does not wait behind queued data.
        is_control: bool,
        /// Memory of the peer.
        remote: RemoteMr,
        /// Offset of the first byte in that memory.
        remote_offset: usize,
        /// Immediate that the peer expects, at most [`IMMEDIATE_MAX`]; unique among the puts to the
        /// endpoint that have not arrived.
        immediate: Option<u32>,
        /// Id that comes back with [`Event::Done`].
        id: u64,
    },
}

/// Event on a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The local memory of a request may be used again.
    Done {
        /// Id of the request.
        id: u64,
    },
    /// A peer's put with an immediate has arrived in full.
    Arrived {
        /// Endpoint of that peer.
        endpoint: EndpointId,
        /// Immediate of the put.
        immediate: u32,
        /// Length of the put, in bytes.
        bytes: usize,
    },
    /// A peer has written a note.
    Note {
        /// Endpoint of that peer.
        endpoint: EndpointId,
        /// Bytes of the note.
        bytes: Vec<u8>,
    },
    /// The peer is gone; nothing more comes from it and requests to it are void.
    Lost {
        /// Endpoint of that peer.
        endpoint: EndpointId,
        /// Reason, as a sentence.
        reason: String,
    },
}

impl Event {
    /// Returns the endpoint of the peer that the event comes from; none for [`Event::Done`].
    #[must_use]
    pub fn endpoint(&self) -> Option<EndpointId> {
        match self {
            Event::Done { .. } => None,
            Event::Arrived { endpoint, .. }
            | Event::Note { endpoint, .. }
            | Event::Lost { endpoint, .. } => Some(*endpoint),
        }
    }
}
