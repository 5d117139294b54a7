//! What `cgpu smi` shows: the monitor's status; without a monitor, the containers' own files;
//! inside a container, its own files.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cgpu_client::connection::{Client, Failure as RequestFailure};
use cgpu_client::device_id::DeviceId;
use cgpu_client::message::{
    ContainerStatus, GpuStatus, ProcessGpu, ProcessStatus, ShareStatus, Status,
};
use cgpu_shm::file::Fault;
use cgpu_shm::grant_snapshot::GrantReader;
use cgpu_shm::limits::Limits;
use cgpu_shm::liveness::{self, Liveness};
use cgpu_shm::paths;
use cgpu_shm::reason::counted;
use cgpu_shm::slots::State;
use cgpu_shm::snapshot::{Reader, Snapshot};
use cgpu_shm::units::SlotIndex;
use rustix::fs::OFlags;

pub(crate) use cgpu_host_diagnosis::report::{NATIVE, Report, View, name_simulated, simulated};

use crate::{own, root};

/// Larger than any text file of a container.
const MAX_FILE_SIZE: u64 = 64 << 10;

/// Where reports come from; it can be read repeatedly.
pub(crate) enum Source {
    Host(PathBuf),
    Container(own::Container),
}

impl Source {
    pub(crate) fn of(root: &root::Root) -> Result<Self> {
        Ok(match root.view()? {
            root::View::Host(root) => Self::Host(root),
            root::View::Container(folder) => Self::Container(own::Container::new(folder)),
        })
    }

    pub(crate) fn report(&mut self) -> Result<Report> {
        let mut report = match self {
            Self::Host(root) => of_host(root)?,
            Self::Container(container) => container.report(),
        };
        name_simulated(&mut report.status);
        Ok(report)
    }
}

/// Gets the monitor's status; without a monitor reads the containers' files.
fn of_host(root: &Path) -> Result<Report> {
    match Client::connect(&paths::socket(root)).and_then(|mut monitor| monitor.status()) {
        Ok(status) => Ok(Report { monitor: true, view: View::Host, status }),
        Err(RequestFailure::Absent(..)) => {
            Ok(Report { monitor: false, view: View::Host, status: observe(root)? })
        }
        Err(other) => Err(other.into()),
    }
}

/// Reads the containers' own files.
///
/// # Errors
/// The folder of containers exists and cannot be read: that must not look like no containers.
pub(crate) fn observe(root: &Path) -> Result<Status> {
    let mut status = Status { root: root.to_owned(), ..Status::default() };
    let folder = paths::containers(root);
    let folders = match fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(status),
        folders => {
            folders.with_context(|| format!("cannot read the folder {}", folder.display()))?
        }
    };
    let mut folders: Vec<_> = folders.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    for folder in folders {
        let container = container(&folder, &mut status.gpus);
        status.containers.extend(container);
    }
    Ok(status)
}

/// Shortens a container's id as monitor and engines do: 64 digits to the first twelve.
fn short(name: &str) -> String {
    let is_long = name.len() == 64 && name.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_long { name[..12].to_owned() } else { name.to_owned() }
}

/// Reads one container; `None` if the folder is not a container's.
pub(crate) fn container(folder: &Path, gpus: &mut Vec<GpuStatus>) -> Option<ContainerStatus> {
    let id = short(&folder.file_name()?.to_string_lossy());
    let limits: Limits =
        read(&folder.join("limits")).and_then(|text| text.parse().ok()).unwrap_or_default();
    let mut container = ContainerStatus {
        name: limits.name.unwrap_or_else(|| id.clone()),
        id,
        image: cgpu_client::record::image(folder),
        dir: folder.to_owned(),
        weight: limits.weight,
        percent: limits.percent,
        high_priority: limits.high_priority,
        // Container runtimes create this file empty.
        refused: read(&folder.join("refused")).filter(|message| !message.is_empty()),
        ..ContainerStatus::default()
    };
    match Reader::open(folder).and_then(|mut reader| Ok((reader.read()?, reader))) {
        Ok((snapshot, reader)) => {
            fill(&mut container, &snapshot, &reader, gpus);
            amend(&mut container, folder);
        }
        Err(error) if matches!(error.fault, Fault::Missing) => {
            container.refused.as_ref()?;
        }
        Err(error) => {
            container.faults.insert("use".into(), error.to_string());
        }
    }
    Some(container)
}

fn fill(
    container: &mut ContainerStatus,
    snapshot: &Snapshot,
    reader: &Reader,
    gpus: &mut Vec<GpuStatus>,
) {
    let index: Vec<DeviceId> = snapshot
        .gpus
        .iter()
        .map(|gpu| number(gpus, &gpu.uuid.to_string(), gpu.total.get()))
        .collect();
    container.export_tables.clone_from(&snapshot.export_tables);
    container.unknown_functions.clone_from(&snapshot.unknown_functions);
    let is_alive = |slot: usize| {
        SlotIndex::new(slot).is_some_and(|slot| {
            liveness::liveness(reader.file(), slot)
                .is_ok_and(|liveness| liveness == Liveness::Alive)
        })
    };
    let live: Vec<bool> = (0..snapshot.slots.len()).map(is_alive).collect();
    for (gpu, index) in snapshot.gpus.iter().zip(&index) {
        let cells = || snapshot.present(gpu).map(|(slot, cell)| (cell, live.get(slot)));
        let orphan = snapshot.orphan(gpu).get();
        container.gpus.push(ShareStatus {
            gpu: *index,
            uuid: gpu.uuid.to_string(),
            limit: gpu.limit.get(),
            used: cells().map(|(cell, _)| cell.kept().get()).fold(0, u64::saturating_add) - orphan,
            implicit: cells().map(|(cell, _)| cell.corrected().get()).fold(0, u64::saturating_add),
            unaccounted: cells().map(|(cell, _)| cell.unaccounted).fold(0, i64::saturating_add),
            orphan,
            draining: cells()
                .filter(|(_, live)| *live == Some(&false))
                .map(|(cell, _)| cell.total().get())
                .fold(0, u64::saturating_add)
                .saturating_sub(orphan),
            ..ShareStatus::default()
        });
    }
    for (slot, (entry, live)) in snapshot.slots.iter().zip(&live).enumerate() {
        if entry.drained || matches!(entry.word.state(), Some(State::Free | State::Orphan)) {
            continue;
        }
        let part = |(gpu, index): (&cgpu_shm::snapshot::Gpu, &DeviceId)| {
            let cell = gpu.cells.get(slot)?;
            Some(ProcessGpu {
                gpu: *index,
                used: cell.kept().get(),
                implicit: cell.corrected().get(),
                unaccounted: cell.unaccounted,
                peak: cell.peak.get(),
                busy_us: cell.busy.get() / 1000,
                launches: cell.launches,
                waiting: false,
            })
        };
        container.processes.push(ProcessStatus {
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
            pid: entry.pid,
            comm: entry.comm.clone(),
            live: *live,
            gpus: snapshot.gpus.iter().zip(&index).filter_map(part).collect(),
            counters: counted(&entry.counters).map(|(name, count)| (name.into(), count)).collect(),
            ..ProcessStatus::default()
        });
    }
}

/// Applies the limits that a monitor has changed; they stay in force without it.
fn amend(container: &mut ContainerStatus, folder: &Path) {
    let Ok(grant) = GrantReader::open(folder).and_then(|reader| reader.read()) else { return };
    for (share, gpu_grant) in container.gpus.iter_mut().zip(&grant.gpus) {
        if gpu_grant.limit.get() != 0 {
            share.limit = gpu_grant.limit.get();
        }
    }
}

/// Returns the index of a GPU in the list, adding it if it is new.
fn number(gpus: &mut Vec<GpuStatus>, uuid: &str, total: u64) -> DeviceId {
    let known = gpus.iter().position(|gpu| gpu.uuid == uuid);
    let at = known.unwrap_or_else(|| {
        let index = DeviceId::of_gpu(u32::try_from(gpus.len()).unwrap_or(u32::MAX));
        gpus.push(GpuStatus {
            index,
            uuid: uuid.to_owned(),
            memory_total: total,
            policy: NATIVE,
            ..GpuStatus::default()
        });
        gpus.len() - 1
    });
    gpus[at].index
}

/// Reads a small file that a container may have written: follows no link, waits for no FIFO.
pub(crate) fn read(path: &Path) -> Option<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut text = Vec::new();
    file.take(MAX_FILE_SIZE).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observe_unreadable_root_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(observe(&folder.path().join("nowhere")).unwrap().containers.is_empty());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let message = format!("{:#}", observe(&file).unwrap_err());
        assert!(
            message.starts_with(&format!(
                "cannot read the folder {}",
                file.join("containers").display()
            )),
            "{message}"
        );
    }
}
