//! What `readelf` reports about a shared library: exports, dependencies, symbol versions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The dynamic section of a library, as read by binutils.
pub struct Elf {
    symbols: Vec<Vec<String>>,
    dynamic: String,
}

impl Elf {
    /// Reads a file. Returns None if there is no readelf.
    #[must_use]
    pub fn read(file: &Path) -> Option<Self> {
        let run = |option: &str| {
            let output =
                Command::new("readelf").arg("--wide").arg(option).arg(file).output().ok()?;
            assert!(output.status.success(), "readelf cannot read {}", file.display());
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let symbols = run("--dyn-syms")?;
        let dynamic = run("--dynamic")?;
        // Num: Value Size Type Bind Vis Ndx Name
        let rows = symbols
            .lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let symbols = rows
            .filter(|row| row.len() >= 8 && row[0].ends_with(':') && row[0] != "Num:")
            .collect();
        Some(Self { symbols, dynamic })
    }

    /// Returns the symbols that it exports.
    #[must_use]
    pub fn exports(&self) -> BTreeSet<String> {
        let defined = self.symbols.iter().filter(|row| row[6] != "UND" && row[4] != "LOCAL");
        defined.map(|row| row[7].clone()).collect()
    }

    /// Returns the versions of the symbols that it imports, e.g. `GLIBC_2.14`.
    #[must_use]
    pub fn versions(&self) -> BTreeSet<String> {
        let imported = self.symbols.iter().filter(|row| row[6] == "UND");
        imported
            .filter_map(|row| Some(row[7].split_once('@')?.1.trim_start_matches('@').to_owned()))
            .collect()
    }

    /// Returns the strong, unversioned symbols that it imports. Which library has them is not
    /// checked before it is loaded.
    #[must_use]
    pub fn unversioned(&self) -> BTreeSet<String> {
        let imported = self.symbols.iter().filter(|row| row[6] == "UND" && row[4] == "GLOBAL");
        imported.map(|row| row[7].clone()).filter(|name| !name.contains('@')).collect()
    }

    /// Returns the libraries that it depends on.
    #[must_use]
    pub fn needed(&self) -> BTreeSet<String> {
        self.entries("(NEEDED)")
    }

    /// Returns its SONAME.
    #[must_use]
    pub fn soname(&self) -> Option<String> {
        self.entries("(SONAME)").pop_first()
    }

    fn entries(&self, tag: &str) -> BTreeSet<String> {
        let lines = self.dynamic.lines().filter(|line| line.contains(tag));
        lines
            .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned()))
            .collect()
    }
}
