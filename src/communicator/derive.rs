//! Communicators made from another communicator: of some of its ranks, of its survivors, or of all
//! its ranks and newcomers. Each has connections, memory and a secret of its own, so a late write
//! of a rank of the old communicator goes to memory that the new communicator does not use.

use std::net::TcpListener;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ccl_core::config::Config;
use ccl_core::types::Rank;
use serde::{Deserialize, Serialize};

use super::agree::FAILURE_WITHIN;
use super::error::{DeriveError, Error};
use super::exchange::{Topic, exchange};
use super::network::Measured;
use super::{Communicator, configure};
use crate::bootstrap::{BootstrapError, ControlPlane, GiveUp, Invitation, Join, meet};

/// Advice for survivors that did not come together.
const SHRINK_ADVICE: &str = "All survivors may call shrink() again";
const GROW_ADVICE: &str =
    "The communicator is unharmed: call invite() again, or continue without newcomers";

/// Arguments of a rank when a communicator is split.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Choice {
    color: i64,
    key: i64,
}

/// Arguments of a rank when newcomers are invited, and the host names and addresses of rank 0 that
/// the rank knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Invite {
    /// Port at which the rank listens for newcomers; zero unless it is rank 0 and can listen.
    port: u16,
    /// Number of newcomers.
    added: u32,
    /// Hosts at which rank 0 can be reached, as far as the rank knows.
    hosts: Vec<String>,
}

/// Failed attempt to make a communicator.
struct Attempt {
    error: Error,
    /// Control plane of the new communicator, over which its ranks can agree on the survivors; none
    /// if these ranks did not meet.
    control: Option<Arc<ControlPlane>>,
}

impl Communicator {
    /// Splits into communicators of the ranks that give the same `color`, ordered by `key` and then
    /// by rank. A rank with a negative color takes part but gets no communicator. All ranks make
    /// this call.
    ///
    /// # Errors
    ///
    /// The errors of a collective and of joining.
    pub fn split(&mut self, color: i64, key: i64) -> Result<Option<Communicator>, Error> {
        self.usable()?;
        let split = self.split_among(color, key);
        split.map_err(|error| self.or_failure(error, "split"))
    }

    /// Makes another communicator of all ranks, with `config`, which is the same on all ranks. All
    /// ranks make this call.
    ///
    /// # Errors
    ///
    /// The errors of [`Communicator::split`].
    #[doc(hidden)]
    pub fn again(&mut self, config: Config) -> Result<Communicator, Error> {
        let own = std::mem::replace(&mut self.engine.config, config);
        let made = self.split_whole();
        self.engine.config = own;
        made
    }

    /// Makes another communicator of all ranks. All ranks make this call.
    pub(super) fn split_whole(&mut self) -> Result<Communicator, Error> {
        let made = self.split(0, i64::from(self.rank()))?;
        Ok(made.ok_or(DeriveError::NoPart)?)
    }

    fn split_among(&mut self, color: i64, key: i64) -> Result<Option<Communicator>, Error> {
        self.derived += 1;
        let own = Choice { color, key };
        let timeout = self.engine.config.join_timeout;
        let all = exchange(&self.control, Topic::SplitChoice, &own, timeout)?;
        let mut members: Vec<(i64, Rank)> = (0..)
            .zip(&all)
            .filter(|(_, choice)| choice.color == color)
            .map(|(rank, choice)| (choice.key, rank))
            .collect();
        members.sort_unstable();
        let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
        let position = members.iter().position(|rank| *rank == self.rank()).unwrap_or(0);
        let leads = color >= 0 && position == 0 && members.len() > 1;
        // A leader that cannot listen sends port zero: all its members then fail at once.
        let listening = leads.then(|| self.control.open_rendezvous()).transpose();
        let port = port_of(listening.as_ref().ok().and_then(Option::as_ref));
        let ports = exchange(&self.control, Topic::SplitAddress, &port, timeout)?;
        let listener = listening.map_err(|error| DeriveError::NoListener { error })?;
        if color < 0 {
            return Ok(None);
        }
        let leader = members.first().copied().unwrap_or(0);
        let port = ports.get(leader as usize).copied().unwrap_or(0);
        if port == 0 && members.len() > 1 {
            return Err(DeriveError::LeaderCannotListen { during: "split", leader }.into());
        }
        let purpose = format!("split {} color {color}", self.derived);
        let mut how = self.control.derived_join(&members, position, (port, listener), &purpose);
        how.give_up = unless_failed(&self.control, members);
        let control = Arc::clone(&self.control);
        let measured = self.measured.clone();
        self.make(&control, how, measured).map(Some).map_err(|attempt| attempt.error)
    }

    /// Makes a communicator of the survivors of a failure, in their order. All survivors make this
    /// call. The new communicator has new connections, new memory and the same configuration, and
    /// counts its operations from 1. [`Communicator::agree`] returns the last operation that all
    /// survivors completed.
    ///
    /// Waits for the agreement at most twice `FERROCCL_DEAD_AFTER` plus 1 s, since silent ranks may
    /// first have to be found dead. If a survivor has left by then, the remaining ranks agree once
    /// more, within `FERROCCL_JOIN_TIMEOUT`. Then waits for the other survivors at most
    /// `FERROCCL_JOIN_TIMEOUT`. If a survivor dies or leaves meanwhile, the remaining ranks begin
    /// another attempt.
    ///
    /// # Errors
    ///
    /// When nothing has failed, or this communicator was shrunk before; when this rank was declared
    /// dead; when there is no agreement, or not all survivors come.
    pub fn shrink(&mut self) -> Result<Communicator, Error> {
        self.not_forked()?;
        if self.is_shrunk {
            return Err(DeriveError::AlreadyShrunk.into());
        }
        if !self.is_broken() {
            return Err(DeriveError::NothingFailed.into());
        }
        // Each attempt that loses a rank leaves fewer ranks to wait for.
        for _ in 0..self.ranks() {
            if let Some(made) = self.shrink_once()? {
                self.successor = None;
                self.is_shrunk = true;
                return Ok(made);
            }
        }
        Err(DeriveError::Exhausted.into())
    }

    /// Tries to shrink once; returns none if a survivor has gone meanwhile.
    fn shrink_once(&mut self) -> Result<Option<Communicator>, Error> {
        let config = &self.engine.config;
        let patience = config.dead_after.saturating_mul(2).saturating_add(Duration::from_secs(1));
        let from = self.successor.clone().unwrap_or_else(|| Arc::clone(&self.control));
        from.verdict(patience)?;
        let verdict = from.reconvene(config.join_timeout)?;
        let mut how = from.regroup(&verdict)?;
        how.give_up = from.unless_gone(verdict.survivors.clone());
        let Attempt { error, control } = match self.make(&from, how, self.measured.clone()) {
            Ok(communicator) => {
                from.end_rendezvous(&verdict);
                return Ok(Some(communicator));
            }
            Err(attempt) => attempt,
        };
        // A rank that hung up on the new communicator has sent its reason over `from`, whose
        // connections remain.
        let obstacle = from.await_obstacle(&verdict.survivors, FAILURE_WITHIN);
        let has_lost = match control {
            None => from.has_lost(&verdict.survivors),
            // Other ranks may have made the new communicator, so the next attempt starts from it.
            Some(control) => {
                self.control.set_successor(&Arc::downgrade(&control));
                let all = Vec::from_iter(0..control.ranks());
                let has_lost = control.has_lost(&all);
                self.successor = Some(control);
                has_lost
            }
        };
        if has_lost {
            return Ok(None);
        }
        let rank = from.rank();
        let given_up = obstacle.map(|reason| BootstrapError::GivenUp { rank, reason }.into());
        let error = Box::new(given_up.unwrap_or(error));
        Err(Error::Unmade { doing: "shrink", error, advice: SHRINK_ADVICE })
    }

    /// Returns an invitation for `added` newcomers. All ranks make the same call. Then the members
    /// call [`Communicator::grow`], and each newcomer calls [`Communicator::join`] with the
    /// invitation's id, its own rank (one of the numbers after the members' ranks) and the
    /// invitation's number of ranks. A newcomer may instead be started with these three values in
    /// `FERROCCL_COMM_ID`, `FERROCCL_RANK` and `FERROCCL_RANKS`.
    ///
    /// The newcomers must be able to reach rank 0 as the members do: if the members met at a
    /// loopback address, only newcomers on the same host can join.
    ///
    /// # Errors
    ///
    /// The errors of a collective; also when rank 0 cannot listen.
    pub fn invite(&mut self, added: u32) -> Result<Invitation, Error> {
        self.usable()?;
        if added == 0 {
            return Err(DeriveError::NoNewcomers.into());
        }
        let invited = self.invite_some(added);
        invited.map_err(|error| self.or_failure(error, "invite"))
    }

    fn invite_some(&mut self, added: u32) -> Result<Invitation, Error> {
        self.derived += 1;
        let timeout = self.engine.config.join_timeout;
        let leads = self.rank() == 0;
        let listening = leads.then(|| self.control.open_rendezvous()).transpose();
        let port = port_of(listening.as_ref().ok().and_then(Option::as_ref));
        let own = Invite { port, added, hosts: self.control.root_hosts() };
        let all = exchange(&self.control, Topic::Invitation, &own, timeout)?;
        let listener = listening.map_err(|error| DeriveError::NoListener { error })?;
        if let Some((peer, told)) = (0..).zip(&all).find(|(_, told)| told.added != added) {
            let theirs = told.added;
            return Err(DeriveError::Newcomers { own: added, peer, theirs }.into());
        }
        let port = all.first().map_or(0, |root| root.port);
        if port == 0 {
            return Err(DeriveError::LeaderCannotListen { during: "invite", leader: 0 }.into());
        }
        let hosts: Vec<String> = all.into_iter().flat_map(|told| told.hosts).collect();
        let purpose = format!("invitation {}", self.derived);
        Ok(self.control.invitation(&hosts, (port, listener), added, &purpose))
    }

    /// Makes a communicator of all ranks and the newcomers of an invitation: the ranks keep their
    /// numbers, the newcomers follow. All ranks make this call, each with the result of its own
    /// [`Communicator::invite`]. This communicator stays usable.
    ///
    /// # Errors
    ///
    /// A newcomer does not come within `FERROCCL_JOIN_TIMEOUT`, or fails while it enters; this
    /// communicator is then unharmed. If one of this communicator's ranks fails: the errors of a
    /// collective.
    pub fn grow(&mut self, invitation: Invitation) -> Result<Communicator, Error> {
        self.usable()?;
        if invitation.origin != self.control.origin() {
            return Err(DeriveError::ForeignInvitation.into());
        }
        let mut how = invitation.accept(self.rank());
        how.give_up = unless_failed(&self.control, (0..self.ranks()).collect());
        let control = Arc::clone(&self.control);
        // Newcomers lack the earlier measurement, so the new communicator starts without one.
        self.make(&control, how, None).map_err(|Attempt { error, .. }| {
            if self.is_broken() {
                return self.or_failure(error, "grow");
            }
            Error::Unmade { doing: "grow", error: Box::new(error), advice: GROW_ADVICE }
        })
    }

    /// Makes a communicator with the configuration of `self`. An abort of `from` meanwhile also
    /// ends the new communicator.
    fn make(
        &self,
        from: &Arc<ControlPlane>,
        mut how: Join,
        measured: Option<Measured>,
    ) -> Result<Communicator, Attempt> {
        let config = self.engine.config.clone();
        let fits = configure(&mut how, &config);
        fits.map_err(|error| Attempt { error: error.into(), control: None })?;
        how.limits.deadline = config.join_timeout;
        let (give_up, secret) = (how.give_up.clone(), how.id.secret.clone());
        let met = give_up.check(how.rank).and_then(|()| meet(how));
        let (control, linked) = met.map_err(|error| {
            // A member that fails or aborts hangs up. The others may see the hang-up before the
            // reason arrives.
            from.await_failure(FAILURE_WITHIN);
            Attempt { error: error.into(), control: None }
        })?;
        let control = Arc::new(control);
        from.set_successor(&Arc::downgrade(&control));
        // An abort before `set_successor` did not reach the new communicator.
        let linked = linked.and_then(|()| give_up.check(control.rank()));
        let made = linked
            .map_err(Error::from)
            .and_then(|()| Communicator::wired(Arc::clone(&control), secret, config, measured));
        from.set_successor(&Weak::new());
        made.map_err(|error| {
            if control.failure().is_none() {
                control.report(control.rank(), error.to_string());
            }
            Attempt { error, control: Some(control) }
        })
    }
}

/// Returns a condition that ends a wait for these ranks when the communicator fails or one of them
/// leaves.
fn unless_failed(control: &Arc<ControlPlane>, mut members: Vec<Rank>) -> GiveUp {
    members.sort_unstable();
    let control = Arc::downgrade(control);
    GiveUp::when(move || {
        let control = control.upgrade()?;
        let failure = control.failure().map(|failure| failure.to_string());
        failure.or_else(|| control.obstacle(&members))
    })
}

/// Returns the port of a listener; zero for none.
fn port_of(listener: Option<&TcpListener>) -> u16 {
    let address = listener.and_then(|listener| listener.local_addr().ok());
    address.map_or(0, |address| address.port())
}
