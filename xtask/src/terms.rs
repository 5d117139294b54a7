//! `cargo xtask terms`: refuses retired terms and wide lines, in all text.

use std::fmt::Write;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::cargo::Workspace;
use crate::sources;

/// Retired terms, each with its replacement. A term is one word or two in a row, in prose or in an
/// identifier of any case.
const RETIRED: &[(&[&str], &str)] = &[
    (&["card", "cards"], "GPU, or one of the device types"),
    (&["nobody", "no one"], "no process, no container, no tenant"),
    (&["whoever", "those who"], "the process that, the caller that"),
    (&["somebody", "someone"], "a process, a container, a user"),
    (&["anybody", "anyone"], "any process, any user"),
    (&["everybody", "everyone"], "every process, every container"),
    (&["books"], "accounting, charged"),
    (&["settlement", "settlements"], "GPU time, turn accounting, commit"),
    (&["bill", "bills"], "cost estimate"),
    (&["tenure", "tenures"], "retention period"),
    (&["fate", "fates"], "free outcome"),
    (&["verdict", "verdicts"], "decision"),
    (&["loan", "loans"], "budget of a thread"),
    (&["mourn", "mourns", "mourned", "bury", "buries", "buried"], "reclaim"),
    (&["stint", "stints"], "queue entry"),
    (&["liar", "liars"], "misreporting tenant"),
    (&["believe", "believes", "believed"], "validate, accept"),
    (&["estate", "estates"], "upgrade state"),
    (&["bequeath", "bequeaths", "bequeathed"], "transfer"),
    (&["heir", "heirs"], "successor"),
    (&["scout", "scouts"], "prober"),
    (&["errand", "errands"], "probe request"),
    (&["lookout", "lookouts"], "device watcher"),
    (&["standpoint", "standpoints"], "launch context"),
    (&["conduct"], "turn phase"),
    (&["tally", "tallies"], "counters"),
    (&["census"], "process index"),
    (&["desk", "desks"], "device gate"),
    (&["pulse", "pulses"], "health check"),
    (&["kin"], "container identity"),
    (&["lineage"], "ancestry"),
    (&["claimant", "claimants"], "slot owner, pod request"),
    (&["keeper", "keepers"], "event handler"),
    (&["gravity"], "severity"),
    (&["strike", "strikes"], "injected fault"),
    (&["dilation"], "time scale"),
    (&["upkeep"], "housekeeping"),
    (&["scribe"], "metrics writer"),
    (&["stranger", "strangers"], "unknown process"),
    (&["patience"], "timeout, wait budget"),
    (&["glance", "glances"], "poll interval"),
    (&["nap", "naps"], "backoff"),
    (&["shy"], "cooldown"),
    (&["chore", "chores"], "pending work"),
];

/// Names of other projects and of usual files, as these are written.
const NAMES: &[&str] =
    &["Tally", "CODE_OF_CONDUCT", "code_of_conduct", "Code of conduct", "code of conduct"];

/// Maximum width of a line.
const WIDTH: usize = 100;
/// Extensions of the files that are checked.
const EXTENSIONS: &[&str] = &["rs", "md", "c", "h", "toml", "sh", "py"];
/// The file that contains every term.
const LIST: &str = "xtask/src/terms.rs";

pub(crate) fn run() -> Result<ExitCode> {
    check(&Workspace::find()?)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks every file of the project.
///
/// # Errors
/// Lists each retired term with its replacement, and each wide line.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = &workspace.root;
    let mut found = String::new();
    for file in sources::files(root, EXTENSIONS)? {
        let name = file.to_string_lossy();
        if name != LIST {
            let text = fs::read(root.join(&file)).with_context(|| format!("cannot read {name}"))?;
            found += &findings(&name, &String::from_utf8_lossy(&text));
        }
    }
    if !found.is_empty() {
        bail!("retired terms, or lines over {WIDTH} columns:\n{found}");
    }
    Ok(())
}

/// Lists what is wrong with a file, a line each.
fn findings(name: &str, text: &str) -> String {
    let mut found = String::new();
    let mut last = String::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.chars().count() > WIDTH && can_be_broken(name, line) {
            let _ = writeln!(found, "  {name}:{number}: over {WIDTH} columns");
        }
        let named = NAMES.iter().fold(line.to_owned(), |line, name| line.replace(name, ""));
        for word in words(&named) {
            let two = format!("{last} {word}");
            let is_term = |forms: &[&str]| forms.contains(&&*word) || forms.contains(&&*two);
            if let Some((forms, instead)) = RETIRED.iter().find(|(forms, _)| is_term(forms)) {
                let _ = writeln!(found, "  {name}:{number}: `{}`; write: {instead}", forms[0]);
            }
            last = word;
        }
    }
    found
}

/// Returns whether a wide line can be broken. Rows of tables and links cannot. Rust code is
/// rustfmt's, which leaves only long literals.
fn can_be_broken(name: &str, line: &str) -> bool {
    let is_row = |text: &str| text.trim_start().starts_with('|');
    let is_link = line.contains("://") || line.contains("](");
    match line.trim_start().strip_prefix("//") {
        _ if is_link => false,
        Some(comment) => !is_row(comment.trim_start_matches(['/', '!'])),
        None => !(name.ends_with(".rs") || (name.ends_with(".md") && is_row(line))),
    }
}

/// Returns the words of a line, also within identifiers: `SLOT_PATIENCE`, `isNobody`.
fn words(line: &str) -> impl Iterator<Item = String> {
    let runs = line.split(|byte: char| !byte.is_ascii_alphabetic()).filter(|run| !run.is_empty());
    runs.flat_map(camel_case_parts).map(str::to_ascii_lowercase)
}

fn camel_case_parts(word: &str) -> Vec<&str> {
    let bytes = word.as_bytes();
    let begins = |index: &usize| {
        bytes[*index].is_ascii_uppercase() && bytes[*index - 1].is_ascii_lowercase()
    };
    let mut parts = Vec::new();
    let mut from = 0;
    for end in (1..word.len()).filter(begins).chain([word.len()]) {
        parts.push(&word[from..end]);
        from = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(text: &str) -> usize {
        findings("file.rs", text).lines().count()
    }

    #[test]
    fn term_is_found_in_prose_and_in_identifiers() {
        assert_eq!(
            findings("f.c", "SLOT_PATIENCE"),
            "  f.c:1: `patience`; write: timeout, wait budget\n"
        );
        assert_eq!(terms("// No\n// one lends, nobody asks."), 2);
        assert_eq!(terms("fn turnBooksOf(estateOf: Estate)"), 3);
        assert_eq!(terms("wildcard, discard, parking_lot, Borrow"), 0);
        assert_eq!((terms("Tally (ASPLOS 2025)"), terms("tally_of, TALLY")), (0, 2));
    }

    #[test]
    fn wide_line_is_found_if_it_can_be_broken() {
        let wide = "x".repeat(105);
        for (name, line, expected) in [
            ("a.md", wide.clone(), true),
            ("a.md", format!("| {wide} |"), false),
            ("a.md", format!("![a picture](pictures/{wide}.svg)"), false),
            ("a.rs", format!("// {wide}"), true),
            ("a.rs", format!("//! | {wide} |"), false),
            ("a.rs", format!("// http://{wide}"), false),
            ("a.rs", format!("f(\"{wide}\");"), false),
            ("a.c", format!("f(\"{wide}\");"), true),
        ] {
            assert_eq!(findings(name, &line).contains("columns"), expected, "{name}: {line}");
        }
    }
}
