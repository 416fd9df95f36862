//! The clock of the library. The library reads this clock, never a transport's, and hands the time
//! down to lanes, links and state machines.

pub(crate) use ccl_clock::now;
