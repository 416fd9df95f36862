//! Rates of flows on shared links: max–min fairness by progressive filling.
//!
//! All rates grow equally until a link is full; then the rates of its flows are fixed and the
//! others keep growing. In the result, no flow can get a higher rate without taking bandwidth from
//! another flow that has the same or a lower rate; no other allocation has this property. A flow
//! that is spread over several paths puts only a part of its rate (a *weight*) on each link. A flow
//! can also have its own limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::network::Link;

/// Float with a total order, for heaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ordered(pub(crate) f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Ordered) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Ordered) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Buffers of the computation, reused between calls.
#[derive(Debug, Default)]
pub struct Shares {
    /// Links that flows take, in the order of their first flow.
    touched: Vec<Link>,
    /// Per link: its index in `touched`; valid only if the link's entry in `round` equals `number`,
    /// which changes with each call.
    dense: Vec<u32>,
    round: Vec<u32>,
    number: u32,
    /// Per touched link: the capacity that is left.
    left: Vec<f64>,
    /// Per touched link: the sum of the weights of its flows whose rates are not fixed yet.
    weight: Vec<f64>,
    /// Per touched link: index of its first flow in `members`.
    first: Vec<u32>,
    /// Flows of the touched links, link by link.
    members: Vec<u32>,
    fixed: Vec<bool>,
    heap: BinaryHeap<Reverse<(Ordered, u32)>>,
}

impl Shares {
    /// Computes the rate of every flow, in the unit of `capacity`. `flow` returns the links of a
    /// flow with their weights, and the limit of the flow.
    pub fn fill<'a>(
        &mut self,
        capacity: &[f64],
        flows: usize,
        flow: impl Fn(usize) -> (&'a [(Link, f64)], f64),
        rates: &mut Vec<f64>,
    ) {
        rates.clear();
        rates.resize(flows, 0.0);
        self.count(capacity, flows, &flow);
        self.list(flows, &flow);
        self.fixed.clear();
        self.fixed.resize(flows, false);
        self.heap.clear();
        for link in 0..self.touched.len() {
            let share = self.left[link] / self.weight[link];
            self.heap.push(Reverse((Ordered(share), link as u32)));
        }
        let links = self.touched.len() as u32;
        for index in 0..flows {
            let limit = flow(index).1;
            if limit.is_finite() || flow(index).0.is_empty() {
                self.heap.push(Reverse((Ordered(limit), links + index as u32)));
            }
        }
        while let Some(Reverse((Ordered(share), at))) = self.heap.pop() {
            if at >= links {
                self.fix((at - links) as usize, share, &flow, rates);
                continue;
            }
            let at = at as usize;
            if self.weight[at] <= 1e-9 {
                continue;
            }
            // Flows of this link may have been fixed at a lower rate since the push.
            let now = (self.left[at] / self.weight[at]).max(0.0);
            if now > share * (1.0 + 1e-12) {
                self.heap.push(Reverse((Ordered(now), at as u32)));
                continue;
            }
            for member in self.first[at]..self.first[at + 1] {
                let index = self.members[member as usize] as usize;
                self.fix(index, now, &flow, rates);
            }
            self.weight[at] = 0.0;
        }
    }

    fn fix<'a>(
        &mut self,
        index: usize,
        rate: f64,
        flow: &impl Fn(usize) -> (&'a [(Link, f64)], f64),
        rates: &mut [f64],
    ) {
        if std::mem::replace(&mut self.fixed[index], true) {
            return;
        }
        rates[index] = rate;
        for (link, weight) in flow(index).0 {
            let at = self.dense[*link as usize] as usize;
            self.left[at] = (self.left[at] - rate * weight).max(0.0);
            self.weight[at] -= weight;
        }
    }

    /// Finds the links that flows take, and the weight on each.
    fn count<'a>(
        &mut self,
        capacity: &[f64],
        flows: usize,
        flow: &impl Fn(usize) -> (&'a [(Link, f64)], f64),
    ) {
        self.dense.resize(capacity.len(), 0);
        self.round.resize(capacity.len(), 0);
        self.number = self.number.wrapping_add(1);
        if self.number == 0 {
            self.round.fill(0);
            self.number = 1;
        }
        self.touched.clear();
        self.left.clear();
        self.weight.clear();
        self.first.clear();
        for index in 0..flows {
            for (link, weight) in flow(index).0 {
                let of = *link as usize;
                if self.round[of] != self.number {
                    self.round[of] = self.number;
                    self.dense[of] = self.touched.len() as u32;
                    self.touched.push(*link);
                    self.left.push(capacity[of]);
                    self.weight.push(0.0);
                    self.first.push(0);
                }
                let at = self.dense[of] as usize;
                self.weight[at] += weight;
                self.first[at] += 1;
            }
        }
        self.first.push(0);
    }

    /// Lists the flows of every link.
    fn list<'a>(&mut self, flows: usize, flow: &impl Fn(usize) -> (&'a [(Link, f64)], f64)) {
        let mut end = 0;
        for first in &mut self.first {
            end += std::mem::replace(first, end);
        }
        // In the loop, `first[link]` is the index where the link's next flow goes. After the loop,
        // `first[link]` is the first index of the next link, so the entries are shifted by one.
        self.members.clear();
        self.members.resize(end as usize, 0);
        for index in 0..flows {
            for (link, _) in flow(index).0 {
                let next = &mut self.first[self.dense[*link as usize] as usize];
                self.members[*next as usize] = index as u32;
                *next += 1;
            }
        }
        self.first.rotate_right(1);
        if let Some(first) = self.first.first_mut() {
            *first = 0;
        }
    }
}
