//! The plugin behind its C interface: objects are numbers, and calls return `Result`s.

use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ccl_clock::now;
use ccl_core::config::Config;
use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device};
use ccl_memory::Region;
use ccl_socket::{fork, socket};
use nccl_net_abi::{Attributes, HANDLE_BYTES, HOST, LogLevel, Logger, NcclResult, SUBSYSTEM_INIT};

use crate::comm::buffer::Buffer;
use crate::comm::receiver::{Receiver, Sizes};
use crate::comm::sender::Sender;
use crate::comm::wire::{GROUP_MAX, SLOTS_MAX};
use crate::comm::{Communicator, Settings, TRANSFER_BYTES_MAX};
use crate::context::{Context, Known};
use crate::device::{self, Devices, shorten};
use crate::error::NetError;
use crate::handle::Handle;
use crate::helpers::Helpers;
use crate::memory::Mr;
use crate::progress::{IDLE_EVERY, PUMP_AFTER, Progress};
use crate::rendezvous::{Attempt, ConnectOptions, Listening};
use crate::table::{Helped, Id, Kind, RequestId, Table};
use crate::{config, log};

/// Longest time that `closeSend` and `deregMr` wait while memory is still being sent. They wait
/// only when NCCL aborts. The time is short, because NCCL's thread that waits here serves other
/// communicators too.
const RELEASE_WITHIN: Duration = Duration::from_millis(10);

/// State of the plugin in this process.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) devices: Devices,
    connect_options: ConnectOptions,
    /// [`fork::generation`] of the process that initialised the plugin; a forked child has another.
    generation: u32,
    /// Number of communicators of NCCL that have been initialised and not finalised.
    users: AtomicU32,
    contexts: Table<Arc<Context>>,
    pub(crate) progress: Progress,
    helpers: Helpers,
    pub(crate) listeners: Table<Listening>,
    pub(crate) attempts: Table<Attempt>,
    pub(crate) senders: Table<Sender>,
    pub(crate) receivers: Table<Receiver>,
    memory: Table<Arc<Mr>>,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();
/// Lock that serialises initialising and finalising.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Bytes that a slot may hold.
const SLOT_BYTES: RangeInclusive<usize> = 64..=16 << 20;

/// Number and sizes of the messages of a request that is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tested {
    pub(crate) count: usize,
    pub(crate) sizes: Sizes,
}

/// A registration, and the number by which C knows it.
type Found = (Id, Arc<Mr>);

/// Returns the plugin, once it has been initialised; an error in the child of a fork.
pub(crate) fn plugin() -> Result<&'static Plugin, NetError> {
    let uninitialised =
        || NetError::new(NcclResult::INVALID_USAGE, "init() has not been called, or has failed");
    let plugin = PLUGIN.get().ok_or_else(uninitialised)?;
    if plugin.generation != fork::generation() {
        let text = "this process was forked from one that uses the network: connections and \
                    threads are its parent's; start processes anew instead (spawn, not fork)";
        return Err(NetError::new(NcclResult::INVALID_USAGE, text));
    }
    Ok(plugin)
}

/// Initialises the plugin if needed, and counts one more user.
pub(crate) fn init(logger: Logger) -> Result<(), NetError> {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // The logger is set first, so that errors of the configuration are logged too.
    log::direct(logger);
    if PLUGIN.get().is_none() {
        let config = config::read()?;
        log::start(["debug", "trace"].contains(&config.debug.as_str()));
        fork::watch();
        let made = Plugin::new(&config)?;
        let _ = PLUGIN.set(made);
    }
    plugin()?.users.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

impl Plugin {
    fn new(config: &Config) -> Result<Plugin, NetError> {
        let (devices, why) = device::find(config)?;
        let names = devices.names();
        let version = env!("CARGO_PKG_VERSION");
        let found = match names.is_empty() {
            true => format!("ferroccl {version} has no device to offer: {why}"),
            false => format!("ferroccl {version} offers {}: {why}", names.join(", ")),
        };
        log::line(LogLevel::INFO, SUBSYSTEM_INIT, &found);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let who = format!("process {} on host {host}", std::process::id());
        let (slots, slot_bytes) = (config.net_slots, config.net_slot_bytes.0);
        if !(2..=SLOTS_MAX as u8).contains(&slots) || !SLOT_BYTES.contains(&slot_bytes) {
            return Err(NetError::new(
                NcclResult::INVALID_USAGE,
                format!(
                    "FERROCCL_NET_SLOTS={slots} and FERROCCL_NET_SLOT_BYTES={slot_bytes}; use 2 to \
                     {SLOTS_MAX} slots of {} to {} bytes",
                    SLOT_BYTES.start(),
                    SLOT_BYTES.end()
                ),
            ));
        }
        let helpers = Helpers::new(config.net_threads);
        let settings = Settings {
            slots: config.net_slots.into(),
            slot_bytes: config.net_slot_bytes.0,
            short_bytes: config.net_slot_bytes.0,
            has_helpers: helpers.any(),
            timeout: config.net_timeout,
            warn_after: config.net_warn_after,
        };
        Ok(Plugin {
            devices,
            connect_options: ConnectOptions {
                settings,
                policy: Arc::new(config.policy()),
                has_class: config.ib_traffic_class != 0,
                join_within: config.join_timeout,
                who,
            },
            generation: fork::generation(),
            users: AtomicU32::new(0),
            contexts: Table::new(Kind::Context),
            progress: Progress::default(),
            helpers,
            listeners: Table::new(Kind::Listener),
            attempts: Table::new(Kind::Attempt),
            senders: Table::new(Kind::Sender),
            receivers: Table::new(Kind::Receiver),
            memory: Table::new(Kind::Memory),
        })
    }

    /// Adds a communicator of NCCL, with its context.
    pub(crate) fn add_context(&self, context: Context) -> Result<Id, NetError> {
        self.contexts.add(Box::new(Arc::new(context))).ok_or_else(too_many)
    }

    fn context(&self, known: Known) -> Result<Arc<Context>, NetError> {
        let id = match known {
            Known::By(id) => id,
            Known::Here(context) => return Ok(Arc::new(context)),
        };
        self.contexts.with(id, |context| Arc::clone(context)).ok_or_else(|| gone("a context"))
    }

    /// Records NCCL's hint about a communicator.
    pub(crate) fn hint(&self, id: Id, attributes: &Attributes) -> Result<(), NetError> {
        self.context(Known::By(id))?.hint(attributes);
        Ok(())
    }

    /// Ends one communicator of NCCL; with the last one, the helpers and the progress thread end.
    pub(crate) fn finalize(&self, context: Id) -> Result<(), NetError> {
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        self.contexts.remove(context).ok_or_else(|| gone("a context"))?;
        let before = self
            .users
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |users| users.checked_sub(1));
        if before == Ok(1) {
            self.helpers.stop();
            self.progress.stop();
            self.devices.forget_made();
        }
        Ok(())
    }

    /// Listens. Returns a handle for peers, and the listening communicator.
    pub(crate) fn listen(
        &self,
        known: Known,
        number: i32,
    ) -> Result<([u8; HANDLE_BYTES], Id), NetError> {
        let device = self.devices.get(number)?;
        let (seed, address) = (socket::random()?, Address(Vec::new()));
        let transport = device.kind.id;
        let mut handle = Handle { transport, seed, address, near: None, attempt: None };
        let context = self.context(known)?;
        let listening =
            Listening::new(&device, &mut handle, &context, self.connect_options.clone())?;
        let bytes =
            handle.fit(|address, least| shorten(device.kind, address, least)).ok_or_else(|| {
                let text = "this host's address does not fit a handle of NCCL's: choose interfaces \
                        with FERROCCL_SOCKET_IFNAME";
                NetError::new(NcclResult::INVALID_USAGE, text)
            })?;
        let id = self.listeners.add(Box::new(listening)).ok_or_else(too_many)?;
        Ok((bytes, id))
    }

    /// Makes progress on connecting to the listener of the handle. Returns the sending
    /// communicator, once it is ready.
    pub(crate) fn connect(
        &'static self,
        known: Known,
        number: i32,
        bytes: &mut [u8; HANDLE_BYTES],
    ) -> Result<Option<Id>, NetError> {
        let device = self.devices.get(number)?;
        let mut handle = Handle::decode(bytes)?;
        let now = now();
        let attempt = handle.attempt.and_then(|id| self.attempts.with(id, |_| id));
        let id = match attempt {
            Some(id) => id,
            None => {
                let context = self.context(known)?;
                let attempt =
                    Attempt::new(&device, &handle, &context, self.connect_options.clone(), now)?;
                let id = self.attempts.add(Box::new(attempt)).ok_or_else(too_many)?;
                handle.attempt = Some(id);
                *bytes = handle.encode().unwrap_or(*bytes);
                // The progress thread also drops attempts that NCCL no longer polls.
                self.start()?;
                id
            }
        };
        let polled = self
            .attempts
            .with(id, |attempt| attempt.poll(now))
            .ok_or_else(|| gone("a connection attempt"))?;
        match polled {
            Ok(None) => Ok(None),
            Ok(Some(sender)) => {
                self.attempts.remove(id);
                Ok(Some(self.senders.add(sender).ok_or_else(too_many)?))
            }
            Err(error) => {
                self.attempts.remove(id);
                Err(error)
            }
        }
    }

    /// Returns the next receiving communicator, once there is one.
    pub(crate) fn accept(&'static self, listener: Id) -> Result<Option<Id>, NetError> {
        let accepted = self.listeners.with(listener, |listening| listening.accept(now()));
        let Some(receiver) = accepted.ok_or_else(|| gone("a listening communicator"))?? else {
            return Ok(None);
        };
        self.start()?;
        Ok(Some(self.receivers.add(receiver).ok_or_else(too_many)?))
    }

    fn start(&'static self) -> Result<(), NetError> {
        self.helpers.start(help);
        self.progress.start(|now| self.look(now)).map_err(|error| {
            let text = format!("a thread cannot be started: {error}; look at `ulimit -u`");
            NetError::new(NcclResult::SYSTEM_ERROR, text)
        })
    }

    /// Polls communicators that no other thread holds or has polled lately, and drops old attempts.
    /// Returns whether any communicator has something to do.
    fn look(&self, now: Instant) -> bool {
        let busy = poll_late(&self.senders, now) | poll_late(&self.receivers, now);
        let mut forgotten = Vec::new();
        self.attempts.for_each_idle(|id, attempt| {
            if attempt.is_forgotten(now) {
                forgotten.push(id);
            }
        });
        forgotten.into_iter().for_each(|id| drop(self.attempts.remove(id)));
        busy
    }

    /// Polls the communicators that need help with long messages and that no other thread holds.
    /// Returns whether any communicator needs help.
    fn help(&self) -> bool {
        self.senders.help(&now) | self.receivers.help(&now)
    }

    /// Runs `work` on a communicator. Returns none if a helper polls the communicator at this time:
    /// NCCL then calls again.
    fn with<T: Helped, R>(
        &self,
        table: &Table<T>,
        comm: Id,
        name: &str,
        work: impl FnOnce(&mut T, Instant) -> Result<Option<R>, NetError>,
    ) -> Result<Option<R>, NetError> {
        let now = now();
        let Ok(found) = table.call(comm, now, |value| work(value, now)) else { return Ok(None) };
        let (result, needs_help) = found.ok_or_else(|| gone(name))?;
        if needs_help {
            self.helpers.wake();
        }
        result
    }

    /// Registers memory with a communicator's device.
    pub(crate) fn register(&self, comm: Id, region: Region, kind: i32) -> Result<Id, NetError> {
        if kind != HOST {
            return Err(NetError::argument(format!(
                "cannot register memory of kind {kind}; the only supported kind is 1, host memory"
            )));
        }
        // Registering may take long, so the communicator is not locked.
        let mr = Arc::new(Mr::new(&self.device_of(comm)?, region)?);
        self.memory.add(Box::new(mr)).ok_or_else(too_many)
    }

    /// Deregisters memory.
    pub(crate) fn deregister(&self, comm: Id, mr: Id) -> Result<(), NetError> {
        self.device_of(comm)?;
        let found = self.memory.remove(mr).ok_or_else(|| gone("a registration"))?;
        if Arc::strong_count(&found) > 1 {
            // Posts the messages that were left to a helper: withdrawn memory cannot be sent.
            self.senders.for_each(Sender::post_new);
        }
        found.withdraw();
        if Arc::strong_count(&found) > 1 {
            // Requests, mostly of one sender, still use the memory. All senders share the deadline.
            let until = ccl_clock::now() + RELEASE_WITHIN;
            self.senders.for_each(|sender| sender.release(Some(&found), until));
        }
        found.deregister()?;
        self.receivers.with(comm, |receiver| receiver.withdraw(mr));
        Ok(())
    }

    fn device_of(&self, comm: Id) -> Result<Arc<dyn Device>, NetError> {
        let sender = self.senders.with(comm, |sender| Arc::clone(&sender.connection().mr_device));
        let device = sender.or_else(|| {
            self.receivers.with(comm, |receiver| Arc::clone(&receiver.connection().mr_device))
        });
        device.ok_or_else(|| gone("a communicator"))
    }

    /// Returns a buffer's registration and the buffer's offset in the registered memory. An empty
    /// buffer needs no registration.
    fn locate(
        &self,
        mr: Option<Id>,
        address: usize,
        bytes: usize,
    ) -> Result<(Option<Found>, usize), NetError> {
        if bytes == 0 {
            return Ok((None, 0));
        }
        let id = mr.ok_or_else(|| NetError::argument("the transfer has no registered memory"))?;
        let found = self.memory.with(id, |mr| Arc::clone(mr));
        let mr = found.ok_or_else(|| gone("a registration"))?;
        let offset = mr.offset(address, bytes)?;
        Ok((Some((id, mr)), offset))
    }

    /// Sends a message. Returns none if there are too many requests already, or if a helper polls
    /// the communicator at this time: NCCL then calls again.
    pub(crate) fn isend(
        &self,
        comm: Id,
        address: usize,
        bytes: usize,
        tag: i32,
        mr: Option<Id>,
    ) -> Result<Option<RequestId>, NetError> {
        if bytes > TRANSFER_BYTES_MAX {
            return Err(NetError::argument(format!(
                "cannot send {bytes} bytes; the properties allow {TRANSFER_BYTES_MAX} at most"
            )));
        }
        let (mr, offset) = self.locate(mr, address, bytes)?;
        let sent = self.with(&self.senders, comm, "a sending communicator", |sender, now| {
            check_device(mr.as_ref(), &sender.connection().mr_device)?;
            sender.isend(now, mr.map(|(_, mr)| mr), offset, bytes, tag)
        });
        self.progress.wake();
        sent
    }

    /// Receives messages. Returns none if there are too many requests already, or if a helper polls
    /// the communicator at this time: NCCL then calls again.
    pub(crate) fn irecv(
        &self,
        comm: Id,
        receives: &[(Option<Id>, usize, usize, i32)],
    ) -> Result<Option<RequestId>, NetError> {
        if !(1..=GROUP_MAX).contains(&receives.len()) {
            let count = receives.len();
            return Err(NetError::argument(format!(
                "{count} buffers in one irecv; the number must be 1 to {GROUP_MAX}"
            )));
        }
        let mut buffers: [Buffer; GROUP_MAX] = Default::default();
        for (buffer, (mr, address, bytes, tag)) in buffers.iter_mut().zip(receives) {
            let (mr, offset) = self.locate(*mr, *address, *bytes)?;
            *buffer = Buffer { mr, offset, bytes: *bytes, tag: *tag };
        }
        let name = "a receiving communicator";
        let received = self.with(&self.receivers, comm, name, |receiver, now| {
            let device = Arc::clone(&receiver.connection().mr_device);
            buffers.iter().try_for_each(|buffer| check_device(buffer.mr.as_ref(), &device))?;
            receiver.irecv(now, &buffers[..receives.len()])
        });
        self.progress.wake();
        received
    }

    /// Tests a request. Returns its sizes, once it is done.
    pub(crate) fn test(&self, comm: Id, request: RequestId) -> Result<Option<Tested>, NetError> {
        let name = "the communicator of a request";
        if comm.kind == Kind::Sender {
            let test = |sender: &mut Sender, now| sender.test(now, request);
            return Ok(self.with(&self.senders, comm, name, test)?.map(|bytes| {
                let mut sizes = [0; GROUP_MAX];
                sizes[0] = bytes;
                Tested { count: 1, sizes }
            }));
        }
        let test = |receiver: &mut Receiver, now| receiver.test(now, request);
        let done = self.with(&self.receivers, comm, name, test)?;
        Ok(done.map(|(count, sizes)| Tested { count, sizes }))
    }

    /// Closes a sending communicator. Messages that are completely posted still arrive, unless
    /// their puts read the caller's memory for longer than [`RELEASE_WITHIN`].
    pub(crate) fn close_sender(&self, comm: Id) -> Result<(), NetError> {
        let mut sender = self.senders.remove(comm).ok_or_else(|| gone("a sending communicator"))?;
        sender.close(ccl_clock::now() + RELEASE_WITHIN);
        self.progress.close_sender(sender);
        Ok(())
    }

    /// Closes a receiving communicator.
    pub(crate) fn close_receiver(&self, comm: Id) -> Result<(), NetError> {
        let receiver = self.receivers.remove(comm);
        self.progress.close_receiver(receiver.ok_or_else(|| gone("a receiving communicator"))?);
        Ok(())
    }

    /// Closes a listening communicator. Connections that it has accepted remain open.
    pub(crate) fn close_listener(&self, comm: Id) -> Result<(), NetError> {
        let listening = self.listeners.remove(comm);
        let listening = listening.ok_or_else(|| gone("a listening communicator"))?;
        listening.into_joining().for_each(|receiver| self.progress.close_receiver(receiver));
        Ok(())
    }
}

/// Polls the communicators that no other thread holds or has polled lately. Returns whether any has
/// something to do.
fn poll_late<T: Communicator>(table: &Table<T>, now: Instant) -> bool {
    let mut busy = false;
    table.for_each_idle(|_, comm| {
        let works = comm.has_work();
        busy |= works;
        let pause = if works { PUMP_AFTER } else { IDLE_EVERY };
        if now.since(comm.connection().pumped) >= pause {
            comm.pump_or_abort(now);
        }
    });
    busy
}

/// Polls communicators for a helper thread.
fn help() -> bool {
    PLUGIN.get().is_some_and(Plugin::help)
}

fn check_device(mr: Option<&Found>, device: &Arc<dyn Device>) -> Result<(), NetError> {
    match mr {
        Some((_, mr)) if !Arc::ptr_eq(&mr.device, device) => {
            Err(NetError::argument("the memory was registered with another device"))
        }
        _ => Ok(()),
    }
}

fn gone(what: &str) -> NetError {
    NetError::argument(format!("the call names {what} that is already closed, or never existed"))
}

fn too_many() -> NetError {
    NetError::new(
        NcclResult::SYSTEM_ERROR,
        "the plugin already holds 2^20 objects of one kind (communicators, registrations or \
         contexts), its limit",
    )
}

/// Decodes a pointer from C: the number of an object, and of one of its requests, if any.
pub(crate) fn read(pointer: *mut c_void) -> Option<(Id, Option<RequestId>)> {
    Id::read(pointer.addr() as u64)
}
