//! Engines whose ranks are connected.

use std::sync::Arc;

use ccl_core::config::Config;
use ccl_core::types::Rank;
use ccl_links::Links;
use ccl_links::mapped::{Duplex, MappedLinks};
use ccl_memory::doorbell::{Doorbell, Parking};
use ccl_memory::slots::{Receiver, Sender};

use super::super::error::{Error, SetupError};
use super::super::exchange::{Topic, exchange};
use super::super::segment::Segment;
use super::super::wait::{PollCost, WaitPolicy};
use super::super::wiring::Wiring;
use super::Engine;

impl Engine {
    /// Makes an engine over connected ranks: links over shared segments, and messages to other
    /// hosts.
    pub(in super::super) fn over(
        mut wiring: Wiring,
        config: Config,
        parking: Parking,
    ) -> Result<Engine, Error> {
        let (rank, ranks) = (wiring.control.rank(), wiring.control.ranks());
        let segment =
            Segment::new(&wiring.hosts, rank, &wiring.config).on_network(wiring.budget_share);
        let mut receivers: Vec<Option<Receiver>> = Vec::new();
        let regions = wiring.share(segment.bytes(), |own| {
            for (peer, channel) in links(ranks, segment.channels) {
                receivers.push(match segment.link(own, rank, peer, channel) {
                    None => None,
                    Some(slots) => {
                        let slots = slots.map_err(memory)?;
                        Some(Receiver::new(&slots, segment.shape).map_err(memory)?)
                    }
                });
            }
            Ok(())
        })?;
        let mut duplexes = Vec::new();
        for ((peer, channel), receiver) in links(ranks, segment.channels).zip(receivers) {
            let theirs = regions[peer as usize].as_ref();
            let slots = theirs.and_then(|theirs| segment.link(theirs, peer, rank, channel));
            duplexes.push(match (receiver, slots) {
                (Some(receiver), Some(slots)) => {
                    let slots = slots.map_err(memory)?;
                    let sender = Sender::new(&slots, segment.shape).map_err(memory)?;
                    Some(Duplex { sender, receiver })
                }
                _ => None,
            });
        }
        let mut doorbells = Vec::new();
        let mut records = Vec::new();
        for region in &regions {
            let doorbell = region.as_ref().map(|region| Doorbell::new(region, parking));
            doorbells.push(doorbell.transpose().map_err(memory)?);
            let record = region.as_ref().map(|region| segment.record(region));
            records.push(record.transpose().map_err(memory)?);
        }
        // The engine keeps its doorbell only if a peer shares memory with it and so can ring the
        // doorbell. Without a doorbell, an arriving message ends the engine's sleep.
        let own_doorbell = doorbells[rank as usize].take();
        let own_doorbell = own_doorbell.filter(|_| duplexes.iter().any(Option::is_some));
        let own_record = records[rank as usize].take();
        let look = match &wiring.messages {
            None => PollCost::Memory,
            Some(messages) if messages.polls_by_system_call() => PollCost::Calls,
            Some(_) => PollCost::Device,
        };
        let wait_policy = WaitPolicy::new(&config, wiring.locals.len(), look, own_doorbell);
        let mapped = MappedLinks::new(segment.channels, duplexes, doorbells);
        let links = Links::new(mapped, wiring.messages.take());
        let control = Arc::clone(&wiring.control);
        exchange(&control, Topic::Ready, &(), wiring.timeout)?;
        let mut engine =
            Engine::new(control, config, wiring.hosts.clone(), segment, links, wait_policy);
        engine.own_record = own_record;
        engine.peer_records = records;
        engine.wiring = Some(wiring);
        Ok(engine)
    }
}

fn links(ranks: u32, channels: u32) -> impl Iterator<Item = (Rank, u32)> {
    (0..ranks).flat_map(move |peer| (0..channels).map(move |channel| (peer, channel)))
}

fn memory(error: ccl_memory::RegionError) -> Error {
    SetupError::Segment(error).into()
}
