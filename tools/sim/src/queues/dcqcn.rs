//! DCQCN: switches mark packets as queues grow, receivers notify the senders of marks, and senders
//! slow down and speed up again. From "Congestion control for large-scale RDMA deployments"
//! (SIGCOMM 2015).

use ccl_core::random::Random;

use crate::flows::rounded_s;

/// Marking of packets by a switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// Queue length up to which no packet is marked.
    pub least_bytes: f64,
    /// Queue length from which all packets are marked; below it the probability rises to
    /// `most_probability`.
    pub most_bytes: f64,
    /// Probability just below `most_bytes`.
    pub most_probability: f64,
}

impl Marking {
    /// Returns the probability that a packet is marked at this queue length.
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

/// Parameters of switches, receivers and senders. The first sentence of a description ends with the
/// paper's symbol, if there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dcqcn {
    /// Marking by switches.
    pub marking: Marking,
    /// Shortest time between two notices of marks (CNP) for a flow, in seconds: N.
    pub notice_s: f64,
    /// Time without a notice after which a sender decays its alpha, in seconds: K.
    pub forget_s: f64,
    /// Gain with which alpha changes: g.
    pub gain: f64,
    /// Initial alpha of a sender: its estimate of congestion.
    pub alpha: f64,
    /// Period of the timer that speeds up a sender, in seconds: T.
    pub timer_s: f64,
    /// Period of the byte counter that speeds up a sender, in bytes: B.
    pub counter_bytes: f64,
    /// Additive increase of each round after fast recovery, before hyper increase, in bytes per
    /// second: R_AI.
    pub increase_bytes_per_s: f64,
    /// Step of hyper increase, in bytes per second: R_HAI. A round raises the target rate by this
    /// value, multiplied by a number of rounds since fast recovery: the rounds of the timer or of
    /// the counter, whichever are fewer.
    pub hyper_bytes_per_s: f64,
}

impl Default for Dcqcn {
    /// Returns the parameters for 400 Gbit/s.
    fn default() -> Dcqcn {
        Dcqcn::of(50e9)
    }
}

/// Line rate of the paper's thresholds: 40 Gbit/s, in bytes per second.
const SOURCE_BYTES_PER_S: f64 = 5e9;

impl Dcqcn {
    /// Returns the paper's own numbers. Its thresholds are for 40 Gbit/s; they are scaled to the
    /// line rate, because they stand for time in a queue. The paper does not give `R_HAI`; here it
    /// is ten times `R_AI`.
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

/// State of the flows' senders after a run; empty before the first run. The next run over the same
/// queue pairs begins with this state.
#[derive(Clone, Debug, Default)]
pub struct Senders {
    pub(super) rates: Vec<Rate>,
    /// End of the run, in seconds.
    pub(super) ended_s: f64,
}

impl Senders {
    /// Lets senders idle for `rest_s` seconds. Notices in flight arrive, or are lost if `rest_s` is
    /// too short. Senders decay alpha and speed up as their timers expire.
    pub fn rest(&mut self, dcqcn: &Dcqcn, rest_s: f64) {
        let until_s = self.ended_s + rest_s.max(0.0);
        let shortest_s = dcqcn.forget_s.min(dcqcn.timer_s).max(1e-6);
        for rate in &mut self.rates {
            // The timers of a sender continue after its last byte.
            let mut now_s = rate.forgot_s.min(rate.raised_s);
            while now_s < until_s {
                now_s = (now_s + shortest_s).min(until_s);
                rate.react(dcqcn, now_s);
            }
            (rate.raised_s, rate.forgot_s) = (rate.raised_s - until_s, rate.forgot_s - until_s);
            rate.hears_s = f64::INFINITY;
        }
        self.ended_s = 0.0;
    }

    /// Returns the mean alpha of all senders: their estimate of congestion.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        let alphas: Vec<f64> = self.rates.iter().map(|rate| rate.alpha).collect();
        crate::measure::mean(&alphas)
    }
}

/// Rounds of fast recovery, each of which halves the distance to the old rate: F.
const FAST_ROUNDS: u32 = 5;
/// Lowest rate, as a part of the line rate.
const SLOWEST: f64 = 1e-3;

/// Receiver of a flow, which notifies the flow's sender of marks.
#[derive(Clone, Debug)]
pub(super) struct Notices {
    told_s: f64,
    /// True if a packet was marked since the last notice.
    is_marked: bool,
}

impl Notices {
    pub(super) fn new() -> Notices {
        Notices { told_s: f64::NEG_INFINITY, is_marked: false }
    }

    /// Records the arrival of `packets` packets, of which the fraction `marked` is marked. Returns
    /// whether the sender is notified now: at the first mark, then at most once per `notice_s`.
    pub(super) fn arrive(
        &mut self,
        dcqcn: &Dcqcn,
        now_s: f64,
        (packets, marked): (f64, f64),
        random: &mut Random,
    ) -> bool {
        if marked > 0.0 && packets > 0.0 && !self.is_marked {
            // `packets` can have a fraction: a part of a packet. This part is marked with a
            // probability of `marked` times the fraction. `powf` is not used: its result depends on
            // the C library.
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
    line_rate: f64,
    now: f64,
    target: f64,
    alpha: f64,
    /// Rounds of the timer and of the byte counter since the last notice.
    rounds: [u32; 2],
    /// Time of the last timer round, in seconds.
    raised_s: f64,
    /// Bytes since the last counter round.
    counted_bytes: f64,
    forgot_s: f64,
    /// Arrival time of a notice that is on its way, in seconds.
    hears_s: f64,
}

impl Rate {
    pub(super) fn new(line_rate: f64, alpha: f64) -> Rate {
        Rate {
            line_rate,
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

    /// Schedules the arrival of a notice.
    pub(super) fn will_hear(&mut self, at_s: f64) {
        self.hears_s = at_s;
    }

    /// Counts bytes that have left.
    pub(super) fn sent(&mut self, bytes: f64) {
        self.counted_bytes += bytes;
    }

    /// Slows down if a notice has arrived. Otherwise decays alpha after each period of `forget_s`,
    /// and speeds up after each round of the timer or of the counter.
    pub(super) fn react(&mut self, dcqcn: &Dcqcn, now_s: f64) {
        if now_s >= self.hears_s {
            self.hears_s = f64::INFINITY;
            self.target = self.now;
            self.now = (self.now * (1.0 - self.alpha / 2.0)).max(self.line_rate * SLOWEST);
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
            self.raise(dcqcn, 0);
        }
        if self.counted_bytes >= dcqcn.counter_bytes {
            self.counted_bytes -= dcqcn.counter_bytes;
            self.raise(dcqcn, 1);
        }
    }

    /// Speeds up after a round of the timer or of the counter.
    fn raise(&mut self, dcqcn: &Dcqcn, which: usize) {
        self.rounds[which] += 1;
        let [timer, counter] = self.rounds;
        let (least, most) = (timer.min(counter), timer.max(counter));
        if least > FAST_ROUNDS {
            self.target += f64::from(least - FAST_ROUNDS) * dcqcn.hyper_bytes_per_s;
        } else if most > FAST_ROUNDS {
            self.target += dcqcn.increase_bytes_per_s;
        }
        self.target = self.target.min(self.line_rate);
        self.now = f64::midpoint(self.now, self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 5e9;

    #[test]
    fn a_receiver_notifies_at_the_first_mark_then_once_per_interval() {
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
        // One notice at once, and one at the end of each interval in which packets were marked.
        assert_eq!(told, [7, 57, 107, 157]);
        // No packets, or no marks, give no notice.
        assert!(!Notices::new().arrive(&dcqcn, 1.0, (0.0, 1.0), &mut random));
        assert!(!Notices::new().arrive(&dcqcn, 1.0, (5.0, 0.0), &mut random));
    }

    #[test]
    fn a_sender_halves_and_recovers_its_rate_as_published() {
        let dcqcn = Dcqcn::of(LINE);
        let mut rate = Rate::new(LINE, dcqcn.alpha);
        rate.will_hear(1e-3);
        rate.react(&dcqcn, 10e-6);
        assert_eq!(rate.bytes_per_s(), LINE);
        rate.react(&dcqcn, 1e-3);
        assert_eq!((rate.bytes_per_s(), rate.target, rate.alpha), (LINE / 2.0, LINE, 1.0));
        // Five timer rounds: each halves the distance to the old rate and decays alpha.
        let later = |round: u32| 1e-3 + f64::from(round) * 55.001e-6;
        for round in 1..=5 {
            rate.react(&dcqcn, later(round));
            let expected = LINE * (1.0 - 0.5f64.powi(round as i32 + 1));
            assert!((rate.bytes_per_s() / expected - 1.0).abs() < 1e-12, "round {round}");
        }
        assert!((rate.alpha / (255.0f64 / 256.0).powi(5) - 1.0).abs() < 1e-12);
        // Two more notices lower the rate. After fast recovery, the target rises by 40 Mbit/s in
        // each round. It rises faster once the counter, too, has had more than five rounds.
        for _ in 0..2 {
            rate.will_hear(later(5));
            rate.react(&dcqcn, later(5));
        }
        let target = rate.target;
        let again = |round: u32| later(5) + f64::from(round) * 55.001e-6;
        for round in 1..=6 {
            rate.react(&dcqcn, again(round));
        }
        assert!((rate.target - target - 5e6).abs() < 1.0);
        (0..6).for_each(|_| {
            rate.sent(10e6);
            rate.react(&dcqcn, again(6));
        });
        assert!(
            (rate.target - target - 5e6 - 5.0 * 5e6 - 50e6).abs() < 1.0,
            "{}",
            rate.target - target
        );
        assert!(rate.bytes_per_s() <= rate.target && rate.target <= LINE);
    }

    #[test]
    fn idle_senders_decay_alpha_and_speed_up() {
        let dcqcn = Dcqcn::of(LINE);
        let mut rate = Rate::new(LINE, dcqcn.alpha);
        rate.will_hear(1e-3);
        rate.react(&dcqcn, 1e-3);
        // A notice in flight at the end of the run counts only if senders rest until it arrives.
        rate.will_hear(1.01e-3);
        let mut senders = Senders { rates: vec![rate], ended_s: 1.005e-3 };
        let mut none = senders.clone();
        none.rest(&dcqcn, 0.0);
        assert_eq!(none.rates[0].bytes_per_s(), LINE / 2.0);
        senders.rest(&dcqcn, 10e-3);
        let rate = &senders.rates[0];
        // Two notices leave alpha at 1; then it decays once per period, for 10 ms.
        let periods = 10e-3 / 55e-6;
        let expected = (255.0f64 / 256.0).powi(periods as i32);
        assert!((senders.alpha() / expected - 1.0).abs() < 0.02, "{} {expected}", senders.alpha());
        // The sender speeds up by the timer alone: to its old rate, then 40 Mbit/s more per round.
        let raised = LINE / 2.0 + (periods - 5.0) * dcqcn.increase_bytes_per_s;
        assert!((rate.bytes_per_s() / raised - 1.0).abs() < 0.02, "{rate:?} {raised}");
        // The clock of the next run starts at 0.
        assert!(rate.raised_s <= 0.0 && rate.raised_s > -60e-6 && rate.hears_s == f64::INFINITY);
    }
}
