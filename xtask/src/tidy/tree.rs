//! Files that tidy reads: text of the working tree, without build output and Python environments.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Outcome;

const EXTENSIONS: [&str; 10] = ["rs", "md", "toml", "c", "h", "cu", "sh", "py", "yml", "yaml"];

/// Directories with a leading dot that tidy enters.
const DOTTED: [&str; 3] = [".cargo", ".ci", ".github"];

/// Files that mark a directory as generated: cargo's target directory, a Python environment.
const OUTPUT_MARKS: [&str; 2] = ["CACHEDIR.TAG", "pyvenv.cfg"];

/// Returns the text of every file that tidy reads, keyed by the file's path relative to `root`.
pub(super) fn text_files(root: &Path) -> Outcome<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    collect(root, "", &mut files)?;
    Ok(files)
}

/// Returns whether the path `relative` exists below `root`.
pub(super) fn exists(root: &Path, relative: &str) -> bool {
    root.join(relative).exists()
}

fn collect(root: &Path, prefix: &str, files: &mut BTreeMap<String, String>) -> Outcome {
    let dir = root.join(prefix);
    let entries =
        fs::read_dir(&dir).map_err(|error| format!("cannot list {}: {error}", dir.display()))?;
    for entry in entries {
        let entry = entry.map_err(|error| format!("cannot list {}: {error}", dir.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        let kind = entry.file_type().map_err(|error| format!("cannot stat {path}: {error}"))?;
        if kind.is_dir() && enters(&name, &entry.path()) {
            collect(root, &path, files)?;
        } else if kind.is_file() && reads(&path) {
            let text = fs::read_to_string(entry.path())
                .map_err(|error| format!("cannot read {path}: {error}"))?;
            files.insert(path, text);
        }
    }
    Ok(())
}

fn enters(name: &str, path: &Path) -> bool {
    let foreign = name == "target" || name.starts_with('.') && !DOTTED.contains(&name);
    !foreign && !OUTPUT_MARKS.iter().any(|mark| path.join(mark).exists())
}

fn reads(path: &str) -> bool {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    EXTENSIONS.contains(&extension) || path.starts_with(".ci/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn our_files_are_read_and_build_output_is_not() {
        let files = text_files(&root()).unwrap();
        assert!(files.contains_key("xtask/src/tidy/tree.rs") && files.contains_key(".ci/run"));
        assert!(!files.keys().any(|path| path.starts_with("target/") || path.contains(".git/")));
    }

    #[test]
    fn only_text_is_read() {
        assert!(reads("a/b.rs") && reads("docs/x.md") && reads(".ci/run"));
        assert!(!reads("a/b.png") && !reads("Cargo.lock") && !reads("LICENSE"));
    }
}
