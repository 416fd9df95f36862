//! Schedule of a planned collective as Chakra traces. Each send, receive, reduction and copy is a
//! node. A node depends on the nodes whose results it reads, and on those that must precede its
//! writes.

use std::collections::BTreeMap;

use ccl_core::algorithm::{Algorithm, Params};
use ccl_core::schedule::shape::{Seat, Sizes};
use ccl_core::schedule::{Buffer, Counters, Layout, Op, Slice, TERM, Terms};
use ccl_core::topology::Hosts;
use ccl_core::types::Rank;

use super::chakra::{Attribute, Node, NodeType, Trace, Value};
use super::job::{head, message_node};
use crate::plan::Sized;

/// Largest number of nodes of all ranks together.
const NODES_MAX: usize = 1 << 21;

/// Returns the traces of all ranks, for a call of these sizes.
///
/// # Errors
///
/// When the collective has no blocks of equal length; when the traces would be too long.
pub(crate) fn traces(
    algorithm: &'static Algorithm,
    sized: &Sized,
    hosts: &Hosts,
) -> Result<Vec<Trace>, String> {
    let (ranks, root) = (hosts.ranks(), 0);
    let (mut traces, mut nodes) = (Vec::new(), 0);
    for rank in 0..ranks {
        let schedule = (algorithm.schedule)(&Params { rank, ranks, root, hosts });
        let seat = Seat { collective: algorithm.collective, rank, ranks, root };
        let layouts = seat.layouts(Sizes::Even(sized.count), schedule.split, sized.grain());
        let (input, output) = layouts.map_err(|error| error.to_string())?;
        let mut unrolling = Unrolling {
            rank,
            element_bytes: sized.element_bytes as u64,
            input,
            output,
            trace: Trace::new(head(rank, ranks)),
            memory: BTreeMap::new(),
            tags: BTreeMap::new(),
            room: NODES_MAX - nodes,
        };
        schedule.for_each(&mut |op, counters| unrolling.op(op, counters));
        nodes += unrolling.trace.nodes.len();
        if nodes >= NODES_MAX {
            return Err(format!(
                "the ranks have {NODES_MAX} steps or more together; take fewer hosts, or an \
                 algorithm with fewer steps"
            ));
        }
        traces.push(unrolling.trace);
    }
    Ok(traces)
}

/// Node that last wrote a part, and the nodes that have read it since.
#[derive(Debug, Default)]
struct Touched {
    written: Option<u64>,
    read: Vec<u64>,
}

struct Unrolling {
    rank: Rank,
    element_bytes: u64,
    input: Layout,
    output: Layout,
    trace: Trace,
    memory: BTreeMap<(Buffer, u32), Touched>,
    /// Number of nonempty messages so far, by direction (true: sent) and peer.
    tags: BTreeMap<(bool, Rank), u64>,
    /// Largest number of nodes of this rank: `NODES_MAX` less the nodes of the earlier ranks.
    room: usize,
}

impl Unrolling {
    fn op(&mut self, op: &Op, counters: &Counters) {
        if self.trace.nodes.len() >= self.room {
            return;
        }
        match op {
            Op::Send { peer, source } => {
                let bytes = self.bytes(source, counters);
                let peer = peer.eval(counters);
                let tag = self.tag(true, peer, bytes);
                let node = message_node(true, self.rank, peer, bytes, tag);
                self.push(node, bytes, &parts(source, counters), &[]);
            }
            Op::Recv { peer, target } => {
                let bytes = self.bytes(target, counters);
                let peer = peer.eval(counters);
                let tag = self.tag(false, peer, bytes);
                let node = message_node(false, peer, self.rank, bytes, tag);
                self.push(node, bytes, &[], &parts(target, counters));
            }
            Op::Reduce { target, terms, .. } => {
                let bytes = self.bytes(target, counters);
                let read: Vec<_> = terms.iter().flat_map(|term| repeated(term, counters)).collect();
                let operands = terms.iter().map(|term| u64::from(term.repeat)).sum::<u64>();
                let node = self.compute("reduce", bytes, operands.saturating_sub(1));
                self.push(node, bytes, &read, &parts(target, counters));
            }
            Op::Copy { target, source } => {
                let bytes = self.bytes(target, counters);
                let node = self.compute("copy", bytes, 0);
                self.push(node, bytes, &parts(source, counters), &parts(target, counters));
            }
        }
    }

    /// Returns the bytes of a slice.
    fn bytes(&self, slice: &Slice, counters: &Counters) -> u64 {
        let extent = slice.extent;
        let layout = if extent.buffer == Buffer::Input { &self.input } else { &self.output };
        let elements = |index| layout.part(extent.parts.part(index, counters)).1 as u64;
        (0..extent.parts.total).map(elements).sum::<u64>() * self.element_bytes
    }

    /// Returns the tag of a message: its number among the nonempty messages from the same sender to
    /// the same receiver. Both sides count these messages alike, so they agree on the tag.
    fn tag(&mut self, sends: bool, peer: Rank, bytes: u64) -> u64 {
        let next = self.tags.entry((sends, peer)).or_insert(0);
        let tag = *next;
        *next += u64::from(bytes > 0);
        tag
    }

    fn compute(&self, name: &str, bytes: u64, each: u64) -> Node {
        let ops = bytes / self.element_bytes.max(1) * each;
        let attr = vec![
            Attribute::new("is_cpu_op", Value::Bool(false)),
            Attribute::new("num_ops", Value::Int64(ops as i64)),
            Attribute::new("tensor_size", Value::Uint64(bytes)),
        ];
        Node { name: name.to_owned(), r#type: NodeType::Comp.into(), attr, ..Node::default() }
    }

    fn push(
        &mut self,
        mut node: Node,
        bytes: u64,
        read: &[(Buffer, u32)],
        written: &[(Buffer, u32)],
    ) {
        if bytes == 0 {
            return;
        }
        node.id = self.trace.nodes.len() as u64;
        for part in read {
            let touched = self.memory.entry(*part).or_default();
            node.data_deps.extend(touched.written);
            touched.read.push(node.id);
        }
        for part in written {
            let touched = self.memory.entry(*part).or_default();
            let before = touched.read.iter().copied().filter(|reader| *reader != node.id);
            node.ctrl_deps.extend(before.chain(touched.written));
            *touched = Touched { written: Some(node.id), read: Vec::new() };
        }
        for deps in [&mut node.data_deps, &mut node.ctrl_deps] {
            deps.sort_unstable();
            deps.dedup();
        }
        node.ctrl_deps.retain(|before| node.data_deps.binary_search(before).is_err());
        self.trace.nodes.push(node);
    }
}

fn parts(slice: &Slice, counters: &Counters) -> Vec<(Buffer, u32)> {
    (0..slice.parts.total).map(|index| (slice.buffer, slice.parts.part(index, counters))).collect()
}

fn repeated(terms: &Terms, counters: &Counters) -> Vec<(Buffer, u32)> {
    let at = |term| {
        let mut counters = *counters;
        counters[TERM] = term;
        parts(&terms.slice, &counters)
    };
    (0..terms.repeat).flat_map(at).collect()
}

#[cfg(test)]
mod tests {
    use ccl_core::algorithm;
    use ccl_core::types::{Collective, DataType};
    use ccl_traffic::Sent;

    use super::super::job::{Job, tests::Dir, write_traces};
    use super::*;

    fn sized(collective: Collective, ranks: u32, bytes: usize) -> Sized {
        Sized::of(collective, ranks, bytes, DataType::Float32).unwrap()
    }

    fn each(mut of: impl FnMut(&'static Algorithm, &Hosts, &Sized)) {
        let six: Vec<u32> = (0..6).map(|rank| rank / 2).collect();
        for hosts in [Hosts::one(1), Hosts::one(5), Hosts::of(&six), Hosts::one(17)] {
            for collective in Collective::ALL {
                if collective.even_blocks(1).is_none() {
                    continue;
                }
                for algorithm in algorithm::of(collective) {
                    for bytes in [4 * 17, 4 * 10_007] {
                        of(algorithm, &hosts, &sized(collective, hosts.ranks(), bytes));
                    }
                }
            }
        }
    }

    /// Checks that the traces send the traffic of the schedules, and that every sent message is
    /// received.
    #[test]
    fn traces_send_the_bytes_of_the_traffic_matrix() {
        let dir = Dir::new("planned");
        each(|algorithm, hosts, sized| {
            let prefix = dir.at("plan");
            let traces = traces(algorithm, sized, hosts).unwrap();
            write_traces(&prefix, &traces).unwrap();
            let job = Job::read(&prefix, None).unwrap();
            let mut sent = BTreeMap::new();
            for message in job.agreed().unwrap().messages {
                *sent.entry((message.from, message.to)).or_insert(0) += message.bytes;
            }
            let Sized { count, element_bytes, .. } = *sized;
            let matrix = Sent { algorithm, root: 0, count, element_bytes, hosts };
            let mut matrix = matrix.by_all().unwrap();
            matrix.retain(|_, bytes| *bytes > 0);
            assert_eq!(sent, matrix, "{} {}", algorithm.collective, algorithm.name);
            (0..hosts.ranks())
                .for_each(|rank| std::fs::remove_file(format!("{prefix}.{rank}.et")).unwrap());
        });
    }

    /// Checks that a node depends only on earlier nodes, and that the nodes of all ranks have no
    /// cycle of dependencies.
    #[test]
    fn traces_can_be_executed_to_the_end() {
        each(|algorithm, hosts, sized| {
            let traces = traces(algorithm, sized, hosts).unwrap();
            let (mut done, mut sent) = (Vec::new(), BTreeMap::new());
            done.resize_with(traces.len(), Vec::<bool>::new);
            let mut left: usize = traces.iter().map(|trace| trace.nodes.len()).sum();
            while left > 0 {
                let before = left;
                for ((rank, trace), done) in (0_u64..).zip(&traces).zip(&mut done) {
                    done.resize(trace.nodes.len(), false);
                    for (index, node) in trace.nodes.iter().enumerate() {
                        let deps = node.data_deps.iter().chain(&node.ctrl_deps);
                        let mut waits = deps.map(|before| *before as usize);
                        if done[index] || !waits.all(|before| before < index && done[before]) {
                            continue;
                        }
                        let number = |name| super::super::chakra::number(&node.attr, name).unwrap();
                        let tag = number("comm_tag");
                        if node.r#type == i32::from(NodeType::CommSend) {
                            sent.insert((rank, number("comm_dst"), tag), ());
                        } else if node.r#type == i32::from(NodeType::CommRecv) {
                            let from = number("comm_src").unwrap();
                            let key = (from, Some(rank), tag);
                            if sent.remove(&key).is_none() {
                                continue;
                            }
                        }
                        done[index] = true;
                        left -= 1;
                    }
                }
                assert!(left < before, "{} {}", algorithm.collective, algorithm.name);
            }
        });
    }

    /// Checks that a ring receives each chunk before it passes the chunk on.
    #[test]
    fn a_ring_receives_a_chunk_before_it_passes_the_chunk_on() {
        let hosts = Hosts::one(4);
        let algorithm = algorithm::find(Collective::AllGather, "ring").unwrap();
        let traces = traces(algorithm, &sized(Collective::AllGather, 4, 4096), &hosts).unwrap();
        let kinds = |kind: NodeType| {
            let nodes = traces[1].nodes.iter();
            nodes.filter(move |node| node.r#type == i32::from(kind)).collect::<Vec<_>>()
        };
        let (sends, receives) = (kinds(NodeType::CommSend), kinds(NodeType::CommRecv));
        assert_eq!((sends.len(), receives.len()), (3, 3));
        for (send, receive) in sends[1..].iter().zip(&receives) {
            assert!(send.data_deps.contains(&receive.id), "{send:?} {receive:?}");
        }
    }
}
