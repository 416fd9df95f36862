//! Measures the round trip of plain TCP, which a transport over TCP cannot undercut: 8 bytes there
//! and back on one socket that both sides poll without sleeping.
//!
//! ```text
//! ping_pong listen 29600          # prints nothing
//! ping_pong 10.0.0.1:29600 20000  # prints the median and the 99th percentile in µs as JSON
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const BYTES: usize = 8;
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", port] => answer(port),
        [address, iterations] => ask(address, number(iterations)?),
        _ => Err(wrong("usage: ping_pong listen PORT | ping_pong ADDRESS:PORT ITERATIONS")),
    }
}

fn wrong(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, text)
}

fn number<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| wrong(&format!("{text} is not a number")))
}

fn answer(port: &str) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", number::<u16>(port)?))?;
    let (mut socket, _) = listener.accept()?;
    prepare(&socket)?;
    let mut bytes = [0; BYTES];
    while receive(&mut socket, &mut bytes)? {
        socket.write_all(&bytes)?;
    }
    Ok(())
}

fn ask(address: &str, iterations: usize) -> io::Result<()> {
    let address = address.parse().map_err(|_| wrong("an address looks like 10.0.0.1:29600"))?;
    let start = Instant::now();
    let mut socket = loop {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(socket) => break socket,
            // The other side may not have started yet.
            Err(error) if start.elapsed() > PATIENCE => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    prepare(&socket)?;
    let mut bytes = [7; BYTES];
    let mut times = Vec::with_capacity(iterations);
    for _ in 0..iterations + iterations / 10 {
        let start = Instant::now();
        socket.write_all(&bytes)?;
        receive(&mut socket, &mut bytes)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    // The first round trips are warm-up.
    let mut times = times.split_off(iterations / 10);
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or(0.0);
    println!("{{\"bytes\": {BYTES}, \"median_us\": {:.3}, \"p99_us\": {:.3}}}", at(50), at(99));
    Ok(())
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)
}

/// Receives one message. Returns false at the end of the stream.
fn receive(socket: &mut TcpStream, bytes: &mut [u8; BYTES]) -> io::Result<bool> {
    let mut have = 0;
    let start = Instant::now();
    while have < BYTES {
        match socket.read(&mut bytes[have..]) {
            Ok(0) => return Ok(false),
            Ok(count) => have += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if start.elapsed() > PATIENCE {
                    return Err(error);
                }
                std::hint::spin_loop();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
