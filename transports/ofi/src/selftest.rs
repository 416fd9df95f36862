//! The test of a provider: one endpoint sends and writes to another endpoint of the same process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_memory::{OutOfMemory, Region, RegionError};
use libfabric_sys::{
    FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA, FI_SEND, FI_WRITE, fi_context2,
};
use serde::{Deserialize, Serialize};

use crate::native::{
    Completion, Domain, Endpoint, Memory, OfiError, REMOTE, functions, registers_dma_bufs,
};
use crate::provider::{DATA_BYTES, best};

/// Bytes of a message that is sent.
const SENT_BYTES: usize = 4 << 10;
/// Bytes that are written: more than any provider sends at once.
const WRITTEN_BYTES: usize = 1 << 20;
/// Remote CQ data that the message and the write carry.
const DATA: u64 = 0x5eed_cafe;

/// Result of a test that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// True if a write with remote CQ data was tested too; false if the provider does not offer
    /// such writes.
    pub wrote: bool,
    /// True if the provider registers DMA-bufs (`FI_MR_DMABUF`), files of the kernel that stand for
    /// accelerator memory.
    pub dma_bufs: bool,
}

/// Reason why a provider has not passed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TestError {
    /// Failure that libfabric reports.
    #[error(transparent)]
    Ofi(#[from] OfiError),
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A read or a write is longer than its memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The provider does not exist here.
    #[error("there is no provider {0} with reliable datagram endpoints")]
    Unknown(String),
    /// A request has not completed in time.
    #[error("{what} has not completed within {within:?}")]
    Late {
        /// Name of the request.
        what: &'static str,
        /// Time that the request had.
        within: Duration,
    },
    /// Bytes or remote CQ data that arrived are not those that were sent.
    #[error("{what} arrived with wrong bytes or wrong remote CQ data")]
    Wrong {
        /// Name of the request.
        what: &'static str,
    },
}

/// Two endpoints that know each other.
struct Pair {
    ends: [Endpoint; 2],
    /// Per endpoint: the number by which it addresses the other endpoint.
    peers: [u64; 2],
    until: Instant,
    within: Duration,
}

impl Pair {
    fn open(domain: &Arc<Domain>, within: Duration) -> Result<Pair, TestError> {
        let ends = [Endpoint::open(domain)?, Endpoint::open(domain)?];
        let peers = [ends[0].insert(&ends[1].address()?)?, ends[1].insert(&ends[0].address()?)?];
        Ok(Pair { ends, peers, until: Instant::now() + within, within })
    }

    /// Polls both endpoints until each has a completion with all of its `flags`. Returns the
    /// completion of the second endpoint.
    fn wait(&self, what: &'static str, flags: [u64; 2]) -> Result<Completion, TestError> {
        let mut found: [Option<Completion>; 2] = [None; 2];
        loop {
            for ((end, flags), found) in self.ends.iter().zip(flags).zip(&mut found) {
                let polled = end.poll(what)?;
                *found = found.or(polled.filter(|polled| polled.flags & flags == flags));
            }
            if let [Some(_), Some(second)] = found {
                return Ok(second);
            }
            self.check_time(what)?;
        }
    }

    fn check_time(&self, what: &'static str) -> Result<(), TestError> {
        if Instant::now() < self.until {
            return Ok(());
        }
        Err(TestError::Late { what, within: self.within })
    }

    /// Repeats a request until it is taken.
    fn post(
        &self,
        what: &'static str,
        mut request: impl FnMut() -> Result<bool, OfiError>,
    ) -> Result<(), TestError> {
        while !request()? {
            // A provider with manual progress may need a poll of either queue.
            self.ends.iter().try_for_each(|end| end.poll(what).map(|_| ()))?;
            self.check_time(what)?;
        }
        Ok(())
    }
}

/// Tests a provider by its name: sends a message, writes if the provider offers writes with remote
/// CQ data, and compares what arrives with what was sent; then tries to register a DMA-buf. Once
/// the endpoints are open, sending and writing take no longer than `within`, unless the provider
/// itself hangs in a call.
///
/// # Errors
///
/// When the provider does not exist, fails, is late, or delivers wrong bytes or wrong CQ data.
pub fn test_provider(name: &str, within: Duration) -> Result<Passed, TestError> {
    let functions = functions()?;
    let info = best(functions, name)?.ok_or_else(|| TestError::Unknown(name.to_owned()))?;
    let domain = Domain::open(info, true)?;
    let mut contexts = [fi_context2 { internal: [std::ptr::null_mut(); 8] }; 4];
    let [at_recv, at_send, at_write, at_data] = contexts.each_mut().map(|at| &raw mut *at);
    let register = |region: Region| Memory::register(&domain, region, REMOTE);
    let (sent, received) =
        (register(pattern(SENT_BYTES)?)?, register(Region::allocate(SENT_BYTES)?)?);
    let (from, to) =
        (register(pattern(WRITTEN_BYTES)?)?, register(Region::allocate(WRITTEN_BYTES)?)?);
    // The pair is dropped first on every path. Its drop ends the requests under way.
    let pair = Pair::open(&domain, within)?;
    let (first, second) = (&pair.ends[0], &pair.ends[1]);
    let peer = pair.peers[0];

    let what = "a message";
    // SAFETY: memory and contexts live longer than the endpoints.
    pair.post(what, || unsafe { second.recv(&received, at_recv) })?;
    // SAFETY: as above.
    pair.post(what, || unsafe { first.send(&sent, DATA, peer, at_send) })?;
    let arrived = pair.wait(what, [FI_SEND, FI_RECV])?;
    compare(what, &sent, &received, arrived)?;

    let info = domain.info();
    let offers = info.has(FI_RMA) && info.domain().cq_data_size >= DATA_BYTES;
    if offers {
        let what = "a write";
        second.expose(&to)?;
        // Some providers consume a posted receive for the remote CQ data of a write.
        // SAFETY: as above.
        pair.post(what, || unsafe { second.recv(&received, at_data) })?;
        let remote = to.remote();
        // SAFETY: as above.
        pair.post(what, || unsafe { first.write(&from, DATA, peer, remote, at_write) })?;
        let arrived = pair.wait(what, [FI_WRITE, FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA])?;
        compare(what, &from, &to, arrived)?;
    }
    Ok(Passed { wrote: offers, dma_bufs: registers_dma_bufs(functions, name) })
}

/// Returns memory whose bytes depend on their position.
fn pattern(bytes: usize) -> Result<Region, TestError> {
    let region = Region::allocate(bytes)?;
    let pattern = Vec::from_iter((0..bytes).map(|at| (at * 31 + at / 251) as u8));
    region.write(0, &pattern)?;
    Ok(region)
}

fn compare(
    what: &'static str,
    from: &Memory,
    to: &Memory,
    arrived: Completion,
) -> Result<(), TestError> {
    let mut all = [vec![0; from.region.bytes()], vec![0; to.region.bytes()]];
    for (bytes, memory) in all.iter_mut().zip([from, to]) {
        memory.region.read(0, bytes)?;
    }
    if all[0] == all[1] && arrived.data == DATA { Ok(()) } else { Err(TestError::Wrong { what }) }
}
