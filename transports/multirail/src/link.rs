//! A link: its rails, the memory that its two sides share, and the notes that are not acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use ccl_core::queue_pairs::Striping;
use ccl_core::time::Instant;
use ccl_core::transport::{Connecting, Event, MrKey, NOTE_BYTES_MAX, RemoteMr, WorkRequest};

use crate::note::{FRAGMENT_BYTES, Note, WINDOW};
use crate::rail::{Put, PutPath, Rail, Stage};
use crate::rendezvous::{DeviceListeners, Dial, LinkId, LinkOrigin};

/// Largest amount by which the number of an arriving fragment of a note may exceed the number of
/// the next expected fragment.
const EARLY_MAX: usize = 4096;
/// Number of newly shared regions after which a link forgets all deregistered regions.
const SHARES_STEP: usize = 64;

/// Memory of the peer: its number, and its handle on each rail that has access to it.
#[derive(Debug)]
struct Import {
    number: u32,
    rails: Vec<Option<RemoteMr>>,
}

/// Notes of the user. Each arrives once, and all arrive in order, even if rails fail.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Fragments that the peer has not acknowledged; `first` is the number of the first one.
    unacknowledged: VecDeque<(bool, Vec<u8>)>,
    first: u32,
    /// Number below which all fragments have come.
    heard: u32,
    early: BTreeMap<u32, (bool, Vec<u8>)>,
    /// Fragments of a note that is not complete yet.
    partial: Vec<u8>,
}

impl Notes {
    /// Keeps a note until the peer acknowledges it; returns the note's fragments, to be sent.
    pub(crate) fn enqueue(&mut self, bytes: &[u8]) -> Vec<Note> {
        let mut fragments: Vec<&[u8]> = bytes.chunks(FRAGMENT_BYTES).collect();
        if fragments.is_empty() {
            fragments.push(&[]);
        }
        let last = fragments.len() - 1;
        let from = self.unacknowledged.len();
        self.unacknowledged.extend(
            fragments.iter().enumerate().map(|(at, fragment)| (at == last, fragment.to_vec())),
        );
        self.unacknowledged_from(from)
    }

    fn unacknowledged_from(&self, from: usize) -> Vec<Note> {
        let fragments = self.unacknowledged.iter().enumerate().skip(from);
        let fragment = |(at, (is_last, bytes)): (usize, &(bool, Vec<u8>))| Note::Fragment {
            number: self.first.wrapping_add(at as u32),
            is_last: *is_last,
            bytes: bytes.clone(),
        };
        fragments.map(fragment).collect()
    }

    fn acknowledge(&mut self, below: u32) {
        let count = below.wrapping_sub(self.first) as usize;
        if count <= self.unacknowledged.len() {
            self.unacknowledged.drain(..count);
            self.first = below;
        }
    }

    /// Takes in a fragment, and appends completed notes to `whole`. Returns false if the fragment
    /// is not valid.
    pub(crate) fn receive_fragment(
        &mut self,
        number: u32,
        is_last: bool,
        bytes: Vec<u8>,
        whole: &mut Vec<Vec<u8>>,
    ) -> bool {
        let ahead = number.wrapping_sub(self.heard);
        if ahead >= u32::MAX / 2 {
            // The fragment has arrived before.
            return true;
        }
        if ahead as usize > EARLY_MAX {
            return false;
        }
        self.early.insert(number, (is_last, bytes));
        while let Some((is_last, bytes)) = self.early.remove(&self.heard) {
            self.heard = self.heard.wrapping_add(1);
            self.partial.extend_from_slice(&bytes);
            if self.partial.len() > NOTE_BYTES_MAX {
                return false;
            }
            if is_last {
                whole.push(std::mem::take(&mut self.partial));
            }
        }
        true
    }

    pub(crate) fn heard(&self) -> Note {
        Note::Acknowledged { below: self.heard }
    }
}

/// One end of a link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    /// Number of the link on its device. The link's preferred rail depends on this number, so that
    /// links spread over equal rails.
    turn: usize,
    pub(crate) rails: Vec<Rail>,
    /// Addresses and secret for dialling rails again, on the side that has dialled.
    pub(crate) dial: Option<Dial>,
    /// Listeners that rails come back to, on the side that was dialled.
    pub(crate) device_listeners: Option<Arc<Mutex<DeviceListeners>>>,
    /// Addresses of devices of this side that the peer may not know.
    addresses: Vec<Note>,
    /// Rails that are being dialled.
    pub(crate) dialling: Vec<(usize, Box<dyn Connecting>)>,
    /// Puts that are taken but on no rail: all rails are full, or the put's rail has failed.
    pub(crate) waiting: VecDeque<Put>,
    /// Number of data puts that are not done, then number of control puts that are not done.
    outstanding: [usize; 2],
    pub(crate) notes: Notes,
    pub(crate) striping: Option<Striping>,
    /// Memory that this side shares: for each region, the number that the peer uses, and the key.
    shares: Vec<(u32, MrKey)>,
    next_share: u32,
    shares_checked: usize,
    imports: Vec<Import>,
    /// Numbers of imports that the user has given up.
    pub(crate) forgotten: Vec<u32>,
    /// True once this side has announced that it leaves.
    pub(crate) is_leaving: bool,
    /// True once the peer has announced that it leaves.
    pub(crate) peer_leaves: bool,
    pub(crate) lost: bool,
}

impl Link {
    pub(crate) fn new(id: LinkId, rails: Vec<Rail>, from: LinkOrigin, turn: usize) -> Link {
        let (dial, device_listeners, unknown) = match from {
            // A link with one rail ends with that rail.
            _ if rails.len() == 1 => (None, None, Vec::new()),
            LinkOrigin::Dialled(dial) => (Some(dial), None, Vec::new()),
            LinkOrigin::Listened(device_listeners, unknown) => {
                (None, Some(device_listeners), unknown)
            }
        };
        let note = |(device, address)| Note::Address { device, address };
        let addresses = unknown.into_iter().map(note).collect();
        Link {
            id,
            turn,
            rails,
            dial,
            device_listeners,
            addresses,
            dialling: Vec::new(),
            waiting: VecDeque::new(),
            outstanding: [0; 2],
            notes: Notes::default(),
            striping: None,
            shares: Vec::new(),
            next_share: 0,
            shares_checked: SHARES_STEP,
            imports: Vec::new(),
            forgotten: Vec::new(),
            is_leaving: false,
            peer_leaves: false,
            lost: false,
        }
    }

    /// Returns whether the link takes one more put. Credits and CTS do not wait behind data.
    pub(crate) fn takes(&self, is_control: bool, depth: usize) -> bool {
        let depth = if is_control { WINDOW } else { depth };
        self.outstanding[usize::from(is_control)] < depth
    }

    /// Counts a put that the link has taken.
    pub(crate) fn begin(&mut self, is_control: bool) {
        self.outstanding[usize::from(is_control)] += 1;
    }

    /// Counts a put as done.
    pub(crate) fn done(&mut self, WorkRequest::Put { id, is_control, .. }: WorkRequest) -> Event {
        self.outstanding[usize::from(is_control)] -= 1;
        Event::Done { id }
    }

    /// Returns whether puts wait for a rail, or for the peer's answer about a failed rail.
    pub(crate) fn has_untaken(&self) -> bool {
        let is_asking = |rail: &Rail| matches!(rail.stage, Stage::Asking(_)) && rail.has_open();
        !self.lost && (!self.waiting.is_empty() || self.rails.iter().any(is_asking))
    }

    /// Returns whether all puts are done.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.outstanding == [0; 2]
    }

    /// Returns whether any rail is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.rails.iter().any(|rail| rail.endpoint().is_some())
    }

    /// Removes the forgotten imports that no unfinished put writes to. Returns their handles on
    /// each rail.
    pub(crate) fn take_forgotten(&mut self) -> Vec<Vec<Option<RemoteMr>>> {
        let is_acknowledged = self.is_acknowledged();
        let Link { forgotten, rails, waiting, .. } = self;
        let idle = |memory: &mut u32| {
            let named = |put: &Put| put.to == *memory;
            is_acknowledged
                || !(waiting.iter().any(named) || rails.iter().any(|rail| rail.writes_to(*memory)))
        };
        let idle: Vec<u32> = forgotten.extract_if(.., idle).collect();
        idle.into_iter().map(|memory| self.forget(memory)).collect()
    }

    /// Returns the path with the earliest expected completion; none if no rail takes the put now.
    /// Rails are not compared if the link's preferred rail takes the put and would complete it at
    /// once.
    pub(crate) fn put_path(&self, put: &Put, now: Instant) -> Option<PutPath> {
        let to = self.imports.iter().find(|import| import.number == put.to)?;
        let first = self.turn % self.rails.len().max(1);
        let path = self.rails.get(first).and_then(|rail| rail.path(first, put, &to.rails));
        if path.is_some() && self.rails[first].does_at_once(put.bytes) {
            return path;
        }
        let rates = self.rails.iter().filter_map(Rail::bytes_per_s);
        let fastest = rates.fold(0.0, f64::max);
        let expects = |at: usize| self.rails[at].expects(put.bytes, fastest, now);
        let mut best = path.map(|path| (path, expects(first)));
        for at in (first + 1..self.rails.len()).chain(0..first) {
            let Some(path) = self.rails[at].path(at, put, &to.rails) else { continue };
            let expected = expects(at);
            if best.is_none_or(|(_, least)| expected < least) {
                best = Some((path, expected));
            }
        }
        best.map(|(path, _)| path)
    }

    /// Returns whether any rail can carry the put, now or soon. A joining rail counts even without
    /// a handle of the peer's memory, because the peer's keys can arrive later.
    pub(crate) fn may_take(&self, put: &Put) -> bool {
        let known = self.rails.iter().map(|rail| put.known_to(rail.lane).is_some());
        self.rails.iter().enumerate().zip(known).any(|((at, rail), known)| match rail.stage {
            Stage::Up(_) => known && self.on_rail(put.to, at).is_some(),
            Stage::Joining(_) => known,
            Stage::Asking(_) | Stage::Down { .. } => false,
        })
    }

    /// Returns a rail's handle of the peer's memory; none if the rail has no access to it.
    fn on_rail(&self, number: u32, rail: usize) -> Option<RemoteMr> {
        let import = self.imports.iter().find(|import| import.number == number)?;
        import.rails.get(rail).copied().flatten()
    }

    /// Returns the number of regions of the peer's memory that are known.
    pub(crate) fn knows(&self) -> usize {
        self.imports.len()
    }

    /// Returns a rail's handle of any one of the peer's regions; none if the rail has no handle.
    pub(crate) fn any_on_rail(&self, rail: usize) -> Option<RemoteMr> {
        self.imports.iter().find_map(|import| import.rails.get(rail).copied().flatten())
    }

    /// Sets a rail's handle of the peer's memory; none if the rail has no access to it.
    pub(crate) fn import(&mut self, number: u32, rail: usize, mr: Option<RemoteMr>) {
        let found = self.imports.iter().position(|import| import.number == number);
        let at = found.unwrap_or_else(|| {
            let rails = vec![None; self.rails.len()];
            self.imports.push(Import { number, rails });
            self.imports.len() - 1
        });
        if let Some(entry) = self.imports[at].rails.get_mut(rail) {
            *entry = mr;
        }
    }

    /// Removes an import that no later put uses. Returns the import's handle on each rail.
    fn forget(&mut self, number: u32) -> Vec<Option<RemoteMr>> {
        let found = self.imports.iter().position(|import| import.number == number);
        let mut rails = found.map_or_else(Vec::new, |at| self.imports.swap_remove(at).rails);
        // Another import may have the same handle on the lane of a rail, if the peer has registered
        // memory again and got the same key. That handle stays.
        for (rail, mr) in rails.iter_mut().enumerate() {
            let is_same = |import: &Import| mr.is_some() && import.rails.get(rail) == Some(mr);
            if self.imports.iter().any(is_same) {
                *mr = None;
            }
        }
        rails
    }

    /// Forgets a rail's handles of the peer's memory.
    pub(crate) fn forget_rail(&mut self, rail: usize) {
        let entries = self.imports.iter_mut().filter_map(|import| import.rails.get_mut(rail));
        entries.for_each(|entry| *entry = None);
    }

    /// Returns the number by which the peer knows memory of this side. After every `SHARES_STEP`
    /// newly shared regions, drops the regions that `is_registered` rejects.
    pub(crate) fn share(&mut self, key: MrKey, is_registered: impl Fn(MrKey) -> bool) -> u32 {
        if let Some((number, _)) = self.shares.iter().find(|(_, known)| *known == key) {
            return *number;
        }
        if self.shares.len() >= self.shares_checked {
            self.shares.retain(|(_, key)| is_registered(*key));
            self.shares_checked = self.shares.len() + SHARES_STEP;
        }
        let number = self.next_share;
        self.next_share = number.wrapping_add(1);
        self.shares.push((number, key));
        number
    }

    pub(crate) fn shares(&self) -> Vec<(u32, MrKey)> {
        self.shares.clone()
    }

    /// Returns the addresses of this side's devices that the peer may not know. Returns none if
    /// every rail is connected or has an epoch above 0: the peer has then dialled all devices.
    pub(crate) fn addresses(&self) -> Vec<Note> {
        let is_new = |rail: &Rail| rail.epoch == 0 && rail.endpoint().is_none();
        if self.rails.iter().any(is_new) { self.addresses.clone() } else { Vec::new() }
    }

    /// Returns the notes that may not have reached the peer because their rail has failed.
    pub(crate) fn undelivered_notes(&self) -> Vec<Note> {
        let mut notes = self.addresses();
        notes.extend(self.notes.unacknowledged_from(0));
        notes.extend(self.rails.iter().filter_map(|rail| match &rail.stage {
            Stage::Asking(down) => Some(Note::RailFailure(down.clone())),
            _ => None,
        }));
        notes
    }

    /// Forgets the fragments below the number `below`, which the peer has acknowledged.
    pub(crate) fn acknowledge(&mut self, below: u32) {
        self.notes.acknowledge(below);
    }

    /// Returns the failure of each rail, for an error message.
    pub(crate) fn reasons(&self) -> String {
        let reason = |(at, rail): (usize, &Rail)| {
            let failure = rail.failure.as_deref().unwrap_or("never connected");
            if self.rails.len() == 1 { failure.to_owned() } else { format!("rail {at}: {failure}") }
        };
        self.rails.iter().enumerate().map(reason).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_notes_are_received_once_and_in_order() {
        let (mut one, mut other) = (Notes::default(), Notes::default());
        let texts = [vec![1; 3], Vec::new(), vec![2; NOTE_BYTES_MAX], vec![3; FRAGMENT_BYTES]];
        let mut notes: Vec<Note> = texts.iter().flat_map(|text| one.enqueue(text)).collect();
        notes.reverse();
        notes.extend(one.unacknowledged_from(0));
        let mut whole = Vec::new();
        for note in notes {
            let Note::Fragment { number, is_last, bytes } = note else { panic!("{note:?}") };
            assert!(other.receive_fragment(number, is_last, bytes, &mut whole));
        }
        assert_eq!(whole, texts);
        let Note::Acknowledged { below } = other.heard() else { panic!("no acknowledgement") };
        one.acknowledge(below);
        assert!(one.unacknowledged_from(0).is_empty());
        assert!(
            !other.receive_fragment(u32::MAX / 3, true, Vec::new(), &mut whole),
            "a fragment is accepted although it is too far ahead"
        );
        let long = vec![0; NOTE_BYTES_MAX];
        assert!(other.receive_fragment(below, false, long, &mut whole));
        let is_accepted = other.receive_fragment(below + 1, true, vec![0], &mut whole);
        assert!(!is_accepted, "a note is accepted although it is too long");
    }
}
