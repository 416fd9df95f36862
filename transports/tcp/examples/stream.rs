//! Measures the rate of this transport in one direction over one connection, without the layers
//! above the transport: puts into memory that is imported once, a few puts in flight, between two
//! threads that poll.
//!
//! `stream 65536` prints the rate as JSON, in 10^9 bytes a second.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ccl_clock::now;
use ccl_core::transport::{
    Connected, Device, DeviceId, EndpointId, Event, Lane, LocalSlice, MrKey, RemoteKey, RemoteMr,
    Secret, Transport, WorkRequest,
};
use ccl_transport_tcp::{DEVICE, Options, TcpTransport};

type Failure = Box<dyn Error + Send + Sync>;

/// Largest number of messages in flight, the same as in NCCL.
const IN_FLIGHT: usize = 8;
const TOTAL_BYTES: usize = 512 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// One side of the connection.
struct End {
    lane: Box<dyn Lane>,
    endpoint: EndpointId,
    /// Key of this side's memory.
    key: MrKey,
}

fn main() -> Result<(), Failure> {
    let usage = "usage: stream BYTES";
    let bytes = std::env::args().nth(1).ok_or(usage)?.parse::<usize>().map_err(|_| usage)?;
    let options = Options { done_when_written: true, ..Options::default() };
    let device = TcpTransport::new(options).open(&DeviceId(DEVICE.to_owned()))?;
    let device = device.as_ref();
    let stride = bytes.max(1).next_multiple_of(4096);
    let [accepted, connected] = meet(device)?;
    let mut from = End::new(device, connected, stride)?;
    let mut to = End::new(device, accepted, stride)?;
    let key = to.lane.share(to.endpoint, to.key)?;
    let messages = (TOTAL_BYTES / bytes.max(1)).clamp(16, 4000);
    let done = AtomicBool::new(false);
    let rate = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let result = receive(&mut to, messages);
            done.store(true, Ordering::Release);
            result
        });
        let start = Instant::now();
        send(&mut from, &key, (bytes, stride), messages, &done)?;
        receiver.join().map_err(|_| "the receiver panicked")??;
        Ok::<_, Failure>((messages * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9)
    })?;
    println!("{{\"bytes\": {bytes}, \"bandwidth_gbps\": {rate:.3}}}");
    Ok(())
}

/// Connects the device with itself. Returns the accepting side's connection, and the connecting
/// side's.
fn meet(device: &dyn Device) -> Result<[Connected; 2], Failure> {
    let secret = Secret([7; 32]);
    let mut listener = device.listen(&secret)?;
    let mut connecting = device.connect(&listener.address(), &secret, b"", now() + PATIENCE)?;
    let (mut accepted, mut connected) = (None, None);
    loop {
        accepted = accepted.map_or_else(|| listener.poll(now()), |one| Ok(Some(one)))?;
        connected = connected.map_or_else(|| connecting.poll(now()), |one| Ok(Some(one)))?;
        match (accepted, connected) {
            (Some(accepted), Some(connected)) => return Ok([accepted, connected]),
            both => (accepted, connected) = both,
        }
    }
}

impl End {
    fn new(device: &dyn Device, connected: Connected, stride: usize) -> Result<End, Failure> {
        let mut lane = device.lane()?;
        let endpoint = lane.attach(connected)?;
        let (region, key) = device.allocate(stride * IN_FLIGHT)?;
        let pages = vec![0xA5; 4096];
        for at in (0..region.bytes()).step_by(4096) {
            region.write(at, &pages[..4096.min(region.bytes() - at)])?;
        }
        Ok(End { lane, endpoint, key })
    }
}

fn send(
    end: &mut End,
    key: &RemoteKey,
    (bytes, stride): (usize, usize),
    messages: usize,
    done: &AtomicBool,
) -> Result<(), Failure> {
    let remote: RemoteMr = end.lane.import(end.endpoint, key)?;
    let (mut sent, mut written, mut events) = (0, 0, Vec::new());
    // The receiver ends at its deadline at the latest, and sets `done` when it ends.
    while !done.load(Ordering::Acquire) {
        if sent < messages && sent - written < IN_FLIGHT {
            let offset = sent % IN_FLIGHT * stride;
            let put = WorkRequest::Put {
                endpoint: end.endpoint,
                local: LocalSlice { key: end.key, offset, bytes },
                tail: None,
                is_control: false,
                remote,
                remote_offset: offset,
                immediate: Some(0),
                id: sent as u64,
            };
            sent += end.lane.post(now(), &[put])?;
        }
        end.lane.poll(now(), &mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Done { .. } => written += 1,
                Event::Lost { reason, .. } => return Err(reason.into()),
                Event::Arrived { .. } | Event::Note { .. } => {}
            }
        }
    }
    Ok(())
}

fn receive(end: &mut End, messages: usize) -> Result<(), Failure> {
    let (mut arrived, mut events) = (0, Vec::new());
    let since = Instant::now();
    while arrived < messages {
        end.lane.poll(now(), &mut events)?;
        let lost = events.iter().any(|event| matches!(event, Event::Lost { .. }));
        if lost || since.elapsed() > 3 * PATIENCE {
            return Err("the stream broke off, or took too long".into());
        }
        arrived += events.drain(..).filter(|e| matches!(e, Event::Arrived { .. })).count();
    }
    Ok(())
}
