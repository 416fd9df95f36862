//! Tests of two communicators in one process, through the table of version 12.

mod faults;
mod messages;
mod misuse;
mod table;
