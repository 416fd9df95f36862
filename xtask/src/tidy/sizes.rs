//! Limits on the lines of files and functions, and on columns.

use std::collections::BTreeMap;

use super::Finding;
use super::source::Source;

/// Largest number of lines of a file.
pub(super) const FILE_LINES_MAX: usize = 1000;
/// Largest number of lines of a function, from `fn` to its closing brace.
pub(super) const FUNCTION_LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 100;

/// A file or function over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Giant {
    /// Line of its start, counted from 1.
    pub(super) line: usize,
    /// Number of its lines.
    pub(super) lines: usize,
}

/// Files and functions over the limits, keyed by their names in the baseline (the list of tolerated
/// sizes): `path` or `path::function`. If several functions of a file have the same name, the
/// longest counts.
#[derive(Debug, Default)]
pub(super) struct Giants {
    pub(super) files: BTreeMap<String, Giant>,
    pub(super) functions: BTreeMap<String, Giant>,
}

impl Giants {
    /// Adds a file, and functions in it, if they are over the limits.
    pub(super) fn collect(&mut self, path: &str, text: &str, source: &Source) {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            self.files.insert(path.to_owned(), Giant { line: 1, lines });
        }
        for function in source.functions.iter().filter(|f| f.lines > FUNCTION_LINES_MAX) {
            let giant = Giant { line: function.line, lines: function.lines };
            let longest =
                self.functions.entry(format!("{path}::{}", function.name)).or_insert(giant);
            if giant.lines > longest.lines {
                *longest = giant;
            }
        }
    }
}

/// Finds lines over 100 columns, except lines with a web address, which cannot be broken.
pub(super) fn columns(path: &str, text: &str) -> Vec<Finding> {
    let long = text.lines().enumerate().filter_map(|(index, line)| {
        let columns = line.chars().count();
        let too_long = columns > COLUMNS_MAX && !line.contains("https://");
        too_long.then(|| {
            let message = format!("{columns} columns, at most {COLUMNS_MAX}: break the line");
            Finding::new(path, index + 1, message)
        })
    });
    long.collect()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn giants(text: &str) -> Giants {
        let mut giants = Giants::default();
        giants.collect("a.rs", text, &source::read(text).unwrap());
        giants
    }

    /// Returns the text of a function of `lines` lines.
    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    //\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_71_lines_is_a_giant_and_one_of_70_is_not() {
        assert!(giants(&function("f", 70)).functions.is_empty());
        let found = giants(&format!("\n{}", function("f", 71))).functions;
        assert_eq!(found.get("a.rs::f"), Some(&Giant { line: 2, lines: 71 }));
    }

    #[test]
    fn the_longest_of_several_functions_with_the_same_name_counts() {
        let text = format!("mod a {{\n{}}}\n{}", function("f", 90), function("f", 80));
        assert_eq!(giants(&text).functions.get("a.rs::f").map(|giant| giant.lines), Some(90));
    }

    #[test]
    fn a_file_of_1001_lines_is_a_giant_and_one_of_1000_is_not() {
        assert!(giants(&"//\n".repeat(1000)).files.is_empty());
        assert_eq!(giants(&"//\n".repeat(1001)).files.get("a.rs").map(|g| g.lines), Some(1001));
    }

    #[test]
    fn columns_are_characters_not_bytes() {
        let wide = format!("//{}", "é".repeat(98));
        assert!(columns("a.rs", &wide).is_empty());
        assert_eq!(columns("a.rs", &format!("\n{wide}é\n")).len(), 1);
        assert_eq!(columns("a.rs", &format!("\n{wide}é\n"))[0].line, 2);
        assert!(columns("a.rs", &format!("// https://{}", "x".repeat(100))).is_empty());
    }
}
