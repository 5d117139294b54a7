//! Checks for the tests of every table of causes.

use std::collections::HashSet;
use std::fs;

use clap::ValueEnum;

use crate::cause::Cause;
use crate::findings::help;

/// Checks that each cause has a unique name, a message and a remedy.
///
/// # Panics
/// If one has not.
pub fn check_table<C: Cause>() {
    let names: HashSet<_> = C::ALL.iter().map(|cause| cause.entry().name).collect();
    assert_eq!(names.len(), C::ALL.len(), "two causes have the same name");
    for entry in C::ALL.iter().map(|cause| cause.entry()) {
        assert!(entry.name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_'), "{}", entry.name);
        for text in [entry.message, entry.remedy] {
            let is_sentence = text.ends_with('.') && text.starts_with(char::is_alphabetic);
            assert!(is_sentence, "{}: {text}", entry.name);
        }
    }
}

/// Checks that the text of some tests names each cause.
///
/// # Panics
/// If one is not named.
pub fn check_planted<C: Cause>(tests: &str) {
    for name in C::ALL.iter().map(|cause| cause.entry().name) {
        let is_planted =
            tests.contains(&format!("\"{name}\"")) || tests.contains(&format!("({name})"));
        assert!(is_planted, "no test plants {name}");
    }
}

/// Checks that a page lists the causes between `<!-- mark -->` and `<!-- end of mark -->`, in a
/// table for each question. `BLESS=1` writes them.
///
/// # Panics
/// If the page differs.
pub fn check_page<C: Cause>(path: &str, mark: &str) {
    let page = fs::read_to_string(path).unwrap();
    let (start, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let (before, rest) = page.split_once(&start).expect("the start of the tables");
    let (_, after) = rest.split_once(&end).expect("the end of the tables");
    let mut tables = String::new();
    for question in C::Question::value_variants() {
        let heading = help(*question).1;
        tables += &format!("### {heading}\n\n| cause | what it is | what to do |\n|---|---|---|\n");
        let entries = C::ALL.iter().map(|cause| cause.entry());
        for entry in entries.filter(|entry| entry.question == *question) {
            let mark = entry.severity.mark().map(|mark| format!(" ({mark})")).unwrap_or_default();
            tables +=
                &format!("| `{}`{mark} | {} | {} |\n", entry.name, entry.message, entry.remedy);
        }
        tables.push('\n');
    }
    let expected = format!("{before}{start}{tables}{end}{after}");
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, expected).unwrap();
    } else {
        assert!(page == expected, "{path} is out of date: run again with BLESS=1");
    }
}
