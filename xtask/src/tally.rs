//! How many tests passed, failed and were skipped, over all steps.

use std::fmt;
use std::ops::AddAssign;

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Tally {
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    pub(crate) const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
    pub(crate) const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    /// The counts of one of libtest's summary lines, `test result: ok. 12 passed; 0 failed; 1 ignored; ...`; None for
    /// every other line. Filtered tests and benchmarks are in neither column.
    pub(crate) fn of_summary(line: &str) -> Option<Self> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut tally = Self::default();
        for part in counts.split("; ") {
            let (number, what) = part.split_once(' ')?;
            let Ok(number) = number.parse() else { continue };
            match what {
                "passed" => tally.passed = number,
                "failed" => tally.failed = number,
                "ignored" => tally.skipped = number,
                _ => {}
            }
        }
        Some(tally)
    }

    /// What failed has passed after all.
    pub(crate) fn pass_failed(&mut self) {
        self.passed += std::mem::take(&mut self.failed);
    }

    /// A test that could not run here ended without an assertion: libtest counted it as passed, we do not.
    pub(crate) fn withdraw(&mut self, skips: u64) {
        let skips = skips.min(self.passed);
        self.passed -= skips;
        self.skipped += skips;
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The last line of a test run; scripts read it.
impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_summaries_of_libtest() {
        let ok =
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.05s";
        assert_eq!(Tally::of_summary(ok), Some(Tally { passed: 12, failed: 0, skipped: 1 }));
        let bad = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.00s";
        assert_eq!(Tally::of_summary(bad), Some(Tally { passed: 1, failed: 2, skipped: 0 }));
        assert_eq!(Tally::of_summary("test ledger::charges ... ok"), None);
        assert_eq!(Tally::of_summary("test result: "), None);
    }

    #[test]
    fn a_skip_is_not_a_pass() {
        let mut tally = Tally { passed: 3, failed: 0, skipped: 1 };
        tally.withdraw(2);
        assert_eq!(tally.to_string(), "1 passed, 0 failed, 3 skipped");
    }
}
