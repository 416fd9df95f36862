//! Judge of the reports of a job that met a fault. The tests below check that the judge rejects
//! reports that are wrong in any way.

use super::rank::{Agreed, Report};
use super::{Fault, RANKS};
use ccl_core::types::Rank;
use ccl_harness::stretched;
use std::time::Duration;

/// Promised longest time from a fault to the error of every survivor, in milliseconds.
const ENDED_MS: u64 = 5000;
/// Promised longest time over libfabric.
const OFI_ENDED: Duration = Duration::from_secs(15);

/// Returns [`ENDED_MS`], stretched for this machine.
pub(super) fn ended_ms() -> u64 {
    stretched(Duration::from_millis(ENDED_MS)).as_millis() as u64
}

/// Returns the promised longest time over libfabric, in milliseconds. If connections are reset, the
/// provider may lose messages without a report, and only the ranks' own reports show the loss. They
/// come once a second and are compared for 10 s, which leaves little of the time: so the time is
/// stretched for this machine.
pub(super) fn ofi_ended_ms(fault: Fault) -> u64 {
    let within = if fault == Fault::Broken { stretched(OFI_ENDED) } else { OFI_ENDED };
    within.as_millis() as u64
}

/// Expected end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Right data on all ranks.
    Completes,
    /// Errors on all ranks whose processes are alive.
    Fails(Failure),
}

/// Failure that ranks must notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Time of the failure, by the system's clock.
    pub(super) at_ms: u64,
    /// Longest time from the failure to the error of every survivor.
    pub(super) within_ms: u64,
    /// Ranks that the survivors must find dead. If there are none, each error must still name a
    /// rank, no matter which one.
    pub(super) dead: Vec<Rank>,
    /// Ranks of `dead` whose processes are still alive. They must end with errors, too, and without
    /// an agreement.
    pub(super) outcasts: Vec<Rank>,
    /// Time from which the outcasts can notice the failure, by the system's clock.
    pub(super) woken_ms: u64,
    /// Maximum number of operations by which a rank may be ahead of the slowest survivor.
    pub(super) lead_max: u64,
}

fn named(error: &str) -> Option<Rank> {
    let (before, _) = error.split_once(" failed: ")?;
    before.rsplit_once("rank ")?.1.parse().ok()
}

/// Judges a job. Returns a short description of the result, or an error that says what is wrong. A
/// killed rank has no report. `L` in a description is the last operation that all survivors
/// completed.
pub(super) fn judge(expected: &Expected, reports: &[Option<Report>]) -> Result<String, String> {
    if reports.len() != RANKS as usize {
        return Err(format!("{} reports of {RANKS} ranks", reports.len()));
    }
    for (rank, report) in reports.iter().enumerate() {
        let Some(report) = report else { continue };
        if report.rank as usize != rank {
            return Err(format!("rank {rank} calls itself rank {}", report.rank));
        }
        if let Some(wrong) = &report.wrong {
            return Err(format!("rank {rank} has wrong data: {wrong}"));
        }
    }
    match expected {
        Expected::Completes => completes(reports),
        Expected::Fails(failure) => fails(failure, reports),
    }
}

fn completes(reports: &[Option<Report>]) -> Result<String, String> {
    let mut all = None;
    for (rank, report) in reports.iter().enumerate() {
        let Some(report) = report else { return Err(format!("no report of rank {rank}")) };
        if let Some(error) = &report.error {
            return Err(format!("rank {rank} did not complete: {error}"));
        }
        if report.completed != *all.get_or_insert(report.completed) {
            return Err(format!(
                "rank {rank} has completed {} operations, not {all:?}",
                report.completed
            ));
        }
    }
    match all {
        Some(1..) => Ok("completes".to_owned()),
        _ => Err("nothing was completed".to_owned()),
    }
}

fn fails(failure: &Failure, reports: &[Option<Report>]) -> Result<String, String> {
    let survivors: Vec<Rank> = (0..RANKS).filter(|rank| !failure.dead.contains(rank)).collect();
    let blamed = if failure.dead.is_empty() { &survivors } else { &failure.dead };
    let mut agreed: Option<&Agreed> = None;
    let (mut latest_ms, mut least) = (0, u64::MAX);
    for &rank in &survivors {
        let report = reports[rank as usize].as_ref();
        let report = report.ok_or_else(|| format!("no report of survivor {rank}"))?;
        latest_ms = latest_ms.max(in_time(report, failure.at_ms, failure.within_ms)?);
        if report.agreed_ms > failure.at_ms + failure.within_ms {
            let took_ms = report.agreed_ms - failure.at_ms;
            return Err(format!("rank {rank}: the agreement took {took_ms} ms"));
        }
        let error = report.error.as_deref().unwrap_or_default();
        if !named(error).is_some_and(|name| blamed.contains(&name)) {
            return Err(format!("the error of rank {rank} names no rank of {blamed:?}: {error}"));
        }
        let Some(own) = &report.agreed else {
            return Err(format!("rank {rank} has no verdict: {:?}", report.disagreed));
        };
        if agreed.get_or_insert(own) != &own {
            return Err(format!("rank {rank} says {own:?}, another rank {agreed:?}"));
        }
        least = least.min(report.completed);
    }
    let Some(agreed) = agreed else { return Err("nobody survived".to_owned()) };
    if agreed.dead != failure.dead || agreed.survivors != survivors {
        return Err(format!("the dead are {:?}, but the verdict is {agreed:?}", failure.dead));
    }
    if !blamed.iter().any(|rank| agreed.cause.contains(&format!("rank {rank} "))) {
        return Err(format!("the cause names no rank of {blamed:?}: {}", agreed.cause));
    }
    if agreed.last_completed != least {
        return Err(format!(
            "all survivors completed {least} operations, but the verdict says {}",
            agreed.last_completed
        ));
    }
    for report in reports.iter().flatten() {
        if report.completed > least + failure.lead_max {
            return Err(format!(
                "rank {} is at {} operations, the slowest survivor at {least}",
                report.rank, report.completed
            ));
        }
    }
    outcasts(failure, &survivors, reports)?;
    let dead: Vec<String> = blamed.iter().map(ToString::to_string).collect();
    let dead = dead.join(", ");
    Ok(format!("errors name {dead} within {:.1} s, same L", latest_ms as f64 / 1000.0))
}

/// Returns the milliseconds from the fault to the rank's error. Returns an error if the rank did
/// not fail in time, or if its next operation succeeded.
fn in_time(report: &Report, since_ms: u64, within_ms: u64) -> Result<u64, String> {
    let (rank, at_ms) = (report.rank, report.error_ms);
    if report.error.is_none() {
        return Err(format!("rank {rank} did not notice the fault"));
    }
    if at_ms < since_ms {
        return Err(format!("rank {rank}: the error came before the fault: {report:?}"));
    }
    if at_ms > since_ms + within_ms {
        return Err(format!("rank {rank}: the error took {} ms", at_ms - since_ms));
    }
    if report.later.is_none() {
        return Err(format!("rank {rank} goes on after the failure"));
    }
    Ok(at_ms - since_ms)
}

fn outcasts(
    failure: &Failure,
    survivors: &[Rank],
    reports: &[Option<Report>],
) -> Result<(), String> {
    for &rank in &failure.dead {
        let expected = failure.outcasts.contains(&rank);
        let Some(report) = &reports[rank as usize] else {
            if expected {
                return Err(format!("no report of rank {rank}, which lives"));
            }
            continue;
        };
        if !expected {
            return Err(format!("rank {rank} is dead, but reports {report:?}"));
        }
        in_time(report, failure.woken_ms, failure.within_ms)?;
        if let Some(agreed) = &report.agreed {
            return Err(format!("rank {rank} is dead, but has a verdict: {agreed:?}"));
        }
        let error = report.error.as_deref().unwrap_or_default();
        // A rank that was stopped learns that it counts as dead, or that the others have gone.
        if !named(error).is_some_and(|name| name == rank || survivors.contains(&name)) {
            return Err(format!(
                "the error of rank {rank} names no rank of {survivors:?}: {error}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        Failure {
            at_ms: 1000,
            within_ms: ENDED_MS,
            dead: vec![2],
            outcasts: vec![2],
            woken_ms: 4000,
            lead_max: 1,
        }
    }

    /// Returns the right reports of a job whose rank 2 was stopped.
    fn right() -> Vec<Option<Report>> {
        let report = |rank: Rank| {
            let name = if rank == 2 { 1 } else { 2 };
            let agreed = Agreed {
                last_completed: 40,
                dead: vec![2],
                survivors: vec![0, 1, 3],
                cause: "rank 2 has been silent".to_owned(),
            };
            Some(Report {
                rank,
                completed: 40 + u64::from(rank == 1),
                error: Some(format!("rank {rank} in all_reduce #41: rank {name} failed: silent")),
                error_ms: 4100,
                agreed: (rank != 2).then_some(agreed),
                disagreed: (rank == 2).then(|| "declared dead".to_owned()),
                agreed_ms: 4200,
                later: Some("broken".to_owned()),
                wrong: None,
            })
        };
        (0..RANKS).map(report).collect()
    }

    /// Returns the judge's error after a change to the report of a rank.
    fn said(rank: usize, change: impl Fn(&mut Report)) -> String {
        let mut reports = right();
        change(reports[rank].as_mut().unwrap());
        judge(&Expected::Fails(failure()), &reports).unwrap_err()
    }

    fn change_agreed(rank: usize, change: impl Fn(&mut Agreed)) -> String {
        said(rank, |report| change(report.agreed.as_mut().unwrap()))
    }

    #[test]
    fn correct_reports_of_a_failure_are_accepted() {
        let said = judge(&Expected::Fails(failure()), &right()).unwrap();
        assert_eq!(said, "errors name 2 within 3.1 s, same L");
        let mut killed = right();
        killed[2] = None;
        let failure = Failure { outcasts: Vec::new(), ..failure() };
        judge(&Expected::Fails(failure.clone()), &killed).unwrap();
        assert!(
            judge(&Expected::Fails(failure), &right()).is_err(),
            "the judge accepts a report of a killed rank"
        );
    }

    #[test]
    fn errors_that_name_wrong_ranks_are_noticed() {
        let rename = |from: &'static str, to: &'static str| {
            move |report: &mut Report| {
                report.error = report.error.take().map(|error| error.replace(from, to));
            }
        };
        assert!(said(0, rename("rank 2 failed", "rank 1 failed")).contains("names no rank of [2]"));
        assert!(said(3, rename("rank 2 failed", "it failed")).contains("names no rank of [2]"));
        assert!(said(0, rename("rank 2 failed", "rank 12 failed")).contains("names no rank"));
        assert!(said(2, rename("rank 1 failed", "nobody failed")).contains("names no rank of [0"));
        let cause = |agreed: &mut Agreed| agreed.cause = "rank 1 has been silent".to_owned();
        assert!(change_agreed(1, cause).contains("says"));
        let mut reports = right();
        for report in reports.iter_mut().flatten() {
            report.agreed.as_mut().map(cause);
        }
        let said = judge(&Expected::Fails(failure()), &reports).unwrap_err();
        assert!(said.contains("the cause names no rank of [2]"), "{said}");
    }

    #[test]
    fn a_wrong_last_operation_is_noticed() {
        assert!(change_agreed(3, |agreed| agreed.last_completed += 1).contains("rank 3 says"));
        for wrong in [39, 41] {
            let mut reports = right();
            for report in reports.iter_mut().flatten() {
                report.agreed.iter_mut().for_each(|agreed| agreed.last_completed = wrong);
            }
            let said = judge(&Expected::Fails(failure()), &reports).unwrap_err();
            assert_eq!(
                said,
                format!("all survivors completed 40 operations, but the verdict says {wrong}")
            );
        }
        assert!(said(1, |report| report.completed = 42).contains("rank 1 is at 42"));
        assert!(said(2, |report| report.completed = 42).contains("rank 2 is at 42"));
        assert!(said(0, |report| report.completed = 39).contains("completed 39 operations"));
    }

    #[test]
    fn a_wrong_list_of_survivors_is_noticed() {
        assert!(change_agreed(0, |agreed| agreed.dead.push(3)).contains("another"));
        let mut reports = right();
        for agreed in reports.iter_mut().flatten().filter_map(|report| report.agreed.as_mut()) {
            agreed.dead = vec![2, 3];
            agreed.survivors = vec![0, 1];
        }
        assert!(judge(&Expected::Fails(failure()), &reports).unwrap_err().contains("the dead are"));
        let agreed = right()[0].clone().unwrap().agreed;
        assert!(said(2, |report| report.agreed = agreed.clone()).contains("is dead, but has"));
        assert!(said(0, |report| report.agreed = None).contains("no verdict"));
    }

    #[test]
    fn late_and_early_errors_are_noticed() {
        assert!(said(0, |report| report.agreed_ms = 6001).contains("agreement took 5001 ms"));
        assert!(said(0, |report| report.error_ms = 6001).contains("error took 5001 ms"));
        assert!(said(2, |report| report.error_ms = 9001).contains("error took 5001 ms"));
        assert!(said(1, |report| report.error_ms = 999).contains("before the fault"));
    }

    #[test]
    fn ranks_that_miss_the_fault_or_do_not_report_are_noticed() {
        assert!(said(1, |report| report.error = None).contains("rank 1 did not notice"));
        assert!(said(1, |report| report.later = None).contains("rank 1 goes on"));
        assert!(said(1, |report| report.rank = 0).contains("calls itself"));
        for rank in 0..4 {
            let mut reports = right();
            reports[rank] = None;
            let said = judge(&Expected::Fails(failure()), &reports).unwrap_err();
            assert!(said.contains("no report of "), "{said}");
        }
        assert!(judge(&Expected::Fails(failure()), &right()[..3]).is_err());
    }

    #[test]
    fn wrong_data_is_noticed_for_every_expected_end() {
        let mut reports = right();
        reports[3].as_mut().unwrap().wrong = Some("element 7".to_owned());
        for expected in [Expected::Completes, Expected::Fails(failure())] {
            assert!(judge(&expected, &reports).unwrap_err().contains("rank 3 has wrong data"));
        }
    }

    #[test]
    fn completion_requires_all_ranks_and_all_operations() {
        let report = |rank| Report { rank, completed: 9, ..Report::default() };
        let all: Vec<_> = (0..RANKS).map(|rank| Some(report(rank))).collect();
        assert_eq!(judge(&Expected::Completes, &all).unwrap(), "completes");
        assert!(
            judge(&Expected::Fails(failure()), &all).is_err(),
            "the judge accepts a failure that nobody noticed"
        );
        assert!(judge(&Expected::Completes, &right()).unwrap_err().contains("did not complete"));
        let change = |change: &dyn Fn(&mut Option<Report>)| {
            let mut all = all.clone();
            change(&mut all[1]);
            judge(&Expected::Completes, &all).unwrap_err()
        };
        assert!(change(&|report| *report = None).contains("no report of rank 1"));
        assert!(change(&|report| report.as_mut().unwrap().completed = 8).contains("rank 1 has"));
        let none: Vec<_> =
            (0..RANKS).map(|rank| Some(Report { rank, ..Report::default() })).collect();
        assert!(judge(&Expected::Completes, &none).is_err());
    }
}
