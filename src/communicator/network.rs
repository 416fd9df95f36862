//! Measurement of the network under load. The default settings assume a network that carries the
//! full rate of all hosts at once, between any pairs of hosts. This module measures one pair
//! of hosts alone, then all pairs at once. The hosts are split into two halves, and a pair has one
//! host of each half.
//!
//! `ferroccl tune` measures the network. Joining ranks do so if `FERROCCL_CHECK_NETWORK=measure`.

use std::fmt;
use std::time::Instant;

use ccl_core::config::NetworkCheck;
use ccl_core::topology::Hosts;
use ccl_core::types::Rank;

use super::error::Error;
use super::{Communicator, assumptions};

/// Bytes of one message; a group sends `MESSAGES` messages and receives as many.
const MESSAGE_BYTES: usize = 1 << 20;
const MESSAGES: usize = 8;
const PINGS: u32 = 50;
/// Least rate of the slowest pair when all pairs send at once, as a fraction of a lone pair's rate.
/// Below this rate, the defaults do not suit the network.
const LEFT: f64 = 0.8;
/// Number of rounds that ranks measure when they join: few, so that users wait less.
const ROUNDS: u32 = 3;
/// Total measured time, in seconds, after which no further round begins.
const LONG_ENOUGH_S: f64 = 5.0;
/// Speed-up by more flows, as a ratio of rates, above which the links keep the additional flows.
const WORTH: f64 = 1.1;

/// Results of measuring the network, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Number of pairs of hosts.
    pub pairs: u32,
    /// Round trip of a few bytes between two hosts, in microseconds.
    pub round_trip_us: f64,
    /// Rate in each direction between two hosts while all other hosts are idle, in bytes/s.
    pub alone: f64,
    /// Rate of the slowest pair when all pairs send at once; in bytes per second.
    pub together: f64,
}

impl Measurement {
    /// Returns the rate when all pairs send at once, as a fraction of the rate of one pair alone.
    fn left(&self) -> f64 {
        self.together / self.alone
    }

    /// Returns whether pairs that send at once slow each other down more than the defaults assume.
    pub fn is_oversubscribed(&self) -> bool {
        self.pairs > 1 && self.left() < LEFT
    }
}

/// Writes one sentence, without a full stop.
impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measurement { pairs, round_trip_us, alone, together } = *self;
        write!(
            f,
            "between hosts: a round trip of {round_trip_us:.1} us, {:.3} GB/s each way with one \
             pair of hosts alone",
            alone / 1e9
        )?;
        if pairs > 1 {
            let percent = 100.0 * self.left();
            let gb_per_s = together / 1e9;
            write!(f, " and {gb_per_s:.3} GB/s with all {pairs} at once ({percent:.0} %)")?;
        }
        if self.is_oversubscribed() {
            let ratio = 1.0 / self.left();
            write!(
                f,
                ": the network is oversubscribed 1:{ratio:.1}, or puts several flows on one path"
            )?;
        }
        Ok(())
    }
}

/// Outcome of the measurement at joining; split and shrunk communicators inherit it.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// True if links have more flows than by default.
    pub(super) more_flows: bool,
    /// Note on the outcome.
    note: Option<String>,
}

impl Communicator {
    /// Measures the network in at most `rounds` rounds, after a first round that includes
    /// connecting and does not count. Returns none for a single host. All ranks call this method
    /// together and get the same result.
    #[doc(hidden)]
    pub fn measure_network(&mut self, rounds: u32) -> Result<Option<Measurement>, Error> {
        let hosts = self.hosts().clone();
        if hosts.count() < 2 {
            return Ok(None);
        }
        let own = partner(&hosts, self.rank());
        let first = own.filter(|(pair, _)| *pair == 0);
        let count = if own.is_some() { MESSAGES } else { 0 };
        let mut buffers = vec![(vec![1_u8; MESSAGE_BYTES], vec![0_u8; MESSAGE_BYTES]); count];
        let round_trip_us = self.round_trip(first)?;
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        // Alternates the two measurements.
        for _ in 0..=rounds {
            alone.push(self.exchanged(first, &mut buffers)?);
            together.push(self.exchanged(own, &mut buffers)?);
            // All ranks have the same times, so they all stop after the same round.
            if alone.iter().chain(&together).sum::<f64>() > LONG_ENOUGH_S {
                break;
            }
        }
        let bytes = (MESSAGE_BYTES * MESSAGES) as f64;
        Ok(Some(Measurement {
            pairs: hosts.count() / 2,
            round_trip_us,
            alone: bytes / median(alone),
            together: bytes / median(together),
        }))
    }

    /// Measures the network if `FERROCCL_CHECK_NETWORK=measure` asks for it and there is no earlier
    /// measurement. Returns a communicator with more flows if the network is oversubscribed and
    /// more flows are faster, otherwise this communicator. All ranks call this method together.
    pub(super) fn adjusted_to_network(mut self) -> Result<Communicator, Error> {
        let is_asked = self.config().check_network == NetworkCheck::Measure;
        if !is_asked || self.measured.is_some() {
            return Ok(self);
        }
        let Some(seen) = self.measure_network(ROUNDS)? else { return Ok(self) };
        let mut said = seen.to_string();
        let holds = self.engine.wiring.as_ref().map(|wiring| &wiring.config);
        let more = holds.and_then(|holds| assumptions::more_flows(self.config(), holds));
        let mut more_flows = false;
        if let Some(more) = more.filter(|_| seen.is_oversubscribed()) {
            self.measured = Some(Measured { more_flows: true, note: None });
            let mut other = self.split_whole()?;
            let Some(then) = other.measure_network(ROUNDS)? else { return Ok(self) };
            let times = then.together / seen.together;
            more_flows = times > WORTH;
            let outcome = if more_flows {
                "so the links keep this setting"
            } else {
                "so the links stay as they were"
            };
            said += &format!(
                "; with {more}, all pairs at once are {times:.2} times as fast, {outcome}"
            );
            if more_flows {
                self = other;
            }
        }
        tracing::info!("{said}");
        let note = seen.is_oversubscribed().then_some(said);
        self.measured = Some(Measured { more_flows, note });
        Ok(self)
    }

    /// Returns the notes on how defaults were changed to suit the network.
    pub(super) fn note(&self) -> Option<String> {
        let adjusted = self.engine.wiring.as_ref().and_then(|wiring| wiring.note.as_deref());
        let measured = self.measured.as_ref().and_then(|measured| measured.note.as_deref());
        let notes = Vec::from_iter(adjusted.into_iter().chain(measured));
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Returns the seconds that the slowest rank with a peer takes to send and receive all its
    /// messages; the same on all ranks.
    fn exchanged(
        &mut self,
        own: Option<(u32, Rank)>,
        buffers: &mut [(Vec<u8>, Vec<u8>)],
    ) -> Result<f64, Error> {
        self.barrier()?;
        let begun = Instant::now();
        if let Some((_, peer)) = own {
            let mut group = self.group();
            for (sent, received) in buffers {
                group = group.send(sent, peer).recv(received, peer);
            }
            group.run()?;
        }
        let took = if own.is_some() { begun.elapsed().as_secs_f64() } else { 0.0 };
        self.greatest(took)
    }

    /// Returns the mean round trip in microseconds; the same on all ranks.
    fn round_trip(&mut self, own: Option<(u32, Rank)>) -> Result<f64, Error> {
        let (mut word, mut took) = ([0_u8; 8], 0.0);
        for timed in [false, true] {
            self.barrier()?;
            let begun = Instant::now();
            for _ in 0..PINGS {
                match own {
                    Some((_, peer)) if self.rank() < peer => {
                        self.send(&word, peer)?;
                        self.recv(&mut word, peer)?;
                    }
                    Some((_, peer)) => {
                        self.recv(&mut word, peer)?;
                        self.send(&word, peer)?;
                    }
                    None => {}
                }
            }
            if timed && own.is_some() {
                took = begun.elapsed().as_secs_f64() * 1e6 / f64::from(PINGS);
            }
        }
        self.greatest(took)
    }

    /// Returns the greatest of all ranks' values, none of which may be negative.
    fn greatest(&mut self, value: f64) -> Result<f64, Error> {
        let mut all = vec![0.0; self.ranks() as usize];
        self.all_gather(&[value], &mut all)?;
        Ok(all.into_iter().fold(0.0, f64::max))
    }
}

/// Returns the index of the pair to which this rank's host belongs, and this rank's peer on the
/// other host of the pair. Returns none for all ranks of a host except the first.
fn partner(hosts: &Hosts, rank: Rank) -> Option<(u32, Rank)> {
    let ((host, local), half) = (hosts.seat(rank), hosts.count() / 2);
    let (pair, other) = if host < half { (host, host + half) } else { (host - half, host - half) };
    // With an odd number of hosts, the last one has no partner.
    (local == 0 && pair < half).then(|| (pair, hosts.members(other).next().unwrap_or(rank)))
}

/// Returns the median of all times except the first, which includes connecting. Returns the first
/// time if there is no other.
fn median(mut times: Vec<f64>) -> f64 {
    if times.len() > 1 {
        times.remove(0);
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{Join, Listening, Reach};
    use ccl_core::config::Config;

    #[test]
    fn the_first_ranks_of_hosts_meet_in_pairs() {
        let hosts = Hosts::of(&[0, 0, 1, 2, 2, 3, 4]);
        let partners: Vec<_> = (0..7).map(|rank| partner(&hosts, rank)).collect();
        let pair = |pair, peer| Some((pair, peer));
        let expected = [pair(0, 3), None, pair(1, 5), pair(0, 0), None, pair(1, 2), None];
        assert_eq!(partners, expected);
        assert_eq!(partner(&Hosts::one(4), 0), None);
    }

    #[test]
    fn the_median_skips_the_first_time_unless_it_is_the_only_one() {
        assert_eq!(median(vec![9.0, 3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![9.0, 1.0]), 1.0);
        assert_eq!(median(vec![9.0]), 9.0);
        assert!(median(Vec::new()).is_nan());
    }

    /// Checks that a communicator inherits the flows that a measurement chose for its parent.
    #[test]
    fn more_flows_are_inherited() {
        let Listening { id, listener } = Listening::new(&Reach::Loopback).unwrap();
        let mut listener = Some(listener);
        let ranks = [0, 1].map(|rank| {
            let mut how = Join::new(rank, 2, id.clone());
            how.listener = listener.take();
            std::thread::spawn(move || {
                let mut config = Config::default();
                config.transport = "tcp".to_owned();
                config.check_network = NetworkCheck::Measure;
                let mut first = Communicator::join_with(how, config).unwrap();
                assert!(
                    first.measured.is_some() && first.note().is_none(),
                    "the only pair was not measured, or its measurement left a note"
                );
                let note = Some("so it is".to_owned());
                first.measured = Some(Measured { more_flows: true, note: note.clone() });
                let second = first.split(0, 0).unwrap().unwrap();
                let mut third = { second }.split(0, 0).unwrap().unwrap();
                let sockets = |communicator: &Communicator| {
                    let of = |config: &Config| {
                        config.transport_settings.get("FERROCCL_SOCKETS").map(str::to_owned)
                    };
                    let made = communicator.engine.wiring.as_ref().map(|w| of(&w.config));
                    (of(communicator.config()), made)
                };
                assert_eq!(sockets(&first), (None, Some(None)));
                assert_eq!(sockets(&third), (None, Some(Some("4".to_owned()))));
                assert_eq!(third.note(), note);
                assert_eq!(third.greatest(f64::from(rank)).unwrap(), 1.0);
            })
        });
        for rank in ranks {
            rank.join().unwrap();
        }
    }

    #[test]
    fn an_oversubscribed_network_is_reported() {
        let seen = Measurement { pairs: 4, round_trip_us: 12.0, alone: 10e9, together: 2.5e9 };
        let said = seen.to_string();
        assert!(
            said.contains(
                "2.500 GB/s with all 4 at once (25 %): the network is oversubscribed 1:4.0"
            )
        );
        assert!(seen.is_oversubscribed());
        for quiet in [Measurement { together: 9e9, ..seen }, Measurement { pairs: 1, ..seen }] {
            assert!(!quiet.is_oversubscribed() && !quiet.to_string().contains("oversubscribed"));
        }
    }
}
