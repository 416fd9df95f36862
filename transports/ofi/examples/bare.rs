//! Benchmark of a bare provider: a loop of `fi_writedata` between two processes. The receiver polls
//! its completion queue.
//!
//! `bare tcp 8 latency` prints half a round trip of 8 bytes in microseconds, and
//! `bare tcp 65536 stream` the rate in one direction in 10^9 bytes a second, both as JSON.

use std::error::Error;
use std::ffi::CString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use libc::{EAGAIN, c_void, iovec};
use libfabric_sys::*;

type Failure = Box<dyn Error>;

/// Number of messages in flight, as many as NCCL has.
const IN_FLIGHT: usize = 8;
const TOTAL_BYTES: usize = 512 << 20;
const ROUND_TRIPS: usize = 5000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Room for an address.
const ADDRESS_BYTES: usize = 128;

fn main() -> Result<(), Failure> {
    let all: Vec<String> = std::env::args().collect();
    let [_, provider, bytes, what, rest @ ..] = &all[..] else {
        return Err("usage: bare PROVIDER BYTES latency|stream".into());
    };
    let bytes: usize = bytes.parse()?;
    let mut child = None;
    let beside = match rest {
        [port] => {
            let parent = SocketAddr::from(([127, 0, 0, 1], port.parse()?));
            TcpStream::connect_timeout(&parent, PATIENCE)?
        }
        _ => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let port = listener.local_addr()?.port().to_string();
            let mut command = Command::new(std::env::current_exe()?);
            command.args([provider, &all[2], what, &port]).stdout(Stdio::null());
            child = Some(command.spawn()?);
            listener.accept()?.0
        }
    };
    beside.set_nodelay(true)?;
    let mut end = End::open(provider, bytes.max(1), beside)?;
    let sends = child.is_some();
    let took = match what.as_str() {
        "latency" => end.round_trips(bytes, sends)?,
        _ => end.stream(bytes, sends)?,
    };
    if let Some(mut child) = child {
        println!("{took}");
        let until = Instant::now() + PATIENCE;
        while child.try_wait()?.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// One process: its endpoint, the memory that the peer writes to, and the peer's addresses.
struct End {
    endpoint: *mut fid_ep,
    queue: *mut fid_cq,
    memory: Vec<u8>,
    descriptor: *mut c_void,
    stride: usize,
    peer: u64,
    remote: (u64, u64),
    /// Contexts of writes, used in turn.
    contexts: Vec<fi_context2>,
    posted: usize,
    done: usize,
    arrived: usize,
    beside: TcpStream,
    until: Instant,
}

fn check(call: &str, returned: i32) -> Result<(), Failure> {
    if returned < 0 { Err(format!("{call}: {returned}").into()) } else { Ok(()) }
}

/// Returns the provider's first offer.
fn offer(functions: &Functions, provider: &str) -> Result<*mut fi_info, Failure> {
    let name = CString::new(provider)?;
    // SAFETY: for a null pointer, `fi_dupinfo` returns an empty offer that has all its attributes.
    let hints = unsafe { (functions.dupinfo)(null()) };
    // SAFETY: as above.
    let asked = unsafe { &mut *hints };
    (asked.caps, asked.mode) = (FI_MSG | FI_RMA, FI_CONTEXT | FI_CONTEXT2);
    // SAFETY: as above.
    unsafe { &mut *asked.ep_attr }.r#type = FI_EP_RDM;
    let modes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    // SAFETY: as above.
    unsafe { &mut *asked.domain_attr }.mr_mode = modes;
    // SAFETY: the name ends with a NUL byte. The copy belongs to the hints, which are never freed.
    let name = unsafe { libc::strdup(name.as_ptr()) };
    // SAFETY: as above.
    unsafe { &mut *asked.fabric_attr }.prov_name = name;
    let mut info = null_mut();
    // SAFETY: the hints are whole.
    let found =
        unsafe { (functions.getinfo)(FI_API_VERSION, null(), null(), 0, hints, &raw mut info) };
    check("fi_getinfo", found)?;
    Ok(info)
}

/// Opens the domain of an offer.
fn domain(functions: &Functions, info: *mut fi_info) -> Result<*mut fid_domain, Failure> {
    let (mut fabric, mut domain) = (null_mut(), null_mut());
    // SAFETY: the offer is whole.
    let attributes = unsafe { (*info).fabric_attr };
    // SAFETY: as above.
    let opened = unsafe { (functions.fabric)(attributes, &raw mut fabric, null_mut()) };
    check("fi_fabric", opened)?;
    // SAFETY: the fabric is open.
    check("fi_domain", unsafe { fi_domain(fabric, info, &raw mut domain) })?;
    Ok(domain)
}

type Objects = (*mut fid_ep, *mut fid_cq, *mut fid_av);

/// Opens an endpoint, its completion queue and its address vector.
fn endpoint(info: *mut fi_info, domain: *mut fid_domain) -> Result<Objects, Failure> {
    let (mut queue, mut vector, mut endpoint) = (null_mut(), null_mut(), null_mut());
    let mut of_queue = fi_cq_attr {
        size: 0,
        flags: 0,
        format: FI_CQ_FORMAT_DATA,
        wait_obj: FI_WAIT_NONE,
        signaling_vector: 0,
        wait_cond: 0,
        wait_set: null_mut(),
        later: null_mut(),
    };
    // SAFETY: the domain is open.
    check("fi_cq_open", unsafe { fi_cq_open(domain, &raw mut of_queue, &raw mut queue) })?;
    let mut of_vector = fi_av_attr {
        r#type: FI_AV_TABLE,
        rx_ctx_bits: 0,
        count: 0,
        ep_per_node: 0,
        name: null(),
        map_addr: null_mut(),
        flags: 0,
    };
    // SAFETY: as above.
    check("fi_av_open", unsafe { fi_av_open(domain, &raw mut of_vector, &raw mut vector) })?;
    // SAFETY: as above.
    check("fi_endpoint", unsafe { fi_endpoint(domain, info, &raw mut endpoint) })?;
    // SAFETY: both are open.
    check("fi_ep_bind", unsafe { fi_ep_bind(endpoint, queue.cast(), FI_SEND | FI_RECV) })?;
    // SAFETY: both are open.
    check("fi_ep_bind", unsafe { fi_ep_bind(endpoint, vector.cast(), 0) })?;
    // SAFETY: everything is bound.
    check("fi_enable", unsafe { fi_enable(endpoint) })?;
    Ok((endpoint, queue, vector))
}

/// Registers memory until the process ends; returns its descriptor and its key.
fn register(domain: *mut fid_domain, memory: &mut [u8]) -> Result<(*mut c_void, u64), Failure> {
    let range = iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    let attributes = fi_mr_attr {
        mr_iov: &raw const range,
        iov_count: 1,
        access: FI_WRITE | FI_REMOTE_WRITE,
        offset: 0,
        requested_key: 1,
        context: null_mut(),
        auth_key_size: 0,
        auth_key: null_mut(),
        iface: 0,
        device: 0,
        later: [0; 4],
    };
    let mut registered = null_mut();
    // SAFETY: the memory lives until the process ends.
    let returned = unsafe { fi_mr_regattr(domain, &raw const attributes, 0, &raw mut registered) };
    check("fi_mr_regattr", returned)?;
    // SAFETY: it is registered.
    let fid_mr { mem_desc, key, .. } = unsafe { registered.read() };
    Ok((mem_desc, key))
}

impl End {
    fn open(provider: &str, bytes: usize, mut beside: TcpStream) -> Result<End, Failure> {
        let functions = system().map_err(ToString::to_string)?;
        let info = offer(functions, provider)?;
        let domain = domain(functions, info)?;
        let (endpoint, queue, vector) = endpoint(info, domain)?;
        let stride = bytes.next_multiple_of(4096);
        let mut memory = vec![0xa5; stride * IN_FLIGHT];
        let (descriptor, key) = register(domain, &mut memory)?;
        // SAFETY: the offer is whole.
        let of_domain = unsafe { (*info).domain_attr };
        // SAFETY: as above.
        let by_address = unsafe { (*of_domain).mr_mode } & FI_MR_VIRT_ADDR != 0;
        let address = if by_address { memory.as_ptr().expose_provenance() as u64 } else { 0 };
        let mut name = [0u8; ADDRESS_BYTES];
        let mut length = ADDRESS_BYTES;
        let into = name.as_mut_ptr().cast();
        // SAFETY: `name` has room for `length` bytes.
        check("fi_getname", unsafe { fi_getname(endpoint, into, &raw mut length) })?;
        let mut own = Vec::from(name);
        own.extend([address, key].iter().flat_map(|word| word.to_le_bytes()));
        beside.write_all(&own)?;
        let mut theirs = vec![0; own.len()];
        beside.read_exact(&mut theirs)?;
        let word = |at: usize| theirs[at..at + 8].try_into().map(u64::from_le_bytes);
        let remote = (word(ADDRESS_BYTES)?, word(ADDRESS_BYTES + 8)?);
        let (mut peer, name) = (0, theirs.as_ptr().cast());
        // SAFETY: the address is what the same provider returned.
        check("fi_av_insert", unsafe { fi_av_insert(vector, name, &raw mut peer) })?;
        Ok(End {
            endpoint,
            queue,
            memory,
            descriptor,
            stride,
            peer,
            remote,
            contexts: vec![fi_context2 { internal: [null_mut(); 8] }; IN_FLIGHT],
            posted: 0,
            done: 0,
            arrived: 0,
            beside,
            until: Instant::now() + PATIENCE,
        })
    }

    /// Writes the next message, once fewer than [`IN_FLIGHT`] are in flight.
    fn write(&mut self, bytes: usize) -> Result<(), Failure> {
        loop {
            if self.posted - self.done < IN_FLIGHT {
                let turn = self.posted % IN_FLIGHT;
                let offset = turn * self.stride;
                let from = self.memory[offset..].as_ptr().cast();
                let context = (&raw mut self.contexts[turn]).cast();
                let remote = (self.remote.0 + offset as u64, self.remote.1);
                let what = (from, bytes, self.descriptor);
                // SAFETY: memory and context live until the process ends, and are used again only
                // once the write is done: the providers that this program is run over complete
                // writes in order.
                let returned =
                    unsafe { fi_writedata(self.endpoint, what, 1, self.peer, remote, context) };
                if returned == 0 {
                    self.posted += 1;
                    return Ok(());
                }
                if returned != -(EAGAIN as isize) {
                    return Err(format!("fi_writedata: {returned}").into());
                }
            }
            self.poll()?;
        }
    }

    fn poll(&mut self) -> Result<(), Failure> {
        let none =
            fi_cq_data_entry { op_context: null_mut(), flags: 0, len: 0, buf: null_mut(), data: 0 };
        let mut entries = [none; IN_FLIGHT];
        // SAFETY: there is room for `IN_FLIGHT` entries.
        let found = unsafe { fi_cq_read(self.queue, entries.as_mut_ptr().cast(), IN_FLIGHT) };
        if found < 0 && found != -(EAGAIN as isize) {
            return Err(format!("fi_cq_read: {found}").into());
        }
        for entry in &entries[..found.max(0) as usize] {
            match entry.flags & FI_REMOTE_CQ_DATA != 0 {
                true => self.arrived += 1,
                false => self.done += 1,
            }
        }
        if found <= 0 && Instant::now() > self.until {
            return Err("no completion arrived in time".into());
        }
        Ok(())
    }

    /// Returns half of the median round trip, as JSON.
    fn round_trips(&mut self, bytes: usize, begins: bool) -> Result<String, Failure> {
        let mut times = Vec::with_capacity(ROUND_TRIPS);
        for trip in 1..=ROUND_TRIPS {
            let start = Instant::now();
            if begins {
                self.write(bytes)?;
            }
            while self.arrived < trip {
                self.poll()?;
            }
            if !begins {
                self.write(bytes)?;
            }
            times.push(start.elapsed().as_secs_f64() / 2.0 * 1e6);
        }
        self.part()?;
        times.sort_by(f64::total_cmp);
        Ok(format!("{{\"bytes\": {bytes}, \"latency_us\": {:.3}}}", times[ROUND_TRIPS / 2]))
    }

    /// Returns the rate of many messages in one direction, as JSON.
    fn stream(&mut self, bytes: usize, sends: bool) -> Result<String, Failure> {
        let messages = (TOTAL_BYTES / bytes.max(1)).clamp(16, 4000);
        let start = Instant::now();
        if sends {
            for _ in 0..messages {
                self.write(bytes)?;
            }
            while self.arrived == 0 {
                self.poll()?;
            }
        } else {
            while self.arrived < messages {
                self.poll()?;
            }
            self.write(0)?;
        }
        let rate = (messages * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9;
        self.part()?;
        Ok(format!("{{\"bytes\": {bytes}, \"bandwidth_gbps\": {rate:.3}}}"))
    }

    /// Waits until both processes are done.
    fn part(&mut self) -> Result<(), Failure> {
        self.beside.write_all(&[1])?;
        self.beside.set_nonblocking(true)?;
        let (mut word, mut has_heard) = ([0], false);
        while !has_heard || self.done < self.posted {
            has_heard = has_heard || matches!(self.beside.read(&mut word), Ok(1));
            self.poll()?;
        }
        Ok(())
    }
}
