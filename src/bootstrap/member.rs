//! Joining of a rank other than 0. The rank tries to reach rank 0 until rank 0 answers or the
//! deadline passes. Rank 0 names elders: ranks that get the roster (the list of members) earlier.
//! The rank asks one elder after the other for the roster, until one answers.

use super::resolve::{is_loopback_name, resolve};
use super::socket::{self, Deadline, Got, advice, random_bytes};
use super::{BootstrapError, Endpoint, Join, Joined, LINKING_MIN, Member, contact};
use ccl_bootstrap::{MemberJoin, MemberJoinError, Referral, Reply, Roster};
use rustix::event::PollFlags;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

const BACKOFF_FIRST: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// Timeout of one connection: an address that swallows packets must not use up the time for the
/// other addresses.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Extra time to wait for rank 0, which names the missing ranks at its own deadline.
const GRACE: Duration = Duration::from_secs(2);

/// Outcome of a failed attempt to join.
enum Setback {
    /// Failed for now; the rank tries again.
    Passing(String),
    /// Failed at this address; another address of rank 0 may work.
    Address(BootstrapError),
    /// Failed for good.
    Final(BootstrapError),
}

pub(super) fn join(join: &Join) -> Result<Joined, BootstrapError> {
    let deadline = Deadline::after(join.limits.deadline);
    let mut backoff = BACKOFF_FIRST;
    loop {
        join.give_up.check(join.rank)?;
        let last = match round(join, deadline) {
            Ok(joined) => return Ok(joined),
            Err(Setback::Address(error) | Setback::Final(error)) => return Err(error),
            Err(Setback::Passing(last)) => last,
        };
        if deadline.left() <= backoff {
            let endpoints: Vec<_> = join.id.endpoints.iter().map(ToString::to_string).collect();
            return Err(BootstrapError::RootMissing {
                rank: join.rank,
                endpoints: endpoints.join(", "),
                waited_ms: deadline.waited_ms(),
                last,
            });
        }
        std::thread::sleep(backoff);
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Tries every address once.
fn round(join: &Join, deadline: Deadline) -> Result<Joined, Setback> {
    let mut passing = "there is no address to try".to_owned();
    let mut objection = None;
    for endpoint in &join.id.endpoints {
        let addresses = match resolve(endpoint, deadline) {
            Ok(addresses) => addresses,
            Err(error) => {
                passing = error.to_string();
                continue;
            }
        };
        for address in addresses {
            match attempt(join, address, deadline) {
                Ok(joined) => return Ok(joined),
                Err(Setback::Passing(text)) => passing = misled(endpoint, address) + &text,
                Err(Setback::Address(error)) => {
                    objection.get_or_insert(error);
                }
                Err(Setback::Final(error)) => return Err(Setback::Final(error)),
            }
        }
    }
    Err(objection.map_or(Setback::Passing(passing), Setback::Address))
}

/// Returns a hint if the name of rank 0 resolves to a loopback address, else an empty text.
fn misled(endpoint: &Endpoint, address: SocketAddr) -> String {
    if is_loopback_name(&endpoint.host) || !address.ip().is_loopback() {
        return String::new();
    }
    format!(
        "the name {} resolves to {} here, an address of this host: if rank 0 runs on another host, \
         use that host's address, or correct /etc/hosts; ",
        endpoint.host,
        address.ip()
    )
}

fn attempt(join: &Join, address: SocketAddr, deadline: Deadline) -> Result<Joined, Setback> {
    if join.id.secret.is_public() && !join.insecure && !address.ip().is_loopback() {
        return Err(Setback::Address(BootstrapError::NoSecret { address }));
    }
    let passing = |error: std::io::Error| Setback::Passing(error.to_string());
    let timeout = deadline.left().min(CONNECT_MAX).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&address, timeout).map_err(passing)?;
    // If no process listens at a port of this host, and the system chooses that same port for our
    // side, then our socket connects to itself.
    if stream.local_addr().is_ok_and(|local| local == address) {
        return Err(Setback::Passing("no process listens there".to_owned()));
    }
    socket::prepare(&stream).map_err(passing)?;
    let nonce = random_bytes().map_err(Setback::Final)?;
    let (listener, contact) = contact::of_member(join, &stream).map_err(Setback::Final)?;
    let mut machine = MemberJoin::new(join.id.secret.clone(), join.hello(contact), nonce);
    let outcome = converse(&mut machine, &stream, deadline, join)?;
    // Rank 0 has sent its last message, and descriptors may be scarce.
    drop(stream);
    match outcome {
        Some(Ok(Reply::Referred(referral))) => {
            let members = ask_elders(join, &referral, address, deadline)?;
            let roster = Roster { session: referral.session, members };
            let addresses = contact::addresses(&roster, address);
            Ok(Joined { roster, listener: Some(listener), addresses })
        }
        Some(Ok(Reply::Members(_))) => {
            Err(Setback::Passing("rank 0 sent an unexpected message".to_owned()))
        }
        Some(Err(error)) if error.is_passing() => Err(Setback::Passing(error.to_string())),
        Some(Err(error)) => {
            let is_final = matches!(error, MemberJoinError::Refused(_));
            let error = BootstrapError::Member { rank: join.rank, address, error };
            Err(if is_final { Setback::Final(error) } else { Setback::Address(error) })
        }
        None if machine.is_introduced() => {
            Err(Setback::Final(incomplete(join, &machine, deadline)))
        }
        None => {
            Err(Setback::Passing(format!("the process that listens at {address} does not answer")))
        }
    }
}

/// Asks one elder after the other for the members, until one answers.
fn ask_elders(
    join: &Join,
    referral: &Referral,
    root: SocketAddr,
    deadline: Deadline,
) -> Result<Vec<Member>, Setback> {
    // If the last rank came late, little time is left.
    let deadline = Deadline::after(deadline.left().max(LINKING_MIN));
    let (mut elder, mut address, mut last) = (0, root, "it named no other rank".to_owned());
    for (rank, contact) in &referral.elders {
        (elder, address) = (*rank, contact::address(contact, root));
        match ask(join, referral, address, deadline) {
            Ok(members) => return Ok(members),
            // The elder may have died; the next elder knows the members, too.
            Err(Setback::Passing(reason)) => last = reason,
            Err(setback) => return Err(setback),
        }
    }
    Err(Setback::Final(BootstrapError::Untold {
        rank: join.rank,
        elder,
        address,
        waited_ms: deadline.waited_ms(),
        last,
        advice: advice(),
    }))
}

fn ask(
    join: &Join,
    referral: &Referral,
    address: SocketAddr,
    deadline: Deadline,
) -> Result<Vec<Member>, Setback> {
    let passing = |error: std::io::Error| Setback::Passing(error.to_string());
    let timeout = deadline.left().min(CONNECT_MAX).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&address, timeout).map_err(passing)?;
    socket::prepare(&stream).map_err(passing)?;
    let nonce = random_bytes().map_err(Setback::Final)?;
    let secret = join.control_secret(&referral.session);
    let mut machine = MemberJoin::fetch(secret, join.ranks, nonce);
    match converse(&mut machine, &stream, deadline, join)? {
        Some(Ok(Reply::Members(members))) => Ok(members),
        Some(Ok(Reply::Referred(_))) => {
            Err(Setback::Passing("it sent an unexpected message".to_owned()))
        }
        Some(Err(error)) => Err(Setback::Passing(error.to_string())),
        None => Err(Setback::Passing("it did not answer in time".to_owned())),
    }
}

fn incomplete(join: &Join, machine: &MemberJoin, deadline: Deadline) -> BootstrapError {
    let missing = match machine.missing() {
        Some(ranks) => format!("{ranks} did not join; check that all ranks were started"),
        None => "rank 0 did not report that all ranks have joined".to_owned(),
    };
    BootstrapError::Incomplete { rank: join.rank, waited_ms: deadline.waited_ms(), missing }
}

/// Passes bytes between `stream` and `machine` until the attempt ends. Returns `None` at a time
/// limit: [`GRACE`] after the deadline, once both sides have proved the secret. Before that, the
/// limit is the deadline, or twice [`CONNECT_MAX`] after the start if that is earlier.
fn converse(
    machine: &mut MemberJoin,
    stream: &TcpStream,
    deadline: Deadline,
    join: &Join,
) -> Result<Option<Result<Reply, MemberJoinError>>, Setback> {
    let grace = Deadline::after(deadline.left().saturating_add(GRACE));
    let stranger = Deadline::after(CONNECT_MAX * 2);
    let mut outbox = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        outbox.extend(machine.take_outbox());
        let written = socket::write(stream, &outbox);
        outbox.drain(..written);
        if let Some(outcome) = machine.outcome() {
            return Ok(Some(outcome.clone()));
        }
        let left = match machine.is_introduced() {
            true => grace.left(),
            false => deadline.left().min(stranger.left()),
        };
        if left.is_zero() {
            return Ok(None);
        }
        join.give_up.check(join.rank).map_err(Setback::Final)?;
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !outbox.is_empty());
        socket::wait(&[(stream.as_fd(), flags)], left.min(join.give_up.every()));
        match socket::read(stream, &mut buffer) {
            Got::Bytes(count) => {
                let mut bytes = &buffer[..count];
                machine.received(&mut bytes);
            }
            Got::Nothing => {}
            Got::End => machine.closed(),
        }
    }
}
