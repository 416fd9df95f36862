//! DCQCN: switches mark packets as queues grow, receivers tell their senders, and these slow down
//! and speed up again. As in "Congestion control for large-scale RDMA deployments" (SIGCOMM 2015).

use ccl_core::random::Random;

use crate::flows::rounded_s;

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

/// How receivers tell of marks, and how senders react. The names behind are the source's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dcqcn {
    /// Which packets are marked.
    pub marking: Marking,
    /// A receiver sends a notice of marks (CNP) at most so often for a flow, in seconds: N.
    pub notice_s: f64,
    /// So long after the last notice, and again and again, a sender forgets a part: K, in seconds.
    pub forget_s: f64,
    /// How much of what it remembers: g.
    pub gain: f64,
    /// What a sender remembers at first: 1, the source's, and less if it was told long ago.
    pub alpha: f64,
    /// How often it speeds up, in seconds: T.
    pub timer_s: f64,
    /// And after how many bytes that it has sent: B.
    pub counter_bytes: f64,
    /// By how much it speeds up once it is where it was, in bytes per second: R_AI.
    pub increase_bytes_per_s: f64,
    /// By how much more each time, once both timer and counter have gone on for long: R_HAI.
    pub hyper_bytes_per_s: f64,
}

impl Default for Dcqcn {
    /// Those of 400 Gbit/s.
    fn default() -> Dcqcn {
        Dcqcn::of(50e9)
    }
}

/// The line rate that the source's thresholds are for: 40 Gbit/s, in bytes per second.
const SOURCE_BYTES_PER_S: f64 = 5e9;

impl Dcqcn {
    /// The same for senders that have heard nothing for so many seconds.
    #[must_use]
    pub fn after_silence(self, silent_s: f64) -> Dcqcn {
        let times = (silent_s / self.forget_s).clamp(0.0, f64::from(i32::MAX)) as i32;
        Dcqcn { alpha: self.alpha * (1.0 - self.gain).powi(times), ..self }
    }

    /// The source's own numbers. Its thresholds, of 40 Gbit/s, are scaled to another line rate, as
    /// they stand for time in a queue. `R_HAI`, which it does not give, is ten times `R_AI`.
    #[must_use]
    pub fn of(line_bytes_per_s: f64) -> Dcqcn {
        let faster = line_bytes_per_s / SOURCE_BYTES_PER_S;
        let (least_bytes, most_bytes) = (5e3 * faster, 200e3 * faster);
        Dcqcn {
            marking: Marking { least_bytes, most_bytes, most_probability: 0.01 },
            notice_s: 50e-6,
            forget_s: 55e-6,
            gain: 1.0 / 256.0,
            alpha: 1.0,
            timer_s: 55e-6,
            counter_bytes: 10e6,
            increase_bytes_per_s: 5e6,
            hyper_bytes_per_s: 50e6,
        }
    }
}

/// Rounds in which a sender comes half way back to where it was: F.
const FAST_ROUNDS: u32 = 5;
/// The slowest that it ever is, as a part of the line rate.
const SLOWEST: f64 = 1e-3;

/// A flow's receiver, who tells of marks.
#[derive(Clone, Debug)]
pub(super) struct Notices {
    told_s: f64,
    /// That a packet was marked since.
    is_marked: bool,
}

impl Notices {
    pub(super) fn new() -> Notices {
        Notices { told_s: f64::NEG_INFINITY, is_marked: false }
    }

    /// So many packets arrive, of which such a part is marked. Whether the sender is told now: at
    /// the first mark, and then at most once in each `notice_s`.
    pub(super) fn arrive(
        &mut self,
        dcqcn: &Dcqcn,
        now_s: f64,
        (packets, marked): (f64, f64),
        random: &mut Random,
    ) -> bool {
        if marked > 0.0 && packets > 0.0 && !self.is_marked {
            // A part of a packet is marked in part. Without `powf`, which differs from one C
            // library to another.
            let (whole, part) = (packets.floor(), packets.fract());
            let unmarked = (1.0 - marked).max(0.0);
            let unmarked = unmarked.powi(whole as i32) * (1.0 - marked * part);
            self.is_marked = random.chance(1.0 - unmarked);
        }
        let tells = self.is_marked && rounded_s(now_s - self.told_s) >= dcqcn.notice_s;
        if tells {
            (self.told_s, self.is_marked) = (now_s, false);
        }
        tells
    }
}

/// A sender's rate.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    now: f64,
    target: f64,
    alpha: f64,
    /// Since the last notice: how often the timer and the counter of bytes have come round, and
    /// when and at how many bytes they last did.
    rounds: [u32; 2],
    raised_s: f64,
    counted_bytes: f64,
    forgot_s: f64,
    /// When a notice arrives that is on its way.
    hears_s: f64,
}

impl Rate {
    pub(super) fn new(line_rate: f64, alpha: f64) -> Rate {
        Rate {
            now: line_rate,
            target: line_rate,
            alpha,
            rounds: [0, 0],
            raised_s: 0.0,
            counted_bytes: 0.0,
            forgot_s: 0.0,
            hears_s: f64::INFINITY,
        }
    }

    pub(super) fn bytes_per_s(&self) -> f64 {
        self.now
    }

    /// A notice will arrive at that time.
    pub(super) fn will_hear(&mut self, at_s: f64) {
        self.hears_s = at_s;
    }

    /// So much has left.
    pub(super) fn sent(&mut self, bytes: f64) {
        self.counted_bytes += bytes;
    }

    /// Slows down at a notice, forgets and speeds up without.
    pub(super) fn react(&mut self, dcqcn: &Dcqcn, now_s: f64, line_rate: f64) {
        if now_s >= self.hears_s {
            self.hears_s = f64::INFINITY;
            self.target = self.now;
            self.now = (self.now * (1.0 - self.alpha / 2.0)).max(line_rate * SLOWEST);
            self.alpha = (1.0 - dcqcn.gain) * self.alpha + dcqcn.gain;
            (self.rounds, self.counted_bytes) = ([0, 0], 0.0);
            (self.raised_s, self.forgot_s) = (now_s, now_s);
            return;
        }
        if now_s - self.forgot_s >= dcqcn.forget_s {
            self.forgot_s += dcqcn.forget_s;
            self.alpha *= 1.0 - dcqcn.gain;
        }
        if now_s - self.raised_s >= dcqcn.timer_s {
            self.raised_s += dcqcn.timer_s;
            self.raise(dcqcn, 0, line_rate);
        }
        if self.counted_bytes >= dcqcn.counter_bytes {
            self.counted_bytes -= dcqcn.counter_bytes;
            self.raise(dcqcn, 1, line_rate);
        }
    }

    /// Speeds up, as the timer or the counter has come round.
    fn raise(&mut self, dcqcn: &Dcqcn, which: usize, line_rate: f64) {
        self.rounds[which] += 1;
        let [timer, counter] = self.rounds;
        let (least, most) = (timer.min(counter), timer.max(counter));
        if least > FAST_ROUNDS {
            self.target += f64::from(least - FAST_ROUNDS) * dcqcn.hyper_bytes_per_s;
        } else if most > FAST_ROUNDS {
            self.target += dcqcn.increase_bytes_per_s;
        }
        self.target = self.target.min(line_rate);
        self.now = f64::midpoint(self.now, self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 5e9;

    #[test]
    fn a_receiver_tells_at_the_first_mark_and_then_once_in_a_while() {
        let (dcqcn, mut notices, mut random) = (Dcqcn::of(LINE), Notices::new(), Random::new(1));
        let mut told = Vec::new();
        for step in 0..200u32 {
            let now_s = f64::from(step) * 1e-6;
            // All packets are marked, from 7 to 120 microseconds.
            let marked = if (7..=120).contains(&step) { 1.0 } else { 0.0 };
            if notices.arrive(&dcqcn, now_s, (2.0, marked), &mut random) {
                told.push(step);
            }
        }
        // At once, and at the end of each interval in which some were marked.
        assert_eq!(told, [7, 57, 107, 157]);
        // What does not arrive is not marked.
        assert!(!Notices::new().arrive(&dcqcn, 1.0, (0.0, 1.0), &mut random));
        assert!(!Notices::new().arrive(&dcqcn, 1.0, (5.0, 0.0), &mut random));
    }

    #[test]
    fn a_sender_halves_recovers_and_goes_on_as_published() {
        let dcqcn = Dcqcn::of(LINE);
        let mut rate = Rate::new(LINE, dcqcn.alpha);
        rate.will_hear(1e-3);
        rate.react(&dcqcn, 10e-6, LINE);
        assert_eq!(rate.bytes_per_s(), LINE);
        rate.react(&dcqcn, 1e-3, LINE);
        assert_eq!((rate.bytes_per_s(), rate.target, rate.alpha), (LINE / 2.0, LINE, 1.0));
        // Five rounds of the timer: half of the way back each time, and alpha forgets in each.
        let later = |round: u32| 1e-3 + f64::from(round) * 55.001e-6;
        for round in 1..=5 {
            rate.react(&dcqcn, later(round), LINE);
            let expected = LINE * (1.0 - 0.5f64.powi(round as i32 + 1));
            assert!((rate.bytes_per_s() / expected - 1.0).abs() < 1e-12, "round {round}");
        }
        assert!((rate.alpha / (255.0f64 / 256.0).powi(5) - 1.0).abs() < 1e-12);
        // Again, from below: then 40 Mbit/s more in each round, and faster once the counter, too,
        // has come round more than five times.
        for _ in 0..2 {
            rate.will_hear(later(5));
            rate.react(&dcqcn, later(5), LINE);
        }
        let target = rate.target;
        let again = |round: u32| later(5) + f64::from(round) * 55.001e-6;
        for round in 1..=6 {
            rate.react(&dcqcn, again(round), LINE);
        }
        assert!((rate.target - target - 5e6).abs() < 1.0);
        (0..6).for_each(|_| {
            rate.sent(10e6);
            rate.react(&dcqcn, again(6), LINE);
        });
        assert!(
            (rate.target - target - 5e6 - 5.0 * 5e6 - 50e6).abs() < 1.0,
            "{}",
            rate.target - target
        );
        assert!(rate.bytes_per_s() <= rate.target && rate.target <= LINE);
    }
}
