//! Owned libfabric objects: each is closed once, after the objects that depend on it.

mod domain;
mod endpoint;
mod info;
mod shm;

use std::ffi::CStr;

use ccl_core::transport::TransportError;
use libc::c_int;
use libfabric_sys::{Functions, LoadError};

pub(crate) use domain::{Domain, LOCAL, Memory, REMOTE, registers_dma_bufs};
pub(crate) use endpoint::{
    Bell, COMPLETIONS_MAX, Completion, Completions, Endpoint, Failed, RANGES_MAX, Range,
};
pub(crate) use info::{EFA, Hints, Info};

/// Failure of libfabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfiError {
    /// There is no library, or it is too old.
    #[error(transparent)]
    Library(LoadError),
    /// A call failed.
    #[error("{call}: {reason} ({code})")]
    Call {
        /// Name of the call.
        call: &'static str,
        /// Number of the error, positive.
        code: c_int,
        /// The library's text for the number.
        reason: String,
    },
    /// A request failed.
    #[error("{what} failed: {reason} ({code}), the provider says: {detail}")]
    Request {
        /// Name of the request.
        what: &'static str,
        /// Number of the error, positive.
        code: c_int,
        /// The library's text for the number.
        reason: String,
        /// The provider's text.
        detail: String,
    },
    /// An endpoint receives nothing any more.
    #[error(
        "ofi_rxm has lost all receives to messages of processes that have ended: use libfabric \
         1.18 or later, or a new communicator"
    )]
    Deaf,
}

/// Returns the library's functions.
pub(crate) fn functions() -> Result<&'static Functions, OfiError> {
    libfabric_sys::system().map_err(|error| OfiError::Library(error.clone()))
}

/// Returns the library's text for an error number.
fn reason(functions: &Functions, code: c_int) -> String {
    // SAFETY: the function takes any number.
    let text = unsafe { (functions.strerror)(code) };
    if text.is_null() {
        return "an error without a name".to_owned();
    }
    // SAFETY: the text belongs to the library, and stays valid.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Checks what a call returned: negative numbers are errors.
fn check(functions: &Functions, call: &'static str, returned: c_int) -> Result<(), OfiError> {
    if returned >= 0 {
        return Ok(());
    }
    let code = -returned;
    Err(OfiError::Call { call, code, reason: reason(functions, code) })
}

/// Converts an error of libfabric to a transport error, and adds advice.
pub(crate) fn transport_error(error: OfiError) -> TransportError {
    let advice = "`ferroccl doctor --ofi` tests each provider";
    match error {
        OfiError::Call { call, code, reason } => TransportError::Os { call, code, reason, advice },
        OfiError::Request { what: call, code, reason, detail } => {
            let reason = format!("{reason}, the provider says: {detail}");
            TransportError::Os { call, code, reason, advice }
        }
        error @ (OfiError::Library(_) | OfiError::Deaf) => {
            let (what, reason) = ("libfabric".to_owned(), error.to_string());
            TransportError::Unusable { what, reason }
        }
    }
}
