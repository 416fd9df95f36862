//! Recovery: rails that are down are connected again, proved (by a test put where one can be made),
//! and used.

use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Connected, LocalSlice, RemoteKey, WorkRequest};

use super::{PROOF, RailsLane, id};
use crate::link::Link;
use crate::note::{self, Note};
use crate::rail::{Rail, Stage};
use crate::rendezvous::{Hello, lock};

/// Longest time that an attempt to reconnect a rail may take.
const RETURN_WITHIN: Duration = Duration::from_secs(5);

impl RailsLane {
    /// Reconnects rails that are down, and repeats proofs (test puts) that devices did not take.
    /// Forgets peer memory that the lane's user has forgotten, once no unfinished put writes to it.
    pub(super) fn check(&mut self, now: Instant) {
        self.checked = now;
        for number in 0..self.links.len() {
            let is_down = |rail: &Rail| matches!(rail.stage, Stage::Down { .. });
            if self.links[number].as_ref().is_some_and(|link| !link.forgotten.is_empty()) {
                self.forget_idle(number);
            }
            self.prove_again(number, now);
            let Some(link) = self.links[number].as_ref().filter(|link| !link.lost) else {
                continue;
            };
            if !link.rails.iter().any(is_down) {
                continue;
            }
            if link.dial.is_some() {
                self.dial(number, now);
            } else {
                self.accept_rails(number, now);
            }
        }
    }

    /// Repeats the proofs (test puts) that devices did not take.
    fn prove_again(&mut self, number: usize, now: Instant) {
        let owes = |rail: &Rail| rail.owes_proof && rail.endpoint().is_some();
        let rails = self.links[number].iter().flat_map(|link| link.rails.iter().enumerate());
        let owing: Vec<usize> = rails.filter(|(_, rail)| owes(rail)).map(|(at, _)| at).collect();
        owing.into_iter().for_each(|at| self.prove(number, at, now));
    }

    /// Tests whether a reconnected rail works: an empty put is the proof. The rail carries no other
    /// put until the proof is acknowledged. Notes do not test the rail: they go over a separate
    /// connection, which can work although the rail does not.
    pub(super) fn prove(&mut self, number: usize, at: usize, now: Instant) {
        let RailsLane { links, lanes, with, .. } = self;
        let Some(Some(link)) = links.get_mut(number) else { return };
        let rail = &link.rails[at];
        let (index, Some(endpoint)) = (rail.lane, rail.endpoint()) else { return };
        let known = |key| with.registry.find(key).ok().and_then(|own| own.with[index]);
        let own = link.shares().into_iter().find_map(|(_, key)| known(key));
        let proof = own.zip(link.any_on_rail(at)).map(|(own, remote)| WorkRequest::Put {
            endpoint,
            local: LocalSlice { key: own, offset: 0, bytes: 0 },
            tail: None,
            is_control: false,
            remote,
            remote_offset: 0,
            immediate: None,
            id: id(number, at, rail.epoch.into()) | PROOF,
        });
        let rail = &mut link.rails[at];
        let Some(proof) = proof else {
            // The proof needs memory of this side and memory of the peer, both known on this rail.
            // If one of them is lacking, no proof can be made, and the rail counts as proved.
            return rail.proved();
        };
        match lanes[index].post(now, &[proof]) {
            // A proof that is not taken is repeated with the next check.
            Ok(taken) => rail.owes_proof = taken == 0,
            Err(error) => self.fail(number, at, error.to_string()),
        }
    }

    /// Dials the rails of a link that are down, and takes in those that have connected.
    fn dial(&mut self, number: usize, now: Instant) {
        let RailsLane { links, with, .. } = self;
        let Some(Some(link)) = links.get_mut(number) else { return };
        let Link { id, rails, dial: Some(dial), dialling, .. } = link else { return };
        let count = rails.len() as u8;
        for (at, rail) in rails.iter_mut().enumerate() {
            let Stage::Down { again } = rail.stage else { continue };
            // If the address is not known yet, the peer sends it later.
            let Some(address) = dial.to(at) else { continue };
            let is_dialled = dialling.iter().any(|(dialled, _)| *dialled == at);
            // A rail that has never been up is dialled after the same pause as a failed rail.
            let Some(again) = again else {
                rail.rest(now);
                continue;
            };
            if is_dialled || now < again {
                continue;
            }
            let (epoch, text) = (rail.epoch + 1, Vec::new());
            let hello = Hello { link: *id, rail: at as u8, rails: count, known: 0, epoch, text };
            let (device, deadline) = (&with.devices[rail.lane], now + RETURN_WITHIN);
            match device.connect(address, &dial.secret, &hello.encode(), deadline) {
                Ok(connecting) => dialling.push((at, connecting)),
                Err(_) => rail.rest(now),
            }
        }
        let mut come = Vec::new();
        dialling.retain_mut(|(at, connecting)| match connecting.poll(now) {
            Ok(None) => true,
            Ok(Some(connected)) => {
                come.push((*at, connected));
                false
            }
            Err(_) => {
                rails[*at].rest(now);
                false
            }
        });
        for (at, connected) in come {
            let epoch = self.links[number].as_ref().map_or(0, |link| link.rails[at].epoch + 1);
            self.reconnect(number, at, epoch, connected, now);
        }
    }

    /// Takes in rails that come back.
    fn accept_rails(&mut self, number: usize, now: Instant) {
        let Some(Some(link)) = self.links.get(number) else { return };
        let Some(device_listeners) = &link.device_listeners else { return };
        let mut device_listeners = lock(device_listeners);
        // The error is ignored here: `RailsListener::poll` also pumps, and returns it.
        let _ = device_listeners.pump(now);
        let returned = device_listeners.take_returned(&link.id);
        drop(device_listeners);
        for one in returned {
            let Some(Some(link)) = self.links.get(number) else { return };
            let (at, epoch) = (usize::from(one.hello.rail), one.hello.epoch);
            let is_awaited = link
                .rails
                .get(at)
                .is_some_and(|rail| matches!(rail.stage, Stage::Down { .. }) && rail.epoch < epoch);
            // A rail is dropped if it comes back before this side has noticed its failure; the
            // peer dials it again.
            if is_awaited {
                self.reconnect(number, at, epoch, one.connected, now);
            }
        }
    }

    /// Takes in a rail that is connected again, and sends over it the keys of the memory that this
    /// side shares with the peer.
    fn reconnect(
        &mut self,
        number: usize,
        at: usize,
        epoch: u32,
        connected: Connected,
        now: Instant,
    ) {
        let RailsLane { links, lanes, with, .. } = self;
        let Some(Some(link)) = links.get_mut(number) else { return };
        let index = link.rails[at].lane;
        let lane = &mut lanes[index];
        let Ok(endpoint) = lane.attach(connected) else { return link.rails[at].rest(now) };
        link.rails[at].reconnect(epoch, endpoint);
        if let Some(striping) = &link.striping {
            lane.set_striping(endpoint, striping);
        }
        let what = if link.rails[at].failures == 0 { "has joined its link" } else { "is back" };
        tracing::info!(rail = at, device = with.names[index], "a rail {what}");
        self.route(index, endpoint, Some((number, at)));
        self.send_keys(number, at, Note::Ready);
    }

    /// Sends, over a rail, this rail's keys of the memory that this side shares with the peer, and
    /// then the note `then`.
    pub(super) fn send_keys(&mut self, number: usize, at: usize, then: Note) {
        let RailsLane { links, lanes, with, .. } = self;
        let Some(Some(link)) = links.get(number) else { return };
        let rail = &link.rails[at];
        let (lane, Some(endpoint)) = (&mut lanes[rail.lane], rail.endpoint()) else { return };
        let mut keys = Vec::new();
        for (memory, key) in link.shares() {
            // Memory that is no longer registered needs no key.
            let Ok(registered) = with.registry.find(key) else { continue };
            let own = registered.with[rail.lane];
            let shared = own.and_then(|own| lane.share(endpoint, own).ok());
            keys.extend(shared.map(|RemoteKey(key)| (memory, key)));
        }
        for note in note::keys(keys).into_iter().chain([then]) {
            // If the note cannot be sent, the next poll notices the failure.
            let _ = lane.note(endpoint, &note.encode());
        }
    }
}
