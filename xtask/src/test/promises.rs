//! Checks the tiers against `SPECIFICATION.md` and `SECURITY.md`: each promise with tests keeps one
//! in the fast tier.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::suite::Case;
use super::tier::{LEFT_OUT, Tier};
use crate::cargo::Workspace;

/// The pages with promises, and the cell of a row that names its tests.
const PAGES: [(&str, usize); 2] = [("SPECIFICATION.md", 3), ("SECURITY.md", 5)];

/// Checks the pages, and the table of tests that are left out, against all existing tests.
pub(crate) fn check(workspace: &Workspace, cases: &[Case]) -> Result<()> {
    let fast: Vec<String> = cases.iter().filter(|case| Tier::Fast.runs(case)).map(path).collect();
    for (page, cell) in PAGES {
        let text = fs::read_to_string(workspace.root.join(page))
            .with_context(|| format!("cannot read {page}"))?;
        let lacking = without_test(&text, cell, &fast);
        ensure!(lacking.is_empty(), "{page}: no test in the fast tier: {}", lacking.join("; "));
    }
    let stale = LEFT_OUT.iter().flat_map(|left_out| left_out.stale(cases)).collect::<Vec<_>>();
    ensure!(stale.is_empty(), "tier.rs lists tests that do not exist: {}", stale.join("; "));
    Ok(())
}

/// Returns the test program and the test, e.g. `tests::e2e::plain::race::fresh`.
fn path(case: &Case) -> String {
    format!("{}::{}", case.suite.name.replace('/', "::"), case.name)
}

/// Returns whether a name on the page means this test or its module. It may leave out parts of the
/// path, such as `tests`.
fn cites(name: &str, path: &str) -> bool {
    let mut parts = path.split("::");
    name.split("::").all(|wanted| parts.any(|part| part == wanted))
}

/// Returns the promises that name tests, in this cell of their row, of which none is in `tests`.
fn without_test(page: &str, cell: usize, tests: &[String]) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    let mut lacking = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').collect();
        let cited = cells.get(cell).into_iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
        // A name without a module is a benchmark; one that starts with a type is a helper of tests.
        let is_test = |name: &&str| name.contains("::") && !name.starts_with(char::is_uppercase);
        let cited: Vec<&str> = cited.filter(is_test).collect();
        let is_there = |name: &&str| tests.iter().any(|test| cites(name, test));
        if !cited.is_empty() && !cited.iter().any(is_there) {
            lacking.push(cells[1].trim().to_owned());
        }
    }
    lacking
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promise_keeps_one_of_the_tests_that_it_names() {
        let page = "| promise | number | shown by | GPU |\n|---|---|---|---|\n\
                    | whole | 0 | `race::fresh`, `runs::long` | sim |\n\
                    | gone | 0 | `runs::long` | sim |\n\
                    | measured | 1 ns | `launch_open_added_ns` | null |\n\
                    | module | 1 | `turns::policies` | sim |\n\
                    | silent | 0 | `Outcome::silent` in all | sim |\n";
        let tests = ["tests::e2e::plain::race::tests::fresh", "monitor::turns::policies::cap"]
            .map(str::to_owned);
        assert_eq!(without_test(page, 3, &tests), ["gone"]);
    }
}
