//! Tests that a fault is observed if and only if it is planted.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::table::{PATIENCE, poll};
use crate::config::Config;
use crate::fault::Fault;
use crate::outcome::Outcome;
use crate::plugin::Plugin;

/// Short wait, after which an event that has not happened counts as one that never happens.
const WHILE: Duration = Duration::from_millis(300);
const LONG: usize = 100_000;

/// Plugin with a sending and a receiving communicator.
struct Rig {
    plugin: &'static Plugin,
    context: u64,
    listener: u64,
    handle: crate::handle::Handle,
    send: u64,
    receive: u64,
    /// Longest wait for an event: short if a fault is planted, which may prevent the event.
    patience: Duration,
}

impl Rig {
    fn new(fault: Option<Fault>) -> Rig {
        let config = Config { interfaces: "lo".to_owned(), fault };
        let plugin: &'static Plugin = Box::leak(Box::new(Plugin::new(config)));
        let context = plugin.init().unwrap();
        let (listener, handle) = plugin.listen().unwrap();
        let mut own = handle;
        let send = poll(|| plugin.connect(&mut own).unwrap());
        let receive = poll(|| plugin.accept(listener).unwrap());
        let patience = if fault.is_some() { WHILE } else { PATIENCE };
        Rig { plugin, context, listener, handle, send, receive, patience }
    }

    /// Returns the longest wait for a violation: if the fault is planted, long enough for a slow
    /// machine; if not, short.
    fn violation_within(&self) -> Duration {
        if self.patience == WHILE { PATIENCE } else { WHILE }
    }

    /// Leaks and registers memory, which no test deregisters. Returns its start, its length and its
    /// registration.
    fn memory(&self, bytes: Vec<u8>) -> (*mut u8, usize, u64) {
        let bytes = bytes.leak();
        let start = bytes.as_mut_ptr();
        let id = self.plugin.register(self.send, start.addr(), bytes.len(), nccl_net_abi::HOST);
        (start, bytes.len(), id.unwrap())
    }

    fn isend(&self, bytes: Vec<u8>, tag: i32) -> Outcome<Option<u64>> {
        let (start, bytes, registration) = self.memory(bytes);
        // SAFETY: the memory is never freed, and nobody else uses it.
        let span = unsafe { self.plugin.span(start, bytes, registration) }?;
        self.plugin.send(self.send, span, tag)
    }

    /// Posts a receive; returns the request and the addresses of its buffers.
    fn irecv(&self, parts: &[(usize, i32)]) -> (Option<u64>, Vec<*mut u8>) {
        let (mut pieces, mut starts) = (Vec::new(), Vec::new());
        for (bytes, tag) in parts {
            let (start, bytes, registration) = self.memory(vec![0; *bytes]);
            // SAFETY: the memory is never freed, and nobody else uses it.
            pieces.push((unsafe { self.plugin.span(start, bytes, registration) }.unwrap(), *tag));
            starts.push(start);
        }
        (self.plugin.receive(self.receive, pieces).unwrap(), starts)
    }

    /// Returns the size of a request's first part; `None` if the request is not done in time.
    fn wait(&self, request: Option<u64>) -> Outcome<Option<usize>> {
        let mut result = Ok(None);
        happens(self.patience, || {
            result = self.plugin.test(request.unwrap());
            result != Ok(None)
        });
        result.map(|done| done.map(|(_, sizes)| sizes[0]))
    }

    /// Sends messages of these sizes; returns whether all arrive unchanged.
    fn all_arrive(&self, sizes: &[usize]) -> bool {
        let sent = |at: usize| vec![at as u8 + 1; sizes[at]];
        let receives: Vec<_> = sizes.iter().map(|size| self.irecv(&[(*size, 1)])).collect();
        for at in 0..sizes.len() {
            self.isend(sent(at), 1).unwrap();
        }
        receives.into_iter().enumerate().all(|(at, (request, starts))| {
            let size = self.wait(request);
            // SAFETY: the buffer is never freed, and `bytes` is called only if the request is done.
            let bytes = || unsafe { std::slice::from_raw_parts(starts[0], sizes[at]) };
            size == Ok(Some(sizes[at])) && bytes() == sent(at)
        })
    }
}

/// Returns whether the condition becomes true in time.
fn happens(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if since.elapsed() > patience {
            return false;
        }
    }
}

/// Returns whether a byte arrives without any call of `test`.
fn arrives(patience: Duration, at: *mut u8) -> bool {
    // SAFETY: the byte is never freed. Another thread may write it meanwhile: the test waits for
    // this write.
    happens(patience, || unsafe { at.read_volatile() } == 7)
}

/// Checks that a violation is seen if and only if the fault is planted.
fn check(fault: Fault, violates: fn(&Rig) -> bool) {
    for planted in [Some(fault), None] {
        let rig = Rig::new(planted);
        assert_eq!(
            violates(&rig),
            planted.is_some(),
            "{fault:?} must be seen if and only if it is planted; planted: {planted:?}"
        );
        let _ = rig.plugin.finalize(rig.context);
    }
}

fn listens(port: u16) -> bool {
    let address = ([127, 0, 0, 1], port).into();
    TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok()
}

#[test]
fn faults_that_damage_messages_are_observed() {
    check(Fault::WrongSize, |rig| !rig.all_arrive(&[10]));
    check(Fault::DoubleCompletion, |rig| !rig.all_arrive(&[10, 10]));
    check(Fault::ZeroHang, |rig| !rig.all_arrive(&[0]));
    check(Fault::Corrupt, |rig| !rig.all_arrive(&[LONG; 4]));
    check(Fault::TagOrder, |rig| {
        let (request, starts) = rig.irecv(&[(1, 5), (1, 6)]);
        rig.isend(vec![6], 6).unwrap();
        rig.isend(vec![5], 5).unwrap();
        rig.wait(request).unwrap().unwrap();
        // SAFETY: the buffer is never freed, and the request is done.
        unsafe { starts[0].read() != 5 }
    });
    check(Fault::NoTruncation, |rig| {
        let (request, _) = rig.irecv(&[(10, 1)]);
        rig.isend(vec![1; 11], 1).unwrap();
        rig.wait(request) != Ok(Some(10))
    });
}

#[test]
fn faults_of_progress_and_capacity_are_observed() {
    check(Fault::FewRequests, |rig| (0..9).any(|_| rig.irecv(&[(1, 1)]).0.is_none()));
    check(Fault::ProgressOnlyInTest, |rig| {
        let (_, starts) = rig.irecv(&[(1, 1)]);
        rig.isend(vec![7], 1).unwrap();
        !arrives(rig.patience, starts[0])
    });
    check(Fault::RegistrationRace, |rig| {
        let memory = rig.memory(vec![0; 8]);
        // SAFETY: the memory is never freed.
        let fails = || unsafe { rig.plugin.span(memory.0, memory.1, memory.2) }.is_err();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    rig.memory(vec![0; 8]);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let has_failed = happens(rig.violation_within(), fails);
            is_over.store(true, Ordering::Relaxed);
            has_failed
        })
    });
}

#[test]
fn a_flush_that_never_completes_is_observed() {
    check(Fault::FlushHangs, |rig| {
        let flush = rig.plugin.flush(rig.receive).unwrap();
        flush.is_some() && rig.wait(flush) == Ok(None)
    });
}

#[test]
fn a_call_of_irecv_consumed_that_ends_a_later_request_is_observed() {
    check(Fault::ConsumedFrees, |rig| {
        let (first, _) = rig.irecv(&[(1, 1)]);
        rig.isend(vec![7], 1).unwrap();
        poll(|| rig.plugin.test(first.unwrap()).unwrap());
        let (second, _) = rig.irecv(&[(1, 1)]);
        rig.plugin.consumed(rig.receive, first.unwrap()).unwrap();
        rig.plugin.test(second.unwrap()).is_err()
    });
}

#[test]
fn unclean_ends_are_observed() {
    check(Fault::ResetOnClose, |rig| {
        let (start, bytes, registration) = rig.memory(vec![0; 20 << 20]);
        // SAFETY: the memory is never freed, and nobody else uses it.
        let piece = unsafe { rig.plugin.span(start, bytes, registration) }.unwrap();
        rig.isend(vec![1; 20 << 20], 1).unwrap();
        rig.plugin.close_send(rig.send).unwrap();
        // The receiver reads nothing before a receive is posted, so the close finds unsent bytes.
        let request = rig.plugin.receive(rig.receive, vec![(piece, 1)]).unwrap();
        poll(|| rig.plugin.test(request.unwrap()).transpose()).is_err()
    });
    check(Fault::LeakDescriptors, |rig| {
        let (address, _) = rig.handle.target().unwrap();
        rig.plugin.close_listen(rig.listener).unwrap();
        listens(address.port())
    });
    check(Fault::LeakThreads, |rig| {
        let (_, starts) = rig.irecv(&[(1, 1)]);
        rig.plugin.finalize(rig.context).unwrap();
        rig.isend(vec![7], 1).unwrap();
        // Only the helper thread can read the byte. Without the fault, that thread has ended.
        arrives(rig.violation_within(), starts[0])
    });
}

#[test]
fn faults_of_the_listener_are_observed() {
    check(Fault::HandleReuse, |rig| {
        poll(|| rig.plugin.connect(&mut rig.handle.clone()).unwrap());
        rig.plugin.accept(rig.listener).is_err()
    });
    check(Fault::StrangerKills, |rig| {
        let (address, _) = rig.handle.target().unwrap();
        let mut stranger = TcpStream::connect_timeout(&address, WHILE).unwrap();
        stranger.write_all(b"who is there?").unwrap();
        happens(rig.violation_within(), || rig.plugin.accept(rig.listener).is_err())
    });
}

fn takes_long(call: impl FnOnce()) -> bool {
    let since = Instant::now();
    call();
    since.elapsed() > Duration::from_secs(2)
}

#[test]
fn a_planted_fault_makes_connecting_never_complete() {
    let config = Config { interfaces: "lo".to_owned(), fault: Some(Fault::NeverConnects) };
    let plugin: &'static Plugin = Box::leak(Box::new(Plugin::new(config)));
    let context = plugin.init().unwrap();
    let (listener, mut handle) = plugin.listen().unwrap();
    let has_any = || {
        let sends = plugin.connect(&mut handle).unwrap();
        sends.or(plugin.accept(listener).unwrap()).is_some()
    };
    assert!(!happens(WHILE, has_any));
    plugin.finalize(context).unwrap();
}

#[test]
fn a_planted_fault_makes_accepting_block() {
    let rig = Rig::new(Some(Fault::BlockingAccept));
    assert!(takes_long(|| assert_eq!(rig.plugin.accept(rig.listener), Ok(None))));
}

#[test]
fn a_planted_fault_makes_connecting_block() {
    // Nobody accepts meanwhile.
    assert!(takes_long(|| assert!(Rig::new(Some(Fault::BlockingConnect)).send > 0)));
}

#[test]
fn a_misspelt_fault_makes_init_fail() {
    let config = Config { fault: Some(Fault::Unknown), ..Config::default() };
    let plugin: &'static Plugin = Box::leak(Box::new(Plugin::new(config)));
    assert!(plugin.init().is_err());
}
