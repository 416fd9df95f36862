//! Small exchanges over the control plane. Each exchange has a topic. Ranks compare the topics, so
//! that ranks at different steps of the user's program notice the difference and misread no record.

use std::time::Duration;

use ccl_core::encoding::{decode, decode_first, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Error, StepError};
use crate::bootstrap::ControlPlane;

/// Topic of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    Devices,
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
        Topic::Devices,
        Topic::Nonces,
        Topic::Addresses,
        Topic::SharedMemory,
        Topic::SharedMemoryDone,
        Topic::SplitChoice,
        Topic::SplitAddress,
        Topic::Ready,
        Topic::Invitation,
    ];

    /// Returns the name of the step of the user's program that the topic belongs to.
    fn step(self) -> &'static str {
        match self {
            Topic::Devices | Topic::Nonces | Topic::Addresses | Topic::Ready => "connecting",
            Topic::SharedMemory | Topic::SharedMemoryDone => "alloc",
            Topic::SplitChoice | Topic::SplitAddress => "split",
            Topic::Invitation => "invite",
        }
    }
}

/// Exchanges one record per rank; returns the records of all ranks, in order of rank.
pub(super) fn exchange<T: Serialize + DeserializeOwned>(
    control: &ControlPlane,
    topic: Topic,
    own: &T,
    timeout: Duration,
) -> Result<Vec<T>, Error> {
    let blob = encode(&(topic as u8, own));
    control.recorder().set_step(topic.step());
    let blobs = control.all_gather(blob, timeout);
    control.recorder().set_step("");
    let blobs = blobs?;
    let mut parts = Vec::with_capacity(blobs.len());
    for (peer, blob) in (0..).zip(blobs) {
        match decode_first(&blob) {
            Ok((kind, part)) if kind == topic as u8 => {
                let step = topic.step();
                let part = decode(part);
                parts.push(part.map_err(|error| StepError::Malformed { peer, step, error })?);
            }
            other => {
                let kind = other.map(|(kind, _)| kind);
                let theirs = Topic::ALL.into_iter().find(|topic| kind == Ok(*topic as u8));
                let theirs = theirs.map_or("something unknown", Topic::step);
                let (rank, own) = (control.rank(), topic.step());
                return Err(StepError::Disagree { rank, own, peer, theirs }.into());
            }
        }
    }
    Ok(parts)
}
