//! A client of the key-value store that torchrun's agent serves (c10d's TCPStore): the part of its
//! wire protocol that sets one key and waits for it.
//!
//! All integers are little endian, as on every host that runs the store; strings and values have an
//! eight-byte length in front. In the dialect of PyTorch 2.1 and later, a connection begins with a
//! validation, which is command 0, and `SET` is command 1. Older stores know no validation, and
//! `SET` is command 0. No message names the dialect, but an older store answers `GETNUMKEYS` on a
//! connection without a validation. A recent store closes such a connection or, if it is a libuv
//! server, never answers on it. Agents with a libuv server set `TORCH_NCCL_ASYNC_ERROR_HANDLING`.
//! If that variable is set, `is_recent` is true, and the recent dialect is tried first.

use super::service::ServiceError;
use super::stream::LauncherStream;
use crate::bootstrap::Endpoint;
use crate::bootstrap::socket::Deadline;
use std::time::Duration;

const VALIDATION: u32 = 0x3C85_F7CE;
const VALUE_BYTES_MAX: u64 = 64 << 10;
/// Longest time that a store may take to answer the first question.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// Address of a store, and the key under which the ranks of this job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoreAddress {
    pub(super) address: Endpoint,
    pub(super) key: String,
    /// True if the store is known to speak the dialect of PyTorch 2.1 and later.
    pub(super) is_recent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Recent,
    Old,
}

#[derive(Clone, Copy)]
enum Command {
    Set = 0,
    Get = 2,
    Wait = 5,
    KeyCount = 6,
}

impl Dialect {
    fn code(self, command: Command) -> u8 {
        command as u8 + u8::from(self == Dialect::Recent)
    }
}

/// A connection to a store.
pub(super) struct Store {
    stream: LauncherStream,
    dialect: Dialect,
}

impl Store {
    pub(super) fn connect(at: &StoreAddress, deadline: Deadline) -> Result<Store, ServiceError> {
        let (first, second) = match at.is_recent {
            true => (Dialect::Recent, Dialect::Old),
            false => (Dialect::Old, Dialect::Recent),
        };
        Store::open(at, first, deadline).or_else(|_| Store::open(at, second, deadline))
    }

    /// Connects in one dialect and checks whether the store understands it.
    fn open(
        at: &StoreAddress,
        dialect: Dialect,
        deadline: Deadline,
    ) -> Result<Store, ServiceError> {
        let mut stream = LauncherStream::connect(&at.address, deadline)?;
        stream.set_deadline(Deadline::after(deadline.left().min(FIRST_ANSWER)));
        let mut store = Store::greet(stream, dialect)?;
        store.stream.set_deadline(deadline);
        Ok(store)
    }

    pub(super) fn greet(stream: LauncherStream, dialect: Dialect) -> Result<Store, ServiceError> {
        let mut store = Store { stream, dialect };
        let mut question = Vec::new();
        if dialect == Dialect::Recent {
            question.push(0);
            question.extend(VALIDATION.to_le_bytes());
        }
        question.push(dialect.code(Command::KeyCount));
        store.stream.write(&question)?;
        let keys = i64::from_le_bytes(store.array()?);
        // Another service's greeting, read as a number, is far outside of this range.
        if !(0..1 << 32).contains(&keys) {
            return Err(ServiceError::NoStore { keys });
        }
        Ok(store)
    }

    pub(super) fn set(&mut self, key: &str, value: &[u8]) -> Result<(), ServiceError> {
        let mut bytes = vec![self.dialect.code(Command::Set)];
        append(&mut bytes, key.as_bytes());
        append(&mut bytes, value);
        self.stream.write(&bytes)?;
        // The store does not answer `SET`, but answers the next command once the key is set.
        self.stream.write(&[self.dialect.code(Command::KeyCount)])?;
        self.array::<8>().map(|_| ())
    }

    /// Waits until a rank has set `key`, and returns its value.
    pub(super) fn wait_for(&mut self, key: &str) -> Result<Vec<u8>, ServiceError> {
        let mut bytes = vec![self.dialect.code(Command::Wait)];
        bytes.extend(1u64.to_le_bytes());
        append(&mut bytes, key.as_bytes());
        self.stream.write(&bytes)?;
        let [answer] = self.array()?;
        if answer != 0 {
            return Err(ServiceError::StoppedWaiting { key: key.to_owned(), code: answer });
        }
        let mut bytes = vec![self.dialect.code(Command::Get)];
        append(&mut bytes, key.as_bytes());
        self.stream.write(&bytes)?;
        let length = u64::from_le_bytes(self.array()?);
        if length > VALUE_BYTES_MAX {
            return Err(ServiceError::Foreign { key: key.to_owned(), bytes: length });
        }
        // The check above bounds the length, so that it fits any usize.
        let mut value = vec![0; length as usize];
        self.stream.read_exact(&mut value)?;
        Ok(value)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ServiceError> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn append(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Condvar, Mutex};

    type Keys = Arc<(Mutex<HashMap<Vec<u8>, Vec<u8>>>, Condvar)>;

    /// Starts a store that serves one dialect and hangs up on other commands.
    pub(in crate::launch) fn serve(dialect: Dialect) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let keys = Keys::default();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let keys = keys.clone();
                std::thread::spawn(move || converse(stream.unwrap(), dialect, &keys));
            }
        });
        Endpoint::new("127.0.0.1", port)
    }

    fn converse(mut stream: TcpStream, dialect: Dialect, keys: &Keys) -> Option<()> {
        let number = |mut stream: &TcpStream| {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
        };
        let text = |mut stream: &TcpStream| {
            let mut bytes = vec![0; usize::try_from(number(stream)?).ok()?];
            stream.read_exact(&mut bytes).ok().map(|()| bytes)
        };
        let mut byte = [0];
        let mut base = 0;
        if dialect == Dialect::Recent {
            let mut start = [0; 5];
            stream.read_exact(&mut start[..1]).ok()?;
            if start[0] != 0 {
                return None;
            }
            stream.read_exact(&mut start[1..]).ok()?;
            assert_eq!(start, [0, 0xce, 0xf7, 0x85, 0x3c]);
            base = 1;
        }
        let (map, changed) = &**keys;
        loop {
            stream.read_exact(&mut byte).ok()?;
            match byte[0] - base {
                0 => {
                    let (key, value) = (text(&stream)?, text(&stream)?);
                    map.lock().unwrap().insert(key, value);
                    changed.notify_all();
                }
                2 => {
                    let value = map.lock().unwrap()[&text(&stream)?].clone();
                    stream.write_all(&(value.len() as u64).to_le_bytes()).ok()?;
                    stream.write_all(&value).ok()?;
                }
                5 => {
                    assert_eq!(number(&stream), Some(1));
                    let key = text(&stream)?;
                    let map = map.lock().unwrap();
                    let soon = std::time::Duration::from_secs(60);
                    let waited = changed.wait_timeout_while(map, soon, |m| !m.contains_key(&key));
                    drop(waited.unwrap());
                    stream.write_all(&[0]).ok()?;
                }
                6 => {
                    let count = map.lock().unwrap().len() as u64;
                    stream.write_all(&count.to_le_bytes()).ok()?;
                }
                other => panic!("the test's store does not know command {other}"),
            }
        }
    }

    fn at(address: &Endpoint, is_recent: bool) -> StoreAddress {
        StoreAddress { address: address.clone(), key: "k".to_owned(), is_recent }
    }

    #[test]
    fn both_dialects_are_detected_and_spoken() {
        let soon = || Deadline::after(Duration::from_secs(10));
        for (dialect, is_recent) in
            [(Dialect::Old, false), (Dialect::Recent, false), (Dialect::Recent, true)]
        {
            let address = serve(dialect);
            let waiting = at(&address, is_recent);
            let waiter = std::thread::spawn(move || {
                Store::connect(&waiting, soon()).unwrap().wait_for("k").unwrap()
            });
            std::thread::sleep(Duration::from_millis(30));
            let mut store = Store::connect(&at(&address, is_recent), soon()).unwrap();
            assert_eq!(store.dialect, dialect);
            store.set("k", b"value").unwrap();
            assert_eq!(waiter.join().unwrap(), b"value");
        }
    }

    #[test]
    fn waiting_for_a_key_that_nobody_sets_ends_at_the_deadline() {
        let address = serve(Dialect::Old);
        let soon = Deadline::after(Duration::from_secs(10));
        let mut store = Store::connect(&at(&address, false), soon).unwrap();
        store.stream.set_deadline(Deadline::after(Duration::from_millis(200)));
        let error = store.wait_for("k").unwrap_err().to_string();
        assert!(error.to_string().contains("no answer within"), "{error}");
    }

    #[test]
    fn connecting_to_another_service_or_to_a_closed_port_fails() {
        let soon = || Deadline::after(Duration::from_millis(300));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
        let server = std::thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                stream.unwrap().write_all(b"SSH-2.0-\xff\xff\xff\xff\r\n").unwrap();
            }
        });
        assert!(Store::connect(&at(&address, false), soon()).is_err());
        server.join().unwrap();
        // A child that another thread starts meanwhile holds the listener, too, until it calls
        // exec.
        let patience = Deadline::after(Duration::from_secs(10));
        loop {
            let error = Store::connect(&at(&address, false), soon()).err().unwrap();
            if error.to_string().contains("cannot connect") {
                return;
            }
            assert!(!patience.left().is_zero(), "{error}");
        }
    }
}
