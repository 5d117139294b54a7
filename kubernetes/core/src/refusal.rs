//! Refusals: why a request is not fulfilled.

use std::fmt;

/// A message of one line: what was received, what was expected, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(String);

impl Refusal {
    /// Creates a refusal. Control characters become blanks, because the message may quote input.
    #[must_use]
    pub fn new(sentence: impl Into<String>) -> Self {
        let sentence: String = sentence.into();
        if sentence.contains(char::is_control) {
            return Self(sentence.replace(char::is_control, " "));
        }
        Self(sentence)
    }

    /// Returns the message.
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

/// Quotes input for a message, shortened to 80 characters.
pub(crate) fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut short: String = text.chars().take(MAX_CHARS).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    format!("`{}`", short.escape_default())
}
