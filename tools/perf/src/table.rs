//! Output in the columns of nccl-tests, so that tools for nccl-tests' output can read it.

use std::fmt::Write as _;

use ccl_traffic::Traffic;

use super::number::general;
use super::options::Options;
use super::report::{Half, Row, evenness};
use super::sizes::Step;
use super::subject::Peer;

/// One rank's line in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLine {
    /// Number of the rank's process.
    pub pid: u32,
    /// Name of the rank's host.
    pub host: String,
}

/// Returns everything above the column titles.
#[must_use]
pub fn header(program: &str, options: &Options, transport: &str, ranks: &[RankLine]) -> String {
    let mut text = format!(
        "# ferroccl version {} commit {} transport {transport}\n\
         # Collective test starting: {program}\n",
        env!("CARGO_PKG_VERSION"),
        ferroccl::tools::COMMIT,
    );
    let (step, unit) = match options.step() {
        Step::Bytes(bytes) => (bytes, "bytes"),
        Step::Factor(factor) => (factor, "factor"),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "# nThread 1 nGpus {} minBytes {} maxBytes {} step: {step}({unit}) warmup iters: {} \
         iters: {} agg iters: {} validation: {} graph: 0",
        options.local_ranks.unwrap_or(1),
        options.min_bytes,
        options.max_bytes,
        options.warmup_iterations,
        options.iterations,
        options.aggregated,
        options.checks,
    );
    match options.blocking {
        1 => text.push_str("# Blocking Enabled: barrier after each call\n"),
        3 => text.push_str("# Blocking Enabled: barrier after each iteration, not timed\n"),
        _ => {}
    }
    text.push_str("#\n# Using devices\n");
    for (rank, line) in ranks.iter().enumerate() {
        let RankLine { pid, host } = line;
        let _ = writeln!(text, "#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} cpu");
    }
    text + "#\n"
}

/// Returns the three lines above the rows.
#[must_use]
pub fn columns() -> String {
    let line = |first: [&str; 5], half: [&str; 4]| {
        let [size, count, data_type, op, root] = first;
        let [time, algorithm, bus, wrong] = half;
        let half = format!("  {time:>7}  {algorithm:>6}  {bus:>6}  {wrong:>6}");
        format!("# {size:>10}  {count:>12}  {data_type:>8}  {op:>6}  {root:>6}{half}{half}\n")
    };
    format!(
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}           out-of-place                       \
         in-place          \n{}{}",
        "",
        "",
        "",
        "",
        "",
        line(["size", "count", "type", "redop", "root"], ["time", "algbw", "busbw", "#wrong"]),
        line(["(B)", "(elements)", "", "", ""], ["(us)", "(GB/s)", "(GB/s)", ""]),
    )
}

/// Returns one row with its line end. A collective without an in-place form has `nan` as its
/// in-place time and bandwidths, and `N/A` as the number of wrong elements.
#[must_use]
pub fn row(row: &Row) -> String {
    let mut text = format!(
        "{:12}  {:12}  {:>8}  {:>6}  {:6}",
        row.size_bytes, row.count, row.data_type, row.op, row.root
    );
    text.push_str(&half(Some(&row.out_of_place)));
    text.push_str(&half(row.in_place.as_ref()));
    text.push('\n');
    text
}

fn half(half: Option<&Half>) -> String {
    let [time, algorithm, bus] = match half {
        Some(half) => [half.times.mean_us, half.algorithm_gbps, half.bus_gbps],
        None => [f64::NAN; 3],
    };
    let wrong = half.and_then(|half| half.wrong).map_or("N/A".to_owned(), |w| general(w as f64));
    format!("  {}  {}  {}  {wrong:>6}", fitted(time, 7), fitted(algorithm, 6), fitted(bus, 6))
}

/// Returns a line on the evenness of rank 0's flows over the equal links of a fabric, for some
/// usual numbers of links; an empty text if rank 0 has no flows.
#[must_use]
pub fn flows(peers: &[Peer]) -> String {
    let (links, loads): (Vec<String>, Vec<String>) = evenness(peers)
        .iter()
        .map(|even| (even.links.to_string(), format!("{:.1}", even.max_to_mean)))
        .unzip();
    if links.is_empty() {
        return String::new();
    }
    let flows: usize = peers.iter().map(|peer| peer.flows.len()).sum();
    let to = match peers.iter().filter(|peer| !peer.flows.is_empty()).count() {
        1 => "1 peer".to_owned(),
        many => format!("{many} peers"),
    };
    format!(
        "# Flows of rank 0      : {flows} to {to}; hashed onto {} links, the fullest link gets {} \
         times the mean\n",
        links.join(", "),
        loads.join(", ")
    )
}

/// Returns a line on the bytes that ranks have sent to each other, in all.
#[must_use]
pub fn traffic(traffic: &Traffic) -> String {
    let whole = traffic.whole();
    let bytes: u64 = whole.values().sum();
    match whole.len() {
        0 => "# Traffic              : none; bytes through shared memory are not counted\n"
            .to_owned(),
        pairs => format!("# Traffic              : {bytes} bytes between {pairs} pairs of ranks\n"),
    }
}

/// Returns a line on the share of each device in the bytes that rank 0 has sent; an empty text if
/// there are fewer than two devices.
#[must_use]
pub fn rails(peers: &[Peer]) -> String {
    let mut devices: Vec<(&str, u64, u64, bool)> = Vec::new();
    for rail in peers.iter().flat_map(|peer| &peer.rails) {
        let known = devices.iter().position(|(device, ..)| *device == rail.device);
        let at = known.unwrap_or(devices.len());
        if known.is_none() {
            devices.push((&rail.device, 0, 0, true));
        }
        let (_, bytes, failures, is_up) = &mut devices[at];
        *bytes += rail.bytes;
        *failures += rail.failures;
        *is_up &= rail.is_up;
    }
    let all: u64 = devices.iter().map(|(_, bytes, ..)| bytes).sum();
    let one = |(device, bytes, failures, is_up): &(&str, u64, u64, bool)| {
        let share = 100.0 * *bytes as f64 / all.max(1) as f64;
        let state = match (failures, is_up) {
            (0, _) => String::new(),
            (1, true) => ", failed once and is back".to_owned(),
            (many, true) => format!(", failed {many} times and is back"),
            (_, false) => ", has failed".to_owned(),
        };
        format!("{device} {share:.0} %{state}")
    };
    match devices.len() {
        0 | 1 => String::new(),
        _ => {
            let devices = devices.iter().map(one).collect::<Vec<_>>().join("; ");
            format!("# Rails of rank 0      : {devices}\n")
        }
    }
}

/// Returns everything below the last row.
#[must_use]
pub fn footer(program: &str, failed: u64, average_bus_gbps: f64) -> String {
    let verdict = if failed == 0 { "OK" } else { "FAILED" };
    format!(
        "# Out of bounds values : {failed} {verdict}\n# Avg bus bandwidth    : {} \n#\n\
         # Collective test concluded: {program}\n",
        general(average_bus_gbps)
    )
}

/// Formats a number with up to two decimals, as many as fit into `width` columns. A number whose
/// integer part does not fit gets the exponential form.
#[must_use]
pub fn fitted(value: f64, width: usize) -> String {
    if value.is_nan() {
        return format!("{:>width$}", "nan");
    }
    let decimals = [2, 1, 0].into_iter().map(|decimals| format!("{value:width$.decimals$}"));
    let fitting = decimals.into_iter().find(|text| text.len() <= width);
    fitting.unwrap_or_else(|| exponential(value, if width >= 7 { 1 } else { 0 }))
}

fn exponential(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) if exponent.starts_with('-') => {
            format!("{mantissa}e-{:0>2}", &exponent[1..])
        }
        Some((mantissa, exponent)) => format!("{mantissa}e+{exponent:0>2}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::timing::Times;
    use super::*;

    #[test]
    fn a_row_has_the_columns_of_nccl_tests() {
        let times = Times { mean_us: 13.27, ..Times::default() };
        let half = Half { times, algorithm_gbps: 4.94, bus_gbps: 4.94, wrong: Some(0) };
        let mut values = Row {
            size_bytes: 65536,
            count: 16384,
            data_type: "float".to_owned(),
            op: "sum".to_owned(),
            root: -1,
            plan: None,
            out_of_place: half,
            in_place: Some(half),
        };
        assert_eq!(
            row(&values),
            "       65536         16384     float     sum      -1    13.27    4.94    4.94       \
             0    13.27    4.94    4.94       0\n"
        );
        values.in_place = None;
        let fields: Vec<String> = row(&values).split_whitespace().map(str::to_owned).collect();
        assert_eq!(fields.len(), 13);
        assert_eq!(fields[9..], ["nan", "nan", "nan", "N/A"]);
        let widths = row(&values).len();
        assert!(columns().lines().skip(1).all(|line| line.len() == widths - 1));
    }

    #[test]
    fn numbers_fit_their_column() {
        assert_eq!(fitted(3.456, 7), "   3.46");
        assert_eq!(fitted(12_345.678, 7), "12345.7");
        assert_eq!(fitted(1_234_567.8, 7), "1234568");
        assert_eq!(fitted(123_456_789.0, 7), "1.2e+08");
        assert_eq!(fitted(12_345_678.0, 6), "1e+07");
        assert_eq!(fitted(f64::NAN, 6), "   nan");
    }
}
