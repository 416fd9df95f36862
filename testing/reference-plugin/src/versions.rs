//! Plugin tables that NCCL looks for, one for each version of its interface.

use core::ffi::CStr;

use nccl_net_abi::{v8, v9, v10, v11, v12};

use crate::exports::{
    accept, close_listen, close_receive, close_send, connect, consumed, deregister,
    device_registration, devices, finalize, iflush, init, irecv, isend, listen, make_device,
    register, register_dma_buf, set_attributes, test,
};
use crate::older::{
    connect_v9, connect_v10, init_v9, init_v10, irecv_v8, irecv_v9, isend_v8, isend_v9, listen_v10,
};
use crate::properties::{properties_v8, properties_v9, properties_v11, properties_v12};

const NAME: &CStr = c"Reference";

/// Plugin table as a symbol of the library.
#[repr(transparent)]
#[derive(Debug)]
pub struct Exported<T>(pub T);

// SAFETY: tables are never written; the names in them live as long as the process.
unsafe impl<T> Sync for Exported<T> {}

/// Table of version 12.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is NCCL's")]
pub static ncclNetPlugin_v12: Exported<v12::Net> = Exported(v12::Net {
    name: NAME.as_ptr(),
    init: Some(init),
    devices: Some(devices),
    properties: Some(properties_v12),
    listen: Some(listen),
    connect: Some(connect),
    accept: Some(accept),
    register: Some(register),
    register_dma_buf: Some(register_dma_buf),
    deregister: Some(deregister),
    isend: Some(isend),
    irecv: Some(irecv),
    iflush: Some(iflush),
    test: Some(test),
    close_send: Some(close_send),
    close_receive: Some(close_receive),
    close_listen: Some(close_listen),
    device_registration: Some(device_registration),
    consumed: Some(consumed),
    make_device: Some(make_device::<8>),
    finalize: Some(finalize),
    set_attributes: Some(set_attributes),
});

/// Table of version 11.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is NCCL's")]
pub static ncclNetPlugin_v11: Exported<v11::Net> = Exported(v11::Net {
    name: NAME.as_ptr(),
    init: Some(init),
    devices: Some(devices),
    properties: Some(properties_v11),
    listen: Some(listen),
    connect: Some(connect),
    accept: Some(accept),
    register: Some(register),
    register_dma_buf: Some(register_dma_buf),
    deregister: Some(deregister),
    isend: Some(isend),
    irecv: Some(irecv),
    iflush: Some(iflush),
    test: Some(test),
    close_send: Some(close_send),
    close_receive: Some(close_receive),
    close_listen: Some(close_listen),
    device_registration: Some(device_registration),
    consumed: Some(consumed),
    make_device: Some(make_device::<4>),
    finalize: Some(finalize),
    set_attributes: Some(set_attributes),
});

/// Table of version 10.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is NCCL's")]
pub static ncclNetPlugin_v10: Exported<v10::Net> = Exported(v10::Net {
    name: NAME.as_ptr(),
    init: Some(init_v10),
    devices: Some(devices),
    properties: Some(properties_v9),
    listen: Some(listen_v10),
    connect: Some(connect_v10),
    accept: Some(accept),
    register: Some(register),
    register_dma_buf: Some(register_dma_buf),
    deregister: Some(deregister),
    isend: Some(isend),
    irecv: Some(irecv),
    iflush: Some(iflush),
    test: Some(test),
    close_send: Some(close_send),
    close_receive: Some(close_receive),
    close_listen: Some(close_listen),
    device_registration: Some(device_registration),
    consumed: Some(consumed),
    make_device: Some(make_device::<4>),
});

/// Table of version 9.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is NCCL's")]
pub static ncclNetPlugin_v9: Exported<v9::Net> = Exported(v9::Net {
    name: NAME.as_ptr(),
    init: Some(init_v9),
    devices: Some(devices),
    properties: Some(properties_v9),
    listen: Some(listen_v10),
    connect: Some(connect_v9),
    accept: Some(accept),
    register: Some(register),
    register_dma_buf: Some(register_dma_buf),
    deregister: Some(deregister),
    isend: Some(isend_v9),
    irecv: Some(irecv_v9),
    iflush: Some(iflush),
    test: Some(test),
    close_send: Some(close_send),
    close_receive: Some(close_receive),
    close_listen: Some(close_listen),
    device_registration: Some(device_registration),
    consumed: Some(consumed),
    make_device: Some(make_device::<4>),
});

/// Table of version 8.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is NCCL's")]
pub static ncclNetPlugin_v8: Exported<v8::Net> = Exported(v8::Net {
    name: NAME.as_ptr(),
    init: Some(init_v9),
    devices: Some(devices),
    properties: Some(properties_v8),
    listen: Some(listen_v10),
    connect: Some(connect_v9),
    accept: Some(accept),
    register: Some(register),
    register_dma_buf: Some(register_dma_buf),
    deregister: Some(deregister),
    isend: Some(isend_v8),
    irecv: Some(irecv_v8),
    iflush: Some(iflush),
    test: Some(test),
    close_send: Some(close_send),
    close_receive: Some(close_receive),
    close_listen: Some(close_listen),
    device_registration: Some(device_registration),
    consumed: Some(consumed),
});
