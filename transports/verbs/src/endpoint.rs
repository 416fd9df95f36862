//! A link between two lanes: its queue pairs, its side connection, and its outstanding puts.

use std::collections::VecDeque;
use std::sync::Arc;

use ccl_core::queue_pairs::{Flow, Striping};
use ccl_core::time::Instant;
use ccl_core::transport::{IMMEDIATE_MAX, NOTE_BYTES_MAX, TransportError};
use ccl_socket::{BreakLimits, Link, LinkId, SideLink, SideMessage};
use rdma_sys::{IBV_QPF_GRH_REQUIRED, ibv_wc};

use crate::error::{ConnectError, EndpointError};
use crate::gid;
use crate::group::{self, Groups, Need, Selection};
use crate::load::Load;
use crate::memory::Shared;
use crate::native::{Memory, Pair, Path, Queue, Room};
use crate::offer::Offer;
use crate::open::OpenPuts;
use crate::port::{Located, Port};
use crate::queue_pair::{Put, QueuePair};
use crate::{Options, status};

/// Largest number of data puts outstanding on one endpoint. Also the limit on control puts (credits
/// and CTS) that are not handed to the device yet, and on puts of the peer that arrived in part.
pub(crate) const DEPTH_MAX: usize = 1024;
/// Position, in an immediate, of the field that holds one less than the put's number of parts.
const PARTS_SHIFT: u32 = IMMEDIATE_MAX.count_ones();
/// Greatest length of a reason that is sent to the peer, in characters of up to 4 bytes: the reason
/// must fit a side message.
const REASON_CHARS_MAX: usize = NOTE_BYTES_MAX / 4;
/// The UDP port of RoCE, version 2.
const ROCE_PORT: u16 = 4791;
/// Number of bits of a flow label.
const FLOW_LABEL_BITS: u32 = 20;

/// Stage of the connection between the two sides' queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The peer's queue pairs are not known yet.
    Offered,
    /// The queue pairs are connected from this side, and perhaps not from the other.
    Connected,
    /// The queue pairs are connected from both sides.
    Live,
}

/// A waiting put, and its memory, which must stay valid until the put is posted: inline bytes are
/// copied only then.
#[derive(Debug)]
struct Waiting {
    put: Put,
    _memory: Memories,
}

/// Memory of a put's source, and of its tail (bytes that follow, from another location).
pub(crate) type Memories = [Option<Arc<Memory>>; 2];

/// One end of a link.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: LinkId,
    pub(crate) dialled: bool,
    pub(crate) peer: String,
    pub(crate) side: SideLink,
    port: Arc<Port>,
    stage: Stage,
    /// Time at which the current wait for the peer began: for its offer, or for its `Ready`.
    joining_since: Option<Instant>,
    own: Offer,
    /// Rows of the offered addresses in the port's GID table.
    rows: Vec<u32>,
    /// Queue pairs, in the order of [`group::needs`].
    queue_pairs: Vec<QueuePair>,
    groups: Groups,
    /// Data puts that are not handed to the device yet.
    pending: VecDeque<Waiting>,
    /// Credits and CTS that are not handed to the device yet; they do not wait for data.
    control: VecDeque<Waiting>,
    /// Waiting puts whose writes are prepared; their memory is kept until the writes are posted.
    posting: Vec<Waiting>,
    /// Number of bytes of all writes that are prepared or posted, but not done. The lane's load
    /// includes these bytes.
    pub(crate) under_way: usize,
    /// Indices of the queue pairs with writes that are prepared and not handed to the device yet.
    staged: Vec<usize>,
    /// True if the lane knows that the endpoint has something to [pump](Endpoint::pump).
    pub(crate) is_active: bool,
    /// Puts that were posted to the device and are not done.
    open: OpenPuts,
    /// Puts of the peer that have arrived in part.
    partial: Vec<Partial>,
    /// The endpoint's number, shifted to its bits in the ids of work requests.
    name: u64,
    /// Reason why the link is about to be lost. Outstanding completions of its queue pairs are
    /// handled first.
    failed: Option<String>,
    pub(crate) lost: Option<String>,
    pub(crate) reported: bool,
    /// True once the endpoint's farewell has begun.
    pub(crate) is_leaving: bool,
}

/// Fields of a completion's work request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkRequestId {
    pub(crate) endpoint: usize,
    queue_pair: usize,
    is_receive: bool,
    number: u32,
}

const ENDPOINT_SHIFT: u32 = 44;
const QUEUE_PAIR_SHIFT: u32 = 33;
const RECEIVE: u64 = 1 << 32;

impl WorkRequestId {
    pub(crate) fn of(completion: &ibv_wc) -> WorkRequestId {
        let id = completion.wr_id;
        WorkRequestId {
            endpoint: (id >> ENDPOINT_SHIFT) as usize,
            queue_pair: (id >> QUEUE_PAIR_SHIFT) as usize & 0x7ff,
            is_receive: id & RECEIVE != 0,
            number: id as u32,
        }
    }
}

/// A put of the peer that has arrived in part.
#[derive(Debug)]
struct Partial {
    immediate: u32,
    missing: u32,
    bytes: usize,
}

/// Outcome of a completion for the lane.
pub(crate) enum CompletionOutcome {
    Nothing,
    /// A put with this immediate and this many bytes has arrived.
    Arrived(u32, usize),
}

impl Endpoint {
    /// Makes the queue pairs, and offers them to the peer. `number` is unique within the lane.
    pub(crate) fn new(
        link: Link,
        number: usize,
        port: &Arc<Port>,
        queue: &Arc<Queue>,
        options: &Options,
    ) -> Result<Endpoint, TransportError> {
        let name = (number as u64) << ENDPOINT_SHIFT;
        let mut queue_pairs = Vec::new();
        for need in group::needs(options) {
            let mut pair = Pair::new(&port.domain, queue, room(port, options, need))?;
            pair.prepare(port.number, port.partition)?;
            let mut made = QueuePair::new(pair, !options.acknowledged);
            made.open(name | (queue_pairs.len() as u64) << QUEUE_PAIR_SHIFT | RECEIVE)?;
            queue_pairs.push(made);
        }
        let [a, b, c, d] = ccl_socket::socket::random::<4>()?;
        let Located { choice, others, lid, mtu: active, .. } = port.locate(&options.gid)?;
        let rows = std::iter::once(&choice.row).chain(&others).map(|row| row.index).collect();
        let own = Offer {
            gid: choice.row.gid,
            others: others.iter().map(|row| row.gid).collect(),
            lid,
            link_layer: port.attr.link_layer,
            mtu: options.mtu().map_or(active, |mtu| mtu.min(active)),
            first_psn: u32::from_be_bytes([0, a, b ^ d, c]),
            pairs: queue_pairs.iter().map(QueuePair::number).collect(),
        };
        let missing = TransportError::Internal { what: "a link without a connection" };
        let mut side = SideLink::new(link).ok_or(missing)?;
        side.send(&SideMessage::Offer(own.encode()));
        Ok(Endpoint {
            id: side.id(),
            dialled: side.is_dialled(),
            peer: side.peer().to_owned(),
            side,
            port: Arc::clone(port),
            stage: Stage::Offered,
            joining_since: None,
            rows,
            own,
            queue_pairs,
            groups: Groups::new(options),
            pending: VecDeque::new(),
            control: VecDeque::new(),
            posting: Vec::new(),
            under_way: 0,
            staged: Vec::new(),
            is_active: false,
            open: OpenPuts::default(),
            partial: Vec::new(),
            name,
            failed: None,
            lost: None,
            reported: false,
            is_leaving: false,
        })
    }

    /// Returns whether the peer has shared this memory over this link.
    pub(crate) fn is_theirs(&self, shared: &Shared) -> bool {
        shared.link == self.id && shared.dialled != self.dialled
    }

    /// Returns whether the link has failed or is lost: its queue pairs get no more writes.
    pub(crate) fn has_ended(&self) -> bool {
        self.failed.is_some() || self.lost.is_some()
    }

    pub(crate) fn is_live(&self) -> bool {
        self.stage == Stage::Live || self.lost.is_some()
    }

    /// Returns whether the endpoint takes one more put. Data puts count until they are done,
    /// credits and CTS only while they wait. The queue-pair rule in force also bounds the data puts
    /// under way (`write_now`).
    pub(crate) fn takes(&self, put: &Put) -> bool {
        let outstanding = match put.is_control {
            true => self.control.len(),
            false => self.pending.len() + self.open.data(),
        };
        outstanding < DEPTH_MAX
    }

    /// Sets the striping of puts from now on.
    pub(crate) fn apply(&mut self, striping: &Striping) {
        self.groups.apply(striping);
    }

    /// Returns the flows of the queue pairs that data puts use now, as an Ethernet fabric sees
    /// them.
    pub(crate) fn flows(&self) -> Vec<Flow> {
        let queue_pairs = self.queue_pairs.get(self.groups.range()).unwrap_or_default();
        let is_ethernet = self.port.is_ethernet();
        let paths =
            queue_pairs.iter().filter_map(|queue_pair| queue_pair.path().filter(|_| is_ethernet));
        let flow = |path: &Path| Flow {
            from: gid::ip(self.own.gid),
            to: gid::ip(path.peer_gid),
            source_port: source_port(path.flow_label),
            destination_port: ROCE_PORT,
            traffic_class: path.traffic_class,
            queue_pair: path.peer_number,
        };
        paths.map(flow).collect()
    }

    /// Returns whether a put waits for room, or for the peer's queue pairs.
    pub(crate) fn waits(&self) -> bool {
        !self.pending.is_empty() || !self.control.is_empty()
    }

    /// Returns whether all puts were posted to the device, and all messages written to the socket.
    pub(crate) fn is_drained(&self) -> bool {
        self.lost.is_some() || (!self.waits() && self.side.is_settled())
    }

    /// Returns whether all puts have reached the peer.
    pub(crate) fn is_delivered(&self) -> bool {
        let are_empty = self.queue_pairs.iter().all(|queue_pair| queue_pair.is_empty());
        self.lost.is_some() || (are_empty && self.is_drained())
    }

    /// Takes a put. [`Endpoint::pump`] must follow before the put's memory may be freed. Appends to
    /// `done` the ids of puts that are thereby done.
    pub(crate) fn put(
        &mut self,
        put: &Put,
        memory: impl FnOnce() -> Memories,
        load: &mut Load,
        done: &mut Vec<u64>,
    ) {
        let queue = if put.is_control { &self.control } else { &self.pending };
        if self.stage == Stage::Live && queue.is_empty() && self.write_now(put, load, done) {
            return;
        }
        let queue = if put.is_control { &mut self.control } else { &mut self.pending };
        queue.push_back(Waiting { put: *put, _memory: memory() });
    }

    /// Prepares the writes of a put. Returns whether there was room.
    fn write_now(&mut self, put: &Put, load: &mut Load, done: &mut Vec<u64>) -> bool {
        let bytes = put.bytes();
        let selection = if put.is_control {
            Groups::aside(&self.queue_pairs, bytes)
        } else if self.open.data() >= self.groups.in_flight() {
            None
        } else if load.admits(bytes, self.groups.budget_bytes()) {
            self.groups.selection(&self.queue_pairs, bytes)
        } else {
            None
        };
        let Some(selection) = selection else { return false };
        self.write(put, selection, load, done);
        true
    }

    /// Prepares waiting credits and CTS, and up to `most` waiting data puts, while there is room.
    /// Then hands all prepared writes to the device. Appends to `done` the ids of puts that are
    /// thereby done. Returns whether any waiting data puts were handed over.
    pub(crate) fn pump(&mut self, most: usize, load: &mut Load, done: &mut Vec<u64>) -> bool {
        if self.stage != Stage::Live || self.has_ended() {
            return false;
        }
        while let Some(waiting) = self.control.pop_front() {
            if !self.write_now(&waiting.put, load, done) {
                self.control.push_front(waiting);
                break;
            }
            self.posting.push(waiting);
        }
        let mut moved = 0;
        while moved < most
            && let Some(waiting) = self.pending.pop_front()
        {
            if !self.write_now(&waiting.put, load, done) {
                self.pending.push_front(waiting);
                break;
            }
            self.posting.push(waiting);
            moved += 1;
        }
        let Endpoint { queue_pairs, staged, .. } = self;
        let rung = staged.drain(..).try_for_each(|at| queue_pairs[at].post_staged());
        self.posting.clear();
        self.check(rung);
        moved > 0
    }

    /// Prepares the writes of a put.
    fn write(&mut self, put: &Put, selection: Selection, load: &mut Load, done: &mut Vec<u64>) {
        let bytes = put.bytes();
        if selection.parts == 1 && self.queue_pairs[selection.queue_pair(0)].is_early(bytes) {
            self.write_part(put, None, selection.queue_pair(0), (0, bytes), put.immediate);
            return done.push(put.id);
        }
        let index = self.open.add(put.id, selection.parts, !put.is_control);
        let parts = (selection.parts as u32 - 1) << PARTS_SHIFT;
        let immediate = put.immediate.map(|immediate| immediate | parts);
        for part in 0..selection.parts {
            let (at, start) = (selection.queue_pair(part), part * selection.part_bytes);
            let range = (start, (start + selection.part_bytes).min(bytes));
            let is_early = self.queue_pairs[at].is_early(range.1 - range.0);
            let open = (!is_early).then_some(index);
            self.write_part(put, open, at, range, immediate);
            if is_early {
                self.open.part_done(index, done);
            } else {
                self.under_way += range.1 - range.0;
                load.add(range.1 - range.0);
            }
        }
    }

    /// Prepares, on queue pair `at`, the write of a part of a put: the bytes `range.0..range.1`.
    /// `open` is the put's index in `self.open`; none if the write counts as done as soon as
    /// it is posted.
    fn write_part(
        &mut self,
        put: &Put,
        open: Option<usize>,
        at: usize,
        range: (usize, usize),
        immediate: Option<u32>,
    ) {
        let name = self.name | (at as u64) << QUEUE_PAIR_SHIFT;
        let queue_pair = &mut self.queue_pairs[at];
        if !queue_pair.is_staged() {
            self.staged.push(at);
        }
        queue_pair.write(put, open, range, immediate, name);
    }

    /// Requests completions of writes that were reported done early, so that
    /// [`Endpoint::is_delivered`] becomes true.
    pub(crate) fn flush(&mut self) {
        if self.stage != Stage::Live || self.has_ended() {
            return;
        }
        let name = self.name;
        let mut queue_pairs = self.queue_pairs.iter_mut().enumerate();
        let flushed = queue_pairs.try_for_each(|(at, queue_pair)| {
            queue_pair.flush(name | (at as u64) << QUEUE_PAIR_SHIFT)
        });
        self.check(flushed);
    }

    fn check(&mut self, result: Result<(), TransportError>) {
        if let Err(error) = result {
            self.fail(format!("{}: {error}", self.peer));
        }
    }

    /// Stops the queue pairs of a link that has failed. The link is lost once
    /// [`Endpoint::is_silent`] returns true, or when that takes too long.
    pub(crate) fn fail(&mut self, reason: String) {
        if self.is_failing() || self.lost.is_some() {
            return;
        }
        self.failed = Some(reason);
        self.queue_pairs.iter_mut().for_each(QueuePair::stop);
    }

    /// Returns whether the link is about to be lost.
    pub(crate) fn is_failing(&self) -> bool {
        self.failed.is_some() && self.lost.is_none()
    }

    /// Returns whether all queue pairs have reported their last completions.
    pub(crate) fn is_silent(&self) -> bool {
        self.queue_pairs.iter().all(|queue_pair| queue_pair.is_flushed)
    }

    /// Loses the link if it has failed.
    pub(crate) fn lose_failed(&mut self) {
        let Some(mut reason) = self.failed.take() else { return };
        let numbers = self.queue_pairs.iter().map(QueuePair::number);
        let failure = |pair| self.port.take_failure(pair).map(|how| (pair, how));
        if let Some((pair, how)) = numbers.filter_map(failure).next() {
            reason = format!("{reason}; an event of queue pair {pair} says that {how}");
        }
        self.lose(reason);
    }

    /// Handles a completion of this endpoint. Appends to `done` the ids of puts that are done.
    pub(crate) fn completed(
        &mut self,
        name: WorkRequestId,
        completion: &ibv_wc,
        load: &mut Load,
        done: &mut Vec<u64>,
    ) -> CompletionOutcome {
        let (at, number) = (name.queue_pair, name.number);
        if self.lost.is_some() || at >= self.queue_pairs.len() {
            return CompletionOutcome::Nothing;
        }
        if completion.status != rdma_sys::IBV_WC_SUCCESS {
            let what = if name.is_receive { "a receive from" } else { "a write to" };
            if self.failed.is_none() {
                self.fail(self.failure(what, &self.queue_pairs[at], completion));
            }
            // Receives complete in order, so no successful one comes after a failed one.
            self.queue_pairs[at].is_flushed |= name.is_receive;
            return CompletionOutcome::Nothing;
        }
        if !name.is_receive {
            let open = &mut self.open;
            let freed = self.queue_pairs[at].done(number, |put| open.part_done(put, done));
            self.under_way -= freed;
            load.done(freed);
            return CompletionOutcome::Nothing;
        }
        if self.failed.is_none() {
            let heard = self.queue_pairs[at]
                .count_immediate(self.name | (at as u64) << QUEUE_PAIR_SHIFT | RECEIVE);
            self.check(heard);
        }
        self.arrived(u32::from_be(completion.imm_data), completion.byte_len as usize)
    }

    /// Counts the parts of a put, which arrive in any order; the put has arrived with the last one.
    fn arrived(&mut self, immediate: u32, bytes: usize) -> CompletionOutcome {
        let (parts, immediate) = (immediate >> PARTS_SHIFT, immediate & IMMEDIATE_MAX);
        if parts == 0 {
            return CompletionOutcome::Arrived(immediate, bytes);
        }
        let Some(at) = self.partial.iter().position(|one| one.immediate == immediate) else {
            if self.partial.len() == DEPTH_MAX {
                self.lose(format!("{} has more incomplete puts than the limit", self.peer));
            } else {
                self.partial.push(Partial { immediate, missing: parts, bytes });
            }
            return CompletionOutcome::Nothing;
        };
        let partial = &mut self.partial[at];
        partial.bytes += bytes;
        partial.missing -= 1;
        if partial.missing > 0 {
            return CompletionOutcome::Nothing;
        }
        CompletionOutcome::Arrived(immediate, self.partial.swap_remove(at).bytes)
    }

    fn failure(&self, what: &str, queue_pair: &QueuePair, completion: &ibv_wc) -> String {
        let (name, meaning) = status::meaning(completion.status);
        format!(
            "{what} {} failed on queue pair {} of {} ({} to {}): {name} (status {}, vendor \
             error {:#x}); {meaning}",
            self.peer,
            queue_pair.number(),
            self.port.name(),
            gid::ip(self.own.gid),
            queue_pair.peer_text(),
            completion.status,
            completion.vendor_err,
        )
    }

    /// Handles the peer's messages on the side connection. Appends the peer's notes to `notes`. A
    /// broken connection is no error once this side's queue pairs are connected.
    pub(crate) fn receive_messages(
        &mut self,
        now: Instant,
        words: &mut Vec<SideMessage>,
        notes: &mut Vec<Vec<u8>>,
        options: &Options,
    ) -> Result<(), EndpointError> {
        // Once offers are exchanged, both sides can reconnect a broken side connection.
        let listened = self.side.receive(words, self.stage != Stage::Offered, now);
        // Only an offer of queue pairs begins a new wait for the peer; notes do not.
        let offers = |word: &SideMessage| matches!(word, SideMessage::Offer(_));
        self.joining_since = self.joining_since.filter(|_| !words.iter().any(offers));
        for word in words.drain(..) {
            match word {
                SideMessage::Note(bytes) => notes.push(bytes),
                SideMessage::Ready if self.stage == Stage::Connected => {
                    tracing::debug!(
                        self.peer,
                        port = self.port.name(),
                        "queue pairs are connected"
                    );
                    self.stage = Stage::Live;
                }
                SideMessage::Offer(bytes) if self.stage == Stage::Offered => {
                    let connected = self.connect(&bytes, options);
                    connected.map_err(|error| EndpointError::connect(&self.peer, error))?;
                }
                // The peer's reason says more than this side's own error would.
                SideMessage::Failed(reason) => {
                    return Err(EndpointError::Failed { peer: self.peer.clone(), reason });
                }
                SideMessage::Ready
                | SideMessage::Offer(_)
                | SideMessage::Leaving(_)
                | SideMessage::Counts { .. }
                | SideMessage::Received => {
                    return Err(EndpointError::OutOfTurn { peer: self.peer.clone() });
                }
            }
        }
        Ok(listened?)
    }

    /// Connects the queue pairs with those that the peer offers.
    fn connect(&mut self, offer: &[u8], options: &Options) -> Result<(), ConnectError> {
        let mut theirs = Offer::decode(offer).ok_or(ConnectError::NoOffer)?;
        if theirs.pairs.len() != self.queue_pairs.len() {
            let (theirs, own) = (theirs.pairs.len(), self.queue_pairs.len());
            return Err(ConnectError::Pairs { theirs, own });
        }
        if theirs.link_layer != self.own.link_layer {
            return Err(ConnectError::LinkLayers);
        }
        let (mine, their) = (self.own.gids(), theirs.gids());
        let (at, to) = match self.dialled {
            true => gid::meet(&mine, &their),
            false => {
                let (to, at) = gid::meet(&their, &mine);
                (at, to)
            }
        };
        // From now on, error messages name the addresses that this link uses.
        (self.own.gid, theirs.gid) = (mine[at], their[to]);
        let (own, their) = (gid::ip(self.own.gid), gid::ip(theirs.gid));
        if self.port.is_ethernet() && own.is_ipv4() != their.is_ipv4() {
            return Err(ConnectError::Families { their, own });
        }
        let row = self.rows.get(at).copied().unwrap_or_default();
        let row = u8::try_from(row).map_err(|_| ConnectError::Row(row))?;
        let dialler = if self.dialled { &self.own } else { &theirs };
        let ethernet = self.port.is_ethernet();
        let required = self.port.attr.flags & IBV_QPF_GRH_REQUIRED != 0;
        let routed = ethernet || required || theirs.gid[..8] != self.own.gid[..8];
        let mut path = Path {
            port: self.port.number,
            partition: self.port.partition,
            gid_index: routed.then_some(row),
            peer_gid: theirs.gid,
            peer_lid: theirs.lid,
            peer_number: 0,
            first_psn: dialler.first_psn,
            mtu: self.own.mtu.min(theirs.mtu),
            service_level: options.service_level,
            traffic_class: options.traffic_class,
            flow_label: 0,
            timeout: options.timeout,
            retries: options.retries,
            rnr_retries: options.rnr_retries,
        };
        let queue_pairs = self.queue_pairs.iter_mut().zip(&theirs.pairs).zip(group::needs(options));
        for (at, ((queue_pair, number), need)) in queue_pairs.enumerate() {
            path.peer_number = *number;
            path.traffic_class = need.traffic_class;
            path.flow_label = flow_label(&self.id, at);
            queue_pair.connect(&path)?;
        }
        self.stage = Stage::Connected;
        self.side.send(&SideMessage::Ready);
        Ok(())
    }

    /// Reconnects a broken side connection, and loses the link if the two sides have not connected
    /// their queue pairs in time. Returns whether there is a new side connection.
    pub(crate) fn look_after(&mut self, now: Instant, options: &Options) -> bool {
        let may_mend = self.stage != Stage::Offered && !self.has_ended();
        let limits =
            BreakLimits { unreachable: options.link_within, silent: options.silent_within };
        let mended = if may_mend { self.side.reconnect(&limits, now) } else { Ok(false) };
        let is_back = mended.unwrap_or_else(|end| {
            self.fail(end.to_string());
            false
        });
        if is_back || self.is_live() {
            return is_back;
        }
        let since = *self.joining_since.get_or_insert(now);
        if now.since(since) >= options.join_within {
            self.lose(format!(
                "{} did not connect its queue pairs within {:?}: is its process stopped, or does \
                 its lane wait for something else?",
                self.peer, options.join_within
            ));
        }
        false
    }

    /// Loses the link for good, and tells the peer the reason. Ends the queue pairs: neither side
    /// writes to the other's memory any more.
    pub(crate) fn lose(&mut self, reason: String) {
        if self.lost.is_none() {
            tracing::debug!(self.peer, port = self.port.name(), reason, "a link is lost");
            self.side.send(&SideMessage::Failed(reason.chars().take(REASON_CHARS_MAX).collect()));
            self.lost = Some(reason);
        }
        self.queue_pairs.clear();
        self.staged.clear();
        self.pending.clear();
        self.control.clear();
        self.open.clear();
        self.side.close();
    }
}

/// Returns the room to request for a queue pair: its share of the link's room, within the device's
/// limit.
fn room(port: &Port, options: &Options, need: Need) -> Room {
    let most = port.limits.max_qp_wr.max(1) as u32;
    let (writes, immediates) = (need.writes.clamp(2, most.max(2)), need.immediates.clamp(1, most));
    Room { writes, immediates, inline_bytes: options.inline_bytes }
}

/// Returns the most completions that a link can cause.
pub(crate) fn completions(port: &Port, options: &Options) -> usize {
    let rooms = group::needs(options).map(|need| room(port, options, need));
    rooms.map(|room| (room.writes + room.immediates) as usize).sum()
}

/// Returns the UDP source port of packets with a flow label, by Linux's
/// `rdma_flow_label_to_udp_sport` in
/// <https://github.com/torvalds/linux/blob/v6.1/include/rdma/ib_verbs.h>.
fn source_port(flow_label: u32) -> u16 {
    0xc000 | ((flow_label ^ flow_label >> 14) & 0x3fff) as u16
}

/// Returns a flow label for a queue pair of a link: a hash, which most likely differs from the
/// labels of other queue pairs and of other links.
fn flow_label(link: &LinkId, queue_pair: usize) -> u32 {
    // FNV-1a: http://www.isthe.com/chongo/tech/comp/fnv/
    let bytes = link.iter().copied().chain((queue_pair as u32).to_le_bytes());
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ hash >> FLOW_LABEL_BITS) & ((1 << FLOW_LABEL_BITS) - 1)
}
