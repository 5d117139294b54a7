//! Pages that name tests name tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every Rust source of the project.
fn sources(folder: &Path, text: &mut String) {
    let skip = ["target", ".git"];
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && !skip.iter().any(|skip| name == *skip) {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a source"));
        }
    }
}

#[test]
fn every_promise_names_a_test_or_a_benchmark_that_exists() {
    let page = fs::read_to_string(root().join("SPECIFICATION.md")).expect("SPECIFICATION.md");
    let mut text = String::new();
    sources(&root(), &mut text);
    let rows = page.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    let mut cited = BTreeSet::new();
    for row in rows {
        let shown_by = row.split('|').nth(3).unwrap_or_default();
        cited.extend(shown_by.split('`').skip(1).step_by(2));
    }
    assert!(!cited.is_empty());
    for name in cited {
        let found = match name.rsplit_once("::") {
            Some((_, function)) => text.contains(&format!("fn {function}(")),
            // A benchmark's key.
            None => text.contains(&format!("\"{name}\"")),
        };
        assert!(found, "SPECIFICATION.md names {name}, which is nowhere");
    }
}

#[test]
fn every_test_that_the_page_about_tests_names_exists() {
    let page = fs::read_to_string(root().join("docs/testing.md")).expect("docs/testing.md");
    let section = page.split("## Defects of others").nth(1);
    let mut text = String::new();
    sources(&root(), &mut text);
    let mut cited = 0;
    for name in section.expect("the section").split('`').skip(1).step_by(2) {
        let Some((_, function)) = name.rsplit_once("::") else { continue };
        cited += 1;
        assert!(text.contains(&format!("fn {function}(")), "docs/testing.md names {name}, which is nowhere");
    }
    assert!(cited > 30, "{cited}");
}
