//! Experiments: each builds a network, runs traffic on it, and reports the results beside the
//! published claim that it tests, if there is one. The experiments share their mechanisms, so the
//! file of an experiment has only the cases that it runs. The parameters of an experiment can be
//! set to other values.

mod f01_hashed_flows;
mod f02_low_entropy;
mod f03_more_uplinks;
mod f04_queue_pairs;
mod f05_placed_whole;
mod f06_failed_links;
mod f07_utilisation;
mod f08_many_nodes;
mod f09_hashed_pairs;
mod f10_pinned_paths;
mod f11_phases;
mod f12_dcqcn;
mod f13_admission;
mod f14_split;
mod f15_assumptions;
mod f16_zones;
mod f17_interval;
mod incast;
mod job;
mod replay;
mod scale;
mod schemes;
mod straggler;

use std::collections::BTreeMap;

use ccl_core::random::Random;
use ccl_plot::Figure;

use crate::flows::Flows;
use crate::measure::{spread, utilisation};
use crate::network::{Network, Path, Plan, Port};
use crate::presets::Zone;
use crate::report::{Findings, Report, Unit};
use crate::routing::{Demand, Key, Moment, Router, Scheme, Te};
use crate::streams::{self, Outcome, RunParams, Stream};
use crate::{SimError, queues};

pub use replay::{PARAMETERS as REPLAY_PARAMETERS, replay};

/// A parameter of an experiment: a number that a run can set to another value than its default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Name of the parameter.
    pub name: &'static str,
    /// Default value.
    pub value: f64,
    /// Description, with the unit.
    pub what: &'static str,
}

/// Largest value of a parameter, unless the parameter's default is larger.
const MOST: f64 = 65_536.0;

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Name of the experiment.
    pub name: &'static str,
    /// Title of the experiment.
    pub title: &'static str,
    /// Published claim that the experiment tests, in English; empty if there is none.
    pub source: &'static str,
    /// Parameters.
    pub parameters: &'static [Parameter],
    run: fn(&Setting) -> Result<Findings, SimError>,
}

/// Experiments that can run on any network, and the fewest tiers of switches that each needs. All
/// other experiments test claims of Meta's paper on RoCE about Meta's own network.
const ON_ANY: [(&str, usize); 5] =
    [("job", 1), ("scale", 1), ("schemes", 2), ("straggler", 1), ("incast", 1)];

/// Parameters whose values come from a given network.
const OF_NETWORK: [&str; 7] =
    ["racks", "rack_hosts", "nics", "uplinks", "zones", "over", "ranks_per_host"];

/// A network to run experiments on, instead of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct On {
    /// Name of the network.
    pub name: String,
    /// Plan of the network.
    pub plan: Plan,
}

/// Request to run an experiment.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// Seed of all that is random.
    pub seed: u64,
    /// Largest memory of a run, in MiB.
    pub memory_mib: u64,
    /// Largest work of a run, in millions of steps ([`Plan::work_millions`]).
    pub work_millions: u64,
    /// Changed values of parameters, by name.
    pub changed: &'a [(String, f64)],
    /// Network to run on, if not the experiment's own.
    pub on: Option<&'a On>,
}

impl Default for Ask<'_> {
    /// Returns the defaults, which the documentation page uses.
    fn default() -> Self {
        Ask { seed: 1, memory_mib: 4_096, work_millions: 1_000, changed: &[], on: None }
    }
}

/// All experiments, in the order of the paper's claims.
pub const SCENARIOS: &[Scenario] = &[
    f01_hashed_flows::SCENARIO,
    f02_low_entropy::SCENARIO,
    f03_more_uplinks::SCENARIO,
    f04_queue_pairs::SCENARIO,
    f05_placed_whole::SCENARIO,
    f06_failed_links::SCENARIO,
    f07_utilisation::SCENARIO,
    f08_many_nodes::SCENARIO,
    f09_hashed_pairs::SCENARIO,
    f10_pinned_paths::SCENARIO,
    f11_phases::SCENARIO,
    f12_dcqcn::SCENARIO,
    f13_admission::SCENARIO,
    f14_split::SCENARIO,
    f15_assumptions::SCENARIO,
    f16_zones::SCENARIO,
    f17_interval::SCENARIO,
    schemes::SCENARIO,
    incast::SCENARIO,
    straggler::SCENARIO,
    job::SCENARIO,
    scale::SCENARIO,
];

/// Returns the experiment of a name.
///
/// # Errors
///
/// If no experiment has that name.
pub fn find(name: &str) -> Result<&'static Scenario, SimError> {
    SCENARIOS.iter().find(|scenario| scenario.name == name).ok_or_else(|| SimError::Unknown {
        what: "scenario",
        name: name.to_owned(),
        known: SCENARIOS.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(" "),
    })
}

/// Largest number of seeds of a run.
const SEEDS_MAX: u32 = 1_000;

/// Runs an experiment with `seeds` consecutive seeds; the first is the seed of `ask`. The report
/// has the mean of each number, and the standard error of the mean.
///
/// # Errors
///
/// If the experiment cannot run, or the number of seeds is out of range.
pub fn over_seeds(
    ask: &Ask<'_>,
    seeds: u32,
    run: impl Fn(&Ask<'_>) -> Result<Report, SimError>,
) -> Result<Report, SimError> {
    if seeds == 0 || seeds > SEEDS_MAX {
        return Err(SimError::number("seeds", seeds, format!("give 1 to {SEEDS_MAX}")));
    }
    let of = |seed| run(&Ask { seed: ask.seed.wrapping_add(u64::from(seed)), ..ask.clone() });
    let first = of(0)?;
    Ok(first.with_others(&(1..seeds).map(of).collect::<Result<Vec<Report>, SimError>>()?))
}

/// Parameters that an experiment runs with.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Seed of all that is random.
    pub seed: u64,
    /// Largest memory of a run, in MiB.
    pub memory_mib: u64,
    /// Largest work of a run, in millions of steps ([`Plan::work_millions`]).
    pub work_millions: u64,
    values: BTreeMap<&'static str, f64>,
    /// Network to run on, if it is not the experiment's own.
    on: Option<On>,
}

impl Scenario {
    /// Runs the experiment.
    ///
    /// # Errors
    ///
    /// If a parameter is unknown; if a network is given, but the experiment needs its own; if the
    /// experiment cannot run with these parameters.
    pub fn run(&self, ask: &Ask<'_>) -> Result<Report, SimError> {
        let parameters = self.on(ask.on)?;
        let setting = Setting::new(ask, &parameters)?;
        let findings = (self.run)(&setting)?;
        Ok(setting.report(self.name, self.title, self.source, &parameters, findings))
    }

    /// Returns the experiment's parameters, except those whose values come from the given network.
    fn on(&self, on: Option<&On>) -> Result<Vec<Parameter>, SimError> {
        let Some(On { name, plan }) = on else { return Ok(self.parameters.to_vec()) };
        let Some((_, tiers)) = ON_ANY.iter().find(|(known, _)| *known == self.name) else {
            let which = ON_ANY.map(|(known, _)| known).join(" ");
            return Err(SimError::OwnNetwork { scenario: self.name, which });
        };
        if plan.fabric.tiers.len() < *tiers {
            let what = format!("the number of tiers of switches of {name}");
            let remedy = format!("{} needs at least {tiers}; take another cluster", self.name);
            return Err(SimError::number(what, plan.fabric.tiers.len(), remedy));
        }
        let own = |parameter: &&Parameter| !OF_NETWORK.contains(&parameter.name);
        Ok(self.parameters.iter().filter(own).copied().collect())
    }
}

impl Setting {
    /// Makes a setting from the parameters' defaults and the changed values.
    pub(crate) fn new(ask: &Ask<'_>, parameters: &[Parameter]) -> Result<Setting, SimError> {
        let known = parameters.iter().map(|parameter| (parameter.name, parameter.value));
        let mut values: BTreeMap<&'static str, f64> = known.collect();
        for (name, value) in ask.changed {
            let Some(parameter) = parameters.iter().find(|known| known.name == name) else {
                let known: Vec<&str> = parameters.iter().map(|known| known.name).collect();
                let (what, name, known) = ("parameter", name.clone(), known.join(" "));
                return Err(SimError::Unknown { what, name, known });
            };
            if !value.is_finite() || *value < 0.0 {
                return Err(SimError::number(name, value, "give a number of 0 or more"));
            }
            let most = MOST.max(parameter.value);
            if *value > most {
                return Err(SimError::number(name, value, format!("give {most} at most")));
            }
            values.insert(parameter.name, *value);
        }
        let on = ask.on.map(|on| {
            let Ask { memory_mib, work_millions, .. } = *ask;
            On { plan: Plan { memory_mib, work_millions, ..on.plan.clone() }, ..on.clone() }
        });
        let Ask { seed, memory_mib, work_millions, .. } = *ask;
        Ok(Setting { seed, memory_mib, work_millions, values, on })
    }

    /// Creates the report of the findings, with the parameters of the run.
    pub(crate) fn report(
        &self,
        name: &str,
        title: &str,
        source: &str,
        parameters: &[Parameter],
        findings: Findings,
    ) -> Report {
        let shown =
            |parameter: &Parameter| (parameter.name.to_owned(), self.number(parameter.name));
        Report {
            name: name.to_owned(),
            title: title.to_owned(),
            source: source.to_owned(),
            on: self.on.as_ref().map(|on| {
                let Plan { hosts, ranks_per_host, .. } = on.plan;
                format!("{}: {hosts} hosts of {ranks_per_host} ranks", on.name)
            }),
            parameters: parameters.iter().map(shown).collect(),
            seed: self.seed,
            seeds: 1,
            findings,
        }
    }

    /// Returns a parameter's value.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(0.0)
    }

    /// Returns a parameter as a whole number, rounded: a count or an index in a list.
    pub(crate) fn whole(&self, name: &str) -> u32 {
        self.number(name).round().clamp(0.0, f64::from(u32::MAX)) as u32
    }

    /// Returns a parameter that is a count, at least 1.
    pub(crate) fn count(&self, name: &str) -> u32 {
        self.whole(name).max(1)
    }

    /// Returns the seeds of the trials.
    pub(crate) fn trials(&self) -> Vec<u64> {
        self.seeds("trials")
    }

    /// Returns as many seeds as the parameter `name` says.
    pub(crate) fn seeds(&self, name: &str) -> Vec<u64> {
        let mut random = Random::new(self.seed);
        (0..self.count(name)).map(|_| random.bits()).collect()
    }

    /// Returns the counts of queue pairs to try: the parameter `pairs` alone, or the counts in
    /// `usual` if `pairs` is 0. Each count comes with its expected result, or with None if `usual`
    /// does not contain the count.
    pub(crate) fn pairs(&self, usual: &[(u32, f64)]) -> Vec<(u32, Option<f64>)> {
        match self.whole("pairs") {
            0 => usual.iter().map(|(pairs, expected)| (*pairs, Some(*expected))).collect(),
            given => {
                let known = usual.iter().find(|(pairs, _)| *pairs == given);
                vec![(given, known.map(|(_, expected)| *expected))]
            }
        }
    }

    /// Builds the network of a zone.
    pub(crate) fn network(&self, zone: &Zone) -> Result<Network, SimError> {
        Network::new(self.own(zone)?)
    }

    /// Returns the plan of the network that was given, or that of a zone.
    pub(crate) fn plan(&self, zone: &Zone) -> Result<Plan, SimError> {
        match &self.on {
            Some(on) => Ok(on.plan.clone()),
            None => self.own(zone),
        }
    }

    /// Returns the plan of a zone, with the limits of memory and work.
    fn own(&self, zone: &Zone) -> Result<Plan, SimError> {
        let Setting { memory_mib, work_millions, .. } = *self;
        Ok(Plan { memory_mib, work_millions, ..zone.plan()? })
    }
}

/// Description of the parameter `trials`.
const TRIALS: &str = "trials, each with other hashes and placements; the mean is shown";

/// Returns streams from every NIC of a rack to the NIC at the same position in another rack.
fn rack_to_rack(zone: &Zone, from: u32, to: u32, bytes: f64) -> Vec<Stream> {
    let port = |rack: u32, at: u32| Port {
        host: rack * zone.rack_hosts + at / zone.nics,
        nic: at % zone.nics,
    };
    let stream =
        |at| Stream { from: port(from, at), to: port(to, at), bytes, channel: 0, group: 0 };
    (0..zone.rack_nics()).map(stream).collect()
}

/// Creates a router of this scheme. For TE, a controller places the streams on the links that work
/// now.
fn router(
    network: &Network,
    scheme: Scheme,
    streams: &[Stream],
    seed: u64,
) -> Result<Router, SimError> {
    if scheme != Scheme::Te {
        return Ok(Router::new(scheme, seed));
    }
    Ok(Router::with_te(seed, Te::place(network, &demands(network, streams))?))
}

/// Returns one demand per pair of ports, because a controller's rules do not tell connections
/// apart. The rate of a demand is the number of bytes of its streams, divided by a time that is the
/// same for all demands: the time in which the busiest NIC sends or receives all its bytes at line
/// rate.
fn demands(network: &Network, streams: &[Stream]) -> Vec<Demand> {
    let mut bytes: BTreeMap<(Port, bool), f64> = BTreeMap::new();
    let (mut places, mut demands) = (BTreeMap::new(), Vec::new());
    for Stream { from, to, bytes: own, .. } in streams {
        *bytes.entry((*from, false)).or_insert(0.0) += own;
        *bytes.entry((*to, true)).or_insert(0.0) += own;
        let place = *places.entry((*from, *to)).or_insert(demands.len());
        if place == demands.len() {
            demands.push(Demand { from: *from, to: *to, bytes_per_s: 0.0 });
        }
        demands[place].bytes_per_s += own;
    }
    let busiest_s = bytes.values().copied().fold(0.0, f64::max) / network.plan().nic_bytes_per_s();
    demands.iter_mut().for_each(|demand: &mut Demand| demand.bytes_per_s /= busiest_s);
    demands
}

/// Runs streams under a scheme.
fn run(
    network: &Network,
    scheme: Scheme,
    streams: &[Stream],
    params: RunParams,
    seed: u64,
) -> Result<Outcome, SimError> {
    let mut router = router(network, scheme, streams, seed)?;
    streams::run(network, &mut router, streams, params)
}

/// Converts streams to flows for the simulation of queues, one flow per queue pair of a stream.
fn queued(
    network: &Network,
    scheme: Scheme,
    streams: &[Stream],
    pairs: u32,
    seed: u64,
) -> Result<Vec<queues::Flow>, SimError> {
    let (tiers, many) = (network.tiers() as f64, streams.len() as f64 * f64::from(pairs));
    let what = format!("the queues of {many:.0} flows");
    SimError::if_over(what, many * (600.0 + 80.0 * tiers), network.plan().memory_mib)?;
    let mut router = router(network, scheme, streams, seed)?;
    let mut flows = Flows::new(network, 0.0);
    let (mut path, mut queued) = (Path::default(), Vec::new());
    for stream in streams {
        for pair in 0..pairs {
            let Stream { from, to, channel, .. } = *stream;
            let key = Key { from, to, channel, pair };
            router.route(network, &key, Moment::default(), &flows.load(), &mut path)?;
            // Later flows see the load of earlier ones.
            flows.begin(&path, stream.bytes, f64::INFINITY, 0);
            let links = path.links.iter().map(|(link, _)| *link).collect();
            let bytes = stream.bytes / f64::from(pairs);
            queued.push(queues::Flow { links, bytes, begins_s: 0.0, after: None });
        }
    }
    Ok(queued)
}

/// Orders the flows of each sender at random, as if ranks were out of step. A sender has at most
/// `at_a_time` flows in flight.
fn in_turn(flows: &mut [queues::Flow], at_a_time: u32, seed: u64) {
    let mut random = Random::new(seed);
    let mut by_sender: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (index, flow) in (0..).zip(flows.iter()) {
        by_sender.entry(flow.links[0]).or_default().push(index);
    }
    for own in by_sender.values_mut() {
        random.shuffle(own);
        for pair in own.windows(at_a_time.max(1) as usize + 1) {
            flows[pair[pair.len() - 1] as usize].after = Some(pair[0]);
        }
    }
}

/// Returns the time when each group of streams is done, in seconds.
fn group_ends_s(streams: &[Stream], outcome: &Outcome) -> BTreeMap<u32, f64> {
    let mut ends: BTreeMap<u32, f64> = BTreeMap::new();
    for (stream, end_s) in streams.iter().zip(&outcome.ends_s) {
        let end = ends.entry(stream.group).or_insert(0.0);
        *end = end.max(*end_s);
    }
    ends
}

/// Reports how evenly the links of each tier were used.
fn tell_links(
    findings: &mut Findings,
    network: &Network,
    carried_bytes: &[f64],
    time_s: f64,
    figure: &str,
) {
    let used = utilisation(network, carried_bytes, time_s);
    let names: Vec<String> =
        network.plan().fabric.tiers.iter().map(|tier| tier.name.clone()).collect();
    let mut bars = [Vec::new(), Vec::new(), Vec::new()];
    for (tier, name) in names.iter().enumerate() {
        let spread = spread(network, tier, &used);
        findings.note(
            format!("max-to-mean ratio of links to a {name}"),
            Unit::Ratio,
            spread.max_to_mean,
        );
        for (bars, (what, value)) in bars.iter_mut().zip([
            ("lowest", spread.least),
            ("mean", spread.mean),
            ("highest", spread.most),
        ]) {
            findings.note(format!("{what} utilisation of links to a {name}"), Unit::Part, value);
            bars.push(value);
        }
    }
    let groups: Vec<&str> = names.iter().map(String::as_str).collect();
    let title = "Utilisation of uplinks by tier";
    let figure = Figure::bars(figure, title, "part of the bandwidth", &groups);
    let [least, mean, most] = bars;
    let figure = figure.with_bars("lowest", &least).with_bars("mean", &mean);
    findings.figures.push(figure.with_bars("highest", &most));
}
