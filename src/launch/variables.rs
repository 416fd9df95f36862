//! Strict reading of the environment. Every variable whose value this library reads goes through
//! this module.

use super::LaunchError;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Our own variables for joining: rank, address and secret. All other variables are configuration
/// ([`ccl_core::config`]).
pub const VARIABLES: &[(&str, &str)] = &[
    ("FERROCCL_RANK", "this process's rank; needs FERROCCL_RANKS and FERROCCL_COMM_ID too"),
    ("FERROCCL_RANKS", "number of ranks"),
    ("FERROCCL_LOCAL_RANK", "this process's rank among the ranks of its host"),
    ("FERROCCL_LOCAL_RANKS", "number of ranks on this host"),
    ("FERROCCL_COMM_ID", "HOST:PORT where rank 0 listens, or a unique id; works with any launcher"),
    ("FERROCCL_SECRET", "text that all ranks know; whoever does not know it cannot join"),
    ("FERROCCL_SECRET_FILE", "a file with the secret, readable by its owner alone"),
    ("FERROCCL_INSECURE_JOIN", "1: join without a secret even beyond loopback"),
    ("FERROCCL_BOOTSTRAP_HOST", "name or address under which the others reach rank 0's host"),
    (
        "FERROCCL_LISTEN_FD",
        "rank 0: descriptor of an inherited listening socket; set by programs that start all ranks",
    ),
];

/// Returns the value of one variable of this process's environment.
///
/// # Errors
/// The value is not UTF-8.
pub fn variable(name: &str) -> Result<Option<String>, LaunchError> {
    std::env::var_os(name).map(|value| utf8(name, value)).transpose()
}

fn utf8(name: &str, value: OsString) -> Result<String, LaunchError> {
    value.into_string().map_err(|value| LaunchError::Value {
        name: name.to_owned(),
        value: value.to_string_lossy().into_owned(),
        expected: "UTF-8",
    })
}

/// A snapshot of an environment.
pub(super) struct Variables(BTreeMap<OsString, OsString>);

impl Variables {
    pub(super) fn of_process() -> Variables {
        Variables(std::env::vars_os().collect())
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn of(pairs: &[(&str, &str)]) -> Variables {
        Variables(pairs.iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(std::ffi::OsStr::new(name))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, LaunchError> {
        let value = self.0.get(std::ffi::OsStr::new(name));
        value.map(|value| utf8(name, value.clone())).transpose()
    }

    /// Returns the parsed value of a variable. The value is not trimmed: `T::from_str`
    /// must accept all of it.
    pub(super) fn parsed<T: std::str::FromStr>(
        &self,
        name: &str,
        expected: &'static str,
    ) -> Result<Option<T>, LaunchError> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        match value.parse() {
            Ok(parsed) => Ok(Some(parsed)),
            Err(_) => Err(LaunchError::Value { name: name.to_owned(), value, expected }),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u32>, LaunchError> {
        // u32's own parser takes a plus sign.
        match self.text(name)? {
            Some(value) if value.starts_with('+') => {
                Err(LaunchError::Value { name: name.to_owned(), value, expected: "a whole number" })
            }
            _ => self.parsed(name, "a whole number"),
        }
    }

    /// Returns a number that must be set, because the variable `other` is set.
    pub(super) fn needed(&self, name: &'static str, other: &str) -> Result<u32, LaunchError> {
        let because = || format!("{other} is");
        self.number(name)?.ok_or_else(|| LaunchError::Absent { name, because: because() })
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, LaunchError> {
        match self.text(name)?.as_deref() {
            None | Some("0" | "") => Ok(false),
            Some("1") => Ok(true),
            Some(value) => Err(LaunchError::Value {
                name: name.to_owned(),
                value: value.to_owned(),
                expected: "0 or 1",
            }),
        }
    }
}
