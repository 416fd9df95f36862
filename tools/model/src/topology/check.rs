//! Consistency checks of a topology.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric::Tier;
use super::placed;
use super::whole::Topology;
use ccl_core::topology::machine::{Kind, LinkSpeed, Machine};

/// Largest number of hosts of a topology: more than any cluster has.
const HOSTS_MAX: u64 = 16 << 20;
/// Largest number of parts of one machine.
const PARTS_MAX: usize = 4096;
/// Greatest depth of a machine's tree of parts.
const DEPTH_MAX: usize = 32;
/// Largest number of links between two parts of a machine.
const LINKS_MAX: u32 = 1024;
/// Largest number of cables between a switch and one NIC or switch below it.
const CABLES_MAX: u32 = 1024;
/// Largest number of switches of a group.
const SWITCHES_MAX: u32 = 1 << 14;
/// Least bandwidth of a link.
const BYTES_PER_S_MIN: f64 = 1.0;

/// Position of an error in a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The description as a whole.
    Whole,
    /// Kind of machine, by its number.
    Machine(usize),
    /// Part of a kind of machine, by the numbers of the machine and of the part.
    Part(usize, usize),
    /// Links of accelerators, by the numbers of the machine and of the link.
    GpuLink(usize, usize),
    /// Run of equal hosts ([`HostRun`](super::HostRun)), by its index.
    Hosts(usize),
    /// Position of a host in its provider's network, by the host's number.
    Placed(usize),
    /// Description of the network as a whole.
    Fabric,
    /// Tier of switches, by its number.
    Tier(usize),
}

/// Error for a contradiction in a topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Error {
    /// Position of the contradiction.
    pub at: At,
    /// Description of the problem, mostly with a remedy.
    pub problem: String,
}

fn wrong<T>(at: At, problem: impl Into<String>) -> Result<T, Error> {
    Err(Error { at, problem: problem.into() })
}

impl Topology {
    /// Checks that the topology is consistent.
    ///
    /// # Errors
    ///
    /// When there is a contradiction; the error describes the first one.
    pub fn check(&self) -> Result<(), Error> {
        plain(At::Whole, &self.name)?;
        let mut names = BTreeSet::new();
        for (number, machine) in self.machines.iter().enumerate() {
            if !names.insert(&machine.name) {
                let name = &machine.name;
                return wrong(
                    At::Machine(number),
                    format!("a second kind of machine is called \"{name}\"; rename one of them"),
                );
            }
            check_machine(number, machine)?;
        }
        self.check_hosts()?;
        self.check_fabric()?;
        self.check_placed()
    }

    fn check_hosts(&self) -> Result<(), Error> {
        let mut all = 0_u64;
        for (number, run) in self.hosts.iter().enumerate() {
            all += u64::from(run.count);
            if run.machine >= self.machines.len() {
                return wrong(
                    At::Hosts(number),
                    "the machine of these hosts is not described; add the machine",
                );
            }
            if run.count == 0 {
                return wrong(At::Hosts(number), "there are 0 of these hosts; leave them out");
            }
            if all > HOSTS_MAX {
                return wrong(
                    At::Hosts(number),
                    format!("{all} hosts are more than the limit of {HOSTS_MAX}; check the counts"),
                );
            }
        }
        if all == 0 {
            return wrong(At::Whole, "there is no host; add [[hosts]] with a machine and a count");
        }
        Ok(())
    }

    fn check_placed(&self) -> Result<(), Error> {
        let (told, hosts) = (self.placed.len(), self.hosts() as usize);
        if told != 0 && told != hosts {
            let problem = format!(
                "`placed` has the positions of {told} of {hosts} hosts in the network; give the \
                 positions of all hosts, or of none"
            );
            return wrong(At::Whole, problem);
        }
        let checked = placed::check(&self.placed, &self.fabric);
        checked.map_err(|(host, problem)| Error { at: At::Placed(host), problem })
    }

    fn check_fabric(&self) -> Result<(), Error> {
        let fabric = &self.fabric;
        if fabric.tiers.is_empty() {
            return Ok(());
        }
        let most = |machine: &Machine| machine.of(Kind::Nic).count();
        let most = self.machines.iter().map(most).max().unwrap_or(0);
        if fabric.nics == 0 || fabric.nics as usize > most {
            return wrong(
                At::Fabric,
                format!(
                    "{} NICs of each host are on the network; write a number from 1 to {most} (the \
                     most that a machine has), or add NICs to a machine",
                    fabric.nics
                ),
            );
        }
        for (number, tier) in fabric.tiers.iter().enumerate() {
            check_tier(number, tier)?;
            let idle = (0..fabric.below(number)).any(|below| fabric.uplinks(number, below) == 0);
            if idle {
                return wrong(
                    At::Tier(number),
                    "some NICs or switches below this tier have no cable to it",
                );
            }
        }
        let (room, hosts) = (fabric.hosts_in_group(fabric.tiers.len() - 1), self.hosts());
        if u64::from(hosts) > room {
            return wrong(
                At::Tier(fabric.tiers.len() - 1),
                format!(
                    "there are {hosts} hosts, but the network joins at most {room} (the product of \
                     all tiers' children); give a tier more children, or add a tier"
                ),
            );
        }
        Ok(())
    }
}

/// Checks that a name has no control characters, which could move a terminal's cursor.
fn plain(at: At, name: &str) -> Result<(), Error> {
    match name.chars().any(char::is_control) {
        true => wrong(at, format!("{name:?} has control characters; take another name")),
        false => Ok(()),
    }
}

fn check_tier(number: usize, tier: &Tier) -> Result<(), Error> {
    let at = At::Tier(number);
    for (value, name) in
        [(tier.children, "children"), (tier.switches, "switches"), (tier.cables, "cables")]
    {
        if value == 0 {
            return wrong(at, format!("{name} = 0 is too low: a tier has at least 1"));
        }
    }
    if tier.switches > SWITCHES_MAX || tier.cables > CABLES_MAX {
        let problem = "the tier has more than 16,384 switches in a group, or more than 1,024 \
                       cables between two ends; check the numbers";
        return wrong(at, problem);
    }
    plain(at, &tier.name)?;
    plain(at, &tier.group)?;
    check_speed(at, LinkSpeed { bytes_per_s: tier.bytes_per_s, latency_ns: tier.latency_ns })
}

fn check_speed(at: At, speed: LinkSpeed) -> Result<(), Error> {
    let LinkSpeed { bytes_per_s, latency_ns } = speed;
    if bytes_per_s.is_nan() || bytes_per_s < BYTES_PER_S_MIN {
        return wrong(
            at,
            format!(
                "a bandwidth of {bytes_per_s} B/s carries nothing; correct it, or leave out a \
                 link, part or tier that does not exist"
            ),
        );
    }
    if !latency_ns.is_finite() || latency_ns < 0.0 {
        return wrong(at, format!("a latency of {latency_ns} ns is impossible; write 0 or more"));
    }
    Ok(())
}

fn check_machine(number: usize, machine: &Machine) -> Result<(), Error> {
    if machine.parts.len() > PARTS_MAX {
        let problem = "the machine has more than 4,096 parts; check the description";
        return wrong(At::Machine(number), problem);
    }
    plain(At::Machine(number), &machine.name)?;
    check_speed(At::Machine(number), machine.smp)?;
    let mut names = BTreeSet::new();
    for (part, this) in machine.parts.iter().enumerate() {
        let at = At::Part(number, part);
        if !names.insert(&this.name) {
            return wrong(
                at,
                format!("a second part is called \"{}\"; rename one of them", this.name),
            );
        }
        plain(at, &this.name)?;
        check_speed(at, this.speed)?;
        this.network.map_or(Ok(()), |network| check_speed(at, network))?;
        check_plug(at, machine, part)?;
    }
    if machine.seats().is_empty() {
        let problem = "the machine has no NUMA node and no GPU, so no rank can run on it";
        return wrong(At::Machine(number), problem);
    }
    check_links(number, machine)
}

/// Checks the position of a part in the tree of its machine.
fn check_plug(at: At, machine: &Machine, part: usize) -> Result<(), Error> {
    let this = &machine.parts[part];
    let Some(above) = this.under else {
        return match this.kind {
            // The NUMA node of a host bridge may be unknown.
            Kind::Numa | Kind::NvSwitch | Kind::HostBridge => Ok(()),
            _ => wrong(
                at,
                format!("\"{}\" is under nothing; name the NUMA node or switch over it", this.name),
            ),
        };
    };
    let Some(above) = machine.parts.get(above) else {
        return wrong(at, format!("\"{}\" is under a part that does not exist", this.name));
    };
    if matches!(this.kind, Kind::Numa) || matches!(above.kind, Kind::NvSwitch) {
        return wrong(at, format!("\"{}\" cannot be under \"{}\"", this.name, above.name));
    }
    if machine.upwards(part).count() > DEPTH_MAX && machine.parts.len() > DEPTH_MAX {
        let what = "is under 32 parts or more, or under itself";
        return wrong(at, format!("\"{}\" {what}", this.name));
    }
    let steps = machine.upwards(part).count();
    let top = machine.upwards(part).last();
    // A path upwards contains a cycle if it has as many steps as there are parts, and does not end
    // at the top.
    if steps >= machine.parts.len() && top.is_some_and(|top| machine.parts[top].under.is_some()) {
        return wrong(
            at,
            format!("\"{}\" is under itself: the parts above it lead back to it", this.name),
        );
    }
    Ok(())
}

fn check_links(number: usize, machine: &Machine) -> Result<(), Error> {
    let mut pairs = BTreeMap::new();
    for (link, this) in machine.gpu_links.iter().enumerate() {
        let at = At::GpuLink(number, link);
        let [one, other] = this.ends.map(|end| machine.parts.get(end));
        let (Some(one), Some(other)) = (one, other) else {
            return wrong(at, "one end of the link is a part that does not exist");
        };
        let fits = |kind| matches!(kind, Kind::Gpu | Kind::NvSwitch);
        if this.ends[0] == this.ends[1] || !fits(one.kind) || !fits(other.kind) {
            return wrong(
                at,
                format!(
                    "\"{}\" and \"{}\" cannot be linked: a link joins two different parts, each a \
                     GPU or an NVSwitch",
                    one.name, other.name
                ),
            );
        }
        if this.links == 0 || this.links > LINKS_MAX {
            let links = this.links;
            return wrong(at, format!("{links} links are impossible: write 1 to 1,024"));
        }
        check_speed(at, this.speed)?;
        let mut ends = this.ends;
        ends.sort_unstable();
        if pairs.insert(ends, link).is_some() {
            return wrong(
                at,
                format!(
                    "\"{}\" and \"{}\" are joined twice; write one line with the sum of links",
                    one.name, other.name
                ),
            );
        }
    }
    Ok(())
}
