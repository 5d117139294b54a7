//! All atomics come from `cgpu_shm::atomic`. Clippy's `disallowed-types` cannot check that, because
//! it sees through re-exports.
#![cfg(not(loom))]

use std::fs;
use std::path::{Path, PathBuf};

/// Files and folders that may use the standard library's atomics, and why.
const EXCEPTIONS: &[&str] = &[
    // The facade.
    "shm/src/atomic.rs",
    "shm/src/atomic",
    // A model must not see its observer.
    "shm/tests/loom/main.rs",
    // This file.
    "shm/tests/facade.rs",
    // The cluster's programs map no shared memory, and their tasks have no models.
    "kubernetes",
    "tests/kubernetes",
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.') || name == "target";
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() && !hidden {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn atomics_come_from_the_facade() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    sources(root, &mut found);
    let strays: Vec<_> = found
        .iter()
        .filter_map(|path| path.strip_prefix(root).ok().map(|name| (name, path)))
        .filter(|(name, _)| !EXCEPTIONS.iter().any(|exception| name.starts_with(exception)))
        .filter(|(_, path)| {
            fs::read_to_string(path).is_ok_and(|text| text.contains("sync::atomic"))
        })
        .map(|(name, _)| name)
        .collect();
    assert!(found.len() > 10, "the sources were not found below {}", root.display());
    assert!(strays.is_empty(), "use cgpu_shm::atomic in {strays:?}");
}
