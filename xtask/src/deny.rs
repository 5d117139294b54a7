//! cargo-deny: the rules of `deny.toml` for dependencies.
//!
//! Bans, licences and sources are always checked. Advisories are checked where `CGPU_ADVISORIES`
//! names a clone of the public database, so that a test run does not depend on what was published
//! this morning.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::cargo::Workspace;
use crate::python;

/// The requirements of the environment below `target` that has cargo-deny.
const REQUIREMENTS: &str = "xtask/licences.txt";
const ENVIRONMENT: &str = "cargo-deny";

/// Names a clone of `https://github.com/rustsec/advisory-db`.
const ADVISORIES: &str = "CGPU_ADVISORIES";
/// The name under which cargo-deny looks for that clone. It has a hash of the address.
const DATABASE: &str = "advisory-db-3157b0e258782691";

/// Returns the variable PATH with which cargo finds cargo-deny: the installed one, else one from
/// Python's package index.
pub(crate) fn prepare(workspace: &Workspace) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut version = workspace.cargo(&["deny", "--version"]);
    let installed = version.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if installed.is_ok_and(|status| status.success()) {
        return Ok(path);
    }
    let python = python::make(workspace, ENVIRONMENT, REQUIREMENTS)?;
    let folder = python.parent().context("the interpreter has no folder")?.to_owned();
    Ok(std::env::join_paths([folder].into_iter().chain(std::env::split_paths(&path)))?)
}

/// Returns the checks to run.
pub(crate) fn checks(workspace: &Workspace, path: &OsString) -> Result<Vec<Command>> {
    let rules = workspace.root.join("deny.toml");
    let check = |network: &str, rules: &Path, what: &[&str]| {
        let mut command = workspace.cargo(&["deny", "--log-level", "error", network]);
        command.arg("--config").arg(rules).arg("check").args(what).env("PATH", path);
        command
    };
    // Cargo lists the crates of all systems, of which a build has not downloaded some.
    let mut checks = vec![check("--locked", &rules, &["bans", "licenses", "sources"])];
    if let Some(database) = std::env::var_os(ADVISORIES) {
        let rules = with_database(workspace, &rules, Path::new(&database))?;
        // Offline: the database is used as it is.
        checks.push(check("--frozen", &rules, &["advisories"]));
    }
    Ok(checks)
}

/// Writes rules that name the database's folder, which cargo-deny takes from nowhere else.
fn with_database(workspace: &Workspace, rules: &Path, database: &Path) -> Result<PathBuf> {
    let folder = workspace.target.join("advisories");
    fs::create_dir_all(&folder)?;
    let database = database
        .canonicalize()
        .with_context(|| format!("{ADVISORIES} names {}", database.display()))?;
    let link = folder.join(DATABASE);
    let _ = fs::remove_file(&link);
    symlink(database, link)?;
    // The last table of the rules is `advisories`.
    let text = format!("{}db-path = {folder:?}\n", fs::read_to_string(rules)?);
    let rules = folder.join("deny.toml");
    fs::write(&rules, text)?;
    Ok(rules)
}
