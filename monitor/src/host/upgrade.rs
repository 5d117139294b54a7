//! The host's part of an upgrade: its state is transferred and restored.

use std::path::Path;

use cgpu_shm::units::Nanos;

use super::container::Registrant;
use super::{Change, Host};
use crate::upgrade::{TransferredContainer, TransferredGpu, UpgradeState};

impl Host {
    /// Closes the turns, and returns the upgrade state. The host must not be used afterwards.
    pub(crate) fn transfer(&mut self, now: Nanos) -> UpgradeState {
        let containers = self.containers.values().map(|container| TransferredContainer {
            id: container.id.clone(),
            dir: container.dir.clone(),
            registration: container.registration.clone(),
            registrants: container.registrants.keys().copied().collect(),
        });
        let containers = containers.collect();
        let mut gpus = Vec::new();
        for device in &mut self.devices {
            self.settings.gpus.insert(device.uuid.to_string(), device.settings);
            let (gpu, states) = device.scheduler.transfer(now);
            device.stale = true;
            let named = states.into_iter().filter_map(|(tenant, state)| {
                Some((self.containers.get(&tenant)?.dir.clone(), state))
            });
            gpus.push(TransferredGpu {
                uuid: device.uuid.to_string(),
                gpu,
                containers: named.collect(),
            });
        }
        let dir = |owner| self.containers.get(&owner).map(|container| container.dir.as_path());
        UpgradeState {
            watcher: self.watcher.transfer(dir),
            release: env!("CARGO_PKG_VERSION").into(),
            settings: self.settings.clone(),
            containers,
            gpus,
        }
    }

    pub(crate) fn restore(&mut self, now: Nanos, state: UpgradeState) {
        self.settings = state.settings;
        self.transferred = state.gpus;
        for at in 0..self.devices.len() {
            self.devices[at].settings = self.saved_settings(self.devices[at].uuid);
            self.restore_gpu(at);
        }
        for known in state.containers {
            let tenant = self.adopt(&known.dir, Some(&known.id));
            let Some(container) = self.containers.get_mut(&tenant) else { continue };
            let cgroup = |pid| {
                let registered = known.registration.as_ref()?;
                registered.cgroup.clone().filter(|_| registered.pid == Some(pid))
            };
            for pid in known.registrants {
                // A registrant that has exited since is dropped.
                if let Some(registrant) = Registrant::of(pid) {
                    let registrant = Registrant { cgroup: cgroup(pid), ..registrant };
                    container.registrants.insert(pid, registrant);
                    self.changes.push(Change::Registrant(tenant, pid));
                }
            }
            container.registration = known.registration;
        }
        self.scan(now);
        let of = |dir: &Path| {
            self.containers
                .values()
                .find(|container| container.dir == dir)
                .map(|container| container.tenant)
        };
        self.watcher.restore(state.watcher, of);
        self.refresh_containers(now);
        self.save_settings();
    }

    pub(super) fn restore_gpu(&mut self, at: usize) {
        let uuid = self.devices[at].uuid.to_string();
        if let Some(transferred) = self.transferred.iter_mut().find(|gpu| gpu.uuid == uuid) {
            self.devices[at].scheduler.restore(std::mem::take(&mut transferred.gpu));
        }
    }
}
