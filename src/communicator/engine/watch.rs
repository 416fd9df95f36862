//! Reasons why a call does not end: ranks that disagree, died, left, or have not made the call.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use ccl_bootstrap::Awaited;
use ccl_core::execution::{Link, Progress};
use ccl_core::types::Rank;
use ccl_links::ports::Mismatch;

use super::super::error::Error;
use super::{CallKind, Engine, MESSAGE_TAG, Running};
use crate::bootstrap::{Failure, FailureReason};
use crate::recorder::{CallRecord, Writer};

/// Time without progress after which a call checks the other ranks.
const PATIENCE: Duration = Duration::from_millis(10);
/// Time from the end of a connection until the peer counts as gone. A leaving rank sends a
/// farewell and hangs up; the farewell may be read a little after the hang-up is seen.
const FAREWELL_GRACE: Duration = Duration::from_millis(100);
/// Time without progress after which a rank that has left in good order counts as gone. Until then,
/// its messages may still be on their way. The time is limited because a broken connection with
/// such a rank is not made anew: messages lost with the connection never come.
const LEFT_GRACE: Duration = Duration::from_secs(10);
/// Largest number of links that a message about a deadline names.
const NAMED_MAX: usize = 4;
/// Time without progress after which the recording shows the awaited ranks.
const SHOWN_AFTER: Duration = Duration::from_millis(100);
/// Number of calls of `check_stall` after which the recording shows the awaited ranks anew.
const LOOKS_PER_NOTE: u64 = 16;
/// Text for a deadline whose cause the ranks did not agree on in time.
const NO_VERDICT: &str = "Is that rank alive, and does it make the same calls?";

/// Findings on a stalled call, kept so that a long wait does not allocate.
#[derive(Debug, Default)]
pub(super) struct StallDetector {
    /// Links that the call waits for, each with true if the call waits to receive and false if it
    /// waits to send. A link on which the message has arrived, or a slot is free, is left out,
    /// unless its peer has yet to acknowledge payload.
    awaited: Vec<(Link, bool)>,
    /// Awaited ranks, as the recording shows them.
    shown: Vec<Awaited>,
    /// Ranks in a later call.
    ahead: Vec<(Rank, CallRecord)>,
}

/// Lost connection.
#[derive(Debug)]
pub(crate) struct Lost {
    peer: Rank,
    /// Reason that the transport gives for the loss.
    reason: String,
    since: Instant,
}

impl Engine {
    /// Checks why nothing has moved for `stalled`. Returns an error if the reason is known.
    #[cold]
    pub(super) fn check_stall(
        &mut self,
        running: &Running,
        stalled: Duration,
    ) -> Result<(), Error> {
        if let Some(mismatch) = self.ports.mismatch() {
            return Err(self.mismatch(running, mismatch));
        }
        if let Some(failure) = self.control.failure() {
            return Err(self.ended_by(running, &failure));
        }
        let looks = self.recording().map_or(0, Writer::look);
        if stalled > PATIENCE {
            if stalled > SHOWN_AFTER && looks.is_multiple_of(LOOKS_PER_NOTE) {
                self.show_awaited(running);
            }
            self.compare_calls(running)?;
            self.check_awaited_peers(running, stalled)?;
        }
        Ok(())
    }

    /// Checks, at the end of a call on this rank, that the others named the same root.
    ///
    /// In a collective with a root, a rank that only sends gets no answer. Two ranks that each name
    /// themselves root of a broadcast would both succeed without the other's data. So each rank
    /// publishes its record, sends, and then checks for unexpected messages. With more than two
    /// ranks, it also checks the records of the ranks that it sent to. The fence ensures that the
    /// later of two ranks that disagree sees the record or message of the earlier one.
    #[inline]
    pub(super) fn confirm(&mut self, running: &Running) -> Result<(), Error> {
        match running.what {
            CallKind::Call(own) if self.config.check_calls && own.collective.has_root() => {
                self.confirm_root(running, own)
            }
            _ => Ok(()),
        }
    }

    fn confirm_root(&mut self, running: &Running, own: CallRecord) -> Result<(), Error> {
        // SeqCst: our record and messages come before the reads below.
        fence(Ordering::SeqCst);
        for peer in 0..self.ranks {
            for channel in 0..self.segment.channels {
                self.check_next_message(own, Link { peer, channel })?;
            }
        }
        if self.ranks > 2 {
            for peer in &self.plans[running.plan].execution.program().send_peers {
                self.compare_call(own, *peer)?;
            }
        }
        Ok(())
    }

    /// Checks that the next message on a link, if there is one, belongs to a later call or is a
    /// point-to-point message.
    #[inline]
    fn check_next_message(&mut self, own: CallRecord, link: Link) -> Result<(), Error> {
        let links = self.ports.links();
        // `readable` would request a connection with a peer that has none.
        if !links.is_connected(link) || !links.readable(link) {
            return Ok(());
        }
        let (bytes, tag) = links.head(link);
        let ahead = ((tag >> 32) as u32).wrapping_sub(own.sequence as u32) as i32;
        if tag >> 32 == MESSAGE_TAG >> 32 || ahead > 0 {
            return Ok(());
        }
        let theirs = self.sent_by(link.peer, tag, bytes);
        let own = format!("{own} (which expects no further message from rank {})", link.peer);
        Err(self.disagree(own, link.peer, theirs))
    }

    /// Checks that no rank makes a different call with the same number, and that no awaited rank
    /// has already ended the call that this rank is in.
    fn compare_calls(&mut self, running: &Running) -> Result<(), Error> {
        let CallKind::Call(own) = running.what else { return Ok(()) };
        if !self.config.check_calls {
            return Ok(());
        }
        for peer in 0..self.ranks {
            self.compare_call(own, peer)?;
        }
        self.stall_detector.ahead.clear();
        for peer in 0..self.ranks {
            let theirs = self.record_of(peer).filter(|theirs| theirs.sequence > own.sequence);
            self.stall_detector.ahead.extend(theirs.map(|theirs| (peer, theirs)));
        }
        // The links are read after the records. A rank in a later call published its record after
        // it had sent all its messages of this call, so these messages have arrived by now.
        self.find_awaited(running);
        let StallDetector { ahead, awaited, .. } = &self.stall_detector;
        let awaits = |rank| awaited.iter().any(|(link, _)| link.peer == rank);
        match ahead.iter().find(|(peer, _)| awaits(*peer)) {
            Some((peer, theirs)) => {
                let number = own.sequence;
                let theirs = format!("{theirs}, and ended #{number} without waiting for this rank");
                Err(self.disagree(own.to_string(), *peer, theirs))
            }
            None => Ok(()),
        }
    }

    fn compare_call(&self, own: CallRecord, peer: Rank) -> Result<(), Error> {
        match self.record_of(peer) {
            Some(theirs) if !own.agrees(&theirs) => {
                Err(self.disagree(own.to_string(), peer, theirs.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn record_of(&self, peer: Rank) -> Option<CallRecord> {
        self.peer_records.get(peer as usize)?.as_ref().and_then(CallRecord::read)
    }

    /// Checks that no awaited rank has left, and that no connection to an awaited rank is lost.
    fn check_awaited_peers(&mut self, running: &Running, stalled: Duration) -> Result<(), Error> {
        self.poll_connections()?;
        if self.gone(running, stalled).is_none() {
            return Ok(());
        }
        // Messages that the rank sent before it left have arrived, and may let the call go on.
        let mut stalled = stalled;
        while self.advance(running.plan)? == Progress::Moved {
            stalled = Duration::ZERO;
        }
        match self.gone(running, stalled) {
            Some((peer, reason)) => Err(self.rank_failed(running, peer, reason)),
            None => Ok(()),
        }
    }

    /// Adds newly lost connections with peers on this host to `lost`, often before the control
    /// plane reports a failure.
    fn poll_connections(&mut self) -> Result<(), Error> {
        if let Some(wiring) = &mut self.wiring {
            let since = Instant::now();
            let lost = wiring.poll()?.into_iter();
            self.lost.extend(lost.map(|(peer, reason)| Lost { peer, reason, since }));
        }
        Ok(())
    }

    /// Returns an awaited rank that is gone, and the reason. `stalled` is the time without
    /// progress.
    fn gone(&mut self, running: &Running, stalled: Duration) -> Option<(Rank, String)> {
        self.find_awaited(running);
        let Engine { stall_detector, control, ports, lost, .. } = self;
        stall_detector.awaited.iter().find_map(|(link, _)| {
            let peer = link.peer;
            let left = control.has_left(peer);
            let left =
                left.then(|| "it left the communicator while others still need it".to_owned());
            if let Some(messages) = ports.links().messages()
                && messages.reaches(peer)
            {
                // Messages sent before the rank left may still be on their way, ahead of the end of
                // its connection.
                if messages.may_still_receive(peer) && (left.is_none() || stalled < LEFT_GRACE) {
                    return None;
                }
                let end = messages.lost(peer).map(str::to_owned);
                return left.or(end).map(|reason| (peer, reason));
            }
            let lost = lost.iter().find(|lost| lost.peer == peer);
            let lost = lost.filter(|lost| lost.since.elapsed() > FAREWELL_GRACE);
            left.or_else(|| lost.map(|lost| lost.reason.clone())).map(|reason| (peer, reason))
        })
    }

    /// Finds the links that the call waits for: for a message, for room, or for the peer to
    /// acknowledge payload that is sent from the call's memory.
    fn find_awaited(&mut self, running: &Running) {
        let Engine { plans, ports, stall_detector, .. } = self;
        plans[running.plan].execution.waits_for(&mut stall_detector.awaited);
        let links = ports.links();
        stall_detector.awaited.retain(|(link, receive)| match receive {
            true => !links.readable(*link),
            false => !links.writable(*link),
        });
        let unacknowledged = links.messages().into_iter().flat_map(|links| links.unacknowledged());
        stall_detector.awaited.extend(unacknowledged.map(|link| (link, false)));
    }

    fn mismatch(&self, running: &Running, mismatch: Mismatch) -> Error {
        let own = format!("{} (a message of {} bytes)", running.what, mismatch.expected_bytes);
        let theirs = self.sent_by(mismatch.peer, mismatch.tag, mismatch.bytes);
        self.disagree(own, mismatch.peer, theirs)
    }

    /// Names the call that a message belongs to.
    fn sent_by(&self, peer: Rank, tag: u64, bytes: usize) -> String {
        // The upper half of a tag is the number of the call, the lower half a hash of the rest.
        let number = tag >> 32;
        match self.record_of(peer) {
            _ if number == MESSAGE_TAG >> 32 => format!("a send of {bytes} bytes"),
            Some(record) if number == record.tag(true) >> 32 => {
                format!("{record} (a message of {bytes} bytes)")
            }
            _ => format!("an unknown call that sends {bytes} bytes"),
        }
    }

    fn disagree(&self, own: String, peer: Rank, theirs: String) -> Error {
        Error::Mismatch { rank: self.rank, own, peer, theirs }
    }

    fn rank_failed(&self, running: &Running, rank: Rank, reason: String) -> Error {
        let during = self.during(running);
        Error::RankFailed { rank, reason, last_completed: None, during }
    }

    /// Returns the error of a call that has not moved for too long.
    pub(super) fn deadline(&mut self, running: &Running, stalled: Duration) -> Error {
        self.show_awaited(running);
        let failure = self.control.compare_notes(stalled);
        match failure {
            Some(failure) => self.ended_by(running, &failure),
            None => deadline(self.during(running), stalled, self.waiting(running), NO_VERDICT),
        }
    }

    /// Writes the ranks that the call waits for into the recording.
    fn show_awaited(&mut self, running: &Running) {
        self.find_awaited(running);
        let Engine {
            plans,
            stall_detector: StallDetector { awaited, shown, .. },
            writer,
            timed,
            ..
        } = self;
        shown.clear();
        shown.extend(awaited.iter().map(|&(link, receives)| Awaited { peer: link.peer, receives }));
        // Parallel channels wait for the same ranks.
        shown.dedup();
        let timed = timed.as_mut().map(|timed| &mut timed.writer);
        if let Some(writer) = writer.as_mut().or(timed) {
            writer.waits(plans[running.plan].execution.folds_in_all(), shown);
        }
    }

    /// Returns the error of a call that ends because the communicator has ended.
    fn ended_by(&mut self, running: &Running, failure: &Failure) -> Error {
        let during = self.during(running);
        match &failure.reason {
            FailureReason::Stuck { stalled_ms, .. } => {
                let stalled = Duration::from_millis(u64::from(*stalled_ms));
                deadline(during, stalled, self.waiting(running), &sentence(failure))
            }
            reason => {
                let (rank, reason) = (failure.rank, reason.to_string());
                Error::RankFailed { rank, reason, last_completed: None, during }
            }
        }
    }

    /// Returns the ranks that the call waits for, in words.
    fn waiting(&mut self, running: &Running) -> String {
        self.find_awaited(running);
        let links = self.ports.links();
        let list: Vec<String> = self
            .stall_detector
            .awaited
            .iter()
            .take(NAMED_MAX)
            .map(|(link, receive)| match (links.is_connected(*link), receive) {
                (false, _) => format!("a connection with rank {}", link.peer),
                (true, true) => format!("a message from rank {}", link.peer),
                (true, false) if links.writable(*link) => {
                    format!("an acknowledgement from rank {}", link.peer)
                }
                (true, false) => format!("a free slot at rank {}", link.peer),
            })
            .collect();
        if list.is_empty() { "no other rank".to_owned() } else { list.join(", ") }
    }

    fn during(&self, running: &Running) -> String {
        format!("rank {} in {}", self.rank, running.what)
    }
}

/// Returns the verdict of all ranks as a sentence.
pub(crate) fn sentence(failure: &Failure) -> String {
    let verdict = failure.to_string();
    format!("R{}.", verdict.strip_prefix('r').unwrap_or(&verdict))
}

pub(super) fn deadline(during: String, stalled: Duration, waiting: String, verdict: &str) -> Error {
    let verdict = verdict.to_owned();
    Error::Deadline { during, stalled, waiting, verdict, last_completed: None }
}
