//! Initial file system of the guest: an uncompressed archive in the kernel's format ("newc").

/// Archive that grows entry by entry.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Archive {
    pub(super) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, &[]);
    }

    /// Adds an executable file.
    pub(super) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, PROGRAM, content);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let (size, name_size) = (content.len(), name.len() + 1);
        // Fields of eight hexadecimal digits each: inode, mode, user, group, links, time, size,
        // device of the file system (major, minor), device that a device node stands for (major,
        // minor), length of the name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size as u32, 0, 0, 0, 0, name_size as u32, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_padded_to_four_bytes_after_its_name_and_after_its_content() {
        let mut archive = Archive::default();
        archive.directory("d");
        archive.file("init", b"#!sh\n");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..112], b"d\0");
        let file = 112;
        assert_eq!(&bytes[file + 14..file + 22], b"000081ed");
        assert_eq!(&bytes[file + 54..file + 62], b"00000005");
        assert_eq!(&bytes[file + 116..file + 121], b"#!sh\n");
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
