//! Checks whether a network plugin for NCCL keeps the contract. `ferroccl netcheck
//! libnccl-net-x.so` opens any plugin as NCCL does, drives it as NCCL does, and prints which point
//! of the contract it keeps and which it breaks, and how fast it is.
//!
//! Each point is a function in `points` that reads as its documentation, and runs in two fresh
//! processes: the *receiver*, which listens, and the *sender*, which connects. A crash, a hang or a
//! leak spoils one point and no other. The modules, from the outside in:
//!
//! * `session`: runs the points one after another, prints and counts
//! * `pair`: starts the two processes, carries messages between them, ends them at the deadline
//! * `side`: one of the two: its steps, its peer, its deadline
//! * `link`: a connection with its memory, and how NCCL drives it
//! * `net`: the plugin, the same for all versions of the interface
//! * `calls`, `library`: the only doors to the plugin's functions

mod arguments;
mod calls;
mod fork;
mod library;
mod link;
mod log;
mod memory;
mod messages;
mod net;
mod pair;
mod part;
mod performance;
mod points;
mod process;
mod profiler;
mod properties;
mod report;
mod session;
mod side;
mod stop;
mod stream;
mod watch;

pub use arguments::Arguments;
pub use session::run;
