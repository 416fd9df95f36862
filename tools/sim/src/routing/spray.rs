//! Packet spraying: each NIC and switch divides a flow equally among all its links towards the
//! destination.

use super::FlowPath;
use crate::network::{Link, Path};

/// Sets `path` to the paths of all packets: each link with the part of the flow that takes it.
pub(super) fn route(way: &FlowPath<'_>, found: &mut Vec<Link>, path: &mut Path) {
    path.clear();
    // Numbers of the NICs or switches reached at this level, each with its part of the flow.
    let mut here = vec![(way.key.from.nic, 1.0)];
    let mut next: Vec<(u32, f64)> = Vec::new();
    for level in way.levels() {
        next.clear();
        for (number, part) in &here {
            let step = way.step(level, *number);
            way.network.choices(&step, way.key.to, way.turn, found);
            let each = part / found.len().max(1) as f64;
            for link in found.iter() {
                path.links.push((*link, each));
                let far = way.network.far_end(*link);
                match next.iter_mut().find(|(number, _)| *number == far) {
                    Some((_, part)) => *part += each,
                    None => next.push((far, each)),
                }
            }
        }
        std::mem::swap(&mut here, &mut next);
    }
}
