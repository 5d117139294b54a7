//! Why something is not done.

use std::fmt;

/// One sentence on one line: what came, what was expected, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(String);

impl Refusal {
    /// Says it. What others wrote may be in it, with line breaks: they become blanks.
    #[must_use]
    pub fn new(sentence: impl Into<String>) -> Self {
        let sentence: String = sentence.into();
        if sentence.contains(char::is_control) {
            return Self(sentence.replace(char::is_control, " "));
        }
        Self(sentence)
    }

    /// The sentence.
    #[must_use]
    pub fn sentence(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// What somebody else wrote, fit to stand in a sentence: no more of it than helps.
pub(crate) fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut short: String = text.chars().take(MAX_CHARS).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    format!("`{}`", short.escape_default())
}
