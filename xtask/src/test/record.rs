//! docs/full-run.md: the time, commit and result of the last run of each suite of the deep tier.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::suites::SUITES;
use crate::workspace::root;
use crate::{Outcome, process, report};

/// Path of the page, relative to the root.
const RECORD: &str = "docs/full-run.md";
const HEAD: [&str; 7] = ["suite", "date", "commit", "time", "passed/failed", "result", "machine"];
const INTRODUCTION: &str = "\
# The deep tier's last runs

Written by `cargo xtask test --full`, a row per suite: a run of one suite (`--full --suite NAME`)
renews its row and keeps the others. `cargo xtask test` prints how many commits ago each suite ran.
";
const PATIENCE: Duration = Duration::from_secs(20);

/// Last run of one suite, as the columns of [`HEAD`].
pub(crate) type Row = [String; 7];

/// Replaces the rows of suites that have run.
pub(crate) fn update(rows: &[Row]) -> Outcome {
    let path = root().join(RECORD);
    let before = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, page(&before, rows))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    println!("recorded in {RECORD}");
    Ok(())
}

fn page(before: &str, news: &[Row]) -> String {
    let old = parse(before);
    let rows = SUITES.iter().filter_map(|suite| {
        let row = |rows: &[Row]| rows.iter().find(|row| row[0] == suite.name).cloned();
        row(news).or_else(|| row(&old)).map(Vec::from)
    });
    format!("{INTRODUCTION}\n{}", report::table(&HEAD, &rows.collect::<Vec<_>>()))
}

fn parse(page: &str) -> Vec<Row> {
    let rows = page.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    rows.filter_map(|line| Row::try_from(cells(line)).ok()).collect()
}

/// Returns one line per suite of the deep tier, with the number of commits since its last run.
pub(crate) fn ages() -> Vec<String> {
    let page = fs::read_to_string(root().join(RECORD)).unwrap_or_default();
    let rows = parse(&page);
    let deep = SUITES.iter().filter(|suite| !suite.deep.is_empty());
    let age = |name: &str| match rows.iter().find(|row| row[0] == name) {
        None => format!("{name}: never run"),
        Some([_, date, commit, _, _, result, _]) => {
            let since = commits_since(commit).map_or_else(
                || format!("commit {commit} is not in this history"),
                |count| format!("{count} commits ago"),
            );
            format!("{name}: {result}, {since}, {date}")
        }
    };
    deep.map(|suite| age(suite.name)).collect()
}

/// Returns the number of commits since `commit`; `None` if git cannot tell. Words may follow the
/// hash in `commit`, such as "with local changes".
fn commits_since(commit: &str) -> Option<u64> {
    let commit = commit.split_whitespace().next()?;
    let mut command = Command::new("git");
    command.current_dir(root()).args(["rev-list", "--count", &format!("{commit}..HEAD")]);
    let mut count = None;
    // A line may also be an error message of git, which is never a number.
    let end = process::run(&mut command, PATIENCE, |line| count = line.trim().parse().ok());
    end.ok().filter(|end| end.success())?;
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(suite: &str, commit: &str) -> Row {
        [suite, "2026-01-01", commit, "1 s", "1/0", "ok", "some CPU"].map(str::to_owned)
    }

    #[test]
    fn a_suite_that_ran_renews_only_its_own_row() {
        let first = page("", &[row("unit", "one"), row("verifier", "one")]);
        let second = page(&first, &[row("unit", "two")]);
        assert_eq!(parse(&second), [row("verifier", "one"), row("unit", "two")]);
        // A suite that is not in the table of suites gets no row.
        assert_eq!(parse(&page(&first, &[row("gone", "two")])).len(), 2);
    }

    #[test]
    fn each_suite_of_the_deep_tier_has_an_age() {
        let deep = SUITES.iter().filter(|suite| !suite.deep.is_empty()).count();
        assert_eq!(ages().len(), deep);
        assert_eq!(commits_since("no-such-commit"), None);
        assert_eq!(commits_since("HEAD with local changes"), Some(0));
    }
}
