//! Tests of two communicators in one process, through the table of version 12. The tests of planted
//! faults call the methods of `Plugin` directly.

mod faults;
mod messages;
mod misuse;
mod table;
