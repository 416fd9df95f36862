//! One collective, over mapped slots in memory or over a simulated network.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use ccl_core::admission::{Config, Counters, MessageLinks};
use ccl_core::algorithm::{Algorithm, Params};
use ccl_core::execution::{CallParams, Execution, Progress};
use ccl_core::lower::{Alias, lower_for_slots};
use ccl_core::schedule::shape::{Blocks, Seat, Sizes};
use ccl_core::schedule::{Layout, RankSchedule};
use ccl_core::topology::Hosts;
use ccl_core::transport::Lane;
use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
use ccl_kernels_cpu::{Kernel, Scalar};
use ccl_links::Links;
use ccl_links::mapped::{Duplex, MappedLinks};
use ccl_links::ports::{CallMemory, CpuPorts};
use ccl_memory::Region;
use ccl_memory::slots::{Receiver, Sender, Shape};
use ccl_transport_sim::{Operation, Outcome, Random, World, mesh, run};

pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Parameters of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) algorithm: &'static Algorithm,
    pub(crate) ranks: u32,
    pub(crate) root: Rank,
    /// Elements of a block, if all blocks have the same length. In collectives whose blocks differ
    /// in length, such as all_to_all_v, a block has 0, 0.5, 1 or 1.5 times this number.
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    /// True if input and output share one buffer. If their sizes differ, the smaller is a block of
    /// the larger.
    pub(crate) in_place: bool,
    pub(crate) config: Config,
    /// Ranks on each host; the last host may have fewer.
    pub(crate) per_host: u32,
}

impl Job {
    /// Creates a float32 sum with small slots, so that there are many messages.
    pub(crate) fn new(ranks: u32, algorithm: &'static Algorithm, count: usize) -> Job {
        let config = Config {
            channels: 1,
            slots: 4,
            slots_min: 1,
            slot_bytes: 256,
            budget_bytes: 1 << 20,
            zero_copy_bytes_min: 1,
            registered_bytes_max: 0,
        };
        let (data_type, op) = (DataType::Float32, ReduceOp::Sum);
        Job {
            algorithm,
            ranks,
            root: 0,
            count,
            data_type,
            op,
            in_place: false,
            config,
            per_host: 3,
        }
    }

    /// Returns a description of the job for failure messages.
    pub(crate) fn name(&self) -> String {
        let Job { algorithm, ranks, root, count, data_type, op, in_place, config, .. } = self;
        let (collective, name) = (algorithm.collective, algorithm.name);
        let place = if *in_place { "in place" } else { "out of place" };
        format!(
            "{collective} {name} of {count} {data_type} {op} {place}, {ranks} ranks, root {root}, \
             {config:?}"
        )
    }

    /// Returns whether the job can run in place. Grouped sends and receives cannot.
    pub(crate) fn has_in_place(&self) -> bool {
        self.algorithm.name != "send_recv"
    }

    fn schedule(&self, rank: Rank) -> RankSchedule {
        let hosts = self.hosts();
        let Job { ranks, root, .. } = *self;
        (self.algorithm.schedule)(&Params { rank, ranks, root, hosts: &hosts })
    }

    /// Returns the hosts of the ranks; the last host has the remaining ranks.
    fn hosts(&self) -> Hosts {
        Hosts::of(&(0..self.ranks).map(|rank| rank / self.per_host).collect::<Vec<_>>())
    }

    /// Returns the links' sizes, with slots large enough for one element of each part of a message.
    fn links(&self) -> Config {
        let widest = self.schedule(0).message_parts as usize * self.data_type.bytes();
        let slot_bytes = self.config.slot_bytes.max(widest.next_multiple_of(64));
        Config { slot_bytes, ..self.config }
    }

    /// Returns the limit on the bytes under way towards a rank.
    pub(crate) fn in_flight_bytes_max(&self) -> usize {
        self.links().in_flight_bytes_max(self.ranks as usize - 1)
    }

    /// Returns the layouts of input and output.
    fn layouts(&self, rank: Rank, split: u32) -> (Layout, Layout) {
        use Collective as C;
        let uneven = |block: u32| (self.count * (block as usize * 5 % 4)) / 2;
        // In place, the block sent to a peer is as long as the block received from it.
        let pair = |from: Rank, to: Rank| if self.in_place { from + to } else { from * 3 + to };
        let counts = |count: &dyn Fn(Rank) -> usize| (0..self.ranks).map(count).collect::<Vec<_>>();
        let (all, sent, received) = (
            counts(&uneven),
            counts(&|peer| uneven(pair(rank, peer))),
            counts(&|peer| uneven(pair(peer, rank))),
        );
        let starts = [&all, &sent, &received].map(|counts| {
            let next = |at: &mut usize, count: &usize| Some(std::mem::replace(at, *at + count));
            counts.iter().scan(0, next).collect::<Vec<_>>()
        });
        let all = Blocks { counts: &all, starts: &starts[0] };
        let send = Blocks { counts: &sent, starts: &starts[1] };
        let recv = Blocks { counts: &received, starts: &starts[2] };
        let sizes = match self.algorithm.collective {
            C::AllToAllV => Sizes::Pairs { send, recv },
            C::GatherV | C::ScatterV if rank != self.root => Sizes::Own(uneven(rank)),
            C::AllGatherV | C::ReduceScatterV | C::GatherV | C::ScatterV => Sizes::PerRank(all),
            _ => Sizes::Even(self.count),
        };
        self.seat(rank).layouts(sizes, split, 1).unwrap()
    }

    fn seat(&self, rank: Rank) -> Seat {
        let collective = self.algorithm.collective;
        Seat { collective, rank, ranks: self.ranks, root: self.root }
    }

    /// Returns the lengths of the rank's input and output, in bytes.
    fn bytes(&self, rank: Rank) -> (usize, usize) {
        let (seat, (input, output)) = (self.seat(rank), self.layouts(rank, 1));
        let (inputs, outputs) = seat.blocks();
        let sum = |layout: &Layout, blocks: u32, there: bool| {
            let elements: usize = (0..blocks).map(|block| layout.part(block).1).sum();
            if there { elements * self.data_type.bytes() } else { 0 }
        };
        (sum(&input, inputs, seat.has_input()), sum(&output, outputs, seat.has_output()))
    }

    /// Returns the start of the input and the start of the output within the single buffer of an
    /// in-place call.
    fn shared(&self, rank: Rank) -> (usize, usize) {
        let ((input, output), layouts) = (self.bytes(rank), self.layouts(rank, 1));
        let own = |layout: &Layout| layout.part(rank).0 * self.data_type.bytes();
        match input.cmp(&output) {
            Ordering::Less if input > 0 => (own(&layouts.1), 0),
            Ordering::Greater if output > 0 => (0, own(&layouts.0)),
            _ => (0, 0),
        }
    }

    fn numbers(&self, rank: Rank, split: u32) -> CallParams {
        let (input, output) = self.layouts(rank, split);
        let (element_bytes, slot_bytes) = (self.data_type.bytes(), self.links().slot_bytes);
        CallParams { input, output, element_bytes, slot_bytes }
    }

    /// Returns inputs whose sum depends on the order of addition.
    pub(crate) fn inputs(&self, seed: u64) -> Vec<Vec<u8>> {
        let mut random = Random::new(seed ^ 0x00da_7a00);
        let mut element = || -> [u8; 8] {
            let bits = random.bits();
            // Exponents near the middle, signs and mantissas of all kinds.
            match self.data_type {
                DataType::Float32 => {
                    let exponent = 107 + (bits >> 32) as u32 % 40;
                    u64::from((bits as u32 & 0x807f_ffff) | exponent << 23).to_le_bytes()
                }
                DataType::Float64 => {
                    let exponent = 1003 + (bits >> 56) % 40;
                    ((bits & 0x800f_ffff_ffff_ffff) | exponent << 52).to_le_bytes()
                }
                DataType::Bfloat16 => {
                    let exponent = 120 + (bits >> 32) % 14;
                    ((bits & 0x807f) | exponent << 7).to_le_bytes()
                }
                DataType::Float16 => {
                    let exponent = 9 + (bits >> 32) % 12;
                    ((bits & 0x83ff) | exponent << 10).to_le_bytes()
                }
                _ => bits.to_le_bytes(),
            }
        };
        let width = self.data_type.bytes();
        let count = |rank| self.bytes(rank).0 / width;
        (0..self.ranks)
            .map(|rank| (0..count(rank)).flat_map(|_| element()[..width].to_vec()).collect())
            .collect()
    }
}

/// Buffers of one rank, which live as long as its ports use them.
pub(crate) struct Buffers {
    /// Input; empty if the call is in place.
    input: Vec<u8>,
    /// Output; if the call is in place, the buffer of input and output.
    output: Vec<u8>,
    scratch: Vec<u8>,
    /// Start of the result within `output`.
    start: usize,
    bytes: usize,
}

impl Buffers {
    fn new(job: &Job, rank: Rank, input: &[u8], scratch_bytes: usize) -> Buffers {
        let (scratch, bytes) = (vec![0; scratch_bytes], job.bytes(rank).1);
        if !job.in_place {
            let (input, output) = (input.to_vec(), vec![0xee; bytes]);
            return Buffers { input, output, scratch, start: 0, bytes };
        }
        let (at, start) = job.shared(rank);
        let mut shared = vec![0xee; input.len().max(bytes)];
        shared[at..at + input.len()].copy_from_slice(input);
        Buffers { input: Vec::new(), output: shared, scratch, start, bytes }
    }

    pub(crate) fn into_output(self) -> Vec<u8> {
        self.output[self.start..self.start + self.bytes].to_vec()
    }
}

/// Returns everything that one rank needs to run.
pub(crate) fn prepare(
    job: &Job,
    rank: u32,
    input: &[u8],
    links: Links,
) -> (Execution, CpuPorts, Buffers) {
    let schedule = job.schedule(rank);
    let slots = job.links().reserved_slots(job.ranks as usize - 1);
    let alias = match job.in_place {
        true => Alias::of(job.algorithm.collective, rank, schedule.split),
        false => Alias::APART,
    };
    let program = Arc::new(lower_for_slots(&schedule, alias, slots));
    let mut execution = Execution::new(program, job.config.channels);
    execution.start(&job.numbers(rank, schedule.split));
    let mut buffers = Buffers::new(job, rank, input, execution.scratch_bytes());
    let kernel = Kernel::select(job.data_type, job.op, Scalar::NONE, job.ranks);
    let mut ports = CpuPorts::new(links, job.ranks as usize);
    let shared = buffers.output.as_mut_ptr();
    let (input, output) = match job.in_place {
        true => {
            let (input, output) = job.shared(rank);
            (shared.wrapping_add(input).cast_const(), shared.wrapping_add(output))
        }
        false => (buffers.input.as_ptr(), shared),
    };
    // SAFETY: the vectors are returned along with the ports and are not touched until the run is
    // over; they are as long as the layouts and the execution say. Input and output overlap only if
    // the call is in place.
    let call = unsafe { CallMemory::new(input, output, buffers.scratch.as_mut_ptr(), kernel, 77) };
    ports.bind(call);
    let lengths = job.bytes(rank);
    let buffers_of = [(input.addr(), lengths.0), (output.addr(), lengths.1)];
    // SAFETY: as above. Links without zero copy ignore these buffers. The callers close or drop
    // links with zero copy while the buffers still live.
    unsafe { ports.open(buffers_of.into_iter()) };
    (execution, ports, buffers)
}

/// Runs the job over mapped slots, with the ranks taking turns; returns the outputs of all ranks.
pub(crate) fn mapped(job: &Job, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let config = job.links();
    let slots = config.reserved_slots(job.ranks as usize - 1);
    let shape = Shape { slots, slot_bytes: config.slot_bytes };
    let (ranks, channels) = (job.ranks as usize, job.config.channels as usize);
    let index = |to: usize, from: usize, channel: usize| (to * ranks + from) * channels + channel;
    let regions: Vec<Region> =
        (0..ranks * ranks * channels).map(|_| Region::private(shape.link_bytes())).collect();
    // Creating a receiver gives the credits for its slots. All receivers are created before the
    // first sender, so each sender has its credits from the start.
    let mut receivers: Vec<Option<Receiver>> =
        regions.iter().map(|region| Some(Receiver::new(region, shape).unwrap())).collect();
    let mut all = Vec::new();
    for rank in 0..ranks {
        let mut links = Vec::new();
        for (peer, channel) in (0..ranks).flat_map(|peer| (0..channels).map(move |c| (peer, c))) {
            let receiver = receivers[index(rank, peer, channel)].take().unwrap();
            let sender = Sender::new(&regions[index(peer, rank, channel)], shape).unwrap();
            links.push((peer != rank).then_some(Duplex { sender, receiver }));
        }
        let doorbells = (0..ranks).map(|_| None).collect();
        let links = MappedLinks::new(job.config.channels, links, doorbells);
        all.push(prepare(job, rank as u32, &inputs[rank], Links::new(links, None)));
    }
    let mut turns = 0;
    while {
        let mut done = true;
        for (execution, ports, _) in &mut all {
            done &= execution.advance(ports) == Progress::Done;
        }
        !done
    } {
        turns += 1;
        assert!(turns < 1_000_000, "{} does not end over mapped slots", job.name());
    }
    all.into_iter().map(|(_, _, buffers)| buffers.into_output()).collect()
}

/// Result of a simulated run.
pub(crate) struct Simulated {
    pub(crate) links: Vec<MessageLinks>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) outputs: Vec<Vec<u8>>,
    pub(crate) counters: Vec<Counters>,
}

impl Simulated {
    /// Checks that all ranks ended with these outputs; an error says what is wrong.
    pub(crate) fn check(&self, expected: &[Vec<u8>]) -> Result<(), String> {
        for (rank, outcome) in self.outcomes.iter().enumerate() {
            if !matches!(outcome, Outcome::Done { .. }) {
                return Err(format!(
                    "rank {rank} has no result: {outcome:?}, {:?}",
                    self.counters[rank]
                ));
            }
            if self.outputs[rank] != expected[rank] {
                return Err(format!("rank {rank} has a wrong result"));
            }
        }
        Ok(())
    }

    pub(crate) fn refused(&self) -> u64 {
        self.counters.iter().map(|counters| counters.refused).sum()
    }
}

/// Function that puts middleware around a rank's lane.
pub(crate) type Wrap<'a> = &'a mut dyn FnMut(u32, Box<dyn Lane>) -> Box<dyn Lane>;

/// Connects the ranks of a world.
pub(crate) fn connect(job: &Job, world: &World, wrap: Wrap<'_>) -> Vec<MessageLinks> {
    mesh(world, job.links(), wrap).unwrap()
}

/// Returns the message links of a simulated rank's ports, which have no other links.
pub(crate) fn messages(ports: &mut CpuPorts) -> &mut MessageLinks {
    ports.links().messages().unwrap()
}

/// Runs the job over connected ranks.
pub(crate) fn operate(
    job: &Job,
    inputs: &[Vec<u8>],
    world: &World,
    links: Vec<MessageLinks>,
) -> Simulated {
    let mut operations = Vec::new();
    let mut all = Vec::new();
    for (rank, links) in links.into_iter().enumerate() {
        let links = Links::new(MappedLinks::default(), Some(links));
        let (execution, ports, buffers) = prepare(job, rank as u32, &inputs[rank], links);
        let mismatch = |ports: &CpuPorts| ports.mismatch().map(|mismatch| format!("{mismatch:?}"));
        operations.push(Operation::new(execution, ports, messages, mismatch));
        all.push(buffers);
    }
    let outcomes = run(world, &mut operations, DEADLINE);
    operations.iter_mut().for_each(|op| op.links().close());
    let counters = operations.iter_mut().map(|op| op.links().counters()).collect();
    let outputs = all.into_iter().map(Buffers::into_output).collect();
    let links = operations
        .into_iter()
        .map(|op| op.into_ports().into_links().into_messages().unwrap())
        .collect();
    Simulated { links, outcomes, outputs, counters }
}

/// Connects the ranks and runs the job.
pub(crate) fn simulate(job: &Job, inputs: &[Vec<u8>], world: &World) -> Simulated {
    let links = connect(job, world, &mut |_, lane| lane);
    operate(job, inputs, world, links)
}

/// Returns whether the deep tier runs.
pub(crate) fn full() -> bool {
    std::env::var_os("FERROCCL_TEST_FULL").is_some()
}

/// Factor by which the deep tier multiplies the number of seeds.
const FULL: u64 = 10;

/// Runs `check` for every seed below `count`. The deep tier runs [`FULL`] times as many seeds; a
/// replay runs only its seed.
pub(crate) fn seeds(count: u64, mut check: impl FnMut(u64) -> Result<(), String>) {
    let replay = std::env::var("FERROCCL_SIM_SEED").ok();
    let replay = replay.map(|seed| seed.parse::<u64>().expect("FERROCCL_SIM_SEED is a number"));
    let end = if full() { count * FULL } else { count };
    for seed in replay.map_or(0..end, |seed| seed..seed + 1) {
        if let Err(error) = check(seed) {
            panic!("seed {seed}: {error}\nreplay it with FERROCCL_SIM_SEED={seed}");
        }
    }
}
