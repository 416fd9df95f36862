//! JSON of recordings, for other programs.

use std::io;

use serde::Serialize;
use serde_json_core::ser::Error;

/// Initial length of the buffer of a line; it grows by doubling.
const BYTES: usize = 4096;

/// Returns a value as a line of JSON, its newline included.
///
/// # Errors
///
/// When JSON cannot represent the value.
pub(super) fn line<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut line = vec![0; BYTES];
    loop {
        match serde_json_core::to_slice(value, &mut line) {
            Ok(bytes) => {
                line.truncate(bytes);
                line.push(b'\n');
                return Ok(line);
            }
            Err(Error::BufferFull) => line.resize(line.len() * 2, 0),
            Err(error) => return Err(io::Error::other(error.to_string())),
        }
    }
}
