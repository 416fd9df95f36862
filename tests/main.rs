//! Integration tests: one binary, one module per area.

#[cfg(test)]
mod bootstrap;
#[cfg(test)]
mod launch;
