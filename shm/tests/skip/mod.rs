//! Tests that cannot run here say so, and are counted.

use std::fs::OpenOptions;
use std::io::Write;

/// Records that a test could not run: it then returns, and `cargo xtask test` moves it from the passed to the skipped ones.
///
/// # Panics
/// If CGPU_REQUIRE lists the tool: then its lack is a failure.
pub(crate) fn skip(test: &str, tool: &str, reason: &str) {
    let required = std::env::var("CGPU_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name.trim() == tool),
        "CGPU_REQUIRE lists {tool}, but {reason}"
    );
    println!("skipped: {reason}");
    if let Some(file) = std::env::var_os("CGPU_SKIPPED") {
        let mut file = OpenOptions::new().append(true).create(true).open(file).unwrap();
        // One write: other tests append at the same time.
        file.write_all(format!("{test}: {reason}\n").as_bytes()).unwrap();
    }
}
