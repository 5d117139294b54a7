//! Checks of a running process, by its loaded files and variables in /proc.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use cgpu_text::printable;

use super::view::View;
use super::{container, examine_loading};
use cgpu_host_diagnosis::causes::{Cause, Findings};

/// Entry of the auxiliary vector: whether the program was started with more rights than its user's.
const AT_SECURE: u64 = 23;

#[derive(Debug, Default)]
struct Loaded {
    shim: bool,
    replaced: bool,
    /// The folder of its region.
    region: Option<PathBuf>,
}

fn loaded(maps: &str) -> Loaded {
    let mut loaded = Loaded::default();
    for path in maps.lines().filter_map(|line| line.splitn(6, ' ').nth(5)).map(str::trim_start) {
        let (path, gone) =
            path.strip_suffix(" (deleted)").map_or((path, false), |path| (path, true));
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("libcgpu.so") {
            loaded.shim = true;
            loaded.replaced |= gone;
        } else if name == "use" && !gone {
            loaded.region = Path::new(path).parent().map(Path::to_owned);
        }
    }
    loaded
}

fn secure(pid: u32) -> Option<bool> {
    let vector = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
    vector
        .chunks_exact(16)
        .find(|pair| word(&pair[..8]) == Some(AT_SECURE))
        .and_then(|pair| word(&pair[8..]))
        .map(|value| value != 0)
}

/// Returns the text of a process's file. It has the process's name, which may be any bytes.
fn text(pid: u32, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the id and the name of a process.
pub(crate) fn name(pid: u32) -> String {
    let comm = text(pid, "comm");
    format!("process {pid} ({})", printable(comm.trim()))
}

/// Checks a process's filter of system calls.
fn check_seccomp(view: &View, pid: u32, subject: &str, findings: &mut Findings) {
    container::check_seccomp(view, &text(pid, "status"), subject, findings);
}

/// Checks the filter of a container's system calls and the names of its variables, by one of its
/// processes.
pub(crate) fn check_container(pid: u32, subject: &str, findings: &mut Findings) {
    if let Ok(view) = View::of(pid) {
        check_seccomp(&view, pid, subject, findings);
        container::check_names(&view, subject, findings);
    }
}

/// Checks a process and its container.
pub(crate) fn examine(pid: u32, findings: &mut Findings) -> Result<()> {
    let view = View::of(pid)?;
    let subject = name(pid);
    let maps = fs::read(format!("/proc/{pid}/maps"));
    ensure!(maps.is_ok(), "cannot examine {subject}: only its own user and root may");
    let loaded = loaded(&String::from_utf8_lossy(&maps.unwrap_or_default()));
    findings.examined(&subject);
    check_seccomp(&view, pid, &subject, findings);
    if loaded.replaced {
        findings.add(Cause::ReplacedShim, &subject, "");
    }
    if let Some(folder) = loaded.region.filter(|_| loaded.shim) {
        container::check_files(&view, &folder, &subject, findings);
        return Ok(());
    }
    if loaded.shim {
        container::check_settings(&view, &subject, findings);
        return Ok(());
    }
    let executable = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    examine_loading(&view, &executable, secure(pid), &subject, findings);
    container::check_settings(&view, &subject, findings);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_libraries_are_recognized_by_path() {
        let maps = "7f00-7f01 r-xp 00000000 fe:01 1      /opt/a b/libcgpu.so (deleted)\n\
                    7f01-7f02 rw-s 00000000 00:1b 2      /run/cgpu/use\n\
                    7f02-7f03 rw-p 00000000 00:00 0 \n\
                    7f03-7f04 rw-p 00000000 00:00 0      [stack]\n";
        let found = loaded(maps);
        assert!(found.shim && found.replaced);
        assert_eq!(found.region.as_deref(), Some(Path::new("/run/cgpu")));
        assert!(!loaded("").shim);
        assert_eq!(secure(std::process::id()), Some(false));
    }
}
