//! `cargo xtask pictures`: records `cgpu top` and `cgpu smi` in a terminal, and the monitor's page
//! in a browser, for the documents. End-to-end tests do it, and store the pictures if a variable is
//! set.

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
    let page = "page::page_shows_gpus_containers_turns_and_a_restart";
    command.args(["--", "--exact", "terminal::pictures", page]).stdout(std::io::stderr());
    command.env("CGPU_PICTURES", &folder).env("CGPU_REQUIRE", "tmux,chromium");
    let status = command.status().context("cannot start the test that makes the pictures")?;
    ensure!(
        status.success(),
        "cannot make the pictures: a test failed, or tmux or chromium is missing"
    );
    for name in ["smi.svg", "top.svg", "page.png"] {
        println!("{}", folder.join(name).display());
    }
    Ok(ExitCode::SUCCESS)
}
