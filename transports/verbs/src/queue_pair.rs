//! A queue pair in use: its outstanding writes, and the meaning of its completions.

use std::collections::VecDeque;

use ccl_core::transport::TransportError;

use crate::gid;
use crate::native::{Pair, Path, Room, Sge, Write};

/// Largest number of writes in a row that share one completion.
const QUIET_MAX: u32 = 16;

/// A put that the lane has accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    /// Memory of the bytes before the tail; none if there are no such bytes.
    pub(crate) source: Option<Sge>,
    pub(crate) tail: Option<Sge>,
    /// Address and key of the peer's memory.
    pub(crate) to: (u64, u32),
    /// True for credits and CTS, which do not wait behind data.
    pub(crate) is_control: bool,
    pub(crate) immediate: Option<u32>,
    pub(crate) id: u64,
}

impl Put {
    pub(crate) fn bytes(&self) -> usize {
        self.head() + self.tail.map_or(0, |tail| tail.bytes())
    }

    /// Returns the number of bytes before the tail.
    fn head(&self) -> usize {
        self.source.map_or(0, |source| source.bytes())
    }

    /// Returns the peer's address for byte `at` of the put, and the key of the peer's memory.
    fn remote(&self, at: usize) -> (u64, u32) {
        (self.to.0 + at as u64, self.to.1)
    }

    /// Returns the memory of the bytes from `start` to before `end`, in the source and in the tail.
    fn sges(&self, start: usize, end: usize) -> (Option<Sge>, Option<Sge>) {
        let head = self.head();
        let from = self.source.and_then(|source| source.part(start, end));
        let (start, end) = (start.saturating_sub(head), end.saturating_sub(head));
        (from, self.tail.and_then(|tail| tail.part(start, end)))
    }
}

/// A write that was prepared or posted, and whose completion has not come.
#[derive(Debug)]
struct UnderWay {
    /// Index of the endpoint's put; none if the write counted as done when it was prepared, or only
    /// requests a completion.
    put: Option<usize>,
    /// Number of bytes of the write; 0 if `put` is none.
    bytes: usize,
}

/// A queue pair in use.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pair: Pair,
    room: Room,
    under_way: VecDeque<UnderWay>,
    /// Number of writes prepared so far, modulo 2^32. The next write gets this number.
    posted: u32,
    /// Number of writes since the last write that requests a completion.
    quiet: u32,
    /// True if one of the `quiet` writes needs a completion.
    owing: bool,
    /// Number of receive requests that were used up and not renewed.
    used: usize,
    /// Number of bytes of the writes in `under_way`.
    bytes: usize,
    /// Path to the peer, once connected.
    path: Option<Path>,
    /// True if no further completion of the queue pair is awaited: one of its receive requests has
    /// failed, or the queue pair could not be stopped.
    pub(crate) is_flushed: bool,
    /// True if an inline write is done as soon as it is posted.
    early: bool,
}

impl QueuePair {
    pub(crate) fn new(pair: Pair, early: bool) -> QueuePair {
        let room = pair.room();
        let under_way = VecDeque::with_capacity(room.writes as usize);
        QueuePair {
            pair,
            room,
            under_way,
            posted: 0,
            quiet: 0,
            owing: false,
            used: 0,
            bytes: 0,
            path: None,
            is_flushed: false,
            early,
        }
    }

    /// Stops the queue pair: it carries no more writes.
    pub(crate) fn stop(&mut self) {
        // A queue pair that cannot be stopped flushes nothing, so its completions are not awaited.
        self.is_flushed = self.pair.stop().is_err();
    }

    pub(crate) fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Connects the queue pair with its peer.
    pub(crate) fn connect(&mut self, path: &Path) -> Result<(), TransportError> {
        self.path = Some(*path);
        self.pair.connect(path)
    }

    /// Returns the path to the peer, once connected.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_ref()
    }

    /// Returns the queue pair at the other end, for messages.
    pub(crate) fn peer_text(&self) -> String {
        self.path.map_or_else(
            || "no peer yet".to_owned(),
            |path| format!("{}, queue pair {}", gid::ip(path.peer_gid), path.peer_number),
        )
    }

    /// Posts the first receive requests. Their completions return `name`.
    pub(crate) fn open(&mut self, name: u64) -> Result<(), TransportError> {
        self.pair.receive(self.room.immediates as usize, name)
    }

    /// Counts an immediate that has arrived. Renews receive requests when a quarter of them is used
    /// up.
    pub(crate) fn count_immediate(&mut self, name: u64) -> Result<(), TransportError> {
        self.used += 1;
        if self.used * 4 < self.room.immediates as usize {
            return Ok(());
        }
        self.pair.receive(std::mem::take(&mut self.used), name)
    }

    /// Returns the number of bytes of the writes that are prepared or posted and not done.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether no write is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.under_way.len() < self.room.writes as usize
    }

    /// Returns whether a write of `bytes` bytes is done as soon as it is posted.
    pub(crate) fn is_early(&self, bytes: usize) -> bool {
        self.early && self.is_inline(bytes)
    }

    /// Returns whether a write of `bytes` bytes is inline: the device gets the bytes with the
    /// request, instead of reading the bytes from memory later.
    pub(crate) fn is_inline(&self, bytes: usize) -> bool {
        bytes <= self.room.inline_bytes as usize
    }

    /// Prepares to write the bytes from `start` to before `end` of a put. `open` is the put's index
    /// in the endpoint; none if the write is done at once ([`QueuePair::is_early`]). The completion
    /// returns `name` and the write's number. [`QueuePair::post_staged`] sends the write.
    pub(crate) fn write(
        &mut self,
        put: &Put,
        open: Option<usize>,
        (start, end): (usize, usize),
        immediate: Option<u32>,
        name: u64,
    ) {
        let bytes = end - start;
        let inline = self.is_inline(bytes);
        let half = self.room.writes / 2;
        let signaled = self.quiet + 1 >= QUIET_MAX.min(half.max(1));
        self.quiet = if signaled { 0 } else { self.quiet + 1 };
        // A write that counts as done when it is prepared needs no completion.
        self.owing = !signaled && (self.owing || open.is_some());
        let (from, then) = put.sges(start, end);
        self.pair.stage(&Write {
            id: name | u64::from(self.posted),
            from,
            then,
            to: put.remote(start),
            immediate,
            signaled,
            inline,
        });
        self.posted = self.posted.wrapping_add(1);
        let bytes = if open.is_some() { bytes } else { 0 };
        self.bytes += bytes;
        self.under_way.push_back(UnderWay { put: open, bytes });
    }

    /// Requests one completion for all outstanding writes, including writes that counted as done
    /// when they were prepared.
    pub(crate) fn flush(&mut self, name: u64) -> Result<(), TransportError> {
        if self.quiet == 0 || !self.has_room() {
            return Ok(());
        }
        self.pair.stage(&Write {
            id: name | u64::from(self.posted),
            from: None,
            then: None,
            to: (0, 0),
            immediate: None,
            signaled: true,
            inline: false,
        });
        (self.posted, self.quiet) = (self.posted.wrapping_add(1), 0);
        self.under_way.push_back(UnderWay { put: None, bytes: 0 });
        self.post_staged()
    }

    /// Returns whether something is prepared and not handed to the device.
    pub(crate) fn is_staged(&self) -> bool {
        self.pair.is_staged()
    }

    /// Hands all prepared writes to the device.
    pub(crate) fn post_staged(&mut self) -> Result<(), TransportError> {
        if std::mem::take(&mut self.owing) && self.pair.signal_last() {
            self.quiet = 0;
        }
        self.pair.post_staged()
    }

    /// Counts the write `number` and all earlier writes as done. Calls `done` with the indices of
    /// these writes' puts. Returns the number by which [`QueuePair::bytes`] has become smaller.
    pub(crate) fn done(&mut self, number: u32, mut done: impl FnMut(usize)) -> usize {
        let left = self.posted.wrapping_sub(number).wrapping_sub(1) as usize;
        let mut freed = 0;
        while self.under_way.len() > left
            && let Some(UnderWay { put, bytes }) = self.under_way.pop_front()
        {
            freed += bytes;
            put.into_iter().for_each(&mut done);
        }
        self.bytes -= freed;
        freed
    }
}
