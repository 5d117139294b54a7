//! Recording tests that cannot run here.

use std::fs::OpenOptions;
use std::io::Write;

/// Records that a test could not run; the test then returns. `cargo xtask test` counts it as
/// skipped, not as passed.
///
/// # Panics
/// If CGPU_REQUIRE lists the missing tool.
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
