//! A link to a peer, as a lane knows it.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use ccl_core::encoding;
use ccl_core::time::Instant;
use ccl_socket::{BreakLimits, Link, LinkId, SideLink, SideMessage};
use serde::{Deserialize, Serialize};

use crate::endpoints::{Addresses, Endpoints, FabricAddresses};
use crate::messages::TOKEN_BYTES;
use crate::provider::EAGER_LIMIT;
use crate::requests::Write;
use crate::staging::Staging;

/// Longest time that a peer's last writes may take after the peer's connection has ended.
const LAST_WRITES: Duration = Duration::from_secs(1);
/// Longest wait for a peer's answer after a put has failed, if puts are acknowledged
/// ([`Peer::fail`]).
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait for a peer's farewell after a put to the peer has failed, if puts are not
/// acknowledged.
const FAREWELL_GRACE: Duration = Duration::from_millis(100);

/// Longest reason that is sent to the peer, in characters.
const REASON_CHARS_MAX: usize = 200;

/// Interval at which the numbers of sent and arrived immediates are reported to a peer.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Number of consecutive reports of a peer after which this side gives the peer up, if each report
/// shows that puts in either direction are not complete, and nothing completes in between. A peer
/// that reports is running, so its provider makes progress: what is missing is lost, not late.
const MISSING_TELLS: u32 = 10;
/// Largest number of times that the same counts are reported to a peer, as long as the peer's
/// reports show no loss. The peer needs [`MISSING_TELLS`] reports to see a loss, but counts all
/// reports that came since its last poll as one. So more than `MISSING_TELLS` reports are sent.
const TELLS_MAX: u32 = 60;

/// Longest waits for a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerTimeouts {
    /// Longest times for which the TCP connection may be broken.
    pub(crate) broken: BreakLimits,
    /// Longest time that the peer's [`Offer`] may take.
    pub(crate) joined: Duration,
}

/// Numbers of what has gone over a link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Number of immediates that were sent.
    pub(crate) sent: u64,
    /// Number of immediates that have arrived.
    pub(crate) arrived: u64,
    /// Number of requests to the peer that have completed. A put can be several requests.
    pub(crate) completed: u64,
    /// Number of the peer's messages that have come; only messages that are parts of puts count.
    pub(crate) parts: u64,
}

/// Traffic of a link, and the reports that were made while it stayed the same.
#[derive(Clone, Copy, Debug, Default)]
struct TrafficReport {
    traffic: Traffic,
    /// Number of reports.
    times: u32,
    /// Time of the last report.
    at: Instant,
}

/// First message of a side to its peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) addresses: Addresses,
    /// Number that the peer sends with its puts, which identifies the peer to this side.
    pub(crate) number: u32,
    /// Token that the peer sends with its messages.
    pub(crate) token: [u8; TOKEN_BYTES],
    pub(crate) mode: Mode,
}

/// Mode of moving bytes; both sides must have the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mode {
    /// Name of libfabric's provider.
    pub(crate) provider: String,
    /// Version of the provider, if all sides need the same.
    pub(crate) version: Option<(u32, u32)>,
    /// True if puts are writes, false if they are messages.
    pub(crate) writes: bool,
    /// Value of [`EAGER_LIMIT`], if the provider reads it.
    pub(crate) eager_limit: Option<String>,
}

impl Mode {
    /// Returns the reason why a peer with another mode is lost, for the user.
    fn difference(&self, its: &Mode) -> String {
        // Only one side's version of libfabric reads the limit.
        let is_limited = |mode: &Mode| mode.eager_limit.is_some();
        let is_alike = its.version == self.version && is_limited(its) == is_limited(self);
        let advice = match is_alike {
            true => {
                "set FERROCCL_OFI_PROVIDER and libfabric's variables alike on all ranks, and use \
                 adapters with the same features"
            }
            false => "use the same provider and libfabric on all ranks",
        };
        format!("it moves data by {its}, and this side by {self}: {advice}")
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mode { provider, version, writes, eager_limit } = self;
        write!(f, "{} of {provider}", if *writes { "writes" } else { "messages" })?;
        if let Some((major, minor)) = version {
            write!(f, " of version {major}.{minor}")?;
        }
        match eager_limit {
            Some(limit) => write!(f, " with {}={limit}", EAGER_LIMIT.0),
            None => Ok(()),
        }
    }
}

/// Destination of puts to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) at: FabricAddresses,
    /// Number that the peer knows this side by.
    pub(crate) number: u32,
    /// Token that the peer knows this side's messages by.
    pub(crate) token: [u8; TOKEN_BYTES],
}

/// Puts that the provider has not taken yet, in order. Control puts do not wait for data.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    control: VecDeque<Write>,
    data: VecDeque<Write>,
}

impl Waiting {
    fn of(&mut self, is_control: bool) -> &mut VecDeque<Write> {
        if is_control { &mut self.control } else { &mut self.data }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }

    /// Returns whether any puts of this kind wait.
    pub(crate) fn has(&self, is_control: bool) -> bool {
        !(if is_control { &self.control } else { &self.data }).is_empty()
    }

    /// Adds a put behind the others of its kind.
    pub(crate) fn push(&mut self, write: Write) {
        self.of(write.request.is_control).push_back(write);
    }

    /// Removes and returns the first put of a kind.
    pub(crate) fn pop(&mut self, is_control: bool) -> Option<Write> {
        self.of(is_control).pop_front()
    }

    /// Takes back a popped put, as the first of its kind.
    pub(crate) fn put_back(&mut self, write: Write) {
        self.of(write.request.is_control).push_front(write);
    }

    fn clear(&mut self) {
        self.control.clear();
        self.data.clear();
    }
}

/// A link to a peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) side: SideLink,
    pub(crate) id: LinkId,
    pub(crate) dialled: bool,
    /// Address of the peer, for error texts.
    pub(crate) name: String,
    /// Token that this side has given the peer.
    pub(crate) token: [u8; TOKEN_BYTES],
    /// This side's mode of moving bytes.
    mode: Mode,
    /// Destination of puts; none until the peer's offer has come.
    pub(crate) to: Option<Destination>,
    pub(crate) staging: Staging,
    pub(crate) waiting: Waiting,
    /// Number of puts so far.
    pub(crate) puts: u64,
    /// Number of puts of data, and of control, that are not done.
    pub(crate) outstanding: [usize; 2],
    /// True once a put was handed to the provider; one value for data, and one for control.
    pub(crate) handed: [bool; 2],
    /// True once a put is done; one value for data, and one for control.
    pub(crate) answered: [bool; 2],
    pub(crate) traffic: Traffic,
    /// Number of immediates that the peer has sent, according to its farewell; none before it.
    leaves: Option<u64>,
    /// Numbers of immediates that the peer has sent, and that have arrived there, according to a
    /// report that came since the last check.
    news: Option<(u64, u64)>,
    /// This side's reports to the peer.
    told: TrafficReport,
    /// The peer's reports that show that puts are not complete.
    missing: TrafficReport,
    /// Start of the wait for the peer's offer.
    joining_since: Option<Instant>,
    /// Time and reason of the end of the TCP connection.
    pub(crate) ended: Option<(Instant, String)>,
    /// Reason of the first failure of a put between the two sides ([`Peer::fail`]).
    pub(crate) failing: Option<String>,
    /// Time of the first check after that failure.
    failing_since: Option<Instant>,
    /// True if a put is done only when the peer has it.
    acknowledged: bool,
    /// True once this side has told the peer of a failure.
    is_told: bool,
    /// True once the peer has told this side of a failure: no more of the peer's puts are done.
    has_answered: bool,
    /// Number of immediates that this side's latest farewell counts; none before the first one.
    farewell: Option<u64>,
    /// True if this side sends its farewell as soon as all puts are done.
    pub(crate) is_leaving: bool,
    /// Number of this side's farewells for which the peer has not confirmed that everything has
    /// arrived.
    unconfirmed: u32,
    /// Number of the peer's farewells for which this side has not confirmed that everything has
    /// arrived.
    unanswered: u32,
    /// Reason why the peer is lost.
    pub(crate) lost: Option<String>,
    pub(crate) is_reported: bool,
}

impl Peer {
    /// Begins a link, and sends this side's offer to the peer. Returns none if the link has no
    /// connection.
    pub(crate) fn new(link: Link, offer: Offer, acknowledged: bool) -> Option<Peer> {
        let mut side = SideLink::new(link)?;
        side.send(&SideMessage::Offer(encoding::encode(&offer)));
        Some(Peer {
            id: side.id(),
            dialled: side.is_dialled(),
            name: side.peer().to_owned(),
            side,
            token: offer.token,
            mode: offer.mode,
            to: None,
            waiting: Waiting::default(),
            puts: 0,
            outstanding: [0; 2],
            handed: [false; 2],
            answered: [false; 2],
            traffic: Traffic::default(),
            leaves: None,
            news: None,
            told: TrafficReport::default(),
            missing: TrafficReport::default(),
            staging: Staging::default(),
            joining_since: None,
            ended: None,
            failing: None,
            failing_since: None,
            acknowledged,
            is_told: false,
            has_answered: false,
            farewell: None,
            is_leaving: false,
            unconfirmed: 0,
            unanswered: 0,
            lost: None,
            is_reported: false,
        })
    }

    /// Handles the peer's messages on the TCP connection; appends its notes.
    pub(crate) fn receive_messages(
        &mut self,
        now: Instant,
        patience: &PeerTimeouts,
        (endpoints, peers_max): (&Endpoints, usize),
        notes: &mut Vec<Vec<u8>>,
    ) {
        if self.ended.is_some() || self.lost.is_some() {
            return;
        }
        let mut words = Vec::new();
        // Once the peer's offer has come, a connection that breaks can be made anew.
        let may_break = self.to.is_some();
        let mut heard = self.side.receive(&mut words, may_break, now);
        if heard.is_ok() && may_break {
            heard = self.side.reconnect(&patience.broken, now).map(|_| ());
        }
        for word in words {
            match word {
                SideMessage::Note(bytes) => notes.push(bytes),
                SideMessage::Leaving(count) => {
                    self.leaves = Some(count);
                    self.unanswered = self.unanswered.saturating_add(1);
                }
                SideMessage::Received => self.unconfirmed = self.unconfirmed.saturating_sub(1),
                SideMessage::Counts { sent, arrived } => self.news = Some((sent, arrived)),
                SideMessage::Failed(reason) => {
                    self.fail(format!("it says: {reason}"));
                    self.has_answered = true;
                }
                SideMessage::Offer(bytes) if self.to.is_none() => {
                    let offer = encoding::decode::<Offer>(&bytes).ok();
                    // The remote CQ data of a write has no room for `peers_max` or a larger number.
                    let offer = offer.filter(|offer| (offer.number as usize) < peers_max);
                    let Some(offer) = offer else {
                        return self.lose("it sent an invalid offer of its endpoint".to_owned());
                    };
                    if offer.mode != self.mode {
                        return self.lose(self.mode.difference(&offer.mode));
                    }
                    let Offer { number, token, .. } = offer;
                    match endpoints.insert(&offer.addresses) {
                        Ok(at) => self.to = Some(Destination { at, number, token }),
                        Err(error) => return self.lose(error.to_string()),
                    }
                }
                SideMessage::Offer(_) | SideMessage::Ready => {
                    return self.lose("it sent an unknown or unexpected message".to_owned());
                }
            }
        }
        let since = *self.joining_since.get_or_insert(now);
        if let Err(end) = heard {
            self.ended = Some((now, end.to_string()));
        } else if self.to.is_none() && now.since(since) >= patience.joined {
            self.lose(format!(
                "it did not send its endpoint's address within {:?}: is the peer's process \
                 stopped, or too busy to poll?",
                patience.joined
            ));
        } else if self.has_all() {
            for _ in 0..std::mem::take(&mut self.unanswered) {
                self.side.send(&SideMessage::Received);
            }
        }
    }

    pub(crate) fn lose(&mut self, reason: String) {
        if self.lost.is_none() {
            self.tell_failure(&reason);
            let is_named = reason.contains(&self.name);
            self.lost = Some(if is_named { reason } else { format!("{}: {reason}", self.name) });
        }
        // A put to a lost peer never completes.
        self.waiting.clear();
    }

    /// Reports to the peer, at intervals, how many immediates were sent and how many have arrived.
    /// If a connection of the provider breaks, the provider may lose a put without a report, even a
    /// put that it has completed before. While there is traffic, this side reports nothing.
    pub(crate) fn report_counts(&mut self, now: Instant) {
        let TrafficReport { traffic, times, at } = self.told;
        if traffic != self.traffic {
            self.told = TrafficReport { traffic: self.traffic, times: 0, at: now };
        } else if self.farewell.is_none()
            && self.lost.is_none()
            && traffic != Traffic::default()
            && times < TELLS_MAX
            && now.since(at) >= TELL_EVERY
        {
            self.told = TrafficReport { traffic, times: times + 1, at: now };
            let Traffic { sent, arrived, .. } = traffic;
            self.side.send(&SideMessage::Counts { sent, arrived });
        }
    }

    /// Loses a peer whose reports repeatedly show that puts do not arrive, or that puts have
    /// arrived without being done here.
    pub(crate) fn miss(&mut self, now: Instant) {
        let Some((sent, arrived)) = self.news.take() else { return };
        let traffic = self.traffic;
        let lacks = sent.saturating_sub(traffic.arrived);
        if lacks > 0 || arrived < traffic.sent {
            // A side that has not polled for a while has counted all reports of that time as one:
            // both sides report on until the puts arrive, or the link is lost.
            self.told.times = 0;
        }
        let is_stuck = !self.is_done() && self.waiting.is_empty() && arrived >= traffic.sent;
        if lacks == 0 && !is_stuck {
            self.missing = TrafficReport::default();
            return;
        }
        let missing = &mut self.missing;
        if missing.times == 0 || missing.traffic != traffic {
            *missing = TrafficReport { traffic, times: 1, at: now };
        } else if now.since(missing.at) >= TELL_EVERY / 2 {
            // Reports that came while this side did not poll are read together, and count once.
            (missing.times, missing.at) = (missing.times + 1, now);
        }
        if missing.times < MISSING_TELLS {
            return;
        }
        let what = match lacks {
            0 => "puts to it are not done, although all that it awaits has arrived".into(),
            _ => format!("{lacks} of its puts have not arrived, although it has sent them"),
        };
        self.lose(format!(
            "{what}; nothing has changed during {MISSING_TELLS} reports: libfabric's provider has \
             lost messages; one of the provider's connections may have been reset"
        ));
    }

    /// Returns whether each poll must check the peer's connection, because the connection is being
    /// made or is about to end.
    pub(crate) fn is_unsettled(&self) -> bool {
        let is_ending = self.ended.is_some() || self.failing.is_some();
        self.lost.is_none() && (self.to.is_none() || is_ending)
    }

    /// Returns whether polls need only take in the peer's completions, apart from regular checks of
    /// the connection.
    pub(crate) fn is_quiet(&self) -> bool {
        let must_report = self.lost.is_some() && !self.is_reported;
        self.waiting.is_empty() && !self.is_unsettled() && !must_report
    }

    /// Returns whether all puts are done.
    pub(crate) fn is_done(&self) -> bool {
        self.outstanding == [0; 2]
    }

    /// Returns whether all immediates that the peer's farewell counts have arrived; true before a
    /// farewell.
    pub(crate) fn has_all(&self) -> bool {
        self.leaves.is_none_or(|sent| self.traffic.arrived >= sent)
    }

    /// Tells the peer of a failure or a loss, so that the peer need not find out by itself.
    fn tell_failure(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.is_told, true) {
            let reason = reason.chars().take(REASON_CHARS_MAX).collect();
            self.side.send(&SideMessage::Failed(reason));
        }
    }

    /// Records that a put between the two sides failed: from here on, no put to the peer is done.
    /// The peer is not lost at once, because its puts may still arrive. If puts are acknowledged,
    /// the peer is asked to fail, too: until the peer answers, this side's provider acknowledges
    /// the peer's puts, and these puts are done.
    pub(crate) fn fail(&mut self, reason: String) {
        self.waiting.clear();
        if self.lost.is_some() || self.failing.is_some() {
            return;
        }
        if self.acknowledged {
            self.tell_failure(&reason);
        }
        self.failing = Some(reason);
    }

    /// Returns the reason for losing the peer now, if there is one. The first call after a failure
    /// starts the wait for the peer's answer or farewell.
    pub(crate) fn end(&mut self, now: Instant) -> Option<String> {
        if self.lost.is_some() {
            return None;
        }
        if let (Some(reason), true) = (&self.failing, self.has_answered) {
            return Some(reason.clone());
        }
        if self.failing.is_some() {
            self.failing_since.get_or_insert(now);
        }
        let ended = self.ended.as_ref().map(|(since, reason)| (*since, reason));
        let (since, reason) = ended.or(self.failing_since.zip(self.failing.as_ref()))?;
        let waited = now.since(since);
        let is_over = match (ended, self.leaves) {
            // A peer that has sent its farewell may repeat another rail's puts over this link.
            (None, _) if self.acknowledged => waited >= ANSWER_WITHIN,
            (_, Some(_)) => self.has_all() || waited >= LAST_WRITES,
            (Some(_), None) => true,
            (None, None) => waited >= FAREWELL_GRACE,
        };
        is_over.then(|| reason.clone())
    }

    /// Sends this side's farewell, unless its latest farewell counts all immediates that were sent.
    /// Another farewell is needed if puts of another rail are repeated over this link after a
    /// farewell. After a failed put, sends no farewell, since the link is about to be lost.
    pub(crate) fn leave(&mut self) {
        if self.failing.is_none() && self.farewell != Some(self.traffic.sent) {
            self.farewell = Some(self.traffic.sent);
            self.unconfirmed = self.unconfirmed.saturating_add(1);
            self.side.send(&SideMessage::Leaving(self.traffic.sent));
        }
    }

    /// Returns whether the farewell is complete: all puts are done, a farewell that counts all
    /// immediates is sent and, if `must_confirm`, the peer has confirmed that they have arrived.
    pub(crate) fn has_left(&self, must_confirm: bool) -> bool {
        let may_hear = self.ended.is_none() && self.traffic.sent > 0;
        self.is_done()
            && self.failing.is_none()
            && self.farewell == Some(self.traffic.sent)
            && self.side.is_flushed()
            && !(must_confirm && may_hear && self.unconfirmed > 0)
    }
}
