//! Pages that name tests name tests that exist.

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

#[test]
fn specification_names_existing_tests_and_benchmarks() {
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
            None => text.contains(&format!("\"{name}\"")),
        };
        assert!(found, "SPECIFICATION.md names {name}, which is nowhere");
    }
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
