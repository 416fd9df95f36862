//! Opens a plugin as NCCL does: by path, with all symbols resolved and none visible to other
//! libraries. Takes the newest interface that the plugin exports, unless the user chose a version.

use std::fmt;
use std::path::Path;

use clap::ValueEnum;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nccl_net_abi::{v8, v9, v10, v11, v12};

use crate::calls::Calls;

/// A version of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Api {
    V8,
    V9,
    V10,
    V11,
    V12,
}

impl Api {
    /// All versions, in the order in which NCCL looks for them.
    pub(crate) const NEWEST_FIRST: [Api; 5] = [Api::V12, Api::V11, Api::V10, Api::V9, Api::V8];

    /// Returns the suffix in the name of the version's symbol.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Api::V8 => "v8",
            Api::V9 => "v9",
            Api::V10 => "v10",
            Api::V11 => "v11",
            Api::V12 => "v12",
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// An open plugin. It stays open until [`close`](Plugin::close).
#[derive(Debug)]
pub(crate) struct Plugin {
    library: Library,
    /// Functions of the version that was taken.
    pub(crate) calls: Calls,
    /// All versions that the plugin exports, newest first.
    pub(crate) exported: Vec<Api>,
    /// Version that was taken.
    pub(crate) api: Api,
}

impl Plugin {
    /// Opens a plugin and takes the version `wanted`, or the newest that it has.
    ///
    /// # Errors
    ///
    /// A symbol or a function is missing, or the library cannot be opened.
    pub(crate) fn open(path: &Path, wanted: Option<Api>) -> Result<Plugin, String> {
        // SAFETY: the user asked to run this library, and so its initialisers.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| {
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            format!("dlopen refused the library: {}", reason.unwrap_or(error.to_string()))
        })?;
        let exported: Vec<Api> =
            Api::NEWEST_FIRST.into_iter().filter(|api| table(&library, *api).is_some()).collect();
        let api = wanted.or(exported.first().copied()).filter(|api| exported.contains(api));
        let Some(api) = api else {
            return Err(match wanted {
                Some(api) => format!("the library exports no symbol ncclNetPlugin_{api}"),
                None => "the library exports none of the symbols ncclNetPlugin_v8 to _v12".into(),
            });
        };
        let calls = table(&library, api).unwrap_or_else(|| Err("the symbol is gone".to_owned()))?;
        Ok(Plugin { library, calls, exported, api })
    }

    /// Closes the library; the system can then unmap the library's code.
    pub(crate) fn close(self) -> Result<(), String> {
        self.library.close().map_err(|error| format!("dlclose failed: {error}"))
    }
}

/// Returns the functions under the symbol of that version, if the library exports it.
fn table(library: &Library, api: Api) -> Option<Result<Calls, String>> {
    /// Finds the symbol of a version and reads the table there.
    macro_rules! read {
        ($version:ident) => {{
            // SAFETY: under this name, NCCL's interface has a table of this type.
            let symbol = unsafe { library.get::<*const $version::Net>($version::SYMBOL) };
            let address = *symbol.ok()?;
            // SAFETY: the symbol is the table's address, and the table lies in the open library.
            Calls::$version(unsafe { &*address })
        }};
    }
    Some(match api {
        Api::V8 => read!(v8),
        Api::V9 => read!(v9),
        Api::V10 => read!(v10),
        Api::V11 => read!(v11),
        Api::V12 => read!(v12),
    })
}
