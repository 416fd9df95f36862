//! Creation of the communicator of a perf program.

use std::process::ExitCode;

use ccl_core::admission::PeerStatistics;
use ccl_core::types::{Collective, Rank};

use super::memory::Storage;
use super::options::Options;
use super::subject::{Buffers, Peer, Plan, Request, Shape, Subject, SubjectError};
use ferroccl::communicator::{self, Blocks, Call, Communicator, Sizes};
use ferroccl::launch;

/// Starts the ranks of `-g` on this machine, waits until all of them have ended, and returns the
/// exit status of the run. Starts nothing and returns `None` in a process that is itself a rank,
/// whether this function or another launcher has started that process.
///
/// # Errors
/// When a rank cannot be started.
pub fn launch_local(ranks: u32) -> Result<Option<ExitCode>, SubjectError> {
    if launch::from_environment()?.is_some() {
        return Ok(None);
    }
    let program = std::env::current_exe()?;
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let exit = launch::spawn_local(ranks, &program, &arguments)?;
    Ok(Some(ExitCode::from(exit.code)))
}

/// Joins the communicator that the options and the environment describe.
///
/// # Errors
/// When the communicator cannot be joined.
pub fn open(options: &Options) -> Result<Box<dyn Subject>, SubjectError> {
    let mut config = communicator::config_from_environment()?;
    ferroccl::log::start(&config.debug)?;
    if let Some(transport) = &options.transport {
        config.transport.clone_from(transport);
    }
    if let Some(timeout) = options.timeout {
        config.timeout = timeout;
    }
    Ok(Box::new(Communicator::from_environment_with(config)?))
}

/// Returns the index of the first element of each block, where blocks are consecutive.
fn starts(counts: &[usize]) -> Vec<usize> {
    let add = |sum: &mut usize, &count: &usize| {
        let start = *sum;
        *sum += count;
        Some(start)
    };
    counts.iter().scan(0, add).collect()
}

fn call<'a>(request: &Request<'a>, sizes: Sizes<'a>) -> Call<'a> {
    Call {
        op: request.op,
        scalar: request.scalar.unwrap_or_default(),
        root: request.root,
        algorithm: request.algorithm,
        ..Call::sized(request.collective, request.data_type, sizes)
    }
}

fn run_sized(
    communicator: &mut Communicator,
    call: &Call<'_>,
    buffers: Buffers<'_>,
    times: u64,
) -> Result<(), SubjectError> {
    match buffers {
        Buffers::OutOfPlace { input, output } => {
            for _ in 0..times {
                communicator.call(call, input, output)?;
            }
        }
        Buffers::InPlace(buffer) => {
            for _ in 0..times {
                communicator.call_in_place(call, buffer)?;
            }
        }
    }
    Ok(())
}

/// Sends to one rank, receives from one rank, or both.
fn exchange(
    communicator: &mut Communicator,
    to: Option<Rank>,
    from: Option<Rank>,
    (messages, bytes): (usize, usize),
    buffers: &mut Buffers<'_>,
) -> Result<(), SubjectError> {
    let Buffers::OutOfPlace { input, output } = buffers else {
        return Err("send_recv has no in-place form".into());
    };
    // A rank that only sends has no output, and a rank that only receives has no input.
    let short = || SubjectError::from("send_recv: the buffers are shorter than the count");
    let mut group = communicator.group();
    if let Some(peer) = to {
        let input = input.get(..bytes).ok_or_else(short)?;
        group = (0..messages).fold(group, |group, _| group.send(input, peer));
    }
    if let Some(peer) = from {
        let mut rest = output.get_mut(..messages * bytes).ok_or_else(short)?;
        for _ in 0..messages {
            let (part, behind) = rest.split_at_mut(bytes);
            group = group.recv(part, peer);
            rest = behind;
        }
    }
    Ok(group.run()?)
}

impl Subject for Communicator {
    fn rank(&self) -> Rank {
        Communicator::rank(self)
    }

    fn ranks(&self) -> u32 {
        Communicator::ranks(self)
    }

    fn run(
        &mut self,
        request: &Request<'_>,
        mut buffers: Buffers<'_>,
        times: u64,
    ) -> Result<(), SubjectError> {
        let (rank, ranks) = (Communicator::rank(self), Communicator::ranks(self));
        let width = request.data_type.bytes();
        match request.shape {
            Shape::Even { count } if request.collective == Collective::SendRecv => {
                let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                let (to, from) = (Some(next), Some(previous));
                (0..times)
                    .try_for_each(|_| exchange(self, to, from, (1, count * width), &mut buffers))
            }
            Shape::Even { count } => {
                run_sized(self, &call(request, Sizes::Even(count)), buffers, times)
            }
            Shape::Vector { send, recv } => {
                let (send_starts, recv_starts) = (starts(send), starts(recv));
                let send = Blocks { counts: send, starts: &send_starts };
                let recv = Blocks { counts: recv, starts: &recv_starts };
                run_sized(self, &call(request, Sizes::Pairs { send, recv }), buffers, times)
            }
            Shape::Pair { from, to, messages, count } => {
                let (sends, receives) = (rank == from, rank == to);
                let (to, from) = (sends.then_some(to), receives.then_some(from));
                (0..times).try_for_each(|_| {
                    exchange(self, to, from, (messages, count * width), &mut buffers)
                })
            }
        }
    }

    fn register(&mut self, memory: Vec<u8>) -> Result<Storage, SubjectError> {
        Ok(Storage::Registered(Communicator::register(self, memory)?))
    }

    fn barrier(&mut self) -> Result<(), SubjectError> {
        Ok(Communicator::barrier(self)?)
    }

    fn all_gather_f64(&mut self, value: f64) -> Result<Vec<f64>, SubjectError> {
        let mut values = vec![0.0; Communicator::ranks(self) as usize];
        self.all_gather(&[value], &mut values)?;
        Ok(values)
    }

    fn explain(&mut self, request: &Request<'_>) -> Plan {
        let Shape::Even { count } = request.shape else { return Plan::default() };
        match Communicator::explain(self, &call(request, Sizes::Even(count))) {
            Ok(plan) => Plan {
                algorithm: plan.algorithm.clone(),
                text: format!("{}: {}", plan.algorithm, plan.reason),
                detail: serde_json::to_value(&plan).unwrap_or_default(),
            },
            Err(error) => Plan { text: error.to_string(), ..Plan::default() },
        }
    }

    fn transport(&self) -> String {
        Communicator::transport(self).to_owned()
    }

    fn peers(&self) -> Vec<Peer> {
        let (flows, rails) = (Vec::from_iter(self.flows()), Vec::from_iter(self.rails()));
        let peer = |(rank, statistics): (_, &PeerStatistics)| {
            let flows = flows.iter().filter(|(to, _)| *to == rank).map(|(_, flow)| *flow);
            let rails = rails.iter().filter(|(to, _)| *to == rank).map(|(_, rail)| rail.clone());
            let (flows, rails) = (flows.collect(), rails.collect());
            Peer { rank, statistics: statistics.clone(), flows, rails }
        };
        self.peer_statistics().map(peer).collect()
    }
}
