//! `cargo xtask terms`: checks text for retired terms and wide lines. `terms.txt` has their counts
//! by file; no count of the whole tree may rise.
//!
//! Text may move between files, so the sum over all files counts. The counts by file show where a
//! sum has risen.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::cargo::Workspace;
use crate::sources;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Write the present counts to xtask/terms.txt; they may only fall
    #[arg(long)]
    bless: bool,
}

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

/// The name under which wide lines are counted.
const WIDE: &str = "wide";
/// Maximum width of prose.
const WIDTH: usize = 100;
/// Tables of data, which have a row a line.
const TABLES: &[&str] = &["abi/src/driver_table.rs", "abi/src/nvml_table.rs", "abi/src/results.rs"];
/// Extensions of the files that are checked.
const EXTENSIONS: &[&str] = &["rs", "md", "c", "h", "toml", "sh", "py"];
/// The file that contains every term.
const LIST: &str = "xtask/src/terms.rs";
const BASELINE: &str = "xtask/terms.txt";

/// The number of occurrences of each term in each file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts(BTreeMap<String, BTreeMap<String, usize>>);

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let baseline = workspace.root.join(BASELINE);
    if baseline.exists() || !arguments.bless {
        check(&workspace)?;
    }
    if arguments.bless {
        fs::write(baseline, Counts::of(&workspace.root)?.to_text())
            .with_context(|| format!("cannot write {BASELINE}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares the tree with the counts in `terms.txt`.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let text = fs::read_to_string(workspace.root.join(BASELINE))
        .with_context(|| format!("cannot read {BASELINE}"))?;
    let (before, now) = (Counts::parse(&text)?, Counts::of(&workspace.root)?);
    let risen = now.risen_since(&before);
    if !risen.is_empty() {
        bail!("new text has retired terms, or lines over {WIDTH} columns:\n{risen}");
    }
    let (was, is) = (before.sum(), now.sum());
    if is < was {
        eprintln!(
            "xtask: {} retired terms and wide lines fewer than {BASELINE} allows ({is} are left);",
            was - is
        );
        eprintln!("       `cargo xtask terms --bless` lowers it");
    }
    Ok(())
}

impl Counts {
    fn of(root: &Path) -> Result<Self> {
        let code_width = code_width(root)?;
        let mut counts = Self::default();
        for file in sources::files(root, EXTENSIONS)? {
            let name = file.to_string_lossy().into_owned();
            if name == LIST {
                continue;
            }
            let text = fs::read(root.join(&file)).with_context(|| format!("cannot read {name}"))?;
            let found = count(&name, &String::from_utf8_lossy(&text), code_width);
            if !found.is_empty() {
                counts.0.insert(name, found);
            }
        }
        Ok(counts)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut counts = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut fields = line.split('\t');
            let file = fields.next().unwrap_or_default();
            for field in fields {
                let (term, count) =
                    field.split_once('=').with_context(|| format!("{BASELINE}: {line}"))?;
                let count = count.parse().with_context(|| format!("{BASELINE}: {line}"))?;
                counts.0.entry(file.to_owned()).or_default().insert(term.to_owned(), count);
            }
        }
        Ok(counts)
    }

    fn to_text(&self) -> String {
        let mut text =
            String::from("# Retired terms that are left, by file: see xtask/src/terms.rs.\n");
        for (file, terms) in &self.0 {
            text.push_str(file);
            for (term, count) in terms {
                let _ = write!(text, "\t{term}={count}");
            }
            text.push('\n');
        }
        text
    }

    fn sum(&self) -> usize {
        self.0.values().flat_map(BTreeMap::values).sum()
    }

    fn of_term(&self, term: &str) -> usize {
        self.0.values().filter_map(|terms| terms.get(term)).sum()
    }

    /// Describes each term that occurs more often than before: its replacement, and the files.
    fn risen_since(&self, before: &Self) -> String {
        let mut text = String::new();
        let terms = RETIRED.iter().map(|(forms, instead)| (forms[0], *instead));
        for (term, instead) in terms.chain([(WIDE, "shorter lines")]) {
            let (was, is) = (before.of_term(term), self.of_term(term));
            if is <= was {
                continue;
            }
            let _ =
                writeln!(text, "  {term}: {is}, {} more than before; write: {instead}", is - was);
            for (file, terms) in &self.0 {
                let count =
                    |counts: &BTreeMap<String, usize>| counts.get(term).copied().unwrap_or(0);
                let (was, is) = (before.0.get(file).map_or(0, count), count(terms));
                if is > was {
                    let _ = writeln!(text, "    {file}: {is}, was {was}");
                }
            }
        }
        text
    }
}

/// Returns rustfmt's width of code.
fn code_width(root: &Path) -> Result<usize> {
    let text = fs::read_to_string(root.join("rustfmt.toml")).context("cannot read rustfmt.toml")?;
    let width = text.lines().find_map(|line| line.strip_prefix("max_width = "));
    Ok(width.and_then(|width| width.trim().parse().ok()).unwrap_or(WIDTH))
}

/// Counts the terms of a file, by their first form, and its wide lines.
fn count(name: &str, text: &str, code_width: usize) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        if line.chars().count() > width(name, line, code_width) {
            *found.entry(WIDE.to_owned()).or_default() += 1;
        }
        for word in words(line) {
            let two = format!("{last} {word}");
            let is_term = |forms: &[&str]| forms.contains(&&*word) || forms.contains(&&*two);
            if let Some((forms, _)) = RETIRED.iter().find(|(forms, _)| is_term(forms)) {
                *found.entry(forms[0].to_owned()).or_default() += 1;
            }
            last = word;
        }
    }
    found
}

/// Returns the maximum width of a line. Rows of tables, addresses and lines of code that are wide
/// for one string literal cannot be broken.
fn width(name: &str, line: &str, code_width: usize) -> usize {
    let start = line.trim_start();
    if line.contains("://") || (name.ends_with(".md") && start.starts_with('|')) {
        usize::MAX
    } else if name.ends_with(".rs") && !start.starts_with("//") {
        let is_unbreakable = TABLES.contains(&name) || has_one_literal(line, code_width);
        if is_unbreakable { usize::MAX } else { code_width }
    } else {
        WIDTH
    }
}

/// Returns whether a line has one string literal, and fits into `width` without its text.
fn has_one_literal(line: &str, width: usize) -> bool {
    let literal = line.split_once('"').and_then(|(before, rest)| {
        let (text, after) = rest.rsplit_once('"')?;
        Some((text.replace("\\\\", "").replace("\\\"", ""), before.len() + after.len()))
    });
    literal.is_some_and(|(text, rest)| !text.contains('"') && rest + 2 <= width)
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

    fn found(text: &str) -> Vec<(String, usize)> {
        count("file.rs", text, 110).into_iter().collect()
    }

    #[test]
    fn term_is_found_in_prose_and_in_identifiers() {
        assert_eq!(found("SLOT_PATIENCE"), [("patience".to_owned(), 1)]);
        assert_eq!(found("// No\n// one lends, nobody asks."), [("nobody".to_owned(), 2)]);
        assert_eq!(found("fn turnBooksOf(estateOf: Estate)").len(), 2);
        assert_eq!(found("wildcard, discard, parking_lot, Borrow"), []);
    }

    #[test]
    fn wide_line_counts_if_it_can_be_broken() {
        let wide = "x".repeat(105);
        for (name, line, counts) in [
            ("a.md", wide.clone(), true),
            ("a.md", format!("| {wide} |"), false),
            ("a.rs", wide.clone(), false),
            ("a.rs", format!("// {wide}"), true),
            ("a.rs", format!("// http://{wide}"), false),
            ("b.rs", format!("x{wide}{wide}"), true),
            ("b.rs", format!("f(\"{wide}\\\"{wide}\");"), false),
            ("b.rs", format!("f(\"{wide}\", \"{wide}\");"), true),
            ("b.rs", format!("\"{wide}{wide} \\"), true),
            ("b.rs", format!("// \"{wide}\""), true),
            (TABLES[0], format!("x{wide}{wide}"), false),
            (TABLES[0], format!("// {wide}"), true),
        ] {
            assert_eq!(count(name, &line, 110).contains_key(WIDE), counts, "{name}: {line}");
        }
    }

    #[test]
    fn move_to_another_file_does_not_raise_a_count() {
        let counts = |text: &str| Counts::parse(text).expect("counts");
        let before = counts("a.rs\tbooks=2\twide=1\nb.rs\tbooks=1\n");
        assert_eq!(before, Counts::parse(&before.to_text()).expect("counts"));
        assert_eq!(counts("c.rs\tbooks=3\twide=1\n").risen_since(&before), "");
        let risen = counts("a.rs\tbooks=1\nb.rs\tbooks=3\n").risen_since(&before);
        assert!(risen.contains("books: 4, 1 more") && risen.contains("b.rs: 3, was 1"), "{risen}");
        assert!(!risen.contains("a.rs") && !risen.contains("wide"), "{risen}");
    }
}
