//! Tests of the state machines against each other.

mod agreement;
mod bootstrapping;
mod joining;
mod net;
mod notes;
mod overlay;

use super::{Contact, Hello, Member, Message, Secret};
use ccl_core::time::Instant;
use ccl_core::types::Rank;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn secret() -> Secret {
    Secret::from_bytes([5; 32])
}

fn hello(rank: Rank, ranks: u32) -> Hello {
    let member =
        Member { host: [2; 16], process: 100 + rank, contact: Contact::new(None, rank as u16) };
    Hello { rank, ranks, library: "0.1.0".to_owned(), configuration: [1; 32], member }
}

fn frame(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    super::frame::append_frame(&mut bytes, &message.encode());
    bytes
}
