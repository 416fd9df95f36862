//! Usual meanings of failed completions and events.

use rdma_sys::*;

/// Returns the name of a completion's status, and its usual meaning.
pub(crate) fn meaning(status: ibv_wc_status) -> (&'static str, &'static str) {
    match status {
        IBV_WC_LOC_LEN_ERR => ("local length error", "the message is longer than the port allows"),
        IBV_WC_LOC_QP_OP_ERR => (
            "local queue pair operation error",
            "the device's own link went down, or its driver failed",
        ),
        IBV_WC_LOC_PROT_ERR => (
            "local protection error",
            "memory of this process was not registered, or its registration has ended",
        ),
        IBV_WC_WR_FLUSH_ERR => ("flushed", "the queue pair had failed before"),
        IBV_WC_BAD_RESP_ERR => ("bad response", "the peer's device or the network is faulty"),
        IBV_WC_LOC_ACCESS_ERR => {
            ("local access error", "memory of this process is not registered for this use")
        }
        IBV_WC_REM_INV_REQ_ERR => {
            ("remote invalid request", "the peer's queue pair does not allow the request")
        }
        IBV_WC_REM_ACCESS_ERR => (
            "remote access error",
            "the peer has revoked access to the memory that was written to, or never granted it",
        ),
        IBV_WC_REM_OP_ERR => {
            ("remote operation error", "the peer's device could not carry out the request")
        }
        IBV_WC_RETRY_EXC_ERR => (
            "transport retries exceeded",
            "the peer does not answer: its process or host is gone, the network drops too many \
             packets, or no route reaches it with this address and priority",
        ),
        IBV_WC_RNR_RETRY_EXC_ERR => (
            "receiver not ready",
            "the peer's process was stopped, or does not poll its completions",
        ),
        IBV_WC_REM_ABORT_ERR => ("remote abort", "the peer aborted the operation"),
        IBV_WC_FATAL_ERR => ("fatal error", "the device has failed: see `dmesg`"),
        IBV_WC_RESP_TIMEOUT_ERR => ("response timeout", "the peer does not answer"),
        IBV_WC_GENERAL_ERR => ("general error", "the device has failed: see `dmesg`"),
        _ => ("unknown status", "see the device's documentation"),
    }
}

/// Returns the meaning of an event.
pub(crate) fn event(event: ibv_event_type) -> &'static str {
    match event {
        IBV_EVENT_CQ_ERR => "a completion queue overflowed",
        IBV_EVENT_QP_FATAL => "it failed",
        IBV_EVENT_QP_REQ_ERR => "it received an invalid request",
        IBV_EVENT_QP_ACCESS_ERR => "a peer accessed memory that it may not access",
        IBV_EVENT_DEVICE_FATAL => "the device failed",
        IBV_EVENT_PORT_ACTIVE => "the port has its link again",
        IBV_EVENT_PORT_ERR => "the port lost its link",
        IBV_EVENT_LID_CHANGE | IBV_EVENT_GID_CHANGE => "the port's addresses changed",
        IBV_EVENT_PKEY_CHANGE => "the port's partitions changed",
        _ => "an event of no consequence",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_events_have_a_name_and_a_meaning() {
        let (name, meaning) = meaning(IBV_WC_RETRY_EXC_ERR);
        assert_eq!(name, "transport retries exceeded");
        assert!(meaning.contains("does not answer"));
        assert_eq!(super::meaning(99).0, "unknown status");
        assert_eq!(event(IBV_EVENT_PORT_ERR), "the port lost its link");
        assert_eq!(event(99), "an event of no consequence");
    }
}
