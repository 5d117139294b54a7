//! Each happens-before pair is marked at both ends in the source and described in
//! `docs/internals/shared-memory.md`.
#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Counts each `HB name` in the sources below `directory`.
fn marks(directory: &Path, found: &mut BTreeMap<String, usize>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            marks(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for mark in text.split("HB ").skip(1) {
            let name: String = mark.chars().take_while(char::is_ascii_lowercase).collect();
            *found.entry(name).or_default() += 1;
        }
    }
}

#[test]
fn every_pair_has_two_ends_and_a_row_in_the_docs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_to_string(root.join("../docs/internals/shared-memory.md")).unwrap();
    let table = docs.split("## Orderings").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let mut described: Vec<_> = rows.filter(|name| *name != "pair").collect();
    let mut found = BTreeMap::new();
    marks(&root.join("src"), &mut found);
    for (name, ends) in &found {
        assert!(*ends >= 2, "`HB {name}` is marked at one end only");
    }
    described.sort_unstable();
    assert_eq!(found.keys().collect::<Vec<_>>(), described);
}
