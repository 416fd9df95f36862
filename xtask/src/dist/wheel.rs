//! Python wheel, written according to the specification:
//! <https://packaging.python.org/en/latest/specifications/binary-distribution-format/>.

use std::io::{Cursor, Write};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::{GLIBC, PLUGIN};
use crate::Outcome;

const NAME: &str = "ferroccl_nccl_net";

/// Command that prints the plugin's directory or, with `--file`, the plugin's path.
pub(super) const COMMAND: &str = "ferroccl-nccl-net";

const INIT: &str = r#""""Locates the file of ferroccl's network plugin for NCCL."""

import pathlib

#: The directory for LD_LIBRARY_PATH.
directory = pathlib.Path(__file__).resolve().parent
#: The plugin itself.
library = directory / "libnccl-net-ferroccl.so"


def main() -> None:
    """Print the plugin's directory or, with --file, the plugin's path."""
    import sys

    print(library if "--file" in sys.argv[1:] else directory)
"#;

const MAIN: &str = "from ferroccl_nccl_net import main\n\nmain()\n";

/// Returns the wheel's file name, with the tag of the systems that can install the wheel.
pub(super) fn file_name(version: &str, arch: &str) -> String {
    format!("{NAME}-{version}-{}.whl", tag(arch))
}

fn tag(arch: &str) -> String {
    format!("py3-none-manylinux_2_{GLIBC}_{arch}")
}

/// Returns the bytes of the wheel.
pub(super) fn pack(version: &str, arch: &str, plugin: &[u8]) -> Outcome<Vec<u8>> {
    let info = format!("{NAME}-{version}.dist-info");
    let metadata = format!(
        "Metadata-Version: 2.1\nName: ferroccl-nccl-net\nVersion: {version}\n\
         Summary: ferroccl's transports as a network plugin of NCCL\n\
         License: MIT OR Apache-2.0\nRequires-Python: >=3.8\n"
    );
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: ferroccl xtask\nRoot-Is-Purelib: false\nTag: {}\n",
        tag(arch)
    );
    let entries = format!("[console_scripts]\n{COMMAND} = {NAME}:main\n");
    let files: [(String, &[u8]); 6] = [
        (format!("{NAME}/__init__.py"), INIT.as_bytes()),
        (format!("{NAME}/__main__.py"), MAIN.as_bytes()),
        (format!("{NAME}/{PLUGIN}"), plugin),
        (format!("{info}/METADATA"), metadata.as_bytes()),
        (format!("{info}/WHEEL"), wheel.as_bytes()),
        (format!("{info}/entry_points.txt"), entries.as_bytes()),
    ];
    let mut record = String::new();
    for (path, bytes) in &files {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(bytes));
        record.push_str(&format!("{path},sha256={digest},{}\n", bytes.len()));
    }
    let own = format!("{info}/RECORD");
    record.push_str(&format!("{own},,\n"));
    let failed = |error: &dyn std::fmt::Display| format!("cannot make the wheel: {error}");
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().unix_permissions(0o755);
    for (path, bytes) in
        files.iter().map(|(path, bytes)| (path, *bytes)).chain([(&own, record.as_bytes())])
    {
        zip.start_file(path.as_str(), options).map_err(|error| failed(&error))?;
        zip.write_all(bytes).map_err(|error| failed(&error))?;
    }
    Ok(zip.finish().map_err(|error| failed(&error))?.into_inner())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_record_of_a_wheel_matches_its_files() {
        assert_eq!(
            file_name("1.2.3", "x86_64"),
            "ferroccl_nccl_net-1.2.3-py3-none-manylinux_2_28_x86_64.whl"
        );
        let bytes = pack("1.2.3", "x86_64", b"a library").unwrap();
        let mut zip = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        let mut text = |name: &str| {
            let mut text = String::new();
            zip.by_name(name).unwrap().read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!(text("ferroccl_nccl_net/libnccl-net-ferroccl.so"), "a library");
        let record = text("ferroccl_nccl_net-1.2.3.dist-info/RECORD");
        assert_eq!(record.lines().count(), 7);
        for line in record.lines() {
            let [name, digest, bytes] = *line.split(',').collect::<Vec<_>>() else { panic!() };
            let content = text(name);
            if !digest.is_empty() {
                assert_eq!(bytes, content.len().to_string());
                let expected = URL_SAFE_NO_PAD.encode(Sha256::digest(content));
                assert_eq!(digest, format!("sha256={expected}"));
            }
        }
    }
}
