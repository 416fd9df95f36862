//! Conditions on the wires of a world.

use std::time::Duration;

use ccl_core::time::Instant;

/// Period in which some ranks and the other ranks do not reach each other: transmissions between
/// them are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Ranks on one side.
    pub ranks: Vec<u32>,
    /// Beginning of the cut.
    pub from: Instant,
    /// End of the cut, exclusive.
    pub until: Instant,
}

impl Cut {
    /// Returns whether a transmission between two ranks at that time is lost.
    #[must_use]
    pub fn parts(&self, a: u32, b: u32, at: Instant) -> bool {
        let crosses = self.ranks.contains(&a) != self.ranks.contains(&b);
        crosses && self.from <= at && at < self.until
    }
}

/// Conditions of a world. Each probability is per put, except `loss`, which is per transmission.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// One-way latency without load.
    pub latency: Duration,
    /// Largest random delay that is added to each put.
    pub jitter: Duration,
    /// Bandwidth of each link in each direction.
    pub bandwidth_bytes_per_s: f64,
    /// Probability that a transmission is lost; a lost transmission is repeated after
    /// [`Conditions::retransmit_after`].
    pub loss: f64,
    /// Probability that a put arrives twice.
    pub duplication: f64,
    /// Probability that a put is delayed by a random part of [`Conditions::spike`], so that other
    /// puts can overtake it.
    pub reordering: f64,
    /// Probability that a put is delayed by all of [`Conditions::spike`].
    pub delay_spikes: f64,
    /// Delay of a delay spike, and longest delay that reordering adds to a put.
    pub spike: Duration,
    /// Wait before the first retransmission; the wait doubles with each repetition.
    pub retransmit_after: Duration,
    /// Largest number of retransmissions; if the last one fails, the peer is lost.
    pub retransmissions_max: u32,
    /// Time until an idle connection detects a dead peer.
    pub keepalive: Duration,
    /// True if the transport never detects crashed ranks.
    pub silent_crashes: bool,
    /// True if a put under way can be given another source or another target; sets
    /// `Caps::redirects`.
    pub redirects: bool,
    /// True if the puts of one endpoint arrive in order; sets `Caps::ordered`.
    pub ordered: bool,
    /// Largest number of bytes of one put.
    pub message_bytes_max: usize,
    /// Largest number of data puts that one endpoint has outstanding.
    pub depth_max: usize,
    /// Slow ranks, each with its factor: a slow rank's links are slower by the factor, and the rank
    /// polls its lanes later, by (factor - 1) times the latency.
    pub slow: Vec<(u32, u32)>,
    /// Cut between some ranks and the others, if any.
    pub cut: Option<Cut>,
}

impl Default for Conditions {
    /// Returns the conditions of a quiet network, where only jitter makes puts overtake each other.
    fn default() -> Conditions {
        Conditions {
            latency: Duration::from_micros(5),
            jitter: Duration::from_micros(2),
            bandwidth_bytes_per_s: 10e9,
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            delay_spikes: 0.0,
            spike: Duration::from_micros(200),
            retransmit_after: Duration::from_micros(500),
            retransmissions_max: 7,
            keepalive: Duration::from_millis(500),
            silent_crashes: false,
            redirects: true,
            ordered: false,
            message_bytes_max: 1 << 20,
            depth_max: 64,
            slow: Vec::new(),
            cut: None,
        }
    }
}

impl Conditions {
    /// Returns conditions with loss, duplication, reordering and delay spikes.
    #[must_use]
    pub fn hostile() -> Conditions {
        Conditions {
            jitter: Duration::from_micros(20),
            loss: 0.05,
            duplication: 0.05,
            reordering: 0.2,
            delay_spikes: 0.02,
            depth_max: 4,
            ..Conditions::default()
        }
    }

    /// Returns the factor by which a rank is slower than usual.
    #[must_use]
    pub fn slowness(&self, rank: u32) -> u32 {
        let slow = self.slow.iter().find(|(slow, _)| *slow == rank);
        slow.map_or(1, |(_, factor)| (*factor).max(1))
    }
}
