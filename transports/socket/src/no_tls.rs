//! Stand-in for TLS where the feature `tls` is left out: there never is a session.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use ccl_core::transport::TransportError;
use ccl_core::transport::handshake::ChannelKeys;

use crate::end::ConnectionEnd;
use crate::socket::Got;

/// A type without values.
#[derive(Clone, Debug)]
pub enum Tls {}

/// A type without values.
#[derive(Debug)]
pub enum Session {}

impl Tls {
    /// Returns an error that says what to do.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn new() -> Result<Tls, TransportError> {
        Err(TransportError::Setting {
            variable: "FERROCCL_TLS",
            problem: "this program was built without TLS".to_owned(),
            advice: "build it with the feature `tls`, or leave FERROCCL_TLS unset on all ranks",
        })
    }

    /// Cannot be called, since [`Tls`] has no values.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn session(&self, _: bool) -> Result<Session, TransportError> {
        match *self {}
    }
}

impl Session {
    pub(crate) fn agree(&mut self, _: &OwnedFd) -> Result<Option<ChannelKeys>, ConnectionEnd> {
        match *self {}
    }

    pub(crate) fn read(&mut self, _: &OwnedFd, _: &mut [IoSliceMut<'_>]) -> Got {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &OwnedFd, _: &[IoSlice<'_>]) -> Got {
        match *self {}
    }

    pub(crate) fn flush(&mut self, _: &OwnedFd) -> Result<bool, ConnectionEnd> {
        match *self {}
    }

    pub(crate) fn is_flushed(&self) -> bool {
        match *self {}
    }

    pub(crate) fn holds(&self) -> bool {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_that_was_left_out_is_an_error_with_advice() {
        let error = Tls::new().unwrap_err().to_string();
        assert!(error.contains("FERROCCL_TLS") && error.contains("feature `tls`"), "{error}");
    }
}
