//! Traffic matrix as a file: text with a line for each interval and pair of ranks, or JSON with the
//! same content.
//!
//! ```text
//! # ranks=8
//! # interval_s=0.001
//! # intervals=2
//! interval,source,destination,bytes
//! 0,0,1,1048576
//! 1,7,0,4096
//! ```
//!
//! A pair without a line sends nothing. Without `intervals`, the matrix ends with the last interval
//! that has a line. The JSON has the same names: `{"ranks": 8, "interval_s": 0.001, "intervals": 2,
//! "rows": [[0, 0, 1, 1048576], [1, 7, 0, 4096]]}`.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;

use crate::{Bytes, Traffic};
use ccl_core::types::Rank;
use serde::{Deserialize, Serialize};

/// Largest number of bytes of a file.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Largest number of ranks; `ferroccl plan` has the same limit.
pub const RANKS_MAX: u32 = 1 << 18;
/// Largest number of intervals. Every interval up to the last takes memory, even without lines.
pub const INTERVALS_MAX: usize = 1 << 20;
/// Largest number of pairs of ranks with traffic. If traffic is divided into intervals, a pair
/// counts once for each interval in which it has traffic.
pub const PAIRS_MAX: usize = 1 << 24;
const COLUMNS: &str = "interval,source,destination,bytes";

/// Reads a traffic matrix from a file; `-` is standard input.
///
/// # Errors
///
/// When the file cannot be read, or is not a traffic matrix. An error within a line names the line;
/// an error within a row of JSON names the row.
pub fn read(path: &str) -> Result<Traffic, String> {
    let mut bytes = Vec::new();
    let read = match path {
        "-" => std::io::stdin().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes),
        _ => fs::File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)),
    };
    if read.map_err(|error| format!("{path}: {error}"))? as u64 > FILE_BYTES_MAX {
        return Err(format!("{path} is longer than 1 GiB; take longer intervals, or fewer ranks"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("{path}: byte {at} is not text; is it a traffic matrix?")
    })?;
    parse(path, &text)
}

/// Parses a traffic matrix; `name` is the name of the text in errors.
///
/// # Errors
///
/// When the text is not a traffic matrix. An error within a line names the line; an error within a
/// row of JSON names the row.
pub fn parse(name: &str, text: &str) -> Result<Traffic, String> {
    // Some editors write a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    match text.trim_start().starts_with('{') {
        true => parse_json(name, text),
        false => parse_lines(name, text),
    }
}

/// Writes a matrix: JSON if the name ends in `.json`, else text; `-` is standard output.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write(path: &str, traffic: &Traffic) -> Result<(), String> {
    let text = if path.ends_with(".json") { json(traffic)? } else { text(traffic) };
    crate::write_file(path, text.as_bytes())
}

/// Returns a matrix as text.
#[must_use]
pub fn text(traffic: &Traffic) -> String {
    let Traffic { ranks, interval_s, intervals } = traffic;
    let count = intervals.len();
    let mut text =
        format!("# ranks={ranks}\n# interval_s={interval_s}\n# intervals={count}\n{COLUMNS}\n");
    for Row(interval, source, destination, bytes) in rows(traffic) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{interval},{source},{destination},{bytes}");
    }
    text
}

/// Returns a matrix as JSON.
///
/// # Errors
///
/// No error is known to occur: all values are numbers.
pub fn json(traffic: &Traffic) -> Result<String, String> {
    let Traffic { ranks, interval_s, ref intervals } = *traffic;
    let file = File {
        ranks,
        interval_s,
        intervals: Some(intervals.len() as u64),
        rows: rows(traffic).collect(),
    };
    serde_json::to_string(&file).map(|text| text + "\n").map_err(|error| error.to_string())
}

fn rows(traffic: &Traffic) -> impl Iterator<Item = Row> {
    let pairs = |(interval, bytes): (u64, &Bytes)| {
        let sent: Vec<Row> = bytes
            .iter()
            .filter(|(_, bytes)| **bytes > 0)
            .map(|((from, to), bytes)| Row(interval, *from, *to, *bytes))
            .collect();
        sent
    };
    (0..).zip(&traffic.intervals).flat_map(pairs)
}

/// Interval, source, destination and bytes of a line.
#[derive(Deserialize, Serialize)]
struct Row(u64, Rank, Rank, u64);

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    ranks: u32,
    interval_s: f64,
    #[serde(default)]
    intervals: Option<u64>,
    rows: Vec<Row>,
}

/// Matrix that is being read.
struct Reading {
    traffic: Traffic,
    /// Number of intervals, if it is given.
    intervals: Option<usize>,
    /// Sum of all bytes so far.
    sum: u64,
}

/// Longest interval: thirty years.
const INTERVAL_S_MAX: f64 = 1e9;

impl Reading {
    /// Starts a matrix with the values of its header.
    ///
    /// # Errors
    ///
    /// When the header is invalid. The error names neither the file nor the line.
    fn new(ranks: u32, interval_s: f64, intervals: Option<u64>) -> Result<Reading, String> {
        if ranks == 0 || ranks > RANKS_MAX {
            return Err(format!("ranks={ranks}: give 1 to {RANKS_MAX}"));
        }
        if !(interval_s > 0.0 && interval_s <= INTERVAL_S_MAX) {
            return Err(format!(
                "interval_s={interval_s}: give seconds above 0, {INTERVAL_S_MAX:e} at most"
            ));
        }
        let too_many = |count: u64| {
            format!("intervals={count}: give at most {INTERVALS_MAX}; take longer intervals")
        };
        let fits = |count: u64| {
            usize::try_from(count).ok().filter(|count| *count <= INTERVALS_MAX).ok_or(count)
        };
        let intervals = intervals.map(fits).transpose().map_err(too_many)?;
        let traffic = Traffic { ranks, interval_s, intervals: Vec::new() };
        Ok(Reading { traffic, intervals, sum: 0 })
    }

    /// Adds a row.
    ///
    /// # Errors
    ///
    /// When the row is wrong. The error names neither the file nor the row; the caller adds both.
    fn row(&mut self, Row(interval, source, destination, bytes): Row) -> Result<(), String> {
        let Reading { traffic: Traffic { ranks, intervals, .. }, .. } = self;
        for rank in [source, destination] {
            if rank >= *ranks {
                return Err(format!(
                    "there is no rank {rank}: the {ranks} ranks are 0 to {}; raise ranks=, or \
                     leave this row out",
                    *ranks - 1
                ));
            }
        }
        if source == destination {
            return Err(format!(
                "rank {source} sends to itself; leave this row out: it crosses no link"
            ));
        }
        let last = self.intervals.unwrap_or(INTERVALS_MAX);
        let index = usize::try_from(interval).ok().filter(|index| *index < last);
        let index = index.ok_or_else(|| {
            format!(
                "there is no interval {interval}: the number must be below {last}; raise \
                 intervals= if you gave it, or take longer intervals"
            )
        })?;
        let sum = self.sum.checked_add(bytes);
        self.sum = sum.ok_or("all bytes together are 2^64 or more; is the unit bytes?")?;
        if intervals.len() <= index {
            intervals.resize_with(index + 1, Bytes::new);
        }
        let known = intervals.get_mut(index).and_then(|sent| {
            // Entries of 0 bytes are kept for now, so that a repeated line is always an error.
            sent.insert((source, destination), bytes)
        });
        match known {
            None => Ok(()),
            Some(before) => Err(format!(
                "interval {interval} has two rows for rank {source} to rank {destination}, with \
                 {before} and {bytes} bytes; add them up in one row"
            )),
        }
    }

    fn done(self) -> Traffic {
        let Reading { mut traffic, intervals, .. } = self;
        if let Some(count) = intervals {
            traffic.intervals.resize_with(count, Bytes::new);
        }
        traffic.intervals.iter_mut().for_each(|sent| sent.retain(|_, bytes| *bytes > 0));
        traffic
    }
}

fn parse_json(name: &str, text: &str) -> Result<Traffic, String> {
    let file: File = serde_json::from_str(text).map_err(|error| {
        format!(
            "{name}:{}: {error}; a matrix is {{\"ranks\": 2, \"interval_s\": 1, \"rows\": \
             [[interval, source, destination, bytes]]}}, all whole numbers except interval_s",
            error.line()
        )
    })?;
    let head = Reading::new(file.ranks, file.interval_s, file.intervals);
    let mut reading = head.map_err(|what| format!("{name}: {what}"))?;
    for (index, row) in file.rows.into_iter().enumerate() {
        reading.row(row).map_err(|what| format!("{name}: rows[{index}]: {what}"))?;
    }
    Ok(reading.done())
}

/// Values of the header, above the line with the names of the columns.
#[derive(Default)]
struct Head {
    ranks: Option<u32>,
    interval_s: Option<f64>,
    intervals: Option<u64>,
}

impl Head {
    /// Parses one line of the header; ignores a line without a known key.
    fn line(&mut self, line: &str) -> Result<(), String> {
        let Some((key, value)) = line.trim_start_matches('#').split_once('=') else {
            return Ok(());
        };
        fn set<T: std::str::FromStr>(
            to: &mut Option<T>,
            (key, value): (&str, &str),
        ) -> Result<(), String> {
            if to.is_some() {
                return Err(format!("{key}= is there twice; leave one out"));
            }
            let value = value.parse();
            *to = Some(value.map_err(|_| {
                format!("the value of {key}= is not a number that fits; write {key}=1, for example")
            })?);
            Ok(())
        }
        let given = (key.trim(), value.trim());
        match given.0 {
            "ranks" => set(&mut self.ranks, given),
            "interval_s" => set(&mut self.interval_s, given),
            "intervals" => set(&mut self.intervals, given),
            _ => Ok(()),
        }
    }

    fn reading(&self) -> Result<Reading, String> {
        let missing = |key| format!("# {key}= is missing; write it above \"{COLUMNS}\"");
        let ranks = self.ranks.ok_or_else(|| missing("ranks"))?;
        let interval_s = self.interval_s.ok_or_else(|| missing("interval_s"))?;
        Reading::new(ranks, interval_s, self.intervals)
    }
}

fn parse_lines(name: &str, text: &str) -> Result<Traffic, String> {
    let (mut head, mut reading) = (Head::default(), None);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let at = |what: String| format!("{name}:{}: {what}", index + 1);
        match &mut reading {
            _ if line.is_empty() => {}
            None if line.starts_with('#') => head.line(line).map_err(at)?,
            None if line.replace(' ', "") == COLUMNS => {
                reading = Some(head.reading().map_err(at)?);
            }
            None => return Err(at(format!("write \"{COLUMNS}\" above the first row"))),
            Some(_) if line.starts_with('#') => {}
            Some(reading) => reading.row(row(line).map_err(at)?).map_err(at)?,
        }
    }
    let reading = reading.ok_or_else(|| {
        format!(
            "{name} has no line \"{COLUMNS}\"; is it a traffic matrix, and is the file complete?"
        )
    })?;
    Ok(reading.done())
}

fn row(line: &str) -> Result<Row, String> {
    let mut fields = line.split(',').map(str::trim);
    let mut next = |what: &str| {
        let field = fields.next().ok_or_else(|| format!("{what} is missing; write {COLUMNS}"))?;
        let advice = || format!("{what} {field:?} is no whole number from 0 to 2^64 - 1");
        field.parse::<u64>().map_err(|_| advice())
    };
    let interval = next("interval")?;
    let mut rank = |what: &str| next(what).map(|rank| Rank::try_from(rank).unwrap_or(Rank::MAX));
    let (source, destination) = (rank("source")?, rank("destination")?);
    let bytes = next("bytes")?;
    match fields.next() {
        None => Ok(Row(interval, source, destination, bytes)),
        Some(more) => Err(format!("{more:?} is a column too many; write {COLUMNS}")),
    }
}

/// Fuzz target: a matrix that is written and read again is the same matrix.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzzed(data: &[u8]) {
    let Ok(traffic) = parse("input", &String::from_utf8_lossy(data)) else { return };
    for text in [text(&traffic), json(&traffic).unwrap_or_default()] {
        assert_eq!(parse("again", &text), Ok(traffic.clone()), "{text}");
    }
    let _ = traffic.whole();
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# ranks=4\n# interval_s=0.5\ninterval,source,destination,bytes\n";

    fn refused(text: &str) -> String {
        parse("m.csv", text).expect_err(text)
    }

    #[test]
    fn a_written_matrix_is_read_back_unchanged() {
        let some: Bytes = [((0, 1), 7), ((3, 2), u64::MAX - 8)].into();
        for intervals in [vec![], vec![Bytes::new()], vec![Bytes::new(), some, Bytes::new()]] {
            let traffic = Traffic { ranks: 4, interval_s: 1.0 / 3.0, intervals };
            assert_eq!(parse("text", &text(&traffic)), Ok(traffic.clone()));
            assert_eq!(parse("json", &json(&traffic).unwrap()), Ok(traffic));
        }
    }

    #[test]
    fn variant_spellings_of_the_text_are_accepted() {
        let habits = "\u{feff}# made by hand\r\n#ranks = 4\r\n# interval_s = 5e-1\r\n\r\n\
                      interval, source, destination, bytes\r\n1, 0, 3, 12\r\n# and\r\n0,1,2,0";
        let traffic = parse("m.csv", habits).unwrap();
        assert_eq!((traffic.ranks, traffic.interval_s), (4, 0.5));
        assert_eq!(traffic.intervals, [Bytes::new(), [((0, 3), 12)].into()]);
    }

    #[test]
    fn a_wrong_line_is_refused_with_its_number_and_the_reason() {
        for (row, said) in [
            ("0,0,4,1", "there is no rank 4: the 4 ranks are 0 to 3; raise ranks="),
            ("0,99999999999,1,1", "there is no rank 4294967295"),
            ("0,1,1,1", "rank 1 sends to itself; leave this row out"),
            ("0,0,1,-5", "bytes \"-5\" is no whole number"),
            ("0,0,1,NaN", "bytes \"NaN\" is no whole number"),
            ("0,0,1,1e9", "bytes \"1e9\" is no whole number"),
            ("0,0,1,18446744073709551616", "is no whole number from 0 to 2^64 - 1"),
            ("0,0,1", "bytes is missing; write interval,source"),
            ("0,0,1,5,6", "\"6\" is a column too many"),
            (
                "0,0,1,5\n0,0,1,5",
                ":5: interval 0 has two rows for rank 0 to rank 1, with 5 and 5 bytes; add them up",
            ),
            ("0,0,1,0\n0,0,1,0", ":5: interval 0 has two rows for rank 0 to rank 1"),
            ("0,0,1,18446744073709551615\n9,1,0,1", ":5: all bytes together are 2^64 or more"),
            (
                "9999999999,0,1,1",
                "there is no interval 9999999999: the number must be below 1048576",
            ),
        ] {
            let error = refused(&format!("{HEAD}{row}\n"));
            assert!(error.starts_with("m.csv:") && error.contains(said), "{row}: {error}");
            assert!(said.starts_with(':') || error.starts_with("m.csv:4:"), "{row}: {error}");
        }
    }

    #[test]
    fn a_wrong_header_is_refused_with_the_reason() {
        for (change, to, said) in [
            ("# ranks=4\n", "", "m.csv:2: # ranks= is missing; write it above"),
            ("interval_s", "seconds", "# interval_s= is missing"),
            ("ranks=4", "ranks=0", "give 1 to 262144"),
            ("ranks=4", "ranks=4000000", "give 1 to 262144"),
            ("ranks=4", "ranks=-4", "m.csv:1: the value of ranks= is not a number that fits"),
            ("ranks=4", "ranks=4\n# ranks=4", "m.csv:2: ranks= is there twice"),
            ("=0.5", "=NaN", "interval_s=NaN: give seconds above 0"),
            ("=0.5", "=inf", "give seconds above 0"),
            ("=0.5", "=-1", "give seconds above 0"),
            ("=0.5", "=0", "give seconds above 0"),
            ("=0.5", "=0.5\n# intervals=9999999999", "give at most 1048576"),
            (COLUMNS, "0,0,1,5", "m.csv:3: write \"interval,source"),
            (HEAD, "", "has no line \"interval"),
        ] {
            let error = refused(&HEAD.replace(change, to));
            assert!(error.starts_with("m.csv") && error.contains(said), "{to}: {error}");
        }
    }

    #[test]
    fn json_is_checked_as_strictly_as_text() {
        let row = |row: &str| format!("{{\"ranks\": 4, \"interval_s\": 0.5,\n\"rows\": [{row}]}}");
        assert_eq!(parse("m.json", &row("[0, 0, 1, 5]")).unwrap().whole(), [((0, 1), 5)].into());
        for (given, said) in [
            ("[0, 0, 4, 5]", "m.json: rows[0]: there is no rank 4"),
            ("[0, 0, 1, 5], [0, 0, 1, 5]", "rows[1]: interval 0 has two rows for rank 0 to rank 1"),
            ("[0, 0, 1, -5]", "m.json:2: invalid value"),
            ("[0, 0, 1, NaN]", "m.json:2: "),
            ("[0, 0, 1, 0.5]", "m.json:2: invalid type"),
            ("[0, 0, 1]", "m.json:2: invalid length"),
            ("[0, 0, 1, 5", "m.json:2: expected"),
        ] {
            let error = parse("m.json", &row(given)).unwrap_err();
            assert!(error.starts_with("m.json") && error.contains(said), "{given}: {error}");
        }
        let error = parse("m.json", "{\"ranks\": 4, \"interval_s\": null, \"rows\": []}");
        assert!(error.unwrap_err().contains("all whole numbers except interval_s"));
    }
}
