//! A client of the PMI-1 wire protocol, which MPICH's, Intel's and Slurm's process managers speak.
//! Commands and answers are lines of `key=value` words. The client waits for each answer before it
//! sends the next command. Rank 0 puts one value into the job's key-value space, all ranks wait at
//! the barrier, and all other ranks get the value.

use super::descriptor::adopt;
use super::service::ServiceError;
use super::stream::LauncherStream;
use crate::bootstrap::Endpoint;
use crate::bootstrap::socket::Deadline;

const LINE_BYTES_MAX: usize = 4096;

/// Address of the process manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PmiAddress {
    /// An inherited socket.
    Inherited {
        /// Descriptor of the socket.
        fd: i32,
        /// True if all ranks are on this host.
        is_local: bool,
    },
    /// A port.
    Port {
        /// Host and port.
        address: Endpoint,
        /// This process's number at the process manager.
        id: u32,
        /// True if all ranks are on this host.
        is_local: bool,
    },
}

impl PmiAddress {
    pub(super) fn is_local(&self) -> bool {
        match self {
            PmiAddress::Inherited { is_local, .. } | PmiAddress::Port { is_local, .. } => *is_local,
        }
    }
}

/// A conversation with the process manager.
pub(super) struct Pmi {
    stream: LauncherStream,
    buffer: Vec<u8>,
    space: String,
    value_bytes_max: usize,
}

impl Pmi {
    pub(super) fn connect(at: &PmiAddress, deadline: Deadline) -> Result<Pmi, ServiceError> {
        match at {
            PmiAddress::Inherited { fd, .. } => {
                let fd = *fd;
                let fd = adopt(fd).map_err(|error| ServiceError::Descriptor { fd, error })?;
                Pmi::start(LauncherStream::new(fd, deadline), None)
            }
            PmiAddress::Port { address, id, .. } => {
                Pmi::start(LauncherStream::connect(address, deadline)?, Some(*id))
            }
        }
    }

    #[cfg(test)]
    fn over(fd: std::os::fd::OwnedFd, deadline: Deadline) -> Result<Pmi, ServiceError> {
        Pmi::start(LauncherStream::new(fd, deadline), None)
    }

    pub(super) fn start(stream: LauncherStream, id: Option<u32>) -> Result<Pmi, ServiceError> {
        let mut pmi = Pmi { stream, buffer: Vec::new(), space: String::new(), value_bytes_max: 0 };
        if let Some(id) = id {
            pmi.ask(&format!("initack pmiid={id}"), "initack")?;
            // The manager sends size, rank and a debug flag unasked. They are skipped: size and
            // rank are known from the environment.
            for _ in 0..3 {
                pmi.answer("set")?;
            }
        }
        pmi.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let maxes = pmi.ask("get_maxes", "maxes")?;
        pmi.value_bytes_max = word(&maxes, "vallen_max")?
            .parse()
            .map_err(|_| ServiceError::Garbled("its vallen_max is no number"))?;
        let named = pmi.ask("get_my_kvsname", "my_kvsname")?;
        pmi.space = word(&named, "kvsname")?.to_owned();
        Ok(pmi)
    }

    /// Puts a value, which the other ranks can get after the next barrier.
    pub(super) fn put(&mut self, key: &str, value: &str) -> Result<(), ServiceError> {
        // Lines consist of words, so a value must contain neither blanks nor line ends.
        if value.len() >= self.value_bytes_max || value.contains(char::is_whitespace) {
            let (bytes, bytes_max) = (value.len(), self.value_bytes_max);
            return Err(ServiceError::Unfit { bytes, bytes_max });
        }
        let space = &self.space;
        let command = format!("put kvsname={space} key={key} value={value}");
        self.ask(&command, "put_result").map(|_| ())
    }

    /// Returns when every rank has called `barrier`.
    pub(super) fn barrier(&mut self) -> Result<(), ServiceError> {
        self.ask("barrier_in", "barrier_out").map(|_| ())
    }

    pub(super) fn get(&mut self, key: &str) -> Result<String, ServiceError> {
        let command = format!("get kvsname={} key={key}", self.space);
        let answer = self.ask(&command, "get_result")?;
        word(&answer, "value").map(str::to_owned)
    }

    /// Ends the conversation. Without this call, the process manager takes this rank's exit for a
    /// crash.
    pub(super) fn finish(mut self) -> Result<(), ServiceError> {
        self.ask("finalize", "finalize_ack").map(|_| ())
    }

    fn ask(&mut self, command: &str, expected: &'static str) -> Result<String, ServiceError> {
        self.stream.write(format!("cmd={command}\n").as_bytes())?;
        self.answer(expected)
    }

    fn answer(&mut self, expected: &'static str) -> Result<String, ServiceError> {
        let line = self.line()?;
        let command = word(&line, "cmd")?;
        if command != expected {
            let answer = command.to_owned();
            return Err(ServiceError::Unexpected { answer, expected });
        }
        match word(&line, "rc") {
            Ok(code) if code != "0" => {
                let message = word(&line, "msg").unwrap_or("no reason was given");
                let (code, message) = (code.to_owned(), message.to_owned());
                Err(ServiceError::Refused { command: expected, code, message })
            }
            _ => Ok(line),
        }
    }

    fn line(&mut self) -> Result<String, ServiceError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return String::from_utf8(line)
                    .map_err(|_| ServiceError::Garbled("its line is not UTF-8"));
            }
            if self.buffer.len() >= LINE_BYTES_MAX {
                return Err(ServiceError::Garbled("its line is longer than 4096 bytes"));
            }
            let mut part = [0; 512];
            let count = self.stream.read(&mut part)?.ok_or(ServiceError::Closed)?;
            self.buffer.extend(&part[..count]);
        }
    }
}

/// Returns the value of `key` in a line of `key=value` words.
fn word<'a>(line: &'a str, key: &'static str) -> Result<&'a str, ServiceError> {
    line.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        .ok_or(ServiceError::Lacks(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    /// Returns a connection to a manager that answers line by line from a script. An entry of the
    /// script is the start of an expected question, and the answer.
    fn manager(script: &'static [(&'static str, &'static str)]) -> OwnedFd {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            for (question, answer) in script {
                let asked = lines.next().unwrap().unwrap();
                assert!(asked.starts_with(question), "{asked}");
                (&theirs).write_all(answer.as_bytes()).unwrap();
            }
        });
        ours.into()
    }

    const INIT: (&str, &str) =
        ("cmd=init ", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    const MAXES: (&str, &str) =
        ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=64\n");
    const NAME: (&str, &str) = ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_7\n");

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(5))
    }

    #[test]
    fn a_value_goes_through_the_key_value_space() {
        let fd = manager(&[
            INIT,
            MAXES,
            NAME,
            ("cmd=put kvsname=kvs_7 key=k value=a=b:c", "cmd=put_result rc=0 msg=success\n"),
            ("cmd=barrier_in", "cmd=barrier_out\n"),
            ("cmd=get kvsname=kvs_7 key=k", "cmd=get_result rc=0 msg=success value=a=b:c\n"),
            ("cmd=finalize", "cmd=finalize_ack\n"),
        ]);
        let mut pmi = Pmi::over(fd, soon()).unwrap();
        pmi.put("k", "a=b:c").unwrap();
        pmi.barrier().unwrap();
        assert_eq!(pmi.get("k").unwrap(), "a=b:c");
        pmi.finish().unwrap();
    }

    #[test]
    fn a_refusal_or_a_malformed_answer_of_the_manager_is_reported() {
        let start = |script| Pmi::over(manager(script), soon());
        let error = start(&[("cmd=init", "cmd=response_to_init rc=-1 msg=no\n")]).err().unwrap();
        assert!(error.to_string().contains("code -1: no"), "{error}");
        let error = start(&[("cmd=init", "cmd=barrier_out\n")]).err().unwrap();
        assert!(error.to_string().contains("barrier_out instead of response_to_init"), "{error}");
        let error = start(&[("cmd=init", "hello\n")]).err().unwrap();
        assert!(error.to_string().contains("no cmd"), "{error}");
        let error = start(&[]).err().unwrap();
        assert!(
            ["closed", "reset", "ipe"].iter().any(|what| error.to_string().contains(what)),
            "{error}"
        );
        let mut pmi = start(&[
            INIT,
            MAXES,
            NAME,
            ("cmd=get", "cmd=get_result rc=-1 msg=key_k_not_found value=unknown\n"),
        ])
        .unwrap();
        assert!(pmi.put("k", &"x".repeat(64)).is_err(), "a value one byte too long is accepted");
        assert!(pmi.put("k", "two words").is_err());
        assert!(pmi.get("k").unwrap_err().to_string().contains("key_k_not_found"));
    }

    #[test]
    fn an_endless_line_and_a_silent_manager_are_errors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs).write_all(&[b'x'; 5000]).unwrap();
        let error = Pmi::over(ours.into(), soon()).err().unwrap();
        assert!(error.to_string().contains("longer than"), "{error}");
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = Pmi::over(ours.into(), Deadline::after(Duration::from_millis(50)));
        assert!(error.err().unwrap().to_string().contains("no answer within"));
    }
}
