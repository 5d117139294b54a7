//! Findings, and their report as text or JSON.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cgpu_text::printable;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::cause::{Cause, Severity};

/// The contents and the form of a report.
#[derive(Args)]
pub struct Options<Q: ValueEnum + Clone + Send + Sync + 'static> {
    /// Answer only this question
    #[arg(long, value_name = "QUESTION")]
    pub why: Option<Q>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// A cause that was found.
#[derive(Debug, PartialEq, Eq)]
struct Finding<C> {
    cause: C,
    /// The subject: a program, a container, a GPU, a pod, a node.
    subject: String,
    /// What was observed.
    found: String,
    /// Time since it last happened, where that is known.
    ago: Option<Duration>,
}

/// The findings of an examination, and what was examined.
#[derive(Debug)]
pub struct Findings<C: Cause> {
    list: Vec<Finding<C>>,
    /// States that are no findings, each with the question to which it belongs.
    notes: Vec<(C::Question, String)>,
    examined: Vec<String>,
}

impl<C: Cause> Default for Findings<C> {
    fn default() -> Self {
        Self { list: Vec::new(), notes: Vec::new(), examined: Vec::new() }
    }
}

impl<C: Cause> Findings<C> {
    /// Adds a cause, once.
    pub fn add(&mut self, cause: C, subject: &str, found: impl AsRef<str>) {
        self.add_event(cause, subject, found, None);
    }

    /// Adds something that has happened, once, with the time since then where that is known.
    pub fn add_event(
        &mut self,
        cause: C,
        subject: &str,
        found: impl AsRef<str>,
        ago: Option<Duration>,
    ) {
        let finding = Finding { cause, subject: line(subject), found: line(found.as_ref()), ago };
        if !self.list.contains(&finding) {
            self.list.push(finding);
        }
    }

    /// Replaces a path by the one under which users know it.
    pub fn rename(&mut self, path: &Path, known: &Path) {
        let [path, known] = [path, known].map(|path| line(&path.to_string_lossy()));
        for finding in &mut self.list {
            finding.found = finding.found.replace(&path, &known);
        }
    }

    /// Adds a line about a state that needs no action, once.
    pub fn note(&mut self, question: C::Question, text: impl AsRef<str>) {
        let note = (question, line(text.as_ref()));
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds something to what was examined, once.
    pub fn examined(&mut self, what: impl AsRef<str>) {
        let what = line(what.as_ref());
        if !self.examined.contains(&what) {
            self.examined.push(what);
        }
    }

    /// Returns the causes, in their order, each with what was observed.
    pub fn iter(&self) -> impl Iterator<Item = (C, &str)> {
        self.list.iter().map(|it| (it.cause, it.found.as_str()))
    }

    /// Returns the names of the causes, in their order.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.list.iter().map(|it| it.cause.entry().name).collect()
    }

    /// Keeps the findings of this question and sorts them; `Wrong` comes first within a question.
    #[must_use]
    pub fn about(mut self, question: Option<C::Question>) -> Self {
        let key = |it: &Finding<C>| (it.cause.entry().question, it.cause.entry().severity);
        self.list.retain(|it| question.is_none_or(|question| key(it).0 == question));
        self.list.sort_by_key(key);
        self.notes.retain(|(of, _)| question.is_none_or(|question| *of == question));
        self
    }

    /// Drops what is known to have happened before this time. None: keeps everything.
    #[must_use]
    pub fn since(mut self, longest: Option<Duration>) -> Self {
        let is_old = |it: &Finding<C>| it.ago.zip(longest).is_some_and(|(ago, most)| ago > most);
        self.list.retain(|it| !is_old(it));
        self
    }

    /// Returns whether nothing is wrong now.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.list.iter().all(|it| it.cause.entry().severity != Severity::Wrong)
    }

    /// Returns the exit status: 0 if nothing is wrong now, otherwise 1.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(!self.is_well()))
    }

    /// Returns the report as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |it: &Finding<C>| {
            let entry = it.cause.entry();
            let mut row = json!({
                "question": help(entry.question).0,
                "cause": entry.name,
                "severity": entry.severity,
                "subject": it.subject,
                "found": it.found,
                "message": entry.message,
                "remedy": entry.remedy,
            });
            if let Some(ago) = it.ago {
                row["ago_s"] = ago.as_secs().into();
            }
            row
        };
        let causes: Vec<Value> = self.list.iter().map(row).collect();
        let mut report = json!({"ok": self.is_well(), "examined": self.examined, "causes": causes});
        if !self.notes.is_empty() {
            report["notes"] = self.notes.iter().map(|(_, text)| text.as_str()).collect();
        }
        report
    }

    /// Returns the report as text, by questions.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        for it in &self.list {
            let entry = it.cause.entry();
            if last.replace(entry.question) != Some(entry.question) {
                text += &format!("{}\n", help(entry.question).1);
            }
            let mark = entry.severity.mark().map(|mark| format!(", {mark}")).unwrap_or_default();
            let _ =
                writeln!(text, "  {} ({}{mark})\n    {}", it.subject, entry.name, entry.message);
            if !it.found.is_empty() {
                let _ = writeln!(text, "    found: {}", it.found);
            }
            if let Some(ago) = it.ago {
                let _ = writeln!(text, "    last:  {} s ago", ago.as_secs());
            }
            let _ = writeln!(text, "    do:    {}", entry.remedy);
        }
        for (_, note) in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        let is_past = |it: &Finding<C>| it.cause.entry().severity == Severity::Past;
        let summary = match (self.is_well(), self.list.iter().any(is_past)) {
            (false, _) => "something is wrong",
            (true, true) => "nothing is wrong now",
            (true, false) => "nothing is wrong",
        };
        let _ = writeln!(text, "{summary}; examined: {}", self.examined.join(", "));
        text
    }

    /// Returns the report in the form that was requested, with the line break at its end.
    #[must_use]
    pub fn report(&self, options: &Options<C::Question>) -> String {
        if options.json { format!("{}\n", self.json()) } else { self.text() }
    }
}

/// The name of a question in data and arguments, and its heading.
pub(crate) fn help(question: impl ValueEnum) -> (String, String) {
    let value = question.to_possible_value().unwrap_or_default();
    let heading = value.get_help().map(ToString::to_string).unwrap_or_default();
    (value.get_name().to_owned(), heading)
}

/// Returns text as a line: containers and kubelets write some of it.
fn line(text: &str) -> String {
    printable(text.trim())
}
