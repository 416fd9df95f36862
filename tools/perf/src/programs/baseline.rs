//! Baseline of `p2p_matrix`: the times of every path, for later comparison. The file has one JSON
//! object per line: the first describes the run, and each further one a path.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use ccl_core::types::Rank;
use serde::{Deserialize, Serialize};

/// Version of the file format.
const FORM: u32 = 1;

/// Largest number of bytes of a line. This program writes shorter lines, because host names are
/// short and times have few digits.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Largest number of rounds of a measurement.
pub const ROUNDS_MAX: u32 = 1000;

/// Setting of a run. Only runs with equal settings can be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Host of each rank, in rank order.
    pub hosts: Vec<String>,
    /// Name of the transport.
    pub transport: String,
    /// Bytes of a message, for the latency.
    pub latency_bytes: usize,
    /// Bytes of a message, for the bandwidth.
    pub bandwidth_bytes: usize,
    /// Number of messages in a group, for the bandwidth.
    pub bandwidth_messages: usize,
    /// Number of calls in a sample; a sample is the mean of the times of its calls.
    pub iterations: u32,
}

impl Setting {
    /// Returns all ordered pairs of ranks, in the order in which they are measured and stored.
    pub fn pairs(&self) -> impl Iterator<Item = (Rank, Rank)> + use<> {
        let ranks = self.hosts.len() as Rank;
        (0..ranks).flat_map(move |from| {
            (0..ranks).filter(move |to| *to != from).map(move |to| (from, to))
        })
    }
}

/// First line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Version of the file format: 1.
    pub baseline: u32,
    /// Version of ferroccl.
    pub version: String,
    /// Commit of ferroccl.
    pub commit: String,
    /// Date of the run, UTC, ISO 8601.
    pub date: String,
    /// Setting of the run.
    pub setting: Setting,
}

impl Head {
    /// Creates the first line for a run of this program.
    #[must_use]
    pub fn new(date: &str, setting: Setting) -> Head {
        Head {
            baseline: FORM,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: ferroccl::tools::COMMIT.to_owned(),
            date: date.to_owned(),
            setting,
        }
    }
}

/// Measured times of a path: one sample per round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathTimes {
    /// Rank that sends.
    pub from: Rank,
    /// Rank that receives.
    pub to: Rank,
    /// Half a round trip, microseconds.
    pub latency_us: Vec<f64>,
    /// Time of a group of messages and the answer, microseconds.
    pub bandwidth_us: Vec<f64>,
}

impl PathTimes {
    /// Creates a path without measurements.
    #[must_use]
    pub fn new((from, to): (Rank, Rank)) -> PathTimes {
        PathTimes { from, to, latency_us: Vec::new(), bandwidth_us: Vec::new() }
    }
}

/// Contents of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// First line of the file.
    pub head: Head,
    /// Paths in the order of [`Setting::pairs`].
    pub paths: Vec<PathTimes>,
}

/// Error for a file that cannot serve as the baseline.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// File that cannot be read.
    #[error("cannot read the baseline {}: {error}; --save-baseline writes one", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Reason of the failure.
        error: std::io::Error,
    },
    /// File that is no baseline, or is damaged.
    #[error(
        "{}:{line}: {problem}; measure anew with --save-baseline, or copy the file again from \
         its source",
        file.display()
    )]
    Damaged {
        /// Path of the file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Problem in that line.
        problem: String,
    },
    /// Baseline of another setting.
    #[error(
        "the baseline {} was measured with {was}, but this run has {is}; {remedy}",
        file.display()
    )]
    Other {
        /// Path of the file.
        file: PathBuf,
        /// Setting of the baseline, as far as it differs.
        was: String,
        /// Setting of this run, as far as it differs.
        is: String,
        /// Remedy for the difference.
        remedy: String,
    },
}

/// Reader of a file's lines, whose errors name the line.
struct Lines {
    file: PathBuf,
    text: BufReader<File>,
    line: usize,
}

impl Lines {
    fn open(file: &Path) -> Result<Lines, BaselineError> {
        match File::open(file) {
            Ok(text) => Ok(Lines { file: file.into(), text: BufReader::new(text), line: 0 }),
            Err(error) => Err(BaselineError::Read { file: file.into(), error }),
        }
    }

    fn damaged(&self, problem: impl Into<String>) -> BaselineError {
        let (file, line) = (self.file.clone(), self.line.max(1));
        BaselineError::Damaged { file, line, problem: problem.into() }
    }

    /// Parses the next line as JSON; returns `None` at the end of the file.
    fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>, BaselineError> {
        let mut line = Vec::new();
        let read = self.text.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let read = read.map_err(|error| BaselineError::Read { file: self.file.clone(), error })?;
        if read == 0 {
            return Ok(None);
        }
        self.line += 1;
        if line.last() != Some(&b'\n') {
            return Err(self.damaged("the line is cut off, or too long"));
        }
        // The line number in serde_json's error is useless: the text is one line.
        let value = serde_json::from_slice(&line).map_err(|error| {
            let text = error.to_string();
            let reason = text.split(" at line ").next().unwrap_or_default();
            self.damaged(format!("not a line of a baseline: {reason} (column {})", error.column()))
        })?;
        Ok(Some(value))
    }
}

impl Baseline {
    /// Reads a baseline, whose setting must be equal to `request`.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or has another setting.
    pub fn read(file: &Path, request: &Setting) -> Result<Baseline, BaselineError> {
        let mut lines = Lines::open(file)?;
        let head: Option<Head> = lines.next()?;
        let head = head.ok_or_else(|| lines.damaged("the file is empty"))?;
        if head.baseline != FORM {
            let form = head.baseline;
            return Err(lines.damaged(format!("the file has format {form}, expected {FORM}")));
        }
        fits(file, &head.setting, request)?;
        let mut paths = Vec::new();
        for (from, to) in request.pairs() {
            let path: Option<PathTimes> = lines.next()?;
            let path = path.ok_or_else(|| {
                lines.damaged(format!("the file ends before the path from rank {from} to {to}"))
            })?;
            if (path.from, path.to) != (from, to) {
                let (is_from, is_to) = (path.from, path.to);
                return Err(lines.damaged(format!(
                    "this is the path from rank {is_from} to {is_to}; expected the path from rank \
                     {from} to {to}"
                )));
            }
            for (name, samples) in
                [("latency_us", &path.latency_us), ("bandwidth_us", &path.bandwidth_us)]
            {
                check(name, samples).map_err(|problem| lines.damaged(problem))?;
            }
            paths.push(path);
        }
        match lines.next::<serde::de::IgnoredAny>()? {
            None => Ok(Baseline { head, paths }),
            Some(_) => Err(lines.damaged("the file goes on after the last path")),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The error of the system.
    pub fn write(&self, file: &Path) -> std::io::Result<()> {
        let mut text = serde_json::to_string(&self.head)? + "\n";
        for path in &self.paths {
            text += &serde_json::to_string(path)?;
            text.push('\n');
        }
        // The new file is written beside the old file and then renamed: the old file stays complete
        // until the rename.
        let beside = beside(file);
        std::fs::write(&beside, text).inspect_err(|_| drop(std::fs::remove_file(&beside)))?;
        std::fs::rename(&beside, file)
    }
}

/// Returns the name under which a new version of a file is written.
fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Checks that [`Baseline::write`] can write a file, and leaves the file unchanged.
///
/// # Errors
/// The error of the system.
pub fn writable(file: &Path) -> std::io::Result<()> {
    if file.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    let beside = beside(file);
    File::create(&beside)?;
    std::fs::remove_file(&beside)
}

fn check(name: &str, samples: &[f64]) -> Result<(), String> {
    if samples.is_empty() || samples.len() > ROUNDS_MAX as usize {
        let count = samples.len();
        return Err(format!("{name} has {count} samples, expected 1 to {ROUNDS_MAX}"));
    }
    match samples.iter().find(|time| !(time.is_finite() && **time > 0.0)) {
        Some(time) => Err(format!("{time} us is not a valid time")),
        None => Ok(()),
    }
}

fn fits(file: &Path, was: &Setting, is: &Setting) -> Result<(), BaselineError> {
    let other = |was: String, is: String, remedy: String| {
        Err(BaselineError::Other { file: file.into(), was, is, remedy })
    };
    let ranks = |setting: &Setting| match setting.hosts.len() {
        1 => "1 rank".to_owned(),
        ranks => format!("{ranks} ranks"),
    };
    if was.hosts.len() != is.hosts.len() {
        let remedy =
            "start the same number of ranks, or measure anew with --save-baseline".to_owned();
        return other(ranks(was), ranks(is), remedy);
    }
    let differs = was.hosts.iter().zip(&is.hosts).position(|(was, is)| was != is);
    if let Some(rank) = differs {
        return other(
            format!("rank {rank} on {}", was.hosts[rank]),
            format!("rank {rank} on {}", is.hosts[rank]),
            "start the ranks on the same hosts in the same order, or measure anew with \
             --save-baseline"
                .to_owned(),
        );
    }
    if was.transport != is.transport {
        let remedy =
            format!("choose --transport {}, or measure anew with --save-baseline", was.transport);
        let name = |setting: &Setting| format!("the transport {}", setting.transport);
        return other(name(was), name(is), remedy);
    }
    let numbers =
        |setting: &Setting| (setting.latency_bytes, setting.bandwidth_bytes, setting.iterations);
    if numbers(was) != numbers(is) {
        let flags = |setting: &Setting| {
            let (latency, bandwidth, iterations) = numbers(setting);
            format!("-b {latency} -e {bandwidth} -n {iterations}")
        };
        return other(flags(was), flags(is), format!("give {}", flags(was)));
    }
    if was.bandwidth_messages != is.bandwidth_messages {
        let count = |setting: &Setting| format!("groups of {}", setting.bandwidth_messages);
        return other(count(was), count(is), "measure anew with --save-baseline".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting() -> Setting {
        Setting {
            hosts: ["n0", "n0", "n1"].map(str::to_owned).to_vec(),
            transport: "tcp".to_owned(),
            latency_bytes: 8,
            bandwidth_bytes: 4096,
            bandwidth_messages: 16,
            iterations: 20,
        }
    }

    fn baseline() -> Baseline {
        let paths = setting().pairs().map(|pair| PathTimes {
            latency_us: vec![1.5, 2.25, 0.1],
            bandwidth_us: vec![1e3, 1.0 / 3.0, 12.0],
            ..PathTimes::new(pair)
        });
        Baseline { head: Head::new("2026-11-18T00:00:00Z", setting()), paths: paths.collect() }
    }

    /// Writes a baseline, changes its text, and reads it.
    fn changed(
        name: &str,
        change: impl FnOnce(String) -> String,
        request: &Setting,
    ) -> Result<Baseline, String> {
        let file = std::env::temp_dir().join(format!("ferroccl-{}-{name}", std::process::id()));
        writable(&file).unwrap();
        assert!(!file.exists(), "the check left a file");
        baseline().write(&file).unwrap();
        writable(&file).unwrap();
        assert!(writable(&std::env::temp_dir()).is_err());
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, change(text)).unwrap();
        let read = Baseline::read(&file, request).map_err(|error| error.to_string());
        std::fs::remove_file(&file).unwrap();
        read.map_err(|error| error.replace(&file.display().to_string(), "FILE"))
    }

    #[test]
    fn what_is_written_reads_the_same() {
        assert_eq!(changed("same", |text| text, &setting()), Ok(baseline()));
    }

    #[test]
    fn damage_is_reported_with_its_line() {
        for (from, to, words) in [
            ("\"baseline\":1", "\"baseline\":2", "FILE:1: the file has format 2"),
            ("\"baseline\":1", "\"bassline\":1", "FILE:1: not a line of a baseline: "),
            ("\"from\":0,\"to\":2", "\"from\":0,\"to\":1", "FILE:3: this is the path from rank 0"),
            ("\"from\":1,\"to\":0", "\"from\":-1,\"to\":0", "FILE:4: not a line of a baseline"),
            ("[1.5,", "[-1.5,", "FILE:2: -1.5 us is not a valid time"),
            ("[1.5,", "[0,", "FILE:2: 0 us is not a valid time"),
            ("[1.5,", "[1e999,", "FILE:2: not a line of a baseline: number out of range"),
            ("[1.5,", "[null,", "FILE:2: not a line of a baseline: invalid type: null"),
            ("[1.5,2.25,0.1]", "[]", "FILE:2: latency_us has 0 samples"),
            ("\"latency_us\"", "\"latency\"", "FILE:2: not a line of a baseline: unknown field"),
        ] {
            let error = changed("damaged", |text| text.replacen(from, to, 1), &setting());
            let error = error.expect_err(to);
            assert!(error.contains(words), "{to}: {error}");
            assert!(error.contains("--save-baseline"), "{error}");
        }
        let cut = |keep: usize| {
            changed("cut", |text| text.chars().take(keep).collect(), &setting()).unwrap_err()
        };
        let whole = changed("cut", |text| text, &setting()).map(|_| ());
        assert_eq!(whole, Ok(()));
        assert!(cut(0).starts_with("FILE:1: the file is empty"));
        assert!(cut(40).starts_with("FILE:1: the line is cut"), "{}", cut(40));
        let lines = |count: usize| {
            let keep = |text: String| text.split_inclusive('\n').take(count).collect::<String>();
            changed("lines", keep, &setting()).unwrap_err()
        };
        assert!(lines(5).starts_with("FILE:5: the file ends before the path from rank 2 to 0"));
        let more = |text: String| text + "{}\n";
        assert!(changed("more", more, &setting()).unwrap_err().contains("FILE:8: the file goes"));
        let bytes = |text: String| text.replacen("n1", "\u{0}", 1);
        assert!(changed("bytes", bytes, &setting()).is_err());
    }

    #[test]
    fn a_baseline_of_another_setting_is_refused_with_a_remedy() {
        let with = |change: &dyn Fn(&mut Setting)| {
            let mut request = setting();
            change(&mut request);
            changed("other", |text| text, &request).unwrap_err()
        };
        let error = with(&|request| drop(request.hosts.pop()));
        assert!(error.contains("with 3 ranks, but this run has 2 ranks; start the same"));
        let error = with(&|request| request.hosts.swap(1, 2));
        assert!(error.contains("with rank 1 on n0, but this run has rank 1 on n1; "), "{error}");
        let error = with(&|request| request.transport = "another".to_owned());
        assert!(error.contains("choose --transport tcp"), "{error}");
        let error = with(&|request| request.bandwidth_bytes = 1);
        assert!(error.contains("give -b 8 -e 4096 -n 20"), "{error}");
        let error = with(&|request| request.iterations = 1);
        assert!(error.contains("give -b 8 -e 4096 -n 20"), "{error}");
        let error = with(&|request| request.bandwidth_messages = 8);
        assert!(error.contains("with groups of 16, but this run has groups of 8; "), "{error}");
    }

    #[test]
    fn files_that_are_no_baseline_are_refused() {
        for file in ["/no/such/file", "/tmp", "/dev/zero"] {
            let error = Baseline::read(Path::new(file), &setting()).unwrap_err().to_string();
            assert!(error.contains(file), "{error}");
        }
    }
}
