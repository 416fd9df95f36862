//! The communicator: ranks that do collectives together.

mod agree;
mod api;
mod assumptions;
mod call;
mod derive;
pub(crate) mod devices;
mod element;
mod engine;
mod error;
mod exchange;
pub(crate) mod expected;
mod explain;
mod group;
pub(crate) mod network;
mod prediction_cache;
mod registered;
mod request;
mod scope;
mod segment;
mod symmetric;
pub(crate) mod tuning;
mod wait;
mod wiring;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ccl_core::config::{Config, ConfigError};
use ccl_core::queue_pairs::{Flow, Policy};
use ccl_core::select::tuning::Tuning;
use ccl_core::transport::RailState;
use ccl_core::types::Rank;
use ccl_socket::fork;

use crate::bootstrap::{ControlPlane, Join, Secret, UniqueId, join, random_bytes};
use crate::launch;
use crate::transports::{self, Choice};
use agree::FAILURE_WITHIN;
use call::Buffers;
use devices::Devices;
use engine::{Engine, UnbindGuard};
use group::Messages;
use network::Measured;
use request::Requests;
use wiring::Wiring;

pub use crate::bootstrap::{Invitation, Verdict};
pub use call::Call;
pub use ccl_core::admission::{PeerStatistics, WaitHistogram};
/// Former name of [`PeerStatistics`].
#[deprecated(since = "0.2.0", note = "use `PeerStatistics`")]
pub type Account = PeerStatistics;
/// Former name of [`WaitHistogram`].
#[deprecated(since = "0.2.0", note = "use `WaitHistogram`")]
pub type Waits = WaitHistogram;
pub use ccl_core::schedule::shape::{Blocks, Sizes};
pub use ccl_core::topology::Hosts;
pub use element::{Element, F8E4m3, F8E5m2, Reduction};
pub use error::{
    CallError, DeriveError, Error, SetupError, SharedMemoryError, StepError, TableError,
};
pub use expected::{Expected, expected};
pub use explain::{Explanation, explain};
pub use group::Group;
pub use registered::Registered;
pub use request::Request;
pub use scope::Scope;
pub use symmetric::SymmetricBuffer;
pub use tuning::machine;

/// Ranks that do collectives together. All ranks make the same calls in the same order.
///
/// A communicator is used by one thread at a time. A rank that drops its communicator leaves in
/// good order.
#[derive(Debug)]
pub struct Communicator {
    id: u64,
    engine: Engine,
    requests: Requests,
    /// Messages of the group that is being made, or of the most recent group.
    messages: Messages,
    control: Arc<ControlPlane>,
    /// The first error that ended this communicator on this rank.
    broken: Option<String>,
    /// Number of splits and invitations so far. The secret of each resulting communicator is
    /// derived from this number and from this communicator's secret.
    derived: u64,
    /// Control plane of a failed attempt to shrink, from which the next attempt continues.
    successor: Option<Arc<ControlPlane>>,
    is_shrunk: bool,
    generation: u32,
    /// Results of measuring the network, if it was measured.
    measured: Option<Measured>,
}

/// Handle that ends a communicator from any thread.
#[derive(Clone, Debug)]
pub struct AbortHandle {
    /// Control plane, held weakly: a handle that outlives its communicator does not keep the rank
    /// from leaving.
    control: Weak<ControlPlane>,
}

impl AbortHandle {
    /// Ends the communicator on all ranks: every call that has not ended, and every later call,
    /// fails with this reason. If the communicator has failed before, this rank gives up for good:
    /// [`Communicator::agree`] and [`Communicator::shrink`] end on this rank, and on ranks that
    /// wait for this rank. A communicator that is being made from this communicator ends as well.
    pub fn abort(&self, reason: &str) {
        if let Some(control) = self.control.upgrade() {
            control.abort(reason);
        }
    }
}

impl Communicator {
    /// Joins the ranks that the launcher started: torchrun, mpirun, srun, `-g N` of the perf
    /// programs, or the variables `FERROCCL_RANK`, `FERROCCL_RANKS` and `FERROCCL_COMM_ID`.
    /// Without any of them the communicator has one rank.
    ///
    /// # Errors
    ///
    /// When the environment is wrong, or not all ranks come together in time.
    pub fn from_environment() -> Result<Communicator, Error> {
        Communicator::from_environment_with(config_from_environment()?)
    }

    /// Does what [`Communicator::from_environment`] does, with `config` in place of the
    /// environment's configuration.
    ///
    /// # Errors
    ///
    /// The errors of [`Communicator::from_environment`].
    pub fn from_environment_with(config: Config) -> Result<Communicator, Error> {
        match launch::from_environment()? {
            None => Communicator::alone(config),
            Some(launch) => {
                let mut plan = launch.rendezvous(config.join_timeout)?;
                configure(&mut plan.join, &config)?;
                let secret = plan.join.id.secret.clone();
                Communicator::wired(Arc::new(plan.join()?), secret, config, None)
            }
        }
    }

    /// Joins as `rank` of `ranks`. All ranks are given the same id, and the same values of those
    /// settings that must be equal on all ranks.
    ///
    /// # Errors
    ///
    /// When not all ranks come together in time, or when they do not fit each other.
    pub fn join(
        rank: Rank,
        ranks: u32,
        id: UniqueId,
        config: Config,
    ) -> Result<Communicator, Error> {
        let mut how = Join::new(rank, ranks, id);
        how.limits.deadline = config.join_timeout;
        Communicator::join_with(how, config)
    }

    /// Joins with the parameters in `how`, such as a socket that listens already. The configuration
    /// digest, the host name, the timing and the settings of the recorder come from `config`.
    ///
    /// # Errors
    ///
    /// The errors of [`Communicator::join`].
    pub fn join_with(mut how: Join, config: Config) -> Result<Communicator, Error> {
        configure(&mut how, &config)?;
        let secret = how.id.secret.clone();
        Communicator::wired(Arc::new(join(how)?), secret, config, None)
    }

    /// Makes a communicator of one rank, which needs no other.
    ///
    /// # Errors
    ///
    /// When the system gives no random bytes.
    pub fn alone(config: Config) -> Result<Communicator, Error> {
        let secret = Secret::from_bytes(random_bytes()?);
        Communicator::join(0, 1, UniqueId { endpoints: Vec::new(), secret }, config)
    }

    /// Connects the ranks and adapts the links to the network. `measured` holds the results of an
    /// earlier measurement of the network, if there was one.
    fn wired(
        control: Arc<ControlPlane>,
        secret: Secret,
        config: Config,
        measured: Option<Measured>,
    ) -> Result<Communicator, Error> {
        let (told, rank) = (Arc::clone(&control), control.rank());
        let wired = Communicator::wire(control, secret, config, measured);
        wired.and_then(Communicator::adjusted_to_network).inspect_err(|error| {
            // Without a report, the others see a rank that leaves in good order. If the error names
            // a failed peer, this rank first waits a little for another rank's report.
            let (rank, reason, known) = match error {
                Error::RankFailed { rank, reason, .. } => {
                    (*rank, reason.clone(), told.await_failure(FAILURE_WITHIN))
                }
                _ => (rank, format!("it cannot take part: {error}"), told.failure()),
            };
            if known.is_none() {
                told.report(rank, reason);
            }
        })
    }

    fn wire(
        control: Arc<ControlPlane>,
        secret: Secret,
        config: Config,
        measured: Option<Measured>,
    ) -> Result<Communicator, Error> {
        fork::watch();
        ccl_core::select::check_configured(&config.algorithm)?;
        let ranks = control.ranks();
        let engine = if ranks == 1 {
            Engine::alone(Arc::clone(&control), config)
        } else {
            let (roster, rank) = (control.roster(), control.rank());
            let mut candidates = devices::candidates(&config, roster.hosts())?;
            devices::affinity::survey(&control, &config, &mut candidates)?;
            let mut taken = config.clone();
            let why = devices::settle(&config, &candidates).map(|(transport, why)| {
                tracing::info!("{why}");
                taken.transport = transport.to_owned();
                why
            });
            let network = Choice::named(&taken.transport)?.network;
            let candidate = candidates.iter().find(|candidate| Some(candidate.kind) == network);
            let is_infiniband = candidate.is_some_and(|candidate| candidate.survey.is_infiniband());
            let more = measured.as_ref().is_some_and(|measured| measured.more_flows);
            let (flows, note) = assumptions::flows(&taken, is_infiniband, more);
            let devices = Devices::open(&flows, roster, rank, candidate)?;
            let control = Arc::clone(&control);
            let mut wiring = Wiring::connect(control, devices, &secret, (&flows, note))?;
            wiring.why = why;
            Engine::over(wiring, config, ccl_transport_shm::parking())?
        };
        Ok(Communicator {
            id: next_id(),
            engine,
            requests: Requests::default(),
            messages: Messages::default(),
            control,
            broken: None,
            derived: 0,
            successor: None,
            is_shrunk: false,
            generation: fork::generation(),
            measured,
        })
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.engine.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.engine.ranks
    }

    /// Returns the configuration that this communicator was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.engine.config
    }

    /// Returns the transports that join the ranks, as `FERROCCL_TRANSPORT` names them (`shm`,
    /// `tcp`, `shm+verbs`); `self` for a single rank.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.engine.wiring.as_ref().map_or("self", |wiring| wiring.transports)
    }

    /// Former name of [`Communicator::peer_statistics`].
    #[deprecated(since = "0.2.0", note = "use `peer_statistics`")]
    pub fn accounts(&self) -> impl Iterator<Item = (Rank, &PeerStatistics)> {
        self.peer_statistics()
    }

    /// Iterates over the statistics of each peer that this rank sends messages to, by rank: bytes
    /// in flight, stalls, waits for credits. Peers that share memory with this rank are left out.
    pub fn peer_statistics(&self) -> impl Iterator<Item = (Rank, &PeerStatistics)> {
        self.engine.ports.view().peer_statistics()
    }

    /// Iterates over the current flows of this rank's messages, as an Ethernet fabric sees them,
    /// each with its destination rank. Only links over RoCE to connected peers have flows.
    /// [`max_to_mean`](ccl_core::queue_pairs::max_to_mean) returns how evenly a fabric would spread
    /// these flows.
    pub fn flows(&self) -> impl Iterator<Item = (Rank, Flow)> {
        self.engine.ports.view().flows()
    }

    /// Iterates over the rails to each connected peer, with the payload that each rail has carried
    /// and whether it has failed. With several RDMA devices there is one rail for each device; if
    /// no rank uses several devices, there are no rails.
    pub fn rails(&self) -> impl Iterator<Item = (Rank, RailState)> {
        self.engine.ports.view().rails()
    }

    /// Sets the queue-pair policy of this rank's messages from the next call on, in the syntax of
    /// `FERROCCL_IB_POLICY`. The policy uses the queue pairs that were made when the ranks joined.
    /// Other ranks keep their own policies. Transports other than verbs ignore the policy.
    /// Communicators that are split or shrunk from this one inherit the policy, which must then be
    /// the same on all their ranks.
    ///
    /// # Errors
    ///
    /// The text is no policy, or the policy needs more queue pairs than were made. The old policy
    /// then stays.
    pub fn set_policy(&mut self, policy: &str) -> Result<(), Error> {
        self.usable()?;
        let policy: Policy = policy.parse().map_err(CallError::Policy)?;
        if !self.is_idle() {
            self.drain_requests()?;
        }
        let links = self.engine.ports.links().messages();
        if let Some(beyond) = links.and_then(|links| links.change_policy(&policy)) {
            let (pairs, traffic_class) = (beyond.pairs, beyond.traffic_class);
            return Err(CallError::QueuePairs { pairs, traffic_class }.into());
        }
        if let Some(wiring) = &mut self.engine.wiring {
            wiring.config.ib_policy = policy.clone();
        }
        self.engine.config.ib_policy = policy;
        Ok(())
    }

    /// Returns the hosts of the ranks; ranks that share no memory count as hosts of their own.
    #[must_use]
    pub fn hosts(&self) -> &Hosts {
        &self.engine.hosts
    }

    /// Returns a handle with which other threads can end this communicator.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { control: Arc::downgrade(&self.control) }
    }

    /// Begins a group of sends and receives that move side by side.
    pub fn group(&mut self) -> Group<'_, '_> {
        Group::new(self)
    }

    /// Runs any call out of place on raw bytes of its element type.
    ///
    /// # Errors
    ///
    /// The errors of the typed methods.
    pub fn call(&mut self, call: &Call<'_>, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        self.run(call, Buffers::apart(input, output))
    }

    /// Runs any call in place: `buffer` is the larger of input and output, and the smaller one is
    /// this rank's block of it.
    ///
    /// # Errors
    ///
    /// The errors of the typed methods.
    pub fn call_in_place(&mut self, call: &Call<'_>, buffer: &mut [u8]) -> Result<(), Error> {
        self.run_in_place(call, buffer)
    }

    fn run(&mut self, call: &Call<'_>, buffers: Buffers) -> Result<(), Error> {
        self.usable()?;
        if !self.is_idle() {
            self.drain_requests()?;
        }
        let running = self.engine.begin(call, buffers)?;
        self.drive(&running)
    }

    fn run_in_place(&mut self, call: &Call<'_>, buffer: &mut [u8]) -> Result<(), Error> {
        call.same_blocks()?;
        self.run(call, Buffers::in_place(buffer, call, self.rank()))
    }

    fn run_messages(&mut self) -> Result<(), Error> {
        self.usable()?;
        if !self.is_idle() {
            self.drain_requests()?;
        }
        let running = self.engine.begin_messages(&self.messages)?;
        self.drive(&running)
    }

    fn drive(&mut self, running: &engine::Running) -> Result<(), Error> {
        let timeout = self.engine.config.timeout;
        let result = {
            let driven = UnbindGuard::new(&mut self.engine);
            let started = driven.engine.start(running);
            let finished = started.and_then(|()| driven.engine.finish(running, timeout));
            finished.inspect_err(|error| driven.engine.blame(error))
        };
        result.and_then(|()| self.check_may_end(running)).map_err(|error| {
            let during = self.during(&running.what);
            self.broken(error, during)
        })
    }

    fn not_forked(&self) -> Result<(), Error> {
        if self.generation == fork::generation() { Ok(()) } else { Err(Error::Forked) }
    }
}

fn configure(how: &mut Join, config: &Config) -> Result<(), ConfigError> {
    config.check()?;
    how.configuration = config.digest(&transports::tables())?;
    how.host.clone_from(&config.host_id);
    how.timing.heartbeat = config.heartbeat.min(config.dead_after / 6);
    how.timing.silence = config.dead_after;
    how.recorder = crate::recorder::Settings::of(config);
    Ok(())
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the configuration that the environment asks for.
///
/// # Errors
///
/// When a variable cannot be read as its type, or its value is outside its limits.
pub fn config_from_environment() -> Result<Config, Error> {
    let table = setting(TUNING)?;
    let config = config_with_table(table)?;
    tuning::check(&config)?;
    Ok(config)
}

/// Returns the configuration that the environment asks for, but without the environment's tuning
/// table, for tools that measure anew.
///
/// # Errors
///
/// The errors of [`config_from_environment`].
pub fn config_without_table() -> Result<Config, Error> {
    config_with_table(None)
}

const TUNING: &str = "FERROCCL_TUNING";

fn config_with_table(table: Option<String>) -> Result<Config, Error> {
    let tables = transports::tables();
    let all = Config::default().list(&tables)?;
    for tunable in all.iter().filter(|tunable| tunable.variable != TUNING) {
        launch::variable(tunable.variable)?;
    }
    let given = |name: &str| launch::variable(name).ok().flatten();
    let lookup = |name: &str| if name == TUNING { table.clone() } else { given(name) };
    let config = Config::read(&lookup, &tables)?;
    let settings = &config.tuning.settings;
    if settings.is_empty() {
        return Ok(config);
    }
    // A variable that is set, by either of its names, keeps its value.
    let alias = |name: &str| all.iter().find(|of| of.variable == name)?.alias;
    let is_given = |name: &str| given(name).or_else(|| given(alias(name)?)).is_some();
    let tuned = |name: &str| {
        let setting = settings.iter().find(|(known, _)| *known == name && !is_given(name));
        setting.map_or_else(|| lookup(name), |(_, value)| Some(value.clone()))
    };
    let wrong = |error| SetupError::Table(TableError::Setting(Box::new(error)));
    Ok(Config::read(&tuned, &tables).map_err(wrong)?)
}

/// Returns the configuration of the environment with `tuning` in place of the environment's tuning
/// table. Does not check that the table was measured on this machine.
///
/// # Errors
///
/// The errors of [`config_from_environment`].
pub fn config_with(tuning: &Tuning) -> Result<Config, Error> {
    config_with_table(Some(tuning.lines()))
}

/// Returns the value of a variable. If the variable is `FERROCCL_TUNING` and its value names a
/// file, returns the contents of the file.
#[doc(hidden)]
pub fn setting(variable: &str) -> Result<Option<String>, Error> {
    let value = launch::variable(variable)?;
    match variable {
        TUNING => value.map(|value| tuning::table(&value)).transpose(),
        _ => Ok(value),
    }
}
