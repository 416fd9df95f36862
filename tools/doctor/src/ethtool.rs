//! Counters of an interface's driver, as `ethtool -S` shows them.

use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketType};

const SIOCETHTOOL: u64 = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETH_SS_STATS: u32 = 1;
/// Bytes of `struct ethtool_drvinfo`.
const INFO_BYTES: usize = 196;
/// Offset of the number of counters in `struct ethtool_drvinfo`.
const INFO_COUNT: usize = 180;
const NAME_BYTES: usize = 32;
/// Spare room, as a number of counters: a driver may add counters between two calls, and the kernel
/// writes all of the driver's counters, even if fewer were asked for.
const MORE: usize = 4096;
/// Largest number of counters that is believed: a driver that reports more is not read.
const COUNT_MAX: usize = 65_536;

/// `struct ifreq`, with a pointer.
#[repr(C)]
struct Request {
    name: [u8; 16],
    data: *mut u64,
    rest: [u64; 2],
}

/// Returns all counters of an interface; none if its driver has none or refuses the request.
pub(super) fn counters(interface: &str) -> Vec<(String, u64)> {
    read(interface).unwrap_or_default()
}

fn read(interface: &str) -> Option<Vec<(String, u64)>> {
    let info = ask(interface, &[ETHTOOL_GDRVINFO], INFO_BYTES)?;
    let count = number(info.get(INFO_COUNT..INFO_COUNT + 4)?)? as usize;
    if count == 0 || count > COUNT_MAX {
        return None;
    }
    let room = count + MORE;
    let told = count as u32;
    let names = ask(interface, &[ETHTOOL_GSTRINGS, ETH_SS_STATS, told], 12 + room * NAME_BYTES)?;
    let values = ask(interface, &[ETHTOOL_GSTATS, told], 8 + room * 8)?;
    let names = names.get(12..)?.chunks_exact(NAME_BYTES);
    let values = values.get(8..)?.chunks_exact(8);
    let pair = |(name, value): (&[u8], &[u8])| {
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = std::str::from_utf8(name.get(..end)?).ok()?;
        let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        let value = u64::from_ne_bytes(value.try_into().ok()?);
        plain.then(|| (name.to_owned(), value))
    };
    Some(names.zip(values).take(count).filter_map(pair).collect())
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Sends a command that begins with these words, and returns `bytes` bytes of answer.
fn ask(interface: &str, words: &[u32], bytes: usize) -> Option<Vec<u8>> {
    let mut request = Request { name: [0; 16], data: std::ptr::null_mut(), rest: [0; 2] };
    // The last byte of the name stays zero.
    let name = request.name.get_mut(..interface.len()).filter(|name| name.len() < 16)?;
    name.copy_from_slice(interface.as_bytes());
    // An element of the buffer has the size of a counter: eight bytes.
    let mut buffer = vec![0_u64; bytes.div_ceil(8) + 1];
    let pairs = words.chunks(2).map(|pair| {
        let [low, high] = [pair.first(), pair.get(1)].map(|word| word.copied().unwrap_or(0));
        let [a, b, c, d] = low.to_ne_bytes();
        let [e, f, g, h] = high.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    });
    buffer.iter_mut().zip(pairs).for_each(|(into, pair)| *into = pair);
    request.data = buffer.as_mut_ptr();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    // SAFETY: the request names an interface and a buffer with room for more than the command's
    // answer; the kernel keeps neither.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    let bytes_of = |word: &u64| word.to_ne_bytes();
    (code == 0).then(|| buffer.iter().flat_map(bytes_of).take(bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_and_unknown_interfaces_have_none() {
        let names = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            let counters = counters(&name);
            println!("{name}: {} counters, {:?}", counters.len(), counters.first());
            assert!(counters.iter().all(|(name, _)| name.len() <= NAME_BYTES));
        }
        assert!(counters("").is_empty() && counters("no-such").is_empty());
        assert!(counters("a-name-that-is-too-long").is_empty());
    }
}
