//! Checks of a container by its own files: settings, region, the monitor's grant, the counters of
//! its processes.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cgpu_shm::file::{Error, Fault};
use cgpu_shm::grant_snapshot::GrantReader;
use cgpu_shm::paths;
use cgpu_shm::preamble::InvalidPreamble;
use cgpu_shm::snapshot::{Reader, Snapshot};

use super::view::View;
use crate::report::{self, NATIVE};
use cgpu_host_diagnosis::causes::{Cause, Findings};
use cgpu_host_diagnosis::status;

/// Timeout for a heartbeat. There are ten a second, and gates open after 1 s without one; a busy
/// machine may be late.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MEMORY: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
const DISABLE: &str = "CGPU_DISABLE";
const KEEP_DEEP_BIND: &str = "CGPU_KEEP_DEEPBIND";

/// A file that only `cgpu-runtime` makes in a container's folder.
const SHIM: &str = "libcgpu.so";

/// Checks that a process has a seccomp filter, if `cgpu-runtime` made its container. `status` is
/// its file of that name in `/proc`.
pub(crate) fn check_seccomp(view: &View, status: &str, subject: &str, findings: &mut Findings) {
    let is_open = status
        .lines()
        .any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "0"));
    if is_open && view.has(Path::new(paths::RUN).join(SHIM)) {
        findings.add(Cause::NoSeccomp, subject, "");
    }
}

/// Returns whether limits come from outside; then variables do not count.
fn has_limits(view: &View) -> bool {
    view.has(Path::new(paths::RUN).join("limits"))
}

/// Checks the settings of the shim, and the libraries that it needs.
pub(crate) fn check_settings(view: &View, subject: &str, findings: &mut Findings) {
    if view.library("libcuda.so.1").is_none() {
        findings.add(Cause::DriverMissing, subject, "");
    } else if view.library("libnvidia-ml.so.1").is_none() {
        findings.add(Cause::NvmlMissing, subject, "");
    }
    check_names(view, subject, findings);
    if has_limits(view) {
        return;
    }
    if let Some(value) =
        view.variable(KEEP_DEEP_BIND).filter(|value| ["1", "true"].contains(&value.trim()))
    {
        findings.add(Cause::KeepsDeepBind, subject, format!("{KEEP_DEEP_BIND} is {value}"));
    }
    if let Some(value) =
        view.variable(DISABLE).filter(|value| ["1", "true"].contains(&value.trim()))
    {
        return findings.add(Cause::SwitchedOff, subject, format!("{DISABLE} is {value}"));
    }
    match view.variables.get(MEMORY) {
        None => findings.add(Cause::LimitsOff, subject, format!("{MEMORY} is not set")),
        Some(value) if value.split(',').any(|part| part.trim().parse() == Ok(0_u64)) => {
            findings.add(Cause::LimitsOff, subject, format!("{MEMORY} is {value}"));
        }
        Some(_) => {}
    }
}

/// Checks that cgpu knows the variables that are named like its own.
pub(crate) fn check_names(view: &View, subject: &str, findings: &mut Findings) {
    for message in view.variables.keys().filter_map(|name| cgpu_settings::misspelling(name)) {
        findings.add(Cause::UnknownVariable, subject, message);
    }
}

/// Checks all files of a container from inside; `folder` is a path within the view.
pub(crate) fn check_files(view: &View, folder: &Path, subject: &str, findings: &mut Findings) {
    let known = view.path(folder);
    findings.examined(format!("the container in {}", known.display()));
    let folder = match view.folder(folder) {
        Ok(folder) => folder,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return findings.add(
                Cause::NotStarted,
                subject,
                format!("{} does not exist", known.display()),
            );
        }
        Err(error) => {
            return findings.add(
                Cause::RegionUnreadable,
                subject,
                format!("{}: {error}", known.display()),
            );
        }
    };
    if check_region(&folder.path, subject, findings) {
        check_monitor(&folder.path, subject, findings);
    }
    findings.rename(&folder.path, &known);
}

/// Checks a container's region; returns whether it can be used.
pub(crate) fn check_region(folder: &Path, subject: &str, findings: &mut Findings) -> bool {
    let refused = report::read(&folder.join("refused")).filter(|text| !text.is_empty());
    let is_refused = refused.is_some();
    if let Some(message) = refused {
        findings.add(Cause::Refused, subject, message);
    }
    let snapshot = match Reader::open(folder).and_then(|mut reader| reader.read()) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            if !matches!(error.fault, Fault::Missing) {
                findings.add(unusable(&error), subject, error.to_string());
            } else if !is_refused {
                findings.add(
                    Cause::NotStarted,
                    subject,
                    format!("{} does not exist", error.path.display()),
                );
            }
            return false;
        }
    };
    if snapshot.slots.is_empty() && !is_refused {
        findings.add(Cause::NotStarted, subject, "no process has claimed a slot");
    }
    if let Some(container) = report::container(folder, &mut Vec::new()) {
        status::check_memory(&container, subject, findings);
        status::check_counters(&sums(&snapshot), &container, subject, findings);
    }
    true
}

/// Returns the cause for a file that cannot be used.
pub(crate) fn unusable(error: &Error) -> Cause {
    match error.fault {
        Fault::InvalidPreamble(InvalidPreamble::WrongVersion { .. }) => Cause::RegionVersion,
        _ => Cause::RegionUnreadable,
    }
}

fn sums(snapshot: &Snapshot) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for slot in &snapshot.slots {
        for (name, count) in cgpu_shm::reason::counted(&slot.counters) {
            *sums.entry(name.into_owned()).or_default() += u64::from(count);
        }
    }
    sums
}

/// Checks that the monitor's heartbeat changes, and the policies in the grant.
fn check_monitor(folder: &Path, subject: &str, findings: &mut Findings) {
    let grant = match GrantReader::open(folder) {
        Ok(grant) => grant,
        Err(error) if matches!(error.fault, Fault::Missing) => {
            return findings.add(
                Cause::NeverMet,
                subject,
                format!("{} does not exist", error.path.display()),
            );
        }
        Err(error) => return findings.add(unusable(&error), subject, error.to_string()),
    };
    let Ok(first) = grant.read() else { return };
    if first.monitor == 0 {
        return findings.add(Cause::NeverMet, subject, "");
    }
    let deadline = Instant::now() + HEARTBEAT_TIMEOUT;
    while grant.read().is_ok_and(|grant| grant.heartbeat == first.heartbeat) {
        if Instant::now() >= deadline {
            return findings.add(Cause::MonitorStale, subject, "no heartbeat within 3 s");
        }
        thread::sleep(POLL_INTERVAL);
    }
    let gpus = Reader::open(folder)
        .and_then(|mut reader| reader.read())
        .map_or(0, |snapshot| snapshot.gpus.len());
    for (gpu, gpu_grant) in first.gpus.iter().enumerate().take(gpus) {
        if gpu_grant.policy == NATIVE {
            findings.add(Cause::NativePolicy, &format!("GPU {gpu} of {subject}"), "");
        }
    }
}
