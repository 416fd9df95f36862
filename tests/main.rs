//! Integration tests: one binary, one module per area.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bootstrap;
#[cfg(test)]
mod collectives;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod launch;
#[cfg(test)]
mod messages;
