//! The watcher's part of the upgrade state: findings and their ages, what each container may keep,
//! the counts.
//!
//! Containers are named by their directories, since each monitor numbers them anew.

use std::path::{Path, PathBuf};

use cgpu_client::message::{Cause, Shim, Signal};
use cgpu_scheduler::TenantId;
use cgpu_shm::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

use super::{Ended, Finding, Order, ProcessId, TrackedFinding, Watcher};

/// The state of a watcher. Entries for containers that no longer exist are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatcherState {
    findings: Vec<FindingState>,
    /// What a container may keep, by GPU and container.
    allowed: Vec<(String, PathBuf, u64)>,
    /// Counts of findings, by cause and container.
    found: Vec<(Cause, Option<PathBuf>, u64)>,
    ends: Vec<(Cause, PathBuf, u64)>,
    ended: Vec<EndedState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FindingState {
    gpu: String,
    pid: u32,
    start_time: u64,
    comm: String,
    cause: Cause,
    owner: Option<PathBuf>,
    shim: Shim,
    memory: Option<u64>,
    container_memory: u64,
    spared: bool,
    since: u64,
    observations: u32,
    wanted: Option<u64>,
    sent: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EndedState {
    gpu: String,
    pid: u32,
    start_time: u64,
    comm: String,
    cause: Cause,
    signal: Signal,
    container: String,
    at: u64,
}

impl Watcher {
    /// Returns the state for the next monitor. `dir` returns a container's directory.
    #[must_use]
    pub fn transfer<'a>(&self, dir: impl Fn(TenantId) -> Option<&'a Path>) -> WatcherState {
        let directory = |owner: TenantId| dir(owner).map(Path::to_owned);
        let findings = self.known.values().filter_map(|known| {
            let Finding {
                gpu,
                id,
                comm,
                cause,
                owner,
                shim,
                memory,
                container_memory,
                spared,
                since,
            } = known.finding.clone();
            Some(FindingState {
                gpu: gpu.to_string(),
                pid: id.pid,
                start_time: id.start_time,
                comm,
                cause,
                owner: match owner {
                    Some(owner) => Some(directory(owner)?),
                    None => None,
                },
                shim,
                memory: memory.map(|bytes| bytes.0),
                container_memory: container_memory.0,
                spared,
                since: since.0,
                observations: known.observations,
                wanted: known.wanted.map(|at| at.0),
                sent: known.sent.map(|at| at.0),
            })
        });
        let allowed = self.allowed.iter();
        let allowed = allowed.filter_map(|((gpu, owner), bytes)| {
            Some((gpu.to_string(), directory(*owner)?, bytes.0))
        });
        let found = self.found.iter().filter_map(|((cause, owner), count)| {
            let owner = match owner {
                Some(owner) => Some(directory(*owner)?),
                None => None,
            };
            Some((*cause, owner, *count))
        });
        let ends = self.counts.iter();
        let ends =
            ends.filter_map(|((cause, owner), count)| Some((*cause, directory(*owner)?, *count)));
        let ended = self.ended.iter().map(|Ended { order, container, at }| EndedState {
            gpu: order.gpu.to_string(),
            pid: order.id.pid,
            start_time: order.id.start_time,
            comm: order.comm.clone(),
            cause: order.cause,
            signal: order.signal,
            container: container.clone(),
            at: at.0,
        });
        WatcherState {
            findings: findings.collect(),
            allowed: allowed.collect(),
            found: found.collect(),
            ends: ends.collect(),
            ended: ended.collect(),
        }
    }

    /// Restores a predecessor's state. `tenant` returns the container of a directory.
    pub fn restore(&mut self, state: WatcherState, tenant: impl Fn(&Path) -> Option<TenantId>) {
        for one in state.findings {
            let Ok(gpu) = one.gpu.parse() else { continue };
            let owner = one.owner.as_deref().map(&tenant);
            // A finding of a container that no longer exists is dropped.
            let Some(owner) = owner.map_or(Some(None), |owner| owner.map(Some)) else { continue };
            let finding = Finding {
                gpu,
                id: ProcessId { pid: one.pid, start_time: one.start_time },
                comm: one.comm,
                cause: one.cause,
                owner,
                shim: one.shim,
                memory: one.memory.map(Bytes),
                container_memory: Bytes(one.container_memory),
                spared: one.spared,
                since: Nanos(one.since),
            };
            let (wanted, sent) = (one.wanted.map(Nanos), one.sent.map(Nanos));
            let key = (gpu, finding.id, finding.cause);
            self.known.insert(
                key,
                TrackedFinding { finding, observations: one.observations, wanted, sent },
            );
        }
        for (gpu, dir, bytes) in state.allowed {
            if let (Ok(gpu), Some(owner)) = (gpu.parse(), tenant(&dir)) {
                self.allowed.insert((gpu, owner), Bytes(bytes));
            }
        }
        for (cause, dir, count) in state.found {
            let owner = dir.as_deref().map(&tenant);
            if let Some(owner) = owner.map_or(Some(None), |owner| owner.map(Some)) {
                self.found.insert((cause, owner), count);
            }
        }
        for (cause, dir, count) in state.ends {
            if let Some(owner) = tenant(&dir) {
                self.counts.insert((cause, owner), count);
            }
        }
        for one in state.ended {
            let Ok(gpu) = one.gpu.parse() else { continue };
            let order = Order {
                gpu,
                id: ProcessId { pid: one.pid, start_time: one.start_time },
                comm: one.comm,
                // The order is done; only the container's id is still used.
                owner: TenantId(0),
                cause: one.cause,
                bound: None,
                signal: one.signal,
            };
            self.ended.push_back(Ended { order, container: one.container, at: Nanos(one.at) });
        }
    }
}
