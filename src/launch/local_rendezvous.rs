//! Rendezvous of the ranks of one host, for launchers that pass no data between ranks. Rank 0
//! listens at an abstract Unix socket named after the job, and sends the unique id only to
//! processes of its own user. Nothing is left in the file system.

use super::LaunchError;
use crate::bootstrap::UniqueId;
use crate::bootstrap::socket::{self, Deadline};
use rustix::event::PollFlags;
use rustix::net::sockopt::socket_peercred;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Largest length of the unique id as text: more than any unique id needs, and far less than a Unix
/// socket buffers, so that writing the text never blocks.
const TEXT_BYTES_MAX: u64 = 4096;

/// Rank 0's side of the rendezvous. Dropping it ends the rendezvous.
pub(super) struct LocalRendezvous {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for LocalRendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalRendezvous")
    }
}

impl LocalRendezvous {
    pub(super) fn open(name: &str, id: &UniqueId) -> Result<LocalRendezvous, LaunchError> {
        let fail = |text: String| LaunchError::LocalRendezvous { name: name.to_owned(), text };
        let listener = SocketAddr::from_abstract_name(name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        let listener = listener.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => fail("another process already listens there".to_owned()),
            _ => fail(error.to_string()),
        })?;
        let (ended, text) = (Arc::new(AtomicBool::new(false)), id.to_secret_string());
        let stop = ended.clone();
        let thread = std::thread::Builder::new()
            .name("ferroccl-join".to_owned())
            .spawn(move || serve(&listener, &text, &stop))
            .map_err(|error| fail(error.to_string()))?;
        Ok(LocalRendezvous { ended, thread: Some(thread) })
    }
}

impl Drop for LocalRendezvous {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread checks `ended` every 50 ms.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, text: &str, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        socket::is_ready(listener.as_fd(), PollFlags::IN, Duration::from_millis(50));
        match listener.accept() {
            Ok((mut stream, _)) if is_own_user(&stream) => {
                // A fresh socket buffers all of the text. The write fails only if the peer has hung
                // up.
                let _ = stream.write_all(text.as_bytes());
            }
            Ok(_) => tracing::warn!("another user's process asked for the unique id; refused"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn is_own_user(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Asks rank 0 for the unique id until rank 0 answers or the deadline passes. All ranks except rank
/// 0 call this function.
pub(super) fn ask(name: &str, deadline: Deadline) -> Result<UniqueId, LaunchError> {
    let fail = |text: String| LaunchError::LocalRendezvous { name: name.to_owned(), text };
    let address = SocketAddr::from_abstract_name(name).map_err(|error| fail(error.to_string()))?;
    loop {
        match UnixStream::connect_addr(&address) {
            Ok(stream) if is_own_user(&stream) => match read_answer(stream, deadline) {
                Ok(text) => {
                    return text
                        .parse()
                        .map_err(|e| fail(format!("rank 0's answer cannot be used: {e}")));
                }
                // Perhaps the listener belonged to the launcher's previous job step and has just
                // closed, so the loop tries again.
                Err(error) if deadline.is_past() => return Err(fail(error.to_string())),
                Err(_) => {}
            },
            Ok(_) => return Err(fail("a process of another user listens there".to_owned())),
            Err(error) if deadline.is_past() => {
                let waited_ms = deadline.waited_ms();
                return Err(fail(format!("rank 0 did not listen within {waited_ms} ms ({error})")));
            }
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn read_answer(stream: UnixStream, deadline: Deadline) -> std::io::Result<String> {
    stream.set_read_timeout(Some(deadline.left().max(Duration::from_millis(1))))?;
    let mut text = String::new();
    stream.take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
    if text.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{Endpoint, Secret};

    fn name(case: &str) -> String {
        format!("ferroccl-test-{}-{case}", std::process::id())
    }

    #[test]
    fn ranks_of_one_user_get_the_unique_id_in_any_order_of_arrival() {
        let name = name("told");
        let endpoints = vec![Endpoint::new("127.0.0.1", 7)];
        let id = UniqueId { endpoints, secret: Secret::from_bytes([1; 32]) };
        let asked = name.clone();
        let early = std::thread::spawn(move || {
            ask(&asked, Deadline::after(Duration::from_secs(5))).unwrap()
        });
        std::thread::sleep(Duration::from_millis(50));
        let server = LocalRendezvous::open(&name, &id).unwrap();
        let late = ask(&name, Deadline::after(Duration::from_secs(5))).unwrap();
        for told in [early.join().unwrap(), late] {
            assert_eq!(told.to_secret_string(), id.to_secret_string());
        }
        let second = LocalRendezvous::open(&name, &id).unwrap_err().to_string();
        assert!(second.contains("already listens"), "{second}");
        drop(server);
        // If another test forks a child meanwhile, the child holds the socket, too, until it calls
        // exec.
        let patience = Deadline::after(Duration::from_secs(10));
        while let Err(error) = LocalRendezvous::open(&name, &id) {
            assert!(!patience.left().is_zero(), "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn waiting_for_a_rank_0_that_never_listens_ends_at_the_deadline() {
        let error = ask(&name("never"), Deadline::after(Duration::from_millis(100)));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("rank 0 did not listen") && error.contains("FERROCCL_COMM_ID"));
    }
}
