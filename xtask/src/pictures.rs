//! `cargo xtask pictures`: records `cgpu top` and `cgpu smi` in a terminal, for the documents. An
//! end-to-end test does it, and stores the screens if a variable is set.

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
    let status = command.status().context("cannot start the test that makes the pictures")?;
    ensure!(status.success(), "cannot make the pictures: the test failed, or tmux is missing");
    for name in ["smi.svg", "top.svg"] {
        println!("{}", folder.join(name).display());
    }
    Ok(ExitCode::SUCCESS)
}
