//! State of the plugin: all objects of the caller, and the helper thread, which makes progress.

use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ccl_socket::interface::{Filter, addresses};
use nccl_net_abi::{
    DEVICE_HOST, DEVICE_UNPACK, DEVICE_UNPACK_VERSION, DMA_BUF, HOST, NcclResult, Profiler,
    TRANSFER_BYTES_MAX,
};

use crate::config::Config;
use crate::fault::Fault;
use crate::handle::Handle;
use crate::listener::{Attempt, Listener, admit, reset, wait_for_admission};
use crate::memory::{Registration, Span};
use crate::outcome::Outcome;
use crate::receiver::{Receiver, Sizes};
use crate::registry::Registry;
use crate::sender::Sender;
use crate::slots::Ticket;

/// Time for which each registration and deregistration makes the transfers of other threads fail,
/// under [`Fault::RegistrationRace`].
const REBUILDING: Duration = Duration::from_millis(1);

/// Interval at which the helper thread looks for work.
const TICK: Duration = Duration::from_millis(1);
/// Interval, in ticks, at which the helper thread looks for dead peers.
const PEERS_TICKS: u64 = 100;
/// Longest time that a closed communicator takes to finish.
const LINGER: Duration = Duration::from_secs(10);
/// Longest time that a closed communicator takes to finish after the plugin is finalized.
const LAST_LINGER: Duration = Duration::from_secs(2);

/// Side of a connection.
#[derive(Debug)]
pub(crate) enum Side {
    Send(Sender),
    Receive(Box<Receiver>),
}

impl Side {
    fn progress(&mut self) -> bool {
        match self {
            Side::Send(sender) => sender.progress(),
            Side::Receive(receiver) => receiver.progress(),
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Side::Send(sender) => sender.socket(),
            Side::Receive(receiver) => receiver.socket(),
        }
    }

    fn is_busy(&self) -> bool {
        match self {
            Side::Send(sender) => sender.is_busy(),
            Side::Receive(receiver) => receiver.is_busy(),
        }
    }
}

/// Communicator that carries messages.
#[derive(Debug)]
struct Link {
    /// Side of this process; `None` once the communicator is closed.
    side: Mutex<Option<Side>>,
    /// Number of calls so far, plus 1, so that the first `is_alone` returns false.
    calls: AtomicU64,
    /// Value of `calls` at the helper thread's latest `is_alone`; 0 before its first one.
    seen: AtomicU64,
}

impl Link {
    fn new(side: Side) -> Link {
        let (calls, seen) = (AtomicU64::new(1), AtomicU64::new(0));
        Link { side: Mutex::new(Some(side)), calls, seen }
    }

    /// Returns whether no call has used the communicator since the previous `is_alone`.
    fn is_alone(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        self.seen.swap(calls, Ordering::Relaxed) == calls
    }

    fn call<T>(&self, work: impl FnOnce(&mut Side) -> Outcome<T>) -> Outcome<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        work(lock(&self.side).as_mut().ok_or(NcclResult::INVALID_ARGUMENT)?)
    }
}

/// Number of parts of a completed request, and the bytes sent or received by each part.
pub(crate) type Done = (usize, Sizes);

/// Closed communicator that still has something to finish.
#[derive(Debug)]
struct Lingering {
    side: Side,
    until: Instant,
}

impl Lingering {
    /// Makes progress; returns whether more is needed.
    fn advance(&mut self) -> bool {
        let unfinished = match &mut self.side {
            Side::Send(sender) => {
                sender.progress();
                sender.is_busy()
            }
            Side::Receive(receiver) => receiver.drain(),
        };
        unfinished && Instant::now() < self.until
    }
}

/// Helper thread, and the number of contexts that need it.
#[derive(Debug, Default)]
struct Helper {
    wanted: usize,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// State of the plugin in a process.
#[derive(Debug)]
pub(crate) struct Plugin {
    config: Config,
    address: OnceLock<Option<IpAddr>>,
    contexts: Registry<()>,
    listeners: Registry<Mutex<Listener>>,
    attempts: Registry<Mutex<Attempt>>,
    links: Registry<Link>,
    registrations: Registry<Registration>,
    is_rebuilding: AtomicBool,
    /// Profiler callback of the latest `init`.
    profiler: Mutex<Profiler>,
    /// True once the virtual device, which consists of both physical devices, has been made.
    has_made: AtomicBool,
    lingering: Mutex<Vec<Lingering>>,
    helper: Mutex<Helper>,
}

/// Number of physical devices. Both use the same IP address.
const DEVICES: i32 = 2;

impl Plugin {
    /// Returns the number of devices, including the virtual one.
    pub(crate) fn devices(&self) -> i32 {
        match self.has(Fault::NoDevices) {
            true => 0,
            false => DEVICES + i32::from(self.has_made.load(Ordering::Acquire)),
        }
    }

    /// Returns the kinds of memory that can be registered.
    pub(crate) fn memory_kinds(&self) -> i32 {
        match self.config.fault {
            Some(Fault::AnyDescriptor | Fault::ClosesDescriptor) => HOST | DMA_BUF,
            _ => HOST,
        }
    }

    /// Returns the type and version that the plugin claims for network code on the accelerator.
    pub(crate) fn device_side(&self) -> (i32, i32) {
        match self.has(Fault::ClaimsDevice) {
            true => (DEVICE_UNPACK, DEVICE_UNPACK_VERSION),
            false => (DEVICE_HOST, 0),
        }
    }

    /// Makes a virtual device; its parts can only be the two physical devices.
    pub(crate) fn make_device(&self, parts: &[i32]) -> Outcome<i32> {
        match parts {
            [0, 1] => self.has_made.store(true, Ordering::Release),
            _ => return Err(NcclResult::INVALID_USAGE),
        }
        Ok(DEVICES)
    }

    /// Returns the physical devices that a device consists of.
    pub(crate) fn parts(&self, device: &i32) -> &'static [i32] {
        match device {
            0 => &[0],
            1 => &[1],
            _ if self.has(Fault::ForgetsParts) => &[2],
            _ => &[0, 1],
        }
    }

    pub(crate) fn new(config: Config) -> Plugin {
        Plugin {
            config,
            address: OnceLock::new(),
            contexts: Registry::new(),
            listeners: Registry::new(),
            attempts: Registry::new(),
            links: Registry::new(),
            registrations: Registry::new(),
            is_rebuilding: AtomicBool::new(false),
            profiler: Mutex::new(None),
            has_made: AtomicBool::new(false),
            lingering: Mutex::new(Vec::new()),
            helper: Mutex::new(Helper::default()),
        }
    }

    /// Returns the plugin of this process, which the exported functions use.
    pub(crate) fn of_process() -> &'static Plugin {
        static PLUGIN: OnceLock<Plugin> = OnceLock::new();
        PLUGIN.get_or_init(|| Plugin::new(Config::read()))
    }

    /// Returns whether that fault is planted.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.config.fault == Some(fault)
    }

    /// Creates a context.
    pub(crate) fn init(&'static self) -> Outcome<u64> {
        if self.has(Fault::Unknown) {
            return Err(NcclResult::INVALID_USAGE);
        }
        self.address()?;
        let mut helper = lock(&self.helper);
        if helper.thread.is_none() {
            let stop = Arc::new(AtomicBool::new(false));
            helper.stop = Arc::clone(&stop);
            let named = std::thread::Builder::new().name("reference-net".to_owned());
            let spawned = named.spawn(move || self.run(&stop));
            helper.thread = Some(spawned.or(Err(NcclResult::SYSTEM_ERROR))?);
        }
        helper.wanted += 1;
        Ok(self.contexts.insert(()))
    }

    /// Stores the profiler callback.
    pub(crate) fn set_profiler(&self, profiler: Profiler) {
        *lock(&self.profiler) = profiler;
    }

    /// Returns the profiler callback, if there is one.
    pub(crate) fn profiler(&self) -> Profiler {
        *lock(&self.profiler)
    }

    /// Ends a context; the end of the last context also ends the helper thread.
    pub(crate) fn finalize(&self, context: u64) -> Outcome<()> {
        self.contexts.remove(context).ok_or(NcclResult::INVALID_ARGUMENT)?;
        let mut helper = lock(&self.helper);
        helper.wanted -= 1;
        if helper.wanted == 0
            && let Some(thread) = helper.thread.take()
        {
            if self.has(Fault::LeakThreads) {
                return Ok(());
            }
            helper.stop.store(true, Ordering::Relaxed);
            thread.thread().unpark();
            return thread.join().or(Err(NcclResult::INTERNAL_ERROR));
        }
        Ok(())
    }

    /// Checks that the context exists.
    pub(crate) fn check_context(&self, context: u64) -> Outcome<()> {
        self.contexts.find(context).map(|_| ()).ok_or(NcclResult::INVALID_ARGUMENT)
    }

    fn address(&self) -> Outcome<IpAddr> {
        let find = || {
            let names = &self.config.interfaces;
            addresses(&Filter::parse(names), names).ok()?.first().copied()
        };
        self.address.get_or_init(find).ok_or(NcclResult::SYSTEM_ERROR)
    }

    /// Creates a listening communicator; also returns its handle.
    pub(crate) fn listen(&self) -> Outcome<(u64, Handle)> {
        let (listener, handle) = Listener::open(self.address()?, self.config.fault)?;
        Ok((self.listeners.insert(Mutex::new(listener)), handle))
    }

    /// Returns a sending communicator once it is connected; until then the caller calls again with
    /// the same handle.
    pub(crate) fn connect(&self, handle: &mut Handle) -> Outcome<Option<u64>> {
        let (address, token) = handle.target().ok_or(NcclResult::INVALID_ARGUMENT)?;
        if self.has(Fault::NeverConnects) {
            return Ok(None);
        }
        let begun = self.attempts.find(handle.attempt());
        // The attempt number in the handle may come from another process, which used the handle
        // before.
        let attempt = match begun.filter(|attempt| lock(attempt).is_for(&token)) {
            Some(attempt) => attempt,
            None => {
                let id = self.attempts.insert(Mutex::new(Attempt::begin(address, &token)?));
                handle.set_attempt(id);
                self.attempts.find(id).ok_or(NcclResult::INTERNAL_ERROR)?
            }
        };
        let socket = lock(&attempt).advance();
        if !matches!(socket, Ok(None)) {
            self.attempts.remove(handle.attempt());
            handle.set_attempt(0);
        }
        let Some(socket) = socket? else { return Ok(None) };
        if self.has(Fault::BlockingConnect) {
            wait_for_admission(&socket).or(Err(NcclResult::SYSTEM_ERROR))?;
        }
        let side = Side::Send(Sender::new(socket, self.config.fault));
        Ok(Some(self.links.insert(Link::new(side))))
    }

    /// Returns a receiving communicator once a peer with the handle has connected.
    pub(crate) fn accept(&self, listener: u64) -> Outcome<Option<u64>> {
        let listener = self.listeners.find(listener).ok_or(NcclResult::INVALID_ARGUMENT)?;
        if self.has(Fault::NeverConnects) {
            return Ok(None);
        }
        let mut listener = lock(&listener);
        let socket = match self.has(Fault::BlockingAccept) {
            true => listener.accept_blocking()?,
            false => listener.accept()?,
        };
        let Some(socket) = socket else { return Ok(None) };
        if self.has(Fault::BlockingConnect) {
            admit(&socket).or(Err(NcclResult::REMOTE_ERROR))?;
        }
        let side = Side::Receive(Box::new(Receiver::new(socket, self.config.fault)));
        Ok(Some(self.links.insert(Link::new(side))))
    }

    /// Registers host memory.
    pub(crate) fn register(
        &self,
        comm: u64,
        start: usize,
        bytes: usize,
        kind: i32,
    ) -> Outcome<u64> {
        self.links.find(comm).ok_or(NcclResult::INVALID_ARGUMENT)?;
        if kind != HOST || (start == 0 && bytes > 0) {
            return Err(NcclResult::INVALID_ARGUMENT);
        }
        self.rebuild();
        Ok(self.registrations.insert(Registration::new(start, bytes)))
    }

    /// Makes transfers of other threads fail for a while, if [`Fault::RegistrationRace`] is
    /// planted.
    fn rebuild(&self) {
        if self.has(Fault::RegistrationRace) {
            self.is_rebuilding.store(true, Ordering::Relaxed);
            std::thread::sleep(REBUILDING);
            self.is_rebuilding.store(false, Ordering::Relaxed);
        }
    }

    /// Ends a registration. The plugin does not touch the registered memory any more, even for
    /// requests in flight.
    pub(crate) fn deregister(&self, comm: u64, registration: u64) -> Outcome<()> {
        self.links.find(comm).ok_or(NcclResult::INVALID_ARGUMENT)?;
        let gone = self.registrations.remove(registration).ok_or(NcclResult::INVALID_ARGUMENT)?;
        self.rebuild();
        // Requests hold a reference to the registration of their memory.
        if Arc::strong_count(&gone) > 1 {
            for link in self.links.select(|_| true) {
                match lock(&link.side).as_mut() {
                    Some(Side::Send(sender)) => sender.release(Some(&gone)),
                    Some(Side::Receive(receiver)) => receiver.release(&gone),
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Returns a buffer of a request.
    ///
    /// # Safety
    ///
    /// The bytes are valid, and nobody else uses them, until the request is done or its
    /// registration or communicator is gone.
    pub(crate) unsafe fn span(
        &self,
        start: *mut u8,
        bytes: usize,
        registration: u64,
    ) -> Outcome<Span> {
        if self.is_rebuilding.load(Ordering::Relaxed) {
            return Err(NcclResult::INTERNAL_ERROR);
        }
        let within = match bytes {
            0 => None,
            1..=TRANSFER_BYTES_MAX => {
                let found = self.registrations.find(registration);
                let within = found.filter(|found| found.covers(start.addr(), bytes));
                Some(within.ok_or(NcclResult::INVALID_ARGUMENT)?)
            }
            _ => return Err(NcclResult::INVALID_ARGUMENT),
        };
        // SAFETY: the caller keeps the contract. The plugin does not use a span any more once its
        // request is done or its registration or communicator is gone.
        Ok(unsafe { Span::new(start, bytes, within) })
    }

    /// Posts a send; returns `None` if there is no room for it now.
    pub(crate) fn send(&self, comm: u64, span: Span, tag: i32) -> Outcome<Option<u64>> {
        let ticket = self.link(comm)?.call(|side| match side {
            Side::Send(sender) => sender.post(span, tag),
            Side::Receive(_) => Err(NcclResult::INVALID_ARGUMENT),
        })?;
        Ok(ticket.map(|ticket| request(comm, ticket)))
    }

    /// Posts a receive into buffers, each with its tag; returns `None` if there is no room for it
    /// now.
    pub(crate) fn receive(&self, comm: u64, pieces: Vec<(Span, i32)>) -> Outcome<Option<u64>> {
        let ticket = self.link(comm)?.call(|side| match side {
            Side::Receive(receiver) => receiver.post(pieces),
            Side::Send(_) => Err(NcclResult::INVALID_ARGUMENT),
        })?;
        Ok(ticket.map(|ticket| request(comm, ticket)))
    }

    /// Checks that the receiving communicator exists. Sockets need no flush, so there is no
    /// request.
    pub(crate) fn flush(&self, comm: u64) -> Outcome<Option<u64>> {
        let ticket = self.link(comm)?.call(|side| match side {
            Side::Receive(receiver) if self.has(Fault::FlushHangs) => Ok(receiver.never_done()),
            Side::Receive(_) => Ok(None),
            Side::Send(_) => Err(NcclResult::INVALID_ARGUMENT),
        })?;
        Ok(ticket.map(|ticket| request(comm, ticket)))
    }

    /// Returns the result of a request and forgets the request; `None` if it is not done.
    pub(crate) fn test(&self, request: u64) -> Outcome<Option<Done>> {
        let ticket = Ticket::of(request as u32);
        self.link(request >> 32)?.call(|side| match side {
            Side::Send(sender) => {
                let sent = sender.test(ticket)?;
                Ok(sent.map(|bytes| (1, std::array::from_fn(|_| bytes))))
            }
            Side::Receive(receiver) => receiver.test(ticket),
        })
    }

    /// Accepts the report that a receive was consumed; the plugin keeps no state for it.
    pub(crate) fn consumed(&self, comm: u64, request: u64) -> Outcome<()> {
        self.link(comm)?.call(|side| match side {
            Side::Receive(receiver) => {
                if self.has(Fault::ConsumedFrees) {
                    receiver.forget(Ticket::of(request as u32));
                }
                Ok(())
            }
            Side::Send(_) => Err(NcclResult::INVALID_ARGUMENT),
        })
    }

    fn link(&self, comm: u64) -> Outcome<Arc<Link>> {
        self.links.find(comm).ok_or(NcclResult::INVALID_ARGUMENT)
    }

    /// Closes a listening communicator.
    pub(crate) fn close_listen(&self, listener: u64) -> Outcome<()> {
        let listener = self.listeners.remove(listener).ok_or(NcclResult::INVALID_ARGUMENT)?;
        if self.has(Fault::LeakDescriptors) {
            lock(&listener).leak();
        }
        Ok(())
    }

    /// Closes a sending communicator. Posted messages are still sent.
    pub(crate) fn close_send(&self, comm: u64) -> Outcome<()> {
        self.close(comm, |side| matches!(side, Side::Send(_)))
    }

    /// Closes a receiving communicator.
    pub(crate) fn close_receive(&self, comm: u64) -> Outcome<()> {
        self.close(comm, |side| matches!(side, Side::Receive(_)))
    }

    fn close(&self, comm: u64, is_meant: impl Fn(&Side) -> bool) -> Outcome<()> {
        let link = self.link(comm)?;
        let side = lock(&link.side).take_if(|side| is_meant(side));
        let mut side = side.ok_or(NcclResult::INVALID_ARGUMENT)?;
        self.links.remove(comm);
        if self.has(Fault::ResetOnClose) {
            reset(side.socket());
            return Ok(());
        }
        if let Side::Send(sender) = &mut side {
            sender.look_for_peer();
            sender.progress();
            sender.release(None);
        }
        let mut lingering = Lingering { side, until: Instant::now() + LINGER };
        if lingering.advance() {
            lock(&self.lingering).push(lingering);
        }
        Ok(())
    }

    /// Runs the loop of the helper thread until `stop` is set.
    fn run(&self, stop: &AtomicBool) {
        let mut ticks = 0;
        while !stop.load(Ordering::Relaxed) {
            ticks += 1;
            let moved = self.drive(ticks % PEERS_TICKS == 0);
            lock(&self.lingering).retain_mut(Lingering::advance);
            if !moved {
                std::thread::park_timeout(TICK);
            }
        }
        let deadline = Instant::now() + LAST_LINGER;
        let mut last = std::mem::take(&mut *lock(&self.lingering));
        last.retain(|lingering| matches!(lingering.side, Side::Send(_)));
        while !last.is_empty() && Instant::now() < deadline {
            std::thread::park_timeout(TICK);
            last.retain_mut(Lingering::advance);
        }
    }

    /// Makes progress for communicators without recent calls; returns whether any data moved.
    fn drive(&self, looks_for_peers: bool) -> bool {
        let mut moved = false;
        if self.has(Fault::ProgressOnlyInTest) {
            return moved;
        }
        for link in self.links.select(Link::is_alone) {
            // A caller that holds the lock makes progress itself.
            let Ok(mut side) = link.side.try_lock() else { continue };
            let Some(side) = side.as_mut() else { continue };
            if side.is_busy() {
                moved |= side.progress();
            }
            if let Side::Send(sender) = side
                && looks_for_peers
            {
                sender.look_for_peer();
            }
        }
        moved
    }
}

/// Returns the number of a request: its communicator's number, which fits 32 bits, and its ticket.
fn request(comm: u64, ticket: Ticket) -> u64 {
    comm << 32 | u64::from(ticket.number())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
