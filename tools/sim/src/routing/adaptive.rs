//! Adaptive routing: each message takes the path whose busiest link is least busy, as if switches
//! told each other their load. Paths are tried in an order that differs from flow to flow, so that
//! flows do not all take the first of several equal paths.

use super::{FlowPath, ecmp};
use crate::flows::Load;
use crate::network::{Link, Path};

/// Largest number of paths that are compared.
const WAYS: usize = 256;

/// Sets `path` to the least busy path.
pub(super) fn route(
    way: &FlowPath<'_>,
    seed: u64,
    load: &Load<'_>,
    found: &mut Vec<Link>,
    path: &mut Path,
) {
    let mut best = f64::INFINITY;
    let mut candidate = Path::default();
    let mut rotate = ecmp::chooser(way.key, seed, true);
    for attempt in 0..WAYS {
        // `attempt` numbers the paths: at each step of a path, a digit of `attempt` selects the
        // link. The base of this digit is the number of links at that step.
        let (mut digits, mut ways) = (attempt, 1);
        way.walk(found, &mut candidate, |step, links| {
            let first = rotate(step, links);
            let digit = digits % links.len().max(1);
            digits /= links.len().max(1);
            ways *= links.len();
            (first + digit) % links.len().max(1)
        });
        let links = || candidate.links.iter().map(|(link, _)| load.of(*link));
        // Among paths whose busiest links are equally busy, the one with the least total load wins.
        let busy = links().fold(0.0, f64::max) + links().sum::<f64>() * 1e-6;
        if busy < best {
            best = busy;
            path.links.clone_from(&candidate.links);
        }
        if attempt + 1 >= ways || best == 0.0 {
            return;
        }
    }
}
