//! Message links between all ranks of a world.

use std::time::Duration;

use ccl_core::admission::{AdmissionError, Config, MessageLinks};
use ccl_core::time::Instant;
use ccl_core::transport::{Connected, Connecting, Lane, Listener, Secret, TransportError};

use crate::world::World;

const PATIENCE: Duration = Duration::from_secs(60);

/// Connects every rank with every other rank; each pair exchanges the locations of its slots.
/// `wrap` can put middleware around each rank's lane.
///
/// # Errors
///
/// Returns an error if the sizes in `config` are out of range, or if a rank dies meanwhile.
pub fn mesh(
    world: &World,
    config: Config,
    wrap: &mut dyn FnMut(u32, Box<dyn Lane>) -> Box<dyn Lane>,
) -> Result<Vec<MessageLinks>, AdmissionError> {
    let ranks = world.ranks();
    let peers = ranks.saturating_sub(1) as usize;
    let mut all = Vec::new();
    for rank in 0..ranks {
        let device = world.device(rank);
        let lane = wrap(rank, device.lane()?);
        all.push(MessageLinks::new(device, lane, config, peers)?);
    }
    let secret = Secret([7; 32]);
    for accepting in 0..ranks {
        let mut listener = world.device(accepting).listen(&secret)?;
        for asking in accepting + 1..ranks {
            let deadline = world.now() + PATIENCE;
            let address = listener.address();
            let hello = asking.to_le_bytes();
            let mut connecting =
                world.device(asking).connect(&address, &secret, &hello, deadline)?;
            let (theirs, ours) = meet(world, &mut *listener, &mut *connecting, deadline)?;
            let offer = all[accepting as usize].attach(asking, ours)?;
            let counter_offer = all[asking as usize].attach(accepting, theirs)?;
            all[asking as usize].import(accepting, &offer)?;
            all[accepting as usize].import(asking, &counter_offer)?;
        }
    }
    Ok(all)
}

/// Advances time until the two sides are connected. Returns the connecting side's end of the
/// connection, and then the listening side's end.
fn meet(
    world: &World,
    listener: &mut dyn Listener,
    connecting: &mut dyn Connecting,
    deadline: Instant,
) -> Result<(Connected, Connected), TransportError> {
    let mut accepted = None;
    loop {
        let now = world.now();
        accepted = accepted.or(listener.poll(now)?);
        if let (Some(theirs), true) = (connecting.poll(now)?, accepted.is_some())
            && let Some(ours) = accepted.take()
        {
            return Ok((theirs, ours));
        }
        if now >= deadline {
            let (what, peer) = ("connecting", "a simulated rank".to_owned());
            return Err(TransportError::Deadline { what, peer, after: PATIENCE });
        }
        world.step();
    }
}
