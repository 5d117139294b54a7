//! Causes: what can be wrong, and what to do about it.

use clap::ValueEnum;
use serde::Serialize;

/// Whether something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It is: the exit status is 1.
    Wrong,
    /// It was: this has happened, and is over.
    Past,
    /// It is not: this answers the question, and was configured or needs no action.
    ByDesign,
}

impl Severity {
    /// How reports and pages mark a cause of this severity.
    pub(crate) const fn mark(self) -> Option<&'static str> {
        match self {
            Self::Wrong => None,
            Self::Past => Some("past"),
            Self::ByDesign => Some("by design"),
        }
    }
}

/// One row of a table of causes.
#[derive(Debug)]
pub struct Entry<Q> {
    /// The question that it answers.
    pub question: Q,
    /// Whether something is wrong.
    pub severity: Severity,
    /// Its name in JSON.
    pub name: &'static str,
    /// What is wrong.
    pub message: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// A table of causes, as [`causes!`](crate::causes) makes it.
pub trait Cause: Copy + Eq + 'static {
    /// The questions; the help of each is the heading of its causes.
    type Question: ValueEnum + Copy + Ord + Send + Sync;
    /// All of them, in the table's order.
    const ALL: &'static [Self];

    /// Returns its row.
    fn entry(self) -> &'static Entry<Self::Question>;
}

/// Makes the enum `Cause` of a table, after its visibility: variant, question, severity, name,
/// message, remedy.
#[macro_export]
macro_rules! causes {
    ($visibility:vis enum Cause: $(
        $variant:ident, $question:ident, $severity:ident, $name:literal,
        $message:literal, $remedy:literal;
    )*) => {
        /// What can be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum Cause {
            $(#[doc = $message] $variant,)*
        }

        impl $crate::Cause for Cause {
            type Question = Question;
            const ALL: &'static [Self] = &[$(Self::$variant,)*];

            fn entry(self) -> &'static $crate::Entry<Question> {
                match self {
                    $(Self::$variant => &$crate::Entry {
                        question: Question::$question,
                        severity: $crate::Severity::$severity,
                        name: $name,
                        message: $message,
                        remedy: $remedy,
                    },)*
                }
            }
        }
    };
}
