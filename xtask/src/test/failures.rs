//! Output of failures, repeated at the end of the log: readers look there first, and often only the
//! end of a long log is shown.

/// Line that begins libtest's report of failed tests. Further down in the report, the same line
/// begins the list of the failed tests' names.
const HEADING: &str = "failures:";
/// Start of the line that ends libtest's report.
const RESULT: &str = "test result: ";
/// Texts by which a line is recognised as the error report of a check, a sanitizer or a fuzzer.
const COMPLAINTS: [&str; 4] = ["| FAILED: ", "==ERROR: ", "SUMMARY: ", "ERROR: libFuzzer"];
/// Largest number of lines that are kept because they have one of the [`COMPLAINTS`].
const COMPLAINTS_MAX: usize = 20;
/// Number of lines that are kept from the start of one binary's report: the reason comes first,
/// then a backtrace or a log. The names of failed tests and the result are always kept.
const LINES_MAX: usize = 60;

/// Collector of failures from the output of test binaries.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    kept: Vec<String>,
    /// Number of lines of the current report that may still be kept; `None` outside of reports.
    left: Option<usize>,
    complaints: usize,
}

impl Failures {
    /// Keeps `line` if it is part of a report of failures or has one of the [`COMPLAINTS`].
    pub(crate) fn add_line(&mut self, line: &str) {
        if line.trim() == HEADING && self.left.is_none() {
            self.left = Some(LINES_MAX);
        }
        let Some(left) = self.left else {
            let complains = COMPLAINTS.iter().any(|complaint| line.contains(complaint));
            if complains && self.complaints < COMPLAINTS_MAX {
                self.complaints += 1;
                self.kept.push(line.to_owned());
            }
            return;
        };
        let is_result = line.trim_start().starts_with(RESULT);
        // The indented names precede the result; they are kept even if the log exceeds the limit.
        let is_name = line.starts_with("    ") && line.trim().split("::").all(is_identifier);
        if left > 0 || is_result || is_name {
            self.kept.push(line.to_owned());
        }
        self.left = (!is_result).then(|| left.saturating_sub(1));
    }

    /// Returns all kept lines; `None` if there are none.
    pub(crate) fn told(&self) -> Option<String> {
        (!self.kept.is_empty()).then(|| self.kept.join("\n"))
    }
}

fn is_identifier(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &[&str]) -> Option<String> {
        let mut failures = Failures::default();
        lines.iter().for_each(|line| failures.add_line(line));
        failures.told()
    }

    #[test]
    fn the_output_of_successful_tests_is_left_out() {
        assert_eq!(told(&["test a ... ok", "", "test result: ok. 1 passed; 0 failed"]), None);
    }

    #[test]
    fn the_reasons_and_the_failed_tests_of_every_binary_are_kept() {
        let one = ["failures:", "", "---- a stdout ----", "it broke", "failures:", "    a::b"];
        let result = ["test result: FAILED. 0 passed; 1 failed"];
        let between = ["Running tests/x.rs", "test c ... ok"];
        let lines = [&one[..], &result, &between, &one, &result].concat();
        let expected = [&one[..], &result, &one, &result].concat().join("\n");
        assert_eq!(told(&lines), Some(expected));
    }

    #[test]
    fn a_line_in_which_a_check_says_why_it_failed_is_kept() {
        let lines = ["| check | result |", "| asan  | ok |", "| fuzz  | FAILED: an input |"];
        assert_eq!(told(&lines).unwrap(), lines[2]);
        assert_eq!(told(&["SUMMARY: x"; 1000]).unwrap().lines().count(), COMPLAINTS_MAX);
    }

    #[test]
    fn a_long_log_is_cut_but_the_names_of_failed_tests_are_kept() {
        let mut lines = vec!["failures:"];
        lines.extend(vec!["a log's line"; 1000]);
        lines.extend(["failures:", "    a::b", "", "test result: FAILED. 0 passed; 1 failed"]);
        let told = told(&lines).unwrap();
        assert_eq!(told.lines().count(), LINES_MAX + 2);
        assert!(told.contains("    a::b\ntest result: FAILED"), "{told}");
    }
}
