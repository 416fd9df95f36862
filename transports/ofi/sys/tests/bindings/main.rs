//! Tests of the bindings with the installed libfabric.

#[cfg(test)]
mod headers;
