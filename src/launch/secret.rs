//! The secret that users give in a variable or a file.

use super::LaunchError;
use super::variables::Variables;
use crate::bootstrap::Secret;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const TEXT: &str = "FERROCCL_SECRET";
const FILE: &str = "FERROCCL_SECRET_FILE";
const FILE_BYTES_MAX: u64 = 64 << 10;

pub(super) fn from_variables(variables: &Variables) -> Result<Option<Secret>, LaunchError> {
    match (variables.text(TEXT)?, variables.text(FILE)?) {
        (Some(_), Some(_)) => refuse(format!("{TEXT} and {FILE} are both set: keep one")),
        (Some(text), None) => passphrase(TEXT, &text).map(Some),
        (None, Some(path)) => from_file(Path::new(&path)).map(Some),
        (None, None) => Ok(None),
    }
}

fn refuse<T>(text: String) -> Result<T, LaunchError> {
    Err(LaunchError::Secret(text))
}

fn passphrase(source: &str, text: &str) -> Result<Secret, LaunchError> {
    match text.trim() {
        "" => refuse(format!("the secret in {source} is empty: give it some random text")),
        text => Ok(Secret::from_passphrase(text)),
    }
}

fn from_file(path: &Path) -> Result<Secret, LaunchError> {
    let shown = path.display();
    let read = || -> std::io::Result<_> {
        let file = std::fs::File::open(path)?;
        // Metadata of the open file: the file at `path` could be replaced in between.
        let metadata = file.metadata()?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok((metadata, bytes))
    };
    let (metadata, bytes) = match read() {
        Ok(read) => read,
        Err(error) => return refuse(format!("cannot read {FILE}={shown}: {error}")),
    };
    if metadata.mode() & 0o077 != 0 {
        return refuse(format!(
            "{FILE}={shown} can be read or written by others (mode {:o}): chmod 600 it",
            metadata.mode() & 0o777
        ));
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return refuse(format!("{FILE}={shown} belongs to another user: make yourself its owner"));
    }
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return refuse(format!(
            "{FILE}={shown} has more than {FILE_BYTES_MAX} bytes: name a file of some random text"
        ));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => passphrase(FILE, text),
        Err(_) => {
            refuse(format!("{FILE}={shown} is no text: write the secret as UTF-8, such as hex"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(name: &str, text: &str, mode: u32) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("ferroccl-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Secret>, String> {
        from_variables(&Variables::of(pairs)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_secret_is_text_or_a_private_file() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[(TEXT, "moo")]).unwrap().is_some());
        let path = file("private", "moo\n", 0o600);
        assert!(read(&[(FILE, path.to_str().unwrap())]).unwrap().is_some());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_unusable_secret_is_refused_and_the_error_does_not_show_it() {
        for mode in [0o640, 0o604, 0o620] {
            let path = file("open", "moo", mode);
            let error = read(&[(FILE, path.to_str().unwrap())]).unwrap_err();
            assert!(error.contains("chmod 600") && !error.contains("moo"), "{error}");
            std::fs::remove_file(path).unwrap();
        }
        let path = file("blank", " \n", 0o600);
        assert!(read(&[(FILE, path.to_str().unwrap())]).unwrap_err().contains("empty"));
        std::fs::remove_file(&path).unwrap();
        assert!(read(&[(FILE, path.to_str().unwrap())]).unwrap_err().contains("cannot read"));
        let longest = "x".repeat(FILE_BYTES_MAX as usize);
        for (text, named) in [(longest.clone(), None), (longest + "é", Some("more than 65536"))] {
            let path = file("long", &text, 0o600);
            let read = read(&[(FILE, path.to_str().unwrap())]);
            assert_eq!(read.is_ok(), named.is_none(), "{read:?}");
            assert!(named.is_none_or(|named| read.unwrap_err().contains(named)));
            std::fs::remove_file(path).unwrap();
        }
        assert!(read(&[(TEXT, "")]).unwrap_err().contains("empty"));
        let both = read(&[(TEXT, "moo"), (FILE, "/x")]).unwrap_err();
        assert!(both.contains("keep one") && !both.contains("moo"), "{both}");
    }
}
