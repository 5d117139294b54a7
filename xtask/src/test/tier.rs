//! What the fast tier leaves out, and why. `cargo xtask test --full` runs everything.
//!
//! A test stays in the fast tier unless it takes long and another one, named in the reason, would fail first. Each row
//! of `SPECIFICATION.md` keeps a test in the fast tier: a test below holds this table to that.

use std::fmt;

use super::suite::Case;

/// How much of the tests runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    Fast,
    Full,
}

/// Tests that only the full tier runs.
pub(crate) struct LeftOut {
    /// The test program; see [`super::suite::Suite::name`].
    suite: &'static str,
    /// What the names of the tests begin with; all of the program's tests if empty.
    prefix: &'static str,
    pub why: &'static str,
}

/// A test that tries fewer cases in the fast tier.
pub(crate) struct Sampled {
    /// The variable that the test reads, and its value in the fast tier. Without it a test tries all.
    pub variable: (&'static str, &'static str),
    pub why: &'static str,
}

pub(crate) const LEFT_OUT: &[LeftOut] = &[];

pub(crate) const SAMPLED: &[Sampled] = &[];

impl Tier {
    /// Whether this tier runs the test.
    pub(crate) fn runs(self, case: &Case) -> bool {
        self == Self::Full || !LEFT_OUT.iter().any(|left_out| left_out.names(&case.suite.name, &case.name))
    }

    /// Variables for the tests.
    pub(crate) fn environment(self) -> Vec<(String, String)> {
        let sampled = if self == Self::Fast { SAMPLED } else { &[] };
        sampled.iter().map(|one| (one.variable.0.to_owned(), one.variable.1.to_owned())).collect()
    }
}

impl LeftOut {
    fn names(&self, suite: &str, test: &str) -> bool {
        self.suite == suite && test.starts_with(self.prefix)
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.suite, if self.prefix.is_empty() { "(all)" } else { self.prefix })
    }
}

impl fmt::Display for Sampled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.variable.0, self.variable.1)
    }
}
