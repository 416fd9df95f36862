//! Providers and their features.

use std::collections::BTreeMap;

use libfabric_sys::{
    FI_HMEM, FI_MR_ALLOCATED, FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_LOCAL, FI_MR_PROV_KEY,
    FI_MR_VIRT_ADDR, FI_MSG, FI_PROGRESS_AUTO, FI_RMA, Functions,
};
use serde::{Deserialize, Serialize};

use crate::native::{EFA, Hints, Info, OfiError, functions};

/// Bytes of remote CQ data that the transport's writes need.
pub(crate) const DATA_BYTES: usize = 4;

/// Variable of the provider [`LIMITED`], and a value for it. The value is a limit, in bytes: the
/// provider sends messages up to this length without first asking the receiver. If the variable is
/// not set, the limit is [`EAGER_BYTES`]. Endpoints with different limits do not connect.
pub(crate) const EAGER_LIMIT: (&str, &str) = ("FI_OFI_RXM_EAGER_LIMIT", "524288");
/// End of the name of a provider above which `ofi_rxm` is.
const RXM: &str = ";ofi_rxm";
/// Longest message, in bytes, that `ofi_rxm` sends whole and without first asking the receiver, by
/// default.
const EAGER_BYTES: usize = 16 << 10;
/// Provider with that variable.
const LIMITED: &str = "tcp;ofi_rxm";
/// First major version of [`LIMITED`] that does not read the variable: that of libfabric 1.18. (Up
/// to 1.19, the library lists the variable. But `ofi_rxm` reads it only over providers with dynamic
/// receive buffers, and `tcp` has none from 1.18 on.)
const LIMITED_BEFORE: u32 = 118;

/// Providers over the system's sockets. Other providers report completions in memory.
const SOCKETS: [&str; 4] = ["tcp", "net", "udp", "sockets"];

/// Provider whose processes share memory, and spin locks in it. Nothing releases the lock of a
/// process that has ended. The layout of the memory can differ between versions, and no process
/// checks another's layout (up to libfabric 2.6).
const SHARED: &str = "shm";
/// Effect of the locks of [`SHARED`], for the user.
pub(crate) const LOCKED_EFFECT: &str = "a rank that is killed or stopped can hold a lock of the \
     provider's; a call of another rank then waits for the lock without a limit: use \
     FERROCCL_TRANSPORT=shm (ferroccl's own shared memory) or libfabric 2.5";
/// Major version of [`SHARED`] without such locks: that of libfabric 2.5.
const UNLOCKED: u32 = 205;

/// A provider with reliable datagram endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provider {
    /// Name, as in `FI_PROVIDER`; layers are joined by `;`.
    pub name: String,
    /// Version.
    pub version: String,
    /// Devices and interfaces.
    pub devices: Vec<String>,
    /// True if the provider writes to a peer's memory (`FI_RMA`).
    pub writes: bool,
    /// True if the peer's completion has at least four bytes of data (`FI_REMOTE_CQ_DATA`).
    pub write_data: bool,
    /// True if the provider moves the memory of accelerators (`FI_HMEM`).
    pub device_memory: bool,
    /// True if the provider has a traffic class of low latency (`FI_TC_LOW_LATENCY`).
    pub low_latency: bool,
    /// Largest message that can be injected, in bytes: its buffer is free when the call returns.
    pub inject_bytes: usize,
    /// Largest number of bytes of a message.
    pub message_bytes_max: usize,
    /// Demands on registered memory, by their names (`FI_MR_…`).
    pub registration: Vec<String>,
    /// True if the provider makes progress by itself; false if it does so only within calls.
    pub automatic_progress: bool,
}

impl Provider {
    /// Returns the effects of missing features and of other limits on a transport, one sentence
    /// each.
    #[must_use]
    pub fn without(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut add = |sentence: &str| all.push(sentence.to_owned());
        if !self.writes || !self.write_data {
            add("no writes with remote CQ data: puts are messages, and the receiver copies most");
        } else if self.name != EFA {
            add("a write can go on after its target is deregistered: puts are messages, and the \
                 receiver copies most");
        }
        if !self.device_memory {
            add("no memory of accelerators: their data is staged in host memory");
        }
        if !self.low_latency {
            add("no low-latency traffic class: credits and CTS use the class of the data");
        }
        if !self.automatic_progress {
            add("no progress of its own: data moves only while a rank is in a call");
        }
        if self.shares_locks() {
            add(LOCKED_EFFECT);
        }
        if self.name.ends_with(RXM) {
            let mut effect =
                "messages have at most 16 KiB, so a longer put is several and takes longer"
                    .to_owned();
            if self.major().is_some_and(|major| is_limited(&self.name, major)) {
                let (variable, value) = EAGER_LIMIT;
                effect += &format!(
                    "; {variable}={value}, set for all ranks, permits longer messages: set it if \
                     another launcher than ferroccl's starts them"
                );
            }
            all.push(effect);
        }
        all
    }

    /// Returns whether a rank that is killed or stopped can make a call of another rank wait
    /// without a limit, because the provider's processes share locks.
    #[must_use]
    pub fn shares_locks(&self) -> bool {
        self.major().is_some_and(|major| shares_locks(&self.name, major))
    }

    /// Returns the limit, in bytes, of messages that the transport sends over this provider;
    /// `usize::MAX` if the provider sets none. `limit` is the value of libfabric's variable
    /// `FI_OFI_RXM_EAGER_LIMIT`.
    #[must_use]
    pub fn eager_bytes(&self, limit: &str) -> usize {
        let is_read = self.major().is_some_and(|major| is_limited(&self.name, major));
        eager_bytes(&self.name, is_read.then_some(limit))
    }

    fn major(&self) -> Option<u32> {
        self.version.split('.').next()?.parse().ok()
    }
}

/// Returns whether reading a completion queue of the provider makes system calls.
pub(crate) fn polls_sockets(name: &str) -> bool {
    name.split(';').next().is_some_and(|lowest| SOCKETS.contains(&lowest))
}

/// Returns whether the processes of a provider of this major version share locks.
pub(crate) fn shares_locks(name: &str, major: u32) -> bool {
    name == SHARED && major != UNLOCKED
}

/// Returns whether the processes of a provider need the same version of it.
pub(crate) fn needs_same_version(name: &str) -> bool {
    name == SHARED
}

/// Returns whether a provider of this major version reads [`EAGER_LIMIT`].
pub(crate) fn is_limited(name: &str, major: u32) -> bool {
    name == LIMITED && major < LIMITED_BEFORE
}

/// Returns the length, in bytes, of the longest message that a provider sends whole and without
/// first asking the receiver. `limit` is the value of [`EAGER_LIMIT`] if the provider reads it.
///
/// No message of this transport is longer. If the connection of a longer message closes, or the
/// provider makes it anew, `ofi_rxm` can use freed memory, call a null pointer or never return (up
/// to libfabric 2.6).
pub(crate) fn eager_bytes(name: &str, limit: Option<&str>) -> usize {
    if !name.ends_with(RXM) {
        return usize::MAX;
    }
    // With a leading 0, the library reads an octal number.
    let limit = limit.filter(|limit| limit.starts_with(|first| matches!(first, '1'..='9')));
    limit.and_then(|limit| limit.parse().ok()).map_or(EAGER_BYTES, |set| EAGER_BYTES.max(set))
}

/// Lists the providers of the installed libfabric that have reliable datagram endpoints, the
/// library's preferred one first.
///
/// # Errors
///
/// When there is no libfabric of version 1.17 or later, or it fails.
pub fn providers() -> Result<Vec<Provider>, OfiError> {
    let functions = functions()?;
    let infos = Info::list(functions, &Hints { provider: None, caps: FI_MSG, low_latency: false })?;
    let mut order: Vec<String> = Vec::new();
    let mut of_name: BTreeMap<String, Vec<Info>> = BTreeMap::new();
    for info in infos {
        let name = info.provider();
        if !order.contains(&name) {
            order.push(name.clone());
        }
        of_name.entry(name).or_default().push(info);
    }
    let mut all = Vec::new();
    for name in order {
        let infos = of_name.get(&name).map_or(&[][..], Vec::as_slice);
        all.extend(provider(functions, &name, infos)?);
    }
    Ok(all)
}

/// Returns the best offer of a provider.
pub(crate) fn best(functions: &'static Functions, name: &str) -> Result<Option<Info>, OfiError> {
    // If a layer is asked for, the library also returns providers that contain the layer.
    Ok(Info::offers(functions, name, false)?.into_iter().find(|offer| offer.provider() == name))
}

/// Returns the best offer of a provider of the installed library; none if there is none. Fails if
/// there is no library, although the suite that runs the test has installed one.
#[cfg(test)]
pub(crate) fn offered(name: &str) -> Option<Info> {
    let found = functions().and_then(|functions| best(functions, name));
    let is_needed = std::env::var_os("FERROCCL_TEST_OFI").is_some();
    assert!(found.is_ok() || !is_needed, "{found:?}");
    found.ok().flatten()
}

/// Returns [`offered`] for a test that needs it: without an offer, reports the test as skipped.
#[cfg(test)]
pub(crate) fn installed(name: &str) -> Option<Info> {
    let found = offered(name);
    if found.is_none() {
        println!("\nSKIPPED: libfabric has no provider {name}");
    }
    found
}

/// Describes a provider by its offers; none if it offers nothing any more.
fn provider(
    functions: &'static Functions,
    name: &str,
    infos: &[Info],
) -> Result<Option<Provider>, OfiError> {
    let mut devices: Vec<String> = Vec::new();
    for device in infos.iter().map(Info::device) {
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    let hints = Hints { provider: Some(name), caps: FI_MSG | FI_HMEM, low_latency: false };
    let device_memory = Info::list(functions, &hints)?.iter().any(|info| info.provider() == name);
    let Some(info) = best(functions, name)? else { return Ok(None) };
    let (major, minor) = info.version();
    let modes = [
        (FI_MR_LOCAL, "LOCAL"),
        (FI_MR_VIRT_ADDR, "VIRT_ADDR"),
        (FI_MR_ALLOCATED, "ALLOCATED"),
        (FI_MR_PROV_KEY, "PROV_KEY"),
        (FI_MR_ENDPOINT, "ENDPOINT"),
        (FI_MR_HMEM, "HMEM"),
    ];
    let demands = modes.into_iter().filter(|(mode, _)| info.registers(*mode));
    Ok(Some(Provider {
        name: name.to_owned(),
        version: format!("{major}.{minor}"),
        devices,
        writes: info.has(FI_RMA),
        write_data: info.domain().cq_data_size >= DATA_BYTES,
        device_memory,
        low_latency: info.has_low_latency(),
        inject_bytes: info.sending().inject_size,
        message_bytes_max: info.endpoint().max_msg_size,
        registration: demands.map(|(_, name)| name.to_owned()).collect(),
        automatic_progress: info.domain().data_progress == FI_PROGRESS_AUTO,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{HEAD_BYTES, PART_BYTES, part_bytes};

    #[test]
    fn messages_over_ofi_rxm_have_a_limit() {
        assert!(is_limited("tcp;ofi_rxm", 117));
        assert!(!is_limited("tcp;ofi_rxm", 118) && !is_limited("tcp", 117));
        for limit in [None, Some(""), Some("7"), Some("512K"), Some("0524288"), Some("+0524288")] {
            assert_eq!(eager_bytes("tcp;ofi_rxm", limit), EAGER_BYTES, "{limit:?}");
        }
        assert_eq!(eager_bytes("verbs;ofi_rxm", None), EAGER_BYTES);
        assert_eq!(HEAD_BYTES + part_bytes(EAGER_BYTES), EAGER_BYTES);
        assert_eq!(part_bytes(eager_bytes("tcp", None)), PART_BYTES);
        // The value that ferroccl sets permits messages of any length that the transport sends.
        let (_, set) = EAGER_LIMIT;
        assert_eq!(part_bytes(eager_bytes("tcp;ofi_rxm", Some(set))), PART_BYTES);
    }

    #[test]
    fn providers_over_sockets_poll_by_system_calls() {
        assert!(polls_sockets("tcp") && polls_sockets("tcp;ofi_rxm"));
        assert!(!polls_sockets("efa") && !polls_sockets("shm") && !polls_sockets("verbs;ofi_rxm"));
    }

    #[test]
    fn shm_shares_locks_except_in_2_5() {
        assert!(shares_locks("shm", 117) && shares_locks("shm", 206));
        assert!(!shares_locks("shm", 205) && !shares_locks("tcp", 117));
    }
}
