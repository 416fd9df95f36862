//! Constants by the names that libfabric's headers give them.

use libc::c_int;

/// Version of the interface that this crate is written for.
pub const FI_API_VERSION: u32 = FI_VERSION(1, 17);

/// Version of an interface as one number.
#[allow(non_snake_case)]
#[must_use]
pub const fn FI_VERSION(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

macro_rules! constants {
    ($type:ty: $($name:ident = $value:expr),* $(,)?) => {
        $(#[doc = concat!("`", stringify!($name), "` of the headers.")]
        pub const $name: $type = $value;)*
    };
}

// Capabilities, and flags of operations and completions.
constants! { u64:
    FI_MSG = 1 << 1,
    FI_RMA = 1 << 2,
    FI_WRITE = 1 << 9,
    FI_RECV = 1 << 10,
    FI_SEND = 1 << 11,
    FI_REMOTE_WRITE = 1 << 13,
    FI_REMOTE_CQ_DATA = 1 << 17,
    FI_DELIVERY_COMPLETE = 1 << 28,
    FI_HMEM = 1 << 47,
    // `FI_MR_DMABUF` exists from version 1.20 on.
    FI_MR_DMABUF = 1 << 40,
    FI_LOCAL_COMM = 1 << 51,
    FI_REMOTE_COMM = 1 << 52,
}

// Mode bits.
constants! { u64:
    FI_CONTEXT = 1 << 59,
    FI_RX_CQ_DATA = 1 << 56,
    FI_CONTEXT2 = 1 << 52,
}

// Modes of memory registration.
constants! { c_int:
    FI_MR_LOCAL = 1 << 2,
    FI_MR_VIRT_ADDR = 1 << 4,
    FI_MR_ALLOCATED = 1 << 5,
    FI_MR_PROV_KEY = 1 << 6,
    FI_MR_RMA_EVENT = 1 << 8,
    FI_MR_ENDPOINT = 1 << 9,
    FI_MR_HMEM = 1 << 10,
}

// Values of enumerations.
constants! { c_int:
    FI_EP_RDM = 3,
    FI_AV_TABLE = 2,
    FI_PROGRESS_AUTO = 1,
    FI_PROGRESS_MANUAL = 2,
    FI_THREAD_SAFE = 1,
    FI_THREAD_DOMAIN = 3,
    FI_RM_ENABLED = 2,
    FI_CQ_FORMAT_DATA = 3,
    FI_WAIT_NONE = 0,
    FI_WAIT_FD = 3,
    FI_BUS_PCI = 1,
    FI_LINK_UP = 2,
    FI_HMEM_SYSTEM = 0,
    FI_ENABLE = 6,
    FI_GETWAIT = 5,
    FI_OPT_ENDPOINT = 0,
}

constants! { u32:
    FI_SOCKADDR = 1,
    FI_SOCKADDR_IB = 4,
    FI_ADDR_STR = 9,
    FI_TC_UNSPEC = 0,
    FI_TC_BEST_EFFORT = 0x200,
    FI_TC_LOW_LATENCY = 0x201,
}

/// Option of EFA's endpoints: a `bool` that is true if messages stand in for writes. Since 1.18.
pub const FI_OPT_EFA_EMULATED_WRITE: c_int = -(0xefa << 16) + 2;

/// `FI_ADDR_UNSPEC` of the headers.
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;

// Error numbers that the system does not have; calls return them negated.
constants! { c_int:
    FI_EOVERRUN = 268,
    FI_ETRUNC = 265,
    FI_ENOCQ = 263,
    FI_EAVAIL = 259,
    FI_EOPBADSTATE = 258,
    FI_ETOOSMALL = 257,
    FI_EOTHER = 256,
}
