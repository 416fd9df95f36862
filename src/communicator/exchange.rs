//! Small exchanges over the control plane, each with its topic: ranks that are at different points
//! of a program notice, instead of reading each other's bytes as something else.

use std::time::Duration;

use super::call::usage;
use super::error::Error;
use crate::bootstrap::ControlPlane;

/// What an exchange is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    Places,
    Nonces,
    Addresses,
    SharedMemory,
    SharedMemoryDone,
    SplitChoice,
    SplitAddress,
    Ready,
    Invitation,
}

impl Topic {
    const ALL: [Topic; 9] = [
        Topic::Places,
        Topic::Nonces,
        Topic::Addresses,
        Topic::SharedMemory,
        Topic::SharedMemoryDone,
        Topic::SplitChoice,
        Topic::SplitAddress,
        Topic::Ready,
        Topic::Invitation,
    ];

    /// The step of a program that it belongs to, for messages.
    fn step(self) -> &'static str {
        match self {
            Topic::Places | Topic::Nonces | Topic::Addresses | Topic::Ready => "connecting",
            Topic::SharedMemory | Topic::SharedMemoryDone => "alloc",
            Topic::SplitChoice | Topic::SplitAddress => "split",
            Topic::Invitation => "invite",
        }
    }
}

/// Hands every rank's bytes to every rank, in order of rank.
pub(super) fn exchange(
    control: &ControlPlane,
    topic: Topic,
    bytes: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut blob = vec![topic as u8];
    blob.extend_from_slice(bytes);
    control.recorder().aside(topic.step());
    let blobs = control.all_gather(blob, timeout);
    control.recorder().aside("");
    let blobs = blobs?;
    let mut parts = Vec::with_capacity(blobs.len());
    for (peer, blob) in blobs.into_iter().enumerate() {
        match blob.split_first() {
            Some((kind, rest)) if *kind == topic as u8 => parts.push(rest.to_vec()),
            other => {
                let theirs =
                    Topic::ALL.into_iter().find(|t| other.is_some_and(|o| *o.0 == *t as u8));
                return Err(usage(format!(
                    "the ranks disagree: rank {} is at {}, but rank {peer} at {}. All ranks must \
                     make the same calls in the same order",
                    control.rank(),
                    topic.step(),
                    theirs.map_or("something unknown", Topic::step)
                )));
            }
        }
    }
    Ok(parts)
}
