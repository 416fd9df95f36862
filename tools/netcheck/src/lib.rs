//! Checks whether a network plugin for NCCL keeps the contract. `ferroccl netcheck
//! libnccl-net-x.so` opens and drives any plugin as NCCL does. It prints for each point of the
//! contract whether the plugin keeps it, and measures performance.
//!
//! Each point in `points` runs in fresh processes, most in two: the *receiver*, which listens, and
//! the *sender*, which connects. A crash, a hang or a leak spoils one point and no other. The
//! modules, from the outside in:
//!
//! * `session`: runs the points one after another, prints the results, sets the exit status
//! * `pair`: starts the processes, carries messages between them, ends them at the deadline
//! * `side`: one of the processes: its steps, its peer, its deadline
//! * `link`: a connection with its memory, and how NCCL drives it
//! * `net`: the plugin, the same for all versions of the interface
//! * `calls`, `library`: access to the plugin's functions, and to the library that exports them

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
