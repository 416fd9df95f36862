//! The TCP transport.

#[cfg(all(test, feature = "tls"))]
mod channel;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod mending;
#[cfg(test)]
mod proxy;
