//! Proxy between two peers that breaks their connections.
#![expect(clippy::unwrap_used, reason = "only tests use the proxy; a panic fails the test")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ccl_core::transport::{Address, TransportError};
use ccl_socket::Location;

/// Proxy in front of a listener. Peers connect to the proxy, which connects each to the listener.
#[derive(Debug)]
pub struct Proxy {
    /// Address of the proxy.
    pub address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// Both streams of each connection: the one that was accepted comes first.
    open: Mutex<Vec<[TcpStream; 2]>>,
    /// True if one stream of a connection stays open when the other one closes.
    is_one_sided: AtomicBool,
    refuses: AtomicBool,
    ends: AtomicBool,
    made: AtomicU64,
    /// Number of bytes that a connection forwards in one direction before it is cut; 0 means never.
    cut_after: AtomicU64,
    /// Number of bytes that a connection forwards in one direction before one bit is changed; 0
    /// means never. The change sets this to 0, so only one connection is affected.
    spoil_after: AtomicU64,
    records: AtomicBool,
    /// Bytes that were forwarded during recording.
    record: Mutex<Vec<u8>>,
}

impl Proxy {
    /// Starts to forward connections to `to`.
    #[must_use]
    pub fn new(to: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let mut pumps = Vec::new();
            while !shared.ends.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((near, _)) if !shared.refuses.load(Ordering::Relaxed) => {
                        pumps.extend(shared.join(near, to));
                    }
                    _ => std::thread::sleep(Duration::from_micros(200)),
                }
            }
            shared.cut();
            pumps.into_iter().for_each(|pump| pump.join().unwrap());
        });
        Proxy { address, state, thread: Some(thread) }
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        self.state.cut();
    }

    /// Breaks all connections on one side (0 is the side that has connected). The other side
    /// notices only when it writes, as when a middlebox has forgotten a connection.
    pub fn cut_side(&self, side: usize) {
        self.state.is_one_sided.store(true, Ordering::Relaxed);
        for streams in self.state.open.lock().unwrap().iter() {
            let _ = streams[side].shutdown(Shutdown::Both);
        }
    }

    /// Breaks, from now on, each connection that has forwarded about `bytes` bytes in one direction
    /// since it was made.
    pub fn cut_after(&self, bytes: u64) {
        self.state.cut_after.store(bytes, Ordering::Relaxed);
    }

    /// Sets whether the proxy hangs up at once on new connections.
    pub fn refuse(&self, refuses: bool) {
        self.state.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Returns the number of connections so far.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.state.made.load(Ordering::Relaxed)
    }

    /// Returns a listener's address, with the listener's location replaced by the proxy's.
    ///
    /// # Errors
    /// Returns an error if the address is not a TCP address.
    pub fn instead_of(&self, address: &Address) -> Result<Address, TransportError> {
        instead_of(address, self.address)
    }
}

/// Returns a listener's address with another location. RDMA listeners, too, have TCP addresses.
///
/// # Errors
/// Returns an error if the address is not a TCP address.
pub fn instead_of(address: &Address, other: SocketAddr) -> Result<Address, TransportError> {
    let Location { token, .. } = Location::decode(address)?;
    Ok(Location { token, addresses: vec![other] }.encode())
}

/// Returns the first location in a listener's address. RDMA listeners, too, have TCP addresses.
///
/// # Errors
/// Returns an error if the address is not a TCP address.
pub fn first_location(address: &Address) -> Result<SocketAddr, TransportError> {
    Ok(Location::decode(address)?.addresses[0])
}

/// Attacks that encryption guards against.
impl Proxy {
    /// Changes one bit once a connection has forwarded about `bytes` bytes.
    pub fn spoil_after(&self, bytes: u64) {
        self.state.spoil_after.store(bytes, Ordering::Relaxed);
    }

    /// Returns whether the bit was changed; also true if no change was requested.
    #[must_use]
    pub fn has_spoilt(&self) -> bool {
        self.state.spoil_after.load(Ordering::Relaxed) == 0
    }

    /// Records forwarded bytes from now on.
    pub fn record(&self) {
        self.state.records.store(true, Ordering::Relaxed);
    }

    /// Returns the recorded bytes.
    #[must_use]
    pub fn recorded(&self) -> Vec<u8> {
        self.state.record.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl State {
    fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..).flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn join(self: &Arc<State>, near: TcpStream, to: SocketAddr) -> Vec<JoinHandle<()>> {
        let Ok(far) = TcpStream::connect_timeout(&to, Duration::from_secs(5)) else {
            return Vec::new();
        };
        self.made.fetch_add(1, Ordering::Relaxed);
        let clone = |stream: &TcpStream| stream.try_clone().unwrap();
        self.open.lock().unwrap().push([clone(&near), clone(&far)]);
        [(clone(&near), clone(&far)), (far, near)]
            .map(|(from, into)| {
                let state = Arc::clone(self);
                std::thread::spawn(move || state.pump(from, into))
            })
            .into()
    }

    fn record_and_tamper(&self, bytes: &mut [u8], passed: u64) {
        let after = self.spoil_after.load(Ordering::Relaxed);
        let due = after > 0 && passed > after;
        if due && self.spoil_after.swap(0, Ordering::Relaxed) > 0 {
            bytes[bytes.len() / 2] ^= 4;
        }
        if self.records.load(Ordering::Relaxed) {
            self.record.lock().unwrap().extend_from_slice(bytes);
        }
    }

    fn pump(&self, mut from: TcpStream, mut into: TcpStream) {
        from.set_nonblocking(false).unwrap();
        let (mut buffer, mut passed) = ([0; 5000], 0);
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) if self.is_one_sided.load(Ordering::Relaxed) => return,
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            passed += count as u64;
            self.record_and_tamper(&mut buffer[..count], passed);
            let most = self.cut_after.load(Ordering::Relaxed);
            let cut = most > 0 && passed > most;
            // Half of the bytes of the last read still get through.
            let through = if cut { count / 2 } else { count };
            if into.write_all(&buffer[..through]).is_err() || cut {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = into.shutdown(Shutdown::Both);
    }
}
