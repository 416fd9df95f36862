//! Tests of structures and constants against the installed headers, and of the library itself.

use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

use libfabric_sys::*;

/// Lists C expressions, each with its value in the bindings.
macro_rules! layout {
    ($($kind:ident { $($field:ident),* $(,)? })*) => {
        vec![$(
            $((
                concat!("offsetof(struct ", stringify!($kind), ", ", stringify!($field), ")")
                    .replace("r#", ""),
                offset_of!($kind, $field) as u64,
            ),)*
        )*]
    };
}

macro_rules! sizes {
    ($($kind:ident),* $(,)?) => {
        vec![$((
            concat!("sizeof(struct ", stringify!($kind), ")").to_owned(),
            size_of::<$kind>() as u64,
        )),*]
    };
}

macro_rules! constants {
    ($($name:ident),* $(,)?) => {
        vec![$((format!("(unsigned long long) {}", stringify!($name)), $name as u64)),*]
    };
}

fn offers() -> Vec<(String, u64)> {
    layout! {
        fi_ops { size, close, bind, control, ops_open }
        fid { fclass, context, ops }
        fi_tx_attr {
            caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit,
            rma_iov_limit, tclass,
        }
        fi_rx_attr {
            caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit,
        }
        fi_ep_attr {
            r#type, protocol, protocol_version, max_msg_size, msg_prefix_size, mem_tag_format,
            tx_ctx_cnt, rx_ctx_cnt, auth_key_size, auth_key,
        }
        fi_domain_attr {
            domain, name, threading, control_progress, data_progress, resource_mgmt, av_type,
            mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt, mr_iov_limit, caps, mode, auth_key,
            auth_key_size, max_err_data, mr_cnt, tclass,
        }
        fi_fabric_attr { fabric, name, prov_name, prov_version, api_version }
        fi_info {
            next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle,
            tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic,
        }
        fid_nic { fid, device_attr, bus_attr, link_attr, prov_attr }
        fi_pci_attr { domain_id, bus_id, device_id, function_id }
        fi_link_attr { address, mtu, speed, state, network_type }
    }
}

fn objects() -> Vec<(String, u64)> {
    layout! {
        fi_ops_fabric { size, domain, passive_ep, eq_open, wait_open, trywait }
        fid_fabric { fid, ops, api_version }
        fi_eq_attr { size, flags, wait_obj, signaling_vector, wait_set }
        fi_eq_err_entry { fid, context, data, err, prov_errno, err_data, err_data_size }
        fi_ops_eq { size, read, readerr, write, sread, strerror }
        fid_eq { fid, ops }
        fi_ops_domain { size, av_open, cq_open, endpoint }
        fi_ops_mr { size, reg, regv, regattr }
        fid_domain { fid, ops, mr }
        fi_av_attr { r#type, rx_ctx_bits, count, ep_per_node, name, map_addr, flags }
        fi_ops_av { size, insert, insertsvc, insertsym, remove }
        fid_av { fid, ops }
        fid_mr { fid, mem_desc, key }
        fi_mr_attr {
            mr_iov, iov_count, access, offset, requested_key, context, auth_key_size, auth_key,
            iface, device,
        }
        fi_cq_attr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
        fi_cq_data_entry { op_context, flags, len, buf, data }
        fi_cq_err_entry {
            op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size,
        }
        fi_ops_cq { size, read, readfrom, readerr, sread, sreadfrom, signal, strerror }
        fid_cq { fid, ops }
        fi_ops_cm { size, setname, getname }
        fi_ops_msg { size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata }
        fi_ops_rma { size, read, readv, readmsg, write, writev, writemsg, inject, writedata }
        fi_msg { msg_iov, desc, iov_count, addr, context, data }
        fi_rma_iov { addr, len, key }
        fi_msg_rma {
            msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data,
        }
        fid_ep { fid, ops, cm, msg, rma }
    }
}

fn lengths() -> Vec<(String, u64)> {
    let mut claims = sizes!(
        fid,
        fi_tx_attr,
        fi_rx_attr,
        fi_fabric_attr,
        fi_info,
        fi_pci_attr,
        fi_bus_attr,
        fi_link_attr,
        fi_av_attr,
        fi_eq_attr,
        fi_eq_err_entry,
        fid_mr,
        fi_cq_data_entry,
        fi_msg,
        fi_rma_iov,
        fi_msg_rma,
        fi_context2,
    );
    claims.push((
        "offsetof(struct fi_bus_attr, attr.pci)".to_owned(),
        offset_of!(fi_bus_attr, pci) as u64,
    ));
    claims
}

fn numbers() -> Vec<(String, u64)> {
    let flags = constants!(
        FI_MSG,
        FI_RMA,
        FI_WRITE,
        FI_RECV,
        FI_SEND,
        FI_REMOTE_WRITE,
        FI_REMOTE_CQ_DATA,
        FI_DELIVERY_COMPLETE,
        FI_HMEM,
        FI_LOCAL_COMM,
        FI_REMOTE_COMM,
        FI_CONTEXT,
        FI_RX_CQ_DATA,
        FI_CONTEXT2,
        FI_MR_LOCAL,
        FI_MR_VIRT_ADDR,
        FI_MR_ALLOCATED,
        FI_MR_PROV_KEY,
        FI_MR_RMA_EVENT,
        FI_MR_ENDPOINT,
        FI_MR_HMEM,
        FI_ADDR_UNSPEC,
    );
    let values = constants!(
        FI_EP_RDM,
        FI_AV_TABLE,
        FI_PROGRESS_AUTO,
        FI_PROGRESS_MANUAL,
        FI_THREAD_SAFE,
        FI_THREAD_DOMAIN,
        FI_RM_ENABLED,
        FI_CQ_FORMAT_DATA,
        FI_WAIT_NONE,
        FI_WAIT_FD,
        FI_BUS_PCI,
        FI_LINK_UP,
        FI_HMEM_SYSTEM,
        FI_ENABLE,
        FI_GETWAIT,
        FI_ADDR_STR,
        FI_TC_UNSPEC,
        FI_TC_BEST_EFFORT,
        FI_TC_LOW_LATENCY,
        FI_ENOCQ,
        FI_EAVAIL,
        FI_EOPBADSTATE,
        FI_ETOOSMALL,
        FI_EOTHER,
    );
    [flags, values].concat()
}

const HEADERS: &str = "#include <stddef.h>\n#include <rdma/fabric.h>\n#include <rdma/fi_cm.h>\n\
                       #include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n\
                       #include <rdma/fi_errno.h>\n#include <rdma/fi_rma.h>\n";

/// Returns a C program that does not compile if a claim (an expression and its value) is false.
fn program(claims: &[(String, u64)]) -> String {
    let mut text = HEADERS.to_owned();
    for (expression, value) in claims {
        writeln!(text, "_Static_assert({expression} == {value}ull, \"{expression}\");").unwrap();
    }
    text
}

/// Returns whether the compiler accepts the program, and the compiler's messages.
fn compile(name: &str, program: &str) -> (bool, String) {
    let place = std::env::temp_dir().join(format!("{name}-{}.c", std::process::id()));
    std::fs::write(&place, program).unwrap();
    // The variable selects headers of another version.
    let include = std::env::var_os("LIBFABRIC_INCLUDE").unwrap_or_else(|| "/usr/include".into());
    let cc = Command::new("cc").arg("-fsyntax-only").arg("-I").arg(include).arg(&place).output();
    std::fs::remove_file(&place).unwrap();
    let cc = cc.unwrap();
    (cc.status.success(), String::from_utf8_lossy(&cc.stderr).into_owned())
}

#[test]
fn the_bindings_match_the_headers_of_libfabric() {
    let (there, _) = compile("ofi-header", HEADERS);
    if !there {
        assert!(std::env::var_os("FERROCCL_TEST_OFI").is_none(), "libfabric's headers are missing");
        println!("\nSKIPPED: no rdma/fabric.h (libfabric-dev)");
        return;
    }
    let mut claims = [offers(), objects(), lengths(), numbers()].concat();
    let (agrees, said) = compile("ofi-layout", &program(&claims));
    assert!(agrees, "{said}");
    // A false claim is noticed.
    claims.push(("sizeof(struct fid)".to_owned(), 25));
    let (agrees, said) = compile("ofi-layout", &program(&claims));
    assert!(!agrees && said.contains("sizeof(struct fid)"), "{said}");
}

/// Loading gives a result and never a crash, with or without the library.
#[test]
fn a_missing_library_gives_an_error_and_no_crash() {
    match system() {
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("install it") && said.contains("cannot open"), "{said}");
        }
        // SAFETY: the function takes nothing.
        Ok(functions) => assert!(unsafe { (functions.version)() } >= FI_API_VERSION),
    }
}
