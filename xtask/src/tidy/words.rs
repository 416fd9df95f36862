//! Rule for names in library crates: names use the words of NCCL, MPI and RDMA, as in the table of
//! ARCHITECTURE.md, and not the project's former words for the same things.

use std::collections::BTreeSet;

use super::Finding;
use super::source::Source;

/// Words that names must not have, each with the words to use instead.
const WORDS: [(&str, &str); 23] = [
    ("desk", "rendezvous"),
    ("errand", "rendezvous"),
    ("follow", "apply, adapt"),
    ("foresee", "prepost"),
    ("grant", "credit, CTS"),
    ("keeper", "registration cache"),
    ("kept", "cached, pending, unacknowledged"),
    ("knock", "rendezvous"),
    ("land", "direct placement"),
    ("landing", "CTS, direct placement"),
    ("lend", "zero copy"),
    ("lent", "zero copy"),
    ("loan", "zero copy"),
    ("lookout", "stall detector, watchdog"),
    ("manners", "wait policy"),
    ("meeting", "rendezvous"),
    ("piece", "chunk, fragment, part"),
    ("place", "locality, location, position"),
    ("recall", "zero copy"),
    ("spread", "striping, deviation"),
    ("tidings", "membership, liveness"),
    ("wanted", "requested, expected, CTS"),
    ("way", "path, variant, rail"),
];

/// Parts of names, in lower case, that are allowed although they have one of the [`WORDS`], since
/// these parts are usual terms.
const NAMES: [&str; 2] = ["in_place", "under_way"];

/// Returns whether the file is in a library crate; bindings are exempt, since C gives their names.
fn is_library(path: &str) -> bool {
    let roots = ["ccl-core/", "src/", "kernels/", "transports/", "plugins/"];
    let is_test = path.contains("/tests") || path.contains("_tests") || path.contains("/examples/");
    roots.iter().any(|root| path.starts_with(root)) && !is_test && !path.contains("/sys/")
}

/// Finds names with one of the [`WORDS`].
pub(super) fn names(path: &str, source: &Source) -> Vec<Finding> {
    if !is_library(path) {
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let named = source.identifiers.iter().filter(|named| !source.is_test(named.line));
    named
        .filter(|named| seen.insert(named.path.as_str()))
        .filter_map(|named| {
            let (word, instead) = own_word(&named.path)?;
            let message = format!("`{}`: instead of \"{word}\", use {instead}", named.path);
            Some(Finding::new(path, named.line, message))
        })
        .collect()
}

fn own_word(name: &str) -> Option<&'static (&'static str, &'static str)> {
    let name = parts(name);
    let name = NAMES.iter().fold(name.join("_"), |name, known| name.replace(known, ""));
    let has =
        |word: &str| name.split('_').any(|part| part.strip_suffix('s').unwrap_or(part) == word);
    WORDS.iter().find(|(word, _)| has(word.strip_suffix('s').unwrap_or(word)))
}

/// Returns the words of a name in snake case or camel case, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for letter in name.chars() {
        let begins = letter.is_uppercase() && before.is_lowercase();
        if letter == '_' || begins {
            parts.push(String::new());
        }
        if let (Some(last), true) = (parts.last_mut(), letter != '_') {
            last.extend(letter.to_lowercase());
        }
        before = letter;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let source = source::read(text).unwrap();
        names(path, &source).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_with_a_forbidden_word_are_found() {
        let text = "struct PieceOfCode;\nfn f(places: u8) {\n    g!(KEPT_BYTES);\n}\n";
        let all = found("src/a.rs", text);
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all[0].starts_with("src/a.rs:1: `PieceOfCode`: instead of \"piece\", use chunk"));
        for allowed in ["fn in_place() {}", "fn all_reduce_in_place() {}", "fn replace() {}"] {
            assert_eq!(found("src/a.rs", allowed), [""; 0], "{allowed}");
        }
        assert_eq!(found("src/a.rs", "#[cfg(test)]\nmod tests {\n    fn piece() {}\n}\n"), [""; 0]);
        assert_eq!(found("tools/a.rs", "fn piece() {}"), [""; 0]);
    }
}
