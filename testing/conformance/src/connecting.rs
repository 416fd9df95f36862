//! Connecting: peers that are accepted, peers that are refused, and deadlines. A connecting peer
//! sends a hello: at most [`HELLO_BYTES_MAX`] bytes that identify the peer to the listener.

use std::any::Any;
use std::time::Duration;

use ccl_core::transport::{
    Address, Connected, Connecting, HELLO_BYTES_MAX, Inner, Listener, Secret, TransportError,
};

use crate::pair::{SECRET, join, meet};
use crate::{Fixture, Outcome, PASSED, Point, Verdict, ensure, failed};

pub(crate) const POINTS: &[Point] = &[
    Point { name: "a hello of 0 to 64 bytes arrives whole", check: hello },
    Point { name: "a hello that is too long is refused", check: long_hello },
    Point {
        name: "a wrong secret is refused and counted; good peers connect",
        check: wrong_secret,
    },
    Point { name: "strangers are dropped and counted; good peers connect", check: strangers },
    Point { name: "connecting ends at its deadline", check: deadline },
    Point { name: "connecting to a closed listener ends with an error", check: nobody },
    Point { name: "bytes that are no address are refused", check: bad_address },
    Point {
        name: "a lane does not attach a connection of another transport",
        check: foreign_connection,
    },
    Point { name: "one listener accepts several waiting peers", check: queue },
];

fn hello(fixture: &dyn Fixture) -> Outcome {
    for bytes in [0, 1, 17, 64] {
        let hello: Vec<u8> = (0..bytes).map(|at| at as u8 ^ 0xa5).collect();
        let [accepted, connected] = join(fixture, &hello)?;
        ensure!(accepted.hello == hello, "a hello of {bytes} bytes came as {:?}", accepted.hello);
        ensure!(connected.hello.is_empty(), "the connecting side got a hello that nobody sent");
    }
    PASSED
}

fn long_hello(fixture: &dyn Fixture) -> Outcome {
    ensure!(join(fixture, &[1; HELLO_BYTES_MAX + 1]).is_err(), "a hello that is too long was sent");
    PASSED
}

/// Polls both sides until `connecting` ends, and returns its result. Fails if the listener accepts
/// a peer.
fn outcome(
    fixture: &dyn Fixture,
    listener: &mut dyn Listener,
    connecting: &mut dyn Connecting,
) -> Result<Result<Connected, TransportError>, String> {
    let end = fixture.now() + fixture.patience();
    while fixture.now() < end {
        let accepted = listener.poll(fixture.now()).map_err(failed("listening"))?;
        ensure!(accepted.is_none(), "a peer with a wrong secret was accepted");
        match connecting.poll(fixture.now()) {
            Ok(Some(connected)) => return Ok(Ok(connected)),
            Ok(None) => fixture.idle(),
            Err(error) => return Ok(Err(error)),
        }
    }
    Err("connecting does not end".to_owned())
}

/// Checks that a good peer is still accepted.
fn still_open(fixture: &dyn Fixture, listener: &mut dyn Listener) -> Result<(), String> {
    let deadline = fixture.now() + fixture.patience();
    let device = fixture.device(1);
    let connecting = device.connect(&listener.address(), &SECRET, b"good", deadline);
    let [accepted, _] = meet(fixture, listener, &mut *connecting.map_err(failed("connecting"))?)?;
    ensure!(accepted.hello == b"good", "another hello arrived: {:?}", accepted.hello);
    Ok(())
}

fn wrong_secret(fixture: &dyn Fixture) -> Outcome {
    let mut listener = fixture.device(0).listen(&SECRET).map_err(failed("listening"))?;
    let mut other = SECRET;
    other.0[31] ^= 1;
    for secret in [Secret([0; 32]), other] {
        let before = listener.rejected();
        let deadline = fixture.now() + fixture.patience() / 2;
        let connecting = fixture.device(1).connect(&listener.address(), &secret, b"bad", deadline);
        let mut connecting = connecting.map_err(failed("connecting"))?;
        match outcome(fixture, &mut *listener, &mut *connecting)? {
            Ok(_) => return Err("a wrong secret made a connection".to_owned()),
            Err(TransportError::Deadline { .. }) => {
                return Err("the refused side noticed nothing until its deadline".to_owned());
            }
            Err(_) => {}
        }
        ensure!(listener.rejected() > before, "the refusal is not counted: still {before}");
    }
    still_open(fixture, &mut *listener)?;
    PASSED
}

fn strangers(fixture: &dyn Fixture) -> Outcome {
    let mut listener = fixture.device(0).listen(&SECRET).map_err(failed("listening"))?;
    let texts: [&[u8]; 4] = [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 5000]];
    for (number, bytes) in texts.into_iter().enumerate() {
        if !fixture.stranger(&listener.address(), bytes) {
            return Ok(Verdict::Skipped("strangers cannot reach this transport's listeners"));
        }
        let end = fixture.now() + fixture.patience();
        while listener.rejected() <= number as u64 {
            let accepted = listener.poll(fixture.now()).map_err(failed("listening"))?;
            ensure!(accepted.is_none(), "a stranger was accepted");
            ensure!(fixture.now() < end, "stranger {number} was not dropped in time");
            fixture.idle();
        }
    }
    still_open(fixture, &mut *listener)?;
    PASSED
}

fn deadline(fixture: &dyn Fixture) -> Outcome {
    // The listener exists, but is never polled.
    let listener = fixture.device(0).listen(&SECRET).map_err(failed("listening"))?;
    let deadline = fixture.now() + Duration::from_millis(50);
    let connecting = fixture.device(1).connect(&listener.address(), &SECRET, b"", deadline);
    let mut connecting = connecting.map_err(failed("connecting"))?;
    let end = fixture.now() + fixture.patience();
    loop {
        let now = fixture.now();
        match connecting.poll(now) {
            Ok(None) => ensure!(now < end, "connecting never ends"),
            Ok(Some(_)) => return Err("an unpolled listener accepted a peer".to_owned()),
            Err(TransportError::Deadline { .. }) if now >= deadline => return PASSED,
            Err(error) => return Err(format!("at {now:?}, deadline {deadline:?}: {error}")),
        }
        fixture.idle();
    }
}

fn nobody(fixture: &dyn Fixture) -> Outcome {
    let listener = fixture.device(0).listen(&SECRET).map_err(failed("listening"))?;
    let address = listener.address();
    drop(listener);
    let deadline = fixture.now() + Duration::from_millis(200);
    let Ok(mut connecting) = fixture.device(1).connect(&address, &SECRET, b"", deadline) else {
        return PASSED;
    };
    let end = fixture.now() + fixture.patience();
    while fixture.now() < end {
        match connecting.poll(fixture.now()) {
            Ok(Some(_)) => return Err("a closed listener accepted a peer".to_owned()),
            Ok(None) => fixture.idle(),
            Err(_) => return PASSED,
        }
    }
    Err("connecting never ends".to_owned())
}

fn bad_address(fixture: &dyn Fixture) -> Outcome {
    for address in [&b""[..], b"?", &[0xff; 300]] {
        let deadline = fixture.now() + Duration::from_millis(50);
        let address = Address(address.to_vec());
        let connecting = fixture.device(1).connect(&address, &SECRET, b"", deadline);
        ensure!(connecting.is_err(), "{} bytes were taken for an address", address.0.len());
    }
    PASSED
}

#[derive(Debug)]
struct Foreign;

impl Inner for Foreign {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn foreign_connection(fixture: &dyn Fixture) -> Outcome {
    let lane = fixture.device(0).lane().map_err(failed("making a lane"))?;
    let connected = Connected { hello: Vec::new(), inner: Box::new(Foreign) };
    ensure!(
        fixture.wrap(0, lane).attach(connected).is_err(),
        "a connection of another transport was attached"
    );
    PASSED
}

fn queue(fixture: &dyn Fixture) -> Outcome {
    const PEERS: u8 = 5;
    let mut listener = fixture.device(0).listen(&SECRET).map_err(failed("listening"))?;
    let deadline = fixture.now() + fixture.patience();
    let mut connecting = Vec::new();
    for peer in 0..PEERS {
        let device = fixture.device(1);
        let one = device.connect(&listener.address(), &SECRET, &[peer], deadline);
        connecting.push(one.map_err(failed("connecting"))?);
    }
    let (mut hellos, mut accepted, mut connected) = (Vec::new(), Vec::new(), Vec::new());
    while accepted.len() < PEERS.into() || connected.len() < PEERS.into() {
        let now = fixture.now();
        ensure!(now < deadline, "{} accepted, {} connected", accepted.len(), connected.len());
        if let Some(one) = listener.poll(now).map_err(failed("listening"))? {
            hellos.extend_from_slice(&one.hello);
            accepted.push(one);
        }
        let mut open = Vec::new();
        for mut one in connecting.drain(..) {
            match one.poll(now).map_err(failed("connecting"))? {
                Some(one) => connected.push(one),
                None => open.push(one),
            }
        }
        connecting = open;
        fixture.idle();
    }
    hellos.sort_unstable();
    ensure!(hellos == (0..PEERS).collect::<Vec<u8>>(), "the hellos are {hellos:?}");
    PASSED
}
