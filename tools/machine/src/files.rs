//! The files of a machine, below `/` or below a directory with a copy of a machine's files.
//!
//! Nothing here trusts the files. Only regular files are read (opening a pipe would wait), and only
//! up to a length. Directories are read up to a number of names. Links are followed as on that
//! machine, but never out of the tree. Text is made printable: a device's name must not move a
//! terminal's cursor.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// Largest number of bytes of a text file. The longest text file that ferroccl reads is a kernel's
/// configuration.
const TEXT_BYTES_MAX: usize = 1 << 20;
const NAMES_MAX: usize = 8192;
/// Largest number of links that are followed, as in Linux.
const LINKS_MAX: u32 = 40;

/// Files of a machine.
#[derive(Debug)]
pub struct Files {
    root: PathBuf,
    is_live: bool,
}

impl Files {
    /// Opens the machine whose `/` is this directory.
    ///
    /// # Errors
    ///
    /// When `root` is no directory.
    pub fn new(root: &Path) -> io::Result<Files> {
        let root = root.canonicalize()?;
        if !root.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        let is_live = root == Path::new("/");
        Ok(Files { root, is_live })
    }

    /// Returns the directory that is the machine's `/`.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns whether this is the running machine, where system calls can be used too.
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns the path by which this process opens a file of the machine. Links are followed as on
    /// the machine: its `/` is the root, and no link leads above it.
    fn file(&self, path: &str) -> io::Result<PathBuf> {
        let relative = path.trim_start_matches('/');
        if self.is_live {
            return self.root.join(relative).canonicalize();
        }
        let mut real = self.root.clone();
        let mut left = names(Path::new(relative));
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == ".." {
                if !real.is_dir() {
                    return Err(io::Error::from(io::ErrorKind::NotADirectory));
                }
                if real != self.root {
                    real.pop();
                }
                continue;
            }
            let next = real.join(&name);
            if !next.symlink_metadata()?.is_symlink() {
                real = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(io::Error::other("its path has too many symbolic links"));
            }
            let mut target = next.read_link()?;
            if target.is_absolute() {
                // An absolute link of the tree names either a path of this host, which begins with
                // the path of `root`, or a path of the machine that the tree was copied from.
                if let Ok(inside) = target.strip_prefix(&self.root) {
                    target = inside.to_owned();
                }
                real.clone_from(&self.root);
            }
            left.append(&mut names(&target));
        }
        Ok(real)
    }

    /// Returns the first bytes of a file, at most `most`.
    pub fn bytes(&self, path: &str, most: usize) -> io::Result<Vec<u8>> {
        let mut options = OpenOptions::new();
        let file: File =
            options.read(true).custom_flags(libc::O_NONBLOCK).open(self.file(path)?)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the text of a file, without surrounding white space and NULs.
    pub fn read(&self, path: &str) -> io::Result<String> {
        let bytes = self.bytes(path, TEXT_BYTES_MAX)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(printable(text.trim_matches(|c: char| c.is_whitespace() || c == '\0')))
    }

    /// Returns the text of a file as `Files::read` does; `None` if the file cannot be read or has
    /// no text.
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok().filter(|text| !text.is_empty())
    }

    /// Returns the number that a file holds.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Returns the sorted names in a directory; a number at a name's end is compared as a number.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = self.file(path).and_then(std::fs::read_dir) else { return Vec::new() };
        let named = |name: &OsStr| name.to_str().map(str::to_owned);
        let mut names: Vec<String> = entries
            .flatten()
            .take(NAMES_MAX)
            .filter_map(|entry| named(&entry.file_name()))
            .filter(|name| printable(name) == *name)
            .collect();
        names.sort_by_cached_key(|name| {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            (stem.to_owned(), name[stem.len()..].parse::<u64>().unwrap_or(0))
        });
        names
    }

    /// Returns whether the path exists.
    pub fn has(&self, path: &str) -> bool {
        self.file(path).is_ok()
    }

    /// Returns the path that a file has on the machine itself, with all links followed.
    pub fn real(&self, path: &str) -> Option<String> {
        let real = self.file(path).ok()?;
        let inside = real.strip_prefix(&self.root).ok()?;
        let inside = inside.to_str().filter(|inside| printable(inside) == **inside)?;
        Some(format!("/{inside}"))
    }
}

/// Returns the names in a path in reverse order, `..` included.
fn names(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}

/// Returns text with `?` for control characters other than newline and tab.
fn printable(text: &str) -> String {
    let keep = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().map(|c| if keep(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_read_but_devices_and_directories_cannot() {
        let host = Files::new(Path::new("/")).unwrap();
        assert!(host.is_live() && host.has("/proc/self/status"));
        assert!(host.text("/proc/self/limits").unwrap().contains("Max locked memory"));
        assert!(host.bytes("/dev/zero", 1).is_err() && host.bytes("/proc", 1).is_err());
        assert!(host.real("/proc/self").unwrap().starts_with("/proc/"));
        assert!(Files::new(Path::new("/proc/self/status")).is_err());
    }

    #[test]
    fn odd_files_are_read_in_part_or_not_at_all() {
        let place = std::env::temp_dir().join(format!("ferroccl-host-{}", std::process::id()));
        std::fs::create_dir_all(place.join("d")).unwrap();
        std::fs::create_dir_all(place.join("e")).unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(place.join(name), bytes).unwrap();
        write("escape", b"\x1b[2Jx\xff\n\0");
        write("empty", b"\n");
        write("many", &[b'9'; 2 << 20]);
        write("d/x10", b"");
        write("d/x9", b"");
        write("d/\x1b[2J", b"");
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, place.join(name)).unwrap();
        };
        link("/etc/passwd", "out");
        link("../../../../../../../../etc/passwd", "e/up");
        link("/d/../empty/../d/x9", "absolute");
        link("/../../d/./x10", "e/above");
        link("circle", "circle");
        link(place.join("d").to_str().unwrap(), "own");
        let pipe = std::ffi::CString::new(place.join("pipe").to_str().unwrap()).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).unwrap();
        let host = Files::new(&place).unwrap();
        assert!(!host.is_live());
        assert_eq!(host.text("/escape").unwrap(), "?[2Jx\u{fffd}");
        assert_eq!(host.text("/empty"), None);
        assert_eq!(host.text("/many").unwrap().len(), TEXT_BYTES_MAX);
        assert_eq!(host.number::<u64>("/many"), None);
        assert_eq!(host.names("/d"), ["x9", "x10"]);
        assert!(host.text("/pipe").is_none() && host.text("/out").is_none());
        assert!(!host.has("/e/up") && !host.has("/circle") && !host.has("/d/x9/x"));
        assert!(!host.has("/absolute"), "a path must not lead through a file");
        assert_eq!(host.real("/e/above").as_deref(), Some("/d/x10"));
        assert_eq!(host.real("/../own/x9").as_deref(), Some("/d/x9"));
        link("/d/../d/x9", "good");
        assert_eq!(host.real("/good").as_deref(), Some("/d/x9"));
        assert!(!host.has("/out") && host.real("/d/x9").as_deref() == Some("/d/x9"));
        std::fs::remove_dir_all(&place).unwrap();
    }
}
