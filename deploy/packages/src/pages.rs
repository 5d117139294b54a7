//! Shell completions and man pages of `cgpu`, from its arguments.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap_complete::Shell;

/// Returns them with their paths below `share`, where shells and `man` search.
pub(crate) fn all() -> Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    for (shell, path) in [
        (Shell::Bash, "bash-completion/completions/cgpu.bash"),
        (Shell::Zsh, "zsh/site-functions/_cgpu"),
        (Shell::Fish, "fish/vendor_completions.d/cgpu.fish"),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut cgpu_cli::command(), "cgpu", &mut script);
        pages.push((path.to_owned(), script));
    }
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    clap_mangen::generate_to(cgpu_cli::command(), &folder).context("cannot write man pages")?;
    for page in fs::read_dir(&folder)? {
        let page = page?;
        let name = page.file_name().to_string_lossy().into_owned();
        pages.push((format!("man/man1/{name}"), fs::read(page.path())?));
    }
    Ok(pages)
}

/// Writes them to a folder.
pub fn write(folder: &Path) -> Result<()> {
    for (name, bytes) in all()? {
        crate::write(&folder.join(name), &bytes)?;
    }
    Ok(())
}
