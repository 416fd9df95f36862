//! Checks of this crate's structures and constants against the C header, where one is installed.

use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

use crate::*;

/// Lists C expressions, each with the value that it has in this crate.
macro_rules! layout {
    ($($kind:ident { $($field:ident),* $(,)? })*) => {
        vec![$(
            $((
                concat!("offsetof(struct ", stringify!($kind), ", ", stringify!($field), ")")
                    .to_owned(),
                offset_of!($kind, $field) as u64,
            ),)*
        )*]
    };
}

macro_rules! sizes {
    ($($kind:ident),*) => {
        vec![$((
            concat!("sizeof(struct ", stringify!($kind), ")").to_owned(),
            size_of::<$kind>() as u64,
        )),*]
    };
}

macro_rules! constants {
    ($($name:ident),* $(,)?) => {
        vec![$((stringify!($name).to_owned(), $name as u64)),*]
    };
}

fn places() -> Vec<(String, u64)> {
    layout! {
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors }
        ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv }
        ibv_device_attr {
            fw_ver, node_guid, max_mr_size, vendor_id, max_qp, max_qp_wr, max_sge, max_cq, max_cqe,
            max_mr, atomic_cap, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, max_msg_sz, pkey_tbl_len, lid, sm_lid, lmc,
            active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, rate_limit,
        }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits,
        }
        ibv_async_event { element, event_type }
    }
}

fn lengths() -> Vec<(String, u64)> {
    let mut claims = sizes!(
        ibv_context_ops,
        ibv_device_attr,
        ibv_port_attr,
        ibv_gid_entry,
        ibv_mr,
        ibv_qp_init_attr,
        ibv_ah_attr,
        ibv_qp_attr,
        ibv_sge,
        ibv_send_wr,
        ibv_recv_wr,
        ibv_wc,
        ibv_async_event
    );
    claims.push((
        "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)".to_owned(),
        (offset_of!(ibv_send_wr, rdma) + offset_of!(ibv_send_wr_rdma, remote_addr)) as u64,
    ));
    claims.push((
        "offsetof(struct ibv_send_wr, wr.rdma.rkey)".to_owned(),
        (offset_of!(ibv_send_wr, rdma) + offset_of!(ibv_send_wr_rdma, rkey)) as u64,
    ));
    claims.push(("_Alignof(union ibv_gid)".to_owned(), align_of::<ibv_gid>() as u64));
    claims
}

fn numbers_of_requests() -> Vec<(String, u64)> {
    constants!(
        IBV_WC_SUCCESS,
        IBV_WC_LOC_LEN_ERR,
        IBV_WC_LOC_QP_OP_ERR,
        IBV_WC_LOC_PROT_ERR,
        IBV_WC_WR_FLUSH_ERR,
        IBV_WC_BAD_RESP_ERR,
        IBV_WC_LOC_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_OP_ERR,
        IBV_WC_RETRY_EXC_ERR,
        IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_REM_ABORT_ERR,
        IBV_WC_FATAL_ERR,
        IBV_WC_RESP_TIMEOUT_ERR,
        IBV_WC_GENERAL_ERR,
        IBV_WC_RDMA_WRITE,
        IBV_WC_RECV,
        IBV_WC_RECV_RDMA_WITH_IMM,
        IBV_WC_WITH_IMM,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_SEND_SIGNALED,
        IBV_SEND_INLINE,
        IBV_ACCESS_LOCAL_WRITE,
        IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_RELAXED_ORDERING,
    )
}

fn numbers_of_connections() -> Vec<(String, u64)> {
    constants!(
        IBV_QPS_RESET,
        IBV_QPS_INIT,
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        IBV_QPS_ERR,
        IBV_QPT_RC,
        IBV_QP_STATE,
        IBV_QP_ACCESS_FLAGS,
        IBV_QP_PKEY_INDEX,
        IBV_QP_PORT,
        IBV_QP_AV,
        IBV_QP_PATH_MTU,
        IBV_QP_TIMEOUT,
        IBV_QP_RETRY_CNT,
        IBV_QP_RNR_RETRY,
        IBV_QP_RQ_PSN,
        IBV_QP_MAX_QP_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER,
        IBV_QP_SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC,
        IBV_QP_DEST_QPN,
        IBV_MTU_256,
        IBV_MTU_4096,
        IBV_PORT_DOWN,
        IBV_PORT_INIT,
        IBV_PORT_ARMED,
        IBV_PORT_ACTIVE,
        IBV_LINK_LAYER_UNSPECIFIED,
        IBV_LINK_LAYER_INFINIBAND,
        IBV_LINK_LAYER_ETHERNET,
        IBV_QPF_GRH_REQUIRED,
        IBV_GID_TYPE_IB,
        IBV_GID_TYPE_ROCE_V1,
        IBV_GID_TYPE_ROCE_V2,
        IBV_EVENT_CQ_ERR,
        IBV_EVENT_QP_FATAL,
        IBV_EVENT_QP_REQ_ERR,
        IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_COMM_EST,
        IBV_EVENT_DEVICE_FATAL,
        IBV_EVENT_PORT_ACTIVE,
        IBV_EVENT_PORT_ERR,
        IBV_EVENT_LID_CHANGE,
        IBV_EVENT_PKEY_CHANGE,
        IBV_EVENT_GID_CHANGE,
    )
}

/// Returns a C program that does not compile if one of the claims is false.
fn program(claims: &[(String, u64)]) -> String {
    let mut text = "#include <stddef.h>\n#include <infiniband/verbs.h>\n".to_owned();
    for (expression, value) in claims {
        writeln!(text, "_Static_assert({expression} == {value}, \"{expression}\");").unwrap();
    }
    text
}

/// Returns whether the compiler accepts the program, and the compiler's messages.
fn compile(name: &str, program: &str) -> (bool, String) {
    let place = std::env::temp_dir().join(format!("{name}-{}.c", std::process::id()));
    std::fs::write(&place, program).unwrap();
    let cc = Command::new("cc").arg("-fsyntax-only").arg(&place).output();
    std::fs::remove_file(&place).unwrap();
    let cc = cc.unwrap();
    (cc.status.success(), String::from_utf8_lossy(&cc.stderr).into_owned())
}

#[test]
fn structures_and_constants_match_the_c_header() {
    let (there, _) = compile("header", "#include <infiniband/verbs.h>\n");
    if !there {
        println!("\nSKIPPED: there is no infiniband/verbs.h (libibverbs-dev)");
        return;
    }
    let mut claims =
        [places(), lengths(), numbers_of_requests(), numbers_of_connections()].concat();
    let (agrees, said) = compile("layout", &program(&claims));
    assert!(agrees, "{said}");
    // The compiler rejects a false claim.
    claims.push(("sizeof(struct ibv_wc)".to_owned(), 47));
    let (agrees, said) = compile("layout", &program(&claims));
    assert!(!agrees && said.contains("sizeof(struct ibv_wc)"), "{said}");
}

/// Loading the library and listing devices gives an error or a list on every machine.
#[test]
fn a_machine_without_the_library_or_devices_causes_no_crash() {
    match system() {
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("install it") && said.contains("cannot open"), "{said}");
        }
        Ok(functions) => {
            let mut count = 0;
            // SAFETY: there is room for the number.
            let list = unsafe { (functions.get_device_list)(&raw mut count) };
            if !list.is_null() {
                // SAFETY: the library has returned the list, which is freed once.
                unsafe { (functions.free_device_list)(list) };
            }
        }
    }
}
