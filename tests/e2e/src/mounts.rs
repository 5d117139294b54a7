//! Commands in mount and PID namespaces of their own.

use std::process::Command;

/// Wraps a command to run in its own mount namespace, after a shell has run `setup` there. Returns
/// None where this user may not mount.
#[must_use]
pub fn mounted(command: &Command, setup: &str) -> Option<Command> {
    in_namespaces(command, &["--mount"], setup)
}

/// Wraps a command to run as the first process of its own PID namespace, as in a container, with
/// its own /proc or the host's. It ends with the process that is started here. Returns None where
/// this user may not do that.
#[must_use]
pub fn contained(command: &Command, own_proc: bool) -> Option<Command> {
    let setup = if own_proc { "mount -t proc proc /proc" } else { "true" };
    in_namespaces(command, &["--mount", "--pid", "--fork", "--kill-child"], setup)
}

fn in_namespaces(command: &Command, namespaces: &[&str], setup: &str) -> Option<Command> {
    let mut unshare = namespaces.to_vec();
    // SAFETY: no obligations; geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        unshare.extend(["--user", "--map-root-user"]);
    }
    let probe = Command::new("unshare")
        .args(&unshare)
        .args(["mount", "-t", "tmpfs", "none", "/mnt"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return None;
    }
    // Only the program is preloaded with the shim, not the tools that prepare its namespace.
    let preload =
        command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").and_then(|(_, value)| value);
    let mut wrapped = Command::new("unshare");
    wrapped
        .args(&unshare)
        .args([
            "sh",
            "-c",
            &format!("{{ {setup}; }} >&2 && export LD_PRELOAD=\"$1\" && shift && exec \"$@\""),
            "sh",
        ])
        .arg(preload.unwrap_or_default())
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) if name != "LD_PRELOAD" => wrapped.env(name, value),
            _ => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    Some(wrapped)
}
