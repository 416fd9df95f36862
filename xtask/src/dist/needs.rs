//! What a library needs of the system that loads it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::{Outcome, process};

/// What belongs to the C library.
const OF_LIBC: [&str; 7] =
    ["libc.so.", "libm.so.", "libdl.so.", "librt.so.", "libpthread.so.", "ld-linux", "ld64.so."];

/// The libraries that it needs beyond the C library's own.
pub(super) fn strangers(library: &Path) -> Outcome<Vec<String>> {
    let mut readelf = Command::new("readelf");
    readelf.args(["--dynamic", "--wide"]).arg(library);
    let said = process::capture(&mut readelf, Duration::from_secs(60))?;
    let mut needed = needed(&said);
    needed.retain(|name| !OF_LIBC.iter().any(|own| name.starts_with(own)));
    Ok(needed)
}

fn needed(readelf: &str) -> Vec<String> {
    let lines = readelf.lines().filter(|line| line.contains("(NEEDED)"));
    let names = lines.filter_map(|line| line.split_once('[')?.1.split_once(']'));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// The newest glibc whose symbols it names: 2 and this.
pub(super) fn glibc(library: &[u8]) -> u32 {
    const PREFIX: &[u8] = b"GLIBC_2.";
    let places = library.windows(PREFIX.len()).enumerate().filter(|(_, bytes)| *bytes == PREFIX);
    let numbers = places.map(|(at, _)| {
        let digits = library[at + PREFIX.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.take(3).fold(0, |number, digit| 10 * number + u32::from(digit - b'0'))
    });
    numbers.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_read() {
        let said = " 0x1 (NEEDED)  Shared library: [libgcc_s.so.1]\n 0xe (SONAME) x: [y]\n \
                    0x1 (NEEDED)  Shared library: [libc.so.6]\n";
        assert_eq!(needed(said), ["libgcc_s.so.1", "libc.so.6"]);
    }

    #[test]
    fn the_newest_glibc_counts() {
        assert_eq!(glibc(b"..GLIBC_2.4.1\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE"), 34);
        assert_eq!(glibc(b"nothing"), 0);
    }
}
