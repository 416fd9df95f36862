//! Budget of bytes under way from a port. All links of the port share the budget, so it bounds the
//! bytes of many peers and communicators together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crossbeam::utils::CachePadded;

/// A number of bytes that several threads count, in a cache line of its own.
type Bytes = CachePadded<AtomicUsize>;

/// Bytes under way from each port, of all lanes of a process. The keys hold the process id and the
/// port's name, so a forked child counts its own bytes.
static PORTS: Mutex<BTreeMap<(u32, String), Weak<Bytes>>> = Mutex::new(BTreeMap::new());

/// Bytes that one lane has under way, and the total of its port.
#[derive(Debug)]
pub(crate) struct Load {
    own: usize,
    port: Arc<Bytes>,
    /// True after a put was refused, until `Load::ask_again`: no put is admitted meanwhile.
    has_refused: bool,
}

impl Load {
    /// Returns the load of a new lane of a port.
    pub(crate) fn new(port: &str) -> Load {
        let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        ports.retain(|_, load| load.strong_count() > 0);
        let name = (std::process::id(), port.to_owned());
        let known = ports.get(&name).and_then(Weak::upgrade);
        let shared = known.unwrap_or_else(|| {
            let shared = Arc::new(CachePadded::new(AtomicUsize::new(0)));
            ports.insert(name, Arc::downgrade(&shared));
            shared
        });
        Load { own: 0, port: shared, has_refused: false }
    }

    /// Returns whether a put of `bytes` bytes may be sent now. Returns false after a refusal, until
    /// `Load::ask_again`. Otherwise returns true if one of three conditions holds: the port's bytes
    /// under way, with the put, stay within the budget; the lane's own bytes, with the put, stay
    /// within the lane's share (the budget divided by the number of the port's lanes); or the lane
    /// has no bytes under way. The last two let a lane send even while other lanes are late to
    /// report their bytes as done.
    pub(crate) fn admits(&mut self, bytes: usize, budget_bytes: usize) -> bool {
        let there = self.port.load(Ordering::Relaxed);
        let fits = there.saturating_add(bytes) <= budget_bytes;
        // Evaluated last, because it divides.
        let has_share = || self.own + bytes <= budget_bytes / Arc::strong_count(&self.port);
        let admits = !self.has_refused && (fits || self.own == 0 || has_share());
        self.has_refused |= !admits;
        admits
    }

    /// Returns whether a put was refused, and lets puts be admitted again.
    pub(crate) fn ask_again(&mut self) -> bool {
        std::mem::take(&mut self.has_refused)
    }

    /// Returns true after a put was refused, until `Load::ask_again`: no put is admitted meanwhile.
    pub(crate) fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Counts `bytes` bytes as under way.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.own += bytes;
        self.port.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `bytes` bytes as done or dropped.
    pub(crate) fn done(&mut self, bytes: usize) {
        let bytes = bytes.min(self.own);
        self.own -= bytes;
        self.port.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.done(self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_the_budget_of_a_port_and_an_idle_lane_may_send_one_put() {
        let mut lanes = [Load::new("x:1"), Load::new("x:1")];
        let mut stranger = Load::new("x:2");
        let [one, other] = &mut lanes;
        assert!(one.admits(60, 100));
        one.add(60);
        assert!(!one.admits(60, 100) && one.has_refused());
        assert!(!one.admits(1, 100), "no put is admitted after a refusal");
        assert!(one.ask_again() && one.admits(40, 100));
        assert!(other.admits(20, 100));
        other.add(20);
        assert!(!other.admits(31, 100) && other.ask_again());
        assert!(other.admits(30, 100), "each lane may use half of the budget");
        other.done(20);
        assert!(other.admits(200, 100), "an idle lane may send one put of any length");
        other.add(200);
        assert!(!other.admits(1, 100) && !one.admits(1, 100));
        assert!(stranger.admits(100, 100));
        let [mut one, other] = lanes;
        drop(other);
        assert!(one.ask_again() && one.admits(40, 100));
        one.done(60);
        one.done(1);
        assert!(one.admits(100, 100) && !one.ask_again());
    }
}
