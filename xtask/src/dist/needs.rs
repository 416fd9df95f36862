//! Dynamic dependencies of a library or a program, and the symbols that it exports.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::{Outcome, process};

/// Name prefixes of the C library's shared objects.
const OF_LIBC: [&str; 7] =
    ["libc.so.", "libm.so.", "libdl.so.", "librt.so.", "libpthread.so.", "ld-linux", "ld64.so."];
/// Arguments of `readelf`.
const QUESTIONS: [&str; 4] = ["--wide", "--dynamic", "--dyn-syms", "--version-info"];

/// Library or program as the dynamic linker sees it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Names of the libraries that the file needs, without those of the C library.
    pub(super) foreign: Vec<String>,
    /// Versions of glibc's interface that the file needs, such as `GLIBC_2.34`.
    pub(super) versions: Vec<String>,
    /// Symbols that the file needs from other libraries, with their versions.
    pub(super) symbols: Vec<String>,
    /// Symbols that the file exports.
    pub(super) exports: Vec<String>,
    /// True if the file stays mapped after `dlclose`.
    pub(super) stays: bool,
}

impl Needs {
    /// Reads a file with `readelf`, which comes with the C linker.
    pub(super) fn of(file: &Path) -> Outcome<Needs> {
        let mut readelf = Command::new("readelf");
        readelf.env("LC_ALL", "C").args(QUESTIONS).arg(file);
        Ok(parse(&process::capture(&mut readelf, Duration::from_secs(60))?))
    }

    /// Returns the needed symbols that glibc 2.`most` lacks. If the file needs a version that this
    /// glibc lacks, but no symbol of that version, the list has the name of the version.
    pub(super) fn later_than(&self, most: u32) -> Vec<String> {
        let later =
            self.versions.iter().filter(|version| glibc(version).is_none_or(|it| it > most));
        let named = later.map(|version| {
            let of = |symbol: &&String| symbol.split('@').next_back() == Some(version);
            let symbols: Vec<&str> = self.symbols.iter().filter(of).map(String::as_str).collect();
            if symbols.is_empty() { version.clone() } else { symbols.join(", ") }
        });
        named.collect()
    }

    /// Returns the minor version of the oldest glibc (2.x) that runs this file.
    pub(super) fn glibc(&self) -> u32 {
        self.versions.iter().filter_map(|version| glibc(version)).max().unwrap_or(0)
    }
}

/// Returns 34 for `GLIBC_2.34`; `None` for other names, such as `GLIBC_ABI_DT_RELR`.
fn glibc(version: &str) -> Option<u32> {
    version.strip_prefix("GLIBC_2.")?.split('.').next()?.parse().ok()
}

fn parse(readelf: &str) -> Needs {
    let mut needs = Needs::default();
    for line in readelf.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words.as_slice() {
            [_, "(NEEDED)", .., name] => {
                let name = name.trim_matches(['[', ']']);
                if !OF_LIBC.iter().any(|own| name.starts_with(own)) {
                    needs.foreign.push(name.to_owned());
                }
            }
            [_, "(FLAGS_1)", ..] => needs.stays |= words.contains(&"NODELETE"),
            [_, "Name:", version, "Flags:", ..] if version.starts_with("GLIBC_") => {
                needs.versions.push(version.to_owned());
            }
            [_, _, _, _, "GLOBAL" | "WEAK", _, "UND", name, ..] => {
                needs.symbols.push(name.to_owned());
            }
            [_, _, _, _, "GLOBAL" | "WEAK", _, _, name, ..] => needs.exports.push(name.to_owned()),
            _ => {}
        }
    }
    needs.versions.sort();
    needs.versions.dedup();
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x000000000000000e (SONAME)             Library soname: [libown.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000006ffffffb (FLAGS_1)            Flags: NOW NODELETE
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND _dl_find_object@GLIBC_2.35 (5)
     2: 0000000000000000     0 FUNC    WEAK   DEFAULT  UND gettid@GLIBC_2.30 (4)
     3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND memcpy@GLIBC_2.14 (3)
     4: 0000000000000000     0 NOTYPE  WEAK   DEFAULT  UND __gmon_start__
     5: 00000000000183e0  1527 OBJECT  GLOBAL DEFAULT   13 ncclNetPlugin_v8
Version needs section '.gnu.version_r' contains 2 entries:
  0x0010:   Name: GCC_3.0  Flags: none  Version: 7
  0x0020:   Name: GLIBC_2.35  Flags: none  Version: 5
  0x0030:   Name: GLIBC_2.30  Flags: WEAK  Version: 4
  0x0040:   Name: GLIBC_2.14  Flags: none  Version: 3
  0x0050:   Name: GLIBC_ABI_DT_RELR  Flags: none  Version: 2
";

    #[test]
    fn needed_libraries_and_exported_symbols_are_parsed() {
        let needs = parse(SAID);
        assert_eq!(needs.foreign, ["libgcc_s.so.1"]);
        assert_eq!(needs.exports, ["ncclNetPlugin_v8"]);
        assert!(needs.stays && !parse(&SAID.replace("NODELETE", "")).stays);
        assert_eq!(needs.glibc(), 35);
    }

    #[test]
    fn symbols_that_an_older_glibc_lacks_are_named() {
        let needs = parse(SAID);
        let later = ["gettid@GLIBC_2.30", "_dl_find_object@GLIBC_2.35", "GLIBC_ABI_DT_RELR"];
        assert_eq!(needs.later_than(28), later);
        assert_eq!(needs.later_than(35), later[2..]);
        assert_eq!(parse(""), Needs::default());
    }
}
