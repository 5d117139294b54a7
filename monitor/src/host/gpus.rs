//! The GPUs of the host: their list, their settings, their capacity.

use std::collections::BTreeSet;
use std::io;

use cgpu_client::device_id::DeviceId;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;

use super::Host;
use super::capacity::Capacity;
use super::container::Container;
use super::device_state::DeviceState;
use crate::config::Start;
use crate::settings::{GpuSettings, Settings};

/// Most GPUs that are kept. A container can name sixteen, and may invent them where there is no
/// NVML.
const MAX_GPUS: usize = 64;

impl Host {
    /// Adds the GPU with this UUID, if it is new. While NVML lists GPUs, no others are added.
    pub(super) fn find_gpu(&mut self, uuid: Uuid) {
        let is_known = self.devices.iter().any(|device| device.known);
        if is_known
            || self.devices.len() >= MAX_GPUS
            || self.devices.iter().any(|device| device.uuid == uuid)
        {
            return;
        }
        let is_free = |index: &DeviceId| self.devices.iter().all(|device| device.index != *index);
        let index = (0..).map(DeviceId::of_gpu).find(is_free).unwrap_or_default();
        self.add_gpu(index, uuid);
    }

    /// Adds a new GPU; returns its position in `devices`.
    pub(super) fn add_gpu(&mut self, index: DeviceId, uuid: Uuid) -> usize {
        let settings = self.saved_settings(uuid);
        let device = DeviceState::new(index, uuid, settings, &self.start);
        tracing::info!("GPU {index} is {}", device.name());
        let at = self.devices.partition_point(|device| device.index < index);
        self.devices.insert(at, device);
        self.restore_gpu(at);
        at
    }

    /// Drops GPUs whose numbers other GPUs have now. Containers may wait for turns there that the
    /// monitor no longer gives, so their gates are opened.
    pub(super) fn drop_gpus(&mut self, is_kept: impl Fn(&DeviceState) -> bool) {
        for gone in self.devices.extract_if(.., |device| !is_kept(device)) {
            self.watcher.forget(Some(gone.uuid));
            let regions =
                self.containers.values().filter_map(|container| container.region.as_ref());
            let gates = regions.filter_map(|region| Some((region, region.gpu(gone.uuid)?)));
            gates.for_each(|(region, gpu)| region.open_gate(gpu));
        }
    }

    /// Sets a GPU's number. One whose number was provisional gets the configured settings of the
    /// new number.
    pub(super) fn set_number(&mut self, now: Nanos, at: usize, index: DeviceId) {
        let taken =
            |device: &DeviceState| device.in_force().max_inst() - self.capacity(device).free();
        let Some(taken) = self.devices.get(at).filter(|device| device.index != index).map(taken)
        else {
            return;
        };
        let device = &mut self.devices[at];
        device.index = index;
        if let Some(kept) = device.reconfigure(now, &self.start, taken) {
            tracing::warn!("{kept}");
        }
    }

    /// Returns the settings made at run time for a GPU.
    pub(super) fn saved_settings(&self, uuid: Uuid) -> GpuSettings {
        self.settings.gpus.get(&uuid.to_string()).copied().unwrap_or_default()
    }

    /// Returns a GPU's memory as NVML reports it; without NVML, as containers do.
    pub(crate) fn total(&self, device: &DeviceState) -> u64 {
        let reported = |container: &Container| {
            let region = container.region.as_ref()?;
            Some(region.seen.gpus.get(region.gpu(device.uuid)?.get())?.total.0)
        };
        if device.sample.total > 0 {
            device.sample.total
        } else {
            self.containers.values().find_map(reported).unwrap_or(0)
        }
    }

    /// Drops GPUs that NVML does not list and that no container names.
    pub(super) fn forget_gpus(&mut self) {
        let named: BTreeSet<Uuid> = self.containers.values().flat_map(Container::gpus).collect();
        self.devices.retain(|device| device.known || named.contains(&device.uuid));
    }

    /// Returns how a GPU's capacity units are distributed.
    pub(crate) fn capacity(&self, device: &DeviceState) -> Capacity {
        Capacity::on(device, &self.containers)
    }

    /// Returns the limit of containers that come without one; zero: none.
    pub(crate) fn default_memsize(&self) -> Bytes {
        self.settings.default_memsize.map_or(self.start.default_memsize, Bytes)
    }

    /// Saves the settings, after the end of a container or an upgrade: a failure is logged, and
    /// they stay in force until this monitor ends.
    pub(super) fn save_settings(&mut self) {
        if let Err(error) = self.try_save_settings() {
            tracing::warn!("cannot save the settings in {}: {error}", self.state.display());
        }
    }

    /// Saves the settings, for a caller that reports the failure.
    ///
    /// # Errors
    /// As [`Settings::save`].
    pub(crate) fn try_save_settings(&mut self) -> io::Result<()> {
        self.settings = self.all_settings();
        self.settings.save(&self.state)?;
        self.prober.sync();
        Ok(())
    }

    /// Returns the settings with those of the GPUs.
    pub(crate) fn all_settings(&self) -> Settings {
        let mut settings = self.settings.clone();
        let gpus = self.devices.iter().map(|device| (device.uuid.to_string(), device.settings));
        settings.gpus.extend(gpus);
        settings
    }

    /// Puts settings in force, with those of GPUs and containers that they contain.
    pub(crate) fn restore_settings(&mut self, settings: Settings) {
        self.settings = settings;
        for at in 0..self.devices.len() {
            self.devices[at].settings = self.saved_settings(self.devices[at].uuid);
        }
        for container in self.containers.values_mut() {
            container.take_settings(self.settings.containers.get(&container.id));
        }
    }

    /// Applies another configuration from the next step on. Settings made at run time stay. Returns
    /// a message for each `max_inst` that could not be applied.
    pub(crate) fn reconfigure(&mut self, now: Nanos, start: Start) -> Vec<String> {
        let taken: Vec<u32> = self
            .devices
            .iter()
            .map(|device| device.in_force().max_inst() - self.capacity(device).free())
            .collect();
        let devices = self.devices.iter_mut().zip(taken);
        let kept =
            devices.filter_map(|(device, taken)| device.reconfigure(now, &start, taken)).collect();
        self.start = start;
        self.apply_settings(now);
        kept
    }
}
