//! Memory of GPUs, with both drivers stood in for.

use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ccl_verbs_soft::{Limits, SoftDevice, functions};
use libc::{c_int, c_ulonglong, c_void, size_t};
use rdma_sys::*;

use crate::native::{Context, Domain, GpuDriver, GpuMemory, GpuPath, GpuRegistration};

/// Where the GPU's memory is: no page of this process.
const ADDRESS: u64 = 0x7f00_0000_1234;
const BYTES: usize = 10_000;
const LOCAL_KEY: u32 = 77;

static ENDED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn hands_out(
    into: *mut c_void,
    address: c_ulonglong,
    bytes: size_t,
    kind: c_int,
    flags: c_ulonglong,
) -> c_int {
    let whole_pages = address == 0x7f00_0000_1000 && bytes == 3 * 4096;
    assert!(whole_pages && kind == 1 && flags == 0, "{address:#x}, {bytes}, {kind}");
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the caller has room for a descriptor.
    unsafe { into.cast::<c_int>().write(file.into_raw_fd()) };
    0
}

unsafe extern "C" fn refuses(
    _: *mut c_void,
    _: c_ulonglong,
    _: size_t,
    _: c_int,
    _: c_ulonglong,
) -> c_int {
    801
}

fn memory(pd: *mut ibv_pd, address: u64, length: usize) -> *mut ibv_mr {
    let addr = std::ptr::without_provenance_mut(address as usize);
    let (context, handle) = (std::ptr::null_mut(), 0);
    let (lkey, rkey) = (LOCAL_KEY, LOCAL_KEY + 1);
    Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle, lkey, rkey }))
}

unsafe extern "C" fn takes_dma_bufs(
    pd: *mut ibv_pd,
    offset: u64,
    length: size_t,
    iova: u64,
    descriptor: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    assert_eq!((offset, length, iova), (0x234, BYTES, ADDRESS));
    // SAFETY: the call takes no memory.
    assert!(unsafe { libc::fcntl(descriptor, libc::F_GETFD) } >= 0, "it is not open");
    memory(pd, iova, length)
}

unsafe extern "C" fn knows_the_pages(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: size_t,
    _access: c_int,
) -> *mut ibv_mr {
    memory(pd, address.addr() as u64, length)
}

fn fails<T>(code: c_int) -> *mut T {
    // SAFETY: the call takes nothing.
    let own = unsafe { libc::__errno_location() };
    // SAFETY: each thread has its own error number.
    unsafe { own.write(code) };
    std::ptr::null_mut()
}

unsafe extern "C" fn takes_no_dma_bufs(
    _: *mut ibv_pd,
    _: u64,
    _: size_t,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut ibv_mr {
    fails(libc::EOPNOTSUPP)
}

unsafe extern "C" fn knows_no_pages(
    _: *mut ibv_pd,
    _: *mut c_void,
    _: size_t,
    _: c_int,
) -> *mut ibv_mr {
    fails(libc::EFAULT)
}

unsafe extern "C" fn ends(memory: *mut ibv_mr) -> c_int {
    ENDED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: it was made here, and ends once.
    drop(unsafe { Box::from_raw(memory) });
    0
}

/// What comes of registering with these functions.
fn registered(
    change: impl FnOnce(&mut Functions),
    driver: Result<&GpuDriver, &str>,
    bytes: usize,
) -> Result<(GpuPath, String, (u32, u32)), String> {
    let mut table = Functions { dereg_mr: ends, reg_mr: knows_no_pages, ..*functions() };
    change(&mut table);
    let table: &'static Functions = Box::leak(Box::new(table));
    let device = SoftDevice::new(Limits::default());
    let context = Context::open(table, &device.name()).unwrap();
    let domain: Arc<Domain> = Domain::new(context).unwrap();
    let memory = GpuMemory { gpu: 3, address: ADDRESS, bytes };
    // SAFETY: nobody reads or writes there.
    let made = unsafe { GpuRegistration::new(&domain, "mlx5_2:1".to_owned(), driver, memory) };
    made.map(|made| (made.path(), made.report(), made.keys())).map_err(|error| error.to_string())
}

#[test]
fn what_works_is_taken_and_told() {
    let (hands, refuses) =
        (GpuDriver { handle_for_range: hands_out }, GpuDriver { handle_for_range: refuses });
    let both = |table: &mut Functions| {
        table.reg_dmabuf_mr = Some(takes_dma_bufs);
        table.reg_mr = knows_the_pages;
    };
    let keys = (LOCAL_KEY, LOCAL_KEY + 1);
    let by_dma_buf = (GpuPath::DmaBuf, "GPU 3 + mlx5_2:1: dma-buf".to_owned(), keys);
    let by_peer = (GpuPath::PeerMemory, "GPU 3 + mlx5_2:1: peer memory".to_owned(), keys);
    assert_eq!(registered(both, Ok(&hands), BYTES), Ok(by_dma_buf));
    assert_eq!(registered(both, Ok(&refuses), BYTES), Ok(by_peer.clone()));
    assert_eq!(registered(both, Err("no driver"), BYTES), Ok(by_peer.clone()));
    let old = |table: &mut Functions| {
        table.reg_dmabuf_mr = None;
        table.reg_mr = knows_the_pages;
    };
    assert_eq!(registered(old, Ok(&hands), BYTES), Ok(by_peer.clone()));
    let unwilling = |table: &mut Functions| {
        table.reg_dmabuf_mr = Some(takes_no_dma_bufs);
        table.reg_mr = knows_the_pages;
    };
    assert_eq!(registered(unwilling, Ok(&hands), BYTES), Ok(by_peer));
    assert_eq!(ENDED.load(Ordering::Relaxed), 5, "every registration ends");
}

#[test]
fn where_nothing_works_both_reasons_are_told() {
    let hands = GpuDriver { handle_for_range: hands_out };
    let neither = |table: &mut Functions| table.reg_dmabuf_mr = Some(takes_no_dma_bufs);
    let error = registered(neither, Ok(&hands), BYTES).unwrap_err();
    for part in
        ["GPU 3 + mlx5_2:1", "ibv_reg_dmabuf_mr", "ibv_reg_mr", "Bad address", "nvidia_peermem"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = registered(neither, Err("libcuda.so.1 cannot be opened"), BYTES).unwrap_err();
    assert!(error.contains("libcuda.so.1 cannot be opened"), "{error}");
    assert!(registered(neither, Ok(&hands), 0).unwrap_err().contains("none, or too many"));
}
