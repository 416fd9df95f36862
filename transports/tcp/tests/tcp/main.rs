//! Tests of the TCP transport.

#[cfg(test)]
#[cfg(feature = "tls")]
mod channel;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod mending;
