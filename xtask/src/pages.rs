//! Shell completions and man pages of `cgpu`, generated from its arguments.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cargo::Workspace;

/// Writes them to the folder's `share`, under the names that shells and `man` search for.
pub(crate) fn write(workspace: &Workspace, folder: &Path) -> Result<()> {
    let mut command =
        workspace.cargo(&["run", "--quiet", "--package", "cgpu-packages", "--", "pages"]);
    let status = command.arg(folder.join("share")).status().context("cannot run cargo")?;
    ensure!(status.success(), "cannot write the completions and man pages of cgpu");
    Ok(())
}
