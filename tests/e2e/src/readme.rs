//! The commands of README.md, for tests that run them.

const README: &str = include_str!("../../../README.md");

/// Returns the commands of README.md's block that has one which begins so. A command that README
/// splits with a backslash is one line here.
///
/// # Panics
/// README.md has no such block.
#[must_use]
pub fn readme_commands(beginning: &str) -> Vec<String> {
    const INDENT: &str = "    ";
    let blocks = README.split("\n\n").filter(|text| text.lines().all(|it| it.starts_with(INDENT)));
    let blocks = blocks.map(|text| text.replace("\\\n", ""));
    let commands = |block: String| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        block.lines().map(words).collect()
    };
    let mut blocks = blocks.map(commands);
    blocks
        .find(|block| block.iter().any(|line| line.starts_with(beginning)))
        .unwrap_or_else(|| panic!("README.md has no block with `{beginning}`"))
}

/// Returns the first output in README.md, without its line breaks.
///
/// # Panics
/// README.md has none.
#[must_use]
pub fn readme_output() -> String {
    let output = README.split("```\n").nth(1).expect("an output in README.md");
    output.lines().collect()
}
