//! Rules for documents: relative links resolve, ARCHITECTURE.md names every crate, every crate has
//! a short README.md, and marks of unfinished work name an issue.

use std::collections::BTreeMap;

use super::Finding;
use crate::workspace::Crate;

/// Marks of unfinished work, assembled so that this file does not contain them.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("TB", "D")];

/// Largest number of lines in the README.md of a crate below the root.
const README_LINES_MAX: usize = 30;

/// Finds marks of unfinished work without an issue such as `#12` on the same line.
pub(super) fn marks(path: &str, text: &str) -> Vec<Finding> {
    let marked = text.lines().enumerate().filter_map(|(index, line)| {
        let mark = MARKS.iter().find(|mark| names(line, mark, |c| c.is_alphanumeric()))?;
        let message =
            format!("{mark} without an issue: finish the work, or name an issue such as #12");
        (!has_issue(line)).then(|| Finding::new(path, index + 1, message))
    });
    marked.collect()
}

fn has_issue(line: &str) -> bool {
    line.split('#').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns whether `text` holds `word` with no `part_of_word` character on either side.
fn names(text: &str, word: &str, part_of_word: impl Fn(char) -> bool) -> bool {
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(&part_of_word) && !after.is_some_and(&part_of_word)
    })
}

/// Finds crates whose directory ARCHITECTURE.md does not name in full.
pub(super) fn architecture(text: Option<&str>, crates: &[Crate]) -> Vec<Finding> {
    const FILE: &str = "ARCHITECTURE.md";
    let Some(text) = text else {
        return vec![Finding::new(FILE, 0, "is missing; it must say what every crate is for")];
    };
    // `ccl-core/memory` does not name `ccl-core`; `ccl-core/` and `ccl-core` do.
    let named = |dir: &str| {
        let text = text.replace("/ ", " ").replace("/`", "`").replace("/\n", "\n");
        names(&text, dir, |c| c.is_alphanumeric() || matches!(c, '-' | '_' | '/'))
    };
    let missing = crates.iter().filter(|found| !found.dir.is_empty() && !named(&found.dir));
    missing
        .map(|found| {
            let message =
                format!("does not name `{}`, the directory of crate `{}`", found.dir, found.name);
            Finding::new(FILE, 0, message)
        })
        .collect()
}

/// Finds crates below the root that have no README.md, or a long one.
pub(super) fn readmes(files: &BTreeMap<String, String>, crates: &[Crate]) -> Vec<Finding> {
    let below = crates.iter().filter(|found| !found.dir.is_empty());
    let found = below.filter_map(|found| {
        let path = format!("{}/README.md", found.dir);
        let message = match files.get(&path).map(|text| text.lines().count()) {
            None => "is missing: say what the crate is for, and how it is used".to_owned(),
            Some(lines) if lines > README_LINES_MAX => {
                format!("{lines} lines, at most {README_LINES_MAX}: link to docs/ instead")
            }
            Some(_) => return None,
        };
        Some(Finding::new(&path, 0, message))
    });
    found.collect()
}

/// Finds relative links of a Markdown file that lead nowhere or out of the repository. `exists`
/// takes a path relative to the root of the tree.
pub(super) fn links(path: &str, text: &str, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            let message = match resolve(path, &target) {
                Target::Elsewhere => continue,
                Target::Inside(found) if exists(&found) => continue,
                Target::Inside(_) => format!("the link to `{target}` leads nowhere"),
                Target::Outside => format!("the link to `{target}` leaves the repository"),
            };
            findings.push(Finding::new(path, index + 1, message));
        }
    }
    findings
}

/// Returns targets of `[text](target)` and `[name]: target` in a line, outside of inline code.
fn targets(line: &str) -> Vec<String> {
    let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let mut found: Vec<String> = plain
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target.to_owned()))
        .collect();
    if let Some((name, target)) = plain.split_once("]: ")
        && name.starts_with('[')
    {
        found.push(target.to_owned());
    }
    // A title may follow the target after a space.
    found.iter().filter_map(|target| target.split_whitespace().next()).map(str::to_owned).collect()
}

enum Target {
    /// A web or mail address, or an anchor in the same file: not checked.
    Elsewhere,
    /// A path relative to the root of the tree.
    Inside(String),
    /// A path above the root.
    Outside,
}

fn resolve(from: &str, target: &str) -> Target {
    let target = target.split('#').next().unwrap_or_default();
    if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return Target::Elsewhere;
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return Target::Outside,
            ".." => {}
            part => parts.push(part),
        }
    }
    if target.starts_with('/') { Target::Outside } else { Target::Inside(parts.join("/")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_needs_an_issue() {
        for mark in MARKS {
            assert_eq!(marks("a.rs", &format!("x\n// {mark}: later\n")).len(), 1);
            assert_eq!(marks("a.rs", &format!("x\n// {mark}: later\n"))[0].line, 2);
            assert!(marks("a.rs", &format!("// {mark}(#12): later\n")).is_empty());
            assert!(marks("a.rs", &format!("// A{mark}S\n")).is_empty());
        }
        assert_eq!(marks("a.md", &format!("# {}\n", MARKS[0])).len(), 1);
    }

    #[test]
    fn a_crate_that_the_architecture_page_does_not_name_in_full_is_found() {
        let of = |dir: &str| Crate {
            name: "c".to_owned(),
            dir: dir.to_owned(),
            dependencies: Vec::new(),
            others: Vec::new(),
            tests: Vec::new(),
        };
        let crates = [of(""), of("ccl-core"), of("ccl-core/memory")];
        let missing = |text: Option<&str>| architecture(text, &crates).len();
        assert_eq!(missing(Some("`ccl-core/` and `ccl-core/memory/`.")), 0);
        assert_eq!(missing(Some("ccl-core/memory")), 1);
        assert_eq!(missing(Some("the ccl-core-like")), 2);
        assert_eq!(missing(None), 1);
    }

    #[test]
    fn a_crate_without_a_short_readme_is_found() {
        let crates = ["", "short", "long", "none"].map(|dir| Crate {
            name: "c".to_owned(),
            dir: dir.to_owned(),
            dependencies: Vec::new(),
            others: Vec::new(),
            tests: Vec::new(),
        });
        let text = |lines| "line\n".repeat(lines);
        let files = [("short", README_LINES_MAX), ("long", README_LINES_MAX + 1)];
        let files = files.map(|(dir, lines)| (format!("{dir}/README.md"), text(lines)));
        let found = readmes(&BTreeMap::from(files), &crates);
        let paths = Vec::from_iter(found.iter().map(|finding| finding.path.as_str()));
        assert_eq!(paths, ["long/README.md", "none/README.md"]);
    }

    #[test]
    fn links_to_missing_files_and_out_of_the_tree_are_found() {
        let exists = |path: &str| matches!(path, "docs/a.md" | "README.md" | "docs/adr");
        let found = |text: &str| links("docs/b.md", text, &exists).len();
        assert_eq!(found("[a](a.md) [r](../README.md#top) ![d](./adr \"title\")"), 0);
        assert_eq!(found("[w](https://example.org/x) [s](#here) [m](mailto:a@b)"), 0);
        assert_eq!(found("[gone](gone.md) and [too](README.md)"), 2);
        assert_eq!(found("[out](../../x.md)"), 1);
        assert_eq!(found("[root](/README.md)"), 1);
        assert_eq!(found("[name]: gone.md"), 1);
    }

    #[test]
    fn links_in_code_are_ignored() {
        let text = "`[a](gone.md)`\n```\n[b](gone.md)\n```\n[c](gone.md)\n";
        let found = links("b.md", text, &|_| false);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 5);
    }
}
