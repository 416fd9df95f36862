//! Names of the endpoints of libfabric's provider `shm`.
//!
//! The memory of such an endpoint is a file in `/dev/shm`; the endpoint's address ends with the
//! file's name. By default, the provider names the file after the process id. A killed process
//! leaves its file behind. Before libfabric 2.2, a later process with the same id, in the same
//! container or in another one with the same `/dev/shm`, then cannot enable its endpoint (`EBUSY`).
//! So ferroccl chooses names that are never given twice, and removes the files of killed processes.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

/// Name of the provider.
pub(super) const PROVIDER: &str = "shm";

/// Directory of the files.
const DIRECTORY: &str = "/dev/shm";
/// Scheme of the provider's addresses; the name of the file follows.
const SCHEME: &str = "fi_shm://";

/// Returns a new address, with a zero byte at its end.
pub(super) fn new_name() -> Vec<u8> {
    let beginning = beginning(namespace().unwrap_or_default());
    let pid = getpid().as_raw_nonzero();
    // Each `RandomState` has other keys, and the first keys of a process are random.
    let number = RandomState::new().hash_one(pid);
    format!("{SCHEME}{beginning}{pid}-{number:016x}\0").into_bytes()
}

/// Removes the files that ended processes of this PID namespace and user have left. The file of a
/// process stays while any process has the same id, also one that has ended and that its parent has
/// not waited for (a zombie).
pub(super) fn remove_leftovers() {
    let Some(beginning) = namespace().map(beginning) else { return };
    for entry in fs::read_dir(DIRECTORY).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let own = name.to_str().and_then(|name| name.strip_prefix(&beginning));
        let pid = own.and_then(|own| own.split('-').next()?.parse().ok());
        if pid.and_then(Pid::from_raw).is_some_and(has_ended) {
            // Another process may have removed the file, or it may be another user's.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the beginning of the names of a PID namespace's files. In another namespace, a process
/// id means another process.
fn beginning(namespace: u64) -> String {
    format!("ferroccl-ofi-{namespace}-")
}

/// Returns the number of this process's PID namespace, if `/proc` shows it.
fn namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|about| about.ino())
}

fn has_ended(pid: Pid) -> bool {
    test_kill_process(pid) == Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::super::{Domain, Endpoint};
    use super::*;
    use crate::provider::{installed, offered};

    /// Files that are removed at the end.
    #[derive(Default)]
    struct Files(Vec<PathBuf>);

    impl Drop for Files {
        fn drop(&mut self) {
            for path in &self.0 {
                let _ = fs::remove_file(path);
            }
        }
    }

    impl Files {
        fn new(names: impl IntoIterator<Item = String>) -> Files {
            let mut files = Files::default();
            for name in names {
                let path = Path::new(DIRECTORY).join(name);
                // A file of this name may be the memory of a process of another container.
                let Ok(file) = fs::File::create_new(&path) else { continue };
                files.0.push(path);
                file.set_len(1 << 20).unwrap();
            }
            files
        }

        fn are_there(&self) -> Vec<bool> {
            self.0.iter().map(|path| path.exists()).collect()
        }
    }

    fn file_name() -> String {
        let address = String::from_utf8(new_name()).unwrap();
        address.strip_prefix(SCHEME).unwrap().trim_end_matches('\0').to_owned()
    }

    /// Files of the provider's own names, as processes with this process's id have left them, are
    /// not in the way of an endpoint.
    #[test]
    fn memory_that_a_process_with_the_same_id_left_does_no_harm() {
        let Some(info) = installed(PROVIDER) else { return };
        let (pid, user) = (std::process::id(), rustix::process::getuid());
        let left = Files::new((0..64).map(|number| format!("{pid}:{user}:{number}")));
        let domain = Domain::open(info, true).unwrap();
        let endpoint = Endpoint::open(&domain).unwrap();
        assert!(endpoint.address().unwrap().starts_with(format!("{SCHEME}ferroccl").as_bytes()));
        assert!(left.are_there().iter().all(|is_there| *is_there), "libfabric removed a file");
    }

    #[test]
    fn only_files_of_processes_that_have_ended_are_removed() {
        let output = Command::new("sh").args(["-c", "echo $$"]).output().unwrap();
        let ended = String::from_utf8(output.stdout).unwrap();
        let (own, here) = (file_name(), namespace().unwrap());
        let pid = std::process::id().to_string();
        let of_ended = own.replacen(&format!("-{pid}-"), &format!("-{}-", ended.trim()), 1);
        let elsewhere = of_ended.replacen(&here.to_string(), "1", 1);
        let no_number = format!("-{}x-", ended.trim());
        let foreign = of_ended.replacen(&format!("-{}-", ended.trim()), &no_number, 1);
        let files = Files::new([of_ended, own, elsewhere, foreign]);
        // Listing the offers removes files, since a full /dev/shm leaves no offer.
        if offered(PROVIDER).is_none() {
            remove_leftovers();
        }
        assert_eq!(files.are_there(), [false, true, true, true], "{:?}", files.0);
    }

    #[test]
    fn no_name_is_given_twice() {
        let names: std::collections::BTreeSet<_> = (0..1000).map(|_| new_name()).collect();
        assert_eq!(names.len(), 1000);
    }
}
