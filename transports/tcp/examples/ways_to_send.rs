//! Compares the ways that Linux has to send on a TCP socket: `write`, `MSG_ZEROCOPY`, and io_uring
//! with and without its zero copy. The measurements are the reason why the lanes of this crate use
//! plain writes (docs/adr/0008-plain-writes.md).
//!
//! ```text
//! ways_to_send listen 29600      # prints nothing; start it anew for every run
//! ways_to_send 10.0.0.1:29600 9  # 9 rounds of all ways in turn; prints medians
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::mem::{MaybeUninit, size_of};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

/// Flag in a notification of `MSG_ZEROCOPY`: `SO_EE_CODE_ZEROCOPY_COPIED`.
const COPIED: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(20);
/// Sizes of the loads: bytes of a message, and number of messages per round. The other side answers
/// each 8-byte message.
const LOADS: [(usize, usize); 3] = [(8, 5000), (128 << 10, 2000), (1 << 20, 400)];

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", port] => answer(number(port)?),
        [address, rounds] => ask(address, number(rounds)?),
        _ => Err(wrong("usage: ways_to_send listen PORT | ways_to_send ADDRESS:PORT ROUNDS")),
    }
}

fn wrong(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, text)
}

fn number<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| wrong(&format!("{text} is not a number")))
}

/// Deadline of a loop, compared with the clock at every 4096th check.
struct Deadline(Instant, u32);

impl Deadline {
    fn new() -> Deadline {
        Deadline(Instant::now() + PATIENCE, 0)
    }

    fn check(&mut self) -> io::Result<()> {
        self.1 = self.1.wrapping_add(1);
        if self.1.is_multiple_of(1 << 12) && Instant::now() > self.0 {
            return Err(io::Error::new(ErrorKind::TimedOut, "the other side takes too long"));
        }
        std::hint::spin_loop();
        Ok(())
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)
}

/// Receives one load after the other.
fn answer(port: u16) -> io::Result<()> {
    let (mut socket, _) = TcpListener::bind(("0.0.0.0", port))?.accept()?;
    prepare(&socket)?;
    let mut message = vec![0; LOADS.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0)];
    let mut which = [0];
    while Plain.receive(&socket, &mut which).is_ok() {
        let &(bytes, messages) =
            LOADS.get(usize::from(which[0])).ok_or_else(|| wrong("unknown load"))?;
        for _ in 0..messages {
            Plain.receive(&socket, &mut message[..bytes])?;
            if bytes == 8 {
                socket.write_all(&message[..bytes])?;
            }
        }
        socket.write_all(&[1])?;
    }
    Ok(())
}

fn ask(address: &str, rounds: usize) -> io::Result<()> {
    let address = address.parse().map_err(|_| wrong("an address looks like 10.0.0.1:29600"))?;
    let start = Instant::now();
    let socket = loop {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(socket) => break socket,
            // The other side may not have started yet.
            Err(error) if start.elapsed() > PATIENCE => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    prepare(&socket)?;
    let mut ways: Vec<Box<dyn Way>> = vec![
        Box::new(Plain),
        Box::new(ZeroCopy::new(&socket)?),
        Box::new(Ring::new(false)?),
        Box::new(Ring::new(true)?),
    ];
    let mut seconds = vec![[const { Vec::new() }; LOADS.len()]; ways.len()];
    for _ in 0..rounds {
        for (way, seconds) in ways.iter_mut().zip(&mut seconds) {
            for (which, seconds) in seconds.iter_mut().enumerate() {
                seconds.push(load(&mut **way, &socket, which)?);
            }
        }
    }
    println!(
        "| way | round trip of 8 B | 128 KiB messages | 1 MiB messages | copied despite zero copy |"
    );
    println!("|---|---|---|---|---|");
    for (way, seconds) in ways.iter().zip(&mut seconds) {
        let median = |of: &mut Vec<f64>| {
            of.sort_by(f64::total_cmp);
            of[of.len() / 2]
        };
        let [small, middle, large] = seconds;
        let rate = |load: usize, of: &mut Vec<f64>| {
            let (bytes, messages) = LOADS[load];
            (bytes * messages) as f64 / median(of) / 1e9
        };
        println!(
            "| {} | {:.2} µs | {:.2} GB/s | {:.2} GB/s | {} |",
            way.name(),
            median(small) / LOADS[0].1 as f64 * 1e6,
            rate(1, middle),
            rate(2, large),
            way.copied(),
        );
    }
    Ok(())
}

/// Sends one load. Returns the seconds that it took.
fn load(way: &mut dyn Way, mut socket: &TcpStream, which: usize) -> io::Result<f64> {
    let (bytes, messages) = LOADS[which];
    let mut message = vec![7; bytes];
    socket.set_nonblocking(true)?;
    let start = Instant::now();
    socket.write_all(&[which as u8])?;
    socket.set_nonblocking(way.polls())?;
    for _ in 0..messages {
        way.send(socket, &message)?;
        if bytes == 8 {
            way.receive(socket, &mut message)?;
        }
    }
    way.receive(socket, &mut [0])?;
    Ok(start.elapsed().as_secs_f64())
}

/// A way to send a message whole. The caller may use the memory again when `send` returns.
trait Way {
    fn name(&self) -> &'static str;

    fn send(&mut self, socket: &TcpStream, message: &[u8]) -> io::Result<()>;

    fn receive(&mut self, socket: &TcpStream, into: &mut [u8]) -> io::Result<()> {
        Plain.receive(socket, into)
    }

    /// Returns whether the program retries until the socket is ready; otherwise the kernel waits.
    fn polls(&self) -> bool {
        true
    }

    /// Returns the share of sends that the kernel copied despite zero copy.
    fn copied(&self) -> String {
        "-".to_owned()
    }
}

struct Plain;

impl Way for Plain {
    fn name(&self) -> &'static str {
        "write"
    }

    fn send(&mut self, mut socket: &TcpStream, mut message: &[u8]) -> io::Result<()> {
        let mut deadline = Deadline::new();
        while !message.is_empty() {
            match socket.write(message) {
                Ok(count) => message = &message[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => deadline.check()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self, mut socket: &TcpStream, into: &mut [u8]) -> io::Result<()> {
        let (mut have, mut deadline) = (0, Deadline::new());
        while have < into.len() {
            match socket.read(&mut into[have..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => have += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => deadline.check()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// `MSG_ZEROCOPY`, whose notifications come over the socket's error queue.
struct ZeroCopy {
    sent: u32,
    done: u32,
    copied: u32,
}

impl ZeroCopy {
    fn new(socket: &TcpStream) -> io::Result<ZeroCopy> {
        let (yes, length) = (1i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: the option is an int of this length.
        let set = unsafe {
            let value = std::ptr::from_ref(&yes).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, length)
        };
        checked(set as isize)?;
        Ok(ZeroCopy { sent: 0, done: 0, copied: 0 })
    }

    /// Takes one notification, if there is one.
    fn reap(&mut self, socket: RawFd) -> io::Result<()> {
        let mut control = [0u64; 16];
        // SAFETY: a `msghdr` of zeros is a valid, empty message header.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        // SAFETY: the header names the control buffer with its length and nothing else.
        let got = unsafe { libc::recvmsg(socket, &raw mut header, libc::MSG_ERRQUEUE) };
        match checked(got) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            got => got?,
        };
        // SAFETY: the kernel has filled the buffer that the header names.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        if first.is_null() {
            return Ok(());
        }
        // SAFETY: `first` is not null and lies in the buffer.
        let data = unsafe { libc::CMSG_DATA(first) };
        // SAFETY: the data of a `MSG_ZEROCOPY` notification is a `sock_extended_err`, and the
        // control buffer has room for all of it.
        let error = unsafe { data.cast::<libc::sock_extended_err>().read_unaligned() };
        let range = error.ee_data.wrapping_sub(error.ee_info).wrapping_add(1);
        self.done += range;
        if error.ee_code & COPIED != 0 {
            self.copied += range;
        }
        Ok(())
    }
}

fn checked(result: isize) -> io::Result<isize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Way for ZeroCopy {
    fn name(&self) -> &'static str {
        "MSG_ZEROCOPY"
    }

    fn send(&mut self, socket: &TcpStream, mut message: &[u8]) -> io::Result<()> {
        let (socket, mut deadline) = (socket.as_raw_fd(), Deadline::new());
        while !message.is_empty() {
            let (start, bytes) = (message.as_ptr().cast(), message.len());
            // SAFETY: these are the bytes of the message. The kernel reads them, and keeps their
            // pages until they are sent.
            let sent = unsafe { libc::send(socket, start, bytes, libc::MSG_ZEROCOPY) };
            match checked(sent) {
                Ok(count) => {
                    message = &message[count as usize..];
                    self.sent += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.reap(socket)?;
                    deadline.check()?;
                }
                Err(error) => return Err(error),
            }
        }
        while self.done != self.sent {
            self.reap(socket)?;
            deadline.check()?;
        }
        Ok(())
    }

    fn copied(&self) -> String {
        format!("{} %", 100 * u64::from(self.copied) / u64::from(self.sent.max(1)))
    }
}

/// io_uring, where the kernel waits until the socket is ready.
struct Ring {
    ring: IoUring,
    zero_copy: bool,
    sent: u64,
    copied: u64,
}

impl Ring {
    fn new(zero_copy: bool) -> io::Result<Ring> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8)?;
        Ok(Ring { ring, zero_copy, sent: 0, copied: 0 })
    }

    /// Waits for a completion. Returns its result and its flags.
    fn completion(&mut self) -> io::Result<(i32, u32)> {
        let mut deadline = Deadline::new();
        loop {
            if let Some(entry) = self.ring.completion().next() {
                return Ok((entry.result(), entry.flags()));
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                _ => {}
            }
            deadline.check()?;
        }
    }

    fn submit(&mut self, entry: &io_uring::squeue::Entry) -> io::Result<()> {
        // SAFETY: every caller waits for the completion, and keeps the memory alive until then.
        unsafe { self.ring.submission().push(entry) }.map_err(io::Error::other)?;
        self.ring.submit().map(drop)
    }
}

impl Way for Ring {
    fn name(&self) -> &'static str {
        if self.zero_copy { "io_uring, zero copy" } else { "io_uring" }
    }

    fn polls(&self) -> bool {
        false
    }

    fn send(&mut self, socket: &TcpStream, mut message: &[u8]) -> io::Result<()> {
        let fd = types::Fd(socket.as_raw_fd());
        while !message.is_empty() {
            let (start, bytes) = (message.as_ptr(), message.len() as u32);
            let entry = if self.zero_copy {
                // This flag makes SEND_ZC report copies.
                opcode::SendZc::new(fd, start, bytes).zc_flags(1 << 3).build()
            } else {
                opcode::Send::new(fd, start, bytes).build()
            };
            self.submit(&entry)?;
            let (result, flags) = self.completion()?;
            self.sent += 1;
            if io_uring::cqueue::more(flags) {
                // The next completion is the notification that the memory is free. The highest bit
                // of its result is set if the kernel copied the bytes.
                let (usage, _) = self.completion()?;
                self.copied += u64::from(usage as u32 >> 31);
            }
            match result {
                count if count >= 0 => message = &message[count as usize..],
                code if code == -libc::EAGAIN => {}
                code => return Err(io::Error::from_raw_os_error(-code)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, socket: &TcpStream, into: &mut [u8]) -> io::Result<()> {
        let (fd, mut have) = (types::Fd(socket.as_raw_fd()), 0);
        while have < into.len() {
            let rest = &mut into[have..];
            let entry = opcode::Recv::new(fd, rest.as_mut_ptr(), rest.len() as u32).build();
            self.submit(&entry)?;
            match self.completion()?.0 {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count if count > 0 => have += count as usize,
                code if code == -libc::EAGAIN => {}
                code => return Err(io::Error::from_raw_os_error(-code)),
            }
        }
        Ok(())
    }

    fn copied(&self) -> String {
        match self.zero_copy {
            true => format!("{} %", 100 * self.copied / self.sent.max(1)),
            false => "-".to_owned(),
        }
    }
}
