//! Tests over the libfabric that there is.

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod providers;
