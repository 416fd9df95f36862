//! The library's functions, found when they are first asked for.

use std::sync::OnceLock;

use libc::{c_char, c_int, c_uint, c_void, size_t};
use libloading::Library;

use crate::types::*;

/// The name under which every distribution installs it.
pub const LIBRARY: &str = "libibverbs.so.1";

/// Why there are no functions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is not installed, or cannot be loaded.
    #[error(
        "{LIBRARY} cannot be opened ({0}): install it to use RDMA (Debian: libibverbs1 and \
         ibverbs-providers; others: rdma-core)"
    )]
    Library(String),
    /// It is older than what is needed.
    #[error("{LIBRARY} has no function {0}: a newer rdma-core is needed to use RDMA")]
    Function(&'static str),
}

/// The library's functions, once for the process. It stays loaded: devices may live in threads
/// that outlast everything else.
///
/// # Errors
///
/// When there is no such library, or it lacks a function.
pub fn system() -> Result<&'static Functions, &'static LoadError> {
    static SYSTEM: OnceLock<Result<Functions, LoadError>> = OnceLock::new();
    SYSTEM.get_or_init(load).as_ref()
}

fn load() -> Result<Functions, LoadError> {
    // SAFETY: its initialisers are those of a library that everybody loads at start otherwise.
    let library = unsafe { Library::new(LIBRARY) };
    let library = library.map_err(|error| LoadError::Library(error.to_string()))?;
    let functions = Functions::of(&library);
    std::mem::forget(library);
    // Before 5.12, the kernel gives the pages that a device writes to whoever touches them first
    // after a fork, and programs fork: to load data, to run a command. If it cannot be had there is
    // nothing better.
    let _ = functions.as_ref().map(|functions| {
        // SAFETY: nothing is registered yet.
        unsafe { (functions.fork_init)() }
    });
    functions
}

/// Declares the table, and how it is filled from a library.
macro_rules! functions {
    (@type required $call:ty) => { $call };
    (@type optional $call:ty) => { Option<$call> };
    (@find required $library:ident $symbol:literal) => {
        // SAFETY: the header declares this function so.
        *unsafe { $library.get(concat!($symbol, "\0").as_bytes()) }
            .map_err(|_| LoadError::Function($symbol))?
    };
    (@find optional $library:ident $symbol:literal) => {
        // SAFETY: the header declares this function so.
        unsafe { $library.get(concat!($symbol, "\0").as_bytes()) }.ok().map(|found| *found)
    };
    ($($(#[$doc:meta])* $need:ident $name:ident = $symbol:literal: $call:ty;)*) => {
        /// What libibverbs offers, as far as it is used. The manual pages explain each. What is
        /// optional came with later versions.
        #[derive(Clone, Copy, Debug)]
        pub struct Functions {
            $($(#[$doc])* pub $name: functions!(@type $need $call),)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, LoadError> {
                Ok(Functions { $($name: functions!(@find $need library $symbol),)* })
            }
        }
    };
}

functions! {
    /// Has registered memory survive forks of this process, where the kernel does not see to that.
    required fork_init = "ibv_fork_init":
        unsafe extern "C" fn() -> c_int;
    /// All devices; null without any, and with an error number without RDMA in the kernel.
    required get_device_list = "ibv_get_device_list":
        unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
    /// Gives that list back; what was opened stays.
    required free_device_list = "ibv_free_device_list":
        unsafe extern "C" fn(*mut *mut ibv_device);
    /// The kernel's name of a device: `mlx5_0`, `rxe0`.
    required get_device_name = "ibv_get_device_name":
        unsafe extern "C" fn(*mut ibv_device) -> *const c_char;
    /// Opens a device.
    required open_device = "ibv_open_device":
        unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
    /// Closes it.
    required close_device = "ibv_close_device":
        unsafe extern "C" fn(*mut ibv_context) -> c_int;
    /// What a device can do.
    required query_device = "ibv_query_device":
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    /// How a port is; `port_cap_flags2` is left alone by this oldest form of the call.
    required query_port = "ibv_query_port":
        unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    /// A row of a port's table of addresses.
    required query_gid = "ibv_query_gid":
        unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    /// The same, with its kind.
    optional query_gid_ex = "_ibv_query_gid_ex":
        unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, size_t) -> c_int;
    /// A row of a port's table of partitions, in the order of the wire.
    required query_pkey = "ibv_query_pkey":
        unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    /// Makes a protection domain.
    required alloc_pd = "ibv_alloc_pd":
        unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
    /// Ends it.
    required dealloc_pd = "ibv_dealloc_pd":
        unsafe extern "C" fn(*mut ibv_pd) -> c_int;
    /// Registers memory.
    required reg_mr = "ibv_reg_mr":
        unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
    /// The same; knows of optional access flags, and leaves out what the kernel does not know.
    optional reg_mr_iova2 = "ibv_reg_mr_iova2":
        unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, u64, c_uint) -> *mut ibv_mr;
    /// Registers memory of another device.
    optional reg_dmabuf_mr = "ibv_reg_dmabuf_mr":
        unsafe extern "C" fn(*mut ibv_pd, u64, size_t, u64, c_int, c_int) -> *mut ibv_mr;
    /// Ends a registration.
    required dereg_mr = "ibv_dereg_mr":
        unsafe extern "C" fn(*mut ibv_mr) -> c_int;
    /// Makes a channel that wakes.
    required create_comp_channel = "ibv_create_comp_channel":
        unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;
    /// Ends it.
    required destroy_comp_channel = "ibv_destroy_comp_channel":
        unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
    /// Makes a completion queue.
    required create_cq = "ibv_create_cq":
        unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
            -> *mut ibv_cq;
    /// Ends it.
    required destroy_cq = "ibv_destroy_cq":
        unsafe extern "C" fn(*mut ibv_cq) -> c_int;
    /// The completion queue that has woken a channel; blocks if none has.
    required get_cq_event = "ibv_get_cq_event":
        unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    /// So many of those were taken in.
    required ack_cq_events = "ibv_ack_cq_events":
        unsafe extern "C" fn(*mut ibv_cq, c_uint);
    /// Makes a queue pair.
    required create_qp = "ibv_create_qp":
        unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// Changes it.
    required modify_qp = "ibv_modify_qp":
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    /// How it is.
    required query_qp = "ibv_query_qp":
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    /// Ends it.
    required destroy_qp = "ibv_destroy_qp":
        unsafe extern "C" fn(*mut ibv_qp) -> c_int;
    /// What has happened; blocks if nothing has.
    required get_async_event = "ibv_get_async_event":
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    /// That was taken in.
    required ack_async_event = "ibv_ack_async_event":
        unsafe extern "C" fn(*mut ibv_async_event);
}
