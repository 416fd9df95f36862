//! Hierarchical `all_reduce`: shares are folded inside each host, then across hosts, and the
//! results are distributed along the same links.
//!
//! Let the smallest of H hosts have L ranks. The buffer is divided into L shares, and each share
//! into H cuts. The ranks with local index j, one on each host, handle share j. Of these ranks, the
//! rank on host c completes cut c.
//!
//! ```text
//!   inside   every rank ──► j:         share j of its input, cut by cut
//!   across   j on h ──► j on c:        the host's sum of cut c of share j        (for all c)
//!            j on c folds cut c,  j on c ──► j on h:  the result                 (for all h)
//!   inside   j ──► every rank:         share j of the output, cut by cut
//! ```
//!
//! A host sends 2(H-1)/H times the length of the buffer to other hosts, the least possible: the
//! buffer once if there are two hosts. Inside a host each cut is forwarded as soon as it arrives.
//! Steps: 4. Messages per rank to other hosts: 2(H-1). The schedules of a host's ranks handle the
//! cuts one by one in the same order, so that no message ever waits for a message behind it on the
//! same link. Source: the two levels are folklore; the two phases across hosts are those of
//! `direct_two_phase`.

use crate::algorithm::common::{Names, Position, Run, across, each, inside, runs};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, RankSchedule, Slice, Terms, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllReduce,
    family: Family::Hierarchical,
    name: "hierarchical",
    summary: "shares folded inside each host, then across, then distributed; least bytes across",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| 2 * (across(hosts) + inside(hosts)),
};

/// Values from which the schedule of one rank is made.
struct Plan<'a> {
    position: Position<'a>,
    /// The other ranks of the host, with their local indices.
    neighbours: Vec<Run<2>>,
    /// The other ranks of the host that own a share, with the part number of the share's first cut.
    owners: Vec<Run<2>>,
    /// The part number of the first cut of this rank's own share, if the rank owns a share.
    own: Option<u32>,
    names: Names,
}

fn schedule(params: &Params<'_>) -> RankSchedule {
    let position = Position::of(params);
    let (shares, cuts) = (position.hosts.smallest(), position.hosts.count());
    let owner = |local| [position.hosts.rank(position.host, local), local * cuts];
    let mut plan = Plan {
        neighbours: position.neighbours(),
        owners: runs(position.others(shares).map(owner)),
        own: (position.local < shares).then_some(position.local * cuts),
        names: Names::new(),
        position,
    };
    let mut b = Builder::new(params.rank, params.ranks, shares * cuts);
    plan.fold_for_others(&mut b);
    plan.fold_own_cut(&mut b);
    plan.hand_out(&mut b);
    b.finish()
}

impl Plan<'_> {
    /// Folds this host's contributions to the cuts that other hosts complete, and sends the sums to
    /// those hosts.
    fn fold_for_others(&mut self, b: &mut Builder) {
        let position = self.position;
        position.each_remote(b, false, |b, remote| {
            let cut = |share: Affine| remote.renumbered(share.plus(remote.host.into()));
            each(b, &self.owners, |b, [peer, share]| b.send(peer, input(cut(share))));
            if let Some(own) = self.own {
                let mine = input(cut(Affine::constant(own)));
                let terms = self.contributions(b, mine);
                let sum = self.names.sum(mine);
                b.reduce(sum, &terms);
                let counterpart = position.hosts.rank(remote.host, position.local);
                b.send(remote.shifted(Affine::constant(counterpart)), sum);
            }
        });
    }

    /// Completes the cut of this host, and sends the result to the other hosts and inside this one.
    fn fold_own_cut(&mut self, b: &mut Builder) {
        let position = self.position;
        let cut = |share: Affine| share.plus(position.host.into());
        each(b, &self.owners, |b, [peer, share]| b.send(peer, input(cut(share))));
        if let Some(own) = self.own {
            let (mine, result) = (input(own + position.host), output(own + position.host));
            let mut terms = self.contributions(b, mine);
            let remote = (1..position.hosts.count())
                .map(|far| (position.host + far) % position.hosts.count());
            let column = runs(remote.map(|host| [position.hosts.rank(host, position.local)]));
            self.names.receive(b, &column, mine, &mut terms);
            b.reduce_last(result, &terms);
            each(b, &column, |b, [peer]| b.send(peer, result));
            each(b, &self.neighbours, |b, [peer, _]| b.send(peer, result));
        }
        each(b, &self.owners, |b, [peer, share]| b.recv(peer, output(cut(share))));
    }

    /// Receives the other cuts from the hosts that completed them, and forwards them inside the
    /// host.
    fn hand_out(&self, b: &mut Builder) {
        let position = self.position;
        position.each_remote(b, true, |b, remote| {
            let cut = |share: Affine| remote.renumbered(share.plus(remote.host.into()));
            if let Some(own) = self.own {
                let result = output(cut(Affine::constant(own)));
                let counterpart = position.hosts.rank(remote.host, position.local);
                b.recv(remote.shifted(Affine::constant(counterpart)), result);
                each(b, &self.neighbours, |b, [peer, _]| b.send(peer, result));
            }
            each(b, &self.owners, |b, [peer, share]| b.recv(peer, output(cut(share))));
        });
    }

    /// Receives the contributions of this host's other ranks to a cut. Returns all terms, this
    /// rank's own first.
    fn contributions(&mut self, b: &mut Builder, mine: Slice) -> Vec<Terms> {
        let mut terms = vec![mine.into()];
        self.names.receive(b, &self.neighbours, mine, &mut terms);
        terms
    }
}
