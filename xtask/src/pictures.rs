//! `cargo xtask pictures`: what `cgpu top` and `cgpu smi` look like in a real terminal, for the documents.
//!
//! The play is one of the end-to-end tests; here it also keeps what is on the screen.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::cargo::Workspace;
use crate::collection::TEST;

pub(crate) fn run() -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    build::collect(&workspace, &TEST)?;
    let folder = workspace.root.join("docs/pictures");
    let mut command =
        workspace.cargo(&["test", "--quiet", "--package", "cgpu-e2e", "--test", "plain"]);
    command.args(["--", "--exact", "terminal::pictures"]).stdout(std::io::stderr());
    command.env("CGPU_PICTURES", &folder).env("CGPU_REQUIRE", "tmux");
    let status = command.status().context("cannot start the test that makes them")?;
    ensure!(status.success(), "the pictures could not be made: tmux is needed");
    for name in ["smi.svg", "top.svg"] {
        println!("{}", folder.join(name).display());
    }
    Ok(ExitCode::SUCCESS)
}
