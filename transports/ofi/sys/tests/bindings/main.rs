//! Tests of the bindings, with the libfabric that there is.

#[cfg(test)]
mod headers;
