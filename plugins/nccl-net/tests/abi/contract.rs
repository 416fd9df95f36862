//! Tests of this plugin's own behaviour, over each transport.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nccl_net_abi::{HANDLE_BYTES, LogLevel, NcclResult};

use super::pair::{self, NET, Pair, both, init, ok, tested, until};

/// Lock for the plugin's state, which all tests share.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Makes a pair with both communicators on the first device.
fn joined(bytes: usize) -> Pair {
    Pair::on([0, 0], bytes)
}

#[test]
fn a_device_has_properties_but_a_number_past_the_last_device_is_an_error() {
    let _turn = ONE_AT_A_TIME.lock();
    let context = init();
    let mut count = 0;
    // SAFETY: `count` is a local variable.
    ok(unsafe { (NET.devices.unwrap())(&mut count) });
    assert!(count > 0);
    let properties = pair::properties(0);
    assert!(!pair::name(0).is_empty());
    assert!(properties.speed_mbps > 0 && properties.receives_max == 8);
    // SAFETY: the pointer is to a temporary copy of `properties`.
    let beyond = unsafe { (NET.properties.unwrap())(count, &mut { properties }) };
    assert_eq!(beyond, NcclResult::INVALID_ARGUMENT);
    // SAFETY: the context is this test's.
    ok(unsafe { (NET.finalize.unwrap())(context) });
    // SAFETY: the plugin never dereferences the context.
    let twice = unsafe { (NET.finalize.unwrap())(context) };
    assert_eq!(twice, NcclResult::INVALID_ARGUMENT);
}

#[test]
fn the_log_has_a_line_for_each_side_of_a_connection() {
    let _turn = ONE_AT_A_TIME.lock();
    pair::LOG.lock().unwrap().clear();
    for _ in 0..3 {
        let mut pair = joined(100);
        let (receive, sent) = (pair.irecv(&[(0, 8, 1)]), pair.isend(0, 8, 1));
        assert_eq!(both(sent, receive), [8]);
        pair.close();
    }
    let log = pair::LOG.lock().unwrap();
    let lines = |what: &str| {
        let line = |(level, line): &&(LogLevel, String)| {
            *level == LogLevel::INFO && line.contains(what) && line.contains(" over ")
        };
        log.iter().filter(line).count()
    };
    let process = format!("process {} on host ", std::process::id());
    let [sending, receiving] =
        ["sending to ", "receiving from "].map(|end| end.to_owned() + &process);
    assert_eq!((lines(&sending), lines(&receiving)), (3, 3), "{log:?}");
}

#[test]
fn messages_of_all_lengths_arrive_whichever_side_is_first() {
    let _turn = ONE_AT_A_TIME.lock();
    let mut pair = joined(3 << 20);
    for bytes in [0, 1, 127, 8191, 8192, 8193, 65_536, (2 << 20) + 3] {
        for sender_first in [true, false] {
            pair.into.fill(0);
            let first = sender_first.then(|| pair.isend(5, bytes, 3));
            let receive = pair.irecv(&[(7, bytes + 9, 3)]);
            let sent = first.unwrap_or_else(|| pair.isend(5, bytes, 3));
            assert_eq!(both(sent, receive), [bytes], "{bytes} bytes");
            assert!(pair.into[7..7 + bytes] == pair.from[5..5 + bytes], "{bytes} bytes");
            assert!(pair.into[7 + bytes..7 + bytes + 9].iter().all(|byte| *byte == 0));
        }
    }
    pair.close();
}

#[test]
fn messages_longer_than_their_buffers_are_truncated() {
    let _turn = ONE_AT_A_TIME.lock();
    let mut pair = joined(1 << 20);
    for (bytes, room) in [(100, 10), (8192, 1), (100_000, 99_999), (100_000, 8000)] {
        pair.into.fill(0);
        let receive = pair.irecv(&[(0, room, 0)]);
        let sent = pair.isend(0, bytes, 0);
        assert_eq!(both(sent, receive), [room]);
        assert!(pair.into[..room] == pair.from[..room]);
        assert!(pair.into[room..].iter().all(|byte| *byte == 0));
    }
    pair.close();
}

#[test]
fn groups_match_by_tag_and_a_message_without_a_receive_blocks_no_other() {
    let _turn = ONE_AT_A_TIME.lock();
    let mut pair = joined(1 << 20);
    // More messages of tag 9 than slots, before their receives are posted.
    let early: Vec<_> = (0..40).map(|at| pair.isend(at * 100, 100, 9)).collect();
    let group: Vec<_> = (0..8).map(|at| (at * 30_000, 30_000, at as c_int % 4)).collect();
    let receive = pair.irecv(&group);
    // The order of the messages differs from the order of their buffers. Of the two messages of a
    // tag, the one that is sent first is for the first buffer with this tag.
    let order = [3, 1, 0, 2, 7, 6, 5, 4];
    let sent: Vec<_> = order.map(|at| pair.isend(at * 30_000, 20_000 + at, at as c_int % 4)).into();
    let mut sizes = Vec::new();
    for request in sent {
        until("a send", || tested(request));
    }
    until("the group of receives", || tested(receive).map(|told| sizes = told));
    for (place, at) in [3, 1, 0, 2].iter().flat_map(|tag| [(*tag, *tag), (tag + 4, tag + 4)]) {
        let bytes = 20_000 + at;
        assert_eq!(sizes[place], bytes);
        let (to, from) = (place * 30_000, at * 30_000);
        assert!(pair.into[to..to + bytes] == pair.from[from..from + bytes], "buffer {place}");
    }
    for (at, request) in early.into_iter().enumerate() {
        let receive = pair.irecv(&[(at * 100, 100, 9)]);
        assert_eq!(both(request, receive), [100]);
    }
    assert!(pair.into[..4000] == pair.from[..4000]);
    pair.close();
}

/// Random numbers below a bound, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

/// Makes messages, each with its tag, its length and the room of its buffer.
fn messages(dice: &mut Dice) -> Vec<(c_int, usize, usize)> {
    let message = |_| {
        let most = [10, 9000, 40_000, 300_000][dice.below(4)];
        let bytes = dice.below(most);
        let room = [bytes, bytes, bytes + dice.below(100_000), dice.below(bytes + 1)];
        (dice.below(3) as c_int, bytes, room[dice.below(4)])
    };
    (0..80).map(message).collect()
}

/// Returns the order in which the buffers are posted; for some seeds, it is the order of the
/// messages.
fn order(dice: &mut Dice, messages: &[(c_int, usize, usize)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..messages.len()).collect();
    let far = dice.below(4) * 3;
    for at in 0..order.len() - 10 {
        let tag = |at: usize| messages[at].0;
        let other = at + dice.below(far + 1);
        // Buffers of equal tags stay in order: messages match them in that order.
        let between = &order[at..=other];
        let (first, last) = (tag(between[0]), tag(between[between.len() - 1]));
        if !between[1..].iter().any(|one| tag(*one) == first)
            && !between[..between.len() - 1].iter().any(|one| tag(*one) == last)
        {
            order.swap(at, other);
        }
    }
    order
}

#[test]
fn messages_reach_their_buffers_in_any_order_of_posting() {
    let _turn = ONE_AT_A_TIME.lock();
    let (each, fence) = (420_000, 7);
    let mut pair = joined(80 * each);
    for seed in 0..12 {
        let mut dice = Dice(seed);
        pair.from.iter_mut().for_each(|byte| *byte = dice.below(256) as u8);
        pair.into.fill(0);
        let messages = messages(&mut dice);
        let order = order(&mut dice, &messages);
        let (mut sent, mut receive) = (Vec::new(), Vec::new());
        let (mut next, mut posted, mut open) = (0, 0, 0);
        until("the exchange of all messages", || {
            if next < messages.len() && dice.below(2) == 0 {
                let (tag, bytes, _) = messages[next];
                sent.push(Some(pair.isend(next * each, bytes, tag)));
                next += 1;
            }
            if posted < order.len() && open < 40 && dice.below(2) == 0 {
                let count = [1, 1, 1, 3][dice.below(4)].min(order.len() - posted);
                let group = &order[posted..posted + count];
                let parts = group.iter().map(|at| (at * each, messages[*at].2, messages[*at].0));
                let request = pair.irecv(&parts.collect::<Vec<_>>());
                receive.push(Some((request, group)));
                (posted, open) = (posted + count, open + 1);
            }
            sent.iter_mut().for_each(|request| {
                *request = request.take().filter(|request| tested(*request).is_none());
            });
            for entry in &mut receive {
                let Some((request, group)) = *entry else { continue };
                let Some(sizes) = tested(request) else { continue };
                (*entry, open) = (None, open - 1);
                for (at, size) in group.iter().zip(sizes) {
                    let (_, bytes, room) = messages[*at];
                    assert_eq!(size, bytes.min(room), "size of message {at} with seed {seed}");
                    let (start, end) = (at * each, at * each + size);
                    let same = pair.into[start..end] == pair.from[start..end];
                    assert!(same, "message {at} has wrong content with seed {seed}");
                    let behind = &pair.into[start + room..start + room + fence];
                    assert!(
                        behind.iter().all(|byte| *byte == 0),
                        "bytes past the buffer of message {at} have changed with seed {seed}"
                    );
                }
            }
            let all = posted == order.len() && next == messages.len() && open == 0;
            (all && sent.iter().all(Option::is_none)).then_some(())
        });
    }
    pair.close();
}

#[test]
fn messages_with_receives_overtake_messages_without_receives() {
    let _turn = ONE_AT_A_TIME.lock();
    let mut pair = joined(4096);
    let early: Vec<_> = (0..20).map(|_| pair.isend(0, 100, 9)).collect();
    let receive: Vec<_> = (0..40).map(|_| pair.irecv(&[(0, 0, 1)])).collect();
    for request in receive {
        let sent = pair.isend(0, 0, 1);
        assert_eq!(both(sent, request), [0]);
    }
    for request in early {
        let receive = pair.irecv(&[(0, 100, 9)]);
        assert_eq!(both(request, receive), [100]);
    }
    pair.close();
}

#[test]
fn all_tests_pass_with_few_slots_and_with_helper_threads() {
    const CHOICE: &str = "FERROCCL_TRANSPORT";
    if std::env::var_os(CHOICE).is_some() {
        return;
    }
    let few_slots = [("tcp", "16", "0"), ("tcp", "5", "0"), ("tcp", "3", "0"), ("shm", "5", "0")];
    let helpers = [("tcp", "16", "3"), ("shm", "16", "3")];
    for (transport, slots, threads) in few_slots.into_iter().chain(helpers) {
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        // The child process runs the same tests as this process.
        test.args(std::env::args().skip(1));
        test.env(CHOICE, transport).env("FERROCCL_NET_SLOTS", slots);
        test.env("FERROCCL_NET_THREADS", threads);
        let output = test.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{transport}, {slots} slots, {threads} threads: {said}");
    }
}

/// Tests that `accept` fails after `FERROCCL_JOIN_TIMEOUT` if no peer connects.
#[test]
fn accept_fails_if_no_peer_connects() {
    const OWN: &str = "FERROCCL_TEST_OWN_PROCESS";
    if std::env::var_os(OWN).is_none() {
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        own.args(["--exact", "contract::accept_fails_if_no_peer_connects", "--nocapture"]);
        own.env(OWN, "1").env("FERROCCL_JOIN_TIMEOUT", "300ms");
        let output = own.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let context = init();
    let (mut handle, mut listener) = ([0u8; HANDLE_BYTES], null_mut());
    // SAFETY: a handle of the right size.
    ok(unsafe { (NET.listen.unwrap())(context, 0, handle.as_mut_ptr().cast(), &mut listener) });
    let since = std::time::Instant::now();
    let mut receiver = null_mut();
    let result = until("accept", || {
        // SAFETY: the listener is open.
        let result = unsafe { (NET.accept.unwrap())(listener, &mut receiver, null_mut()) };
        (result != NcclResult::SUCCESS).then_some(result)
    });
    assert_eq!(result, NcclResult::REMOTE_ERROR);
    assert!(receiver.is_null() && since.elapsed().as_millis() >= 300, "{:?}", since.elapsed());
    // SAFETY: the listener is open, and nobody uses it any more.
    ok(unsafe { (NET.close_listen.unwrap())(listener) });
    // SAFETY: the context is not used any more.
    ok(unsafe { (NET.finalize.unwrap())(context) });
}

#[test]
fn receives_are_accepted_up_to_the_limit_and_no_further() {
    let _turn = ONE_AT_A_TIME.lock();
    let bytes = 20_000;
    let mut pair = joined(64 * bytes);
    for _ in 0..3 {
        let receive: Vec<_> = (0..64).map(|at| pair.irecv(&[(at * bytes, bytes, 1)])).collect();
        assert!(receive.iter().all(|request| !request.is_null()));
        assert!(pair.try_irecv(&[(0, 1, 1)]).is_null(), "a request beyond the limit was accepted");
        let sent: Vec<_> = (0..64).map(|at| pair.isend(at * bytes, bytes, 1)).collect();
        for (sent, receive) in sent.into_iter().zip(receive) {
            assert_eq!(both(sent, receive), [bytes]);
        }
        assert!(pair.into == pair.from);
        pair.into.fill(0);
    }
    pair.close();
}

#[test]
fn a_transfer_progresses_while_nobody_calls_the_plugin() {
    let _turn = ONE_AT_A_TIME.lock();
    let mut pair = joined(8 << 20);
    let sent = pair.isend(0, 8 << 20, 1);
    let receive = pair.irecv(&[(0, 8 << 20, 1)]);
    until("the transfer", || {
        std::thread::sleep(Duration::from_millis(1));
        (pair.into.last() == pair.from.last()).then_some(())
    });
    assert_eq!(both(sent, receive), [8 << 20]);
    pair.close();
}

/// Returns the bytes of this process's pages that are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_connection_has_no_thread_and_little_memory() {
    let _turn = ONE_AT_A_TIME.lock();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let first = joined(4096);
    let (before, own) = (resident(), threads());
    let pairs: Vec<Pair> = (0..64).map(|_| joined(4096)).collect();
    assert_eq!(threads(), own);
    let each = (resident() - before) / pairs.len();
    println!("{each} bytes for both ends of a connection");
    assert!(each < 1 << 20, "{each} bytes for both ends of a connection");
    pairs.into_iter().chain([first]).for_each(Pair::close);
}

#[test]
fn messages_sent_before_the_sender_closed_can_be_received() {
    let _turn = ONE_AT_A_TIME.lock();
    let mut pair = joined(1 << 20);
    let sent: Vec<_> = [100, 200].map(|bytes| pair.isend(0, bytes, 1)).into();
    for request in sent {
        until("a send", || tested(request));
    }
    // SAFETY: a communicator of this pair.
    ok(unsafe { (NET.close_send.unwrap())(pair.sender) });
    // The plugin's progress thread needs time to notice that the sender is gone.
    std::thread::sleep(Duration::from_millis(1500));
    for bytes in [100, 200] {
        let receive = pair.irecv(&[(0, 500, 1)]);
        assert_eq!(until("a receive", || tested(receive)), [bytes]);
        assert!(pair.into[..bytes] == pair.from[..bytes]);
    }
    let mut request = null_mut();
    let (mut data, mut bytes, mut tag) = (pair.into.as_mut_ptr().cast(), 1, 1);
    let (comm, mut mr, irecv) = (pair.receiver, pair.back, NET.irecv.unwrap());
    // SAFETY: arrays of one element.
    let more = unsafe {
        irecv(comm, 1, &mut data, &mut bytes, &mut tag, &mut mr, null_mut(), &mut request)
    };
    assert_eq!((more, request.is_null()), (NcclResult::REMOTE_ERROR, true));
}

#[test]
fn memory_can_be_deregistered_while_it_is_sent() {
    let _turn = ONE_AT_A_TIME.lock();
    let bytes = 64 << 20;
    let mut pair = joined(bytes);
    let _wanted = pair.irecv(&[(0, bytes, 1)]);
    let _sent = pair.isend(0, bytes, 1);
    // SAFETY: a registration of this pair.
    ok(unsafe { (NET.deregister.unwrap())(pair.sender, pair.out) });
    // Frees the memory: a later read of it crashes.
    drop(std::mem::take(&mut pair.from));
    std::thread::sleep(Duration::from_millis(50));
    // SAFETY: communicators of this pair.
    ok(unsafe { (NET.close_send.unwrap())(pair.sender) });
    // SAFETY: as above.
    ok(unsafe { (NET.close_receive.unwrap())(pair.receiver) });
}

#[test]
fn invalid_pointers_cause_errors_and_no_crash() {
    let _turn = ONE_AT_A_TIME.lock();
    let mut pair = joined(100);
    let request = pair.irecv(&[(0, 100, 1)]);
    let sent = pair.isend(0, 100, 1);
    both(sent, request);
    let (mut done, test) = (0, NET.test.unwrap());
    let strange = std::ptr::without_provenance_mut(0x1234_5678);
    for bad in [null_mut(), request, sent, strange, pair.sender] {
        // SAFETY: the plugin never dereferences the request.
        let result = unsafe { test(bad, &mut done, null_mut()) };
        assert_eq!((result, done), (NcclResult::INVALID_ARGUMENT, 0), "{bad:?}");
    }
    for bad in [null_mut(), strange, pair.receiver] {
        // SAFETY: the plugin never dereferences the communicator.
        let result = unsafe { (NET.close_send.unwrap())(bad) };
        assert_eq!(result, NcclResult::INVALID_ARGUMENT);
    }
    let (sender, receiver) = (pair.sender, pair.receiver);
    pair.close();
    // SAFETY: as above.
    let twice = unsafe { (NET.close_send.unwrap())(sender) };
    assert_eq!(twice, NcclResult::INVALID_ARGUMENT);
    // SAFETY: as above.
    let twice = unsafe { (NET.close_receive.unwrap())(receiver) };
    assert_eq!(twice, NcclResult::INVALID_ARGUMENT);
}
