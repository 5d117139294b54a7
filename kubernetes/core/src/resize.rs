//! Live resize: the annotation of a claim or a running pod that says what it has instead of what it
//! was given. Both engines have this syntax:
//!
//! ```text
//!   cgpu.dev/resize: memory=4Gi,weight=1                       each request or container
//!   cgpu.dev/resize: main: memory=4Gi; other: weight=1         those of this name
//! ```
//!
//! What it does not name is as it was given, and so is everything without the annotation.

use std::collections::BTreeMap;

use crate::refusal::quoted;

/// The annotation.
pub const ANNOTATION: &str = "cgpu.dev/resize";

/// Amounts by their names, as they are written.
pub type Amounts<'a> = BTreeMap<&'a str, &'a str>;

/// Parses the annotation: amounts by request or container; none: of every one without its own.
/// `names` are those of the amounts, and `form` describes them for a message.
///
/// # Errors
/// It has another form, or says something twice.
pub fn parsed<'a>(
    text: &'a str,
    names: &[&str],
    form: &str,
) -> Result<BTreeMap<Option<&'a str>, Amounts<'a>>, String> {
    let mut entries = BTreeMap::new();
    for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (of, list) = match entry.split_once(':') {
            Some((of, list)) => (Some(of.trim()), list),
            None => (None, entry),
        };
        let mut amounts = Amounts::new();
        for amount in list.split(',') {
            let named = amount.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
            let Some((name, value)) = named.filter(|(name, _)| names.contains(name)) else {
                return Err(format!("{} is not {form}", quoted(amount.trim())));
            };
            if amounts.insert(name, value).is_some() {
                return Err(format!("{} names {name} twice", quoted(entry)));
            }
        }
        if entries.insert(of, amounts).is_some() {
            return Err(format!("{} is the second entry for its request", quoted(entry)));
        }
    }
    Ok(entries)
}

/// What became of an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It applies, also to running containers: what they have now.
    Applied(String),
    /// It does not apply to running containers yet, and why.
    Waiting(String),
    /// It changes nothing, and why.
    Refused(String),
}

impl Outcome {
    /// Returns it as status, reason and message of a condition.
    #[must_use]
    pub fn condition(&self) -> [&str; 3] {
        match self {
            Self::Applied(message) => ["True", "Applied", message],
            Self::Waiting(message) => ["False", "Waiting", message],
            Self::Refused(message) => ["False", "Refused", message],
        }
    }
}
