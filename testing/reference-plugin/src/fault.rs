//! Violations of NCCL's plugin contract, planted for `ferroccl netcheck` to find.

/// Violation that the plugin commits, and its effect on a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `connect` blocks until the peer's `accept`.
    BlockingConnect,
    /// `accept` blocks until the peer's `connect`.
    BlockingAccept,
    /// `connect` and `accept` never return a communicator.
    NeverConnects,
    /// Messages match receives in posting order and ignore tags.
    TagOrder,
    /// Only `test` makes progress.
    ProgressOnlyInTest,
    /// Closing resets the connection: data in flight is lost.
    ResetOnClose,
    /// Receives report one byte more than the message had.
    WrongSize,
    /// No registration is found while another thread registers or deregisters: requests fail.
    RegistrationRace,
    /// `finalize` leaves the plugin's thread running.
    LeakThreads,
    /// Closing a listener leaves a descriptor open.
    LeakDescriptors,
    /// The plugin has room for only eight requests.
    FewRequests,
    /// A message that is longer than its receive breaks the connection.
    NoTruncation,
    /// A stranger's connection makes `accept` fail.
    StrangerKills,
    /// An arriving message also completes the next posted receive.
    DoubleCompletion,
    /// Messages without bytes never complete.
    ZeroHang,
    /// Some long messages arrive with one bit flipped.
    Corrupt,
    /// A listener accepts only one connection.
    HandleReuse,
    /// Calls with null for a communicator, a request or a context succeed.
    WrongResultOnNull,
    /// A virtual device of several devices reports itself as a single device.
    ForgetsParts,
    /// `connect` returns a device handle, though the plugin has no device side (network code on the
    /// accelerator).
    DeviceHandle,
    /// `irecvConsumed` ends a wrong request. The caller names a completed request; the call ends a
    /// newer request that has the completed request's entry in the table of requests.
    ConsumedFrees,
    /// `iflush` returns a request that never completes.
    FlushHangs,
    /// Registration of a DMA-BUF descriptor always succeeds, whatever the descriptor.
    AnyDescriptor,
    /// Registration of a DMA-BUF descriptor closes the caller's descriptor.
    ClosesDescriptor,
    /// Devices claim a device side, but the plugin provides no handle for it.
    ClaimsDevice,
    /// Devices report a bus id where a PCI path is required.
    BusIdAsPath,
    /// Requests with a profiler event are refused.
    RefusesEvents,
    /// The profiler callback is called even for null events: once for every send, and, if a receive
    /// has an array of events, once for every buffer of the receive.
    StrayEvents,
    /// The plugin has no device, which is no violation.
    NoDevices,
    /// Unknown fault name: `init` fails, so that no test runs without its fault.
    Unknown,
}

/// Names of the faults in `REFERENCE_NET_FAULT`.
const NAMES: [(&str, Fault); 29] = [
    ("blocking_connect", Fault::BlockingConnect),
    ("blocking_accept", Fault::BlockingAccept),
    ("never_connects", Fault::NeverConnects),
    ("tag_order", Fault::TagOrder),
    ("progress_only_in_test", Fault::ProgressOnlyInTest),
    ("reset_on_close", Fault::ResetOnClose),
    ("wrong_size", Fault::WrongSize),
    ("registration_race", Fault::RegistrationRace),
    ("leak_threads", Fault::LeakThreads),
    ("leak_descriptors", Fault::LeakDescriptors),
    ("few_requests", Fault::FewRequests),
    ("no_truncation", Fault::NoTruncation),
    ("stranger_kills", Fault::StrangerKills),
    ("double_completion", Fault::DoubleCompletion),
    ("zero_hang", Fault::ZeroHang),
    ("corrupt", Fault::Corrupt),
    ("handle_reuse", Fault::HandleReuse),
    ("wrong_result_on_null", Fault::WrongResultOnNull),
    ("forgets_parts", Fault::ForgetsParts),
    ("device_handle", Fault::DeviceHandle),
    ("consumed_frees", Fault::ConsumedFrees),
    ("flush_hangs", Fault::FlushHangs),
    ("any_descriptor", Fault::AnyDescriptor),
    ("closes_descriptor", Fault::ClosesDescriptor),
    ("claims_device", Fault::ClaimsDevice),
    ("bus_id_as_path", Fault::BusIdAsPath),
    ("refuses_events", Fault::RefusesEvents),
    ("stray_events", Fault::StrayEvents),
    ("no_devices", Fault::NoDevices),
];

impl Fault {
    /// Returns the fault of that name; `None` for an empty name.
    pub(crate) fn parse(name: &str) -> Option<Fault> {
        let found = NAMES.iter().find(|(other, _)| *other == name);
        let fault = found.map_or(Fault::Unknown, |(_, fault)| *fault);
        (!name.is_empty()).then_some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_found_by_its_exact_name_and_other_names_are_unknown() {
        assert_eq!(Fault::parse(""), None);
        assert_eq!(Fault::parse("corrupt"), Some(Fault::Corrupt));
        assert_eq!(Fault::parse("Corrupt"), Some(Fault::Unknown));
    }
}
