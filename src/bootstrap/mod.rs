//! Joining over TCP: [`join`] turns a [`UniqueId`] and a rank into a [`ControlPlane`], through
//! which the ranks exchange addresses and learn of each other's death.
//!
//! The protocol is in `ccl_bootstrap`; this module has the sockets, the clock and the control
//! thread.

mod contact;
mod control;
mod give_up;
mod host;
pub(crate) mod listen;
mod member;
pub(crate) mod resolve;
mod root;
pub(crate) mod socket;

pub use ccl_bootstrap::{
    Completed, Contact, Control, ControlError, ControlTiming, Endpoint, Failure, FailureReason,
    JoinFailure, JoinLimits, Member, MemberJoinError, NoVerdict, Roster, Secret, Strays, UniqueId,
    Verdict,
};
pub use control::{ControlPlane, ExchangeError, Invitation, VerdictError};
pub use give_up::GiveUp;
pub use listen::{Listening, Reach, listen_at};
pub use socket::random_bytes;

use socket::Deadline;

use crate::recorder;
use ccl_bootstrap::{Hello, RANKS_MAX};
use ccl_core::types::Rank;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use thiserror::Error;

/// Least time for ranks to connect with each other, even if the last rank joined late.
const LINKING_MIN: Duration = Duration::from_secs(10);

/// Parameters of joining.
#[derive(Debug)]
pub struct Join {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// Unique id: the endpoints of rank 0 and the secret of all ranks.
    pub id: UniqueId,
    /// Socket of rank 0 that already listens at the id's endpoints. Without one, rank 0 listens at
    /// the first endpoint.
    pub listener: Option<TcpListener>,
    /// Digest of everything that must be equal on all ranks.
    pub configuration: [u8; 32],
    /// Name that distinguishes this host; if empty, the system's identity is used.
    pub host: String,
    /// True if joining without a secret is allowed beyond loopback (`FERROCCL_INSECURE_JOIN=1`).
    pub insecure: bool,
    /// Deadlines and bounds of joining.
    pub limits: JoinLimits,
    /// Heartbeat interval, and the silence after which a rank counts as dead.
    pub timing: ControlTiming,
    /// Condition that ends this rank's wait for others; it is checked at intervals.
    pub give_up: GiveUp,
    /// True if other ranks may be on other hosts even when rank 0 is reached by loopback.
    pub spans_hosts: bool,
    /// Longest time that [`ControlPlane::close`] blocks while others do not take this rank's last
    /// messages. A rank that misses these messages learns their content from other ranks.
    pub linger: Duration,
    /// Settings of this rank's flight recorder: the recording, its dumps and the trace.
    pub recorder: recorder::Settings,
}

impl Join {
    /// Returns parameters with every option at its default: 60 s to join, heartbeat 0.5 s, silence
    /// 3 s, linger 5 s.
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

    /// Returns the secret of the control connections of a session.
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

/// Error for ranks that did not become a communicator.
#[derive(Debug, Error)]
pub enum BootstrapError {
    /// [`Join::give_up`] ended the wait.
    #[error("rank {rank} stopped waiting for the others: {reason}")]
    GivenUp {
        /// This rank.
        rank: Rank,
        /// The reason.
        reason: String,
    },
    /// The rank or the number of ranks is out of range.
    #[error(
        "rank {rank} of {ranks} is invalid: there can be 1 to {RANKS_MAX} ranks, numbered from 0"
    )]
    RankOutOfRange {
        /// This rank.
        rank: Rank,
        /// Number of ranks.
        ranks: u32,
    },
    /// There is no secret, and strangers could reach the socket.
    #[error(
        "joining at {address} without a secret is refused: anybody who reaches it could join. \
         Give all ranks the same FERROCCL_SECRET or FERROCCL_SECRET_FILE, use loopback, or set \
         FERROCCL_INSECURE_JOIN=1 in a network where everybody is trusted"
    )]
    NoSecret {
        /// Address at which this rank would listen or connect.
        address: SocketAddr,
    },
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen at {endpoint}: {error}. Choose a free port and an address of this \
         host"
    )]
    Listen {
        /// The endpoint.
        endpoint: Endpoint,
        /// The system's error.
        error: std::io::Error,
    },
    /// A host name resolves to no address.
    #[error("cannot resolve the host name of {endpoint}: {text}")]
    Resolve {
        /// The endpoint.
        endpoint: Endpoint,
        /// The system's error.
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
        /// All endpoints that were tried.
        endpoints: String,
        /// Time waited, in milliseconds.
        waited_ms: u64,
        /// The last attempt's error.
        last: String,
    },
    /// Rank 0 was reached, but did not report in time that all ranks have joined.
    #[error("rank {rank} has joined, but joining did not end within {waited_ms} ms: {missing}")]
    Incomplete {
        /// This rank.
        rank: Rank,
        /// Time waited, in milliseconds.
        waited_ms: u64,
        /// The missing ranks, as rank 0 last reported them.
        missing: String,
    },
    /// This member's attempt failed for good.
    #[error("rank {rank} cannot join at {address}: {error}")]
    Member {
        /// This rank.
        rank: Rank,
        /// Address to which the rank had connected.
        address: SocketAddr,
        /// The reason.
        error: MemberJoinError,
    },
    /// Rank 0 had to end the joining.
    #[error("{failure}{}{}", explain(strays), elsewhere(foreign.as_deref()))]
    Root {
        /// The reason, which was also sent to all ranks that had joined.
        failure: JoinFailure,
        /// Connections that were dropped while rank 0 waited.
        strays: Strays,
        /// First endpoint of the id, where the others look for rank 0; set only if no other
        /// rank joined and no endpoint of the id is on this host.
        foreign: Option<Box<Endpoint>>,
    },
    /// A rank ended after all ranks had joined, while they connected with each other.
    #[error("{failure} (rank {rank} was connecting with its neighbours)")]
    Linking {
        /// This rank.
        rank: Rank,
        /// The rank that ended, and the reason.
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
        /// The missing rank.
        peer: Rank,
        /// Address at which the missing rank listens.
        address: String,
        /// Time waited, in milliseconds.
        waited_ms: u64,
        /// Advice on what to do.
        advice: &'static str,
    },
    /// Rank 0 let this rank in, but no elder (a rank that gets the list of members earlier) sent
    /// the list.
    #[error(
        "rank {rank} was accepted, but no rank sent it the list of members within {waited_ms} ms; \
         the last request, to rank {elder} at {address}, failed: {last}; {advice}"
    )]
    Untold {
        /// This rank.
        rank: Rank,
        /// The elder rank that was asked last.
        elder: Rank,
        /// Address at which that elder listens.
        address: SocketAddr,
        /// Time waited, in milliseconds.
        waited_ms: u64,
        /// The reason why the elder did not send the list.
        last: String,
        /// Advice on what to do.
        advice: &'static str,
    },
    /// The system refused something that joining needs.
    #[error("joining failed: cannot {doing}: {error}")]
    System {
        /// The step that failed.
        doing: &'static str,
        /// The system's error.
        error: std::io::Error,
    },
}

fn elsewhere(foreign: Option<&Endpoint>) -> String {
    foreign.map_or_else(String::new, |endpoint| {
        format!(
            "; the other ranks look for rank 0 at {}, which is no address of this host",
            endpoint.host
        )
    })
}

fn explain(strays: &Strays) -> String {
    let causes = [
        (strays.wrong_secret, "with another secret"),
        (strays.wrong_version, "of another protocol version"),
        (strays.malformed, "that broke off or did not come from ferroccl"),
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

/// Facts that a rank knows once all ranks have joined.
struct Joined {
    roster: Roster,
    /// This rank's control port; none for a single rank.
    listener: Option<TcpListener>,
    /// Addresses of the control ports, by rank, as seen from this rank.
    addresses: Vec<SocketAddr>,
}

/// Joins: blocks until all ranks have joined and this rank is connected with its neighbours (the
/// few ranks to which it keeps control connections), or until the deadline in `how.limits`. If the
/// last rank comes late, the ranks still have 10 s to connect.
///
/// # Errors
/// Everything that can prevent joining.
pub fn join(how: Join) -> Result<ControlPlane, BootstrapError> {
    let (plane, linked) = meet(how)?;
    linked.map(|()| plane)
}

/// Does what [`join`] does, but returns a control plane once all ranks have met, even if this rank
/// could not connect with its neighbours. The ranks can use such a control plane to agree on the
/// reason.
///
/// # Errors
/// The errors of [`join`], except those of connecting with the neighbours: these are returned with
/// the control plane.
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
    // If the last rank came late, too little time may be left even for this short step.
    let linking = Deadline::after(deadline.left().max(LINKING_MIN));
    ControlPlane::start(&join, joined, linking)
}
