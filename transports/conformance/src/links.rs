//! The message links of [`ccl_core::admission`] over a transport's lanes.

use ccl_core::admission::{AdmissionError, Config, Directory, MessageLinks};
use ccl_core::execution::Link;

use crate::pair::{SECRET, join};
use crate::{Fixture, Outcome, PASSED, Point, Verdict, ensure, failed};

pub(crate) const POINTS: &[Point] = &[
    Point { name: "message links carry everything once, in order", check: carry },
    Point { name: "message links connect when they are first asked for", check: on_demand },
    Point { name: "message links name the rank that is lost", check: lost },
];

const CONFIG: Config = Config {
    channels: 3,
    slots: 3,
    slots_min: 1,
    slot_bytes: 200,
    budget_bytes: 100_000,
    lend_bytes_min: 0,
};

/// Links of ranks 0 and 1, which are not connected.
fn apart(fixture: &dyn Fixture) -> Result<[MessageLinks; 2], String> {
    let mut all = Vec::new();
    for side in [0, 1] {
        let device = fixture.device(side);
        let lane = fixture.wrap(side, device.lane().map_err(failed("making a lane"))?);
        let links = MessageLinks::new(device, lane, CONFIG, 1);
        all.push(links.map_err(failed("making links"))?);
    }
    all.try_into().map_err(|_| "there are not two sides".to_owned())
}

/// Links between ranks 0 and 1.
fn pair(fixture: &dyn Fixture) -> Result<[MessageLinks; 2], String> {
    let mut all = apart(fixture)?;
    let [accepted, connected] = join(fixture, b"links")?;
    let first = all[0].attach(1, accepted).map_err(failed("attaching"))?;
    let second = all[1].attach(0, connected).map_err(failed("attaching"))?;
    all[0].import(1, &second).map_err(failed("importing"))?;
    all[1].import(0, &first).map_err(failed("importing"))?;
    Ok(all)
}

/// Length and tag of message `number` of a channel.
fn message(number: u64, channel: u32) -> (usize, u64) {
    let length = number as usize * 37 % (CONFIG.slot_bytes + 1);
    (length, number << 8 | u64::from(channel))
}

fn carry(fixture: &dyn Fixture) -> Outcome {
    carry_over(fixture, pair(fixture)?)
}

/// The side that dials comes much later, and then the other way round.
fn on_demand(fixture: &dyn Fixture) -> Outcome {
    if fixture.device(0).caps().mapped {
        return Ok(Verdict::Skipped("memory is mapped, which links by messages do without"));
    }
    for late in [0, 1] {
        let mut all = apart(fixture)?;
        let listen = |side| fixture.device(side).listen(&SECRET).map_err(failed("listening"));
        let listeners = [listen(0)?, listen(1)?];
        let addresses = [0, 1].map(|side: usize| Some(listeners[side].address()));
        for (own, (links, listener)) in all.iter_mut().zip(listeners).enumerate() {
            let mut addresses = addresses.to_vec();
            addresses[own] = None;
            let (own, within) = (own as u32, fixture.patience());
            links.meet(listener, Directory { own, addresses, secret: SECRET, within });
        }
        let early = 1 - late;
        let link = Link { peer: late as u32, channel: 0 };
        for _ in 0..50 {
            all[late].poll(fixture.now()).map_err(failed("polling"))?;
            fixture.idle();
        }
        ensure!(!all[early].joins(link.peer), "connected before anybody asked");
        for _ in 0..50 {
            ensure!(!all[early].writable(link), "there is room where nobody has come");
            all[early].poll(fixture.now()).map_err(failed("polling"))?;
            fixture.idle();
        }
        carry_over(fixture, all)?;
    }
    PASSED
}

fn carry_over(fixture: &dyn Fixture, mut all: [MessageLinks; 2]) -> Outcome {
    const MESSAGES: u64 = 200;
    let mut sent = [[0u64; CONFIG.channels as usize]; 2];
    let mut taken = sent;
    let end = fixture.now() + fixture.patience();
    while taken.iter().flatten().any(|&taken| taken < MESSAGES) {
        ensure!(fixture.now() < end, "sent {sent:?}, taken {taken:?}");
        for (side, links) in all.iter_mut().enumerate() {
            links.poll(fixture.now()).map_err(failed("polling"))?;
            for channel in 0..CONFIG.channels {
                let link = Link { peer: 1 - side as u32, channel };
                let (sent, taken) =
                    (&mut sent[side][channel as usize], &mut taken[side][channel as usize]);
                while *sent < MESSAGES && links.writable(link) {
                    let (bytes, tag) = message(*sent, channel);
                    links.publish(link, bytes, tag);
                    *sent += 1;
                }
                while links.readable(link) {
                    let head = links.head(link);
                    ensure!(head == message(*taken, channel), "message {taken} is {head:?}");
                    links.release(link);
                    *taken += 1;
                }
            }
            links.flush(fixture.now()).map_err(failed("flushing"))?;
        }
        fixture.idle();
    }
    let refused: u64 = all.iter().map(|links| links.counters().refused).sum();
    ensure!(refused == 0, "{refused} were refused");
    PASSED
}

fn lost(fixture: &dyn Fixture) -> Outcome {
    let [mut survivor, other] = pair(fixture)?;
    fixture.kill(1);
    drop(other);
    let end = fixture.now() + fixture.patience();
    while fixture.now() < end {
        survivor.poll(fixture.now()).map_err(failed("polling"))?;
        if survivor.lost(1).is_some() {
            let named = matches!(survivor.check_all(), Err(AdmissionError::Lost { rank: 1, .. }));
            ensure!(named, "the lost rank is not named");
            return PASSED;
        }
        fixture.idle();
    }
    Err("nothing is told".to_owned())
}
