//! The library's exported functions, loaded at their first use.

use std::error::Error as _;
use std::sync::OnceLock;

use libc::{c_char, c_int, c_void};
use libloading::Library;

use crate::FI_API_VERSION;
use crate::types::{fi_fabric_attr, fi_info, fid_fabric};

/// File name under which every distribution installs the library.
pub const LIBRARY: &str = "libfabric.so.1";

/// Signals that end a program, because it fails or is told to end.
const HANDLED: [c_int; 8] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGQUIT,
];

/// Reason why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The library is not installed, or cannot be loaded.
    #[error(
        "{LIBRARY} cannot be opened ({0}): install it to use libfabric (Debian: libfabric1; AWS: \
         the EFA installer, whose library is in /opt/amazon/efa/lib)"
    )]
    Library(String),
    /// The library lacks a function.
    #[error("{LIBRARY} has no function {0}: a newer libfabric is needed, 1.17 or later")]
    Function(&'static str),
    /// The library is older than what is needed.
    #[error("{LIBRARY} is version {0}.{1}: 1.17 or later is needed")]
    Version(u32, u32),
}

/// Returns the library's functions, loaded once per process. The library stays loaded: threads of
/// providers may outlast everything else.
///
/// # Errors
///
/// When there is no such library, it lacks a function, or it is too old.
pub fn system() -> Result<&'static Functions, &'static LoadError> {
    static SYSTEM: OnceLock<Result<Functions, LoadError>> = OnceLock::new();
    SYSTEM.get_or_init(load).as_ref()
}

fn load() -> Result<Functions, LoadError> {
    // SAFETY: opening the library only runs its initialisers, which also run at the start of each
    // program that links the library.
    let library = keep_signal_handlers(|| unsafe { Library::new(LIBRARY) });
    let library = library.map_err(|error| LoadError::Library(reason(&error)))?;
    let functions = Functions::of(&library);
    std::mem::forget(library);
    let functions = functions?;
    // SAFETY: the function takes nothing.
    let version = unsafe { (functions.version)() };
    if version < FI_API_VERSION {
        return Err(LoadError::Version(version >> 16, version & 0xffff));
    }
    Ok(functions)
}

/// Runs `load`, and then restores the program's signal handlers: some providers need a library
/// (libpsm) that replaces the handlers when it is loaded.
fn keep_signal_handlers<T>(load: impl FnOnce() -> T) -> T {
    let before = HANDLED.map(|signal| {
        // SAFETY: an action may be all zeros.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `action` has room for the answer, and the call changes no handler.
        let found = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        (signal, (found == 0).then_some(action))
    });
    let loaded = load();
    for (signal, action) in &before {
        let Some(action) = action else { continue };
        // SAFETY: the action was in force just before.
        unsafe { libc::sigaction(*signal, action, std::ptr::null_mut()) };
    }
    loaded
}

/// Returns the system's text for an error, which names the missing file.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Declares the table of functions, and the code that fills it from a library.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal: $call:ty;)*) => {
        /// Functions of libfabric that are used; see the manual pages.
        #[derive(Clone, Copy, Debug)]
        pub struct Functions {
            $($(#[$doc])* pub $name: $call,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, LoadError> {
                Ok(Functions {
                    $($name:
                        // SAFETY: the header declares the function with this type.
                        *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                            .map_err(|_| LoadError::Function($symbol))?,
                    )*
                })
            }
        }
    };
}

functions! {
    /// Returns the version of the library.
    version = "fi_version": unsafe extern "C" fn() -> u32;
    /// Lists the providers' offers that meet the hints.
    getinfo = "fi_getinfo": unsafe extern "C" fn(
        u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info,
    ) -> c_int;
    /// Frees a list of offers, or a single offer.
    freeinfo = "fi_freeinfo": unsafe extern "C" fn(*mut fi_info);
    /// Copies an offer; null gives an empty one.
    dupinfo = "fi_dupinfo": unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
    /// Opens a fabric.
    fabric = "fi_fabric": unsafe extern "C" fn(
        *mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void,
    ) -> c_int;
    /// Describes an error number, which calls return negated.
    strerror = "fi_strerror": unsafe extern "C" fn(c_int) -> *const c_char;
}
