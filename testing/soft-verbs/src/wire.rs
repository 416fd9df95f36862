//! Progress of posted requests.

use rdma_sys::*;

use crate::network::{Network, Pair, Payload, Send};
use crate::objects;

/// Largest number of steps of progress for each poll of a queue.
const STEPS: usize = 8;
/// Number of attempts that count as one retry while the receiver is not ready.
const ASKS_PER_RETRY: u32 = 64;
/// Retry count that means to retry forever.
const FOR_EVER: u8 = 7;

/// Result of trying the first request of a queue pair.
enum Outcome {
    /// The request has arrived, with this many bytes.
    Arrived(u64),
    /// The request waits.
    Waits,
    /// The request failed.
    Failed(ibv_wc_status),
    /// The request failed at the peer, whose queue pair fails too.
    Refused(ibv_wc_status),
}

impl Network {
    /// Makes a random number of steps of progress on requests.
    pub(crate) fn travel(&mut self) {
        for _ in 0..self.draw(STEPS + 1) {
            let loaded: Vec<u32> =
                self.pairs.iter().filter(|(_, p)| !p.sends.is_empty()).map(|(n, _)| *n).collect();
            if loaded.is_empty() {
                return;
            }
            let number = loaded[self.draw(loaded.len())];
            self.step(number);
        }
    }

    fn step(&mut self, number: u32) {
        let Some(mut pair) = self.pairs.remove(&number) else { return };
        if let Some(send) = pair.sends.pop_front() {
            match self.send(&mut pair, &send) {
                Outcome::Waits => pair.sends.push_front(send),
                Outcome::Arrived(bytes) => {
                    pair.traffic.writes += 1;
                    pair.traffic.bytes += bytes;
                    pair.tries = 0;
                    self.sent(&mut pair, &send, IBV_WC_SUCCESS);
                }
                Outcome::Failed(status) => {
                    self.sent(&mut pair, &send, status);
                    self.fail(&mut pair);
                }
                Outcome::Refused(status) => {
                    self.sent(&mut pair, &send, status);
                    self.fail(&mut pair);
                    if let Some(mut peer) = self.pairs.remove(&pair.attr.dest_qp_num) {
                        self.fail(&mut peer);
                        self.pairs.insert(peer.number, peer);
                    }
                }
            }
        }
        self.pairs.insert(number, pair);
    }

    /// Carries a request to the peer.
    fn send(&mut self, pair: &mut Pair, send: &Send) -> Outcome {
        if pair.attr.qp_state == IBV_QPS_ERR {
            return Outcome::Failed(IBV_WC_WR_FLUSH_ERR);
        }
        let Some(device) = self.devices.get_mut(&pair.device) else { return Outcome::Waits };
        if !device.link {
            return Outcome::Waits;
        }
        if let Some(fault) = device.fails.take_if(|fault| !fault.arrives) {
            return Outcome::Failed(fault.status);
        }
        let bytes = match &send.what {
            Payload::Taken(bytes) => bytes.clone(),
            Payload::At(places) => match self.gather(pair, places) {
                Some(bytes) => bytes,
                None => return Outcome::Failed(IBV_WC_LOC_PROT_ERR),
            },
        };
        let Some(peer) = self.peer(pair) else { return Outcome::Failed(IBV_WC_RETRY_EXC_ERR) };
        let to = self.pairs.get(&peer).map_or((0, 0), |peer| (peer.device, peer.domain));
        if self.devices.get(&to.0).is_some_and(|device| !device.link) {
            return Outcome::Waits;
        }
        if send.immediate.is_some() && self.pairs[&peer].recvs.is_empty() {
            pair.tries += 1;
            let patience = u32::from(pair.attr.rnr_retry) * ASKS_PER_RETRY;
            let over = pair.attr.rnr_retry != FOR_EVER && pair.tries > patience;
            return if over { Outcome::Failed(IBV_WC_RNR_RETRY_EXC_ERR) } else { Outcome::Waits };
        }
        if !bytes.is_empty() && !self.allows(to, send, bytes.len()) {
            return Outcome::Refused(IBV_WC_REM_ACCESS_ERR);
        }
        objects::store(send.to, &bytes);
        if let Some(immediate) = send.immediate {
            self.arrive(peer, immediate, bytes.len());
        }
        let late = self.devices.get_mut(&pair.device).and_then(|device| device.fails.take());
        if let Some(fault) = late {
            return Outcome::Failed(fault.status);
        }
        Outcome::Arrived(bytes.len() as u64)
    }

    /// Returns the peer's queue pair, if it is ready and connected to this one.
    fn peer(&self, pair: &Pair) -> Option<u32> {
        let peer = self.pairs.get(&pair.attr.dest_qp_num)?;
        let to = &pair.attr.ah_attr.grh.dgid.raw;
        let gids = &self.devices.get(&peer.device)?.limits.gids;
        let addressed = gids.iter().flatten().any(|(gid, _)| gid == to);
        let ready = [IBV_QPS_RTR, IBV_QPS_RTS].contains(&peer.attr.qp_state);
        (addressed && ready && peer.attr.dest_qp_num == pair.number).then_some(peer.number)
    }

    fn gather(&self, pair: &Pair, places: &[ibv_sge]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for place in places.iter().filter(|place| place.length > 0) {
            let memory = self.memory.get(&place.lkey)?;
            let inside = memory.holds(place.addr, place.length as usize);
            if !inside || (memory.device, memory.domain) != (pair.device, pair.domain) {
                return None;
            }
            objects::load(place.addr, place.length as usize, &mut bytes);
        }
        Some(bytes)
    }

    fn allows(&self, to: (u32, u32), send: &Send, bytes: usize) -> bool {
        self.memory.get(&send.key).is_some_and(|memory| {
            (memory.device, memory.domain) == to
                && memory.access & IBV_ACCESS_REMOTE_WRITE != 0
                && memory.holds(send.to, bytes)
        })
    }

    /// Completes a receive request of the peer.
    fn arrive(&mut self, peer: u32, immediate: u32, bytes: usize) {
        let Some(pair) = self.pairs.get_mut(&peer) else { return };
        let Some(wr_id) = pair.recvs.pop_front() else { return };
        let completion = ibv_wc {
            wr_id,
            status: IBV_WC_SUCCESS,
            opcode: IBV_WC_RECV_RDMA_WITH_IMM,
            byte_len: bytes as u32,
            imm_data: immediate,
            qp_num: peer,
            wc_flags: IBV_WC_WITH_IMM,
            ..ibv_wc::default()
        };
        let queue = pair.recv_queue;
        self.complete(queue, completion, 0);
    }

    /// Ends a send request; it gets a completion if it is signaled or has failed.
    fn sent(&mut self, pair: &mut Pair, send: &Send, status: ibv_wc_status) {
        pair.done += 1;
        if !send.signaled && status == IBV_WC_SUCCESS {
            return;
        }
        let completion = ibv_wc {
            wr_id: send.id,
            status,
            opcode: IBV_WC_RDMA_WRITE,
            qp_num: pair.number,
            ..ibv_wc::default()
        };
        let frees = std::mem::take(&mut pair.done);
        self.complete(pair.send_queue, completion, frees);
    }

    /// Puts a queue pair into the error state and flushes all of its requests.
    pub(crate) fn fail(&mut self, pair: &mut Pair) {
        pair.attr.qp_state = IBV_QPS_ERR;
        while let Some(send) = pair.sends.pop_front() {
            self.sent(pair, &send, IBV_WC_WR_FLUSH_ERR);
        }
        while let Some(wr_id) = pair.recvs.pop_front() {
            let (status, qp_num) = (IBV_WC_WR_FLUSH_ERR, pair.number);
            let completion =
                ibv_wc { wr_id, status, qp_num, opcode: IBV_WC_RECV, ..ibv_wc::default() };
            self.complete(pair.recv_queue, completion, 0);
        }
    }

    fn complete(&mut self, queue: u32, completion: ibv_wc, frees: usize) {
        let Some(queue) = self.queues.get_mut(&queue) else { return };
        if queue.completions.len() >= queue.room {
            let device = queue.device;
            return self.raise(device, IBV_EVENT_CQ_ERR);
        }
        queue.completions.push_back((completion, completion.qp_num, frees));
        if std::mem::take(&mut queue.armed)
            && let Some((bell, queue)) = queue.channel
        {
            self.rung.entry(bell).or_default().push_back(queue);
            objects::wake(bell);
        }
    }
}
