//! Findings of checks.

use std::fmt;

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// The state cannot be seen from here.
    Unknown,
    /// The state may be intended.
    Advice,
    /// The machine works, but more slowly or less safely than it could.
    Warning,
    /// Something does not work, or will not.
    Fault,
}

impl Verdict {
    /// Returns the position in a report; 0 is the worst.
    pub(super) fn rank(self) -> u8 {
        match self {
            Verdict::Fault => 0,
            Verdict::Warning => 1,
            Verdict::Advice => 2,
            Verdict::Unknown => 3,
            Verdict::Ok => 4,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Ok => "ok",
            Verdict::Unknown => "unknown",
            Verdict::Advice => "advice",
            Verdict::Warning => "warning",
            Verdict::Fault => "fault",
        })
    }
}

/// A finding of a check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Severity of the finding.
    pub verdict: Verdict,
    /// Subject of the finding, such as a device; empty if the check's name is enough.
    pub subject: String,
    /// Evidence: what was seen, and where.
    pub evidence: String,
    /// Action to take; `None` if all is well.
    pub remedy: Option<String>,
}

/// Largest number of characters of a subject, and of evidence. Both may contain text of a file, and
/// a file that was copied from another machine may hold anything.
const TEXT_MAX: usize = 2000;

/// Returns the text as one line. A text of more than `TEXT_MAX` characters is cut there, and `…` is
/// appended.
fn line(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = chars.by_ref().take(TEXT_MAX).collect();
    if chars.next().is_some() {
        line.push('…');
    }
    line
}

impl Finding {
    fn new(
        verdict: Verdict,
        subject: impl Into<String>,
        evidence: impl Into<String>,
        remedy: Option<String>,
    ) -> Finding {
        let [subject, evidence] = [subject.into(), evidence.into()].map(|text| line(&text));
        // The caller that runs the check fills in the check's name.
        Finding { check: "", verdict, subject, evidence, remedy }
    }

    pub(super) fn ok(subject: impl Into<String>, evidence: impl Into<String>) -> Finding {
        Finding::new(Verdict::Ok, subject, evidence, None)
    }

    pub(super) fn unknown(
        subject: impl Into<String>,
        evidence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(Verdict::Unknown, subject, evidence, Some(remedy.into()))
    }

    pub(super) fn advice(
        subject: impl Into<String>,
        evidence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(Verdict::Advice, subject, evidence, Some(remedy.into()))
    }

    pub(super) fn warning(
        subject: impl Into<String>,
        evidence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(Verdict::Warning, subject, evidence, Some(remedy.into()))
    }

    pub(super) fn fault(
        subject: impl Into<String>,
        evidence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(Verdict::Fault, subject, evidence, Some(remedy.into()))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { check, verdict, subject, evidence, remedy } = self;
        let subject = if subject.is_empty() { String::new() } else { format!("{subject}: ") };
        let Some(remedy) = remedy else {
            return writeln!(f, "{verdict:<7}  {check}: {subject}{evidence}");
        };
        writeln!(f, "{verdict:<7}  {check}: {subject}{evidence}\n         remedy: {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_however_much_was_read() {
        let finding = Finding::ok("a\nb", "x\t".repeat(2 * TEXT_MAX));
        assert_eq!(finding.subject, "a b");
        assert!(
            finding.evidence.chars().count() == TEXT_MAX + 1 && finding.evidence.ends_with('…')
        );
        assert_eq!(finding.to_string().lines().count(), 1);
    }
}
