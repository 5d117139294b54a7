//! `cgpu completions`: shells load what it prints, and complete with it.

use std::fs;
use std::path::Path;
use std::process::Command;

use cgpu_e2e::{Fixture, Outcome, find, skip};

/// Runs a shell without the user's files, if it is installed.
fn shell(name: &str, arguments: &[&str], home: &Path) -> Option<Outcome> {
    let Some(program) = find(name) else {
        skip("completions_are_loaded_by_their_shells", name, "it is not installed");
        return None;
    };
    let mut command = Command::new(program);
    command.args(arguments).env("HOME", home).env("XDG_CONFIG_HOME", home).current_dir(home);
    Some(Outcome::of(command).exits(0).silent())
}

#[test]
fn completions_are_loaded_by_their_shells() {
    let fixture = Fixture::new("");
    let folder = fixture.root();
    fs::create_dir_all(&folder).unwrap();
    for (name, flags, uses, expected) in [
        (
            "bash",
            &["--norc"][..],
            // As bash does when TAB is pressed after `cgpu comp`.
            "source ./cgpu; complete -p cgpu; COMP_WORDS=(cgpu comp) COMP_CWORD=1; \
             _cgpu cgpu comp cgpu; echo \"${COMPREPLY[@]}\"",
            &["-F _cgpu cgpu\n", "\ncompletions\n"][..],
        ),
        (
            "zsh",
            &["-f"],
            "autoload -U compinit && compinit -u -D && source ./cgpu && print $_comps[cgpu] && \
             whence -w _cgpu _cgpu_commands",
            &["_cgpu\n", "_cgpu: function", "_cgpu_commands: function"],
        ),
        (
            "fish",
            &["--no-config"],
            "source ./cgpu; complete -C 'cgpu comp'",
            &["completions\tPrint"],
        ),
    ] {
        let printed = Outcome::of(fixture.cgpu(&["completions", name])).exits(0).silent().stdout;
        fs::write(folder.join("cgpu"), printed).unwrap();
        let mut arguments = flags.to_vec();
        arguments.extend(["-n", "./cgpu"]);
        if shell(name, &arguments, &folder).is_none() {
            continue;
        }
        arguments.truncate(flags.len());
        arguments.extend(["-c", uses]);
        let shown = shell(name, &arguments, &folder).unwrap().stdout;
        for part in expected {
            assert!(shown.contains(part), "{name}: {part:?} is not in {shown:?}");
        }
    }
}
