//! Sides of the comparison; each runs one rank on each host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::hosts::{Host, INTERFACE};
use super::{DIST, Job, Sample};
use crate::bench::{mpi, ours};
use crate::workspace::{cargo, root, target_dir};
use crate::{Outcome, process};

const DEADLINE: Duration = Duration::from_secs(120);
const BUILD_DEADLINE: Duration = Duration::from_secs(900);
const PORT: u16 = 29_500;
const PYTHON: &str = "/usr/bin/python3";

/// Side of the comparison.
pub(super) trait Side {
    /// Returns the name of the side in tables.
    fn name(&self) -> &'static str;
    /// Runs the job once.
    fn measure(&self, hosts: &[Host; 2], job: Job) -> Outcome<Sample>;
}

/// Directory of the built programs.
#[derive(Debug)]
pub(super) struct Binaries {
    examples: PathBuf,
}

/// Builds our programs with the profile that they are shipped with.
pub(super) fn build() -> Outcome<Binaries> {
    for arguments in [
        &["--example", "all_reduce_perf", "--example", "p2p_matrix"][..],
        &["--package", "ccl-transport-tcp", "--example", "ping_pong"],
    ] {
        let mut command = cargo(&["build", "--profile", DIST]);
        command.args(arguments);
        println!("$ {}", process::typed(&command));
        process::capture(&mut command, BUILD_DEADLINE)?;
    }
    Ok(Binaries { examples: target_dir()?.join(DIST).join("examples") })
}

/// Runs two commands at the same time; returns the output of the first.
fn both(mut first: Command, mut second: Command) -> Outcome<String> {
    let other = std::thread::spawn(move || process::capture(&mut second, DEADLINE));
    let output = process::capture(&mut first, DEADLINE);
    let ended =
        other.join().map_err(|_| "a thread that waited for a process panicked".to_owned())?;
    output.and_then(|output| ended.map(|_| output))
}

fn words(job: Job) -> [String; 3] {
    [job.bytes.to_string(), job.iterations.to_string(), job.warmup.to_string()]
}

/// Perf program of ferroccl.
#[derive(Debug)]
pub(super) struct Ours {
    program: PathBuf,
    rows: PathBuf,
    encrypted: bool,
}

impl Ours {
    pub(super) fn new(binaries: &Binaries, program: &str) -> Outcome<Ours> {
        let dir = target_dir()?.join("bench");
        fs::create_dir_all(&dir)
            .map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let program = binaries.examples.join(program);
        Ok(Ours { program, rows: dir.join("network.json"), encrypted: false })
    }

    pub(super) fn encrypted(self) -> Ours {
        Ours { encrypted: true, ..self }
    }
}

impl Side for Ours {
    fn name(&self) -> &'static str {
        if self.encrypted { "ours with TLS" } else { "ours" }
    }

    fn measure(&self, hosts: &[Host; 2], job: Job) -> Outcome<Sample> {
        let [bytes, iterations, warmup] = words(job);
        self.run(hosts, &["-b", &bytes, "-e", &bytes, "-n", &iterations, "-w", &warmup])?;
        ours::read(&self.rows, job.bytes)
    }
}

impl Ours {
    /// Runs the program on both hosts.
    fn run(&self, hosts: &[Host; 2], args: &[&str]) -> Outcome {
        let rank = |rank: usize| {
            let mut command = hosts[rank].command(&self.program.to_string_lossy());
            command
                .args(args)
                .args(["-c", "0"])
                .env("FERROCCL_RANK", rank.to_string())
                .env("FERROCCL_RANKS", "2")
                .env("FERROCCL_COMM_ID", format!("{}:{PORT}", hosts[0].address))
                .env("FERROCCL_TLS", if self.encrypted { "1" } else { "0" })
                .env("FERROCCL_SECRET", "two hosts of one benchmark");
            command
        };
        let mut first = rank(0);
        first.arg("--json").arg(&self.rows);
        both(first, rank(1)).map(drop)
    }
}

/// Stream of ferroccl's messages in one direction, many in flight.
#[derive(Debug)]
pub(super) struct Stream(Ours);

impl Stream {
    pub(super) fn new(binaries: &Binaries) -> Outcome<Stream> {
        Ours::new(binaries, "p2p_matrix").map(Stream)
    }
}

impl Side for Stream {
    fn name(&self) -> &'static str {
        "ours"
    }

    fn measure(&self, hosts: &[Host; 2], job: Job) -> Outcome<Sample> {
        let Stream(ours) = self;
        // An iteration sends a window of messages instead of one message and takes longer, so only
        // half as many iterations run.
        let [bytes, iterations, warmup] =
            words(Job { iterations: job.iterations / 2, warmup: job.warmup / 2, ..job });
        ours.run(hosts, &["-b", "8", "-e", &bytes, "-n", &iterations, "-w", &warmup])?;
        ours::read_stream(&ours.rows, job.bytes)
    }
}

/// Round trip of plain TCP, as the lower bound for latency.
#[derive(Debug)]
pub(super) struct PingPong {
    program: String,
}

impl PingPong {
    pub(super) fn new(binaries: &Binaries) -> PingPong {
        PingPong { program: binaries.examples.join("ping_pong").to_string_lossy().into_owned() }
    }
}

impl Side for PingPong {
    fn name(&self) -> &'static str {
        "round trip"
    }

    fn measure(&self, hosts: &[Host; 2], job: Job) -> Outcome<Sample> {
        let mut ask = hosts[0].command(&self.program);
        ask.args([format!("{}:{PORT}", hosts[1].address), job.iterations.to_string()]);
        let mut answer = hosts[1].command(&self.program);
        answer.args(["listen", &PORT.to_string()]);
        mpi::parse(&both(ask, answer)?, job.bytes)
    }
}

/// Open MPI over its TCP transport.
#[derive(Debug)]
pub(super) struct Mpi {
    program: mpi::Program,
    /// Script that starts a process on the second host, as `rsh` would.
    agent: PathBuf,
}

impl Mpi {
    /// Prepares Open MPI; returns `None` if it is not installed.
    pub(super) fn new(hosts: &[Host; 2]) -> Outcome<Option<Mpi>> {
        let Some(program) = mpi::build()? else {
            println!("{}", mpi::MISSING);
            return Ok(None);
        };
        let agent = target_dir()?.join("bench/enter.sh");
        let enter = hosts[1].entrance().join(" ");
        // Open MPI treats hosts with the same name as one host.
        let script = format!(
            "#!/bin/sh\nhost=$1; shift\nexec {enter} unshare --uts sh -c \"hostname $host; $*\"\n"
        );
        write_script(&agent, &script)?;
        Ok(Some(Mpi { program, agent }))
    }
}

fn write_script(path: &Path, text: &str) -> Outcome {
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

impl Side for Mpi {
    fn name(&self) -> &'static str {
        "Open MPI"
    }

    fn measure(&self, hosts: &[Host; 2], job: Job) -> Outcome<Sample> {
        let mut command = hosts[0].command("unshare");
        let mpirun = format!(
            "hostname one; exec mpirun --allow-run-as-root -H one:1,two:1 -n 2 --bind-to none \
             --mca plm_rsh_agent {} --mca oob_tcp_if_include {INTERFACE} \
             --mca btl_tcp_if_include {INTERFACE} --mca pml ob1 --mca btl tcp,self {} {}",
            self.agent.display(),
            self.program.binary().display(),
            words(job).join(" ")
        );
        command.args(["--uts", "sh", "-c", &mpirun]);
        mpi::parse(&process::capture(&mut command, DEADLINE)?, job.bytes)
    }
}

/// Gloo, through PyTorch.
#[derive(Debug)]
pub(super) struct Gloo {
    script: PathBuf,
}

impl Gloo {
    /// Prepares Gloo; returns `None` if PyTorch is not installed.
    pub(super) fn new() -> Outcome<Option<Gloo>> {
        let mut check = Command::new(PYTHON);
        check.args(["-c", "import torch.distributed as d; assert d.is_gloo_available()"]);
        if !Path::new(PYTHON).exists() || process::capture(&mut check, DEADLINE).is_err() {
            println!("PyTorch with Gloo is missing. `apt-get install python3-torch` installs it.");
            return Ok(None);
        }
        Ok(Some(Gloo { script: root().join("xtask/bench/gloo_all_reduce.py") }))
    }
}

impl Side for Gloo {
    fn name(&self) -> &'static str {
        "Gloo"
    }

    fn measure(&self, hosts: &[Host; 2], job: Job) -> Outcome<Sample> {
        let rank = |rank: usize| {
            let mut command = hosts[rank].command(PYTHON);
            command
                .arg(&self.script)
                .args(words(job))
                .env("MASTER_ADDR", &hosts[0].address)
                .env("MASTER_PORT", PORT.to_string())
                .env("WORLD_SIZE", "2")
                .env("RANK", rank.to_string())
                .env("GLOO_SOCKET_IFNAME", INTERFACE);
            command
        };
        mpi::parse(&both(rank(0), rank(1))?, job.bytes)
    }
}

/// Stream of iperf3, as the upper bound for bandwidth.
#[derive(Debug)]
pub(super) struct Iperf;

impl Iperf {
    /// Returns the side, or `None` if iperf3 is not installed.
    pub(super) fn new() -> Option<Iperf> {
        process::is_installed("iperf3").then_some(Iperf)
    }
}

impl Side for Iperf {
    fn name(&self) -> &'static str {
        "iperf3"
    }

    fn measure(&self, hosts: &[Host; 2], job: Job) -> Outcome<Sample> {
        let mut client = hosts[0].command("sh");
        // The client sleeps first, since the iperf3 server does not announce that it listens.
        let length = job.bytes;
        let line = format!("sleep 0.3; exec iperf3 -c {} -t 2 -l {length} -J", hosts[1].address);
        client.args(["-c", &line]);
        let mut server = hosts[1].command("iperf3");
        server.args(["-s", "-1"]);
        let output: Value = serde_json::from_str(&both(client, server)?)
            .map_err(|error| format!("iperf3 printed no JSON: {error}"))?;
        let bits = output["end"]["sum_received"]["bits_per_second"].as_f64();
        let bits = bits.ok_or("iperf3 measured nothing")?;
        Ok(Sample { median_us: job.bytes as f64 * 8e6 / bits, p99_us: None })
    }
}
