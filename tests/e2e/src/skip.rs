//! Tests that cannot run here report it and are counted.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

/// Records that a test could not run. libtest has no such result, so the test returns and `cargo
/// xtask test` moves it from the passed to the skipped ones.
pub fn skip(test: &str, tool: &str, reason: &str) {
    let required = std::env::var("CGPU_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name.trim() == tool),
        "CGPU_REQUIRE lists {tool}, but {reason}"
    );
    eprintln!("skipped: {reason}");
    if let Some(file) = std::env::var_os("CGPU_SKIPPED") {
        let mut file =
            OpenOptions::new().append(true).create(true).open(file).expect("the list of skips");
        // One write, because other tests append at the same time.
        file.write_all(format!("{test}: {reason}\n").as_bytes()).expect("the list of skips");
    }
}

/// Returns the Python interpreter of the environment with the client libraries, or None after
/// recording the skip.
#[must_use]
pub fn python(test: &str) -> Option<PathBuf> {
    if let Some(python) = std::env::var_os("CGPU_PYTHON") {
        return Some(python.into());
    }
    let reason = std::env::var("CGPU_NO_PYTHON").unwrap_or_else(|_| {
        "no environment: `cargo xtask test --only clients` makes one".to_owned()
    });
    skip(test, "python", &reason);
    None
}
