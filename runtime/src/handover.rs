//! The runtime that starts containers: how it is found, and how it gets the arguments.

use std::ffi::{OsStr, OsString};
use std::fs::{Metadata, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use oci_spec::runtime::State;
use serde_json::json;

use crate::invocation::Invocation;

/// Brings the driver's files and devices into containers, then calls another runtime.
const VENDOR_RUNTIME: &str = "nvidia-container-runtime";
const OTHERS: &[&str] = &["runc", "crun"];
/// Folders of programs, for engines that run without PATH.
const FOLDERS: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Returns the next runtime: the configured one; else for a slice of a real GPU the vendor's, if it
/// is installed, and for other containers runc or crun.
///
/// # Errors
/// No runtime is found.
pub fn next(configured: Option<&Path>, needs_vendor_runtime: bool) -> Result<PathBuf> {
    if let Some(path) = configured {
        if path.components().count() > 1 {
            return Ok(path.to_owned());
        }
        return find(path.as_os_str())
            .with_context(|| format!("the runtime {} is not in PATH", path.display()));
    }
    let vendor = needs_vendor_runtime.then(|| find(OsStr::new(VENDOR_RUNTIME))).flatten();
    let found = vendor.or_else(|| OTHERS.iter().find_map(|name| find(OsStr::new(name))));
    found.with_context(|| {
        format!("no runtime to hand over to: expected {} in PATH; install one", OTHERS.join(" or "))
    })
}

/// Returns a program in PATH that is not this one.
fn find(name: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_in(std::env::split_paths(&path).chain(FOLDERS.iter().map(PathBuf::from)), name)
}

/// Returns the first program in these folders, with one check for each. Each call of an engine does
/// this.
fn find_in(folders: impl Iterator<Item = PathBuf>, name: &OsStr) -> Option<PathBuf> {
    let identity = |about: &Metadata| (about.dev(), about.ino());
    let own = std::fs::metadata("/proc/self/exe").ok().as_ref().map(identity);
    let is_other = |file: &PathBuf| {
        let about = std::fs::metadata(file).ok().filter(Metadata::is_file);
        about.is_some_and(|about| Some(identity(&about)) != own)
    };
    folders.filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).find(is_other)
}

/// Replaces this process by the next runtime.
pub fn exec(next: &Path, invocation: &Invocation) -> anyhow::Error {
    let error = command(next, &invocation.arguments).exec();
    anyhow::Error::new(error).context(format!("cannot run {}", next.display()))
}

/// Runs the next runtime to its end, with this process's standard streams and the descriptors that
/// the engine has left open.
///
/// # Errors
/// It cannot be started.
pub fn run(next: &Path, invocation: &Invocation) -> Result<ExitStatus> {
    command(next, &invocation.arguments)
        .status()
        .with_context(|| format!("cannot run {}", next.display()))
}

/// Deletes the container that the next runtime has made, and discards its standard output.
///
/// # Errors
/// As for [`run`].
pub fn undo(next: &Path, invocation: &Invocation) -> Result<()> {
    let mut command = command(next, &invocation.delete_arguments());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.status().with_context(|| format!("cannot run {}", next.display()))?;
    Ok(())
}

/// Returns the container's state by the next runtime; `None` if it has no such container.
#[must_use]
pub fn state(next: &Path, invocation: &Invocation) -> Option<State> {
    let mut command = command(next, &invocation.state_arguments());
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

fn command(next: &Path, arguments: &[OsString]) -> Command {
    let mut command = Command::new(next);
    command.args(arguments);
    command
}

/// Returns the exit code as a shell does.
#[must_use]
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// What a message is for an engine's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The container is not started.
    Error,
    /// The container is started.
    Warning,
}

/// Reports a message on stderr and in the engine's log.
pub fn report(invocation: Option<&Invocation>, level: Level, message: &str) {
    let (level, prefix) = match level {
        Level::Error => ("error", ""),
        Level::Warning => ("warning", "warning: "),
    };
    eprintln!("cgpu-runtime: {prefix}{message}");
    let Some(log) = invocation
        .and_then(|invocation| invocation.log.as_ref().map(|log| (log, invocation.logs_json)))
    else {
        return;
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (time, text) = (instant(now), format!("cgpu-runtime: {message}"));
    let line = if log.1 {
        json!({"level": level, "msg": text, "time": time}).to_string()
    } else {
        format!("time=\"{time}\" level={level} msg={}", json!(text))
    };
    // The message is on stderr, too.
    let _ = OpenOptions::new()
        .append(true)
        .create(true)
        .open(log.0)
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
}

/// Formats seconds since 1970 for an engine's log.
fn instant(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last of a year; eras of 400 years are
    // all equal.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, carried) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!(
        "{:04}-{month:02}-{of_month:02}T{:02}:{:02}:{:02}Z",
        year + era * 400 + carried,
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instant_follows_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
        ] {
            assert_eq!(instant(seconds), text);
        }
    }

    #[test]
    fn report_writes_to_the_engines_log() {
        let folder = tempfile::tempdir().unwrap();
        for (json, expected) in [
            ("json", "\"msg\":\"cgpu-runtime: it says \\\"no\\\"\""),
            ("text", "msg=\"cgpu-runtime: it says \\\"no\\\"\""),
        ] {
            let log = folder.path().join(json);
            let line = format!("--log {} --log-format {json} create ID", log.display());
            let invocation = Invocation::parse(line.split(' ').map(OsString::from)).unwrap();
            report(Some(&invocation), Level::Error, "it says \"no\"");
            let text = std::fs::read_to_string(&log).unwrap();
            assert!(text.contains(expected) && text.ends_with('\n'), "{text}");
            report(Some(&invocation), Level::Warning, "it goes on");
            let text = std::fs::read_to_string(&log).unwrap();
            let last = text.lines().last().unwrap();
            assert!(last.contains("warning") && last.contains("it goes on"), "{text}");
        }
    }

    #[test]
    fn find_skips_this_program() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["link", "folder/runc", "nothing", "other"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        std::os::unix::fs::symlink(std::env::current_exe().unwrap(), at("link/runc")).unwrap();
        std::fs::write(at("other/runc"), "").unwrap();
        let found = |names: &[&str]| find_in(names.iter().map(|name| at(name)), OsStr::new("runc"));
        assert_eq!(found(&["link", "folder", "nothing", "other"]), Some(at("other/runc")));
        assert_eq!(found(&["link", "nothing"]), None);
    }

    #[test]
    fn next_with_configured_path_is_that_path() {
        assert_eq!(next(Some(Path::new("/x/y")), true).unwrap(), Path::new("/x/y"));
        assert!(next(Some(Path::new("no-such-runtime")), false).is_err());
    }
}
