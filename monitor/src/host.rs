//! The host: its GPUs, its containers, and what is done with them when something is heard or due.
//!
//! Everything that happens ends in [`Host::step`]: who must be looked at is looked at, the GPU's controller decides, the grant pages
//! are written. Between steps the host finds containers, notes deaths, and beats.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cgpu_shm::units::{Nanos, SlotIndex};

mod arrivals;
pub(crate) mod capacity;
pub(crate) mod container;
mod counters;
pub(crate) mod device_list;
pub(crate) mod device_state;
pub(crate) mod doorbell;
mod findings;
mod gpus;
mod housekeeping;
mod memory;
mod probe_results;
pub(crate) mod region;
mod turns;
mod upgrade;

use cgpu_client::inventory::HostDevice;
use cgpu_inventory::health::HealthCheck;
use cgpu_scheduler::TenantId;
use container::Container;
use device_state::DeviceState;

use crate::config::{Config, Start};
use crate::probe::{ContainerIdentity, Prober, SampledContainer};
use crate::settings::Settings;
use crate::upgrade::{Successor, TransferredGpu};
use crate::watcher::Watcher;

/// The host.
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
    /// What people should know.
    pub(crate) warnings: Vec<String>,
    /// NVML answers.
    pub(crate) sampled: Option<Nanos>,
    /// All GPUs of the host, and when NVML has told of them.
    pub(crate) inventory: Option<(Nanos, Vec<HostDevice>)>,
    /// The same for the containers' processes, and what was free of each when.
    device_list: device_list::DeviceList,
    /// How they answered last, and when: also when NVML has stopped telling.
    pub(crate) health_checks: Option<(Nanos, Vec<HealthCheck>)>,
    pub(crate) prober: Prober,
    next: u64,
    /// Containers whose ledgers the prober samples.
    sampled_containers: Vec<SampledContainer>,
    /// How the prober identifies containers' processes.
    identities: Vec<ContainerIdentity>,
    /// What is found of processes that should not be on a GPU, or have too much.
    pub(crate) watcher: Watcher,
    /// What a predecessor has transferred and no device or container has restored yet.
    transferred: Vec<TransferredGpu>,
    pub(crate) successor: Successor,
    /// The upgrade state was transferred: nothing is to be done any more.
    pub(crate) is_transferred: bool,
    /// What the daemon's poll must learn.
    pub(crate) changes: Vec<Change>,
}

/// Something to listen to has come or gone.
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
    /// As one number, by which the poll tells of it: a slot is a byte.
    pub(crate) fn number(self) -> u64 {
        self.tenant.0 << 8 | u64::from(self.slot.0)
    }

    pub(crate) const fn of_number(number: u64) -> Self {
        Self { tenant: TenantId(number >> 8), slot: SlotIndex(number.to_le_bytes()[0]) }
    }
}

impl Host {
    pub(crate) fn new(config: &Config, settings: Settings, prober: Prober, now: Nanos) -> Self {
        Self {
            root: config.root.clone(),
            state: config.state.clone(),
            started: now,
            devices: Vec::new(),
            containers: BTreeMap::new(),
            settings,
            start: config.start.clone(),
            warnings: Vec::new(),
            sampled: None,
            inventory: None,
            device_list: device_list::DeviceList::default(),
            health_checks: None,
            prober,
            next: 1,
            sampled_containers: Vec::new(),
            identities: Vec::new(),
            watcher: Watcher::default(),
            transferred: Vec::new(),
            successor: Successor::prepare(),
            is_transferred: false,
            changes: Vec::new(),
        }
    }

    /// Tells people what they should know, now and as long as the monitor runs.
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
