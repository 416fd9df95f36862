//! A fabric and its hosts as links, each in one direction.
//!
//! A link stores only its capacity; its ends are computed. A *group* of a tier is a set of switches
//! with all hosts below them (see [`ccl_model::topology::fabric`]). A *cable* of tier t goes from a
//! *child* (a host if t is 0, else a group of tier t - 1) up to a switch of the group of tier t
//! that contains the child. Each child of a tier has `n` cables, wired alike, so cable `c` of the
//! tier is cable `c mod n` of child `c / n`. Each cable is two links, up and down. Each rank also
//! has two links within its host, one out of the rank and one into the rank.

use ccl_model::topology::fabric::{Fabric, Wiring};

use crate::SimError;

/// A NIC of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port {
    /// Number of the host.
    pub host: u32,
    /// NIC of the host.
    pub nic: u32,
}

/// Number of a link, from 0 to [`Network::links`] - 1.
pub type Link = u32;

/// Description of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Tiers of switches between hosts.
    pub fabric: Fabric,
    /// Hosts in all.
    pub hosts: u32,
    /// Ranks of each host.
    pub ranks_per_host: u32,
    /// NICs over which the ranks of a host send: first those of its first rank, then those of its
    /// second rank, and so on. Each rank has the same number of NICs.
    pub rank_nics: Vec<u32>,
    /// Largest number of bytes per second that a rank sends to other ranks of its host, and that it
    /// receives from them.
    pub inner_bytes_per_s: f64,
    /// Latency from rank to rank within a host, in nanoseconds.
    pub inner_latency_ns: f64,
    /// Largest memory of a simulation, in MiB.
    pub memory_mib: u64,
    /// Largest work of one run, in millions of steps. One step is one message that passes one link,
    /// or one flow that is in one queue for the duration of one time step.
    pub work_millions: u64,
}

/// Cables of one tier of a network.
#[derive(Clone, Debug)]
struct Cables {
    /// First cable of the tier.
    base: u32,
    /// Children in all.
    children: u32,
    /// Cables of each child.
    per_child: u32,
    /// Ends of every cable of a child: the number of the NIC or switch below, and of the switch
    /// above.
    ends: Vec<(u32, u32)>,
    /// Per NIC or switch below: index of its first cable among the cables of a child. One more
    /// entry marks the end.
    from: Vec<u32>,
    /// Per switch above: its cables to a child, as indices among the cables of the child.
    to: Vec<Vec<u32>>,
}

impl Plan {
    /// Returns the plan of a network with far fewer links: each group has one switch, and each NIC
    /// and each group has one cable upward, with the total bandwidth of its cables in this plan. If
    /// no cable has failed, traffic that is sprayed over all cables takes the same time in both
    /// networks.
    #[must_use]
    pub fn collapsed(&self) -> Plan {
        let mut plan = self.clone();
        for (number, tier) in plan.fabric.tiers.iter_mut().enumerate() {
            let all = self.fabric.upward_bytes_per_s(number);
            let below = if number == 0 { f64::from(self.fabric.nics.max(1)) } else { 1.0 };
            tier.bytes_per_s = all / below;
            (tier.switches, tier.cables, tier.wiring) = (1, 1, Wiring::Mesh);
        }
        plan
    }

    /// Returns the bandwidth of a NIC to the network, all its cables together, in bytes per second.
    #[must_use]
    pub fn nic_bytes_per_s(&self) -> f64 {
        self.fabric.upward_bytes_per_s(0) / f64::from(self.fabric.nics.max(1))
    }
}

/// A fabric and its hosts as links; see the module's text.
#[derive(Clone, Debug)]
pub struct Network {
    plan: Plan,
    tiers: Vec<Cables>,
    /// First of the links within hosts. Each rank has two: one out of the rank, one into it.
    inner: u32,
    /// Per link: bytes per second; 0 if the link has failed.
    capacity: Vec<f64>,
    failed: u32,
    /// True if no link was made slower or faster; cut cables do not count.
    even: bool,
    /// True if each NIC and each switch is cabled to all switches above it ([`Wiring::Mesh`]).
    plain: bool,
    /// Per pair of NIC numbers, row by row: true if switches join them. Empty if the network is
    /// plain.
    joined: Vec<bool>,
}

/// Path of a flow: links, with the part of the flow that takes each, and the latency.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Path {
    /// Links, each with the part of the flow that takes it: 1 unless the flow is spread.
    pub links: Vec<(Link, f64)>,
    /// Latency from end to end without load, in seconds.
    pub latency_s: f64,
}

impl Path {
    /// Makes the path empty.
    pub fn clear(&mut self) {
        self.links.clear();
        self.latency_s = 0.0;
    }
}

/// A step of a path: the tier, the direction, and the switch that chooses the next cable.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Tier of the cables.
    pub tier: usize,
    /// True if upwards, false if downwards.
    pub up: bool,
    /// Switch that chooses: its group, and its number in the group. In the first step: the host and
    /// its NIC.
    pub at: (u32, u32),
}

/// Largest number of bytes that a simulation stores per link, for the estimate of memory.
const BYTES_PER_LINK: u64 = 64;
/// Largest number of NICs of a host; the limit bounds a table of all pairs of NICs.
const NICS_MAX: u32 = 1_024;

impl Network {
    /// Builds the network of a plan.
    ///
    /// # Errors
    ///
    /// If a number of the plan is invalid, or the network needs more memory than the plan allows.
    pub fn new(plan: Plan) -> Result<Network, SimError> {
        check(&plan)?;
        let (fabric, hosts) = (&plan.fabric, plan.hosts);
        let mut base = 0;
        let mut tiers = Vec::with_capacity(fabric.tiers.len());
        for tier in 0..fabric.tiers.len() {
            let children = if tier == 0 { hosts } else { fabric.groups(tier - 1, hosts) };
            let cables = Cables::new(fabric, tier, base, children);
            base += cables.children * cables.per_child;
            tiers.push(cables);
        }
        let inner = 2 * base;
        let ranks = hosts * plan.ranks_per_host;
        let mut capacity = Vec::with_capacity((inner + 2 * ranks) as usize);
        for (tier, cables) in fabric.tiers.iter().zip(&tiers) {
            let links = 2 * cables.children * cables.per_child;
            capacity.extend(std::iter::repeat_n(tier.bytes_per_s, links as usize));
        }
        capacity.extend(std::iter::repeat_n(plan.inner_bytes_per_s, 2 * ranks as usize));
        let plain = fabric.tiers.iter().all(|tier| tier.wiring == Wiring::Mesh);
        let joined = if plain { Vec::new() } else { joined(fabric) };
        Ok(Network { plan, tiers, inner, capacity, failed: 0, even: true, plain, joined })
    }

    /// Returns the plan that the network was built from.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.plan.hosts * self.plan.ranks_per_host
    }

    /// Returns the first of the ports by which a rank sends and receives.
    #[must_use]
    pub fn port(&self, rank: u32) -> Port {
        self.port_of(rank, 0)
    }

    /// Returns the number of NICs over which each rank stripes its messages.
    #[must_use]
    pub fn rails(&self) -> u32 {
        self.plan.rank_nics.len() as u32 / self.plan.ranks_per_host
    }

    fn port_of(&self, rank: u32, rail: u32) -> Port {
        let (each, rails) = (self.plan.ranks_per_host, self.rails());
        let at = rank % each * rails + rail % rails.max(1);
        let nic = self.plan.rank_nics.get(at as usize).copied().unwrap_or(0);
        Port { host: rank / each, nic }
    }

    /// Returns the ports of two ranks for traffic from one to the other over rail `rail`.
    ///
    /// If no switches join the two NICs, as with separate rails, the sender's host sends by its NIC
    /// on the receiver's rail, as NCCL does (PXN). The time that the data takes to that NIC, inside
    /// the host, is not counted.
    #[must_use]
    pub fn ports(&self, from: u32, to: u32, rail: u32) -> (Port, Port) {
        let (from, to) = (self.port_of(from, rail), self.port_of(to, rail));
        let at = from.nic as usize * self.plan.fabric.nics as usize + to.nic as usize;
        let meet = self.joined.get(at).copied().unwrap_or(true);
        (if meet { from } else { Port { nic: to.nic, ..from } }, to)
    }

    /// Returns the number of links.
    #[must_use]
    pub fn links(&self) -> u32 {
        self.capacity.len() as u32
    }

    /// Returns the capacity of every link, in bytes per second; 0 for those that have failed.
    #[must_use]
    pub fn capacity(&self) -> &[f64] {
        &self.capacity
    }

    /// Returns the number of tiers of switches.
    #[must_use]
    pub fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// Returns the number of children of a tier: hosts, or groups of the tier below.
    #[must_use]
    pub fn children(&self, tier: usize) -> u32 {
        self.tiers[tier].children
    }

    /// Returns the group of tier `tier - 1` that the host is in; the host itself if `tier` is 0.
    #[must_use]
    pub fn child(&self, tier: usize, host: u32) -> u32 {
        if tier == 0 { host } else { self.plan.fabric.group(tier - 1, host) }
    }

    /// Returns all links of a tier that go up, or down.
    pub fn tier_links(&self, tier: usize, up: bool) -> impl Iterator<Item = Link> + use<> {
        let cables = &self.tiers[tier];
        let first = 2 * cables.base + u32::from(!up);
        (first..first + 2 * cables.children * cables.per_child).step_by(2)
    }

    /// Returns the links of this tier that go up from one NIC or switch of a child, failed ones
    /// included.
    pub fn uplinks(
        &self,
        tier: usize,
        child: u32,
        below: u32,
    ) -> impl Iterator<Item = Link> + use<> {
        let cables = &self.tiers[tier];
        let first = cables.base + child * cables.per_child;
        let range = cables.from[below as usize]..cables.from[below as usize + 1];
        range.map(move |cable| 2 * (first + cable))
    }

    /// Returns the tier of a link, the child below the link, and the number of the link's cable
    /// among the cables of that child; `None` for a link inside a host.
    #[must_use]
    pub fn place(&self, link: Link) -> Option<(usize, u32, u32)> {
        let cable = link / 2;
        let tier = self.tiers.iter().rposition(|tier| tier.base <= cable)?;
        let cables = &self.tiers[tier];
        let (child, at) = ((cable - cables.base) / cables.per_child.max(1), cable - cables.base);
        (link < self.inner).then_some((tier, child, at % cables.per_child.max(1)))
    }

    /// Returns whether the link goes up.
    #[must_use]
    pub fn is_up(&self, link: Link) -> bool {
        link.is_multiple_of(2)
    }

    /// Returns the numbers of the ends of a link: the NIC or switch below, and the switch above.
    #[must_use]
    pub fn ends(&self, link: Link) -> Option<(u32, u32)> {
        self.place(link).map(|(tier, _, at)| self.tiers[tier].ends[at as usize])
    }

    /// Returns the link from a rank to other ranks of its host, and the link back.
    #[must_use]
    pub fn inner_links(&self, rank: u32) -> (Link, Link) {
        (self.inner + 2 * rank, self.inner + 2 * rank + 1)
    }

    /// Cuts the cable of a link, in both directions.
    pub fn fail(&mut self, link: Link) {
        let up = link & !1;
        if self.capacity[up as usize] > 0.0 {
            self.failed += 1;
        }
        self.capacity[up as usize] = 0.0;
        self.capacity[up as usize + 1] = 0.0;
    }

    /// Multiplies the capacity of a link by `factor`.
    pub fn scale(&mut self, link: Link, factor: f64) {
        self.capacity[link as usize] *= factor;
        self.even &= factor.to_bits() == 1f64.to_bits();
    }

    /// Returns whether no link was made slower or faster.
    #[must_use]
    pub fn is_even(&self) -> bool {
        self.even
    }

    /// Returns the link that has the same position in the first block of hosts as `link` has in its
    /// own block. A block is `hosts` consecutive hosts, and must consist of whole groups.
    #[must_use]
    pub fn moved_back(&self, link: Link, hosts: u32) -> Link {
        if link >= self.inner {
            return self.inner + (link - self.inner) % (2 * hosts * self.plan.ranks_per_host);
        }
        let Some((tier, child, at)) = self.place(link) else { return link };
        let children = if tier == 0 { hosts } else { self.plan.fabric.groups(tier - 1, hosts) };
        let cables = &self.tiers[tier];
        2 * (cables.base + child % children.max(1) * cables.per_child + at) + (link & 1)
    }

    /// Returns the number of cables that have failed.
    #[must_use]
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Returns whether a link works.
    #[must_use]
    pub fn works(&self, link: Link) -> bool {
        self.capacity[link as usize] > 0.0
    }

    /// Sets `path` to the path from rank to rank within a host.
    pub fn inner_path(&self, from: u32, to: u32, path: &mut Path) {
        path.clear();
        path.links.push((self.inner_links(from).0, 1.0));
        path.links.push((self.inner_links(to).1, 1.0));
        path.latency_s = self.plan.inner_latency_ns * 1e-9;
    }

    /// Returns the lowest tier where a path from one port to another can turn from up to down.
    ///
    /// # Errors
    ///
    /// If no path joins the ports.
    pub fn meeting(&self, from: Port, to: Port) -> Result<usize, SimError> {
        let no_path = |reason| SimError::NoPath {
            from_host: from.host,
            from_nic: from.nic,
            to_host: to.host,
            to_nic: to.nic,
            reason,
        };
        let unjoined = "no tier of switches joins both hosts; add a tier, or use fewer hosts";
        let first =
            self.plan.fabric.meeting(from.host, to.host).ok_or_else(|| no_path(unjoined))?;
        if self.plain && self.failed == 0 {
            return Ok(first);
        }
        let meets = |tier: &usize| self.leads_up(0, from.host, from.nic, to, *tier);
        let cut = "the cables between them have failed, or their rails never meet; repair \
                   cables, or send by NICs of one rail";
        (first..self.tiers.len()).find(meets).ok_or_else(|| no_path(cut))
    }

    /// Fills `found` with the links from `step` that lead to the port `to`, on paths that turn at
    /// tier `turn`.
    pub fn choices(&self, step: &Step, to: Port, turn: usize, found: &mut Vec<Link>) {
        found.clear();
        let cables = &self.tiers[step.tier];
        let (child, number) = step.at;
        let always = self.plain && self.failed == 0;
        if step.up {
            let first = cables.base + child * cables.per_child;
            for cable in cables.from[number as usize]..cables.from[number as usize + 1] {
                let link = 2 * (first + cable);
                let above = cables.ends[cable as usize].1;
                let group = self.child(step.tier + 1, child_host(self, step.tier, child));
                if always || (self.works(link) && self.leads(step.tier, group, above, to, turn)) {
                    found.push(link);
                }
            }
            return;
        }
        let first = cables.base + self.child(step.tier, to.host) * cables.per_child;
        for cable in &cables.to[number as usize] {
            let (link, below) = (2 * (first + cable) + 1, cables.ends[*cable as usize].0);
            let on = if step.tier == 0 {
                below == to.nic && self.works(link)
            } else {
                always || (self.works(link) && self.leads_down(step.tier - 1, below, to))
            };
            if on {
                found.push(link);
            }
        }
    }

    /// Returns the number of the switch or NIC at the far end of a link: the switch above if the
    /// link goes up, the switch or NIC below if the link goes down.
    #[must_use]
    pub fn far_end(&self, link: Link) -> u32 {
        let (below, above) = self.ends(link).unwrap_or_default();
        if self.is_up(link) { above } else { below }
    }

    /// Returns whether a switch of a tier leads to a port, on a path that goes up to tier `turn`
    /// first.
    fn leads(&self, tier: usize, group: u32, switch: u32, to: Port, turn: usize) -> bool {
        if tier == turn {
            return self.leads_down(tier, switch, to);
        }
        self.leads_up(tier + 1, group, switch, to, turn)
    }

    fn leads_up(&self, tier: usize, child: u32, number: u32, to: Port, turn: usize) -> bool {
        let cables = &self.tiers[tier];
        let first = cables.base + child * cables.per_child;
        let group = self.child(tier + 1, child_host(self, tier, child));
        let range = cables.from[number as usize]..cables.from[number as usize + 1];
        range.into_iter().any(|cable| {
            let above = cables.ends[cable as usize].1;
            self.works(2 * (first + cable)) && self.leads(tier, group, above, to, turn)
        })
    }

    fn leads_down(&self, tier: usize, switch: u32, to: Port) -> bool {
        let cables = &self.tiers[tier];
        let first = cables.base + self.child(tier, to.host) * cables.per_child;
        cables.to[switch as usize].iter().any(|cable| {
            let below = cables.ends[*cable as usize].0;
            let on = if tier == 0 { below == to.nic } else { self.leads_down(tier - 1, below, to) };
            on && self.works(2 * (first + cable) + 1)
        })
    }
}

/// Returns, for every pair of NIC numbers, whether both NICs lead up to a common switch if no
/// cable has failed.
fn joined(fabric: &Fabric) -> Vec<bool> {
    let climb = |nic: u32| {
        let mut here = vec![nic];
        for (number, tier) in fabric.tiers.iter().enumerate() {
            let mut reached = vec![false; tier.switches as usize];
            for below in here {
                fabric.above(number, below).for_each(|above| reached[above as usize] = true);
            }
            here = (0..tier.switches).filter(|switch| reached[*switch as usize]).collect();
        }
        here
    };
    let tops: Vec<Vec<u32>> = (0..fabric.nics).map(climb).collect();
    let meet = |one: &Vec<u32>, other: &Vec<u32>| {
        one.iter().any(|switch| other.binary_search(switch).is_ok())
    };
    let pairs = tops.iter().flat_map(|one| tops.iter().map(move |other| (one, other)));
    pairs.map(|(one, other)| meet(one, other)).collect()
}

/// Returns the first host of a child.
fn child_host(network: &Network, tier: usize, child: u32) -> u32 {
    let hosts = if tier == 0 { 1 } else { network.plan.fabric.hosts_in_group(tier - 1) };
    u32::try_from(u64::from(child) * hosts).unwrap_or(u32::MAX)
}

impl Cables {
    fn new(fabric: &Fabric, tier: usize, base: u32, children: u32) -> Cables {
        let numbers = fabric.below(tier);
        let (switches, cables) =
            fabric.tiers.get(tier).map_or((0, 0), |tier| (tier.switches, tier.cables));
        let (mut ends, mut from) = (Vec::new(), vec![0]);
        let mut to = vec![Vec::new(); switches as usize];
        for below in 0..numbers {
            for above in fabric.above(tier, below) {
                for _ in 0..cables {
                    to[above as usize].push(ends.len() as u32);
                    ends.push((below, above));
                }
            }
            from.push(ends.len() as u32);
        }
        Cables { base, children, per_child: ends.len() as u32, ends, from, to }
    }
}

fn check(plan: &Plan) -> Result<(), SimError> {
    let positive = |what: &str, value: f64, unit: &str| {
        let fine = value.is_finite() && value > 0.0;
        let remedy = format!("give a number of {unit} above 0");
        if fine { Ok(()) } else { Err(SimError::number(what, value, remedy)) }
    };
    let some = |what: &str, value: u32| {
        let error = || SimError::number(what, value, "give at least 1");
        if value > 0 { Ok(()) } else { Err(error()) }
    };
    some("the number of hosts", plan.hosts)?;
    some("the number of ranks of a host", plan.ranks_per_host)?;
    some("the number of NICs of a host", plan.fabric.nics)?;
    if plan.fabric.nics > NICS_MAX {
        let remedy = format!("give {NICS_MAX} at most");
        return Err(SimError::number("the number of NICs of a host", plan.fabric.nics, remedy));
    }
    let nics = plan.rank_nics.len();
    let even = nics > 0 && nics.is_multiple_of(plan.ranks_per_host as usize);
    if !even || plan.rank_nics.iter().any(|nic| *nic >= plan.fabric.nics) {
        let remedy = "give each rank of a host equally many of the host's NICs";
        return Err(SimError::number("the number of NICs that ranks send by", nics, remedy));
    }
    positive("the bandwidth within a host", plan.inner_bytes_per_s, "bytes per second")?;
    let mut links = 2 * u64::from(plan.hosts) * u64::from(plan.ranks_per_host);
    for (number, tier) in plan.fabric.tiers.iter().enumerate() {
        let what = |of: &str| format!("the number of {of} of tier {number} ({})", tier.name);
        some(&what("switches"), tier.switches)?;
        some(&what("children"), tier.children)?;
        some(&what("cables"), tier.cables)?;
        let what = format!("the bandwidth of tier {number} ({})", tier.name);
        positive(&what, tier.bytes_per_s, "bytes per second")?;
        if !tier.latency_ns.is_finite() || tier.latency_ns < 0.0 {
            let what = format!("the latency of tier {number} ({})", tier.name);
            return Err(SimError::number(what, tier.latency_ns, "give 0 ns or more"));
        }
        let below = u64::from(plan.fabric.below(number)) * u64::from(tier.cables);
        let per_child = match tier.wiring {
            Wiring::Mesh => below.saturating_mul(u64::from(tier.switches)),
            Wiring::Rails => below.max(u64::from(tier.switches) * u64::from(tier.cables)),
        };
        let children = match number.checked_sub(1) {
            None => plan.hosts,
            Some(lower) => plan.fabric.groups(lower, plan.hosts),
        };
        links = links.saturating_add(per_child.saturating_mul(2 * u64::from(children)));
    }
    let needed_mib = links.saturating_mul(BYTES_PER_LINK) >> 20;
    if needed_mib > plan.memory_mib || links > u64::from(u32::MAX / 2) {
        let what = format!("a fabric of {links} links");
        return Err(SimError::Memory { what, needed_mib, limit_mib: plan.memory_mib });
    }
    Ok(())
}
