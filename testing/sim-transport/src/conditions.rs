//! What the wires of a world are like.

use std::time::Duration;

use ccl_core::time::Instant;

/// A time in which some ranks do not reach the others, nor these them: what is transmitted
/// meanwhile is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The ranks on one side.
    pub ranks: Vec<u32>,
    /// When it begins.
    pub from: Instant,
    /// When it is over.
    pub until: Instant,
}

impl Cut {
    /// Whether what is transmitted at that time between these two is lost.
    #[must_use]
    pub fn parts(&self, a: u32, b: u32, at: Instant) -> bool {
        let crosses = self.ranks.contains(&a) != self.ranks.contains(&b);
        crosses && self.from <= at && at < self.until
    }
}

/// The conditions of a world; probabilities are per put.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// One way, without load.
    pub latency: Duration,
    /// Up to this much is added at random to each put.
    pub jitter: Duration,
    /// Of each link, in each direction.
    pub bandwidth_bytes_per_s: f64,
    /// A transmission is lost, and repeated after [`Conditions::retransmit_after`].
    pub loss: f64,
    /// A put arrives twice.
    pub duplication: f64,
    /// A put is held back by up to [`Conditions::spike`], so that others overtake it.
    pub reordering: f64,
    /// A put is held back by all of [`Conditions::spike`].
    pub delay_spikes: f64,
    /// How long puts are held back.
    pub spike: Duration,
    /// Doubled at each repetition.
    pub retransmit_after: Duration,
    /// After so many repetitions the peer is lost.
    pub retransmissions_max: u32,
    /// How long an idle connection takes to notice that its peer is dead.
    pub keepalive: Duration,
    /// Whether crashed ranks are never noticed by the transport.
    pub silent_crashes: bool,
    /// Whether the places of puts may change while they are under way, as the capability then
    /// says.
    pub redirects: bool,
    /// Whether puts of one endpoint arrive in order, as the capability then says.
    pub ordered: bool,
    /// The most bytes of one put.
    pub message_bytes_max: usize,
    /// The most puts outstanding on one endpoint.
    pub depth_max: usize,
    /// Ranks whose links are this many times slower, and which look at their lanes that many
    /// latencies late.
    pub slow: Vec<(u32, u32)>,
    /// When some ranks are cut off from the others.
    pub cut: Option<Cut>,
}

impl Default for Conditions {
    /// A quiet network of a machine room, where puts overtake each other by jitter only.
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
    /// A bad day: everything that can happen to a packet happens to some.
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

    /// How many times slower a rank is than it should be.
    #[must_use]
    pub fn slowness(&self, rank: u32) -> u32 {
        let slow = self.slow.iter().find(|(slow, _)| *slow == rank);
        slow.map_or(1, |(_, factor)| (*factor).max(1))
    }
}
