//! The test's side: a device that hands its calls to the process that serves the real device.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ccl_clock::now;
use ccl_core::encoding;
use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Caps, Connected, Connecting, Device, DeviceId, EndpointId, Event, Inner, Lane,
    Listener, MrKey, RemoteKey, RemoteMr, Secret, Transport, TransportError, WorkRequest,
};
use ccl_memory::Region;
use ccl_transport_shm::{DEVICE, ShmTransport};
use serde::de::DeserializeOwned;

use crate::calls::{Call, LaneCall, PATIENCE, PORT, SECRET, Wire};

const PAUSE: Duration = Duration::from_micros(200);

/// Polls until there is a result.
///
/// # Panics
///
/// When there is no result in time.
pub(crate) fn soon<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = now() + PATIENCE;
    loop {
        match poll() {
            Some(result) => return result,
            None if now() < deadline => std::thread::sleep(PAUSE),
            None => panic!("the other process did not answer in time"),
        }
    }
}

/// A process of this test binary that [serves](crate::serve()) a device; killed when dropped.
#[derive(Debug)]
pub struct RemoteProcess {
    child: Mutex<Child>,
    device: RemoteDevice,
}

impl RemoteProcess {
    /// Starts the test with this name in a new process. `caps` are the capabilities of the device
    /// that the process serves.
    ///
    /// # Panics
    ///
    /// When the process cannot be started, or does not connect in time.
    #[must_use]
    pub fn start(test: &str, caps: &Caps) -> RemoteProcess {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(PORT, listener.local_addr().unwrap().port().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let child = Mutex::new(child);
        let (stream, _) = soon(|| listener.accept().ok());
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut wire = Wire::new(stream);
        let memory = Memory::new(&mut wire);
        let (wire, copies) = (Mutex::new(wire), Mutex::default());
        let device = RemoteDevice(Arc::new(Shared {
            caps: caps.clone(),
            wire,
            memory,
            copies,
            killed: AtomicBool::new(false),
        }));
        RemoteProcess { child, device }
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> RemoteDevice {
        self.device.clone()
    }

    /// Kills the process.
    ///
    /// # Panics
    ///
    /// When the process cannot be killed.
    #[expect(clippy::disallowed_methods, reason = "it was killed: the wait ends at once")]
    pub fn kill(&self) {
        self.device.0.killed.store(true, Ordering::Relaxed);
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Memory that is shared with the other process.
#[derive(Debug)]
struct Memory {
    device: Arc<dyn Device>,
    lane: Mutex<Box<dyn Lane>>,
    endpoint: EndpointId,
}

impl Memory {
    /// Sends the other process an address, and waits until that process connects.
    fn new(wire: &mut Wire) -> Memory {
        let device = ShmTransport::new().open(&DeviceId(DEVICE.to_owned())).unwrap();
        let mut listener = device.listen(&SECRET).unwrap();
        wire.send(&encoding::encode(&listener.address())).unwrap();
        let connected = soon(|| listener.poll(now()).unwrap());
        let mut lane = device.lane().unwrap();
        let endpoint = lane.attach(connected).unwrap();
        Memory { device, lane: Mutex::new(lane), endpoint }
    }

    /// Allocates memory and returns the key by which the other process maps it.
    fn allocate(&self, bytes: usize) -> Result<(Region, RemoteKey), TransportError> {
        let (region, key) = self.device.allocate(bytes)?;
        let key = self.lane.lock().unwrap().share(self.endpoint, key)?;
        Ok((region, key))
    }
}

/// Registered memory of this process, and its copy in shared memory.
#[derive(Debug)]
struct Copied {
    own: Region,
    shared: Region,
    /// Content of both regions after the last copy, in either direction. A byte of a region that
    /// differs from this content has changed since that copy and is still to be copied.
    common: Vec<u8>,
}

impl Copied {
    /// Copies the bytes that this process has changed.
    fn send(&mut self) {
        let Copied { own, shared, common } = self;
        copy_changes(own, shared, common);
    }

    /// Copies the bytes that puts have changed.
    fn receive(&mut self) {
        let Copied { own, shared, common } = self;
        copy_changes(shared, own, common);
    }
}

/// Copies the bytes of `from` that differ from `common`, and updates `common`.
fn copy_changes(from: &Region, to: &Region, common: &mut Vec<u8>) {
    let mut now = vec![0; common.len()];
    from.read(0, &mut now).unwrap();
    if now == *common {
        return;
    }
    for at in (0..now.len()).filter(|at| now[*at] != common[*at]) {
        to.write(at, &now[at..=at]).unwrap();
    }
    *common = now;
}

/// A device of another process.
///
/// Memory that is [registered](Device::register), and not [allocated](Device::allocate), has a copy
/// in shared memory. When puts are posted, bytes that this process has changed are copied to shared
/// memory. When a poll reports an arrival, bytes that puts have changed are copied back.
#[derive(Clone, Debug)]
pub struct RemoteDevice(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    caps: Caps,
    wire: Mutex<Wire>,
    memory: Memory,
    copies: Mutex<BTreeMap<MrKey, Copied>>,
    killed: AtomicBool,
}

impl RemoteDevice {
    fn ask<T: DeserializeOwned>(&self, call: &Call) -> Result<T, TransportError> {
        self.0.wire.lock().unwrap().ask(call)
    }

    /// Makes a call whose errors do not matter: the other process may have been killed.
    fn tell(&self, call: &Call) {
        let _ = self.ask::<()>(call);
    }

    fn copies(&self) -> MutexGuard<'_, BTreeMap<MrKey, Copied>> {
        self.0.copies.lock().unwrap()
    }

    /// Returns a connection that the other process holds.
    fn connected(&self, found: Option<(usize, Vec<u8>)>) -> Option<Connected> {
        let (number, hello) = found?;
        let inner = Box::new(RemoteConnected { device: self.clone(), number: Some(number) });
        Some(Connected { hello, inner })
    }
}

impl Device for RemoteDevice {
    fn caps(&self) -> &Caps {
        &self.0.caps
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        let (region, key) = self.0.memory.allocate(bytes)?;
        Ok((region, self.ask(&Call::Register(key))?))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        let (shared, key) = self.allocate(region.bytes())?;
        let (own, common) = (region.clone(), vec![0; region.bytes()]);
        self.copies().insert(key, Copied { own, shared, common });
        Ok(key)
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        self.copies().remove(&key);
        self.ask(&Call::Deregister(key))
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        let (number, address) = self.ask(&Call::Listen { secret: secret.0 })?;
        Ok(Box::new(RemoteListener { device: self.clone(), number, address }))
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        let (address, hello) = (address.clone(), hello.to_vec());
        let call = Call::Connect { address, secret: secret.0, hello, deadline };
        Ok(Box::new(RemoteConnecting { device: self.clone(), number: self.ask(&call)? }))
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        let number = self.ask(&Call::Lane)?;
        Ok(Box::new(RemoteLane { device: self.clone(), number }))
    }
}

#[derive(Debug)]
struct RemoteListener {
    device: RemoteDevice,
    number: usize,
    address: Address,
}

impl Listener for RemoteListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let found = self.device.ask(&Call::PollListener(self.number, now))?;
        Ok(self.device.connected(found))
    }

    fn rejected(&self) -> u64 {
        self.device.ask(&Call::Rejected(self.number)).unwrap_or_default()
    }
}

impl Drop for RemoteListener {
    fn drop(&mut self) {
        self.device.tell(&Call::DropListener(self.number));
    }
}

#[derive(Debug)]
struct RemoteConnecting {
    device: RemoteDevice,
    number: usize,
}

impl Connecting for RemoteConnecting {
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let found = self.device.ask(&Call::PollConnecting(self.number, now))?;
        Ok(self.device.connected(found))
    }
}

impl Drop for RemoteConnecting {
    fn drop(&mut self) {
        self.device.tell(&Call::DropConnecting(self.number));
    }
}

/// Connection that the other process holds. `number` is `None` once a lane has attached the
/// connection.
#[derive(Debug)]
struct RemoteConnected {
    device: RemoteDevice,
    number: Option<usize>,
}

impl Inner for RemoteConnected {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Drop for RemoteConnected {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.device.tell(&Call::DropConnected(number));
        }
    }
}

#[derive(Debug)]
struct RemoteLane {
    device: RemoteDevice,
    number: usize,
}

impl RemoteLane {
    fn ask<T: DeserializeOwned>(&self, call: LaneCall) -> Result<T, TransportError> {
        self.device.ask(&Call::OfLane(self.number, call))
    }

    fn tell(&self, call: LaneCall) {
        self.device.tell(&Call::OfLane(self.number, call));
    }
}

impl Lane for RemoteLane {
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError> {
        let is_own = |part: &RemoteConnected| Arc::ptr_eq(&part.device.0, &self.device.0);
        let number = connected.into_own(is_own)?.number.take();
        self.ask(LaneCall::Attach(number.ok_or(TransportError::HandedOut)?))
    }

    fn detach(&mut self, endpoint: EndpointId) {
        self.tell(LaneCall::Detach(endpoint));
    }

    fn poll_shutdown(&mut self, endpoint: Option<EndpointId>) -> bool {
        self.ask(LaneCall::PollShutdown(endpoint)).unwrap_or(true)
    }

    fn abort(&mut self, endpoint: EndpointId) {
        self.tell(LaneCall::Abort(endpoint));
    }

    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError> {
        self.ask(LaneCall::Share(endpoint, key))
    }

    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        self.ask(LaneCall::Import(at, key.clone()))
    }

    fn forget(&mut self, at: EndpointId, mr: RemoteMr) {
        self.tell(LaneCall::Forget(at, mr));
    }

    fn map(&mut self, _at: EndpointId, _key: &RemoteKey) -> Result<Region, TransportError> {
        Err(TransportError::NotMapped { peer: "a peer in another process".to_owned() })
    }

    fn post(&mut self, now: Instant, work: &[WorkRequest]) -> Result<usize, TransportError> {
        self.device.copies().values_mut().for_each(Copied::send);
        self.ask(LaneCall::Post(now, work.to_vec()))
    }

    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        self.ask(LaneCall::Note(endpoint, bytes.to_vec()))
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let polled: Vec<Event> = match self.ask(LaneCall::Poll(now)) {
            Err(_) if self.device.0.killed.load(Ordering::Relaxed) => return Ok(()),
            polled => polled?,
        };
        if polled.iter().any(|event| matches!(event, Event::Arrived { .. })) {
            self.device.copies().values_mut().for_each(Copied::receive);
        }
        events.extend(polled);
        Ok(())
    }

    fn peek(&mut self) -> Option<bool> {
        self.ask(LaneCall::Peek).unwrap_or_default()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.ask(LaneCall::PollTimeout).unwrap_or_default()
    }

    fn is_drained(&self) -> bool {
        self.ask(LaneCall::IsDrained).unwrap_or(true)
    }

    fn is_acknowledged(&self) -> bool {
        self.ask(LaneCall::IsAcknowledged).unwrap_or(true)
    }

    fn flush_acknowledgements(&mut self, now: Instant) {
        self.tell(LaneCall::FlushAcknowledgements(now));
    }

    fn sleep(&mut self, longest: Duration) {
        self.tell(LaneCall::Sleep(longest));
    }
}

impl Drop for RemoteLane {
    fn drop(&mut self) {
        self.tell(LaneCall::Drop);
    }
}
