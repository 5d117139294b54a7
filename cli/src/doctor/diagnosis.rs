//! What was found, and how it is told.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::causes::{Cause, Question, Weight};
use crate::table::plain;

/// A cause that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    pub(crate) cause: Cause,
    /// Of what: a program, a process, a container, a GPU, the monitor.
    pub(crate) subject: String,
    /// What was seen.
    pub(crate) found: String,
}

/// All that was found, and what was looked at.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    list: Vec<Diagnosis>,
    examined: Vec<String>,
}

/// A diagnosis as data.
#[derive(Serialize)]
struct Row<'a> {
    question: Question,
    cause: &'static str,
    weight: Weight,
    subject: &'a str,
    found: &'a str,
    sentence: &'static str,
    remedy: &'static str,
}

/// All of it as data.
#[derive(Serialize)]
struct Object<'a> {
    /// Nothing is wrong.
    ok: bool,
    examined: &'a [String],
    causes: Vec<Row<'a>>,
}

impl Findings {
    /// Notes a cause; once.
    pub(crate) fn add(&mut self, cause: Cause, subject: &str, found: impl Into<String>) {
        // Containers write some of it themselves: nothing of it may steer the terminal.
        let found = plain(found.into().trim_end());
        let diagnosis = Diagnosis { cause, subject: plain(subject), found };
        if !self.list.contains(&diagnosis) {
            self.list.push(diagnosis);
        }
    }

    /// Calls a path by the name under which people know it.
    pub(crate) fn rename(&mut self, path: &Path, known: &Path) {
        let [path, known] = [path, known].map(|path| plain(&path.to_string_lossy()));
        for diagnosis in &mut self.list {
            diagnosis.found = diagnosis.found.replace(&path, &known);
        }
    }

    /// Notes that something was looked at.
    pub(crate) fn examined(&mut self, what: impl Into<String>) {
        let what = plain(&what.into());
        if !self.examined.contains(&what) {
            self.examined.push(what);
        }
    }

    /// Whether this cause is among them.
    #[cfg(test)]
    pub(crate) fn has(&self, name: &str) -> bool {
        self.list.iter().any(|it| it.cause.name() == name)
    }

    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.list.iter().map(|it| it.cause.name()).collect()
    }

    /// Only what answers this question.
    pub(crate) fn about(mut self, question: Option<Question>) -> Self {
        self.list.retain(|it| question.is_none_or(|question| it.cause.question() == question));
        // What is wrong comes first.
        self.list.sort_by_key(|it| (it.cause.question(), it.cause.weight() == Weight::ByDesign));
        self
    }

    /// Nothing is wrong.
    pub(crate) fn is_well(&self) -> bool {
        self.list.iter().all(|it| it.cause.weight() == Weight::ByDesign)
    }

    /// As one JSON object.
    pub(crate) fn json<'a>(&'a self) -> serde_json::Result<String> {
        let row = |it: &'a Diagnosis| Row {
            question: it.cause.question(),
            cause: it.cause.name(),
            weight: it.cause.weight(),
            subject: &it.subject,
            found: &it.found,
            sentence: it.cause.sentence(),
            remedy: it.cause.remedy(),
        };
        let causes = self.list.iter().map(row).collect();
        serde_json::to_string(&Object { ok: self.is_well(), examined: &self.examined, causes })
    }

    /// As text, by questions.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        for it in &self.list {
            if last.replace(it.cause.question()) != Some(it.cause.question()) {
                let _ = writeln!(text, "{}", it.cause.question().text());
            }
            let mark = if it.cause.weight() == Weight::ByDesign { ", by design" } else { "" };
            let _ =
                writeln!(text, "  {} ({}{mark})\n    {}", it.subject, it.cause.name(), it.cause.sentence());
            if !it.found.is_empty() {
                let _ = writeln!(text, "    found: {}", it.found);
            }
            let _ = writeln!(text, "    do:    {}", it.cause.remedy());
        }
        let verdict = if self.is_well() { "nothing is wrong" } else { "that is all" };
        let _ = writeln!(text, "{verdict}; looked at: {}", self.examined.join(", "));
        text
    }
}
