//! Steps that every program does before and between its measurements: agreement that all ranks are
//! ready, exchange of their names, and one checked call.

use std::fs::File;
use std::path::Path;

use ccl_core::types::{Collective, DataType, ReduceOp};
use ccl_traffic::{Bytes, Traffic};

use super::memory::Memory;
use super::options::Options;
use super::subject::{Buffers, Request, Shape, Subject, SubjectError};
use super::table::RankLine;
use super::trial::Trial;

/// Error for input that proves unusable once the ranks have joined. The program ends with the
/// status of a bad flag, and not of a failed measurement.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Tells all ranks whether this rank's step succeeded, so that no rank waits for a rank that has
/// given up.
///
/// # Errors
/// This rank's error, or an error that names the ranks that failed.
pub fn agree<T>(
    subject: &mut dyn Subject,
    own: Result<T, SubjectError>,
) -> Result<T, SubjectError> {
    let failures = subject.all_gather_f64(if own.is_ok() { 0.0 } else { 1.0 })?;
    let value = own?;
    let failed: Vec<String> = (0..)
        .zip(failures)
        .filter(|&(_, failed)| failed != 0.0)
        .map(|(rank, _): (u32, f64)| rank.to_string())
        .collect();
    match failed.as_slice() {
        [] => Ok(value),
        ranks => {
            Err(format!("could not start on rank {}; see the output there", ranks.join(", "))
                .into())
        }
    }
}

/// Allocates this rank's memory for buffers of up to `bytes` bytes, and registers this memory if
/// `-R 1` is given. Rank 0 also creates the output files, still empty: a file that cannot be
/// written is then an error before the measurement, not after it.
///
/// # Errors
/// This rank's error, or an error that names the ranks that failed.
pub fn ready(
    subject: &mut dyn Subject,
    options: &Options,
    bytes: usize,
) -> Result<Memory, SubjectError> {
    let is_first = subject.rank() == 0;
    let files = options.json.iter().chain(&options.output_file).chain(&options.plot);
    let files = files.chain(&options.traffic).filter(|_| is_first);
    let memory = Memory::new(bytes, bytes).map_err(SubjectError::from);
    let memory = memory.and_then(|mut memory| {
        if options.register == 1 {
            memory.input.register(|bytes| subject.register(bytes))?;
            memory.output.register(|bytes| subject.register(bytes))?;
        }
        for path in files {
            File::create(path).map_err(|error| cannot_write(path, &error))?;
        }
        Ok(memory)
    });
    agree(subject, memory)
}

/// Writes a report.
///
/// # Errors
/// An error that names the file and the reason.
pub fn write_file(path: &Path, text: &str) -> Result<(), SubjectError> {
    std::fs::write(path, text).map_err(|error| cannot_write(path, &error))
}

/// Returns the error for a file that cannot be written.
pub fn cannot_write(path: &Path, error: &std::io::Error) -> SubjectError {
    format!("cannot write {}: {error}", path.display()).into()
}

/// Returns process and host of every rank, in rank order.
///
/// # Errors
/// Errors of the communicator.
pub fn rank_lines(subject: &mut dyn Subject) -> Result<Vec<RankLine>, SubjectError> {
    let line = |(pid, host)| RankLine { pid, host };
    let texts = records(subject, std::process::id(), &super::report::host_name())?;
    Ok(texts.into_iter().map(line).collect())
}

/// Gathers a number and a text from every rank. Returns them in rank order; a text of more than 68
/// bytes is cut.
///
/// # Errors
/// Errors of the communicator.
pub fn records(
    subject: &mut dyn Subject,
    number: u32,
    text: &str,
) -> Result<Vec<(u32, String)>, SubjectError> {
    const RECORD_BYTES: usize = 72;
    let mut record = [0; RECORD_BYTES];
    record[..4].copy_from_slice(&number.to_le_bytes());
    let text = &text.as_bytes()[..text.len().min(RECORD_BYTES - 4)];
    record[4..4 + text.len()].copy_from_slice(text);
    let mut records = vec![0; RECORD_BYTES * subject.ranks() as usize];
    let request = Request {
        collective: Collective::AllGather,
        data_type: DataType::Uint8,
        op: ReduceOp::Sum,
        scalar: None,
        root: 0,
        shape: Shape::Even { count: RECORD_BYTES },
        algorithm: None,
    };
    subject.run(&request, Buffers::OutOfPlace { input: &record, output: &mut records }, 1)?;
    let read = |record: &[u8]| {
        let number = record.first_chunk().map_or(0, |&bytes| u32::from_le_bytes(bytes));
        let text = String::from_utf8_lossy(&record[4..]).trim_end_matches('\0').to_owned();
        (number, text)
    };
    Ok(records.chunks_exact(RECORD_BYTES).map(read).collect())
}

/// Returns the number of bytes that this rank has sent to each peer so far by way of a device;
/// bytes in mapped memory do not count.
pub fn sent(subject: &dyn Subject) -> Vec<u64> {
    let mut sent = vec![0; subject.ranks() as usize];
    for peer in subject.peers() {
        if let Some(sent) = sent.get_mut(peer.rank as usize) {
            *sent = peer.statistics.sent_bytes;
        }
    }
    sent
}

/// Returns the bytes that all ranks have sent since [`sent`] returned `before`, as one interval of
/// `interval_s` seconds.
///
/// # Errors
/// Errors of the communicator.
pub fn traffic(
    subject: &mut dyn Subject,
    before: &[u64],
    interval_s: f64,
) -> Result<Traffic, SubjectError> {
    // The counters are read before the exchange below, so they leave out its bytes.
    let own = sent(subject);
    let mut bytes = Bytes::new();
    for (to, (now, before)) in (0..).zip(own.iter().zip(before)) {
        let column = subject.all_gather_f64(now.saturating_sub(*before) as f64)?;
        let pairs = (0..).zip(column).filter(|(_, sent)| *sent > 0.0);
        bytes.extend(pairs.map(|(from, sent)| ((from, to), sent as u64)));
    }
    Ok(Traffic { ranks: subject.ranks(), interval_s, intervals: vec![bytes] })
}

/// Makes one checked call, and returns the number of wrong elements on all ranks together.
///
/// # Errors
/// Errors of the communicator.
pub fn checked_call(
    subject: &mut dyn Subject,
    trial: &Trial<'_>,
    memory: &mut Memory,
    repetition: u64,
    in_place: bool,
) -> Result<u64, SubjectError> {
    trial.prepare(memory, repetition, in_place);
    // Without the barrier, some ranks would begin the call while others still prepare. The waits of
    // the early ranks would look like those of a slow transport.
    subject.barrier()?;
    trial.run(subject, memory, in_place)?;
    let wrong = trial.wrong(memory, repetition, in_place);
    Ok(subject.all_gather_f64(wrong as f64)?.iter().sum::<f64>() as u64)
}
