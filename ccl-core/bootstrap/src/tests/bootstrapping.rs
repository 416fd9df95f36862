//! Tests of the whole bootstrap: ranks are let in, get the roster, link up, and exchange.

use super::net::Net;
use super::{at, hello, secret};
use crate::*;
use ccl_core::types::Rank;
use std::sync::Arc;

/// Lets all ranks in. Returns rank 0's roster, the referral of each other rank, and the number of
/// bytes that rank 0 sent.
fn let_in(ranks: u32) -> (Roster, Vec<Referral>, usize) {
    let mut root = RootJoin::new(secret(), hello(0, ranks), JoinLimits::default(), at(0));
    let join = |rank| MemberJoin::new(secret(), hello(rank, ranks), [rank as u8; 32]);
    let mut members: Vec<MemberJoin> = (1..ranks).map(join).collect();
    let mut sent = 0;
    // The connection of each rank has the rank as its number.
    for rank in 1..ranks {
        root.accepted(rank.into(), [3; 32], at(0));
        for _ in 0..3 {
            root.received(rank.into(), &members[rank as usize - 1].take_outbox());
            while let Some(RootAction::Send(to, bytes)) = root.next_action() {
                sent += bytes.len();
                members[to as usize - 1].received(&mut &bytes[..]);
            }
        }
    }
    let referred = |member: &MemberJoin| match member.outcome() {
        Some(Ok(Reply::Referred(referral))) => referral.clone(),
        other => panic!("{other:?}"),
    };
    let roster = root.outcome().unwrap().clone().unwrap();
    (roster, members.iter().map(referred).collect(), sent)
}

/// Asks a rank for the list of members. Returns the members, if the rank sends them, and the number
/// of bytes that the rank has sent.
fn ask(elder: &mut Control, ranks: u32) -> (Option<Vec<Member>>, usize) {
    let mut caller = MemberJoin::fetch(secret(), ranks, [6; 32]);
    let connection = elder.accepted([7; 32], at(0));
    let mut told = 0;
    for _ in 0..4 {
        elder.received(connection, &caller.take_outbox(), at(0));
        let bytes = elder.outbox(connection).to_vec();
        elder.sent(connection, bytes.len());
        told += bytes.len();
        caller.received(&mut &bytes[..]);
    }
    if elder.is_over(connection) && caller.outcome().is_none() {
        caller.closed();
    }
    match caller.outcome() {
        Some(Ok(Reply::Members(members))) => (Some(members.clone()), told),
        _ => (None, told),
    }
}

fn control(rank: Rank, ranks: u32, roster: &Roster) -> (Control, Arc<Completed>) {
    let completed = Arc::new(Completed::default());
    let timing = ControlTiming::default();
    let mut control = Control::new(rank, ranks, secret(), timing, completed.clone(), at(0));
    control.set_roster(roster);
    (control, completed)
}

#[test]
fn any_number_of_ranks_joins_and_links_up_and_exchanges() {
    let full = std::env::var_os("FERROCCL_TEST_FULL").is_some();
    let many: &[u32] = if full { &[1024, 5000] } else { &[] };
    for &ranks in [1, 2, 3, 4, 5, 17, 64, 200].iter().chain(many) {
        let (roster, referrals, sent) = let_in(ranks);
        let mut controls = vec![control(0, ranks, &roster)];
        let mut told = vec![0; ranks as usize];
        for (rank, referral) in (1..).zip(&referrals) {
            let parent = referral.elders[0].0;
            // An elder (a rank that rank 0's referral names) has the roster before the ranks that
            // ask it.
            assert!(parent < rank);
            let (members, bytes) = ask(&mut controls[parent as usize].0, ranks);
            told[parent as usize] += bytes;
            let roster = Roster { session: referral.session, members: members.unwrap() };
            controls.push(control(rank, ranks, &roster));
        }
        // No rank, rank 0 included, sends more rosters than the logarithm of the number of ranks.
        let steps = (u32::BITS - ranks.leading_zeros()) as usize;
        let one = 200 + 40 * ranks as usize;
        assert!(
            told.iter().all(|bytes| *bytes <= steps * one),
            "one of {ranks} ranks sent too many bytes: {told:?}"
        );
        assert!(sent <= ranks as usize * (200 + 22 * steps), "rank 0 of {ranks} sent {sent} bytes");
        if ranks > 1024 {
            continue;
        }
        let mut net = Net::of(controls, ranks.into());
        net.run_for(300);
        assert!(net.nodes.iter().all(|node| node.control.unlinked().is_empty()));
        for rank in 0..ranks {
            net.nodes[rank as usize].control.contribute(vec![rank as u8]).unwrap();
            net.pump(rank);
        }
        net.run_for(200);
        for node in &mut net.nodes {
            let parts = node.control.gathered(0).unwrap().unwrap();
            assert!(parts.iter().zip(0u32..).all(|(part, rank)| *part == [rank as u8]));
        }
    }
}

#[test]
fn a_rank_without_a_roster_sends_no_roster_but_the_next_elder_does() {
    let (roster, _, _) = let_in(4);
    let completed = Arc::new(Completed::default());
    let mut without = Control::new(2, 4, secret(), ControlTiming::default(), completed, at(0));
    assert_eq!(ask(&mut without, 4).0, None);
    assert_eq!(without.strays().malformed, 1);
    let (mut with, _) = control(0, 4, &roster);
    assert_eq!(ask(&mut with, 4).0, Some(roster.members));
    assert_eq!(ask(&mut with, 3).0, None, "a caller that expects 3 ranks accepted 4");
}
