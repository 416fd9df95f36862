//! State of all devices, memory, queues and writes under way, behind one lock.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ccl_core::random::Random;
use libc::c_int;
use rdma_sys::*;

use crate::Limits;
use crate::objects::{self, Memory};

/// Traffic of a queue pair.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Number of the queue pair.
    pub number: u32,
    /// Traffic class of the connection.
    pub traffic_class: u8,
    /// Flow label of the connection.
    pub flow_label: u32,
    /// Path MTU, as `IBV_MTU_...`.
    pub mtu: u32,
    /// Number of retries if the receiver is not ready.
    pub rnr_retries: u8,
    /// Writes that have arrived.
    pub writes: u64,
    /// Bytes of the writes that have arrived.
    pub bytes: u64,
}

/// Failure of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) status: ibv_wc_status,
    /// True if the write has arrived nevertheless.
    pub(crate) arrives: bool,
}

/// Event with the number and the address of its queue pair. An event without a queue pair concerns
/// the port, the device or a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raised {
    pub(crate) event: ibv_event_type,
    pub(crate) pair: Option<(u32, usize)>,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: CString,
    pub(crate) limits: Limits,
    /// True if the device is in the list of devices.
    pub(crate) listed: bool,
    pub(crate) link: bool,
    /// Failure of the next write.
    pub(crate) fails: Option<Fault>,
    /// Open contexts by id, each with its unread events and the descriptor that signals them.
    pub(crate) opened: BTreeMap<u32, (c_int, VecDeque<Raised>)>,
    /// Traffic of destroyed queue pairs.
    past: Vec<Traffic>,
}

/// Completion queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) device: u32,
    pub(crate) room: usize,
    /// Completions, each with the number of its queue pair, and with a count of send requests:
    /// polling the completion frees the room that these requests occupy in the queue pair.
    pub(crate) completions: VecDeque<(ibv_wc, u32, usize)>,
    /// True if the next completion signals the channel.
    pub(crate) armed: bool,
    pub(crate) channel: Option<(c_int, usize)>,
}

/// Send request.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) id: u64,
    pub(crate) signaled: bool,
    pub(crate) immediate: Option<u32>,
    pub(crate) to: u64,
    pub(crate) key: u32,
    pub(crate) what: Payload,
}

/// Payload of a send request.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Bytes that were copied when the request was posted.
    Taken(Vec<u8>),
    /// Memory that is read when the request is sent.
    At(Vec<ibv_sge>),
}

impl Payload {
    fn bytes(&self) -> usize {
        match self {
            Payload::Taken(bytes) => bytes.len(),
            Payload::At(places) => places.iter().map(|place| place.length as usize).sum(),
        }
    }
}

/// Queue pair.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) device: u32,
    /// Context that created the queue pair.
    pub(crate) context: u32,
    pub(crate) domain: u32,
    pub(crate) number: u32,
    /// Address of the caller's queue pair object.
    pub(crate) address: usize,
    pub(crate) send_queue: u32,
    pub(crate) recv_queue: u32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) attr: ibv_qp_attr,
    pub(crate) sends: VecDeque<Send>,
    /// Count of send requests that occupy room: those in `sends`, those counted by `done`, and
    /// those whose room an unpolled completion will free.
    pub(crate) taken: usize,
    /// Count of send requests that have ended since the last completion. The next completion frees
    /// their room.
    pub(crate) done: usize,
    pub(crate) recvs: VecDeque<u64>,
    /// Number of times that the peer was not ready for the first of `sends`.
    pub(crate) tries: u32,
    pub(crate) traffic: Traffic,
}

#[derive(Debug)]
pub(crate) struct Network {
    last_id: u32,
    pub(crate) random: Random,
    pub(crate) devices: BTreeMap<u32, Device>,
    pub(crate) memory: BTreeMap<u32, Memory>,
    pub(crate) queues: BTreeMap<u32, Queue>,
    pub(crate) pairs: BTreeMap<u32, Pair>,
    /// Unread signals of each completion channel; a signal is the address of a completion queue.
    pub(crate) rung: BTreeMap<c_int, VecDeque<usize>>,
}

static NETWORK: Mutex<Network> = Mutex::new(Network {
    last_id: 0,
    random: Random::new(1),
    devices: BTreeMap::new(),
    memory: BTreeMap::new(),
    queues: BTreeMap::new(),
    pairs: BTreeMap::new(),
    rung: BTreeMap::new(),
});

pub(crate) fn lock() -> MutexGuard<'static, Network> {
    // One failed test must not fail all others.
    NETWORK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn device_name(id: u32) -> String {
    format!("soft{id}")
}

impl Network {
    pub(crate) fn under_way(&self, device: u32) -> usize {
        let pairs = self.pairs.values().filter(|pair| pair.device == device);
        let sends = pairs.flat_map(|pair| &pair.sends);
        sends.map(|send| send.what.bytes()).sum()
    }

    /// Returns a new number, which no other object has.
    pub(crate) fn next_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn add_device(&mut self, id: u32, limits: Limits) {
        self.random = Random::new(self.random.bits().wrapping_add(limits.seed));
        let (opened, past) = (BTreeMap::new(), Vec::new());
        let name = CString::new(device_name(id)).unwrap_or_default();
        let device = Device { name, limits, listed: true, link: true, fails: None, opened, past };
        self.devices.insert(id, device);
    }

    pub(crate) fn remove_device(&mut self, id: u32) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.listed = false;
        }
        self.forget(id);
    }

    /// Removes a device if it is neither listed nor open.
    pub(crate) fn forget(&mut self, id: u32) {
        let unused = |device: &Device| !device.listed && device.opened.is_empty();
        if self.devices.get(&id).is_some_and(unused) {
            self.devices.remove(&id);
        }
    }

    pub(crate) fn set_link(&mut self, id: u32, up: bool) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        if std::mem::replace(&mut device.link, up) != up {
            self.raise(id, if up { IBV_EVENT_PORT_ACTIVE } else { IBV_EVENT_PORT_ERR });
        }
    }

    pub(crate) fn set_gids(&mut self, id: u32, gids: Vec<Option<([u8; 16], u32)>>) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.limits.gids = gids;
        }
    }

    pub(crate) fn fail_next(&mut self, id: u32, fault: Fault) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.fails = Some(fault);
        }
    }

    pub(crate) fn raise(&mut self, id: u32, event: ibv_event_type) {
        if !matches!(event, IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR) {
            return self.tell(id, |_| true, Raised { event, pair: None });
        }
        let pairs = self.pairs.values().filter(|pair| pair.device == id);
        let numbers: Vec<u32> = pairs.map(|pair| pair.number).collect();
        for number in numbers {
            let Some(mut pair) = self.pairs.remove(&number) else { continue };
            self.fail(&mut pair);
            let raised = Raised { event, pair: Some((number, pair.address)) };
            self.tell(id, |context| context == pair.context, raised);
            self.pairs.insert(number, pair);
        }
    }

    /// Sends an event to each open context of a device, if `whom` accepts the id of the context.
    fn tell(&mut self, id: u32, whom: impl Fn(u32) -> bool, raised: Raised) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let opened = device.opened.iter_mut().filter(|(context, _)| whom(**context));
        for (descriptor, events) in opened.map(|(_, opened)| opened) {
            events.push_back(raised);
            objects::wake(*descriptor);
        }
    }

    pub(crate) fn traffic(&self, id: u32) -> Vec<Traffic> {
        let past = self.devices.get(&id).map_or(&[][..], |device| &device.past);
        let pairs = self.pairs.values().filter(|pair| pair.device == id);
        let mut all: Vec<Traffic> =
            past.iter().copied().chain(pairs.map(|pair| pair.traffic)).collect();
        all.sort_by_key(|traffic| traffic.number);
        all
    }

    pub(crate) fn in_use(&self, id: u32) -> (usize, usize) {
        let pairs = self.pairs.values().filter(|pair| pair.device == id).count();
        (pairs, self.memory.values().filter(|memory| memory.device == id).count())
    }

    pub(crate) fn remove_pair(&mut self, number: u32) {
        let Some(pair) = self.pairs.remove(&number) else { return };
        if let Some(device) = self.devices.get_mut(&pair.device) {
            device.past.push(pair.traffic);
            // The unread events of a destroyed queue pair are dropped.
            let is_other = |raised: &Raised| raised.pair.is_none_or(|(of, _)| of != number);
            device.opened.values_mut().for_each(|(_, events)| events.retain(is_other));
        }
        for queue in [pair.send_queue, pair.recv_queue] {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.completions.retain(|(completion, ..)| completion.qp_num != number);
            }
        }
    }

    /// Returns a random number below `below`.
    pub(crate) fn draw(&mut self, below: usize) -> usize {
        self.random.below(below as u64) as usize
    }
}
