//! What the network does when many use it: defaults are for one that carries all that hosts send,
//! in whatever pairs. One pair of hosts is measured alone, and then all at once, each of them in
//! another half of the hosts than its partner.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Instant;

use ccl_core::config::Config;
use ccl_core::topology::Hosts;
use ccl_core::types::Rank;

use super::Tried;
use crate::communicator::Communicator;
use crate::perf::subject::{Subject as _, SubjectError};

/// Of a message, of which a group has so many each way.
const MESSAGE_BYTES: usize = 1 << 20;
const MESSAGES: usize = 8;
const ROUNDS: usize = 7;
const PINGS: u32 = 50;
/// What of the rate alone must be left with all at once for nothing to be said.
const LEFT: f64 = 0.8;

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    /// Pairs of hosts.
    pairs: u32,
    /// There and back, of a few bytes, between two hosts; in microseconds.
    round_trip_us: f64,
    /// One way between two hosts that are alone, while as much comes back; in bytes per second.
    alone: f64,
    /// The same of the slowest pair, all at once.
    together: f64,
}

impl Seen {
    /// What is left of the rate.
    fn left(&self) -> f64 {
        self.together / self.alone
    }

    /// In one sentence, and what it leads to in another.
    fn said(&self, tried: &[Tried]) -> String {
        let Seen { pairs, round_trip_us, alone, together } = *self;
        let mut text = format!(
            "between hosts: a round trip of {round_trip_us:.1} us, {:.3} GB/s each way with one \
             pair of hosts alone",
            alone / 1e9
        );
        if pairs < 2 {
            return text + "\n";
        }
        // Writing to a string does not fail.
        let _ = write!(
            text,
            " and {:.3} GB/s with all {pairs} at once ({:.0} %)",
            together / 1e9,
            100.0 * self.left()
        );
        if self.left() < LEFT {
            let names: Vec<&str> = tried.iter().map(|tried| tried.variable).collect();
            let and = match names.is_empty() {
                true => String::new(),
                false => format!("; {} tried for that", names.join(" and ")),
            };
            let _ = write!(
                text,
                ": it is oversubscribed 1:{:.1}, or puts several flows on one path{and}",
                1.0 / self.left()
            );
        }
        text + "\n"
    }
}

/// Looks, and says what it sees on rank 0. Returns what is worth trying because of it. All ranks
/// call it, and all get the same.
pub(super) fn look(
    communicator: &mut Communicator,
    out: &mut dyn Write,
) -> Result<Vec<Tried>, SubjectError> {
    let hosts = communicator.hosts().clone();
    if hosts.count() < 2 {
        return Ok(Vec::new());
    }
    let pairs = hosts.count() / 2;
    let own = partner(&hosts, communicator.rank());
    let mut buffers = vec![(vec![1_u8; MESSAGE_BYTES], vec![0_u8; MESSAGE_BYTES]); MESSAGES];
    let round_trip_us = round_trip(communicator, own.filter(|(pair, _)| *pair == 0))?;
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    // In turns, and the first of each for nothing but connecting.
    for round in 0..=ROUNDS {
        let one = exchanged(communicator, own.filter(|(pair, _)| *pair == 0), &mut buffers)?;
        let all = exchanged(communicator, own, &mut buffers)?;
        if round > 0 {
            alone.push(one);
            together.push(all);
        }
    }
    let bytes = (MESSAGE_BYTES * MESSAGES) as f64;
    let seen = Seen {
        pairs,
        round_trip_us,
        alone: bytes / median(alone),
        together: bytes / median(together),
    };
    let tried = worth(&seen, communicator.config());
    if communicator.rank() == 0 {
        out.write_all(seen.said(&tried).as_bytes())?;
    }
    Ok(tried)
}

/// The number of this rank's pair of hosts, and the rank to talk with: of each host the first.
fn partner(hosts: &Hosts, rank: Rank) -> Option<(u32, Rank)> {
    let ((host, local), half) = (hosts.seat(rank), hosts.count() / 2);
    let (pair, other) = if host < half { (host, host + half) } else { (host - half, host - half) };
    // Of an odd number the last has none.
    (local == 0 && pair < half).then(|| (pair, hosts.members(other).next().unwrap_or(rank)))
}

/// Seconds until the slowest of those that take part has sent and received all; the same on all
/// ranks.
fn exchanged(
    communicator: &mut Communicator,
    own: Option<(u32, Rank)>,
    buffers: &mut [(Vec<u8>, Vec<u8>)],
) -> Result<f64, SubjectError> {
    communicator.barrier()?;
    let begun = Instant::now();
    if let Some((_, peer)) = own {
        let mut group = communicator.group();
        for (sent, received) in buffers {
            group = group.send(sent, peer).recv(received, peer);
        }
        group.run()?;
    }
    let took = if own.is_some() { begun.elapsed().as_secs_f64() } else { 0.0 };
    Ok(communicator.all_gather_f64(took)?.into_iter().fold(0.0, f64::max))
}

/// Microseconds there and back, the mean of some; the same on all ranks.
fn round_trip(
    communicator: &mut Communicator,
    own: Option<(u32, Rank)>,
) -> Result<f64, SubjectError> {
    let (mut word, mut took) = ([0_u8; 8], 0.0);
    for timed in [false, true] {
        communicator.barrier()?;
        let begun = Instant::now();
        for _ in 0..PINGS {
            match own {
                Some((_, peer)) if communicator.rank() < peer => {
                    communicator.send(&word, peer)?;
                    communicator.recv(&mut word, peer)?;
                }
                Some((_, peer)) => {
                    communicator.recv(&mut word, peer)?;
                    communicator.send(&word, peer)?;
                }
                None => {}
            }
        }
        if timed && own.is_some() {
            took = begun.elapsed().as_secs_f64() * 1e6 / f64::from(PINGS);
        }
    }
    Ok(communicator.all_gather_f64(took)?.into_iter().fold(0.0, f64::max))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// More flows, where those that there are do not get what one pair alone does.
fn worth(seen: &Seen, config: &Config) -> Vec<Tried> {
    if seen.pairs < 2 || seen.left() >= LEFT {
        return Vec::new();
    }
    let (variable, values): (_, &[&str]) = match config.transport.as_str() {
        "verbs" => ("FERROCCL_IB_POLICY", &["qps=4", "qps=16"]),
        _ => ("FERROCCL_SOCKETS", &["2", "4"]),
    };
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    vec![Tried { variable, values }]
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_gets_slower_in_company_is_said_and_tried() {
        let mut config = Config::default();
        let seen = Seen { pairs: 4, round_trip_us: 12.0, alone: 10e9, together: 2.5e9 };
        let tried = worth(&seen, &config);
        assert_eq!(tried[0].variable, "FERROCCL_SOCKETS");
        let said = seen.said(&tried);
        assert!(said.contains("2.500 GB/s with all 4 at once (25 %): it is oversubscribed 1:4.0"));
        assert!(said.ends_with("FERROCCL_SOCKETS tried for that\n"), "{said}");
        config.transport = "verbs".to_owned();
        assert_eq!(worth(&seen, &config)[0].variable, "FERROCCL_IB_POLICY");
        for quiet in [Seen { together: 9e9, ..seen }, Seen { pairs: 1, ..seen }] {
            assert_eq!(worth(&quiet, &config), []);
            assert!(!quiet.said(&[]).contains("oversubscribed"));
        }
    }
}
