//! Pages that name or link tests do so with tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

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

/// Splits off a row's links and returns their texts and targets, and the row with their texts only.
fn links(row: &str) -> (Vec<(&str, &str)>, String) {
    let (mut links, mut shown) = (Vec::new(), String::new());
    let mut parts = row.split("](");
    let mut before = parts.next().unwrap_or_default();
    for part in parts {
        let (target, after) = part.split_once(')').expect("an end of the link");
        let (_, text) = before.rsplit_once('[').expect("a text of the link");
        links.push((text, target));
        shown.push_str(before);
        before = after;
    }
    (links, shown + before)
}

/// Returns whether this source has the test, the helper or the benchmark of this name.
fn has(source: &str, path: &str, name: &str) -> bool {
    match name.rsplit_once("::") {
        // Each border of the fuzzed ones has a file, and its test is made by a macro.
        Some(("seeds_pass", border)) => path.ends_with(&format!("/{border}.rs")),
        Some((_, function)) => source.contains(&format!("fn {function}(")),
        None => source.contains(&format!("\"{name}\"")),
    }
}

#[test]
fn specification_links_existing_tests_and_benchmarks() {
    let page = fs::read_to_string(root().join("SPECIFICATION.md")).expect("SPECIFICATION.md");
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let rows = rows.filter(|row| !["| promise |", "| what |"].iter().any(|it| row.starts_with(it)));
    let mut promises = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [promise, _, shown_by, _] = cells[..] else { panic!("four cells: {row}") };
        assert!(promises.insert(promise), "twice: {row}");
        let (links, shown) = links(shown_by);
        let named: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        let linked: Vec<&str> = links.iter().map(|(text, _)| text.trim_matches('`')).collect();
        assert!(!named.is_empty() && named == linked, "each name is a link: {row}");
        for (name, (_, path)) in named.iter().zip(&links) {
            let source = fs::read_to_string(root().join(path));
            let source = source.unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(has(&source, path, name), "SPECIFICATION.md: {name} is not in {path}");
        }
        let length = row.len() + shown.len() - shown_by.len();
        assert!(length <= 400, "{length} bytes, links left out; shorten the row: {row}");
    }
    assert!(promises.len() > 300, "{}", promises.len());
}

#[test]
fn testing_page_names_existing_tests() {
    let page = fs::read_to_string(root().join("docs/internals/testing.md"))
        .expect("docs/internals/testing.md");
    let section = page.split("## Defects of others").nth(1);
    let mut text = String::new();
    sources(&root(), &mut text);
    let mut cited = 0;
    for name in section.expect("the section").split('`').skip(1).step_by(2) {
        let Some((_, function)) = name.rsplit_once("::") else { continue };
        cited += 1;
        assert!(
            text.contains(&format!("fn {function}(")),
            "docs/internals/testing.md names {name}, which is nowhere"
        );
    }
    assert!(cited > 30, "{cited}");
}

/// Returns the project's own packages that a manifest depends on.
fn dependencies(manifest: &str) -> Vec<&str> {
    let section = manifest.split("\n[").find_map(|section| section.strip_prefix("dependencies]"));
    let lines = section.unwrap_or_default().lines();
    lines.filter_map(|line| line.strip_prefix("cgpu-")?.split(['.', ' ', '=']).next()).collect()
}

#[test]
fn architecture_page_lists_folders_and_dependencies() {
    let page = fs::read_to_string(root().join("docs/internals/architecture.md"))
        .expect("docs/internals/architecture.md");
    let table = page
        .split("## The folders")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the table");
    let rows: Vec<Vec<&str>> = (table.lines().filter(|line| line.starts_with("| `")))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    // `a/b`, `c` in one row are a/b and a/c; a star stands for the rest.
    let is_of = |row: &[&str], member: &str| {
        let names: Vec<&str> =
            row[1].split('`').skip(1).step_by(2).map(|name| name.trim_end_matches('/')).collect();
        let beside = names[0].rsplit_once('/').map_or("", |(parent, _)| parent);
        names.iter().any(|name| match name.strip_suffix('*') {
            Some(start) => member.starts_with(start),
            None => *name == member || format!("{beside}/{name}") == member,
        })
    };
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let members = workspace
        .split("members = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next())
        .expect("members");
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.len() > 20, "{members:?}");
    for member in members {
        let row = rows
            .iter()
            .find(|row| is_of(row, member))
            .unwrap_or_else(|| panic!("{member} is not on the page"));
        let manifest =
            fs::read_to_string(root().join(member).join("Cargo.toml")).expect("a manifest");
        for dependency in dependencies(&manifest) {
            let word = dependency.strip_prefix("kubernetes-").unwrap_or(dependency);
            assert!(
                row[3].contains(word),
                "{member} depends on {dependency}; the page says {:?}",
                row[3]
            );
        }
    }
    let mut named: Vec<&str> = rows.iter().map(|row| row[1]).collect();
    named.sort_unstable();
    assert!(named.windows(2).all(|pair| pair[0] != pair[1]), "a folder is there twice: {named:?}");
}

#[test]
fn continuous_integration_has_the_rust_version_of_the_manifest() {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect(name);
    let manifest = read("Cargo.toml");
    let version =
        manifest.split("rust-version = \"").nth(1).and_then(|rest| rest.split('"').next());
    let workflow = read(".github/workflows/test.yml");
    let image = format!("image: rust:{}-", version.expect("a version"));
    assert!(workflow.contains(&image), "{image}");
    for part in ["pull_request:", "schedule:", "run: .ci/run "] {
        assert!(workflow.contains(part), "{part}");
    }
}

/// Each file and folder of the sources that the page for contributors names.
#[test]
fn contributing_page_names_existing_files() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the page");
    let names = page.split('`').skip(1).step_by(2).filter(|name| {
        let is_path = name.chars().all(|c| c.is_ascii_alphanumeric() || "./_-".contains(c));
        is_path && name.contains('/')
    });
    let (mut found, mut missing) = (0, Vec::new());
    for name in names {
        found += 1;
        if !root().join(name).exists() {
            missing.push(name);
        }
    }
    assert!(found > 30, "{found} names: the page has another form");
    assert!(missing.is_empty(), "no such file: {missing:?}");
}
