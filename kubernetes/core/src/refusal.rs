//! Refusals: why a request is not fulfilled.

use std::fmt;

use cgpu_text::printable;

/// A message of one line: what was received, what was expected, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(String);

impl Refusal {
    /// Creates a refusal. The message may quote input, so only what is printable is kept.
    #[must_use]
    pub fn new(message: impl AsRef<str>) -> Self {
        Self(printable(message.as_ref()))
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &str {
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
#[must_use]
pub fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut short: String = text.chars().take(MAX_CHARS).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    format!("`{}`", short.escape_default())
}
