//! The `limits` file: a container's limits. `docs/internals/files.md` describes the format.
//!
//! A line that is not understood invalidates the whole file: a misspelt limit must not become no
//! limit.

use std::fmt;
use std::str::{FromStr, SplitWhitespace};

use crate::units::Bytes;
use crate::uuid::{NotAUuid, Uuid};

/// The supported version of the file.
pub const VERSION: u32 = 1;
/// The longest name, in bytes.
pub const MAX_NAME_LENGTH: usize = 63;
/// The greatest weight.
pub const MAX_WEIGHT: u32 = 25;

/// A container's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For display.
    pub name: Option<String>,
    /// Its weight among its GPU's containers, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Its share of each GPU in percent, 1 to 100, for the policy of fixed shares; `None`: by its
    /// weight.
    pub percent: Option<u32>,
    /// Whether it has high priority.
    pub high_priority: bool,
    /// Its memory limit on each GPU. It has no limit on other GPUs.
    pub gpus: Vec<(Uuid, Bytes)>,
}

impl Default for Limits {
    /// No limit and the default weight.
    fn default() -> Self {
        Self { name: None, weight: 1, percent: None, high_priority: false, gpus: Vec::new() }
    }
}

/// A rejected file: the first line that is not understood, counted from 1, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Line number.
    pub line: usize,
    /// The reason.
    pub reason: Reason,
}

/// Why a line is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the messages of `Display` explain them
pub enum Reason {
    NoVersion,
    Version(String),
    Keyword(String),
    Missing(&'static str),
    Extra(String),
    Twice(&'static str),
    GpuTwice(Uuid),
    Name,
    Weight(String),
    Percent(String),
    Priority(String),
    Uuid(String),
    Bytes(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVersion => write!(f, "expected `version {VERSION}` before anything else"),
            Self::Version(found) => {
                write!(
                    f,
                    "expected version {VERSION}, found `{found}`: use the release that wrote it"
                )
            }
            Self::Keyword(found) => {
                write!(
                    f,
                    "expected version, name, weight, percent, high_priority or gpu, found `{found}`"
                )
            }
            Self::Missing(what) => write!(f, "expected {what}, found the line's end"),
            Self::Extra(found) => write!(f, "expected the line's end, found `{found}`"),
            Self::Twice(what) => write!(f, "expected one line `{what}`, found a second"),
            Self::GpuTwice(uuid) => {
                write!(f, "expected one line for each GPU, found a second for {uuid}")
            }
            Self::Name => {
                write!(
                    f,
                    "expected a name of 1 to {MAX_NAME_LENGTH} printable characters without blanks"
                )
            }
            Self::Weight(found) => {
                write!(f, "expected a weight from 1 to {MAX_WEIGHT}, found `{found}`")
            }
            Self::Percent(found) => {
                write!(f, "expected a part of 1 to 100 percent, found `{found}`")
            }
            Self::Priority(found) => {
                write!(f, "expected 0 or 1 for high priority, found `{found}`")
            }
            Self::Uuid(found) => write!(f, "{NotAUuid}, found `{found}`"),
            Self::Bytes(found) => write!(
                f,
                "expected a limit in bytes, 1 or more, found `{found}`: to leave a GPU without \
                 limit, leave its line out"
            ),
        }
    }
}

impl std::error::Error for Refused {}

impl FromStr for Limits {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        let mut draft = Draft::default();
        let mut lines = 0;
        for (index, line) in text.lines().enumerate() {
            lines = index + 1;
            let content = line.split('#').next().unwrap_or_default();
            draft
                .take(content.split_whitespace())
                .map_err(|reason| Refused { line: lines, reason })?;
        }
        if !draft.version {
            return Err(Refused { line: lines + 1, reason: Reason::NoVersion });
        }
        Ok(Self {
            name: draft.name,
            weight: draft.weight.unwrap_or(1),
            percent: draft.percent,
            high_priority: draft.high_priority.unwrap_or(false),
            gpus: draft.gpus,
        })
    }
}

/// The lines parsed so far.
#[derive(Default)]
struct Draft {
    version: bool,
    name: Option<String>,
    weight: Option<u32>,
    percent: Option<u32>,
    high_priority: Option<bool>,
    gpus: Vec<(Uuid, Bytes)>,
}

impl Draft {
    fn take(&mut self, mut fields: SplitWhitespace<'_>) -> Result<(), Reason> {
        match fields.next() {
            None => return Ok(()),
            Some("version") if self.version => return Err(Reason::Twice("version")),
            Some("version") => match next(&mut fields, "a version")? {
                found if number(found) == Some(u64::from(VERSION)) => self.version = true,
                found => return Err(Reason::Version(found.into())),
            },
            Some(_) if !self.version => return Err(Reason::NoVersion),
            Some("name") => {
                let name = next(&mut fields, "a name")?;
                if name.len() > MAX_NAME_LENGTH || name.chars().any(char::is_control) {
                    return Err(Reason::Name);
                }
                set(&mut self.name, name.into(), "name")?;
            }
            Some("weight") => {
                let found = next(&mut fields, "a weight")?;
                let weight = number(found).and_then(|weight| u32::try_from(weight).ok());
                let weight = weight.filter(|weight| (1..=MAX_WEIGHT).contains(weight));
                set(
                    &mut self.weight,
                    weight.ok_or_else(|| Reason::Weight(found.into()))?,
                    "weight",
                )?;
            }
            Some("percent") => {
                let found = next(&mut fields, "a percentage")?;
                let percent = number(found).and_then(|percent| u32::try_from(percent).ok());
                let percent = percent.filter(|percent| (1..=100).contains(percent));
                set(
                    &mut self.percent,
                    percent.ok_or_else(|| Reason::Percent(found.into()))?,
                    "percent",
                )?;
            }
            Some("high_priority") => {
                let found = next(&mut fields, "0 or 1")?;
                let high = number(found).filter(|high| *high <= 1).map(|high| high == 1);
                let high = high.ok_or_else(|| Reason::Priority(found.into()))?;
                set(&mut self.high_priority, high, "high_priority")?;
            }
            Some("gpu") => {
                let found = next(&mut fields, "a GPU's UUID")?;
                let uuid = found.parse().map_err(|NotAUuid| Reason::Uuid(found.into()))?;
                let found = next(&mut fields, "a limit in bytes")?;
                let limit = number(found).filter(|bytes| *bytes > 0);
                let limit = limit.ok_or_else(|| Reason::Bytes(found.into()))?;
                if self.gpus.iter().any(|(known, _)| *known == uuid) {
                    return Err(Reason::GpuTwice(uuid));
                }
                self.gpus.push((uuid, Bytes(limit)));
            }
            Some(found) => return Err(Reason::Keyword(found.into())),
        }
        match fields.next() {
            None => Ok(()),
            Some(found) => Err(Reason::Extra(found.into())),
        }
    }
}

fn next<'a>(fields: &mut SplitWhitespace<'a>, expected: &'static str) -> Result<&'a str, Reason> {
    fields.next().ok_or(Reason::Missing(expected))
}

fn set<T>(field: &mut Option<T>, value: T, what: &'static str) -> Result<(), Reason> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(Reason::Twice(what)),
    }
}

/// Parses digits only; the standard parser accepts a sign, too.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl Limits {
    /// Returns the file's text; parsing it gives exactly these limits.
    ///
    /// # Errors
    /// [`Refused`], with the line of the text that would be rejected or read differently (a name
    /// with blanks, a limit of zero, ...).
    pub fn to_text(&self) -> Result<String, Refused> {
        let mut text = format!("version {VERSION}\n");
        if let Some(name) = &self.name {
            text += &format!("name {name}\n");
        }
        text += &format!("weight {}\n", self.weight);
        if let Some(percent) = self.percent {
            text += &format!("percent {percent}\n");
        }
        if self.high_priority {
            text += "high_priority 1\n";
        }
        for (uuid, limit) in &self.gpus {
            text += &format!("gpu {uuid} {}\n", limit.0);
        }
        match text.parse::<Self>()? {
            read if read == *self => Ok(text),
            // Only a name can be read differently: it contains a comment, blanks or line ends.
            _ => Err(Refused { line: 2, reason: Reason::Name }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GPU: &str = "GPU-8f0e6a8c-0000-4000-8000-00000000002a";

    fn refused(text: &str) -> (usize, Reason) {
        let refused = text.parse::<Limits>().unwrap_err();
        (refused.line, refused.reason)
    }

    #[test]
    fn documented_file_is_parsed() {
        let text = format!(
            "version 1\n\nname trainer # people\nweight 2\n# {GPU}\ngpu {GPU}  6442450944  # 6 \
             GiB\n"
        );
        let limits: Limits = text.parse().unwrap();
        assert_eq!(limits.name.as_deref(), Some("trainer"));
        assert_eq!(limits.weight, 2);
        assert_eq!(limits.gpus, [(GPU.parse().unwrap(), Bytes(6 << 30))]);
    }

    #[test]
    fn omitted_lines_mean_the_defaults() {
        assert_eq!("version 1".parse(), Ok(Limits::default()));
    }

    #[test]
    fn each_invalid_line_is_reported_with_its_number() {
        for (text, line, reason) in [
            ("", 1, Reason::NoVersion),
            ("# nothing\n\n", 3, Reason::NoVersion),
            ("weight 2\nversion 1", 1, Reason::NoVersion),
            ("version 2", 1, Reason::Version("2".into())),
            ("version", 1, Reason::Missing("a version")),
            ("version 1\nversion 1", 2, Reason::Twice("version")),
            ("version 1\n\nwieght 2", 3, Reason::Keyword("wieght".into())),
            ("version 1\nweight 0", 2, Reason::Weight("0".into())),
            ("version 1\nweight 26", 2, Reason::Weight("26".into())),
            ("version 1\nweight -1", 2, Reason::Weight("-1".into())),
            ("version 1\nweight +1", 2, Reason::Weight("+1".into())),
            ("version 1\nweight 1 2", 2, Reason::Extra("2".into())),
            ("version 1\nweight 1\nweight 1", 3, Reason::Twice("weight")),
            ("version 1\nname", 2, Reason::Missing("a name")),
            ("version 1\npercent 0", 2, Reason::Percent("0".into())),
            ("version 1\npercent 101", 2, Reason::Percent("101".into())),
            ("version 1\npercent 30\npercent 30", 3, Reason::Twice("percent")),
            ("version 1\nhigh_priority", 2, Reason::Missing("0 or 1")),
            ("version 1\nhigh_priority yes", 2, Reason::Priority("yes".into())),
            ("version 1\nname a b", 2, Reason::Extra("b".into())),
            ("version 1\nname a\u{7}b", 2, Reason::Name),
            ("version 1\ngpu GPU-1 5", 2, Reason::Uuid("GPU-1".into())),
        ] {
            assert_eq!(refused(text), (line, reason), "{text:?}");
        }
        for (limit, reason) in [
            ("", Reason::Missing("a limit in bytes")),
            ("0", Reason::Bytes("0".into())),
            ("6GiB", Reason::Bytes("6GiB".into())),
            ("99999999999999999999", Reason::Bytes("99999999999999999999".into())),
        ] {
            assert_eq!(refused(&format!("version 1\ngpu {GPU} {limit}")), (2, reason));
        }
        let twice = format!("version 1\ngpu {GPU} 1\ngpu {} 2", GPU.replace("GPU-8f", "MIG-8F"));
        assert_eq!(refused(&twice), (3, Reason::GpuTwice(GPU.parse().unwrap())));
        let name = "n".repeat(MAX_NAME_LENGTH + 1);
        assert_eq!(refused(&format!("version 1\nname {name}")), (2, Reason::Name));
    }

    #[test]
    fn limits_that_would_be_read_differently_are_not_written() {
        for name in ["", "a b", "a#b", "#", "a\nweight 3", "a\ngpu x"] {
            let limits = Limits { name: Some(name.into()), ..Limits::default() };
            assert!(limits.to_text().is_err(), "{name:?}");
        }
        let limits = Limits { gpus: vec![(Uuid([1; 16]), Bytes::ZERO)], ..Limits::default() };
        assert!(limits.to_text().is_err());
    }

    proptest! {
        #[test]
        fn written_limits_are_read_back(
            name in proptest::option::of("[a-zA-Z0-9_./-]{1,63}"),
            weight in 1..=MAX_WEIGHT,
            percent in proptest::option::of(1..=100_u32),
            high_priority: bool,
            gpus in proptest::collection::btree_map(any::<[u8; 16]>(), 1..=u64::MAX, 0..4),
        ) {
            let gpus = gpus.into_iter().map(|(uuid, limit)| (Uuid(uuid), Bytes(limit))).collect();
            let limits = Limits { name, weight, percent, high_priority, gpus };
            prop_assert_eq!(limits.to_text().unwrap().parse(), Ok(limits));
        }

        #[test]
        fn arbitrary_text_is_rejected_or_read_back(text in "(version 1\n)?[ -~\n\tä]{0,200}") {
            if let Ok(limits) = text.parse::<Limits>() {
                prop_assert_eq!(limits.to_text().unwrap().parse(), Ok(limits));
            }
        }
    }
}
