//! The host's devices as the monitor reports them, and what a process of a container may conclude.
//!
//! The monitor reads NVML all the time. A process that started NVML itself would wait for tens of
//! milliseconds, one process after the other. But the monitor reports the host's devices, and NVML
//! in a container only the container's. The driver shows which these are, unless the program hides
//! some from itself (`CUDA_VISIBLE_DEVICES`), or they are MIG instances, of which a program sees
//! only one. So:
//!
//! | where the process is | its devices are |
//! |---|---|
//! | in the monitor's PID namespace: there is no container | all reported ones |
//! | elsewhere, its limits mounted from outside: they name devices by UUID | those that the driver shows |
//! | elsewhere, and the driver shows all that there are | those that the driver shows |
//! | elsewhere | not known: NVML must be read |
//!
//! A driver that shows an unreported device has other devices than the monitor's: nothing is known
//! then.
//!
//! Where no monitor has reported devices, a former process of the container may have read NVML: the
//! GPUs that it registered are known if they are exactly those that the driver shows.

use cgpu_settings::{Environment, Found, GpuInfo, Variables, file};
use cgpu_shm::devices::Device;
use cgpu_shm::region::Region;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;

use crate::start;

/// Devices reported by the monitor, or registered by a former process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorInventory {
    /// Reported by the monitor; empty: none were.
    devices: Vec<Device>,
    /// The container's registered GPUs, and their memory.
    registered: Vec<(Uuid, Bytes)>,
    /// Whether the process is in the monitor's PID namespace.
    is_beside_monitor: bool,
    /// Whether its limits are mounted from outside.
    is_limited_from_outside: bool,
}

impl MonitorInventory {
    /// Reads the inventory from the region of this process; `None` if there is no region yet.
    #[must_use]
    pub fn read(environment: &dyn Environment) -> Option<Self> {
        let is_limited_from_outside =
            file::is_in_force(&environment.run_directory().join("limits"));
        // No variable names the region then.
        let directory =
            (!is_limited_from_outside).then(|| Variables::read(environment).directory().ok());
        let candidates = start::candidates(environment, directory.flatten().flatten().as_deref());
        let region = Region::find(&candidates)?;
        let granted = region.grant();
        let devices =
            granted.has_monitor().then(|| granted.devices()).flatten().unwrap_or_default();
        let registered = region.gpus().map(|(_, gpu)| (gpu.uuid, gpu.total)).collect();
        let namespace = environment.pid_namespace();
        let is_beside_monitor = namespace != 0 && namespace == granted.pid_namespace();
        Some(Self { devices, registered, is_beside_monitor, is_limited_from_outside })
    }

    /// Returns the devices of a process whose driver shows `seen`. `hides` says whether the program
    /// hides some from itself. `None` if they are not known.
    #[must_use]
    pub fn found(&self, seen: &[GpuInfo], hides: bool) -> Option<Found> {
        if self.devices.is_empty() {
            return self.registered(seen).filter(|_| !hides || self.is_limited_from_outside);
        }
        let all: Vec<GpuInfo> =
            self.devices.iter().filter(|device| !device.is_partitioned).map(gpu_of).collect();
        let partitioned = self.devices.iter().filter(|device| device.is_partitioned);
        let partitioned = partitioned.map(|device| device.uuid).collect();
        let seen = seen.iter().map(|seen| all.iter().find(|gpu| gpu.uuid == seen.uuid).copied());
        let seen = seen.collect::<Option<Vec<_>>>()?;
        if self.is_beside_monitor {
            return Some(Found { gpus: all, partitioned, complete: true });
        }
        let complete = !hides && !seen.iter().any(GpuInfo::is_instance);
        (complete || self.is_limited_from_outside).then_some(Found {
            gpus: seen,
            partitioned,
            complete,
        })
    }

    /// Returns the devices that the driver shows, if they are the registered ones. If the two
    /// differ, there may be more.
    fn registered(&self, seen: &[GpuInfo]) -> Option<Found> {
        if seen.is_empty() || seen.len() != self.registered.len() {
            return None;
        }
        let known = |seen: &GpuInfo| {
            let (_, total) = self.registered.iter().find(|(uuid, _)| *uuid == seen.uuid)?;
            // The size of a GPU that was not visible is not known.
            (*total > Bytes::ZERO).then_some(GpuInfo { total: *total, ..*seen })
        };
        let gpus = seen.iter().map(known).collect::<Option<Vec<_>>>()?;
        Some(Found { gpus, partitioned: Vec::new(), complete: true })
    }
}

fn gpu_of(device: &Device) -> GpuInfo {
    GpuInfo { uuid: device.uuid, total: device.total, order: device.order() }
}

#[cfg(test)]
mod tests {
    use cgpu_shm::grant::GrantWriter;
    use cgpu_shm::region::RegionSpec;

    use super::*;
    use crate::doubles::Container;

    fn device(byte: u8, index: u32, instance: u32) -> Device {
        let total = Bytes::from_mib(15109);
        Device { uuid: Uuid([byte; 16]), total, index, instance, is_partitioned: false }
    }

    /// Returns two GPUs, and one that is partitioned into two instances.
    fn devices() -> Vec<Device> {
        let partitioned = Device { is_partitioned: true, ..device(3, 2, 0) };
        vec![device(1, 0, 0), device(2, 1, 0), partitioned, device(4, 2, 1), device(5, 2, 2)]
    }

    fn inventory(is_beside_monitor: bool, is_limited_from_outside: bool) -> MonitorInventory {
        MonitorInventory {
            devices: devices(),
            registered: Vec::new(),
            is_beside_monitor,
            is_limited_from_outside,
        }
    }

    /// Returns devices as a driver shows them: smaller, and in the order of the bus.
    fn shown(bytes: &[u8]) -> Vec<GpuInfo> {
        let gpu = |byte: &u8| GpuInfo {
            uuid: Uuid([*byte; 16]),
            total: Bytes::from_mib(15000),
            order: u64::from(*byte) << 8,
        };
        bytes.iter().map(gpu).collect()
    }

    /// Returns the devices found, by the first byte of their UUID, and whether these are all.
    fn found(inventory: &MonitorInventory, seen: &[u8], hides: bool) -> Option<(Vec<u8>, bool)> {
        let found = inventory.found(&shown(seen), hides)?;
        assert_eq!(found.partitioned, [Uuid([3; 16])]);
        Some((found.gpus.iter().map(|gpu| gpu.uuid.0[0]).collect(), found.complete))
    }

    #[test]
    fn process_beside_the_monitor_has_all_devices_whatever_it_hides() {
        for hides in [false, true] {
            assert_eq!(found(&inventory(true, false), &[2], hides), Some((vec![1, 2, 4, 5], true)));
            assert_eq!(found(&inventory(true, false), &[], hides), Some((vec![1, 2, 4, 5], true)));
        }
    }

    #[test]
    fn process_in_a_container_has_what_the_driver_shows() {
        assert_eq!(found(&inventory(false, false), &[2, 1], false), Some((vec![2, 1], true)));
        assert_eq!(found(&inventory(false, true), &[2], true), Some((vec![2], false)));
        assert_eq!(found(&inventory(false, true), &[4], false), Some((vec![4], false)));
    }

    #[test]
    fn process_in_a_container_with_hidden_devices_is_unknown() {
        assert_eq!(found(&inventory(false, false), &[2], true), None);
        assert_eq!(found(&inventory(false, false), &[4], false), None);
    }

    #[test]
    fn unreported_or_partitioned_device_makes_all_unknown() {
        for inventory in [inventory(true, false), inventory(false, true)] {
            assert_eq!(found(&inventory, &[1, 9], false), None);
            assert_eq!(found(&inventory, &[3], false), None);
        }
    }

    #[test]
    fn orders_and_totals_are_those_of_nvml() {
        let found = inventory(true, false).found(&[], false).expect("all are reported");
        assert!(found.gpus.is_sorted_by_key(|gpu| gpu.order));
        assert_eq!(
            found.gpus.iter().map(GpuInfo::is_instance).collect::<Vec<_>>(),
            [false, false, true, true]
        );
        assert_eq!(found.gpus[0].total, Bytes::from_mib(15109));
    }

    #[test]
    fn inventory_is_read_from_the_region_of_the_process() {
        let container = Container::with(&[]);
        assert_eq!(MonitorInventory::read(&container.environment), None, "no region");
        Region::make(container.run(), RegionSpec::default()).expect("a region");
        let monitor = GrantWriter::open(container.run()).expect("the grant file");
        let nothing = MonitorInventory { devices: Vec::new(), ..inventory(false, false) };
        assert_eq!(
            MonitorInventory::read(&container.environment),
            Some(nothing.clone()),
            "no monitor"
        );
        monitor.adopt(1);
        assert_eq!(
            MonitorInventory::read(&container.environment),
            Some(nothing),
            "nothing is reported"
        );
        monitor.set_devices(&devices(), container.environment.pid_namespace());
        assert_eq!(MonitorInventory::read(&container.environment), Some(inventory(true, false)));
        monitor.set_devices(&devices(), 1);
        assert_eq!(MonitorInventory::read(&container.environment), Some(inventory(false, false)));
    }

    #[test]
    fn gpus_registered_before_are_known_if_the_driver_shows_just_those() {
        let inventory = |gpus: &[(u8, u64)], is_limited_from_outside| MonitorInventory {
            devices: Vec::new(),
            registered: gpus
                .iter()
                .map(|(byte, mib)| (Uuid([*byte; 16]), Bytes::from_mib(*mib)))
                .collect(),
            is_beside_monitor: false,
            is_limited_from_outside,
        };
        let two = inventory(&[(1, 15109), (2, 23028)], false);
        let found = two.found(&shown(&[2, 1]), false).expect("both are known");
        let gpus: Vec<_> = found.gpus.iter().map(|gpu| (gpu.total.0 >> 20, gpu.order)).collect();
        assert_eq!((gpus, found.complete), (vec![(23028, 0x200), (15109, 0x100)], true));
        for seen in [&[1][..], &[], &[1, 3], &[1, 2, 3]] {
            assert_eq!(two.found(&shown(seen), false), None, "{seen:?}");
        }
        assert_eq!(two.found(&shown(&[1, 2]), true), None, "there may be more that it hides");
        assert!(
            inventory(&[(1, 15109)], true).found(&shown(&[1]), true).is_some(),
            "limits name their GPUs"
        );
        assert_eq!(
            inventory(&[(1, 0)], false).found(&shown(&[1]), false),
            None,
            "its size is not known"
        );
    }
}
