//! Guesses of the slot in which a buffer's message arrives.
//!
//! Over TCP, this side's CPU moves the bytes. Even without a CTS, this side can therefore place a
//! message into its buffer instead of its slot ([`ccl_core::transport::Lane::redirect`]).
//! The sender fills the slots in turn, and messages mostly arrive in the order of their buffers. So
//! the next slot is guessed to get the message for the next buffer. A message's header still
//! arrives in the slot and shows whether the guess was right. After a wrong guess, the message is
//! copied back to the slot before anything reads the slot.

use ccl_core::transport::{LocalSlice, MrKey};
use ccl_memory::Region;

use super::Settings;
use super::buffer::Buffer;
use super::connection::Connection;
use super::wire::{HEADER_BYTES, SLOTS_MAX};
use crate::error::NetError;

/// Number of wrong guesses in a row after which guessing ends: messages evidently do not arrive in
/// the order of their buffers.
const WRONG_MAX: u32 = 8;

/// A buffer whose message is expected in some slot.
#[derive(Clone, Debug)]
pub(crate) struct Guess {
    /// Group and index of the buffer.
    pub(crate) at: (usize, usize),
    /// Buffer that the message is redirected to; none if it goes to the slot.
    into: Option<Buffer>,
}

impl Guess {
    /// Returns whether a message of `bytes` bytes was redirected to the buffer.
    pub(crate) fn took(&self, bytes: usize) -> bool {
        // The lane does not redirect messages that are longer than the buffer.
        bytes > 0 && self.into.as_ref().is_some_and(|into| bytes <= into.bytes)
    }

    /// Copies a redirected message of `bytes` bytes back to its slot.
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

/// Guesses for the slots of a receiver.
#[derive(Debug)]
pub(crate) struct Expected {
    /// True while slots are guessed.
    guesses: bool,
    settings: Settings,
    slots: MrKey,
    by_slot: [Option<Guess>; SLOTS_MAX],
    /// Slot of the next guess. A search from this slot on, wrapping around, finds the oldest guess
    /// first.
    next: usize,
    wrong: u32,
}

impl Expected {
    pub(crate) fn new(connection: &Connection, slots: MrKey, settings: Settings) -> Expected {
        let (guesses, by_slot) = (connection.redirects(), Default::default());
        Expected { guesses, settings, slots, by_slot, next: 0, wrong: 0 }
    }

    /// Returns whether slots are guessed.
    pub(crate) fn guesses(&self) -> bool {
        self.guesses
    }

    /// Expects that the next slot that is not in `held` gets the message for a buffer. Returns
    /// false if that slot has a guess already, if all slots are in `held`, or if slots are not
    /// guessed. `held` is the set of slots, as bits, whose messages have no buffer yet. The caller
    /// must have taken all events. Otherwise the expected message may already be in the slot, and
    /// the lane would redirect the slot's next message instead.
    pub(crate) fn expect(
        &mut self,
        connection: &mut Connection,
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
            // Without the redirect, the message is copied.
            if connection.redirect(from, Some(target)).unwrap_or(false) {
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

    /// Takes the guess for a slot in which a message has arrived. Fails if there is no guess: with
    /// `Err(true)` if the slot is the next one in turn or slots are not guessed, else `Err(false)`.
    pub(crate) fn take(&mut self, slot: usize) -> Result<Guess, bool> {
        self.by_slot[slot].take().ok_or_else(|| {
            let is_next = slot == self.next || !self.guesses;
            if is_next {
                self.next = (slot + 1) % self.settings.slots();
            }
            is_next
        })
    }

    /// Records whether a guess was right. Too many wrong guesses in a row end the guessing.
    pub(crate) fn learn(&mut self, right: bool) {
        self.wrong = if right { 0 } else { self.wrong + 1 };
        self.guesses &= self.wrong < WRONG_MAX;
    }

    /// Drops the guess for a buffer whose message has arrived in another slot.
    pub(crate) fn forget(
        &mut self,
        connection: &mut Connection,
        at: (usize, usize),
    ) -> Result<(), NetError> {
        let slots = 0..self.settings.slots();
        let found = { slots }.find(|slot| self.by_slot[*slot].as_ref().is_some_and(|g| g.at == at));
        found.map_or(Ok(()), |slot| self.release(connection, slot))
    }

    /// Drops all guesses. New guesses begin after slot `last` or, if `last` is none, at the slot of
    /// the oldest dropped guess. The caller must have taken all events. Returns whether there was
    /// any guess.
    pub(crate) fn clear(
        &mut self,
        connection: &mut Connection,
        last: Option<usize>,
    ) -> Result<bool, NetError> {
        let count = self.settings.slots();
        // The oldest guess comes first.
        let around = (self.next..count).chain(0..self.next);
        let first = { around }.find(|slot| self.by_slot[*slot].is_some());
        self.next = last.map(|last| (last + 1) % count).or(first).unwrap_or(self.next);
        (0..count).try_for_each(|slot| self.release(connection, slot))?;
        Ok(first.is_some())
    }

    fn release(&mut self, connection: &mut Connection, slot: usize) -> Result<(), NetError> {
        match self.by_slot[slot].take() {
            Some(guess) => self.end(connection, slot, &guess),
            None => Ok(()),
        }
    }

    /// Ends the redirect of a guess. This changes nothing if a put with payload has arrived in the
    /// slot: the put's arrival has ended the redirect.
    pub(crate) fn end(
        &self,
        connection: &mut Connection,
        slot: usize,
        guess: &Guess,
    ) -> Result<(), NetError> {
        if let Some(into) = &guess.into {
            connection.redirect(self.slice(slot, into.bytes), None)?;
        }
        Ok(())
    }
}
