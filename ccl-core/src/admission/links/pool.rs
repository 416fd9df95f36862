//! Pool of the credits that are reserved for no link.
//!
//! If the budget does not hold all slots of every link, each link reserves a few credits
//! ([`Config::reserved_slots`]), so that it always makes progress, and the rest of the budget is
//! the pool. A pool credit is given for one preposted receive and returns to the pool after that
//! receive, so no idle peer keeps one. Links request credits in the order of the receiver's
//! schedule and are served round-robin, one credit at a time.

use std::collections::VecDeque;

use super::super::Config;
use super::super::inbound::Inbound;
use super::MessageLinks;
use crate::execution::Link;

/// The pool of one receiver.
#[derive(Debug)]
pub(super) struct CreditPool {
    is_shared: bool,
    free: usize,
    /// Links with preposted receives that have no credit yet, in the order in which the pool serves
    /// them.
    asking: VecDeque<Link>,
    /// Links whose credits are to be announced.
    served: Vec<Link>,
}

impl CreditPool {
    /// Returns the pool for `peers` peers: the slots in the budget that none of their links has
    /// reserved.
    pub(super) fn new(config: &Config, peers: usize) -> CreditPool {
        let free = config.pool_slots(peers);
        CreditPool { is_shared: free > 0, free, asking: VecDeque::new(), served: Vec::new() }
    }

    /// Returns whether the pool has credits, free or given out.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns whether no link asks for a credit, and no link has a credit to be announced.
    pub(super) fn is_idle(&self) -> bool {
        self.asking.is_empty() && self.served.is_empty()
    }

    /// Queues a link behind those that wait already.
    pub(super) fn ask(&mut self, link: Link) {
        self.asking.push_back(link);
    }

    /// Takes credits back.
    pub(super) fn take_back(&mut self, credits: usize) {
        self.free += credits;
    }
}

impl MessageLinks {
    /// Gives the pool's free credits to the links that wait, and queues the puts that announce the
    /// credits.
    pub(super) fn share_credits(&mut self) {
        while self.pool.free > 0
            && let Some(link) = self.pool.asking.pop_front()
        {
            let Some((peer, channel)) = self.link(link) else { continue };
            let inbound = &mut peer.links[channel].0;
            let given = inbound.extend();
            let asks = inbound.asks_again();
            self.pool.free -= usize::from(given);
            self.counters.pool_credits += u64::from(given);
            // The link counts as served even if it got no pool credit: `extend` may have granted
            // free reserved slots, and the sender must learn of these credits.
            self.pool.served.push(link);
            self.pool.asking.extend(asks.then_some(link));
        }
        while let Some(link) = self.pool.served.pop() {
            self.credit(link, Inbound::unannounced);
        }
    }
}
