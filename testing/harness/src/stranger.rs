//! Strangers: connections that break the protocol of the service that they reach. [`Host::spawn`]
//! can run a stranger on a host of a network.

use super::netns::Host;
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ccl_core::random::Random;

/// Longest time that a stranger waits for a connection, and, in [`random`], for a single write.
const PATIENCE: Duration = Duration::from_secs(2);

/// Counts of a series of random connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noise {
    /// Accepted connections.
    pub connected: u32,
    /// Refused connections.
    pub refused: u32,
    /// Bytes handed to the connections; the service may have read fewer.
    pub sent_bytes: u64,
}

/// Makes `count` connections, one after the other. Each sends up to `bytes_max` random bytes, then
/// ends in one of three ways: it is closed at once, or is reset, or is half closed and then read
/// from. The same seed gives the same connections.
pub fn random(address: SocketAddr, count: u32, bytes_max: usize, seed: u64) -> Noise {
    let mut random = Random::new(seed);
    let mut noise = Noise::default();
    for _ in 0..count {
        let length = random.below(bytes_max as u64 + 1) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        let end = random.below(3);
        let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else {
            noise.refused += 1;
            continue;
        };
        noise.connected += 1;
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        noise.sent_bytes += stream.write(&bytes).unwrap_or(0) as u64;
        match end {
            0 => {}
            1 => {
                let _ = stream.shutdown(Shutdown::Write);
                stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                let _ = stream.read(&mut [0; 64]);
            }
            _ => set_socket_linger(&stream, Some(Duration::ZERO)).unwrap(),
        }
    }
    noise
}

/// Makes connections from a host that then vanishes: the service gets no FIN, reset or answer until
/// the host's link is set up again. Each connection sends `says` first. The function takes the link
/// of `from` down, so use that host for nothing else.
pub fn half_open(from: &Host, addresses: &[SocketAddr], says: &[u8]) -> Vec<TcpStream> {
    let (addresses, says) = (addresses.to_vec(), says.to_vec());
    let connect = from.spawn(move || {
        let connected = |address: SocketAddr| {
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
            stream.write_all(&says).unwrap();
            stream
        };
        addresses.into_iter().map(connected).collect()
    });
    let streams = connect.join().unwrap();
    from.link_down();
    streams
}

/// Connects, sends `says`, then reads one byte per `pause` through the smallest receive buffer that
/// the kernel allows, for `duration` or until the other side ends the connection. Returns the
/// number of bytes read.
pub fn slow_reader(address: SocketAddr, says: &[u8], pause: Duration, duration: Duration) -> u64 {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    set_socket_recv_buffer_size(&stream, 1).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    stream.write_all(says).unwrap();
    let start = Instant::now();
    let mut read_bytes = 0;
    while start.elapsed() < duration {
        match stream.read(&mut [0]) {
            Ok(0) => break,
            Ok(count) => read_bytes += count as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
        std::thread::sleep(pause);
    }
    read_bytes
}
