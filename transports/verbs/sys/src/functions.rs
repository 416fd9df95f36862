//! The library's functions, looked up at their first use.

use std::error::Error as _;
use std::sync::OnceLock;

use libc::{c_char, c_int, c_uint, c_void, size_t};
use libloading::Library;

use crate::types::*;

/// Name under which every distribution installs the library.
pub const LIBRARY: &str = "libibverbs.so.1";

/// Error for functions that cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Error for a library that is not installed, or cannot be loaded.
    #[error(
        "{LIBRARY} cannot be opened ({0}): install it to use RDMA (Debian: libibverbs1 and \
         ibverbs-providers; others: rdma-core)"
    )]
    Library(String),
    /// Error for a library that lacks a function because it is too old.
    #[error("{LIBRARY} has no function {0}: a newer rdma-core is needed to use RDMA")]
    Function(&'static str),
}

/// Returns the library's functions, loaded once for the process. The library stays loaded, because
/// devices may live in threads that outlast everything else.
///
/// # Errors
///
/// When there is no such library, or it lacks a function.
pub fn system() -> Result<&'static Functions, &'static LoadError> {
    static SYSTEM: OnceLock<Result<Functions, LoadError>> = OnceLock::new();
    SYSTEM.get_or_init(load).as_ref()
}

fn load() -> Result<Functions, LoadError> {
    // SAFETY: the library's initialisers are safe to run: other programs run them at their start.
    let library = unsafe { Library::new(LIBRARY) };
    let library = library.map_err(|error| LoadError::Library(reason(&error)))?;
    let functions = Functions::of(&library);
    std::mem::forget(library);
    // Programs fork to load data or to run a command. Before Linux 5.12, a write to a registered
    // page after a fork gives the writer a copy, while the device keeps the old page. This call
    // prevents that. Its failure is ignored: there is no alternative.
    let _ = functions.as_ref().map(|functions| {
        // SAFETY: nothing is registered yet.
        unsafe { (functions.fork_init)() }
    });
    functions
}

/// Returns the system's text of an error, which names the missing file.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Declares the table of functions, and how the table is filled from a library.
macro_rules! functions {
    (@type required $call:ty) => { $call };
    (@type optional $call:ty) => { Option<$call> };
    (@find required $library:ident $symbol:literal) => {
        // SAFETY: the header declares the function with this type.
        *unsafe { $library.get(concat!($symbol, "\0").as_bytes()) }
            .map_err(|_| LoadError::Function($symbol))?
    };
    (@find optional $library:ident $symbol:literal) => {
        // SAFETY: the header declares the function with this type.
        unsafe { $library.get(concat!($symbol, "\0").as_bytes()) }.ok().map(|found| *found)
    };
    ($($(#[$doc:meta])* $need:ident $name:ident = $symbol:literal: $call:ty;)*) => {
        /// Functions of libibverbs that ferroccl uses. The manual pages explain each of them.
        /// Optional functions came with later versions.
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
    /// Makes registered memory survive forks of this process, where the kernel does not ensure
    /// that.
    required fork_init = "ibv_fork_init":
        unsafe extern "C" fn() -> c_int;
    /// Returns all devices; null with an error number if the kernel has no RDMA.
    required get_device_list = "ibv_get_device_list":
        unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
    /// Frees the list of devices; opened devices stay open.
    required free_device_list = "ibv_free_device_list":
        unsafe extern "C" fn(*mut *mut ibv_device);
    /// Returns the kernel's name of a device: `mlx5_0`, `rxe0`.
    required get_device_name = "ibv_get_device_name":
        unsafe extern "C" fn(*mut ibv_device) -> *const c_char;
    /// Opens a device.
    required open_device = "ibv_open_device":
        unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
    /// Closes a device.
    required close_device = "ibv_close_device":
        unsafe extern "C" fn(*mut ibv_context) -> c_int;
    /// Queries the limits of a device.
    required query_device = "ibv_query_device":
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    /// Queries the attributes of a port; this oldest form of the call does not set
    /// `port_cap_flags2`.
    required query_port = "ibv_query_port":
        unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    /// Queries a row of a port's GID table.
    required query_gid = "ibv_query_gid":
        unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    /// Queries a row of a port's GID table, with the type of the address.
    optional query_gid_ex = "_ibv_query_gid_ex":
        unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, size_t) -> c_int;
    /// Queries an entry of a port's partition key (P_Key) table, in network byte order.
    required query_pkey = "ibv_query_pkey":
        unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    /// Makes a protection domain.
    required alloc_pd = "ibv_alloc_pd":
        unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
    /// Ends a protection domain.
    required dealloc_pd = "ibv_dealloc_pd":
        unsafe extern "C" fn(*mut ibv_pd) -> c_int;
    /// Registers memory.
    required reg_mr = "ibv_reg_mr":
        unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
    /// Registers memory, with optional access flags. Optional flags that the kernel does not know
    /// are ignored.
    optional reg_mr_iova2 = "ibv_reg_mr_iova2":
        unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, u64, c_uint) -> *mut ibv_mr;
    /// Registers memory of another device, such as a GPU, by its dma-buf.
    optional reg_dmabuf_mr = "ibv_reg_dmabuf_mr":
        unsafe extern "C" fn(*mut ibv_pd, u64, size_t, u64, c_int, c_int) -> *mut ibv_mr;
    /// Ends a registration.
    required dereg_mr = "ibv_dereg_mr":
        unsafe extern "C" fn(*mut ibv_mr) -> c_int;
    /// Makes a completion channel.
    required create_comp_channel = "ibv_create_comp_channel":
        unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;
    /// Ends a completion channel.
    required destroy_comp_channel = "ibv_destroy_comp_channel":
        unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
    /// Makes a completion queue.
    required create_cq = "ibv_create_cq":
        unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
            -> *mut ibv_cq;
    /// Ends a completion queue.
    required destroy_cq = "ibv_destroy_cq":
        unsafe extern "C" fn(*mut ibv_cq) -> c_int;
    /// Returns the completion queue that has woken a channel; blocks if none has.
    required get_cq_event = "ibv_get_cq_event":
        unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    /// Acknowledges a number of events of a completion queue.
    required ack_cq_events = "ibv_ack_cq_events":
        unsafe extern "C" fn(*mut ibv_cq, c_uint);
    /// Makes a queue pair.
    required create_qp = "ibv_create_qp":
        unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// Changes the attributes of a queue pair.
    required modify_qp = "ibv_modify_qp":
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    /// Queries the attributes of a queue pair.
    required query_qp = "ibv_query_qp":
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    /// Ends a queue pair.
    required destroy_qp = "ibv_destroy_qp":
        unsafe extern "C" fn(*mut ibv_qp) -> c_int;
    /// Returns an asynchronous event; blocks if there is none.
    required get_async_event = "ibv_get_async_event":
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    /// Acknowledges an asynchronous event.
    required ack_async_event = "ibv_ack_async_event":
        unsafe extern "C" fn(*mut ibv_async_event);
}
