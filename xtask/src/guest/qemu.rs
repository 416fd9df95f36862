//! Run of the virtual machine: starts qemu, forwards the output, and interprets the end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Failure;
use super::job::Job;
use super::kernel::Kernel;
use crate::Outcome;
use crate::process::{self, End};

const MEMORY_MIB: u32 = 3072;
/// Size limit of the guest's requests to the host's files, in bytes. With a lower limit, reads are
/// slower; with a higher limit, directory listings are slower.
const MESSAGE_BYTES: u32 = 256 << 10;
/// Number of the console's last lines that are shown when a guest died or exceeded its time limit.
const TAIL_LINES: usize = 40;
/// Accelerator and processor of an emulated guest. The processor has no AVX, whose instructions
/// take the longest to emulate; without `rdrand` the guest would wait for entropy. The translation
/// buffer is larger than the default, because the workloads need more.
const EMULATED: (&str, &str) = ("tcg,thread=multi,tb-size=1024", "Nehalem,+rdrand");
/// Environment variable that selects `kvm` or `tcg` (emulated); by default, KVM if it is usable.
const ACCELERATOR: &str = "FERROCCL_GUEST_ACCEL";
/// Interval at which output is forwarded.
const GLANCE: Duration = Duration::from_millis(20);

/// Guest that is ready to start.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) job: &'a Job,
    pub(super) processors: u8,
    /// True if the hardware runs the guest; otherwise qemu emulates the processor.
    pub(super) with_kvm: bool,
}

impl Machine<'_> {
    /// Runs the guest until it ends or `within` has passed; returns the exit status of the command
    /// that the guest ran.
    pub(super) fn run(&self, within: Duration) -> Result<u8, Failure> {
        // `setpriv` makes the host's kernel kill the guest when this process dies.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
        command.args(self.hardware()).args(self.files());
        let outputs = [
            Forwarding::start(self.job.out(), io::stdout()),
            Forwarding::start(self.job.err(), io::stderr()),
        ];
        let mut said = Vec::new();
        let end = process::run(&mut command, within, |line| said.push(line.to_owned()));
        for output in outputs {
            output.finish().map_err(Failure::Died)?;
        }
        let end = end.map_err(Failure::Died)?;
        match self.job.status() {
            Some(status) => Ok(status),
            None => Err(self.failure(end, within, &said.join("\n"))),
        }
    }

    fn failure(&self, end: End, within: Duration, said: &str) -> Failure {
        let console = fs::read(self.job.console()).unwrap_or_default();
        let tail = last_lines(&String::from_utf8_lossy(&console), TAIL_LINES);
        let console =
            if tail.is_empty() { String::new() } else { format!("; its console says:\n{tail}") };
        if end == End::Deadline {
            let seconds = within.as_secs();
            return Failure::TimedOut(format!("killed after {seconds} s, its time limit{console}"));
        }
        let end = end.describe();
        Failure::Died(format!(
            "ended before the command's status was known (qemu: {end}){said}{console}"
        ))
    }

    fn hardware(&self) -> Vec<String> {
        let (accelerator, cpu) = if self.with_kvm { ("kvm", "host") } else { EMULATED };
        let fixed = format!(
            "-M pc -accel {accelerator} -cpu {cpu} -m {MEMORY_MIB} -smp {} -nodefaults -no-reboot \
             -display none -monitor none -device virtio-serial-pci -device virtio-rng-pci",
            self.processors
        );
        fixed.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the qemu options that name files of the host.
    fn files(&self) -> Vec<String> {
        let job = self.job;
        let words = format!(
            "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic mitigations=off nowatchdog \
             tsc=reliable no_timer_check random.trust_cpu=on guest.msize_bytes={MESSAGE_BYTES}"
        );
        let mut all = vec!["-kernel".to_owned(), path(&self.kernel.image)];
        all.extend(["-initrd".to_owned(), path(&job.initramfs()), "-append".to_owned(), words]);
        let console = format!("file,id=console,path={}", escaped(&job.console()));
        all.extend(["-chardev".to_owned(), console]);
        all.extend(["-serial".to_owned(), "chardev:console".to_owned()]);
        for (name, file) in [("out", job.out()), ("err", job.err())] {
            let chardev = format!("file,id={name},path={}", escaped(&file));
            let port = format!("virtserialport,chardev={name},name={name}");
            all.extend(["-chardev".to_owned(), chardev, "-device".to_owned(), port]);
        }
        let mut share = |tag: &str, dir: &Path, how: &str| {
            let share = format!("local,path={},mount_tag={tag},{how}", escaped(dir));
            all.extend(["-virtfs".to_owned(), share]);
        };
        share("host", Path::new("/"), "security_model=passthrough,readonly=on,multidevs=remap");
        share("job", &job.shared(), "security_model=none");
        for (index, dir) in job.writable.iter().enumerate() {
            share(&format!("rw{index}"), dir, "security_model=none,multidevs=remap");
        }
        all
    }
}

/// Returns whether the guest runs with KVM; an error if [`ACCELERATOR`] has an unknown or
/// impossible value.
pub(super) fn with_kvm() -> Outcome<bool> {
    match std::env::var(ACCELERATOR).as_deref() {
        Ok("tcg") => Ok(false),
        Ok("kvm") if has_kvm() => Ok(true),
        Ok("kvm") => Err(format!("{ACCELERATOR}=kvm, but KVM is not usable on this machine")),
        Ok("") | Err(_) => Ok(has_kvm()),
        Ok(other) => Err(format!("{ACCELERATOR}={other}, but it must be kvm or tcg")),
    }
}

/// Returns whether the hardware can run the guest. A /dev/kvm that opens is no proof: in some
/// nested machines the processor has neither vmx nor svm, and KVM emulates the guest's kernel,
/// which finally hangs.
fn has_kvm() -> bool {
    let usable = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    usable && fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| virtualizes(&text))
}

fn virtualizes(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm"))
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Escapes a path for a list of options of qemu, where commas are doubled.
fn escaped(file: &Path) -> String {
    path(file).replace(',', ",,")
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Thread that copies a growing file to an output of this process.
struct Forwarding {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl Forwarding {
    fn start(from: PathBuf, to: impl Write + Send + 'static) -> Forwarding {
        let ended: Arc<AtomicBool> = Arc::default();
        let stop = Arc::clone(&ended);
        Forwarding { ended, thread: thread::spawn(move || forward(&from, to, &stop)) }
    }

    /// Forwards the rest and ends the thread.
    fn finish(self) -> Outcome {
        self.ended.store(true, Ordering::Release);
        match self.thread.join() {
            Ok(forwarded) => forwarded.map_err(|error| format!("cannot forward output: {error}")),
            Err(_) => Err("the thread that forwards output panicked".to_owned()),
        }
    }
}

fn forward(from: &Path, mut to: impl Write, ended: &AtomicBool) -> io::Result<()> {
    let mut file = File::open(from)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        // Reads the flag before the file, so that the last round forwards all remaining output.
        let last = ended.load(Ordering::Acquire);
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            to.write_all(&buffer[..count])?;
        }
        to.flush()?;
        if last {
            return Ok(());
        }
        thread::sleep(GLANCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_needs_a_processor_with_vmx_or_svm() {
        assert!(virtualizes("processor : 0\nflags\t\t: fpu vmx sse\n"));
        assert!(virtualizes("flags : svm"));
        assert!(!virtualizes("model name : vmx\nflags : fpu vmx_like sse\n"));
        assert!(!virtualizes(""));
    }

    #[test]
    fn the_tail_is_the_last_lines() {
        assert_eq!(last_lines("a\r\nb\r\nc\r\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
    }

    #[test]
    fn output_written_after_the_start_is_forwarded_too() {
        let file = std::env::temp_dir().join(format!("ferroccl-forward-{}", std::process::id()));
        fs::write(&file, b"one\0").unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let forwarding = Forwarding::start(file.clone(), writer);
        let mut start = [0; 4];
        reader.read_exact(&mut start).unwrap();
        OpenOptions::new().append(true).open(&file).unwrap().write_all(b"\xfftwo").unwrap();
        forwarding.finish().unwrap();
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!((&start, rest.as_slice()), (b"one\0", b"\xfftwo".as_slice()));
    }
}
