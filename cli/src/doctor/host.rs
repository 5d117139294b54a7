//! Checks of a host by its monitor's status: the monitor, its GPUs, its containers, the processes
//! on the GPUs.

use std::path::Path;

use anyhow::Context;
use cgpu_client::connection::{Client, Failure};
use cgpu_client::control_group::is_delegated;
use cgpu_client::message::{ContainerStatus, Status};
use cgpu_host_diagnosis::causes::{Cause, Findings};
use cgpu_host_diagnosis::status::{self, Examiner, MONITOR, subject};
use cgpu_shm::file::Fault;
use cgpu_shm::paths;
use cgpu_shm::snapshot::Reader;

use super::container;
use super::process;
use crate::{check_config, nodes, report};

/// Adds configuration files, with what is wrong with each.
pub(crate) fn add_invalid_files(faults: Vec<(&str, String)>, findings: &mut Findings) {
    for (file, error) in faults {
        findings.add(Cause::InvalidConfig, file, error);
    }
}

/// Checks a host, or one of its containers.
pub(crate) fn examine(
    root: &Path,
    only: Option<&str>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    findings.examined(format!("the monitor of {}", root.display()));
    add_invalid_files(check_config::faults(), findings);
    match Client::connect(&paths::socket(root)).and_then(|mut client| client.status()) {
        Ok(status) => {
            let only = only.map(|typed| id(root, typed, &status)).transpose()?;
            check_status(&status, only, findings);
            let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
            check_delegation(&status, &mountinfo, findings);
        }
        Err(failure) => {
            let cause = if matches!(failure, Failure::Absent(..)) {
                Cause::NoMonitor
            } else {
                Cause::MonitorSilent
            };
            findings.add(cause, MONITOR, failure.to_string());
            let status = report::observe(root)?;
            let only = only.map(|typed| id(root, typed, &status)).transpose()?;
            let wanted = |one: &&ContainerStatus| only.is_none_or(|id| one.id == id);
            for container in status.containers.iter().filter(wanted) {
                let subject = subject(container);
                findings.examined(&subject);
                container::check_region(&container.dir, &subject, findings);
            }
        }
    }
    Ok(())
}

/// Returns the id of the container that is called so.
fn id<'a>(root: &Path, typed: &str, status: &'a Status) -> anyhow::Result<&'a str> {
    let found = nodes::find(typed, &status.containers)?;
    let unknown =
        || format!("there is no container {typed} in {}: cgpu smi lists them", root.display());
    Ok(&found.with_context(unknown)?.id)
}

/// Checks a status, and what it names.
pub(crate) fn check_status(status: &Status, only: Option<&str>, findings: &mut Findings) {
    status::check(status, only, &Host, findings);
}

/// Checks that a container with a limit of the driver cannot reach other control groups.
pub(crate) fn check_delegation(status: &Status, mountinfo: &[u8], findings: &mut Findings) {
    let shares = status.containers.iter().flat_map(|container| &container.gpus);
    let is_limited = shares.filter_map(|share| share.wall.as_ref()).any(|wall| wall.state.is_set());
    if is_limited && is_delegated(mountinfo) == Some(false) {
        findings.add(Cause::NoNsdelegate, "control groups", "");
    }
}

/// Examines the host on which this program runs.
struct Host;

impl Examiner for Host {
    fn region(&self, dir: &Path) -> Option<Cause> {
        let error = Reader::open(dir).err()?;
        (!matches!(error.fault, Fault::Missing)).then(|| container::unusable(&error))
    }

    fn container(&self, pid: u32, subject: &str, findings: &mut Findings) {
        process::check_container(pid, subject, findings);
    }

    fn process(&self, pid: u32, findings: &mut Findings) {
        // Another user's process cannot be examined.
        let _ = process::examine(pid, findings);
    }
}
