//! The TCP transport.

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod mending;
#[cfg(test)]
mod proxy;
