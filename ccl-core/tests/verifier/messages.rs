//! Grouped sends and receives: a group is correct if its messages pair up, whatever their order on
//! each rank.

use ccl_core::algorithm::{SendRecvError, send_recv};
use ccl_core::schedule::RankSchedule;
use ccl_core::types::Collective;
use ccl_core::verify::{Case, Counts, check};

use crate::full;
use crate::mutants::Dice;

type Lists = Vec<Vec<(u32, usize)>>;

/// Returns the sends and receives of random messages. Some messages share a link, and some go to
/// their own sender. The receives of a rank name their senders in random order.
fn group(ranks: u32, dice: &mut Dice) -> (Lists, Lists) {
    let (mut sends, mut recvs) =
        (vec![Vec::new(); ranks as usize], vec![Vec::new(); ranks as usize]);
    let mut order: Vec<Vec<u32>> = vec![Vec::new(); ranks as usize];
    for _ in 0..dice.below(4 * ranks as usize) {
        let (from, to) = (dice.below(ranks as usize), dice.below(ranks as usize));
        sends[from].push((to as u32, [0, 1, 2, 7, 31][dice.below(5)]));
        let at = dice.below(order[to].len() + 1);
        order[to].insert(at, from as u32);
    }
    for (to, froms) in order.iter().enumerate() {
        let mut seen = vec![0; ranks as usize];
        for &from in froms {
            let mut of_from = sends[from as usize].iter().filter(|(peer, _)| *peer as usize == to);
            let message = of_from.nth(seen[from as usize]);
            recvs[to].extend(message.map(|(_, count)| (from, *count)));
            seen[from as usize] += 1;
        }
    }
    (sends, recvs)
}

fn schedules(sends: &Lists, recvs: &Lists) -> Result<Vec<RankSchedule>, SendRecvError> {
    let peers = |list: &Vec<(u32, usize)>| list.iter().map(|(peer, _)| *peer).collect::<Vec<_>>();
    let ranks = sends.len() as u32;
    let one = |rank: u32| {
        let (sends, recvs) = (peers(&sends[rank as usize]), peers(&recvs[rank as usize]));
        send_recv(rank, ranks, &sends, &recvs)
    };
    (0..ranks).map(one).collect()
}

#[test]
fn groups_of_messages_arrive() {
    let mut dice = Dice(7);
    let rounds = if full() { 20_000 } else { 1_000 };
    let mut messages = 0;
    for round in 0..rounds {
        let ranks = 1 + round % 9;
        let (sends, recvs) = group(ranks, &mut dice);
        let schedules = schedules(&sends, &recvs).unwrap();
        let counts = Counts::Messages { sends, recvs };
        for (slots, channels, slot_bytes) in [(1, 1, 4), (1, 2, 12), (2, 1, 1024), (3, 2, 40)] {
            let case = Case {
                slots,
                channels,
                slot_bytes,
                gap: round as usize % 3,
                ..Case::new(Collective::SendRecv, 0, counts.clone())
            };
            match check(&case, &schedules) {
                Ok(report) => messages += report.messages,
                Err(violation) => panic!("round {round}: {violation}\n    replay: {case:?}"),
            }
        }
    }
    assert!(messages > 0);
}
