//! Rendezvous of the rails of a link. All rails whose address is known are dialled at once. The
//! rails that connect within a second after the first one make up the link; others can join later.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl_core::encoding::{decode, encode};
use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Connected, Connecting, Inner, Listener, Secret, TransportError,
};
use ccl_socket::socket;
use serde::{Deserialize, Serialize};

use crate::RAILS_MAX;
use crate::shared::Shared;

/// Random name of a link, the same in both processes.
pub(crate) type LinkId = [u8; 16];

/// Longest [`Hello::text`], in bytes.
const TEXT_BYTES_MAX: usize = 64;
/// Longest wait for the other rails after the first one has connected.
const GATHER: Duration = Duration::from_secs(1);
/// Time after which a rail that has come back is dropped, if its link has not taken the rail.
const RETURN: Duration = Duration::from_secs(5);
/// Largest number of links that are remembered after they are made: a late rail of a remembered
/// link does not start a new link.
const KNOWN_MAX: usize = 1024;

/// Hello of the dialling side for one rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) link: LinkId,
    pub(crate) rail: u8,
    pub(crate) rails: u8,
    /// Number of the listener's devices, its first ones, whose addresses the dialling side knows.
    pub(crate) known: u8,
    /// Number of times that the rail has come back, this time included.
    pub(crate) epoch: u32,
    /// Hello that the link's user sends; unused if the rail comes back.
    pub(crate) text: Vec<u8>,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    fn decode(bytes: &[u8]) -> Option<Hello> {
        let hello: Hello = decode(bytes).ok()?;
        let plausible = hello.rail < hello.rails && usize::from(hello.rails) <= RAILS_MAX;
        (plausible && hello.text.len() <= TEXT_BYTES_MAX).then_some(hello)
    }
}

/// Content of an address: the number of devices, and the addresses of the first ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) count: usize,
    pub(crate) known: Vec<Address>,
}

impl Addresses {
    pub(crate) fn encode(&self) -> Address {
        Address(encode(self))
    }

    pub(crate) fn decode(Address(bytes): &Address) -> Option<Addresses> {
        let addresses: Addresses = decode(bytes).ok()?;
        let Addresses { count, known } = &addresses;
        let plausible = (1..=RAILS_MAX).contains(count) && (1..=*count).contains(&known.len());
        plausible.then_some(addresses)
    }

    /// Returns the address of the device that a rail leads to, if it is known.
    fn of(&self, rail: usize) -> Option<&Address> {
        self.known.get(rail % self.count.max(1))
    }
}

/// Shortens an address of rails by one step. Replaces the longest device address with the result of
/// `shorter`. If this result is none, leaves out the last device; the listening side sends that
/// device's address later, over the link. A device is left out only if the address has
/// more than `least` devices, and more than one. Returns none if neither step is possible, or if
/// `address` is no address of rails.
#[must_use]
pub fn shorten(
    address: &Address,
    least: usize,
    shorter: impl Fn(&Address) -> Option<Address>,
) -> Option<Address> {
    let mut addresses = Addresses::decode(address)?;
    let longest = addresses.known.iter_mut().max_by_key(|address| address.0.len())?;
    match shorter(longest) {
        Some(shorter) => *longest = shorter,
        None if addresses.known.len() > least.max(1) => drop(addresses.known.pop()),
        None => return None,
    }
    Some(addresses.encode())
}

/// Addresses and secret for dialling a rail again.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    pub(crate) addresses: Addresses,
    pub(crate) secret: Secret,
}

impl Dial {
    /// Returns the address that a rail leads to, if it is known.
    pub(crate) fn to(&self, rail: usize) -> Option<&Address> {
        self.addresses.of(rail)
    }

    /// Learns the address of a device of the peer. The addresses come in order, and one that comes
    /// again changes nothing. Returns false if the peer has no such device.
    pub(crate) fn learn(&mut self, device: usize, address: Address) -> bool {
        let Addresses { count, known } = &mut self.addresses;
        if device == known.len() && device < *count {
            known.push(address);
        }
        device < *count
    }
}

/// A link before a lane takes it over.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// Devices that the link was made with.
    pub(crate) with: Arc<Shared>,
    pub(crate) id: LinkId,
    /// Connections by rail; none for a rail that has not connected.
    pub(crate) rails: Vec<Option<Connected>>,
    pub(crate) from: LinkOrigin,
}

/// Side of a link.
#[derive(Debug)]
pub(crate) enum LinkOrigin {
    /// The side that has dialled.
    Dialled(Dial),
    /// The side that was dialled: the listeners that rails come back to, and the devices that the
    /// other side does not know yet, with their addresses.
    Listened(Arc<Mutex<DeviceListeners>>, Vec<(u8, Address)>),
}

impl Inner for Gathered {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A rail that has come back.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) hello: Hello,
    pub(crate) connected: Connected,
    at: Instant,
}

/// A link whose rails are still connecting.
#[derive(Debug)]
struct Gathering {
    id: LinkId,
    text: Vec<u8>,
    rails: Vec<Option<Connected>>,
    /// Number of the listener's devices, its first ones, whose addresses the other side knows.
    /// Only the rails to these devices are awaited.
    known: usize,
    since: Instant,
}

/// Listeners that accept rails, one for each device. Lanes poll them, too, since rails can come
/// back when nobody waits for a link.
#[derive(Debug)]
pub(crate) struct DeviceListeners {
    listeners: Vec<Box<dyn Listener>>,
    gathering: Vec<Gathering>,
    known: VecDeque<LinkId>,
    /// Links to be handed out.
    gathered: VecDeque<Gathering>,
    returned: Vec<Returned>,
    /// Number of peers whose hello was not valid.
    rejected: u64,
    /// True once new links are refused.
    is_closed: bool,
}

impl DeviceListeners {
    pub(crate) fn new(listeners: Vec<Box<dyn Listener>>) -> DeviceListeners {
        DeviceListeners {
            listeners,
            gathering: Vec::new(),
            known: VecDeque::new(),
            gathered: VecDeque::new(),
            returned: Vec::new(),
            rejected: 0,
            is_closed: false,
        }
    }

    fn addresses(&self) -> Addresses {
        let known: Vec<Address> = self.listeners.iter().map(|one| one.address()).collect();
        Addresses { count: known.len(), known }
    }

    /// Accepts the rails that have connected. Returns an error only if every listener has failed.
    pub(crate) fn pump(&mut self, now: Instant) -> Result<(), TransportError> {
        let mut failed = Vec::new();
        for at in 0..self.listeners.len() {
            loop {
                match self.listeners[at].poll(now) {
                    Ok(Some(connected)) => self.came(connected, now),
                    Ok(None) => break,
                    Err(error) => {
                        failed.push(error);
                        break;
                    }
                }
            }
        }
        let is_late = |since: Instant| now.since(since) >= GATHER;
        let devices = self.listeners.len().max(1);
        let ready = |one: &mut Gathering| {
            let mut rails = one.rails.iter().enumerate();
            let is_whole = rails.all(|(at, rail)| rail.is_some() || at % devices >= one.known);
            is_whole || is_late(one.since)
        };
        for one in self.gathering.extract_if(.., ready) {
            if self.known.len() == KNOWN_MAX {
                self.known.pop_front();
            }
            self.known.push_back(one.id);
            self.gathered.push_back(one);
        }
        self.returned.retain(|one| now.since(one.at) < RETURN);
        match failed.pop() {
            Some(error) if failed.len() + 1 == self.listeners.len() => Err(error),
            _ => Ok(()),
        }
    }

    fn came(&mut self, connected: Connected, now: Instant) {
        let Some(hello) = Hello::decode(&connected.hello) else {
            self.rejected += 1;
            return;
        };
        if hello.epoch > 0 {
            self.returned.push(Returned { hello, connected, at: now });
            return;
        }
        let Hello { link: id, rail, rails, known, text, .. } = hello;
        if self.is_closed || self.known.contains(&id) {
            return;
        }
        let found = self.gathering.iter().position(|one| one.id == id);
        let at = found.unwrap_or_else(|| {
            let rails = (0..rails).map(|_| None).collect();
            let known = known.into();
            self.gathering.push(Gathering { id, text, rails, known, since: now });
            self.gathering.len() - 1
        });
        if let Some(entry) = self.gathering[at].rails.get_mut(usize::from(rail)) {
            *entry = Some(connected);
        }
    }

    /// Takes the rails of this link that have come back.
    pub(crate) fn take_returned(&mut self, link: &LinkId) -> Vec<Returned> {
        self.returned.extract_if(.., |one| one.hello.link == *link).collect()
    }
}

/// Locks the listeners. Poisoning is ignored: no panic leaves them half changed.
pub(crate) fn lock(device_listeners: &Mutex<DeviceListeners>) -> MutexGuard<'_, DeviceListeners> {
    device_listeners.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listener for links.
#[derive(Debug)]
pub(crate) struct RailsListener {
    device_listeners: Arc<Mutex<DeviceListeners>>,
    with: Arc<Shared>,
}

impl RailsListener {
    pub(crate) fn new(
        device_listeners: Arc<Mutex<DeviceListeners>>,
        with: &Arc<Shared>,
    ) -> RailsListener {
        RailsListener { device_listeners, with: Arc::clone(with) }
    }
}

impl Listener for RailsListener {
    fn address(&self) -> Address {
        lock(&self.device_listeners).addresses().encode()
    }

    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let mut device_listeners = lock(&self.device_listeners);
        let pumped = device_listeners.pump(now);
        let Some(Gathering { id, text, rails, known, .. }) = device_listeners.gathered.pop_front()
        else {
            return pumped.map(|()| None);
        };
        let unknown = (0..).zip(device_listeners.addresses().known).skip(known).collect();
        let from = LinkOrigin::Listened(Arc::clone(&self.device_listeners), unknown);
        let inner = Gathered { with: Arc::clone(&self.with), id, rails, from };
        Ok(Some(Connected { hello: text, inner: Box::new(inner) }))
    }

    fn rejected(&self) -> u64 {
        let device_listeners = lock(&self.device_listeners);
        device_listeners.rejected
            + device_listeners.listeners.iter().map(|listener| listener.rejected()).sum::<u64>()
    }
}

impl Drop for RailsListener {
    /// Closes the listeners for new links. Rails can still come back.
    fn drop(&mut self) {
        let mut device_listeners = lock(&self.device_listeners);
        device_listeners.is_closed = true;
        device_listeners.gathering.clear();
        device_listeners.gathered.clear();
    }
}

/// A link in the making.
#[derive(Debug)]
pub(crate) struct RailsConnecting {
    with: Arc<Shared>,
    id: LinkId,
    dial: Dial,
    /// Attempts by rail.
    attempts: Vec<Attempt>,
    /// Time at which the first rail connected.
    since: Option<Instant>,
}

#[derive(Debug)]
enum Attempt {
    Open(Box<dyn Connecting>),
    Connected(Connected),
    Failed(TransportError),
    /// Nothing is to be polled: the rail was handed out, or is not dialled yet.
    Over,
}

impl RailsConnecting {
    pub(crate) fn new(
        with: &Arc<Shared>,
        address: &Address,
        secret: &Secret,
        text: &[u8],
        deadline: Instant,
    ) -> Result<RailsConnecting, TransportError> {
        if text.len() > TEXT_BYTES_MAX {
            let (bytes, most) = (text.len(), TEXT_BYTES_MAX);
            return Err(TransportError::TooLong { what: "hello", bytes, most });
        }
        let theirs = Addresses::decode(address);
        let (bytes, of) = (address.0.len(), "a multi-rail listener");
        let theirs = theirs.ok_or(TransportError::NoAddress { bytes, of })?;
        let id: LinkId = socket::random()?;
        // Each device of the side with more devices gets one rail. The other side's devices are
        // assigned to the rails in turn.
        let rails = theirs.count.max(with.devices.len());
        let known = theirs.known.len() as u8;
        let mut attempts = Vec::new();
        for rail in 0..rails {
            let Some(address) = theirs.of(rail) else {
                attempts.push(Attempt::Over);
                continue;
            };
            let device = &with.devices[rail % with.devices.len()];
            let (rail, rails) = (rail as u8, rails as u8);
            let text = text.to_vec();
            let hello = Hello { link: id, rail, rails, known, epoch: 0, text }.encode();
            attempts.push(Attempt::Open(device.connect(address, secret, &hello, deadline)?));
        }
        let dial = Dial { addresses: theirs, secret: secret.clone() };
        Ok(RailsConnecting { with: Arc::clone(with), id, dial, attempts, since: None })
    }
}

impl Connecting for RailsConnecting {
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        for attempt in &mut self.attempts {
            let Attempt::Open(connecting) = attempt else { continue };
            match connecting.poll(now) {
                Ok(None) => {}
                Ok(Some(connected)) => {
                    self.since.get_or_insert(now);
                    *attempt = Attempt::Connected(connected);
                }
                Err(error) => *attempt = Attempt::Failed(error),
            }
        }
        let is_open = self.attempts.iter().any(|attempt| matches!(attempt, Attempt::Open(_)));
        let is_late = self.since.is_some_and(|since| now.since(since) >= GATHER);
        if is_open && !is_late {
            return Ok(None);
        }
        let mut error = TransportError::HandedOut;
        let mut rails = Vec::new();
        for attempt in &mut self.attempts {
            rails.push(match std::mem::replace(attempt, Attempt::Over) {
                Attempt::Connected(connected) => Some(connected),
                Attempt::Failed(failed) => {
                    error = failed;
                    None
                }
                Attempt::Open(_) | Attempt::Over => None,
            });
        }
        if rails.iter().all(Option::is_none) {
            return Err(error);
        }
        let (with, id, from) =
            (Arc::clone(&self.with), self.id, LinkOrigin::Dialled(self.dial.clone()));
        let inner = Gathered { with, id, rails, from };
        Ok(Some(Connected { hello: Vec::new(), inner: Box::new(inner) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_and_addresses_survive_encoding() {
        let hello =
            Hello { link: [7; 16], rail: 3, rails: 4, known: 2, epoch: 9, text: vec![1; 64] };
        let bytes = hello.encode();
        assert!(bytes.len() <= ccl_core::transport::HELLO_BYTES_MAX);
        assert_eq!(Hello::decode(&bytes), Some(hello.clone()));
        for wrong in [
            Hello { rail: 4, ..hello.clone() },
            Hello { rails: 200, ..hello.clone() },
            Hello { text: vec![1; 65], ..hello },
        ] {
            assert_eq!(Hello::decode(&wrong.encode()), None);
        }
        let known = [&b"one"[..], b"", &[9; 300]].map(|bytes| Address(bytes.to_vec())).to_vec();
        let addresses = Addresses { count: 4, known };
        let address = addresses.encode();
        assert_eq!(Addresses::decode(&address), Some(addresses.clone()));
        for bytes in 0..address.0.len() {
            assert_eq!(Addresses::decode(&Address(address.0[..bytes].to_vec())), None, "{bytes}");
        }
        for wrong in
            [Addresses { count: 2, ..addresses.clone() }, Addresses { count: 17, ..addresses }]
        {
            assert_eq!(Addresses::decode(&wrong.encode()), None);
        }
        assert_eq!(Addresses::decode(&Address(vec![0xff; 300])), None);
    }

    #[test]
    fn the_last_devices_are_left_out_once_no_address_can_be_shortened() {
        let known = [&b"one"[..], b"two", b"three"].map(|bytes| Address(bytes.to_vec())).to_vec();
        let mut address = Addresses { count: 3, known }.encode();
        let shorter = |Address(bytes): &Address| {
            (bytes.len() > 1).then(|| Address(bytes[..bytes.len() - 1].to_vec()))
        };
        let mut left = Vec::new();
        while let Some(next) = shorten(&address, 1, shorter) {
            let Addresses { count, known } = Addresses::decode(&next).unwrap();
            assert_eq!(count, 3);
            left.push(known.into_iter().map(|Address(bytes)| bytes.len()).collect::<Vec<_>>());
            address = next;
        }
        let ends = [vec![1, 1, 1], vec![1, 1], vec![1]];
        assert_eq!(left[left.len() - 3..], ends);
        let is_least = |lengths: &Vec<usize>| lengths.iter().all(|length| *length == 1);
        assert!(left.iter().all(|lengths| lengths.len() == 3 || is_least(lengths)));
        assert_eq!(shorten(&address, 1, shorter), None);
        assert_eq!(shorten(&Address(vec![7; 9]), 1, shorter), None);
    }
}
