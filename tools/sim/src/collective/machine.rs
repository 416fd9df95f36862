//! Machines that run a rank's program: the real execution, or a lean one that computes each step
//! when it is due.

use std::sync::Arc;

use ccl_core::cost::engine::Worker;
use ccl_core::execution::{CallParams, Execution, Link, Message, Ports, Progress, Task};
use ccl_core::lower::{Fold, Instr, Location, Program};
use ccl_core::schedule::{Buffer, Counters, DEPTH, TERM};
use ccl_core::types::Rank;

/// A machine that runs a rank's program.
pub(super) trait Machine: Worker {
    /// Makes a machine that runs a program with these parameters.
    fn new(program: &Arc<Program>, channels: u32, numbers: &CallParams) -> Self;
}

impl Machine for Execution {
    fn new(program: &Arc<Program>, channels: u32, numbers: &CallParams) -> Execution {
        let mut execution = Execution::new(Arc::clone(program), channels);
        execution.start(numbers);
        execution
    }
}

/// Position of a strand in its program.
#[derive(Debug, Default)]
struct Cursor {
    at: usize,
    counters: Counters,
    /// Number of the channel's chunks that the strand has done.
    turn: usize,
    /// True if the next four fields are computed for the current fold.
    ready: bool,
    /// Elements of the fold in the chunk.
    elements: usize,
    /// Elements of the fold in all chunks.
    whole: usize,
    /// Peers that the fold receives from.
    recvs: Vec<Rank>,
    /// Peers that the fold sends to.
    sends: Vec<Rank>,
    /// Peer that the strand waits for, and what the strand needs: a message from the peer (true) or
    /// a free slot of the peer (false).
    waits: Option<(Rank, bool)>,
}

/// Machine that runs a program without unrolling it. Each step is computed when it is due, so that
/// memory does not grow with the number of steps. The steps and their order are those of
/// [`Execution`].
#[derive(Debug)]
pub(super) struct Walk {
    program: Arc<Program>,
    channels: usize,
    numbers: CallParams,
    chunks: usize,
    chunk_elements: usize,
    cursors: Vec<Cursor>,
    /// Per channel and unit (a top-level fold or loop of the program): number of chunks that are
    /// done.
    units: Vec<usize>,
    running: usize,
}

impl Machine for Walk {
    fn new(program: &Arc<Program>, channels: u32, numbers: &CallParams) -> Walk {
        let channels = channels.max(1) as usize;
        let chunk_elements = numbers.chunk_elements(program);
        let longest = numbers.input.longest_part().max(numbers.output.longest_part());
        let chunks = longest.div_ceil(chunk_elements);
        let used = chunks.min(channels);
        let strands = program.strands.len();
        Walk {
            program: Arc::clone(program),
            channels,
            numbers: numbers.clone(),
            chunks,
            chunk_elements,
            cursors: (0..used * strands).map(|_| Cursor::default()).collect(),
            units: vec![0; program.units as usize * used],
            running: used * strands,
        }
    }
}

impl Worker for Walk {
    fn link_ready(&mut self, link: Link, receives: bool) {
        let strands = self.program.strands.len();
        let first = link.channel as usize * strands;
        let heard = Some((link.peer, receives));
        for cursor in self.cursors.iter_mut().skip(first).take(strands) {
            if cursor.waits == heard {
                cursor.waits = None;
            }
        }
    }

    fn advance<P: Ports>(&mut self, ports: &mut P) -> Progress {
        let strands = self.program.strands.len();
        let mut moved = false;
        for index in 0..self.cursors.len() {
            moved |= self.run(index, index / strands, index % strands, ports);
        }
        match (self.running, moved) {
            (0, _) => Progress::Done,
            (_, true) => Progress::Moved,
            (_, false) => Progress::Blocked,
        }
    }
}

impl Walk {
    /// Runs one strand until it blocks or ends. Returns whether it made progress.
    fn run<P: Ports>(
        &mut self,
        index: usize,
        channel: usize,
        strand: usize,
        ports: &mut P,
    ) -> bool {
        if self.cursors[index].waits.is_some() {
            return false;
        }
        let program = Arc::clone(&self.program);
        let code = &program.strands[strand].code;
        let base = channel * program.units as usize;
        let mut moved = false;
        loop {
            let chunk = self.cursors[index].turn * self.channels + channel;
            if chunk >= self.chunks {
                return moved;
            }
            let Some(instr) = code.get(self.cursors[index].at) else {
                let cursor = &mut self.cursors[index];
                (cursor.at, cursor.counters) = (0, [0; DEPTH]);
                cursor.turn += 1;
                if chunk + self.channels >= self.chunks {
                    self.running -= 1;
                }
                moved = true;
                continue;
            };
            match instr {
                Instr::Fold(fold) => {
                    if !self.fold(index, fold, chunk, channel, ports) {
                        return moved;
                    }
                    self.cursors[index].at += 1;
                }
                Instr::Await { unit, lag } => {
                    let done = self.units[base + *unit as usize];
                    if done + (*lag as usize) < self.cursors[index].turn + 1 {
                        return moved;
                    }
                    self.cursors[index].at += 1;
                }
                Instr::Done { unit } => {
                    self.units[base + *unit as usize] = self.cursors[index].turn + 1;
                    self.cursors[index].at += 1;
                }
                Instr::Loop { dimension } => {
                    self.cursors[index].counters[usize::from(*dimension)] = 0;
                    self.cursors[index].at += 1;
                }
                Instr::Next { dimension, count, start } => {
                    let cursor = &mut self.cursors[index];
                    let counter = &mut cursor.counters[usize::from(*dimension)];
                    *counter += 1;
                    let again = *counter < *count;
                    *counter = if again { *counter } else { 0 };
                    cursor.at = if again { *start as usize } else { cursor.at + 1 };
                }
            }
            moved = true;
        }
    }

    /// Does a fold if all its links are ready. Returns whether the strand can go on.
    fn fold<P: Ports>(
        &mut self,
        index: usize,
        fold: &Fold,
        chunk: usize,
        channel: usize,
        ports: &mut P,
    ) -> bool {
        if !self.cursors[index].ready {
            self.work_out(index, fold, chunk);
        }
        let cursor = &mut self.cursors[index];
        if cursor.elements == 0 {
            cursor.ready = false;
            return true;
        }
        let link = |peer: &Rank| Link { peer: *peer, channel: channel as u32 };
        let missing = cursor.recvs.iter().find(|peer| !ports.readable(link(peer)));
        let mut full = || cursor.sends.iter().find(|peer| !ports.writable(link(peer)));
        let waits = match missing {
            Some(peer) => Some((*peer, true)),
            None => full().map(|peer| (*peer, false)),
        };
        if waits.is_some() {
            cursor.waits = waits;
            return false;
        }
        let width = self.numbers.element_bytes;
        let bytes = cursor.elements * width;
        let message = Message { bytes, whole_bytes: cursor.whole * width };
        if !cursor.recvs.iter().all(|peer| ports.accept(link(peer), message)) {
            return false;
        }
        ports.fold(&Task {
            sources: &[],
            targets: &[],
            elements: cursor.elements,
            chunk_offset: 0,
            scratch_offset: 0,
            slot_offset: 0,
            message_bytes: bytes,
            channel: channel as u32,
            strand: 0,
            last: fold.last,
            early: fold.early,
        });
        cursor.sends.iter().for_each(|peer| ports.publish(link(peer), message));
        cursor.recvs.iter().for_each(|peer| ports.release(link(peer)));
        cursor.ready = false;
        true
    }

    /// Computes how many elements of a fold belong to a chunk, and the peers of the fold.
    fn work_out(&mut self, index: usize, fold: &Fold, chunk: usize) {
        let Walk { cursors, numbers, chunks, chunk_elements, .. } = self;
        let cursor = &mut cursors[index];
        let layout = match fold.extent.buffer {
            Buffer::Input => &numbers.input,
            _ => &numbers.output,
        };
        (cursor.elements, cursor.whole) = (0, 0);
        for part in 0..fold.extent.parts.total {
            let (_, all) = layout.part(fold.extent.parts.part(part, &cursor.counters));
            let before = (chunk * *chunk_elements).min(all);
            let here = if *chunks == 1 { all } else { (all - before).min(*chunk_elements) };
            cursor.elements += here;
            cursor.whole += all;
        }
        cursor.recvs.clear();
        cursor.sends.clear();
        let sources = fold.sources.iter().map(|source| (&source.location, source.repeat));
        peers(sources, &mut cursor.counters, &mut cursor.recvs);
        let targets = fold.targets.iter().map(|target| (&target.location, target.repeat));
        peers(targets, &mut cursor.counters, &mut cursor.sends);
        cursor.ready = true;
    }
}

fn peers<'a>(
    places: impl Iterator<Item = (&'a Location, u32)>,
    counters: &mut Counters,
    found: &mut Vec<Rank>,
) {
    for (place, repeat) in places {
        if let Location::Slot(peer) = place {
            for term in 0..repeat {
                counters[TERM] = term;
                found.push(peer.eval(counters));
            }
        }
    }
    counters[TERM] = 0;
}
