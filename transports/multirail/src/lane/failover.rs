//! Failover: rails that fail are taken out, and their puts go over the others.

use ccl_core::time::Instant;
use ccl_core::transport::{EndpointId, Event};

use super::{LOOKS_MAX, RailsLane};
use crate::note::{ArrivalReport, Note, RailFailure};
use crate::rail::{Outcome, Rail};

impl RailsLane {
    /// Takes a rail that has failed out of use.
    pub(super) fn fail(&mut self, number: usize, at: usize, reason: String) {
        let Some(Some(link)) = self.links.get_mut(number) else { return };
        let Some(rail) = link.rails.get_mut(at) else { return };
        let (lane, Some(endpoint)) = (rail.lane, rail.endpoint()) else { return };
        let device = &self.with.names[lane];
        if link.peer_leaves {
            tracing::debug!(rail = at, device, reason, "a rail has ended, as the peer leaves");
        } else {
            tracing::warn!(rail = at, device, reason, "a rail has failed");
        }
        let is_clear = rail.fail(at, reason);
        link.forget_rail(at);
        let (is_last, undelivered) = (!link.is_connected(), link.undelivered_notes());
        let reasons = link.reasons();
        self.lanes[lane].abort(endpoint);
        self.route(lane, endpoint, None);
        if is_last {
            self.ends.push((number, reasons));
        } else if !is_clear {
            let reason = format!(
                "several puts in flight have the same immediate, so it is unknown which of these \
                 puts arrived; {reasons}"
            );
            self.ends.push((number, reason));
        } else {
            self.send_notes(number, &undelivered);
        }
    }

    /// Gives up the links that have ended, and reports these links as lost. Before that, takes in
    /// and reports all puts that have arrived: a peer that has left counts such puts as delivered.
    pub(super) fn end_links(&mut self, now: Instant) {
        if self.ends.is_empty() {
            return;
        }
        for _ in 0..LOOKS_MAX {
            if !self.listen_to_all(now) {
                break;
            }
        }
        for (number, reason) in std::mem::take(&mut self.ends) {
            self.lose(number, &reason);
        }
    }

    /// Answers a peer that has closed its end of a rail. First takes in all arrivals over the rail,
    /// and then closes this side's end.
    pub(super) fn answer(&mut self, number: usize, down: &RailFailure, now: Instant) {
        let at = usize::from(down.rail);
        let rail = |lane: &RailsLane| {
            let rail = lane.links.get(number)?.as_ref()?.rails.get(at)?;
            let endpoint = rail.endpoint().filter(|_| rail.epoch == down.epoch);
            Some((rail.lane, endpoint.is_some()))
        };
        let Some((lane, is_open)) = rail(self) else { return };
        if is_open {
            for _ in 0..LOOKS_MAX {
                if !self.listen(lane, now) {
                    break;
                }
            }
            if rail(self).is_some_and(|(_, is_open)| is_open) {
                self.fail(number, at, "the peer has closed its end of the rail".to_owned());
            }
        }
        let Some(Some(link)) = self.links.get(number) else { return };
        let fate = link.rails[at].answer(down);
        self.send_notes(number, &[Note::ArrivalReport(fate)]);
    }

    /// Handles the peer's answer about the puts of a rail that has failed.
    pub(super) fn settle(&mut self, number: usize, fate: &ArrivalReport, now: Instant) {
        let Some(Some(link)) = self.links.get_mut(number) else { return };
        let Some(rail) = link.rails.get_mut(usize::from(fate.rail)) else { return };
        let mut outcomes = Vec::new();
        if !rail.settle(fate, now, &mut outcomes) {
            return;
        }
        let failure = rail.failure.clone().filter(|_| fate.missing > 0);
        for outcome in outcomes {
            match outcome {
                Outcome::Done(request) => self.news.push(link.done(request)),
                Outcome::Again(request) => {
                    link.waiting.push_back(request);
                    self.waits = true;
                }
            }
        }
        if fate.missing > 0 {
            let text = format!(
                "rail {} has failed ({}): {} puts that its device reported as done have not \
                 arrived",
                fate.rail,
                failure.as_deref().unwrap_or("reason unknown"),
                fate.missing
            );
            self.lose(number, &text);
        }
    }

    /// Gives the link up and reports it as lost.
    pub(super) fn lose(&mut self, number: usize, reason: &str) {
        let Some(Some(link)) = self.links.get_mut(number) else { return };
        if std::mem::replace(&mut link.lost, true) {
            return;
        }
        link.waiting.clear();
        link.dialling.clear();
        let endpoints = link.rails.iter().map(|rail| (rail.lane, rail.endpoint()));
        let endpoints: Vec<_> = endpoints.collect();
        link.rails.iter_mut().for_each(Rail::give_up);
        for (lane, endpoint) in endpoints {
            if let Some(endpoint) = endpoint {
                self.lanes[lane].abort(endpoint);
                self.route(lane, endpoint, None);
            }
        }
        let endpoint = EndpointId(number as u32);
        self.news.push(Event::Lost { endpoint, reason: reason.to_owned() });
    }
}
