//! `cargo xtask tidy`: the project's rules that no compiler checks. Each rule is a pure function
//! from text or metadata to [`Finding`]s, and has a test that plants a violation.

mod circles;
mod docs;
mod layers;
mod purity;
mod ratchet;
mod sentences;
mod sizes;
mod source;
mod tree;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use crate::Outcome;
use crate::workspace::{self, Crate, root};

/// File with the tolerated sizes and circles (modules that use each other), relative to the root.
const BASELINE: &str = "xtask/tidy-baseline.toml";

/// Violation of a rule: its position, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Line, counted from 1; 0 stands for the whole file.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(formatter, "{}: {}", self.path, self.message),
            line => write!(formatter, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Checks every rule on the working tree and prints what it finds.
pub(crate) fn run() -> Outcome {
    let files = tree::text_files(&root())?;
    let crates = workspace::crates()?;
    let baseline = fs::read_to_string(root().join(BASELINE))
        .map_err(|error| format!("cannot read {BASELINE}: {error}"))?;
    let mut findings = check(&files, &crates, &baseline)?;
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    if findings.is_empty() {
        Ok(())
    } else {
        Err("the tree is not tidy; the rules and their reasons are in CONTRIBUTING.md".to_owned())
    }
}

/// Applies all rules to a tree: its texts, keyed by path, its crates, and the baseline's text.
fn check(
    files: &BTreeMap<String, String>,
    crates: &[Crate],
    baseline: &str,
) -> Outcome<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut giants = sizes::Giants::default();
    let mut uses = circles::Uses::default();
    for (path, text) in files {
        findings.extend(docs::marks(path, text));
        if path.ends_with(".md") {
            findings.extend(docs::links(path, text, &|target| tree::exists(&root(), target)));
        }
        if path.ends_with(".rs") {
            findings.extend(sizes::columns(path, text));
            findings.extend(sentences::subjects(path, text));
            match source::read(text) {
                Ok(source) => {
                    giants.collect(path, text, &source);
                    uses.collect(path, &source);
                    findings.extend(purity::environment(path, &source));
                    findings.extend(purity::core(path, &source));
                    findings.extend(words::names(path, &source));
                }
                Err(error) => findings.push(Finding::new(path, error.line, error.message)),
            }
        }
    }
    let baseline = ratchet::parse(baseline)?;
    findings.extend(ratchet::compare(BASELINE, &giants, &baseline));
    findings.extend(circles::compare(BASELINE, &uses.circles(), &baseline.circles));
    findings.extend(layers::edges(crates));
    findings.extend(layers::others(crates));
    let architecture = files.get("ARCHITECTURE.md").map(String::as_str);
    findings.extend(docs::architecture(architecture, crates));
    findings.extend(docs::readmes(files, crates));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_applied() {
        let mark = concat!("TO", "DO");
        let files = BTreeMap::from([
            ("README.md".to_owned(), "[gone](no/such/file.md)\n".to_owned()),
            ("src/a.rs".to_owned(), format!("// {mark}\nfn a() {{ std::env::var(\"A\"); }}\n")),
            ("src/b.rs".to_owned(), format!("//{}\n", "x".repeat(100))),
            ("src/f.rs".to_owned(), "/// Whether it is.\nfn f() {}\n".to_owned()),
            ("src/c.rs".to_owned(), "//\n".repeat(1001)),
            ("src/d.rs".to_owned(), "fn broken( {\n".to_owned()),
            ("ccl-core/src/e.rs".to_owned(), "use std::fs;\n".to_owned()),
        ]);
        let lost = Crate {
            name: "lost".to_owned(),
            dir: "lost".to_owned(),
            dependencies: Vec::new(),
            others: Vec::new(),
            tests: Vec::new(),
        };
        let findings = check(&files, &[lost], "").unwrap();
        let found: Vec<&str> = findings.iter().map(|finding| finding.path.as_str()).collect();
        let expected = [
            "README.md",
            "ccl-core/src/e.rs",
            "src/a.rs",
            "src/a.rs",
            "src/b.rs",
            "src/f.rs",
            "src/d.rs",
            "src/c.rs",
            "lost",
            "lost/README.md",
            "ARCHITECTURE.md",
        ];
        for path in expected {
            assert!(found.contains(&path), "there is no finding in {path}: {findings:#?}");
        }
        assert_eq!(found.iter().filter(|path| **path == "src/a.rs").count(), 2, "{findings:#?}");
    }
}
