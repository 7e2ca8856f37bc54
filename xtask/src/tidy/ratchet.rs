//! Old offences that are still there: each check may have a number of them, and the number may only fall.
//!
//! To lower a number is part of the change that removes offences. Nobody raises one.

use super::Finding;

/// Lines of Rust, C, Python or shell wider than `width::COLUMNS`.
pub const WIDE_CODE_LINES: usize = 68;
/// Lines of Markdown wider than `width::COLUMNS`, and table cells longer than `width::CELL_LETTERS`.
pub const WIDE_TEXT_LINES: usize = 0;
/// Doc comments of fewer than `comments::WORDS` words.
pub const SHORT_DOC_COMMENTS: usize = 117;
/// Rows of `docs/failure.md` without a test.
pub const ROWS_WITHOUT_TEST: usize = 54;
/// Constants of `limits.rs` that steer: 68 for memory, where at most 80 are wanted, and 16 for mapped files.
pub const CONSTANTS: usize = 80;
/// Rules that look at what came of themselves; at most 10 are wanted.
pub const LOOPS: usize = 6;
/// Lines of code in `policy/` and what belongs to it: 1048 for memory, where at most 1200 are wanted, 42 for
/// the budget of a tree, and the rest for mapped files.
pub const LINES_THAT_CHOOSE: usize = 1158;

/// What a check found, and how much of it is accepted.
pub struct Checked {
    pub name: &'static str,
    pub findings: Vec<Finding>,
    /// The number kept above; 0 for a check without old offences.
    pub accepted: usize,
}

impl Checked {
    /// A check that accepts nothing.
    pub fn strict(name: &'static str, findings: Vec<Finding>) -> Self {
        Self { name, findings, accepted: 0 }
    }

    /// A check with old offences.
    pub fn ratchet(name: &'static str, findings: Vec<Finding>, accepted: usize) -> Self {
        Self { name, findings, accepted }
    }

    /// Whether there are no more findings than accepted.
    pub fn passed(&self) -> bool {
        self.findings.len() <= self.accepted
    }

    /// The line of the report.
    pub fn summary(&self) -> String {
        let (found, accepted) = (self.findings.len(), self.accepted);
        let verdict = if self.passed() { "ok  " } else { "FAIL" };
        match accepted {
            0 => format!("{verdict} {}", self.name),
            _ if found < accepted => {
                format!("{verdict} {}: {found}; lower the {accepted} in xtask/src/tidy/ratchet.rs", self.name)
            }
            _ => format!("{verdict} {}: {found}, may only fall below {accepted}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(count: usize, accepted: usize) -> Checked {
        let findings = (0..count).map(|line| Finding::new("a.rs", line + 1, "wrong")).collect();
        Checked::ratchet("check", findings, accepted)
    }

    #[test]
    fn as_many_as_accepted_pass_and_one_more_fails() {
        assert!(found(3, 3).passed() && !found(4, 3).passed());
        assert!(found(0, 0).passed() && !found(1, 0).passed());
    }

    #[test]
    fn a_number_that_can_be_lowered_is_said() {
        assert!(found(2, 3).summary().contains("lower the 3"));
        assert!(!found(3, 3).summary().contains("lower"));
    }
}
