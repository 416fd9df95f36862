//! The library's log on standard error, for programs that have no log of their own.

use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Error for a filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "FERROCCL_DEBUG={filter}: {error}; give error, warn, info, debug, trace, or a filter such as \
     ferroccl=debug"
)]
pub struct FilterError {
    filter: String,
    error: ParseError,
}

/// Starts the log with a filter as in `FERROCCL_DEBUG`: `error`, `warn`, `info`, `debug`, `trace`,
/// or levels by target, such as `ferroccl=debug`. If the program has already set a subscriber, that
/// subscriber is kept.
///
/// # Errors
///
/// When the filter cannot be read.
pub fn start(filter: &str) -> Result<(), FilterError> {
    let unreadable = |error: ParseError| FilterError { filter: filter.to_owned(), error };
    let filter: Targets = filter.parse().map_err(unreadable)?;
    let format = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let format = format.with_target(false).with_ansi(false);
    let _ = tracing_subscriber::registry().with(filter).with(format).try_init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_filter_is_reported_with_a_remedy() {
        let error = start("ferroccl=loud").unwrap_err().to_string();
        assert!(error.contains("FERROCCL_DEBUG=ferroccl=loud") && error.contains("give error"));
    }
}
