//! NCCL's logger, as a plugin sees it. The plugin's warnings go into the report of the current
//! point (one check of a plugin).

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::sync::OnceLock;

use nccl_net_abi::{LogLevel, Logger};

/// Receiver of warnings.
type Sink = Box<dyn Fn(String) + Send + Sync>;

static SINK: OnceLock<Sink> = OnceLock::new();

/// Sends warnings to `sink` from now on; only the first call counts.
pub(crate) fn to(sink: Sink) {
    let _ = SINK.set(sink);
}

/// Largest number of arguments that are read after the format.
const ARGUMENTS_MAX: usize = 8;

/// Type of the logger with fixed arguments: Rust cannot define variadic functions.
type Fixed = unsafe extern "C" fn(
    LogLevel,
    c_ulong,
    *const c_char,
    c_int,
    *const c_char,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
);

/// Returns the logger that is given to `init`.
pub(crate) fn logger() -> Logger {
    // SAFETY: x86-64 and aarch64 Linux pass integers and pointers to a variadic function as they
    // pass them to one with fixed arguments. An argument that was not passed has an arbitrary
    // value, and is used only if the format names it.
    let logger = unsafe {
        std::mem::transmute::<
            Fixed,
            unsafe extern "C" fn(LogLevel, c_ulong, *const c_char, c_int, *const c_char, ...),
        >(log as Fixed)
    };
    Some(logger)
}

#[allow(
    clippy::too_many_arguments,
    reason = "C passes each argument by itself, so no struct can stand for them. The arguments are \
              the five that NCCL's interface fixes, and those that a plugin's format may name"
)]
unsafe extern "C" fn log(
    level: LogLevel,
    _subsystems: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) {
    if level != LogLevel::WARN || format.is_null() {
        return;
    }
    // SAFETY: the plugin gives a format that ends in a NUL byte.
    let format = unsafe { CStr::from_ptr(format) }.to_string_lossy();
    let line = expand(&format, [a, b, c, d, e, f, g, h]).unwrap_or_else(|| format.into_owned());
    if let Some(sink) = SINK.get() {
        sink(line);
    }
}

/// Formats a text with integers, characters, pointers and strings. Ignores flags, widths, and the
/// precision of a number. Returns `None` if the format has another conversion, more than
/// `ARGUMENTS_MAX` conversions, a `*`, or a string with a precision.
fn expand(format: &str, arguments: [usize; ARGUMENTS_MAX]) -> Option<String> {
    let mut text = String::new();
    let mut arguments = arguments.into_iter();
    let mut pieces = format.split('%');
    text.push_str(pieces.next()?);
    while let Some(piece) = pieces.next() {
        if piece.is_empty() {
            // "%%": the text up to the next percent sign has no conversion.
            text.push('%');
            text.push_str(pieces.next()?);
            continue;
        }
        let at = piece.find(|c: char| c.is_ascii_alphabetic() && !"hlzjt".contains(c))?;
        let (modifiers, rest) = piece.split_at(at);
        if modifiers.contains('*') || (modifiers.contains('.') && rest.starts_with('s')) {
            return None;
        }
        let value = arguments.next()?;
        let is_long = modifiers.contains(['l', 'z', 'j', 't']);
        match rest.as_bytes()[0] {
            b's' => text.push_str(&string(value)),
            b'd' | b'i' if is_long => text.push_str(&(value as i64).to_string()),
            b'd' | b'i' => text.push_str(&(value as i32).to_string()),
            b'u' if is_long => text.push_str(&value.to_string()),
            b'u' => text.push_str(&(value as u32).to_string()),
            b'x' | b'X' if is_long => text.push_str(&format!("{value:x}")),
            b'x' | b'X' => text.push_str(&format!("{:x}", value as u32)),
            b'p' => text.push_str(&format!("{value:#x}")),
            b'c' => text.push(char::from(value as u8)),
            _ => return None,
        }
        text.push_str(&rest[1..]);
    }
    Some(text)
}

fn string(address: usize) -> String {
    if address == 0 {
        return "(null)".to_owned();
    }
    let text = std::ptr::with_exposed_provenance::<c_char>(address);
    // SAFETY: the plugin's format says that this argument is a string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_formats_are_expanded() {
        let name = c"eth0".as_ptr().expose_provenance();
        let with = |format: &str, first: usize, second: usize| {
            expand(format, [first, second, 0, 0, 0, 0, 0, 0])
        };
        assert_eq!(with("%s:%d down", name, -3_isize as usize).as_deref(), Some("eth0:-3 down"));
        assert_eq!(with("%lu of %zu", 5, 7).as_deref(), Some("5 of 7"));
        assert_eq!(with("%08x 100%% %p", 255, 16).as_deref(), Some("ff 100% 0x10"));
        assert_eq!(with("plain", 0, 0).as_deref(), Some("plain"));
        assert_eq!(with("%f s", 0, 0), None);
        assert_eq!(with("%*d", 0, 0), None);
    }
}
