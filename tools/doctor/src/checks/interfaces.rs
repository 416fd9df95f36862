//! Network interfaces: the ones that ranks would use, and whether those reach other hosts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ccl_socket::interface::{self, Filter};

use super::super::finding::Finding;
use super::super::host::Host;
use ccl_machine::devices::{self, Interface};
use ferroccl::tools::Deadline;
use ferroccl::tools::own_hosts;
use ferroccl::tools::resolve;

/// Time in which a peer must answer, divided among its addresses. A single address is reached even
/// if two SYNs are lost: TCP sends the SYN again 1 s and 3 s after the first.
const REACH_WITHIN: Duration = Duration::from_secs(5);
/// Least ratio of two interfaces' speeds at which the slower one is reported.
const SLOWER: u32 = 4;

const UP: &str = "bring an interface up, and give it an address";
const NAME: &str = "name the network that data is to take: FERROCCL_SOCKET_IFNAME=eth2,eth3 or \
                    10.1.0.0/16";

/// Checks whether the chosen interfaces can carry data, and are the fastest.
pub(super) fn chosen(host: &Host) -> Vec<Finding> {
    let filter = host.job.config.socket_interfaces.trim();
    let all = devices::interfaces(host);
    if all.is_empty() {
        let remedy = "containers: mount the host's /sys";
        return vec![Finding::unknown("", "sysfs shows no network interface", remedy)];
    }
    let subject = match filter.is_empty() {
        true => String::new(),
        false => format!("FERROCCL_SOCKET_IFNAME={filter}"),
    };
    let names = match names(host, filter, &all) {
        Ok(names) => names,
        Err(finding) => return vec![Finding { subject, ..*finding }],
    };
    let used: Vec<&Interface> = all.iter().filter(|one| names.contains(&one.name)).collect();
    let shown: Vec<String> = used.iter().map(|one| show(one)).collect();
    let shown = shown.join(", ");
    if used.iter().all(|one| one.is_loopback()) {
        let evidence = format!("only loopback is used ({shown}): no other host can be reached");
        return vec![match filter.is_empty() {
            true => Finding::advice(subject, evidence, UP),
            false => Finding::warning(subject, evidence, NAME),
        }];
    }
    let mut found = Vec::new();
    let down: Vec<&str> =
        used.iter().filter(|one| !one.is_up).map(|one| one.name.as_str()).collect();
    if down.len() == used.len() {
        let remedy = "bring one up (`ip link set IF up`), look at its cable, or select another \
                      interface";
        let evidence = format!("no interface that ranks would use is up: {shown}");
        found.push(Finding::fault(subject, evidence, remedy));
        return found;
    }
    if !down.is_empty() && !filter.is_empty() {
        let evidence = format!("selected interfaces that are not up: {}", down.join(", "));
        let remedy = "bring them up (`ip link set IF up`), or do not select them";
        found.push(Finding::warning(subject.clone(), evidence, remedy));
    }
    if used.iter().filter(|one| one.is_up).all(|one| one.is_bridge || one.is_loopback()) {
        let evidence = format!("only bridges within this host are used: {shown}");
        found.push(Finding::warning(subject.clone(), evidence, NAME));
    }
    found.extend(slow(&subject, &all, &used, filter.is_empty()));
    if found.is_empty() {
        found.push(Finding::ok(subject, format!("used: {shown}")));
    }
    found
}

/// Returns the names of the interfaces that would be used.
fn names(host: &Host, filter: &str, all: &[Interface]) -> Result<Vec<String>, Box<Finding>> {
    if host.is_live() {
        return interface::interfaces(filter).map_err(|error| {
            Box::new(match filter.is_empty() {
                true => Finding::fault("", "no interface has an address, not even loopback", UP),
                false => Finding::fault("", error.to_string(), NAME),
            })
        });
    }
    let parsed = Filter::parse(filter);
    // Only files of the host can be read here. They hold names of interfaces, but no addresses.
    let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let names: Vec<String> = all
        .iter()
        .filter(|one| match filter.is_empty() {
            true => !one.is_loopback(),
            false => parsed.takes(&one.name, nowhere),
        })
        .map(|one| one.name.clone())
        .collect();
    if !names.is_empty() {
        return Ok(names);
    }
    let there: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    let there = there.join(", ");
    Err(Box::new(match filter.contains(['/', '.', ':']) {
        true => Finding::unknown(
            "",
            format!("the addresses of {there} cannot be seen in files"),
            "run this on the machine itself",
        ),
        false if filter.is_empty() => {
            Finding::advice("", format!("there is no interface but {there}"), UP)
        }
        false => Finding::fault("", format!("no interface matches; this host has {there}"), NAME),
    }))
}

/// Returns a finding if an interface of `used` is much slower than the fastest interface that is
/// up. `by_default` is true if no interface is selected: `used` then has the interfaces that ranks
/// use by default.
fn slow(
    subject: &str,
    all: &[Interface],
    used: &[&Interface],
    by_default: bool,
) -> Option<Finding> {
    let speed = |one: &&Interface| one.megabits.filter(|_| one.is_up);
    let best = all.iter().filter(|one| speed(one).is_some()).max_by_key(speed)?;
    let fastest = speed(&best)?;
    let slower =
        |one: &&&Interface| speed(one).is_some_and(|it| it.saturating_mul(SLOWER) <= fastest);
    let slow: Vec<&str> = used.iter().filter(slower).map(|one| one.name.as_str()).collect();
    let known = used.iter().filter(|one| speed(one).is_some()).count();
    if slow.is_empty() {
        return None;
    }
    let evidence = format!(
        "{} {} much slower than {} ({fastest} Mb/s)",
        slow.join(", "),
        if slow.len() == 1 { "is" } else { "are" },
        best.name
    );
    Some(match by_default || slow.len() < known {
        true => Finding::advice(
            subject,
            format!("{evidence}, and each pair of ranks uses the first interface that answers"),
            NAME,
        ),
        false => Finding::warning(subject, evidence, NAME),
    })
}

fn show(one: &Interface) -> String {
    let speed = one.megabits.map_or_else(String::new, |speed| format!(", {speed} Mb/s"));
    format!("{} ({}{speed})", one.name, if one.is_up { "up" } else { "down" })
}

/// Reports the names and addresses at which rank 0 would be reached, if it ran here.
pub(super) fn bootstrap(host: &Host) -> Vec<Finding> {
    if !host.is_live() {
        let remedy = "run this on the machine itself";
        return vec![Finding::unknown("", "files do not show routes and host names", remedy)];
    }
    let hosts = own_hosts();
    let routed = hosts.iter().any(|host| host.parse::<IpAddr>().is_ok());
    let shown = hosts.join(", ");
    vec![match routed {
        true => Finding::ok("", format!("if rank 0 runs here, other ranks reach it at {shown}")),
        false => Finding::advice(
            "",
            format!(
                "no route leads out of this host; if rank 0 runs here, other ranks get only the \
                 host's name: {shown}"
            ),
            "if ranks are on several hosts, set FERROCCL_BOOTSTRAP_HOST to a name or address at \
             which the other hosts reach this host",
        ),
    }]
}

/// Checks whether the peer of `--peer` can be reached.
pub(super) fn peer(host: &Host) -> Vec<Finding> {
    let Some(peer) = &host.job.peer else {
        return vec![Finding::ok("", "no peer was named (--peer HOST:PORT)")];
    };
    let subject = peer.to_string();
    let deadline = Deadline::after(REACH_WITHIN);
    let addresses = match resolve(peer, deadline) {
        Ok(addresses) => addresses,
        Err(error) => {
            let remedy = "use a name that all hosts resolve (`getent hosts NAME`), or an address";
            return vec![Finding::fault(subject, error.to_string(), remedy)];
        }
    };
    vec![reach(host, subject, &addresses, deadline)]
}

/// Tries the peer's addresses, at most eight, until one answers.
fn reach(host: &Host, subject: String, addresses: &[SocketAddr], deadline: Deadline) -> Finding {
    let (mut refused, mut problems) = (None, Vec::new());
    let count = addresses.len().min(8) as u32;
    for address in addresses.iter().take(8) {
        let start = Instant::now();
        let patience = (REACH_WITHIN / count).min(deadline.left()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(address, patience) {
            Ok(stream) => {
                if let Some(finding) = stray(host, &subject, &stream) {
                    return finding;
                }
                let own =
                    stream.local_addr().map_or_else(|_| "?".to_owned(), |a| a.ip().to_string());
                let took = start.elapsed();
                let evidence = format!("{address} answers within {took:.1?}, reached from {own}");
                return Finding::ok(subject, evidence);
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                let took = start.elapsed();
                let evidence = format!(
                    "{address} refused the connection within {took:.1?}: the host is reachable, \
                     but nothing listens on this port (or a firewall refuses)"
                );
                refused.get_or_insert(evidence);
            }
            Err(error) => problems.push(format!("{address}: {error}")),
        }
    }
    if let Some(evidence) = refused {
        let remedy = "start the program that is to listen there, such as rank 0 or `nc -l PORT`, \
                      and check again";
        return Finding::warning(subject, evidence, remedy);
    }
    let remedy = "check that firewalls (security groups) between the hosts let all TCP ports \
                  through, and that both hosts are on the network of this address";
    Finding::fault(subject, format!("not reached: {}", problems.join("; ")), remedy)
}

/// Returns a finding if the connection to the peer uses an interface that is not selected.
fn stray(host: &Host, subject: &str, stream: &TcpStream) -> Option<Finding> {
    let filter = host.job.config.socket_interfaces.as_str();
    let own = stream.local_addr().ok()?.ip().to_canonical();
    if filter.is_empty() || own.is_loopback() {
        return None;
    }
    let chosen = interface::addresses(&Filter::parse(filter), filter).ok()?;
    (!chosen.contains(&own)).then(|| {
        let evidence = format!(
            "the connection leaves from {own}, but FERROCCL_SOCKET_IFNAME={filter} selects no \
             interface with this address: the route to this peer leads over another network"
        );
        Finding::advice(subject, evidence, "name the peer by its address on the selected network")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::path::Path;

    use crate::finding::Verdict;
    use crate::host::Job;

    #[test]
    fn an_address_that_refuses_does_not_hide_one_that_answers() {
        let host = Host::new(Path::new("/"), Job::default()).unwrap();
        let listener = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (open, closed) = (listener(), listener());
        let [open_at, closed_at] = [&open, &closed].map(|one| one.local_addr().unwrap());
        drop(closed);
        let reached = |addresses: &[SocketAddr]| {
            reach(&host, String::new(), addresses, Deadline::after(REACH_WITHIN)).verdict
        };
        assert_eq!(reached(&[closed_at, open_at]), Verdict::Ok);
        assert_eq!(reached(&[closed_at]), Verdict::Warning);
    }
}
