//! Tests that messages allocate nothing in any thread of the process. The test first passes similar
//! messages, which may allocate.

#[cfg(test)]
#[path = "abi/pair.rs"]
mod pair;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, with a count of allocations.
struct Counting(AtomicU64);

// SAFETY: it hands everything on to the system's allocator, and counts without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract; `at` came from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting(AtomicU64::new(0));

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};
    use std::ptr::null_mut;
    use std::sync::atomic::Ordering;

    use super::COUNTING;
    use super::pair::{self, NET, Pair, both, ok};

    const SIZES: [usize; 6] = [0, 8, 5000, 20_000, 300_000, 2 << 20];
    /// Number of rounds; only the round with the fewest allocations counts, since a thread that
    /// waits long also does other work, which may allocate.
    const ROUNDS: usize = 5;

    /// Passes one message with the plugin's own calls and nothing else.
    fn message(pair: &mut Pair, bytes: usize) {
        let (mut receive, mut sent): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        let (mut into, from) = (pair.into.as_mut_ptr().cast(), pair.from.as_mut_ptr().cast());
        let (mut room, mut tag, mut mr) = (bytes, 3 as c_int, pair.back);
        let (irecv, isend, test) = (NET.irecv.unwrap(), NET.isend.unwrap(), NET.test.unwrap());
        while receive.is_null() {
            let comm = pair.receiver;
            let (room, tag) = (&mut room, &mut tag);
            // SAFETY: arrays of one element; the buffer is registered and outlives the request.
            ok(unsafe { irecv(comm, 1, &mut into, room, tag, &mut mr, null_mut(), &mut receive) });
        }
        while sent.is_null() {
            let (comm, mr) = (pair.sender, pair.out);
            // SAFETY: the buffer is registered and outlives the request.
            ok(unsafe { isend(comm, from, bytes, tag, mr, null_mut(), &mut sent) });
        }
        let mut done = [0; 2];
        while done != [1; 2] {
            for (done, request) in done.iter_mut().zip([receive, sent]) {
                if *done == 0 {
                    let mut size = -1;
                    // SAFETY: room for the one size that the request has.
                    ok(unsafe { test(request, done, &mut size) });
                }
            }
        }
    }

    #[test]
    fn messages_allocate_nothing() {
        const CHOICE: &str = "FERROCCL_TRANSPORT";
        if std::env::var_os(CHOICE).is_none() {
            // RDMA devices that this machine has for tests.
            let devices = std::env::var("FERROCCL_TEST_RDMA").ok();
            let verbs = devices.is_some().then_some(ccl_transport_verbs::KIND.name);
            for transport in ["tcp", "shm", "auto"].into_iter().chain(verbs) {
                let mut own = std::process::Command::new(std::env::current_exe().unwrap());
                own.env("FERROCCL_IB_HCA", devices.as_deref().unwrap_or_default());
                let output = own.env(CHOICE, transport).arg("--nocapture").output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success(), "{transport}: {said}");
            }
            return;
        }
        let mut pair = Pair::on([0, 0], 2 << 20);
        let device = pair::name(0);
        let (receive, sent) = (pair.irecv(&[(0, 8, 1)]), pair.isend(0, 8, 1));
        assert_eq!(both(sent, receive), [8]);
        for bytes in SIZES {
            for _ in 0..20 {
                message(&mut pair, bytes);
            }
            let mut least = u64::MAX;
            for _ in 0..ROUNDS {
                let before = COUNTING.0.load(Ordering::Relaxed);
                (0..50).for_each(|_| message(&mut pair, bytes));
                least = least.min(COUNTING.0.load(Ordering::Relaxed) - before);
            }
            assert_eq!(least, 0, "allocations for 50 messages of {bytes} bytes over {device}");
        }
        pair.close();
    }
}
