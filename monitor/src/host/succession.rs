//! What a host leaves to its successor, and how that goes on with it.

use std::path::Path;

use cgpu_shm::units::Nanos;

use super::container::Maker;
use super::{Change, Host};
use crate::estate::{Estate, GpuBooks, Known};

impl Host {
    /// Closes the books. Nothing must be done after it but to tell the estate.
    pub(crate) fn bequeath(&mut self, now: Nanos) -> Estate {
        let containers = self.containers.values().map(|container| Known {
            id: container.id.clone(),
            dir: container.dir.clone(),
            registration: container.registration.clone(),
            makers: container.makers.keys().copied().collect(),
        });
        let containers = containers.collect();
        let mut gpus = Vec::new();
        for board in &mut self.boards {
            self.settings.gpus.insert(board.uuid.to_string(), board.settings);
            let (gpu, legacies) = board.controller.bequeath(now);
            board.stale = true;
            let named = legacies
                .into_iter()
                .filter_map(|(tenant, legacy)| Some((self.containers.get(&tenant)?.dir.clone(), legacy)));
            gpus.push(GpuBooks { uuid: board.uuid.to_string(), gpu, containers: named.collect() });
        }
        let dir = |owner| self.containers.get(&owner).map(|container| container.dir.as_path());
        Estate {
            watch: self.watch.bequeath(dir),
            release: env!("CARGO_PKG_VERSION").into(),
            settings: self.settings.clone(),
            containers,
            gpus,
        }
    }

    /// Goes on where the predecessor ended.
    pub(crate) fn inherit(&mut self, now: Nanos, estate: Estate) {
        self.settings = estate.settings;
        self.inherited = estate.gpus;
        for at in 0..self.boards.len() {
            self.boards[at].settings = self.set_for(self.boards[at].uuid);
            self.inherit_gpu(at);
        }
        for known in estate.containers {
            let tenant = self.adopt(&known.dir, Some(&known.id));
            let Some(container) = self.containers.get_mut(&tenant) else { continue };
            container.registration = known.registration;
            for pid in known.makers {
                // One that has died since is not there to be waited for.
                if let Some(maker) = Maker::of(pid) {
                    container.makers.insert(pid, maker);
                    self.changes.push(Change::Maker(tenant, pid));
                }
            }
        }
        self.scan(now);
        let of = |dir: &Path| {
            self.containers.values().find(|container| container.dir == dir).map(|container| container.tenant)
        };
        self.watch.inherit(estate.watch, of);
        self.look_after(now);
        self.keep_settings();
    }

    /// A GPU goes on with its books.
    pub(super) fn inherit_gpu(&mut self, at: usize) {
        let uuid = self.boards[at].uuid.to_string();
        if let Some(books) = self.inherited.iter_mut().find(|books| books.uuid == uuid) {
            self.boards[at].controller.inherit(std::mem::take(&mut books.gpu));
        }
    }
}
