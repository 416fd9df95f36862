//! Programs other than those of [`crate::sweep`], and the modules that they use.

pub mod baseline;
pub mod culprits;
pub mod latency_comparison;
pub mod models;
pub mod p2p_matrix;
pub mod regression;
pub mod training;
pub mod workloads;

use std::io::Write;

use serde::Serialize;

use super::memory::Memory;
use super::options::Options;
use super::report::Origin;
use super::setup::{rank_lines, ready, write_file};
use super::subject::{Peer, Subject, SubjectError};
use super::table;

/// State of a program: its memory, and the origin and hosts that its reports show.
struct Stage {
    memory: Memory,
    origin: Origin,
    hosts: Vec<String>,
}

impl Stage {
    fn new(
        program: &str,
        options: &Options,
        bytes: usize,
        subject: &mut dyn Subject,
        out: &mut dyn Write,
    ) -> Result<Stage, SubjectError> {
        let memory = ready(subject, options, bytes)?;
        let lines = rank_lines(subject)?;
        let origin = Origin::here(program, subject.transport(), subject.ranks());
        if subject.rank() == 0 {
            write!(out, "{}", table::header(program, options, &origin.transport, &lines))?;
        }
        let hosts = lines.into_iter().map(|line| line.host).collect();
        Ok(Stage { memory, origin, hosts })
    }

    /// Prints the last lines and writes the report, on rank 0.
    fn finish(
        &self,
        options: &Options,
        failed: u64,
        results: &impl Serialize,
        subject: &dyn Subject,
        out: &mut dyn Write,
    ) -> Result<(), SubjectError> {
        #[derive(Serialize)]
        struct Report<'a, R> {
            #[serde(flatten)]
            origin: &'a Origin,
            results: &'a R,
            peers: Vec<Peer>,
        }
        if subject.rank() != 0 {
            return Ok(());
        }
        let verdict = if failed == 0 { "OK" } else { "FAILED" };
        writeln!(out, "# Out of bounds values : {failed} {verdict}")?;
        if let Some(path) = &options.json {
            let report = Report { origin: &self.origin, results, peers: subject.peers() };
            let text = serde_json::to_string_pretty(&report)? + "\n";
            write_file(path, &text)?;
        }
        Ok(())
    }
}
