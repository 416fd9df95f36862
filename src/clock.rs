//! The clock of the library. The clock is read here, not taken from a transport, and handed down to
//! lanes, links and state machines.

pub(crate) use ccl_clock::now;
