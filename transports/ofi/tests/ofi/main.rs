//! Tests over the libfabric that there is.

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod mending;
#[cfg(test)]
mod providers;
#[cfg(test)]
mod sleeping;
