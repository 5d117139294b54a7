//! The host: its GPUs and its containers, and what happens to them at events and deadlines.
//!
//! Every event ends in `Turns::step`: the containers concerned are observed, the GPU's scheduler
//! decides, the grant pages are written. Between steps the host finds containers, notes exits, and
//! writes heartbeats.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cgpu_shm::host_memory::Exposure;
use cgpu_shm::units::{Nanos, SlotIndex};
use cgpu_shm::uuid::Uuid;

mod arrivals;
pub(crate) mod capacity;
mod closed_page;
pub(crate) mod container;
mod counters;
pub(crate) mod device_list;
pub(crate) mod device_state;
pub(crate) mod doorbell;
mod doorbell_pipe;
mod file_workers;
mod findings;
mod gpus;
mod housekeeping;
mod leased_file;
mod lock_queries;
mod memory;
mod mps;
mod probe_results;
pub(crate) mod region;
mod turns;
mod unattributed;
mod upgrade;
mod verification;
pub(crate) mod walls;

use cgpu_client::inventory::HostDevice;
use cgpu_inventory::health::HealthCheck;
use cgpu_scheduler::TenantId;
use container::Container;
use device_state::DeviceState;
pub(crate) use file_workers::{FileRequest, FileWorkers};

use crate::config::{Config, Start};
use crate::probe::{ContainerIdentity, Prober, SampledContainer};
use crate::settings::Settings;
use crate::upgrade::{Successor, TransferredGpu};
use crate::watcher::Watcher;

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) root: PathBuf,
    /// Where settings are kept.
    pub(crate) state: PathBuf,
    pub(crate) started: Nanos,
    pub(crate) devices: Vec<DeviceState>,
    pub(crate) containers: BTreeMap<TenantId, Container>,
    pub(crate) settings: Settings,
    pub(crate) start: Start,
    /// Warnings for users, shown in the status.
    pub(crate) warnings: Vec<String>,
    /// Host memory that can be a GPU's, as last found.
    pub(crate) exposures: Vec<Exposure>,
    /// Time of the last sample; none: NVML does not answer.
    pub(crate) sampled: Option<Nanos>,
    /// [`crate::probe::Sample::searched`] of the last sample.
    searched: BTreeSet<u64>,
    /// Containers of whose processes one has not let its maps be read for long.
    pub(crate) held: BTreeSet<TenantId>,
    /// All devices of the host, and when they were sampled.
    pub(crate) inventory: Option<(Nanos, Vec<HostDevice>)>,
    /// The same for the containers' processes, with the free memory of each.
    device_list: device_list::DeviceList,
    /// How the GPUs answered last, and when. Kept when NVML no longer answers.
    pub(crate) health_checks: Option<(Nanos, Vec<HealthCheck>)>,
    pub(crate) prober: Prober,
    pub(crate) files: FileWorkers,
    /// CPU time that the last sample took.
    sample_cost: Nanos,
    next_tenant: u64,
    /// Whether it has looked for the containers that were there before it.
    has_scanned: bool,
    /// Containers whose ledgers the prober samples, as last sent to it.
    sampled_containers: Vec<SampledContainer>,
    /// How the prober identifies containers' processes, as last sent to it.
    identities: Vec<ContainerIdentity>,
    pub(crate) watcher: Watcher,
    walls: walls::SentWalls,
    /// How many limits were left on each device when their groups went.
    pub(crate) walls_left: BTreeMap<Uuid, u64>,
    /// State that a predecessor transferred and that no device or container has restored yet.
    transferred: Vec<TransferredGpu>,
    pub(crate) successor: Successor,
    /// The upgrade state was transferred: this monitor does nothing more.
    pub(crate) is_transferred: bool,
    /// New sources of events, which the event loop must poll.
    pub(crate) changes: Vec<Change>,
    /// Regions that are to be closed. The event loop must no longer poll their doorbells, and send
    /// the requests.
    pub(crate) closed: Vec<FileRequest>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Doorbell(TenantId),
    Registrant(TenantId, i32),
    Process(Process),
}

/// A process of a container, by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) tenant: TenantId,
    pub(crate) slot: SlotIndex,
}

impl Process {
    /// Encodes it as the number of an event source. A slot is a byte.
    pub(crate) fn number(self) -> u64 {
        self.tenant.0 << 8 | u64::from(self.slot.0)
    }

    pub(crate) const fn of_number(number: u64) -> Self {
        Self { tenant: TenantId(number >> 8), slot: SlotIndex(number.to_le_bytes()[0]) }
    }
}

impl Host {
    pub(crate) fn new(
        config: &Config,
        settings: Settings,
        prober: Prober,
        files: FileWorkers,
        now: Nanos,
    ) -> Self {
        Self {
            root: config.root.clone(),
            state: config.state.clone(),
            started: now,
            devices: Vec::new(),
            containers: BTreeMap::new(),
            settings,
            start: config.start.clone(),
            warnings: Vec::new(),
            exposures: Vec::new(),
            sampled: None,
            searched: BTreeSet::new(),
            held: BTreeSet::new(),
            inventory: None,
            device_list: device_list::DeviceList::default(),
            health_checks: None,
            prober,
            files,
            sample_cost: Nanos::ZERO,
            next_tenant: 1,
            has_scanned: false,
            sampled_containers: Vec::new(),
            identities: Vec::new(),
            watcher: Watcher::default(),
            walls: walls::SentWalls::default(),
            walls_left: BTreeMap::new(),
            transferred: Vec::new(),
            successor: Successor::prepare(),
            is_transferred: false,
            changes: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Logs a warning, and shows it in the status as long as the monitor runs.
    pub(crate) fn warn(&mut self, message: Option<String>) {
        if let Some(message) = message {
            tracing::error!("{message}");
            self.warnings.push(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_survives_a_round_trip_through_its_number() {
        for (tenant, slot) in [(1, 0), (1, 255), (1 << 40, 7)] {
            let process = Process { tenant: TenantId(tenant), slot: SlotIndex(slot) };
            assert_eq!(Process::of_number(process.number()), process);
        }
    }
}
