//! DCQCN: switches mark packets as queues grow, receivers tell their senders, and these slow down
//! and speed up again. As in "Congestion control for large-scale RDMA deployments" (SIGCOMM 2015).

use ccl_core::random::Random;

/// Which packets a switch marks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// None below so much in the queue.
    pub least_bytes: f64,
    /// All above so much; below it up to `most_probability`.
    pub most_bytes: f64,
    /// At `most_bytes`.
    pub most_probability: f64,
}

impl Marking {
    /// That of a packet, with so much in the queue.
    pub(super) fn probability(&self, queue_bytes: f64) -> f64 {
        if queue_bytes <= self.least_bytes {
            0.0
        } else if queue_bytes >= self.most_bytes {
            1.0
        } else {
            let span = (self.most_bytes - self.least_bytes).max(1.0);
            (queue_bytes - self.least_bytes) / span * self.most_probability
        }
    }
}

/// How senders react.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dcqcn {
    /// Which packets are marked.
    pub marking: Marking,
    /// A sender hears of marks at most so often, in seconds.
    pub notice_s: f64,
    /// How often it speeds up, in seconds.
    pub timer_s: f64,
    /// How fast it forgets.
    pub gain: f64,
    /// By how much it speeds up once it is where it was, in bytes per second.
    pub increase_bytes_per_s: f64,
}

impl Default for Dcqcn {
    /// The usual ones, for 400 Gbit/s.
    fn default() -> Dcqcn {
        Dcqcn {
            marking: Marking { least_bytes: 100e3, most_bytes: 400e3, most_probability: 0.2 },
            notice_s: 50e-6,
            timer_s: 55e-6,
            gain: 1.0 / 16.0,
            increase_bytes_per_s: 0.5e9,
        }
    }
}

/// Rounds in which a sender comes half way back to where it was.
const FAST_ROUNDS: u32 = 5;
/// The slowest that it ever is, as a part of the line rate.
const SLOWEST: f64 = 1e-3;

/// A sender's rate.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    now: f64,
    target: f64,
    alpha: f64,
    rounds: u32,
    /// That no packet since the last notice was marked.
    unmarked: f64,
    noticed_s: f64,
    raised_s: f64,
}

impl Rate {
    pub(super) fn new(line_rate: f64) -> Rate {
        Rate {
            now: line_rate,
            target: line_rate,
            alpha: 1.0,
            rounds: 0,
            unmarked: 1.0,
            noticed_s: 0.0,
            raised_s: 0.0,
        }
    }

    pub(super) fn bytes_per_s(&self) -> f64 {
        self.now
    }

    /// So many packets went, each marked with this probability.
    pub(super) fn observe(&mut self, probability: f64, packets: f64) {
        if probability > 0.0 && packets > 0.0 {
            // A part of a packet is marked in part. Without `powf`, which differs from one C
            // library to another.
            let (whole, part) = (packets.floor(), packets.fract());
            let unmarked = (1.0 - probability).max(0.0);
            self.unmarked *= unmarked.powi(whole as i32) * (1.0 - probability * part);
        }
    }

    /// Slows down if a mark was noticed, speeds up if there was none for long enough.
    pub(super) fn react(&mut self, dcqcn: &Dcqcn, now_s: f64, line_rate: f64, random: &mut Random) {
        if now_s - self.noticed_s >= dcqcn.notice_s {
            let marked = random.chance(1.0 - self.unmarked);
            (self.noticed_s, self.unmarked) = (now_s, 1.0);
            if marked {
                self.target = self.now;
                self.now = (self.now * (1.0 - self.alpha / 2.0)).max(line_rate * SLOWEST);
                self.alpha = (1.0 - dcqcn.gain) * self.alpha + dcqcn.gain;
                (self.rounds, self.raised_s) = (0, now_s);
            } else {
                self.alpha *= 1.0 - dcqcn.gain;
            }
        }
        if now_s - self.raised_s >= dcqcn.timer_s {
            self.raised_s = now_s;
            self.rounds += 1;
            if self.rounds > FAST_ROUNDS {
                self.target += dcqcn.increase_bytes_per_s;
            }
            self.target = self.target.min(line_rate);
            self.now = f64::midpoint(self.now, self.target);
        }
    }
}
