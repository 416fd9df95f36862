//! Flowlet switching: the first switch chooses the least busy of its uplinks for a flow, when the
//! flow begins and again after each pause of the flow. Packets stay in order if the pause is longer
//! than the difference between the paths' latencies.

use std::collections::BTreeMap;

use super::{FlowPath, Moment, ecmp};
use crate::flows::Load;
use crate::network::{Link, Path, Port};

/// Uplink that each flow takes at its first switch.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<(Port, Port, u32, u32), Link>);

impl Table {
    /// Sets `path` to the path of the next message of a flow.
    pub(super) fn route(
        &mut self,
        way: &FlowPath<'_>,
        (seed, gap_s): (u64, f64),
        moment: Moment,
        load: &Load<'_>,
        found: &mut Vec<Link>,
        path: &mut Path,
    ) {
        let key = way.key;
        let flow = (key.from, key.to, key.channel, key.pair);
        let paused = moment.idle_since_s.is_none_or(|since| moment.now_s - since >= gap_s);
        let kept = self.0.get(&flow).copied().filter(|_| !paused);
        let mut hashed = ecmp::chooser(key, seed, true);
        let mut taken = None;
        way.walk(found, path, |step, links| {
            if !step.up || taken.is_some() || step.tier == 0 {
                return hashed(step, links);
            }
            let known = kept.and_then(|kept| links.iter().position(|link| *link == kept));
            let first = hashed(step, links);
            let index = known.unwrap_or_else(|| least_busy(links, first, load));
            taken = links.get(index).copied();
            index
        });
        if let Some(link) = taken {
            self.0.insert(flow, link);
        }
    }
}

/// Returns the index of the least busy link; among equals, the first one from `first` on.
fn least_busy(links: &[Link], first: usize, load: &Load<'_>) -> usize {
    let order = (0..links.len()).map(|at| (first + at) % links.len());
    let busy = |at: &usize| load.of(links[*at]);
    order.min_by(|one, other| busy(one).total_cmp(&busy(other))).unwrap_or(0)
}
