//! NCCL's log, which takes the messages of this plugin and its transports.

use std::ffi::{CString, c_ulong};
use std::io;
use std::sync::RwLock;

use nccl_net_abi::{LogLevel, Logger, SUBSYSTEM_INIT, SUBSYSTEM_NET};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Logger that NCCL gave last. One suffices: NCCL gives all communicators the same logger.
static LOGGER: RwLock<Logger> = RwLock::new(None);

/// Sends the log to this logger from now on.
pub(crate) fn direct(logger: Logger) {
    if let Ok(mut current) = LOGGER.write() {
        *current = logger;
    }
}

/// Starts to log the transports' messages; `finer` adds debug messages.
pub(crate) fn start(finer: bool) {
    let level = if finer { Level::DEBUG } else { Level::INFO };
    let format = tracing_subscriber::fmt().with_max_level(level).with_writer(Lines);
    let format = format.without_time().with_ansi(false).with_target(false).with_level(false);
    // Fails if a subscriber exists already, as in tests; that subscriber stays.
    let _ = format.try_init();
}

/// Writes a line to NCCL's log.
pub(crate) fn line(level: LogLevel, subsystems: c_ulong, text: &str) {
    let Ok(logger) = LOGGER.read() else { return };
    let Some(logger) = *logger else { return };
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let Ok(text) = CString::new(text) else { return };
    // SAFETY: NCCL's logger takes any level and flags; file, format and text are C strings that
    // outlive the call, and the format has one argument, which is the text.
    unsafe {
        logger(
            level,
            subsystems,
            c"ferroccl".as_ptr(),
            0,
            c"NET/ferroccl: %s".as_ptr(),
            text.as_ptr(),
        );
    }
}

/// Writer that turns lines of `tracing` into lines of NCCL's log.
struct Lines;

/// One line of the log.
struct Line {
    level: LogLevel,
    bytes: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { level: LogLevel::INFO, bytes: Vec::new() }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        let level = if *meta.level() <= Level::WARN { LogLevel::WARN } else { LogLevel::INFO };
        Line { level, bytes: Vec::new() }
    }
}

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.bytes);
        line(self.level, SUBSYSTEM_INIT | SUBSYSTEM_NET, text.trim());
    }
}
