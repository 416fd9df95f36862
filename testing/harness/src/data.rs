//! Inputs whose results are exact, and the expected outputs of each rank, computed block by block
//! without a schedule.

use ccl_core::types::{Collective, DataType, ReduceOp};
use ccl_kernels_cpu::{Scalar, reference};
use ferroccl::Communicator;
use ferroccl::communicator::{Blocks, Call, Sizes};

/// Byte that fills out-of-place outputs before a call; the gaps between blocks must keep it.
const UNTOUCHED: u8 = 0xa5;

/// Parameters of one call that all ranks make.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Collective to call.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// Reduction operator, for collectives that reduce.
    pub op: ReduceOp,
    /// Root rank, for collectives that have one.
    pub root: u32,
    /// Number of elements of a block; uneven blocks have between 0 and twice this number.
    pub count: usize,
    /// Algorithm, or `None` to let the planner choose.
    pub algorithm: Option<&'static str>,
    /// True if input and output share memory.
    pub in_place: bool,
}

impl Case {
    /// Returns a case of int32 sums out of place.
    pub fn new(collective: Collective, count: usize) -> Case {
        let (data_type, op) = (DataType::Int32, ReduceOp::Sum);
        Case { collective, data_type, op, root: 0, count, algorithm: None, in_place: false }
    }
}

/// First element and length of each block.
type Places = Vec<(usize, usize)>;

/// A case, as one rank of a communicator sees it.
#[derive(Clone, Copy)]
struct Seat<'a> {
    case: &'a Case,
    rank: usize,
    ranks: usize,
}

/// Returns blocks of these lengths that lie in memory in reverse order, with a gap before each.
fn scattered(counts: Vec<usize>) -> Places {
    let mut end = 0;
    let mut places: Places = counts
        .into_iter()
        .rev()
        .map(|count| {
            let start = end + 3;
            end = start + count;
            (start, count)
        })
        .collect();
    places.reverse();
    places
}

impl Seat<'_> {
    fn per_rank(&self) -> Places {
        scattered((0..self.ranks).map(|rank| self.case.count * (rank * 5 % 7) / 3).collect())
    }

    fn pair(&self, from: usize, to: usize) -> usize {
        // In place, the blocks of a pair have the same length in both directions.
        let kind = if self.case.in_place { from + to } else { 3 * from + 5 * to };
        self.case.count * (kind % 4) / 2
    }

    /// Returns the blocks of the input and of the output, even if this rank has no input or no
    /// output.
    fn places(&self) -> (Places, Places) {
        use Collective as C;
        let Seat { rank, ranks, .. } = *self;
        let count = self.case.count;
        let one = |count| vec![(0, count)];
        let even = |blocks: usize| (0..blocks).map(|block| (block * count, count)).collect();
        let own = || one(self.per_rank()[rank].1);
        match self.case.collective {
            C::AllReduce | C::Reduce | C::Broadcast => (one(count), one(count)),
            C::Barrier | C::SendRecv => unreachable!(),
            C::AllGather | C::Gather => (one(count), even(ranks)),
            C::ReduceScatter | C::Scatter => (even(ranks), one(count)),
            C::AllToAll => (even(ranks), even(ranks)),
            C::AllGatherV | C::GatherV => (own(), self.per_rank()),
            C::ReduceScatterV | C::ScatterV => (self.per_rank(), own()),
            C::AllToAllV => {
                let send = (0..ranks).map(|peer| self.pair(rank, peer)).collect();
                let recv = (0..ranks).map(|peer| self.pair(peer, rank)).collect();
                (scattered(send), scattered(recv))
            }
        }
    }

    fn is_root(&self) -> bool {
        self.rank == self.case.root as usize
    }

    fn has_input(&self) -> bool {
        use Collective as C;
        !matches!(self.case.collective, C::Broadcast | C::Scatter | C::ScatterV) || self.is_root()
    }

    fn has_output(&self) -> bool {
        use Collective as C;
        !matches!(self.case.collective, C::Reduce | C::Gather | C::GatherV) || self.is_root()
    }

    /// Returns the bytes that block `block` of this rank's output must hold.
    fn expected(&self, block: usize, count: usize) -> Vec<u8> {
        use Collective as C;
        let (case, root) = (self.case, self.case.root as usize);
        match case.collective {
            C::AllReduce | C::Reduce => folded(case, self.ranks, 0, count),
            C::ReduceScatter | C::ReduceScatterV => folded(case, self.ranks, self.rank, count),
            C::Broadcast => content(case, root, 0, count),
            C::Scatter | C::ScatterV => content(case, root, self.rank, count),
            C::AllToAll | C::AllToAllV => content(case, block, self.rank, count),
            _ => content(case, block, 0, count),
        }
    }
}

/// Returns well mixed bits, different for each element of each block of each rank.
pub fn bits(rank: usize, block: usize, index: usize) -> u64 {
    let seed = (rank as u64) << 48 ^ (block as u64) << 40 ^ index as u64;
    let mixed = (seed ^ 0x2545_f491_4f6c_dd1d).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 32
}

/// Returns a block of a rank's input.
fn content(case: &Case, rank: usize, block: usize, count: usize) -> Vec<u8> {
    let width = case.data_type.bytes();
    let elements = (0..count).map(|index| element(case, rank, block, index));
    elements.flat_map(|element| element.into_iter().take(width)).collect()
}

fn element(case: &Case, rank: usize, block: usize, index: usize) -> [u8; 8] {
    use DataType as D;
    let bits = bits(rank, block, index);
    let is_integer =
        matches!(case.data_type, D::Int8 | D::Uint8 | D::Int32 | D::Uint32 | D::Int64 | D::Uint64);
    if is_integer || !case.collective.reduces() {
        return bits.to_ne_bytes();
    }
    let sign = if bits >> 63 == 0 { 1.0 } else { -1.0 };
    let narrow = case.data_type.bytes() == 1;
    let magnitude = match case.op {
        // Powers of two whose products stay near one.
        ReduceOp::Prod => [2.0, 0.5, 1.0, 1.0][(rank + index) % 4],
        ReduceOp::Min | ReduceOp::Max => [0.5, 1.0, 2.0][bits as usize % 3],
        // Few terms that are not 0, so that the type can hold every partial sum.
        _ if narrow => f64::from(u8::from((rank + index).is_multiple_of(6))),
        _ if case.data_type == D::Bfloat16 => (bits % 5) as f64,
        _ if case.data_type == D::Float16 => (bits % 33) as f64,
        _ => (bits % 2001) as f64,
    };
    // No negative zeros: the sign of a sum of +0 and -0 depends on the order.
    encode(case.data_type, if magnitude == 0.0 { 0.0 } else { sign * magnitude })
}

/// Encodes a small number that the type represents exactly.
fn encode(data_type: DataType, value: f64) -> [u8; 8] {
    use DataType as D;
    let sign = if value < 0.0 { 0x80 } else { 0 };
    let code = |half: u8, one: u8, two: u8| match value.abs() {
        0.0 => 0,
        0.5 => sign | half,
        1.0 => sign | one,
        2.0 => sign | two,
        other => panic!("the table of float8 codes does not have {other}"),
    };
    let bytes: &[u8] = match data_type {
        D::Float8E4m3 => &[code(0x30, 0x38, 0x40)],
        D::Float8E5m2 => &[code(0x38, 0x3c, 0x40)],
        D::Float16 => &half::f16::from_f64(value).to_ne_bytes(),
        D::Bfloat16 => &half::bf16::from_f64(value).to_ne_bytes(),
        D::Float32 => &(value as f32).to_ne_bytes(),
        D::Float64 => &value.to_ne_bytes(),
        _ => &(value as i64).to_ne_bytes(),
    };
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    all
}

/// Returns a rank's factor in premultiplied sums.
fn factor(case: &Case, rank: usize) -> [u8; 8] {
    encode(case.data_type, (rank % 2 + 1) as f64)
}

/// Returns block `block` of all ranks, reduced.
fn folded(case: &Case, ranks: usize, block: usize, count: usize) -> Vec<u8> {
    let terms: Vec<Vec<u8>> = (0..ranks)
        .map(|rank| {
            let own = content(case, rank, block, count);
            if case.op != ReduceOp::PremulSum {
                return own;
            }
            let scalar = (Scalar(factor(case, rank)), 1);
            reference::fold(case.data_type, case.op, scalar, &[(&own, true)], false).unwrap()
        })
        .collect();
    let terms: Vec<_> = terms.iter().map(|term| (term.as_slice(), false)).collect();
    let op = if case.op == ReduceOp::PremulSum { ReduceOp::Sum } else { case.op };
    let scalar = (Scalar::NONE, ranks as u32);
    reference::fold(case.data_type, op, scalar, &terms, true).unwrap()
}

fn span(places: &Places) -> usize {
    places.iter().map(|(start, count)| start + count).max().unwrap_or(0)
}

fn put(into: &mut [u8], width: usize, start: usize, bytes: &[u8]) {
    into[start * width..][..bytes.len()].copy_from_slice(bytes);
}

/// Makes a case's call on this rank and compares the output with the expected one.
pub fn check(communicator: &mut Communicator, case: &Case) {
    let (rank, ranks) = (communicator.rank() as usize, communicator.ranks() as usize);
    let seat = Seat { case, rank, ranks };
    let (sends, recvs) = seat.places();
    let split = |places: &Places| places.iter().copied().unzip::<_, _, Vec<_>, Vec<_>>();
    let ((send_starts, send_counts), (recv_starts, recv_counts)) = (split(&sends), split(&recvs));
    let send = Blocks { counts: &send_counts, starts: &send_starts };
    let recv = Blocks { counts: &recv_counts, starts: &recv_starts };
    use Collective as C;
    let sizes = match case.collective {
        C::AllGatherV => Sizes::PerRank(recv),
        C::ReduceScatterV => Sizes::PerRank(send),
        C::GatherV if seat.is_root() => Sizes::PerRank(recv),
        C::ScatterV if seat.is_root() => Sizes::PerRank(send),
        C::GatherV => Sizes::Own(sends[0].1),
        C::ScatterV => Sizes::Own(recvs[0].1),
        C::AllToAllV => Sizes::Pairs { send, recv },
        _ => Sizes::Even(case.count),
    };
    let call = Call {
        op: case.op,
        scalar: factor(case, rank),
        root: case.root,
        algorithm: case.algorithm,
        ..Call::sized(case.collective, case.data_type, sizes)
    };
    let (got, expected) = match case.in_place {
        true => run_in_place(communicator, &call, &seat, (sends, recvs)),
        false => run_apart(communicator, &call, &seat, (&sends, &recvs)),
    };
    if got != expected {
        let at = got.iter().zip(&expected).position(|(got, expected)| got != expected).unwrap();
        let element = at / case.data_type.bytes();
        panic!("rank {rank} of {ranks}: element {element} is wrong after {case:?}");
    }
}

fn run_apart(
    communicator: &mut Communicator,
    call: &Call<'_>,
    seat: &Seat<'_>,
    (sends, recvs): (&Places, &Places),
) -> (Vec<u8>, Vec<u8>) {
    let width = seat.case.data_type.bytes();
    let mut input = vec![UNTOUCHED; if seat.has_input() { span(sends) * width } else { 0 }];
    let mut output = vec![UNTOUCHED; if seat.has_output() { span(recvs) * width } else { 0 }];
    let mut expected = output.clone();
    for (block, (start, count)) in sends.iter().enumerate().filter(|_| seat.has_input()) {
        put(&mut input, width, *start, &content(seat.case, seat.rank, block, *count));
    }
    for (block, (start, count)) in recvs.iter().enumerate().filter(|_| seat.has_output()) {
        put(&mut expected, width, *start, &seat.expected(block, *count));
    }
    let given = input.clone();
    communicator.call(call, &input, &mut output).unwrap_or_else(|e| panic!("{:?}: {e}", seat.case));
    assert_eq!(input, given, "the call changed its input: {:?}", seat.case);
    (output, expected)
}

/// Runs a case in place; returns the actual and the expected bytes of the buffer. Bytes outside the
/// output's blocks are not checked; on a rank without an output, all bytes must stay unchanged.
fn run_in_place(
    communicator: &mut Communicator,
    call: &Call<'_>,
    seat: &Seat<'_>,
    (mut sends, mut recvs): (Places, Places),
) -> (Vec<u8>, Vec<u8>) {
    let width = seat.case.data_type.bytes();
    // The smaller buffer is this rank's block of the larger one. If the rank does not know the
    // other ranks' counts, the larger buffer consists of this rank's block only.
    match (sends.len(), recvs.len(), call.sizes) {
        (1, _, Sizes::Own(_)) => recvs = sends.clone(),
        (_, 1, Sizes::Own(_)) => sends = recvs.clone(),
        (1, 2.., _) => sends = vec![recvs[seat.rank]],
        (2.., 1, _) => recvs = vec![sends[seat.rank]],
        _ => {}
    }
    let mut buffer = vec![UNTOUCHED; span(&sends).max(span(&recvs)) * width];
    for (block, (start, count)) in sends.iter().enumerate().filter(|_| seat.has_input()) {
        put(&mut buffer, width, *start, &content(seat.case, seat.rank, block, *count));
    }
    let before = buffer.clone();
    communicator
        .call_in_place(call, &mut buffer)
        .unwrap_or_else(|e| panic!("{:?}: {e}", seat.case));
    if !seat.has_output() {
        return (buffer, before);
    }
    let mut expected = buffer.clone();
    for (block, (start, count)) in recvs.iter().enumerate() {
        put(&mut expected, width, *start, &seat.expected(block, *count));
    }
    (buffer, expected)
}
