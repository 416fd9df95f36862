//! Libraries that are opened at run time: whether they open, and their versions.

use std::error::Error as _;
use std::ffi::c_int;

use libloading::Library;

/// Method to learn a library's version.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asks {
    /// The file's name has the version. The library is not opened, because opening it is slow:
    /// libfabric loads other libraries, which calibrate clocks when they are loaded.
    File,
    /// The file's name has the version, and the library is opened.
    Opened,
    /// A function `int f(int *)` writes the version, as in CUDA's driver and in NCCL.
    Writes(&'static [u8]),
}

/// Opens a library as programs do. Returns its version, if known, or the reason for a failure.
pub(super) fn open(name: &str, asks: Asks) -> Result<Option<u32>, String> {
    // SAFETY: programs for GPUs or networks load the same library, so its initialisers are designed
    // to run in any program.
    let library = unsafe { Library::new(name) }
        .map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))?;
    let version = match asks {
        Asks::File | Asks::Opened => None,
        Asks::Writes(symbol) => written(&library, symbol),
    };
    // The library stays loaded: threads that its initialisers started may still run.
    std::mem::forget(library);
    Ok(version)
}

fn written(library: &Library, symbol: &[u8]) -> Option<u32> {
    // SAFETY: the library's header declares the function with this signature.
    let found = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(symbol) };
    let call = found.ok()?;
    let mut version: c_int = 0;
    // SAFETY: there is room for the number.
    let code = unsafe { call(&raw mut version) };
    (code == 0 && version > 0).then_some(version.unsigned_abs())
}
