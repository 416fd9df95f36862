//! A communicator of threads in one process, for tests. It moves and reduces real data in the
//! simplest way. It shares only element formats and buffer layouts with the perf programs. The rest
//! is separate code, so that the programs are not tested against themselves.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ccl_core::random::Random;
use ccl_core::types::{Collective, DataType, Rank, ReduceOp};

use super::data::format::{FloatFormat, element_bits, integer, push_element};
use super::subject::{Buffers, Peer, Plan, Request, Shape, Subject, SubjectError};

const DEADLINE: Duration = Duration::from_secs(60);

/// Fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No fault.
    None,
    /// One bit of this byte of the output flips in every call on this rank.
    Flip { rank: Rank, byte: usize },
    /// The contribution of this rank is left out of reductions.
    LoseContribution { rank: Rank },
    /// Calls on this rank fail.
    Fail { rank: Rank },
    /// No fault, but messages between two ranks take a random time by a simulated clock. The
    /// distribution is skewed, and messages of the slow pair take `percent` percent longer.
    Timed { seed: u64, slow: (Rank, Rank), percent: u32 },
}

#[derive(Default)]
struct Board {
    inputs: Vec<Vec<u8>>,
    arrived: usize,
    round: u64,
}

struct Shared {
    board: Mutex<Board>,
    changed: Condvar,
    fault: Fault,
}

/// One rank.
pub(super) struct Fake {
    rank: Rank,
    ranks: u32,
    shared: Arc<Shared>,
    /// Time at which the rank started.
    start: Instant,
    /// Time that has passed on the simulated clock of [`Fault::Timed`].
    passed: Duration,
    random: Random,
}

/// Runs `body` on every rank, each in a thread of its own, and returns the results in rank order.
pub(super) fn with_ranks<T: Send>(
    ranks: u32,
    fault: Fault,
    body: impl Fn(&mut Fake) -> T + Sync,
) -> Vec<T> {
    let board = Mutex::new(Board { inputs: vec![Vec::new(); ranks as usize], ..Board::default() });
    let shared = Arc::new(Shared { board, changed: Condvar::new(), fault });
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let seed = if let Fault::Timed { seed, .. } = fault { seed } else { 0 };
                let mut fake = Fake {
                    rank,
                    ranks,
                    shared: Arc::clone(&shared),
                    start: Instant::now(),
                    passed: Duration::ZERO,
                    random: Random::new(seed.wrapping_mul(1000) + u64::from(rank)),
                };
                let body = &body;
                scope.spawn(move || body(&mut fake))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

impl Fake {
    /// Gathers the bytes of all ranks, in rank order.
    fn exchange(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, SubjectError> {
        if self.shared.fault == (Fault::Fail { rank: self.rank }) {
            return Err("planted failure".into());
        }
        self.shared.board.lock().unwrap().inputs[self.rank as usize] = own;
        self.meet()?;
        let all = self.shared.board.lock().unwrap().inputs.clone();
        self.meet()?;
        Ok(all)
    }

    fn meet(&self) -> Result<(), SubjectError> {
        let mut board = self.shared.board.lock().unwrap();
        let round = board.round;
        board.arrived += 1;
        if board.arrived == self.ranks as usize {
            board.arrived = 0;
            board.round += 1;
            self.shared.changed.notify_all();
            return Ok(());
        }
        let wait = self.shared.changed.wait_timeout_while(board, DEADLINE, |b| b.round == round);
        if wait.unwrap().1.timed_out() { Err("a rank is missing".into()) } else { Ok(()) }
    }

    /// Advances the simulated clock by the time that messages between two ranks take.
    fn pass(&mut self, shape: Shape<'_>) {
        let Fault::Timed { slow, percent, .. } = self.shared.fault else { return };
        let Shape::Pair { from, to, messages, .. } = shape else { return };
        let far = if self.random.chance(0.02) { 10.0 } else { 1.0 };
        let longer = if slow == (from, to) { 1.0 + f64::from(percent) / 100.0 } else { 1.0 };
        let micros = 5.0 * (1.0 + self.random.unit()) * far * longer * messages as f64;
        self.passed += Duration::from_secs_f64(micros * 1e-6);
    }

    fn result(&self, request: &Request<'_>, all: &[Vec<u8>]) -> Option<Vec<u8>> {
        let (rank, ranks) = (self.rank as usize, self.ranks as usize);
        let root = request.root as usize;
        let size = request.data_type.bytes();
        let block = |from: usize, index: usize, count: usize| {
            all[from][index * count * size..(index + 1) * count * size].to_vec()
        };
        let Shape::Even { count } = request.shape else { return self.uneven(request, all) };
        Some(match request.collective {
            Collective::AllReduce => self.reduced(request, all),
            Collective::Reduce if rank == root => self.reduced(request, all),
            Collective::ReduceScatter => {
                let whole = self.reduced(request, all);
                whole[rank * count * size..(rank + 1) * count * size].to_vec()
            }
            Collective::AllGather => all.concat(),
            Collective::Gather if rank == root => all.concat(),
            Collective::Broadcast => all[root].clone(),
            Collective::Scatter => block(root, rank, count),
            Collective::AllToAll => (0..ranks).flat_map(|from| block(from, rank, count)).collect(),
            Collective::SendRecv => all[(rank + ranks - 1) % ranks].clone(),
            _ => return None,
        })
    }

    fn uneven(&self, request: &Request<'_>, all: &[Vec<u8>]) -> Option<Vec<u8>> {
        match request.shape {
            Shape::Pair { from, to, messages, .. } if to == self.rank => {
                Some(all[from as usize].repeat(messages))
            }
            Shape::Vector { .. } => {
                // The counts precede the data of each input; see `run`.
                let mut output = Vec::new();
                for input in all {
                    let (counts, data) = input.split_at(8 * self.ranks as usize);
                    let counts: Vec<usize> =
                        counts.chunks(8).map(|c| element_bits(c) as usize).collect();
                    let size = request.data_type.bytes();
                    let rank = self.rank as usize;
                    let start = size * counts[..rank].iter().sum::<usize>();
                    output.extend_from_slice(&data[start..start + size * counts[rank]]);
                }
                Some(output)
            }
            _ => None,
        }
    }

    /// Reduces rank by rank and rounds after each step; each rank begins with its own contribution.
    fn reduced(&self, request: &Request<'_>, all: &[Vec<u8>]) -> Vec<u8> {
        let mut output = Vec::new();
        let size = request.data_type.bytes();
        for element in 0..all[0].len() / size {
            let values: Vec<u64> = (0..self.ranks)
                .map(|step| (self.rank + step) % self.ranks)
                .filter(|&rank| {
                    self.shared.fault != (Fault::LoseContribution { rank }) || self.ranks == 1
                })
                .map(|rank| {
                    let bytes = &all[rank as usize][element * size..(element + 1) * size];
                    scaled(request, rank, element_bits(bytes))
                })
                .collect();
            let combined = match FloatFormat::of(request.data_type) {
                Some(format) => combine_floats(request.op, format, &values, self.ranks),
                None => combine_integers(request.op, request.data_type, &values, self.ranks),
            };
            push_element(&mut output, request.data_type, combined);
        }
        output
    }
}

/// Multiplies an element by its rank's scalar for [`ReduceOp::PremulSum`]. A request has only the
/// scalar of its own rank, so this function uses nccl-tests' scalars: 1 on even ranks, 2 on odd
/// ones.
fn scaled(request: &Request<'_>, rank: Rank, bits: u64) -> u64 {
    match (request.op, FloatFormat::of(request.data_type)) {
        (ReduceOp::PremulSum, _) if rank.is_multiple_of(2) => bits,
        (ReduceOp::PremulSum, Some(format)) => format.encode(format.decode(bits) * 2.0),
        (ReduceOp::PremulSum, None) => bits.wrapping_mul(2),
        _ => bits,
    }
}

fn combine_floats(op: ReduceOp, format: FloatFormat, values: &[u64], ranks: u32) -> u64 {
    let round = |value: f64| format.decode(format.encode(value));
    let numbers = values.iter().map(|&bits| format.decode(bits));
    let combined = numbers.reduce(|a, b| match op {
        ReduceOp::Prod => round(a * b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        _ => round(a + b),
    });
    let combined = combined.unwrap();
    // Multiplies by the rounded reciprocal, as a vector kernel does.
    let scale = f64::from(1.0 / ranks as f32);
    let scale = if format.mantissa_bits == 52 { 1.0 / f64::from(ranks) } else { scale };
    format.encode(if op == ReduceOp::Avg { combined * scale } else { combined })
}

fn combine_integers(op: ReduceOp, data_type: DataType, values: &[u64], ranks: u32) -> u64 {
    let wrap = |value: i128| integer(data_type, value as u64);
    let numbers = values.iter().map(|&bits| integer(data_type, bits));
    let combined = numbers.reduce(|a, b| match op {
        ReduceOp::Prod => wrap(a.wrapping_mul(b)),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        _ => wrap(a + b),
    });
    let combined = combined.unwrap();
    (if op == ReduceOp::Avg { combined / i128::from(ranks) } else { combined }) as u64
}

impl Fake {
    fn run_once(
        &mut self,
        request: &Request<'_>,
        buffers: &mut Buffers<'_>,
    ) -> Result<(), SubjectError> {
        self.pass(request.shape);
        let counts = super::geometry::Layout::of(
            request.collective,
            &match request.shape {
                Shape::Even { count } => super::geometry::Counts::Even(count),
                Shape::Vector { send, recv } => {
                    super::geometry::Counts::Vector { send: send.to_vec(), recv: recv.to_vec() }
                }
                Shape::Pair { from, to, messages, count } => {
                    super::geometry::Counts::Pair { from, to, messages, count }
                }
            },
            self.rank,
            self.ranks,
        );
        let size = request.data_type.bytes();
        let (input, output) = match buffers {
            Buffers::OutOfPlace { input, output } => (input.to_vec(), &mut **output),
            Buffers::InPlace(whole) => {
                assert_eq!(whole.len(), size * counts.whole());
                let start = size * counts.input_offset;
                let input = whole[start..start + size * counts.input].to_vec();
                let start = size * counts.output_offset;
                (input, &mut whole[start..start + size * counts.output])
            }
        };
        assert_eq!((input.len(), output.len()), (size * counts.input, size * counts.output));
        let mut own = Vec::new();
        if let Shape::Vector { send, .. } = request.shape {
            own.extend(send.iter().flat_map(|&count| (count as u64).to_ne_bytes()));
        }
        own.extend(input);
        let all = self.exchange(own)?;
        if let Some(result) = self.result(request, &all) {
            output.copy_from_slice(&result);
        }
        if let Fault::Flip { rank, byte } = self.shared.fault
            && rank == self.rank
            && let Some(byte) = output.get_mut(byte)
        {
            *byte ^= 1;
        }
        Ok(())
    }
}

impl Subject for Fake {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn run(
        &mut self,
        request: &Request<'_>,
        mut buffers: Buffers<'_>,
        times: u64,
    ) -> Result<(), SubjectError> {
        (0..times).try_for_each(|_| self.run_once(request, &mut buffers))
    }

    fn barrier(&mut self) -> Result<(), SubjectError> {
        self.meet()
    }

    fn now(&self) -> Instant {
        match self.shared.fault {
            Fault::Timed { .. } => self.start + self.passed,
            _ => Instant::now(),
        }
    }

    fn all_gather_f64(&mut self, value: f64) -> Result<Vec<f64>, SubjectError> {
        let all = self.exchange(value.to_ne_bytes().to_vec())?;
        Ok(all.iter().map(|bytes| f64::from_bits(element_bits(bytes))).collect())
    }

    fn explain(&mut self, request: &Request<'_>) -> Plan {
        Plan {
            algorithm: "board".to_owned(),
            text: format!("{} by a board", request.collective),
            detail: serde_json::json!({ "board": true }),
        }
    }

    fn transport(&self) -> String {
        "fake".to_owned()
    }

    fn peers(&self) -> Vec<Peer> {
        Vec::new()
    }
}
