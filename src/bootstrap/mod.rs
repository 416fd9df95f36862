//! Joining over TCP: [`join`] turns a [`UniqueId`] and a rank into a [`ControlPlane`], through
//! which the ranks exchange addresses and learn of each other's death.
//!
//! The protocol is `ccl_core::bootstrap`; here are its sockets, its clock and its one thread.

mod contact;
mod control;
mod driver;
mod give_up;
mod host;
pub(crate) mod listen;
mod member;
mod regroup;
pub(crate) mod resolve;
mod root;
pub(crate) mod socket;

pub use ccl_core::bootstrap::{
    Completed, Contact, Control, ControlError, ControlTiming, Endpoint, Failure, FailureReason,
    JoinFailure, JoinLimits, Member, MemberJoinError, NoVerdict, Roster, Secret, Strays, UniqueId,
    Verdict,
};
pub use control::{ControlPlane, ExchangeError, VerdictError};
pub use give_up::GiveUp;
pub use listen::{Listening, Reach, listen_at};
pub use regroup::Invitation;
pub use socket::random_bytes;

use socket::Deadline;

use crate::recorder;
use ccl_core::bootstrap::{Hello, RANKS_MAX};
use ccl_core::types::Rank;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use thiserror::Error;

/// How long ranks have to connect with each other, however late the last one came.
const LINKING_MIN: Duration = Duration::from_secs(10);

/// How to join.
#[derive(Debug)]
pub struct Join {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// Where rank 0 is and what all ranks know.
    pub id: UniqueId,
    /// Rank 0: the socket that already listens at the id's endpoints. Without one, it listens at
    /// the first endpoint.
    pub listener: Option<TcpListener>,
    /// Digest of whatever must be equal on all ranks.
    pub configuration: [u8; 32],
    /// What tells this host from others; empty to find out.
    pub host: String,
    /// Joining without a secret is allowed beyond loopback (`FERROCCL_INSECURE_JOIN=1`).
    pub insecure: bool,
    /// Deadlines and bounds of joining.
    pub limits: JoinLimits,
    /// Heartbeat and silence after it.
    pub timing: ControlTiming,
    /// Asked now and then while this rank waits for others.
    pub give_up: GiveUp,
    /// Other ranks may be on other hosts, even where rank 0 is reached by loopback.
    pub spans_hosts: bool,
    /// At most so long blocks [`ControlPlane::close`] while others do not take this rank's last
    /// words. What they miss, others tell them.
    pub linger: Duration,
    /// What is recorded of this rank, and where it is dumped.
    pub recorder: recorder::Settings,
}

impl Join {
    /// With every option at its default: 60 s to join, heartbeat 0.5 s, silence 3 s, linger 5 s.
    #[must_use]
    pub fn new(rank: Rank, ranks: u32, id: UniqueId) -> Join {
        Join {
            rank,
            ranks,
            id,
            listener: None,
            configuration: [0; 32],
            host: String::new(),
            insecure: false,
            limits: JoinLimits::default(),
            timing: ControlTiming::default(),
            give_up: GiveUp::default(),
            spans_hosts: false,
            linger: Duration::from_secs(5),
            recorder: recorder::Settings::default(),
        }
    }

    /// The secret of the control connections of a session.
    fn control_secret(&self, session: &[u8; 32]) -> Secret {
        Secret::from_bytes(self.id.secret.derive(&[&b"control "[..], session].concat()))
    }

    fn hello(&self, contact: Contact) -> Hello {
        Hello {
            rank: self.rank,
            ranks: self.ranks,
            library: env!("CARGO_PKG_VERSION").to_owned(),
            configuration: self.configuration,
            member: Member {
                host: host::identity(&self.host),
                process: std::process::id(),
                contact,
            },
        }
    }
}

/// Why the ranks did not become a communicator.
#[derive(Debug, Error)]
pub enum BootstrapError {
    /// [`Join::give_up`] said so.
    #[error("rank {rank} stopped to wait for the others: {reason}")]
    GivenUp {
        /// This rank.
        rank: Rank,
        /// Why.
        reason: String,
    },
    /// Numbers that make no sense.
    #[error("rank {rank} of {ranks}: there must be 1 to {RANKS_MAX} ranks, counted from 0")]
    RankOutOfRange {
        /// This rank.
        rank: Rank,
        /// Number of ranks.
        ranks: u32,
    },
    /// No secret, and strangers could reach the socket.
    #[error(
        "joining at {address} without a secret is refused: anybody who reaches it could join. \
         Give all ranks the same FERROCCL_SECRET or FERROCCL_SECRET_FILE, use loopback, or set \
         FERROCCL_INSECURE_JOIN=1 in a network where everybody is trusted"
    )]
    NoSecret {
        /// Where this rank would listen or connect.
        address: SocketAddr,
    },
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen at {endpoint}: {error}. Choose a free port and an address of this \
         host"
    )]
    Listen {
        /// Where.
        endpoint: Endpoint,
        /// What the system says.
        error: std::io::Error,
    },
    /// A name that leads to no address.
    #[error("the host name of {endpoint} leads to no address: {text}")]
    Resolve {
        /// The endpoint.
        endpoint: Endpoint,
        /// What the system says.
        text: String,
    },
    /// Rank 0 was never reached.
    #[error(
        "rank {rank} could not reach rank 0 at {endpoints} within {waited_ms} ms ({last}): see \
         whether rank 0 runs, and whether the address and port are right and not filtered"
    )]
    RootMissing {
        /// This rank.
        rank: Rank,
        /// All that was tried.
        endpoints: String,
        /// How long, in milliseconds.
        waited_ms: u64,
        /// The last attempt's error.
        last: String,
    },
    /// Rank 0 was reached, but the ranks were not complete in time.
    #[error("rank {rank} has joined, but within {waited_ms} ms {missing}")]
    Incomplete {
        /// This rank.
        rank: Rank,
        /// How long, in milliseconds.
        waited_ms: u64,
        /// Who is missing, as rank 0 told last.
        missing: String,
    },
    /// This member's attempt failed for good.
    #[error("rank {rank} cannot join at {address}: {error}")]
    Member {
        /// This rank.
        rank: Rank,
        /// Where it had connected.
        address: SocketAddr,
        /// Why.
        error: MemberJoinError,
    },
    /// Rank 0 had to end the joining.
    #[error("{failure}{}{}", explain(strays), elsewhere(foreign.as_deref()))]
    Root {
        /// Why; all who had joined were told.
        failure: JoinFailure,
        /// Connections that came to nothing meanwhile.
        strays: Strays,
        /// Where the others look for it, if that is nowhere on this host.
        foreign: Option<Box<Endpoint>>,
    },
    /// A rank ended after all had joined, while they connected with each other.
    #[error("{failure} (rank {rank} was connecting with its neighbours)")]
    Linking {
        /// This rank.
        rank: Rank,
        /// Who, and how.
        failure: Failure,
    },
    /// Two ranks that both reach rank 0 do not reach each other.
    #[error(
        "rank {rank} got no control connection with rank {peer} at {address} within {waited_ms} \
         ms: {advice}"
    )]
    Unlinked {
        /// This rank.
        rank: Rank,
        /// Who is missing.
        peer: Rank,
        /// Where it listens.
        address: String,
        /// How long, in milliseconds.
        waited_ms: u64,
        /// What to do.
        advice: &'static str,
    },
    /// Rank 0 let this rank in, but none of those it was referred to said who the others are.
    #[error(
        "rank {rank} was let in, but nobody told it who the others are within {waited_ms} ms; of \
         rank {elder} at {address}, the last one asked: {last}; {advice}"
    )]
    Untold {
        /// This rank.
        rank: Rank,
        /// Who was asked last.
        elder: Rank,
        /// Where it listens.
        address: SocketAddr,
        /// How long, in milliseconds.
        waited_ms: u64,
        /// Why it did not tell.
        last: String,
        /// What to do.
        advice: &'static str,
    },
    /// The system refused something needed.
    #[error("joining failed: cannot {doing}: {error}")]
    System {
        /// What was attempted.
        doing: &'static str,
        /// What the system says.
        error: std::io::Error,
    },
}

fn elsewhere(foreign: Option<&Endpoint>) -> String {
    foreign.map_or_else(String::new, |endpoint| {
        format!("; no address of this host is {}, where they look for rank 0", endpoint.host)
    })
}

fn explain(strays: &Strays) -> String {
    let causes = [
        (strays.wrong_secret, "with another secret"),
        (strays.wrong_version, "of another protocol version"),
        (strays.malformed, "that broke off or were no ferroccl process"),
        (strays.slow, "that were too slow"),
    ];
    let told: Vec<_> = causes
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if told.is_empty() {
        String::new()
    } else {
        format!(" (connections dropped meanwhile: {})", told.join(", "))
    }
}

/// What a rank knows when all have joined.
struct Joined {
    roster: Roster,
    /// This rank's control port; none for a single rank.
    listener: Option<TcpListener>,
    /// By rank: where its control port is, as seen from here.
    addresses: Vec<SocketAddr>,
}

/// Joins: blocks until all ranks have, or until the deadline in `join.limits`.
///
/// # Errors
/// Everything that can keep ranks from each other; each error says who and what to do.
pub fn join(how: Join) -> Result<ControlPlane, BootstrapError> {
    let (plane, linked) = meet(how)?;
    linked.map(|()| plane)
}

/// As [`join`], but once all have met there is a control plane, linked or not: with it the ranks
/// can agree on why it is not.
///
/// # Errors
/// As [`join`], until all have met.
pub(crate) fn meet(
    mut join: Join,
) -> Result<(ControlPlane, Result<(), BootstrapError>), BootstrapError> {
    let (rank, ranks) = (join.rank, join.ranks);
    if ranks == 0 || ranks > RANKS_MAX || rank >= ranks {
        return Err(BootstrapError::RankOutOfRange { rank, ranks });
    }
    let deadline = Deadline::after(join.limits.deadline);
    let joined = if ranks == 1 {
        let members = vec![join.hello(Contact::default()).member];
        let roster = Roster { session: [0; 32], members };
        Joined { roster, listener: None, addresses: Vec::new() }
    } else if rank == 0 {
        root::join(&mut join)?
    } else {
        member::join(&join)?
    };
    tracing::debug!(rank, ranks, hosts = joined.roster.hosts(), "joined");
    // Who came last left the others little time; a second's work is not to fail for that.
    let linking = Deadline::after(deadline.left().max(LINKING_MIN));
    ControlPlane::start(&join, joined, linking)
}
