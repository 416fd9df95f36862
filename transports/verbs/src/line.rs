//! A queue pair in use: what is under way on it, and what its completions mean.

use std::collections::VecDeque;

use ccl_core::transport::TransportError;

use crate::gid;
use crate::native::{Pair, Path, Room, Sge, Write};

/// So many writes in a row complete with the last of them at the latest.
const QUIET_MAX: u32 = 16;

/// A put that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    /// What it writes from; none of no bytes.
    pub(crate) source: Option<Sge>,
    pub(crate) tail: Option<Sge>,
    /// Address and key of the peer's memory.
    pub(crate) to: (u64, u32),
    /// Whether it waits behind no other.
    pub(crate) is_control: bool,
    pub(crate) immediate: Option<u32>,
    pub(crate) id: u64,
}

impl Put {
    pub(crate) fn bytes(&self) -> usize {
        self.head() + self.tail.map_or(0, |tail| tail.bytes())
    }

    /// The bytes before its tail.
    fn head(&self) -> usize {
        self.source.map_or(0, |source| source.bytes())
    }

    /// Where byte `at` goes; those after it follow.
    fn remote(&self, at: usize) -> (u64, u32) {
        (self.to.0 + at as u64, self.to.1)
    }

    /// What of it lies from byte `start` to before `end`, in the two places it is read from.
    fn sges(&self, start: usize, end: usize) -> (Option<Sge>, Option<Sge>) {
        let head = self.head();
        let from = self.source.and_then(|source| source.part(start, end));
        let (start, end) = (start.saturating_sub(head), end.saturating_sub(head));
        (from, self.tail.and_then(|tail| tail.part(start, end)))
    }
}

/// A write that the device has.
#[derive(Debug)]
struct UnderWay {
    /// Which of the endpoint's puts; none if the device has the bytes.
    put: Option<usize>,
    /// Those that it has not.
    bytes: usize,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Line {
    pair: Pair,
    room: Room,
    under_way: VecDeque<UnderWay>,
    /// Writes posted so far, modulo 2^32: the next one's number.
    posted: u32,
    /// Those since the last one that completes.
    quiet: u32,
    /// Whether one of those is to be told of.
    owing: bool,
    /// Receive requests that were used up and not renewed.
    used: usize,
    /// Bytes of the writes that the device has.
    bytes: usize,
    /// Where it leads.
    path: Option<Path>,
    /// Whether it has failed and told everything that came before.
    pub(crate) is_flushed: bool,
    /// Whether a write is done when the device has its bytes.
    early: bool,
}

impl Line {
    pub(crate) fn new(pair: Pair, early: bool) -> Line {
        let room = pair.room();
        let under_way = VecDeque::with_capacity(room.writes as usize);
        Line {
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

    /// Carries nothing any more.
    pub(crate) fn stop(&mut self) {
        // One that cannot be stopped has nothing more to tell.
        self.is_flushed = self.pair.stop().is_err();
    }

    pub(crate) fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Connects it with its peer.
    pub(crate) fn connect(&mut self, path: &Path) -> Result<(), TransportError> {
        self.path = Some(*path);
        self.pair.connect(path)
    }

    /// Where it leads, once it is connected.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_ref()
    }

    /// The queue pair at the other end, for messages.
    pub(crate) fn peer_text(&self) -> String {
        self.path.map_or_else(
            || "nobody".to_owned(),
            |path| format!("{}, queue pair {}", gid::ip(path.peer_gid), path.peer_number),
        )
    }

    /// Has receive requests from the start. `name` comes back with their completions.
    pub(crate) fn open(&mut self, name: u64) -> Result<(), TransportError> {
        self.pair.receive(self.room.immediates as usize, name)
    }

    /// An immediate has come.
    pub(crate) fn heard(&mut self, name: u64) -> Result<(), TransportError> {
        self.used += 1;
        if self.used * 4 < self.room.immediates as usize {
            return Ok(());
        }
        self.pair.receive(std::mem::take(&mut self.used), name)
    }

    /// Bytes that the device has and that are not done.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the peer has everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.under_way.len() < self.room.writes as usize
    }

    /// Prepares to write bytes `start` to before `end` of a put, which is number `index` of the
    /// endpoint's. `name` and the write's number come back with its completion. [`Line::ring`] must
    /// follow, before the put goes. Returns whether it is done with this.
    pub(crate) fn write(
        &mut self,
        put: &Put,
        index: usize,
        (start, end): (usize, usize),
        immediate: Option<u32>,
        name: u64,
    ) -> bool {
        let bytes = end - start;
        let inline = bytes <= self.room.inline_bytes as usize;
        let half = self.room.writes / 2;
        let signaled = self.quiet + 1 >= QUIET_MAX.min(half.max(1));
        self.quiet = if signaled { 0 } else { self.quiet + 1 };
        // What is done already needs no completion of its own.
        let is_done = inline && self.early;
        self.owing = !signaled && (self.owing || !is_done);
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
        let bytes = if is_done { 0 } else { bytes };
        self.bytes += bytes;
        self.under_way.push_back(UnderWay { put: (!is_done).then_some(index), bytes });
        is_done
    }

    /// Has all that is under way complete, also what is done already.
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
        self.ring()
    }

    /// Whether something was prepared and not handed to the device.
    pub(crate) fn is_staged(&self) -> bool {
        self.pair.is_staged()
    }

    /// Hands everything that was prepared to the device.
    pub(crate) fn ring(&mut self) -> Result<(), TransportError> {
        if std::mem::take(&mut self.owing) && self.pair.signal_last() {
            self.quiet = 0;
        }
        self.pair.ring()
    }

    /// The write of this number is done, and with it those before it: `done` hears of their puts.
    /// Returns their bytes.
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
