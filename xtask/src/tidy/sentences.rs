//! Rule for doc comments: they begin with a noun phrase, or with a verb in the third person.

use super::Finding;

/// Words that begin an incomplete sentence.
const WITHOUT_SUBJECT: [&str; 30] = [
    "After", "As", "At", "Before", "By", "For", "From", "How", "If", "In", "It", "Its", "None",
    "Not", "Of", "On", "So", "They", "Those", "To", "Until", "What", "When", "Where", "Whether",
    "Who", "Whom", "Whose", "With", "Without",
];

/// Finds doc comments that begin with a word of [`WITHOUT_SUBJECT`], or with "The same".
pub(super) fn subjects(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut within = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let (Some(doc), false) = (doc, within) {
            let first = doc.split_whitespace().next().unwrap_or_default();
            let first = first.trim_end_matches([',', ':', ';']);
            if WITHOUT_SUBJECT.contains(&first) || doc.starts_with(" The same ") {
                let message = format!(
                    "a doc comment begins with \"{first}\": give it a subject (\"Number \
                     of …\", \"True if …\"), or a verb (\"Returns …\")"
                );
                findings.push(Finding::new(path, index + 1, message));
            }
        }
        within = doc.is_some();
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doc_comments_have_a_subject() {
        let bad = "/// Whether it is.\nfn a() {}\n//! Of, say, a port.\n\n    /// The same of b.\n";
        assert_eq!(subjects("a.rs", bad).len(), 3);
        let good = "/// Returns whether.\n/// When it does, so.\nfn a() {}\n// What is next.\n";
        assert_eq!(subjects("a.rs", good).len(), 0);
        assert_eq!(subjects("a.rs", "/// Toes, and forms.\n/// The sameness.\n").len(), 0);
    }
}
