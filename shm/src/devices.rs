//! The host's devices, as the monitor publishes them. They save a container's processes from
//! starting NVML, which takes tens of milliseconds, or longer when many processes do it at once.
//!
//! A reader gets the whole list or none. The writer first marks the list as absent, then changes
//! it, then stores a count word that differs from the former one. Free memory changes with every
//! sample and does not change the count word: each figure is at least as new as the sampling time.

use crate::atomic::{Ordering, fence};
use crate::layout::{self, DEVICES, Grant, bytes_of, store_bytes};
use crate::units::{Bytes, Nanos};
use crate::uuid::Uuid;

/// Unit of `total` and `free`, in bytes.
pub const STEP: u64 = 4096;
/// In `free`: not known.
pub const UNKNOWN: u32 = u32::MAX;
/// In `order`: MIG is enabled on the GPU.
pub const PARTITIONED: u32 = 1 << 31;

/// The bits of the word `devices` that hold the count.
const COUNT: u32 = 0xff;
/// Width of the MIG instance's number in `order`.
const INSTANCE_BITS: u32 = 4;
/// Attempts to read a list that is being rewritten.
const TRIES: u32 = 3;

/// A GPU of the host, or a MIG instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub uuid: Uuid,
    /// Its memory, a multiple of [`STEP`].
    pub total: Bytes,
    /// NVML's index of the GPU.
    pub index: u32,
    /// Number of the MIG instance on its GPU, from 1 to 15; 0: the whole GPU.
    pub instance: u32,
    /// Whether MIG is enabled: then no program computes on the GPU itself.
    pub is_partitioned: bool,
}

impl Device {
    /// Returns a number that sorts devices in NVML's order.
    #[must_use]
    pub fn order(&self) -> u64 {
        u64::from(self.index << INSTANCE_BITS | self.instance)
    }

    fn word(&self) -> u32 {
        let mark = if self.is_partitioned { PARTITIONED } else { 0 };
        (self.index << INSTANCE_BITS | self.instance) & !PARTITIONED | mark
    }

    fn of(record: &layout::Device) -> Self {
        let mut bytes = bytes_of(&record.uuid);
        let order = record.order.load(Ordering::Relaxed);
        Self {
            uuid: Uuid(core::array::from_fn(|_| bytes.next().unwrap_or(0))),
            total: Bytes(u64::from(record.total.load(Ordering::Relaxed)) * STEP),
            index: (order & !PARTITIONED) >> INSTANCE_BITS,
            instance: order & ((1 << INSTANCE_BITS) - 1),
            is_partitioned: order & PARTITIONED != 0,
        }
    }
}

/// Returns the published list, at most [`DEVICES`] entries; `None` if there is none.
#[must_use]
pub(crate) fn list(page: &Grant) -> Option<Vec<Device>> {
    for _ in 0..TRIES {
        let word = page.devices.load(Ordering::Relaxed);
        // HB devices: meets the Release in `publish`.
        fence(Ordering::Acquire);
        let count = usize::try_from(word & COUNT).ok()?;
        let list: Vec<Device> = page.device.get(..count)?.iter().map(Device::of).collect();
        // The records read are not newer than the word that is now loaded again.
        fence(Ordering::Acquire);
        if page.devices.load(Ordering::Relaxed) == word {
            return (!list.is_empty()).then_some(list);
        }
    }
    None
}

/// Publishes the list of devices. A list of more than [`DEVICES`] entries is published as absent,
/// so that processes read NVML themselves. Only one writer at a time is allowed.
pub(crate) fn publish(page: &Grant, devices: &[Device]) {
    let epoch = (page.devices.load(Ordering::Relaxed) & !COUNT).wrapping_add(COUNT + 1);
    page.devices.store(epoch, Ordering::Relaxed);
    // No record is new while the word still holds the old count.
    fence(Ordering::Release);
    let devices = if devices.len() > DEVICES { &[] } else { devices };
    for (record, device) in page.device.iter().zip(devices) {
        store_bytes(&record.uuid, &device.uuid.0);
        record.total.store(steps(device.total).unwrap_or(u32::MAX), Ordering::Relaxed);
        record.free.store(UNKNOWN, Ordering::Relaxed);
        record.order.store(device.word(), Ordering::Relaxed);
    }
    let count = u32::try_from(devices.len()).unwrap_or(0);
    // HB devices: Release publishes the records.
    page.devices.store(epoch.wrapping_add(COUNT + 1) | count, Ordering::Release);
}

/// Returns a device's free memory and the time of the sample; `None` if they are not known.
#[must_use]
pub(crate) fn free(page: &Grant, uuid: Uuid) -> Option<(Bytes, Nanos)> {
    let sampled = page.sampled.load(Ordering::Relaxed);
    // HB free: meets the Release in `publish_free`.
    fence(Ordering::Acquire);
    let at = list(page)?.iter().position(|device| device.uuid == uuid)?;
    let free = page.device.get(at)?.free.load(Ordering::Relaxed);
    (sampled != 0 && free != UNKNOWN).then(|| (Bytes(u64::from(free) * STEP), Nanos(sampled)))
}

/// Publishes each device's free memory at the time `sampled`, in the order of the list; `None`: not
/// known.
pub(crate) fn publish_free(
    page: &Grant,
    free: impl Iterator<Item = Option<Bytes>>,
    sampled: Nanos,
) {
    for (record, free) in page.device.iter().zip(free) {
        record.free.store(free.and_then(steps).unwrap_or(UNKNOWN), Ordering::Relaxed);
    }
    // HB free: Release, so that a figure read after the time is at least as new.
    page.sampled.store(sampled.0, Ordering::Release);
}

/// Converts to steps; `None` if the number does not fit.
fn steps(bytes: Bytes) -> Option<u32> {
    u32::try_from(bytes.0 / STEP).ok().filter(|steps| *steps != UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::GrantWriter;
    use crate::region::{Region, RegionSpec};

    fn device(byte: u8, index: u32, instance: u32) -> Device {
        let total = Bytes::from_mib(15109);
        Device { uuid: Uuid([byte; 16]), total, index, instance, is_partitioned: false }
    }

    /// Returns a container's region and its writer.
    fn sides() -> (tempfile::TempDir, Region, GrantWriter) {
        let directory = tempfile::tempdir().expect("a directory");
        Region::make(directory.path(), RegionSpec::default()).expect("a region");
        let region = Region::open(directory.path()).expect("a region");
        let writer = GrantWriter::open(directory.path()).expect("a grant page");
        (directory, region, writer)
    }

    #[test]
    fn device_list_is_absent_before_a_monitor_publishes_it() {
        let (_directory, region, _writer) = sides();
        assert_eq!(region.grant().devices(), None);
        assert_eq!(region.grant().device_free(Uuid([1; 16])), None);
        assert_eq!(region.grant().pid_namespace(), 0);
    }

    #[test]
    fn published_device_list_is_read_and_can_be_replaced() {
        let (_directory, region, writer) = sides();
        let partitioned = Device { is_partitioned: true, ..device(2, 1, 0) };
        for list in [
            vec![device(1, 0, 0), partitioned, device(3, 1, 1), device(4, 1, 15)],
            vec![device(9, 5, 0)],
        ] {
            writer.set_devices(&list, 7);
            assert_eq!((region.grant().devices(), region.grant().pid_namespace()), (Some(list), 7));
        }
        let orders =
            [device(1, 0, 0), device(1, 0, 1), device(1, 1, 0)].map(|device| device.order());
        assert!(orders.is_sorted());
        writer.set_devices(&[], 7);
        assert_eq!(region.grant().devices(), None);
    }

    #[test]
    fn device_list_beyond_the_capacity_is_absent() {
        let (_directory, region, writer) = sides();
        let many: Vec<Device> =
            (0..57).map(|number| device(number, u32::from(number), 0)).collect();
        writer.set_devices(&many[..DEVICES], 7);
        assert_eq!(region.grant().devices().map(|list| list.len()), Some(DEVICES));
        writer.set_devices(&many, 7);
        assert_eq!(region.grant().devices(), None);
    }

    #[test]
    fn free_memory_has_a_sampling_time_and_ends_with_the_list() {
        let (_directory, region, writer) = sides();
        writer.set_devices(&[device(1, 0, 0), device(2, 1, 0)], 7);
        assert_eq!(region.grant().device_free(Uuid([1; 16])), None);
        writer.set_device_free([Some(Bytes::from_mib(7)), None].into_iter(), Nanos(5));
        assert_eq!(region.grant().device_free(Uuid([1; 16])), Some((Bytes::from_mib(7), Nanos(5))));
        assert_eq!(region.grant().device_free(Uuid([2; 16])), None);
        writer.set_devices(&[device(2, 0, 0), device(1, 1, 0)], 7);
        assert_eq!(region.grant().device_free(Uuid([1; 16])), None);
    }
}
