//! Version 10 of the interface.

use nccl_net_abi::v10::Net;

use super::v9::properties;
use super::{Exported, NAME, calls};

/// Table that NCCL loads.
#[unsafe(export_name = "ncclNetPlugin_v10")]
pub static NCCL_NET_PLUGIN_V10: Exported<Net> = Exported(Net {
    name: NAME.as_ptr(),
    init: Some(calls::init_v10),
    devices: Some(calls::devices),
    properties: Some(properties),
    listen: Some(calls::listen_v10),
    connect: Some(calls::connect_v10),
    accept: Some(calls::accept),
    register: Some(calls::register),
    register_dma_buf: Some(calls::register_dma_buf),
    deregister: Some(calls::deregister),
    isend: Some(calls::isend_v12),
    irecv: Some(calls::irecv_v12),
    iflush: Some(calls::iflush),
    test: Some(calls::test),
    close_send: Some(calls::close_send),
    close_receive: Some(calls::close_receive),
    close_listen: Some(calls::close_listen),
    device_registration: None,
    consumed: None,
    make_device: Some(calls::make_device::<4>),
});
