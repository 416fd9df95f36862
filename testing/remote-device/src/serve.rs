//! The process of the device: makes the calls on the device and sends the answers.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

use ccl_clock::now;
use ccl_core::encoding;
use ccl_core::transport::{
    Connected, Connecting, Device, DeviceId, EndpointId, Lane, Listener, MrKey, RemoteKey, Secret,
    Transport, TransportError,
};
use ccl_transport_shm::{DEVICE, ShmTransport};
use serde::Serialize;

use crate::calls::{Call, Failure, LaneCall, PATIENCE, PORT, SECRET, Wire};
use crate::remote::soon;

/// Serves the calls of the process that has started this one, until that process ends. Returns at
/// once, without opening the device, if no `RemoteProcess` has started this process.
///
/// # Panics
///
/// When the process that started this one cannot be reached.
pub fn serve(open: impl FnOnce() -> Arc<dyn Device>) {
    let Ok(port) = std::env::var(PORT) else { return };
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().unwrap()));
    let stream = TcpStream::connect_timeout(&at, PATIENCE).unwrap();
    let mut wire = Wire::new(stream);
    let mut server = Server::new(open(), &mut wire);
    while let Ok(call) = wire.receive() {
        if wire.send(&server.answer(call)).is_err() {
            return;
        }
    }
}

/// Objects that the other process has created here; the number of an object is its index.
#[derive(Debug)]
struct Server {
    device: Arc<dyn Device>,
    /// Lane and endpoint over which the other process shares memory.
    memory: (Box<dyn Lane>, EndpointId),
    listeners: Vec<Option<Box<dyn Listener>>>,
    connecting: Vec<Option<Box<dyn Connecting>>>,
    connected: Vec<Option<Connected>>,
    lanes: Vec<Option<Box<dyn Lane>>>,
}

/// Encodes an answer.
fn answer<T: Serialize>(result: Result<T, TransportError>) -> Vec<u8> {
    encoding::encode(&result.map_err(Failure::from))
}

fn done() -> Vec<u8> {
    answer(Ok(()))
}

/// Appends an object; returns its number.
fn add<T>(to: &mut Vec<Option<T>>, object: T) -> usize {
    to.push(Some(object));
    to.len() - 1
}

impl Server {
    /// Receives an address from the other process, and connects to that address to share memory.
    fn new(device: Arc<dyn Device>, wire: &mut Wire) -> Server {
        let address = wire.receive().unwrap();
        let shared = ShmTransport::new().open(&DeviceId(DEVICE.to_owned())).unwrap();
        let deadline = now() + PATIENCE;
        let mut connecting = shared.connect(&address, &SECRET, b"device", deadline).unwrap();
        let connected = soon(|| connecting.poll(now()).unwrap());
        let mut lane = shared.lane().unwrap();
        let endpoint = lane.attach(connected).unwrap();
        let (listeners, connecting, connected, lanes) = Default::default();
        Server { device, memory: (lane, endpoint), listeners, connecting, connected, lanes }
    }

    fn answer(&mut self, call: Call) -> Vec<u8> {
        match call {
            Call::Register(memory) => answer(self.register(&memory)),
            Call::Deregister(key) => answer(self.device.deregister(key)),
            Call::Listen { secret } => {
                answer(self.device.listen(&Secret(secret)).map(|listener| {
                    let address = listener.address();
                    (add(&mut self.listeners, listener), address)
                }))
            }
            Call::PollListener(number, now) => {
                let polled = self.listeners[number].as_mut().unwrap().poll(now);
                answer(polled.map(|connected| self.keep(connected)))
            }
            Call::Rejected(number) => {
                answer(Ok(self.listeners[number].as_ref().unwrap().rejected()))
            }
            Call::DropListener(number) => {
                self.listeners[number] = None;
                done()
            }
            Call::Connect { address, secret, hello, deadline } => {
                let begun = self.device.connect(&address, &Secret(secret), &hello, deadline);
                answer(begun.map(|connecting| add(&mut self.connecting, connecting)))
            }
            Call::PollConnecting(number, now) => {
                let polled = self.connecting[number].as_mut().unwrap().poll(now);
                answer(polled.map(|connected| self.keep(connected)))
            }
            Call::DropConnecting(number) => {
                self.connecting[number] = None;
                done()
            }
            Call::DropConnected(number) => {
                self.connected[number] = None;
                done()
            }
            Call::Lane => answer(self.device.lane().map(|lane| add(&mut self.lanes, lane))),
            Call::OfLane(number, LaneCall::Attach(connected)) => {
                let connected = self.connected[connected].take().unwrap();
                answer(self.lanes[number].as_mut().unwrap().attach(connected))
            }
            Call::OfLane(number, LaneCall::Drop) => {
                self.lanes[number] = None;
                done()
            }
            Call::OfLane(number, call) => {
                answer_of(&mut **self.lanes[number].as_mut().unwrap(), call)
            }
        }
    }

    /// Maps memory of the other process and registers it.
    fn register(&mut self, memory: &RemoteKey) -> Result<MrKey, TransportError> {
        let (lane, endpoint) = &mut self.memory;
        let region = lane.map(*endpoint, memory)?;
        self.device.register(&region)
    }

    /// Stores a connection; returns its number and hello.
    fn keep(&mut self, connected: Option<Connected>) -> Option<(usize, Vec<u8>)> {
        let connected = connected?;
        let hello = connected.hello.clone();
        Some((add(&mut self.connected, connected), hello))
    }
}

/// Makes a call on a lane.
fn answer_of(lane: &mut dyn Lane, call: LaneCall) -> Vec<u8> {
    match call {
        LaneCall::Detach(endpoint) => {
            lane.detach(endpoint);
            done()
        }
        LaneCall::PollShutdown(endpoint) => answer(Ok(lane.poll_shutdown(endpoint))),
        LaneCall::Abort(endpoint) => {
            lane.abort(endpoint);
            done()
        }
        LaneCall::Share(endpoint, key) => answer(lane.share(endpoint, key)),
        LaneCall::Import(at, key) => answer(lane.import(at, &key)),
        LaneCall::Forget(at, mr) => {
            lane.forget(at, mr);
            done()
        }
        LaneCall::Post(now, work) => answer(lane.post(now, &work)),
        LaneCall::Note(endpoint, bytes) => answer(lane.note(endpoint, &bytes)),
        LaneCall::Poll(now) => {
            let mut events = Vec::new();
            answer(lane.poll(now, &mut events).map(|()| events))
        }
        LaneCall::Peek => answer(Ok(lane.peek())),
        LaneCall::PollTimeout => answer(Ok(lane.poll_timeout())),
        LaneCall::IsDrained => answer(Ok(lane.is_drained())),
        LaneCall::IsAcknowledged => answer(Ok(lane.is_acknowledged())),
        LaneCall::FlushAcknowledgements(now) => {
            lane.flush_acknowledgements(now);
            done()
        }
        LaneCall::Sleep(longest) => {
            lane.sleep(longest);
            done()
        }
        LaneCall::Attach(_) | LaneCall::Drop => done(),
    }
}
