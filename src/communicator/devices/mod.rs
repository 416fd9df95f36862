//! Choice of the transports that connect the ranks, and of their devices.

pub(crate) mod affinity;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ccl_bootstrap::Roster;
use ccl_core::config::Config;
use ccl_core::registry::{Reach, Setup, TransportKind};
use ccl_core::topology::Hosts;
use ccl_core::transport::{Device, DeviceInfo, LinkLayer, Locality, Transport};
use ccl_core::types::Rank;
use ccl_transport_multirail::{RAILS_MAX, RailsDevice};

use super::error::{Error, SetupError};
use super::wait::has_core;
use crate::transports::{self, Choice};
use affinity::DeviceReports;

/// Time after which a rank's other devices take over from a device whose port is down.
const LINK_WITHIN: Duration = Duration::from_millis(500);

/// A transport between hosts that needs adapters, and the adapters that the ranks on this host can
/// take.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) kind: &'static TransportKind,
    pub(super) devices: Vec<DeviceInfo>,
    /// The reason to report if `devices` is empty.
    pub(super) lacks: String,
    /// The reports of all ranks, once they are exchanged.
    pub(super) survey: DeviceReports,
}

/// The devices of one rank. Both ranks of a pair choose alike, from the configuration and the
/// roster, which are the same on all ranks.
#[derive(Debug)]
pub(super) struct Devices {
    /// Groups of ranks that share memory; algorithms treat each group as a host.
    pub(super) hosts: Hosts,
    /// Device for shared memory; none if no two ranks share memory anywhere.
    pub(super) shared: Option<Arc<dyn Device>>,
    /// Device between hosts, and its transport; none if all ranks share memory.
    pub(super) network: Option<(&'static TransportKind, Arc<dyn Device>)>,
    /// Ranks on this rank's host, this rank included, whether or not they share memory.
    pub(super) near: Vec<Rank>,
    /// The RDMA devices that this rank takes, each described for people.
    pub(super) rdma: Vec<String>,
    /// The least budget that any rank has, as a multiple of the budget of one network device, which
    /// `FERROCCL_BUDGET_BYTES` sets: below 1 if ranks share a device, above 1 if every rank has
    /// several devices. The same on all ranks.
    pub(super) budget_share: f64,
}

impl Devices {
    /// Opens the devices of a rank of the roster. `candidate` belongs to the transport between
    /// hosts; none if that transport needs no adapters.
    pub(super) fn open(
        config: &Config,
        roster: &Roster,
        rank: Rank,
        candidate: Option<&Candidate>,
    ) -> Result<Devices, Error> {
        let ranks = roster.members.len() as Rank;
        let choice = Choice::named(&config.transport)?;
        if choice.network.is_none() && roster.hosts() > 1 {
            let networks = transports::of_reach(Reach::Network);
            let networks = Vec::from_iter(networks.iter().map(|kind| kind.name)).join(" or ");
            let (transport, hosts) = (config.transport.clone(), roster.hosts());
            return Err(SetupError::OneHostOnly { transport, ranks, hosts, networks }.into());
        }
        let own = |rank: Rank| roster.members.get(rank as usize).map(|member| member.host);
        let hosts = match choice.host {
            None => Hosts::of(&Vec::from_iter(0..ranks)),
            Some(_) => Hosts::of(&Vec::from_iter((0..ranks).map(own))),
        };
        // All ranks decide alike whether to open a device for shared memory, even a rank that is
        // alone on its host: connecting such devices takes an exchange among all ranks.
        let sharing = hosts.count() < ranks;
        let near: Vec<Rank> = (0..ranks).filter(|peer| own(*peer) == own(rank)).collect();
        let setup = Setup { has_core: has_core(near.len()), ..demands(config) };
        let shared = match choice.host.filter(|_| sharing) {
            Some(kind) => Some(open(&*make(kind, config, &setup)?, 0)?),
            None => None,
        };
        let (mut described, mut budget_share) = (Vec::new(), 1.0);
        let network = match (choice.network.filter(|_| hosts.count() > 1), candidate) {
            (None, _) => None,
            (Some(kind), Some(candidate)) => {
                let index = near.iter().position(|peer| *peer == rank).unwrap_or(0);
                let sharing = Sharing::new(config, roster, &candidate.survey, (rank, index))?;
                let devices = sharing.taken.iter().filter_map(|at| candidate.devices.get(*at));
                described = devices.map(|device| device.description.clone()).collect();
                budget_share = sharing.budget_share;
                Some((kind, rails(config, &setup, &sharing, candidate)?))
            }
            (Some(kind), None) => Some((kind, open(&*make(kind, config, &setup)?, 0)?)),
        };
        Ok(Devices { hosts, shared, network, near, rdma: described, budget_share })
    }
}

/// Finds the adapters of this host for each transport that the configuration allows, in order of
/// preference. `auto` leaves out software devices unless they are named, because such devices are
/// no faster than a transport that needs no adapter.
pub(super) fn candidates(config: &Config, hosts: usize) -> Result<Vec<Candidate>, Error> {
    let is_auto = config.transport == transports::AUTO;
    let kinds = match is_auto {
        true if hosts > 1 => transports::of_reach(Reach::Network),
        true => Vec::new(),
        false => Vec::from_iter(Choice::named(&config.transport)?.network),
    };
    let kinds = kinds.into_iter().filter(|kind| kind.adapters);
    kinds.map(|kind| candidate(kind, config, is_auto)).collect()
}

fn candidate(
    kind: &'static TransportKind,
    config: &Config,
    is_auto: bool,
) -> Result<Candidate, Error> {
    let of = |devices, lacks| Candidate { kind, devices, lacks, survey: DeviceReports::default() };
    let transport = match make(kind, config, &demands(config)) {
        Ok(transport) => transport,
        Err(error) if is_auto => return Ok(of(Vec::new(), error.to_string())),
        Err(error) => return Err(error),
    };
    let all = transport.devices();
    if !is_auto {
        return if all.is_empty() { Err(none(&*transport)) } else { Ok(of(all, String::new())) };
    }
    let is_named = (kind.names_devices)(config);
    let (mut devices, soft): (Vec<DeviceInfo>, Vec<DeviceInfo>) =
        all.into_iter().partition(|device| is_named || device.pci_path.is_some());
    if !is_named {
        keep_one_layer(&mut devices);
    }
    let lacks = match soft.first() {
        None => transport.why_none(),
        Some(DeviceInfo { id, .. }) => {
            format!(
                "{} is a software device, which auto takes only if the configuration names it",
                id.0
            )
        }
    };
    Ok(of(devices, lacks))
}

/// Keeps only InfiniBand devices, if there are any. Rails pair the devices of two ranks in order,
/// without regard to link layers, and hosts with devices of both layers mostly use the Ethernet
/// devices for storage.
fn keep_one_layer(devices: &mut Vec<DeviceInfo>) {
    let is_infiniband = |device: &DeviceInfo| device.fabric.layer == Some(LinkLayer::InfiniBand);
    if !devices.iter().any(is_infiniband) {
        return;
    }
    devices.retain(|device| {
        let stays = is_infiniband(device);
        if !stays {
            tracing::info!(
                device = device.id.0,
                "auto leaves out this device, because others are InfiniBand; name the device to \
                 use it"
            );
        }
        stays
    });
}

/// Returns the transports that `auto` chooses for ranks on several hosts, as a name such as
/// `shm+verbs`, and the reason; none if the configuration names a transport or there is no
/// candidate.
pub(super) fn settle(config: &Config, candidates: &[Candidate]) -> Option<(&'static str, String)> {
    let auto = Choice::named(transports::AUTO).ok()?;
    if config.transport != transports::AUTO || candidates.is_empty() {
        return None;
    }
    let mut reasons = Vec::new();
    for Candidate { kind, survey, .. } in candidates {
        match survey.lacks() {
            None => {
                let name = Choice { network: Some(kind), ..auto }.name();
                let because =
                    format!("{} between hosts: all ranks have adapters for it", kind.name);
                return Some((name, because));
            }
            Some(why) => reasons.push(format!("not {}, since {why}", kind.name)),
        }
    }
    let network = auto.network.map_or("nothing", |kind| kind.name);
    Some((auto.name(), format!("{network} between hosts; {}", reasons.join("; "))))
}

/// Returns the longest time for which a rank may stay silent towards the others. The time is long,
/// because other parts act much sooner: the control plane reports dead ranks, and a call without
/// progress ends with a verdict on the rank that is behind.
pub(super) fn silent_within(config: &Config) -> Duration {
    config.timeout.saturating_mul(100)
}

/// Returns the demands ([`Setup`]) with which devices are opened if every rank takes one device;
/// [`Devices::open`] sets `has_core`. If a rank takes several devices, [`rails`] changes these
/// demands.
fn demands(config: &Config) -> Setup {
    Setup::new(config.dead_after, silent_within(config))
}

/// Makes a transport.
fn make(kind: &TransportKind, config: &Config, setup: &Setup) -> Result<Box<dyn Transport>, Error> {
    let transport = (kind.make)(config, setup)?;
    if config.tls && kind.reach == Reach::Network && !kind.encrypts {
        return Err(SetupError::CannotEncrypt { transport: kind.name }.into());
    }
    Ok(transport)
}

/// Returns the largest number of devices that a rank may take.
fn rails_max(config: &Config) -> Result<usize, Error> {
    let most = usize::from(config.ib_rails);
    if !(1..=RAILS_MAX).contains(&most) {
        return Err(SetupError::Rails { rails: most, most: RAILS_MAX }.into());
    }
    Ok(most)
}

/// Result, for one rank, of assigning each host's adapters to the host's ranks.
#[derive(Clone, Debug, PartialEq)]
struct Sharing {
    /// Devices of this rank's host that the rank takes.
    taken: Vec<usize>,
    /// True if every rank of the communicator takes at most one device.
    single: bool,
    /// The least budget that any rank has, as a multiple of one device's budget.
    budget_share: f64,
}

impl Sharing {
    /// Returns the result for `rank`, which is number `index` on its host.
    fn new(
        config: &Config,
        roster: &Roster,
        survey: &DeviceReports,
        (rank, index): (Rank, usize),
    ) -> Result<Sharing, Error> {
        let most = rails_max(config)?;
        let mut by_host: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        for (member, nearest) in roster.members.iter().zip(survey.nearest()) {
            by_host.entry(member.host).or_default().push(nearest);
        }
        let own = roster.members.get(rank as usize).and_then(|own| by_host.get(&own.host));
        let taken = share(own.map_or(&[], |own| own), index, most);
        let hosts = Vec::from_iter(by_host.values().map(|host| share_all(host, most)));
        let single = hosts.iter().flatten().all(|taken| taken.len() <= 1);
        let shares = hosts.iter().flat_map(|host| budget_shares(host));
        let least = shares.fold(f64::INFINITY, f64::min);
        let budget_share = if least.is_finite() { least } else { 1.0 };
        Ok(Sharing { taken, single, budget_share })
    }
}

/// Opens the adapters that a rank takes. If every rank of the communicator takes a single adapter,
/// failover is impossible, so messages are not tracked for failover.
fn rails(
    config: &Config,
    setup: &Setup,
    Sharing { taken, single, .. }: &Sharing,
    Candidate { kind, devices: found, .. }: &Candidate,
) -> Result<Arc<dyn Device>, Error> {
    // With several rails, the others take over, so a port that is down gets less time to recover.
    let link_within = if taken.len() > 1 { LINK_WITHIN } else { setup.link_within };
    let setup = Setup { acknowledged: !*single, link_within, ..*setup };
    let transport = (kind.make)(config, &setup)?;
    let named = taken.iter().filter_map(|at| found.get(*at));
    let open = |device: &DeviceInfo| Ok((device.id.0.clone(), transport.open(&device.id)?));
    let mut devices: Vec<(String, Arc<dyn Device>)> =
        named.map(open).collect::<Result<_, Error>>()?;
    tracing::debug!(devices = ?devices.iter().map(|(name, _)| name).collect::<Vec<_>>());
    match devices.pop() {
        Some((_, device)) if *single => Ok(device),
        last => {
            devices.extend(last);
            Ok(Arc::new(RailsDevice::new(devices)?))
        }
    }
}

/// Returns the devices that are nearest to `locality`, a bit for each; devices after the 64th are
/// left out.
pub(super) fn nearest(locality: &Locality, devices: &[DeviceInfo]) -> u64 {
    let near = |device: &DeviceInfo| Locality {
        numa_node: device.numa_node,
        pci_path: device.pci_path.clone(),
    };
    nearest_of(locality, &devices.iter().map(near).collect::<Vec<_>>())
}

fn nearest_of(locality: &Locality, devices: &[Locality]) -> u64 {
    let devices = &devices[..devices.len().min(u64::BITS as usize)];
    let distances = Vec::from_iter(devices.iter().map(|device| locality.distance(device)));
    let least = distances.iter().min();
    let bits = distances.iter().enumerate().filter(|(_, distance)| Some(*distance) == least);
    bits.fold(0, |bits, (at, _)| bits | 1 << at)
}

/// Returns the devices that rank `index` of a host takes. `nearest` holds the nearest devices of
/// each rank of the host, as bit sets. Ranks with the same nearest devices get equal numbers of
/// them, at most `most`, and at least one.
fn share(nearest: &[u64], index: usize, most: usize) -> Vec<usize> {
    let Some(own) = nearest.get(index) else { return Vec::new() };
    let candidates: Vec<usize> = (0..u64::BITS as usize).filter(|at| own >> at & 1 == 1).collect();
    let turn = nearest[..index].iter().filter(|other| *other == own).count();
    let sharing = nearest.iter().filter(|other| *other == own).count();
    let count = (candidates.len() / sharing.max(1)).clamp(1, most);
    let taken = turn * count..(turn + 1) * count;
    taken.filter_map(|at| candidates.get(at % candidates.len().max(1)).copied()).collect()
}

/// Returns for each rank the sum of its shares of device budgets; ranks that take the same device
/// share its budget.
fn budget_shares(taken: &[Vec<usize>]) -> Vec<f64> {
    let sharers = |device: &usize| taken.iter().filter(|own| own.contains(device)).count();
    let share = |own: &Vec<usize>| own.iter().map(|device| 1.0 / sharers(device) as f64).sum();
    taken.iter().map(share).collect()
}

/// Returns the devices that each rank of a host takes, as [`share`] does for one rank.
fn share_all(nearest: &[u64], most: usize) -> Vec<Vec<usize>> {
    (0..nearest.len()).map(|index| share(nearest, index, most)).collect()
}

/// Opens one of a transport's devices; numbers beyond the last device begin again at the first.
fn open(transport: &dyn Transport, number: usize) -> Result<Arc<dyn Device>, Error> {
    let devices = transport.devices();
    let Some(device) = devices.get(number % devices.len().max(1)) else {
        return Err(none(transport));
    };
    Ok(transport.open(&device.id)?)
}

fn none(transport: &dyn Transport) -> Error {
    let (transport, reason) = (transport.name(), transport.why_none());
    SetupError::NoDevice { transport, reason }.into()
}

#[cfg(test)]
mod tests {
    use ccl_core::registry::{Make, NO_TUNABLES};
    use ccl_core::transport::{DeviceId, Fabric, TransportError};

    use super::affinity::DeviceReport;
    use super::*;

    /// Returns a candidate whose transport needs adapters, with these reports of all ranks.
    fn surveyed(ranks: Vec<DeviceReport>) -> [Candidate; 1] {
        let kinds = transports::of_reach(Reach::Network);
        let kind = kinds.into_iter().find(|kind| kind.adapters).unwrap();
        let (devices, lacks, survey) = (Vec::new(), String::new(), DeviceReports { ranks });
        [Candidate { kind, devices, lacks, survey }]
    }

    #[test]
    fn auto_takes_the_best_common_transport_and_says_why() {
        let auto = Config::default();
        let has = |is_infiniband| DeviceReport::Has { nearest: 1, is_infiniband };
        let lacks = || DeviceReport::Lacks("there is no library".to_owned());
        let fallback = Choice::of(&auto).name();
        let best = surveyed(Vec::new())[0].kind.name;
        let settle = |ranks| settle(&auto, &surveyed(ranks)).unwrap();
        let (name, why) = settle(vec![has(false), has(false)]);
        assert!(
            name.ends_with(best)
                && why == format!("{best} between hosts: all ranks have adapters for it"),
            "{name}: {why}"
        );
        let (name, why) = settle(vec![has(true), lacks(), has(true)]);
        assert!(
            name == fallback && why.contains("rank 1 has no") && why.contains("library"),
            "{why}"
        );
        let (name, why) = settle(vec![has(true), has(false)]);
        assert!(name == fallback && why.contains("InfiniBand"), "{why}");
        // A kind that all ranks have is taken before TCP, even if a better kind is not.
        let kinds = transports::of_reach(Reach::Network).into_iter().filter(|kind| kind.adapters);
        let all = Vec::from_iter(kinds.map(|kind| {
            let other = if kind.name == best { lacks() } else { has(false) };
            let survey = DeviceReports { ranks: vec![has(false), other] };
            Candidate { kind, devices: Vec::new(), lacks: String::new(), survey }
        }));
        let (name, why) = super::settle(&auto, &all).unwrap();
        assert!(all.len() > 1 && name.ends_with(all[1].kind.name), "{name}: {why}");
        assert_eq!(super::settle(&auto, &[]), None, "on one host there is nothing to choose");
        let mut asked = Config::default();
        asked.transport = fallback.to_owned();
        assert_eq!(super::settle(&asked, &surveyed(vec![has(true)])), None);
    }

    /// A transport with these adapters.
    #[derive(Debug)]
    struct Adapters(&'static [(&'static str, LinkLayer)]);

    impl Transport for Adapters {
        fn name(&self) -> &'static str {
            "adapters"
        }

        fn devices(&self) -> Vec<DeviceInfo> {
            let auto = Config::default();
            let any = make(Choice::of(&auto).network.unwrap(), &auto, &demands(&auto)).unwrap();
            let any = any.devices().remove(0);
            let device = |(name, layer): &(&str, LinkLayer)| DeviceInfo {
                id: DeviceId((*name).to_owned()),
                fabric: Fabric { layer: Some(*layer), ..Fabric::default() },
                pci_path: Some(format!("/sys/devices/{name}")),
                ..any.clone()
            };
            self.0.iter().map(device).collect()
        }

        fn open(&self, _: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
            Err(TransportError::Unsupported { what: "open devices", reason: "a test opens none" })
        }
    }

    /// Returns the names of `make`'s adapters that `auto` keeps.
    fn left(make: Make, names_devices: fn(&Config) -> bool) -> Vec<String> {
        let kind = Box::leak(Box::new(TransportKind {
            name: "adapters",
            id: u8::MAX,
            reach: Reach::Network,
            preference: 0,
            adapters: true,
            stripes: false,
            encrypts: false,
            tunables: NO_TUNABLES,
            more_flows: None,
            rank_environment: &[],
            names_devices,
            make,
            fewer_locations: |_| None,
        }));
        let devices = candidate(kind, &Config::default(), true).unwrap().devices;
        devices.into_iter().map(|device| device.id.0).collect()
    }

    #[test]
    fn auto_takes_devices_of_one_link_layer_unless_they_are_named() {
        use LinkLayer::{Ethernet, InfiniBand};
        let mixed: Make = |_, _| {
            let all = &[("a", InfiniBand), ("b", Ethernet), ("c", InfiniBand)];
            Ok(Box::new(Adapters(all)))
        };
        assert_eq!(left(mixed, |_| false), ["a", "c"]);
        assert_eq!(left(mixed, |_| true), ["a", "b", "c"]);
        let ethernet: Make = |_, _| Ok(Box::new(Adapters(&[("a", Ethernet), ("b", Ethernet)])));
        assert_eq!(left(ethernet, |_| false), ["a", "b"]);
    }

    /// Returns the devices that each rank takes.
    fn taken(devices: &[Locality], ranks: &[Locality], most: usize) -> Vec<Vec<usize>> {
        let nearest = Vec::from_iter(ranks.iter().map(|rank| nearest_of(rank, devices)));
        share_all(&nearest, most)
    }

    fn on(nodes: &[Option<u32>]) -> Vec<Locality> {
        nodes.iter().map(|node| Locality { numa_node: *node, pci_path: None }).collect()
    }

    /// Returns the locality of a port of a switch. Each of two NUMA nodes has four switches, and
    /// each switch has a root complex of its own.
    fn at(switch: u32, port: u32) -> Locality {
        let bus = 0x10 * (switch + 1);
        let up = format!("pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{:02x}:00.0", bus + 1);
        let down = format!("0000:{:02x}:{port:02x}.0/0000:{:02x}:00.0", bus + 2, bus + 3 + port);
        let pci_path = Some(format!("/sys/devices/{up}/{down}"));
        Locality { numa_node: Some(switch / 4), pci_path }
    }

    #[test]
    fn ranks_take_equal_numbers_of_their_nearest_devices() {
        let taken = |devices: &[Option<u32>], ranks: &[Option<u32>], most| {
            taken(&on(devices), &on(ranks), most)
        };
        let anywhere = [None; 4];
        assert_eq!(taken(&anywhere, &[Some(1)], 4), [[0, 1, 2, 3]]);
        assert_eq!(taken(&anywhere, &[None], 2), [[0, 1]]);
        assert_eq!(taken(&anywhere, &[None; 2], 4), [[0, 1], [2, 3]]);
        assert_eq!(taken(&anywhere, &[None; 3], 4), [[0], [1], [2]]);
        assert_eq!(taken(&anywhere[..1], &[None; 3], 4), [[0], [0], [0]]);
        assert_eq!(taken(&anywhere, &[None; 8], 4)[2..6], [[2], [3], [0], [1]]);
        let devices = [0, 0, 1, 1].map(Some);
        assert_eq!(taken(&devices, &[Some(1)], 4), [[2, 3]]);
        assert_eq!(taken(&devices, &[Some(1); 2], 4), [[2], [3]]);
        for ranks in [[0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1]] {
            let mut all = taken(&devices, &ranks.map(Some), 4).concat();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3], "each device has one rank: {ranks:?}");
        }
        // Rank 0 is near to no device, rank 1 may run anywhere, and rank 2 is near to two devices.
        assert_eq!(
            taken(&devices, &[Some(7), None, Some(0)], 4),
            [vec![0, 1], vec![2, 3], vec![0, 1]]
        );
    }

    #[test]
    fn ranks_share_the_budget_of_a_device() {
        let shares = |devices: usize, ranks: usize| {
            let nearest = nearest_of(&Locality::default(), &on(&vec![None; devices]));
            budget_shares(&share_all(&vec![nearest; ranks], 4))
        };
        assert_eq!(shares(1, 1), [1.0]);
        assert_eq!(shares(4, 1), [4.0]);
        assert_eq!(shares(1, 4), [0.25; 4]);
        assert_eq!(shares(2, 4), [0.5; 4]);
        assert_eq!(shares(2, 3), [0.5, 1.0, 0.5], "ranks 0 and 2 share a device");
    }

    #[test]
    fn each_accelerator_has_the_devices_that_are_nearest_to_it() {
        let pairs = Vec::from_iter((0..8).map(|switch| at(switch, 0)));
        let accelerators = Vec::from_iter((0..8).map(|switch| at(switch, 1)));
        let own: Vec<Vec<usize>> = (0..8).map(|index| vec![index]).collect();
        assert_eq!(taken(&pairs, &accelerators, 4), own);
        let (mut backwards, mut others) = (accelerators.clone(), own.clone());
        backwards.reverse();
        others.reverse();
        assert_eq!(taken(&pairs, &backwards, 4), others);
        // Two devices and two accelerators at each switch.
        let devices = Vec::from_iter((0..4).flat_map(|switch| [at(switch, 0), at(switch, 1)]));
        let two = Vec::from_iter((0..4).flat_map(|switch| [at(switch, 2), at(switch, 3)]));
        assert_eq!(taken(&devices, &two, 4), own);
        // Four devices for each accelerator, as on an AWS p5.
        let devices = (0..8).flat_map(|switch| (0..4).map(move |port| at(switch, port)));
        let devices = Vec::from_iter(devices);
        let four = Vec::from_iter((0..8).map(|switch| at(switch, 4)));
        let own: Vec<Vec<usize>> =
            (0..8).map(|index| (4 * index..4 * index + 4).collect()).collect();
        assert_eq!(taken(&devices, &four, 4), own);
        assert_eq!(taken(&devices, &four, 2)[7], [28, 29]);
    }

    #[test]
    fn accelerators_without_near_devices_take_other_devices() {
        // Both devices are on the other node.
        assert_eq!(taken(&[at(0, 0), at(1, 0)], &[at(5, 1)], 4), [[0, 1]]);
        // One device is on the accelerator's node, but at another switch.
        assert_eq!(taken(&[at(0, 0), at(6, 0)], &[at(5, 1)], 4), [[1]]);
        // Two accelerators divide the devices of the other node.
        assert_eq!(taken(&[at(0, 0), at(1, 0)], &[at(5, 1), at(6, 1)], 4), [[0], [1]]);
        // Only the NUMA nodes of the devices are known.
        assert_eq!(taken(&on(&[Some(0), Some(1)]), &[at(5, 1)], 4), [[1]]);
        // Neither NUMA nodes nor PCI paths of the devices are known.
        assert_eq!(taken(&on(&[None; 2]), &[at(5, 1), at(0, 1)], 4), [[0], [1]]);
    }

    #[test]
    fn ranks_whose_nearest_devices_overlap_in_part_each_get_a_device() {
        let devices = Vec::from_iter((0..4).map(|switch| at(switch, 0)));
        // One rank with an accelerator, two ranks without accelerators on the node of the first
        // rank, and one rank that may be anywhere.
        let ranks = [vec![at(2, 1)], on(&[Some(0), Some(0), None])].concat();
        assert_eq!(taken(&devices, &ranks, 4), [[2], [0], [1], [2]]);
    }
}
