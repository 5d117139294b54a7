//! `cgpu completions`: prints the completions of a shell.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use clap_complete::{Shell, generate};

use crate::{Failure, command, output};

const CODES: &str = "\
Exit codes: 0 printed; 2 invalid arguments.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// The shell that reads them
    #[arg(value_enum)]
    shell: Supported,
}

/// The shells whose completions the packages have.
#[derive(Clone, Copy, ValueEnum)]
enum Supported {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let shell = match arguments.shell {
        Supported::Bash => Shell::Bash,
        Supported::Zsh => Shell::Zsh,
        Supported::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut command(), "cgpu", &mut script);
    output::write(String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use crate::command;

    #[test]
    fn only_shells_of_the_packages_are_accepted() {
        let accepts =
            |shell| command().try_get_matches_from(["cgpu", "completions", shell]).is_ok();
        assert!(["bash", "zsh", "fish"].into_iter().all(accepts));
        assert!(!accepts("elvish"));
    }
}
