//! `cargo xtask figures`: takes the figures of the documents from `bench/results`.
//!
//! A figure in a document is a word, with its unit if it has one, before a comment with its place:
//!
//! ```text
//! <!-- results: 2026-11-28-all.json -->    the file of the figures that follow
//! 0.6 ns <!-- launch_open_added_ns -->     a key of it; `/` leads into objects and lists
//! 20 ns <!-- other.json: launch_ns -->     a key of another file
//! ```
//!
//! A number keeps the decimals that the document gives it. The comment with a file is followed by a
//! line that says how its figures were measured, and which is made of the file, too.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::cargo::Workspace;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Change nothing, and fail if a figure differs from its file
    #[arg(long)]
    check: bool,
}

/// The documents with figures, and the path from there to `bench/results`.
const PAGES: [(&str, &str); 2] =
    [("README.md", "bench/results"), ("docs/performance.md", "../bench/results")];

const BEGIN: &str = "<!-- ";
const END: &str = " -->";
const FILE: &str = "results: ";

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = Workspace::find()?.root;
    let mut differ = Vec::new();
    for (page, results) in PAGES {
        let (old, new) = updated(&root, page, results)?;
        if old == new {
            continue;
        }
        let changed = old.lines().zip(new.lines()).enumerate().filter(|(_, (old, new))| old != new);
        differ.extend(changed.map(|(index, (old, new))| {
            format!("{page}:{}:\n  has   {old}\n  wants {new}", index + 1)
        }));
        if !arguments.check {
            fs::write(root.join(page), new).with_context(|| format!("cannot write {page}"))?;
        }
    }
    println!("{}", differ.join("\n"));
    ensure!(differ.is_empty() || !arguments.check, "run `cargo xtask figures`");
    Ok(ExitCode::SUCCESS)
}

/// Returns a page as it is, and with the figures of their files.
fn updated(root: &Path, page: &str, results: &str) -> Result<(String, String)> {
    let text =
        fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {page}"))?;
    let mut files = Files { folder: root.join("bench/results"), read: BTreeMap::new() };
    let new = page_of(&text, results, &mut |name| files.get(name))
        .with_context(|| format!("the figures of {page}"))?;
    Ok((text, new))
}

/// Result files, read once.
struct Files {
    folder: std::path::PathBuf,
    read: BTreeMap<String, Value>,
}

impl Files {
    fn get(&mut self, name: &str) -> Result<Value> {
        if let Some(value) = self.read.get(name) {
            return Ok(value.clone());
        }
        let path = self.folder.join(name);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let value: Value = serde_json::from_slice(&text).with_context(|| name.to_owned())?;
        self.read.insert(name.to_owned(), value.clone());
        Ok(value)
    }
}

/// Returns the text with its figures taken from their files.
fn page_of(
    text: &str,
    results: &str,
    read: &mut dyn FnMut(&str) -> Result<Value>,
) -> Result<String> {
    let mut file = String::new();
    let mut lines = Vec::new();
    let mut rest = text.lines();
    while let Some(line) = rest.next() {
        if let Some(name) = comment(line).and_then(|place| place.strip_prefix(FILE)) {
            name.clone_into(&mut file);
            rest.next();
            lines.push(line.to_owned());
            lines.push(origin(name, results, &read(name)?)?);
        } else {
            lines.push(line_of(line, &file, read).with_context(|| line.to_owned())?);
        }
    }
    Ok(lines.join("\n") + "\n")
}

/// Returns what a line says that is only a comment.
fn comment(line: &str) -> Option<&str> {
    line.strip_prefix(BEGIN)?.strip_suffix(END)
}

/// Says how the figures of a file were measured.
fn origin(name: &str, results: &str, file: &Value) -> Result<String> {
    let text = |key: &str| file[key].as_str();
    let date = text("date").and_then(|date| date.get(..10)).context("it has no `date`")?;
    let host = text("host").context("it has no `host`")?;
    let command = text("command").unwrap_or("cargo xtask bench");
    let commit = text("commit").map(|commit| format!("; commit {commit}")).unwrap_or_default();
    Ok(format!("`{command}`; {host}; {date}{commit}; [file]({results}/{name})"))
}

/// Returns a line with its figures taken from their files.
fn line_of(line: &str, file: &str, read: &mut dyn FnMut(&str) -> Result<Value>) -> Result<String> {
    let mut done = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (place, after) = after.split_once(END).context("a comment without an end")?;
        let (name, key) = place.split_once(": ").unwrap_or((file, place));
        ensure!(!name.is_empty(), "no comment before names a file");
        let file = read(name)?;
        let value = match file.get(key) {
            Some(value) => value,
            None => {
                file.pointer(&format!("/{key}")).with_context(|| format!("no {key} in {name}"))?
            }
        };
        done += &with_figure(before, value).with_context(|| key.to_owned())?;
        done += &format!("{BEGIN}{place}{END}");
        rest = after;
    }
    Ok(done + rest)
}

/// Returns a text with its last figure replaced.
fn with_figure(before: &str, value: &Value) -> Result<String> {
    let text = before.trim_end();
    let word = |text: &str| text.rfind([' ', '|']).map_or(0, |place| place + 1);
    let mut from = word(text);
    let mut to = text.len();
    if !text[from..].contains(|sign: char| sign.is_ascii_digit()) {
        to = text[..from].trim_end().len();
        from = word(&text[..to]);
    }
    let old = &text[from..to];
    ensure!(old.contains(|sign: char| sign.is_ascii_digit()), "no figure before the comment");
    let new = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => {
            let decimals = old.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            grouped(&format!("{:.decimals$}", number.as_f64().context("too large a number")?))
        }
        other => bail!("`{other}` is no figure"),
    };
    Ok(format!("{}{new}{}", &before[..from], &before[to..]))
}

/// Puts a comma after each group of thousands.
fn grouped(number: &str) -> String {
    let (whole, decimals) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut grouped = String::new();
    for (place, digit) in whole.char_indices() {
        let left = whole.len() - place;
        if place > 0 && left % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + decimals
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(name: &str) -> Result<Value> {
        ensure!(name == "a.json", "cannot read {name}");
        Ok(json!({
            "ns": 18018.06, "ratio": 0.4499, "range": "14-18", "list": [{"p99": 12.5}],
            "host": "two cores", "date": "2026-11-28T10:00:00Z",
        }))
    }

    fn page(text: &str) -> Result<String> {
        page_of(text, "../results", &mut read)
    }

    #[test]
    fn figures_of_the_documents_are_those_of_their_files() {
        let root = Workspace::find().expect("a workspace").root;
        for (name, results) in PAGES {
            let (old, new) = updated(&root, name, results).expect("figures");
            let differ: Vec<_> =
                old.lines().zip(new.lines()).filter(|(old, new)| old != new).collect();
            assert!(old == new, "run `cargo xtask figures`: {name}: {differ:#?}");
            assert!(old.matches(BEGIN).count() > 5, "{name} has figures");
        }
    }

    /// A table's column of our figures has none that comes from no file.
    #[test]
    fn own_figures_in_tables_come_from_files() {
        let root = Workspace::find().expect("a workspace").root;
        for (name, _) in PAGES {
            let text = fs::read_to_string(root.join(name)).expect("a page");
            let mut own = None;
            for line in text.lines() {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                match cells.iter().position(|cell| *cell == "cgpu") {
                    Some(place) => own = Some(place),
                    None if !line.starts_with('|') => own = None,
                    None => {}
                }
                let cell = own.and_then(|place| cells.get(place)).copied().unwrap_or_default();
                let has_figure = cell.contains(|sign: char| sign.is_ascii_digit());
                assert!(!has_figure || cell.contains(BEGIN), "{name}: no file for `{cell}`");
            }
        }
    }

    #[test]
    fn figure_takes_its_value_and_keeps_its_decimals_and_unit() {
        let file = "<!-- results: a.json -->\nold\n";
        let from = "`cargo xtask bench`; two cores; 2026-11-28; [file](../results/a.json)";
        for (line, expected) in [
            ("| 1 ns <!-- ns --> | 2 |", "| 18,018 ns <!-- ns --> | 2 |"),
            ("is 1.00 <!-- ratio -->, and", "is 0.45 <!-- ratio -->, and"),
            ("|9.0 <!-- list/0/p99 --> ms", "|12.5 <!-- list/0/p99 --> ms"),
            ("|1-2 ns <!-- a.json: range -->|", "|14-18 ns <!-- a.json: range -->|"),
            ("no figure", "no figure"),
        ] {
            let text = page(&format!("{file}{line}")).expect("figures");
            assert_eq!(text, format!("<!-- results: a.json -->\n{from}\n{expected}\n"));
        }
    }

    #[test]
    fn figure_without_a_place_is_refused() {
        for (text, reason) in [
            ("1 <!-- ns -->", "no comment before"),
            ("1 <!-- b.json: ns -->", "cannot read b.json"),
            ("1 <!-- a.json: other -->", "no other in a.json"),
            ("ns <!-- a.json: ns -->", "no figure before"),
            ("1 <!-- a.json: list -->", "is no figure"),
            ("1 <!-- a.json: ns", "without an end"),
        ] {
            let error = page(text).expect_err(text);
            assert!(format!("{error:#}").contains(reason), "{error:#}");
        }
    }

    #[test]
    fn thousands_are_grouped() {
        for (number, expected) in
            [("7", "7"), ("123", "123"), ("1234.5", "1,234.5"), ("-123456", "-123,456")]
        {
            assert_eq!(grouped(number), expected);
        }
    }
}
