//! Names why a call does not end: ranks that disagree, died, left, or do not come.

use std::time::Duration;

use ccl_core::execution::{Link, Progress};
use ccl_core::transport::Event;
use ccl_core::types::Rank;
use ccl_kernels_cpu::ports::{Links, Mismatch};

use super::engine::{Engine, MESSAGE_TAG, Running, What};
use super::error::Error;
use super::record::CallRecord;

/// A wait so short is not worth asking others about.
const PATIENCE: Duration = Duration::from_millis(10);
/// Links that a message about a deadline names at most.
const NAMED_MAX: usize = 4;

impl Engine {
    /// Looks for a reason why nothing has moved for so long.
    #[cold]
    pub(super) fn look_around(
        &mut self,
        running: &Running,
        stalled: Duration,
    ) -> Result<(), Error> {
        if let Some(mismatch) = self.ports.mismatch() {
            return Err(self.mismatch(running, mismatch));
        }
        if let Some(failure) = self.control.failure() {
            let reason = failure.reason.to_string();
            return Err(self.rank_failed(running, failure.rank, reason));
        }
        if stalled > PATIENCE {
            self.compare_calls(running)?;
            self.look_for_the_gone(running)?;
        }
        Ok(())
    }

    /// Whether a rank that makes a call of the same number makes another call.
    fn compare_calls(&self, running: &Running) -> Result<(), Error> {
        let What::Call(own) = running.what else { return Ok(()) };
        if !self.config.check_calls {
            return Ok(());
        }
        for (peer, record) in self.peer_records.iter().enumerate() {
            if let Some(theirs) = record.as_ref().and_then(CallRecord::read)
                && !own.agrees(&theirs)
            {
                return Err(self.disagree(own.to_string(), peer as Rank, theirs.to_string()));
            }
        }
        Ok(())
    }

    /// Whether a rank that we wait for has left, or its connection is gone.
    fn look_for_the_gone(&mut self, running: &Running) -> Result<(), Error> {
        self.poll_connections()?;
        if self.gone(running).is_none() {
            return Ok(());
        }
        // What it had sent before it went has arrived by now.
        while self.plans[running.plan].execution.advance(&mut self.ports) == Progress::Moved {}
        match self.gone(running) {
            Some((peer, reason)) => Err(self.rank_failed(running, peer, reason)),
            None => Ok(()),
        }
    }

    /// Notices connections that have hung up: the control plane tells of deaths only as long as
    /// its centre, rank 0, is there.
    fn poll_connections(&mut self) -> Result<(), Error> {
        let Some(wiring) = &mut self.wiring else { return Ok(()) };
        let mut events = Vec::new();
        wiring.lane.poll(ccl_transport_shm::now(), &mut events)?;
        for event in events {
            if let Event::Lost { endpoint, reason } = event {
                let peer = wiring.endpoints.iter().position(|known| *known == Some(endpoint));
                self.lost.extend(peer.map(|peer| (peer as Rank, reason)));
            }
        }
        Ok(())
    }

    /// An awaited rank that is gone, and how.
    fn gone(&mut self, running: &Running) -> Option<(Rank, String)> {
        self.awaited(running).into_iter().find_map(|(link, _)| {
            if self.control.has_left(link.peer) {
                let reason = "it left the communicator while others still need it";
                return Some((link.peer, reason.to_owned()));
            }
            self.lost.iter().find(|(peer, _)| *peer == link.peer).cloned()
        })
    }

    /// The links that the call waits for, and whether to receive: not those whose message or room
    /// is there already.
    fn awaited(&mut self, running: &Running) -> Vec<(Link, bool)> {
        let mut waits = self.plans[running.plan].execution.waits_for();
        let links = self.ports.links();
        waits.retain(|(link, receive)| match receive {
            true => !links.readable(*link),
            false => !links.writable(*link),
        });
        waits
    }

    fn mismatch(&self, running: &Running, mismatch: Mismatch) -> Error {
        let peer = mismatch.peer;
        let record = self.peer_records.get(peer as usize).and_then(Option::as_ref);
        let theirs = record.and_then(CallRecord::read);
        let own = running.what.to_string();
        let bytes = mismatch.bytes;
        // The upper half of a tag is the number of the call, the lower half mixes all the rest.
        let number = mismatch.tag >> 32;
        let theirs = match theirs {
            _ if number == MESSAGE_TAG >> 32 => format!("a send of {bytes} bytes"),
            Some(record) if number == record.tag(true) >> 32 => {
                format!("{record} (a message of {bytes} bytes)")
            }
            _ => format!("something that sends {bytes} bytes"),
        };
        let expected = mismatch.expected_bytes;
        self.disagree(format!("{own} (a message of {expected} bytes)"), peer, theirs)
    }

    fn disagree(&self, own: String, peer: Rank, theirs: String) -> Error {
        Error::Mismatch { rank: self.rank, own, peer, theirs }
    }

    fn rank_failed(&self, running: &Running, rank: Rank, reason: String) -> Error {
        Error::RankFailed { rank, reason, during: self.during(running) }
    }

    /// The error of a call that has not moved for too long.
    pub(super) fn deadline(&mut self, running: &Running, stalled: Duration) -> Error {
        let waits = self.awaited(running);
        let list: Vec<String> = waits
            .iter()
            .take(NAMED_MAX)
            .map(|(link, receive)| match receive {
                true => format!("a message from rank {}", link.peer),
                false => format!("room at rank {}", link.peer),
            })
            .collect();
        Error::Deadline { during: self.during(running), stalled, waiting: list.join(", ") }
    }

    fn during(&self, running: &Running) -> String {
        format!("rank {} in {}", self.rank, running.what)
    }
}
