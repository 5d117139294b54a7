//! Writes the shell completions and man pages of `cgpu` to a folder, for `cargo xtask build`.

use std::fs;
use std::path::PathBuf;

use clap_complete::Shell;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("a folder"));
    let make = |path: &str| {
        let path = folder.join(path);
        fs::create_dir_all(&path).map(|()| path)
    };
    for (shell, path) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/site-functions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        clap_complete::generate_to(shell, &mut cgpu_cli::command(), "cgpu", make(path)?)?;
    }
    clap_mangen::generate_to(cgpu_cli::command(), make("man/man1")?)
}
