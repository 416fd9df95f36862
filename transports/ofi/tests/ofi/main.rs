//! Tests over the installed libfabric, and over software providers.

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod mending;
#[cfg(test)]
mod providers;
#[cfg(test)]
mod sleeping;
#[cfg(test)]
mod soft;
