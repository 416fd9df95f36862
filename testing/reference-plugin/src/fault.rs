//! Violations of the contract, planted for the tester of plugins to find.

/// What is done wrong, and how it shows to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `connect` waits for the other's `accept`.
    BlockingConnect,
    /// `accept` waits for the other's `connect`.
    BlockingAccept,
    /// `connect` and `accept` never have a communicator.
    NeverConnects,
    /// Messages go to receives in the order in which these were posted, whatever the tags.
    TagOrder,
    /// Without `test` nothing moves.
    ProgressOnlyInTest,
    /// Closing resets the connection: what was in flight is lost.
    ResetOnClose,
    /// Receives report a byte more than there was.
    WrongSize,
    /// While another thread registers or deregisters, no registration is found: requests fail.
    RegistrationRace,
    /// `finalize` leaves its thread behind.
    LeakThreads,
    /// Closing a listener leaves a descriptor open.
    LeakDescriptors,
    /// There is room for eight requests only.
    FewRequests,
    /// A message that is longer than its receive breaks the connection.
    NoTruncation,
    /// A stranger's connection makes `accept` fail.
    StrangerKills,
    /// A message that arrives completes the receive behind its own, too.
    DoubleCompletion,
    /// Messages without bytes are never done.
    ZeroHang,
    /// A bit of a long message is flipped, once in a while.
    Corrupt,
    /// A listener accepts once.
    HandleReuse,
    /// Calls with null for a communicator or a request succeed.
    WrongResultOnNull,
    /// A device that is made of several says that it is one.
    ForgetsParts,
    /// `connect` gives a device handle, though there is no device side.
    DeviceHandle,
    /// `irecvConsumed` ends the request that has the place of the one that is done.
    ConsumedFrees,
    /// `iflush` gives a request that is never done.
    FlushHangs,
    /// Memory that a descriptor names is registered, whatever the descriptor.
    AnyDescriptor,
    /// The descriptor of memory that is to be registered is closed.
    ClosesDescriptor,
    /// Devices have a device side, says the plugin, but it gives nothing to it.
    ClaimsDevice,
    /// Devices say by a bus id, and not by a path, where they are.
    BusIdAsPath,
    /// Requests that come with an event for the profiler are refused.
    RefusesEvents,
    /// The profiler is told of every send, whether it came with an event or not.
    StrayEvents,
    /// There is no device, which is no violation.
    NoDevices,
    /// Misspelt: `init` fails, for nothing is worse than a test without its fault.
    Unknown,
}

/// As `REFERENCE_NET_FAULT` has them.
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
    /// The fault of that name; none for an empty one.
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
    fn names_are_understood_or_refused() {
        assert_eq!(Fault::parse(""), None);
        assert_eq!(Fault::parse("corrupt"), Some(Fault::Corrupt));
        assert_eq!(Fault::parse("Corrupt"), Some(Fault::Unknown));
    }
}
