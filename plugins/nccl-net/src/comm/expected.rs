//! In which slot the message for a buffer will come, as far as that can be guessed.
//!
//! Over TCP it is this side's processor that moves the bytes, at its own time: what comes to a slot
//! can go to the buffer instead ([`ccl_core::transport::Lane::redirect`]), and no CTS needs to
//! travel for that. The sender takes its slots in turn, and mostly messages come in the order of
//! their buffers. Their headers, which do come to the slot, tell whether the guess was right. Where
//! it was not, the message is copied back to the slot, where nobody had looked for it yet.

use ccl_core::transport::{LocalSlice, MrKey};
use ccl_memory::Region;

use super::Settings;
use super::line::Line;
use super::receiver::Buffer;
use super::wire::{HEADER_BYTES, SLOTS_MAX};
use crate::error::NetError;

/// After so many wrong guesses in a row nothing is guessed any more: the caller has an order of its
/// own.
const WRONG_MAX: u32 = 8;

/// A buffer whose message is expected in some slot.
#[derive(Clone, Debug)]
pub(crate) struct Guess {
    /// Group and index.
    pub(crate) at: (usize, usize),
    /// Where the message goes, if not to the slot.
    into: Option<Buffer>,
}

impl Guess {
    /// Whether a message of so many bytes went past the slot.
    pub(crate) fn took(&self, bytes: usize) -> bool {
        // The lane leaves longer ones where they are.
        bytes > 0 && self.into.as_ref().is_some_and(|into| bytes <= into.bytes)
    }

    /// Copies a message of so many bytes to where it was sent.
    pub(crate) fn put_back(
        &self,
        to: &Region,
        offset: usize,
        bytes: usize,
    ) -> Result<(), NetError> {
        match &self.into {
            Some(Buffer { mr: Some((_, mr)), offset: from, .. }) if self.took(bytes) => {
                mr.with(|memory| to.copy_from(offset, memory, *from, bytes))
            }
            _ => Ok(()),
        }
    }
}

/// What is expected in the slots of a receiver.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Whether anything is guessed.
    guesses: bool,
    settings: Settings,
    slots: MrKey,
    by_slot: [Option<Guess>; SLOTS_MAX],
    /// The slot of the next guess. Guesses lie behind it, the newest first.
    next: usize,
    wrong: u32,
}

impl Expected {
    pub(crate) fn new(line: &Line, slots: MrKey, settings: Settings) -> Expected {
        let (guesses, by_slot) = (line.redirects(), Default::default());
        Expected { guesses, settings, slots, by_slot, next: 0, wrong: 0 }
    }

    /// Whether anything is guessed.
    pub(crate) fn guesses(&self) -> bool {
        self.guesses
    }

    /// Expects the message for a buffer in the next slot; no if that is taken, or nothing is
    /// guessed. `held` are slots whose messages nobody wants yet. To be called when all events
    /// have been taken: what has come before is not known to the lane any more.
    pub(crate) fn expect(
        &mut self,
        line: &mut Line,
        held: u32,
        at: (usize, usize),
        buffer: &Buffer,
    ) -> bool {
        let count = self.settings.slots();
        while held >> self.next & 1 == 1 && held.count_ones() < count as u32 {
            self.next = (self.next + 1) % count;
        }
        let slot = self.next;
        if !self.guesses || self.by_slot[slot].is_some() || held >> slot & 1 == 1 {
            return false;
        }
        let mut into = None;
        // Short messages come through the lane's own buffer anyway.
        if let (Some((_, mr)), true) = (&buffer.mr, buffer.bytes > self.settings.short_bytes) {
            let target = LocalSlice { key: mr.key, offset: buffer.offset, bytes: buffer.bytes };
            let from = self.slice(slot, buffer.bytes);
            // What cannot be had costs a copy.
            if line.redirect(from, Some(target)).unwrap_or(false) {
                into = Some(buffer.clone());
            }
        }
        self.by_slot[slot] = Some(Guess { at, into });
        self.next = (slot + 1) % count;
        true
    }

    fn slice(&self, slot: usize, bytes: usize) -> LocalSlice {
        let offset = slot * self.settings.stride() + HEADER_BYTES;
        LocalSlice { key: self.slots, offset, bytes }
    }

    /// A message has come in a slot: which one was expected there; else, whether it is the first
    /// that nothing is known of.
    pub(crate) fn take(&mut self, slot: usize) -> Result<Guess, bool> {
        self.by_slot[slot].take().ok_or_else(|| {
            let is_next = slot == self.next || !self.guesses;
            if is_next {
                self.next = (slot + 1) % self.settings.slots();
            }
            is_next
        })
    }

    /// Whether that was as expected.
    pub(crate) fn learn(&mut self, right: bool) {
        self.wrong = if right { 0 } else { self.wrong + 1 };
        self.guesses &= self.wrong < WRONG_MAX;
    }

    /// The message for a buffer has come in another way.
    pub(crate) fn forget(&mut self, line: &mut Line, at: (usize, usize)) -> Result<(), NetError> {
        let slots = 0..self.settings.slots();
        let found = { slots }.find(|slot| self.by_slot[*slot].as_ref().is_some_and(|g| g.at == at));
        found.map_or(Ok(()), |slot| self.release(line, slot))
    }

    /// Nothing is expected any more; guesses begin again behind `last`, or where they were first
    /// wrong. To be called when all events have been taken. Returns whether anything was expected.
    pub(crate) fn clear(&mut self, line: &mut Line, last: Option<usize>) -> Result<bool, NetError> {
        let count = self.settings.slots();
        // All around, the oldest is the first.
        let around = (self.next..count).chain(0..self.next);
        let first = { around }.find(|slot| self.by_slot[*slot].is_some());
        self.next = last.map(|last| (last + 1) % count).or(first).unwrap_or(self.next);
        (0..count).try_for_each(|slot| self.release(line, slot))?;
        Ok(first.is_some())
    }

    fn release(&mut self, line: &mut Line, slot: usize) -> Result<(), NetError> {
        match self.by_slot[slot].take() {
            Some(guess) => self.end(line, slot, &guess),
            None => Ok(()),
        }
    }

    /// Nothing goes past the slot any more. The lane ends that by itself for a message with bytes
    /// that was sent as it should be.
    pub(crate) fn end(&self, line: &mut Line, slot: usize, guess: &Guess) -> Result<(), NetError> {
        if let Some(into) = &guess.into {
            line.redirect(self.slice(slot, into.bytes), None)?;
        }
        Ok(())
    }
}
