//! Predicted times of a collective on a cluster, by algorithm and protocol.

use std::fmt;

use crate::cost::protocols::{self, Protocol};
use crate::topology::Topology;
use ccl_core::algorithm::{self, Algorithm};
use ccl_core::cost::predict::{self, Call, Prediction, Programs, at_least, predict};
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, DataType, Rank};
use ccl_traffic::bus_factor;
use serde::Serialize;

use crate::quantity::{self, Unit};

/// Slots of each link, as in NCCL and in ferroccl.
const SLOTS: u32 = 8;
const RANKS_MAX: usize = 1 << 18;

/// Collective on a cluster.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// Kind of collective.
    pub collective: Collective,
    /// Bytes of the larger buffer.
    pub bytes: usize,
    /// Type of the elements.
    pub data_type: DataType,
    /// Cluster on which the collective runs.
    pub topology: &'a Topology,
    /// Number of hosts to use, counted from the first; none for all.
    pub hosts: Option<u32>,
}

/// Predicted times of a collective, the fastest algorithm first.
#[derive(Debug, Serialize)]
pub struct Plan {
    collective: String,
    bytes: usize,
    topology: String,
    ranks: u32,
    hosts: u32,
    /// Note on a bottleneck of the network, if any. The times ignore the bottleneck.
    note: Option<String>,
    ways: Vec<Estimate>,
}

/// Prediction for one algorithm.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// Name of the algorithm.
    pub algorithm: String,
    /// Name of the protocol that is fastest for the algorithm.
    pub protocol: String,
    /// Time in seconds.
    pub time_s: f64,
    /// Algorithm bandwidth: bytes of the buffer, per second.
    pub algbw: f64,
    /// Bus bandwidth, as in nccl-tests: `algbw` times a factor for the collective and the ranks.
    pub busbw: f64,
    /// Name of the cost that takes most of the time: latency, processor, links within hosts, or
    /// network.
    pub bound_by: String,
    /// Bytes that cross between hosts, of all ranks together.
    pub network_bytes: f64,
}

/// Predicts the times of a collective.
///
/// # Errors
///
/// When the collective has no blocks of equal length; when `bytes` is less than one element for
/// each block; when the cluster has too few hosts, too many ranks, or a network of unknown
/// bandwidth.
pub fn plan(request: &PlanRequest<'_>) -> Result<Plan, String> {
    let PlanRequest { collective, bytes, data_type, topology, .. } = *request;
    let scene = Scene::of(topology, request.hosts)?;
    let (ranks, hosts) = (scene.hosts.ranks(), request.hosts.unwrap_or(topology.hosts()));
    let sized = Sized::of(collective, ranks, bytes, data_type)?;
    let bytes = sized.bytes;
    let way = |algorithm: &'static Algorithm| -> Result<Option<Estimate>, String> {
        let found = scene.fastest(&scene.programs(algorithm, 0), &sized)?;
        Ok(found.map(|(protocol, seen)| {
            let algbw = bytes as f64 / seen.time_ns * 1e9;
            Estimate {
                algorithm: algorithm.name.to_owned(),
                protocol: protocol.name.to_owned(),
                time_s: seen.time_ns / 1e9,
                algbw,
                busbw: algbw * bus_factor(collective, ranks),
                bound_by: seen.bound.name().to_owned(),
                network_bytes: seen.network_bytes,
            }
        }))
    };
    // Long calls take long to simulate, so each algorithm has its own thread.
    let asked = std::thread::scope(|scope| {
        let way = &way;
        let start = |algorithm| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || way(algorithm));
            thread.map_err(|error| error.to_string())
        };
        let started = Vec::from_iter(algorithm::of(collective).map(start));
        let ended = started.into_iter().map(|thread| {
            thread?.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
        });
        ended.collect::<Result<Vec<Option<Estimate>>, String>>()
    })?;
    let mut ways = Vec::from_iter(asked.into_iter().flatten());
    ways.sort_by(|one, other| one.time_s.total_cmp(&other.time_s));
    Ok(Plan {
        collective: collective.to_string(),
        bytes,
        topology: topology.name.clone(),
        ranks,
        hosts,
        note: note(topology, hosts),
        ways,
    })
}

/// Ranks on hosts, with the protocols that they can take.
pub(crate) struct Scene {
    /// Placement of the ranks on hosts.
    pub(crate) hosts: Hosts,
    protocols: Vec<Protocol>,
}

/// Sizes of a call, which moves whole blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sized {
    /// Number of elements of a block.
    pub(crate) count: usize,
    /// Bytes of an element.
    pub(crate) element_bytes: usize,
    /// Bytes of the larger buffer.
    pub(crate) bytes: usize,
}

impl Sized {
    /// Returns the number of elements in a cache line. Each part of a block begins at a multiple of
    /// this number.
    pub(crate) fn grain(&self) -> usize {
        predict::grain(self.element_bytes)
    }

    pub(crate) fn of(
        collective: Collective,
        ranks: u32,
        bytes: usize,
        data_type: DataType,
    ) -> Result<Sized, String> {
        let blocks = collective.even_blocks(ranks);
        let blocks = blocks
            .ok_or_else(|| format!("{collective} has no blocks of equal length; plan another"))?;
        let block_bytes = blocks as usize * data_type.bytes();
        let count = bytes / block_bytes;
        if count == 0 {
            return Err(format!(
                "{bytes} bytes are less than an element for each block; give at least {block_bytes}"
            ));
        }
        Ok(Sized { count, element_bytes: data_type.bytes(), bytes: count * block_bytes })
    }
}

impl Scene {
    /// Creates the scene of the first `hosts` hosts of a topology, or of all hosts by default.
    pub(crate) fn of(topology: &Topology, hosts: Option<u32>) -> Result<Scene, String> {
        let hosts = hosts.unwrap_or(topology.hosts());
        if hosts == 0 || hosts > topology.hosts() {
            return Err(format!("{} has {} hosts, not {hosts}", topology.name, topology.hosts()));
        }
        let protocols = protocols::of(topology, hosts).map_err(|error| error.to_string())?;
        Ok(Scene { hosts: placed(topology, hosts)?, protocols })
    }

    /// Returns the scene of some of the ranks only.
    pub(crate) fn among(&self, members: &[Rank]) -> Scene {
        let ids: Vec<u32> = members.iter().map(|rank| self.hosts.seat(*rank).0).collect();
        Scene { hosts: Hosts::of(&ids), protocols: self.protocols.clone() }
    }

    /// Returns the programs that all ranks run.
    pub(crate) fn programs(&self, algorithm: &'static Algorithm, root: Rank) -> Programs {
        Programs::new(algorithm, root, self.hosts.clone(), SLOTS)
    }

    /// Returns a call of these programs, by one protocol.
    pub(crate) fn call<'a>(programs: &'a Programs, sized: &Sized, protocol: &Protocol) -> Call<'a> {
        Call {
            programs,
            count: sized.count,
            element_bytes: sized.element_bytes,
            buffer_bytes: sized.bytes,
            channels: 1,
            slot_bytes: protocol.slot_bytes,
        }
    }

    /// Returns the fastest protocol for a call, and the prediction; none if there is no protocol.
    pub(crate) fn fastest(
        &self,
        programs: &Programs,
        sized: &Sized,
    ) -> Result<Option<(&Protocol, Prediction)>, String> {
        let call = |protocol| Scene::call(programs, sized, protocol);
        let mut least = Vec::new();
        for protocol in &self.protocols {
            let ns =
                at_least(&call(protocol), &protocol.model).map_err(|error| error.to_string())?;
            least.push((ns, protocol));
        }
        least.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut best: Option<(&Protocol, Prediction)> = None;
        for (least_ns, protocol) in least {
            let best_ns = best.map_or(f64::INFINITY, |(_, seen)| seen.time_ns);
            // A protocol whose lower bound exceeds the best time needs no simulation. The
            // simulations that are saved would be the longest.
            if least_ns > best_ns {
                break;
            }
            let seen = predict(&call(protocol), &protocol.model);
            let seen = seen.map_err(|error| error.to_string())?;
            if seen.time_ns < best_ns {
                best = Some((protocol, seen));
            }
        }
        Ok(best)
    }
}

/// Places ranks on the first `hosts` hosts, filling one host after the other.
fn placed(topology: &Topology, hosts: u32) -> Result<Hosts, String> {
    let (mut ids, mut left) = (Vec::new(), hosts);
    for run in &topology.hosts {
        let seats = topology.machines.get(run.machine).map_or(0, |machine| machine.seats().len());
        for _ in 0..run.count.min(left) {
            let host = hosts - left;
            left -= 1;
            if ids.len() + seats > RANKS_MAX {
                return Err(format!(
                    "more than {RANKS_MAX} ranks cannot be planned; take fewer hosts with --hosts"
                ));
            }
            ids.resize(ids.len() + seats, host);
        }
    }
    Ok(Hosts::of(&ids))
}

/// Returns a note about the lowest oversubscribed tier, if these hosts need that tier.
fn note(topology: &Topology, hosts: u32) -> Option<String> {
    let fabric = &topology.fabric;
    let top = fabric.meeting(0, hosts - 1)?;
    let (tier, _) = fabric.bottleneck().filter(|(tier, _)| *tier <= top)?;
    Some(format!(
        "the network is assumed to be wide enough everywhere, but {0} is oversubscribed \
         1:{1:.1}: traffic that crosses it may take {1:.1} times as long",
        fabric.tiers[tier].name,
        fabric.oversubscription(tier)
    ))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { collective, bytes, topology, ranks, hosts, .. } = self;
        let bytes = quantity::show(*bytes as f64, Unit::Bytes);
        writeln!(
            f,
            "{collective} of {bytes} among {ranks} ranks on {hosts} hosts of {topology}\n"
        )?;
        let heads =
            ["algorithm", "protocol", "time", "algbw", "busbw", "bound by", "crosses hosts"];
        let row = |way: &Estimate| {
            let rate = |rate| quantity::show(rate, Unit::BytesPerSecond);
            [
                way.algorithm.clone(),
                way.protocol.clone(),
                quantity::show(way.time_s, Unit::Seconds),
                rate(way.algbw),
                rate(way.busbw),
                way.bound_by.clone(),
                quantity::show(way.network_bytes, Unit::Bytes),
            ]
        };
        let rows = [heads.map(str::to_owned)].into_iter().chain(self.ways.iter().map(row));
        let rows: Vec<Vec<String>> = rows.map(|row| row.to_vec()).collect();
        f.write_str(&crate::topology::columns(&rows))?;
        if let Some(note) = &self.note {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::topology::presets;

    use super::*;

    fn fastest(collective: Collective, bytes: usize, name: &str, hosts: Option<u32>) -> Estimate {
        let topology = presets::find(name).unwrap().topology();
        let data_type = DataType::Float32;
        let request = PlanRequest { collective, bytes, data_type, topology: &topology, hosts };
        plan(&request).unwrap().ways[0].clone()
    }

    #[test]
    fn hierarchical_is_fastest_for_many_hosts_and_protocol_ll_for_few_bytes() {
        let way = fastest(Collective::AllReduce, 1 << 30, "superpod-1024", None);
        assert_eq!(way.algorithm, "hierarchical");
        let small = fastest(Collective::AllReduce, 1024, "h100", None);
        assert_eq!(small.protocol, "LL");
    }

    #[test]
    fn an_impossible_plan_is_refused_with_the_reason() {
        let topology = presets::find("h100").unwrap().topology();
        let request = PlanRequest {
            collective: Collective::AllReduce,
            bytes: 8,
            data_type: DataType::Float32,
            topology: &topology,
            hosts: Some(2),
        };
        assert!(plan(&request).unwrap_err().contains("h100 has 1 hosts, not 2"));
        let request = PlanRequest { collective: Collective::Barrier, hosts: None, ..request };
        assert!(plan(&request).unwrap_err().contains("plan another"));
    }
}
