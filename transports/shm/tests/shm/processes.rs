//! Tests with several processes: this test binary starts itself again as the peer.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use ccl_clock::now;
use ccl_core::transport::{
    Address, Connected, Device, DeviceId, EndpointId, Event, Lane, LocalSlice, RemoteKey, Secret,
    Transport, TransportError, WorkRequest,
};
use ccl_memory::doorbell::{BYTES, Doorbell};
use ccl_transport_shm::{DEVICE, ShmTransport, parking};
use rustix::process::{Resource, Rlimit, setrlimit};

const ROLE: &str = "FERROCCL_TEST_SHM_ROLE";
const SECRET: Secret = Secret([8; 32]);
const PATIENCE: Duration = Duration::from_secs(20);

fn open() -> std::sync::Arc<dyn Device> {
    ShmTransport::new().open(&DeviceId(DEVICE.into())).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.trim().as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// Prints a line for the parent. The `@` distinguishes it from output of the test framework.
fn tell(text: &str) {
    println!("\n@{text}");
}

fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// A process of this binary; killed at the end of the test, with all processes that it has forked.
struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str) -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::child", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Peer { child, to, from }
    }

    fn tell(&mut self, text: &str) {
        writeln!(self.to, "{text}").unwrap();
    }

    fn heard(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the child is gone");
            if let Some(text) = line.strip_prefix('@') {
                return text.trim().to_owned();
            }
        }
    }
}

impl Drop for Peer {
    #[expect(clippy::disallowed_methods, reason = "it was killed: the wait ends at once")]
    fn drop(&mut self) {
        // Kill before the wait: until the child is reaped, no other group can have its number.
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

fn accept(device: &dyn Device, peer: &mut Peer) -> Connected {
    let mut listener = device.listen(&SECRET).unwrap();
    peer.tell(&hex(&listener.address().0));
    let until = now() + PATIENCE;
    loop {
        if let Some(connected) = listener.poll(now()).unwrap() {
            return connected;
        }
        assert!(now() < until, "no peer has connected in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn connect(device: &dyn Device) -> Connected {
    let address = Address(unhex(&read_line()));
    let mut coming = device.connect(&address, &SECRET, b"child", now() + PATIENCE).unwrap();
    loop {
        if let Some(connected) = coming.poll(now()).unwrap() {
            return connected;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the next event; panics if none arrives in the time `within`.
fn event(lane: &mut dyn Lane, within: Duration) -> Event {
    let until = now() + within;
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(now() < until, "no event within {within:?}");
        lane.poll(now(), &mut events).unwrap();
        std::thread::yield_now();
    }
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

fn expect_lost(lane: &mut dyn Lane, endpoint: EndpointId, pid: u32) -> String {
    match event(lane, Duration::from_secs(3)) {
        Event::Lost { endpoint: of, reason } => {
            assert_eq!(of, endpoint);
            assert!(reason.contains(&format!("process {pid} ")), "{reason}");
            reason
        }
        other => panic!("{other:?}"),
    }
}

/// Runs the role of a process that was started by a test. In an ordinary run this is an empty test.
#[test]
fn child() {
    match std::env::var(ROLE).as_deref() {
        Ok("peer") => peer(|_| {}),
        Ok("fork") => peer(fork_and_drop),
        Ok("fork and die") => peer(|_| {
            fork_a_sleeper();
        }),
        Ok("fork and touch") => fork_and_touch(),
        Ok("limits") => limits(),
        Ok("nobody") => as_nobody(),
        Ok(other) => panic!("{other}"),
        Err(_) => {}
    }
}

/// Shares memory, puts into the parent's memory, and rings the parent's doorbell. Runs `at_the_end`
/// when the parent sends a line, then waits to be killed.
fn peer(at_the_end: impl FnOnce(&mut Option<Box<dyn Lane>>)) {
    let device = open();
    let listener = device.listen(&SECRET).unwrap();
    tell(&hex(&listener.address().0));
    let mut lane = device.lane().unwrap();
    let endpoint = lane.attach(connect(&*device)).unwrap();
    let (memory, key) = device.allocate(1 << 16).unwrap();
    tell(&hex(&lane.share(endpoint, key).unwrap().0));
    let theirs = RemoteKey(unhex(&read_line()));
    let remote = lane.import(endpoint, &theirs).unwrap();
    let doorbell = lane.map(endpoint, &theirs).unwrap().part(0, BYTES).unwrap();
    memory.write(100, b"from the child").unwrap();
    let local = LocalSlice { key, offset: 100, bytes: 14 };
    let remote_offset = 4096;
    let put = WorkRequest::Put {
        endpoint,
        local,
        tail: None,
        is_control: false,
        remote,
        remote_offset,
        immediate: Some(77),
        id: 1,
    };
    assert_eq!(lane.post(now(), &[put]).unwrap(), 1);
    let doorbell = Doorbell::new(&doorbell, parking()).unwrap();
    std::thread::spawn(move || {
        loop {
            doorbell.ring();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let mut lane = Some(lane);
    read_line();
    at_the_end(&mut lane);
    tell("done");
    read_line();
}

/// Forks a process that keeps everything open for a few seconds.
fn fork_a_sleeper() {
    // SAFETY: the child calls only functions that are safe after a fork, and never returns.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: a plain system call; its signal ends the process.
        unsafe { libc::alarm(5) };
        loop {
            // SAFETY: a plain system call.
            unsafe { libc::pause() };
        }
    }
}

fn fork_and_drop(lane: &mut Option<Box<dyn Lane>>) {
    fork_a_sleeper();
    *lane = None;
}

/// Plays the parent's part of [`peer`], up to the child's first put.
fn meet(peer: &mut Peer) -> (Box<dyn Lane>, EndpointId, String) {
    let device = open();
    // The address, here in hexadecimal, begins with 4 bytes for its kind and 16 bytes for the name.
    let listens_at = peer.heard()[8..40].to_owned();
    let connected = accept(&*device, peer);
    assert_eq!(connected.hello, b"child");
    let mut lane = device.lane().unwrap();
    let endpoint = lane.attach(connected).unwrap();
    let (memory, key) = device.allocate(8192).unwrap();
    let theirs = lane.map(endpoint, &RemoteKey(unhex(&peer.heard()))).unwrap();
    let own_doorbell = Doorbell::new(&memory, parking()).unwrap();
    let own = lane.share(endpoint, key).unwrap();
    peer.tell(&hex(&own.0));
    let begin = std::time::Instant::now();
    own_doorbell.sleep(PATIENCE, &mut || false);
    assert!(begin.elapsed() < PATIENCE / 2, "not woken by the other process");
    let got = event(&mut *lane, PATIENCE);
    assert_eq!(got, Event::Arrived { endpoint, immediate: 77, bytes: 14 });
    let mut text = [0; 14];
    memory.read(4096, &mut text).unwrap();
    assert_eq!(&text, b"from the child");
    theirs.read(100, &mut text).unwrap();
    assert_eq!(&text, b"from the child");
    assert!(names().contains(&listens_at), "/proc/net/unix lacks the child's listener");
    (lane, endpoint, listens_at)
}

/// Returns all abstract names of this network namespace.
fn names() -> String {
    std::fs::read_to_string("/proc/net/unix").unwrap()
}

fn dev_shm() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("ccl")).collect()
}

#[test]
fn a_killed_peer_is_lost_at_once_and_leaves_nothing() {
    let before = dev_shm();
    let mut peer = Peer::start("peer");
    let (mut lane, endpoint, listens_at) = meet(&mut peer);
    assert_eq!(dev_shm(), before, "a running peer must leave no files in /dev/shm");
    peer.child.kill().unwrap();
    let reason = expect_lost(&mut *lane, endpoint, peer.child.id());
    assert!(reason.contains("ended") || reason.contains("killed"), "{reason}");
    while peer.child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    assert!(!names().contains(&listens_at), "{}", names());
    assert_eq!(dev_shm(), before);
}

#[test]
fn a_forked_child_hides_neither_the_death_of_its_parent_nor_the_drop_of_a_lane() {
    for role in ["fork", "fork and die"] {
        let mut peer = Peer::start(role);
        let (mut lane, endpoint, _) = meet(&mut peer);
        peer.tell("now");
        assert_eq!(peer.heard(), "done");
        if role == "fork and die" {
            peer.child.kill().unwrap();
        }
        expect_lost(&mut *lane, endpoint, peer.child.id());
    }
}

/// Forks two children: one touches the memory that this process shares, the other drops it. Reports
/// how each child ends, then the byte that this process reads in the memory.
fn fork_and_touch() {
    let device = open();
    let (memory, key) = device.allocate(4096).unwrap();
    memory.write(0, &[7]).unwrap();
    let start = memory.start();
    // The write ends the child by a signal, because the memory is not mapped in the child.
    tell(&forked(|| assert!(memory.write(0, &[9]).is_err(), "the child has written the memory")));
    let mut held = Some((memory, device));
    tell(&forked(|| {
        let page = fresh_page(start);
        if let Some((memory, device)) = held.take() {
            drop(memory);
            let _ = device.deregister(key);
        }
        // SAFETY: `page` was just mapped. If dropping the region has unmapped the page, this
        // write only ends the child.
        unsafe { page.write_volatile(1) };
    }));
    let mut byte = [0];
    held.unwrap().0.read(0, &mut byte).unwrap();
    tell(&format!("{}", byte[0]));
}

/// Runs `does` in a forked child. Returns the signal that ends the child, or `fine`.
fn forked(does: impl FnOnce()) -> String {
    // SAFETY: the child takes no lock that another thread may hold, except the allocator's, which
    // the C library keeps usable after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        does();
        // SAFETY: ends the process, and runs no exit handlers of the parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is alive during the call.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if status == 0 { "fine".to_owned() } else { format!("signal {}", status & 0x7f) }
}

/// Maps a private page at the address `at`; panics if the address is in use.
fn fresh_page(at: *mut u8) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: NOREPLACE takes no address that is in use.
    let got = unsafe { libc::mmap(at.cast(), 4096, protection, flags, -1, 0) };
    assert_eq!(got.cast(), at, "the address is in use: the child has inherited the region");
    at
}

#[test]
fn a_forked_child_cannot_touch_what_is_shared() {
    let mut peer = Peer::start("fork and touch");
    let said: Vec<String> = (0..3).map(|_| peer.heard()).collect();
    assert_eq!(
        said,
        ["signal 11", "fine", "7"],
        "the touching child must get SIGSEGV, and the drop must change nothing"
    );
}

/// Sets limits of this process. Tells the parent the results of calls under each limit.
fn limits() {
    let device = open();
    let set = |resource, most| {
        let maximum = rustix::process::getrlimit(resource).maximum;
        setrlimit(resource, Rlimit { current: Some(most), maximum }).unwrap();
    };
    let code = |result: Result<_, TransportError>| match result {
        Ok(()) => "fine".to_owned(),
        Err(TransportError::Os { code, .. }) => format!("error {code}"),
        Err(other) => format!("{other}"),
    };
    let allocate = |bytes| code(device.allocate(bytes).map(drop));
    set(Resource::Memlock, 65_536);
    tell(&allocate(32 << 20));
    set(Resource::Fsize, 1 << 20);
    tell(&allocate(1 << 20));
    tell(&allocate((1 << 20) + 1));
    set(Resource::Fsize, 1 << 40);
    set(Resource::As, 1 << 30);
    tell(&allocate(2 << 30));
    set(Resource::Nofile, 3);
    tell(&allocate(4096));
    tell(&code(device.listen(&SECRET).map(drop)));
}

#[test]
fn a_call_that_exceeds_a_limit_returns_an_error() {
    let mut peer = Peer::start("limits");
    let said: Vec<String> = (0..6).map(|_| peer.heard()).collect();
    // ENOMEM 12, EMFILE 24, EFBIG 27.
    assert_eq!(said, ["fine", "fine", "error 27", "error 12", "error 24", "error 24"]);
}

/// Becomes another user, listens, and connects to the parent.
fn as_nobody() {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::setresuid(65_534, 65_534, 65_534) }, 0);
    let device = open();
    let mut listener = device.listen(&SECRET).unwrap();
    tell(&hex(&listener.address().0));
    let address = Address(unhex(&read_line()));
    let mut coming = device.connect(&address, &SECRET, b"", now() + PATIENCE).unwrap();
    let error = loop {
        match coming.poll(now()) {
            Ok(answer) => assert!(answer.is_none(), "root admitted another user"),
            Err(error) => break error,
        }
    };
    tell(&error.to_string());
    while listener.rejected() == 0 {
        assert!(listener.poll(now()).unwrap().is_none());
    }
    tell("rejected");
}

#[test]
fn another_user_is_refused_even_with_the_secret() {
    if !rustix::process::geteuid().is_root() {
        // The test needs root to become another user.
        return;
    }
    let device = open();
    let mut peer = Peer::start("nobody");
    let theirs = Address(unhex(&peer.heard()));
    let mut coming = device.connect(&theirs, &SECRET, b"", now() + PATIENCE).unwrap();
    let error = coming.poll(now()).unwrap_err();
    assert!(error.to_string().contains("user 65534"), "{error}");
    let mut listener = device.listen(&SECRET).unwrap();
    peer.tell(&hex(&listener.address().0));
    let until = now() + PATIENCE;
    while listener.rejected() == 0 && now() < until {
        assert!(listener.poll(now()).unwrap().is_none());
    }
    assert_eq!(listener.rejected(), 1);
    assert!(peer.heard().contains("closed the connection"));
    assert_eq!(peer.heard(), "rejected");
}
