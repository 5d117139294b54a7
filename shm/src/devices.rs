//! The devices of the host, as the monitor tells a container's processes of them: so none of these has to start NVML, which takes tens of
//! milliseconds and longer where many do it at once.
//!
//! The list is taken whole or not at all: the writer marks it as not there before it changes anything, and the word that says how many
//! there are is another one afterwards. Memory that is free changes with every sample, and no mark with it: the figures are words of their
//! own, at least as new as the time that stands beside them.

use crate::atomic::{Ordering, fence};
use crate::layout::{self, DEVICES, Grant, bytes_of, store_bytes};
use crate::units::{Bytes, Nanos};
use crate::uuid::Uuid;

/// What `total` and `free` are counted in.
pub const STEP: u64 = 4096;
/// In `free`: not told.
pub const UNKNOWN: u32 = u32::MAX;
/// In `order`: the GPU is partitioned into instances.
pub const PARTITIONED: u32 = 1 << 31;

/// The low bits of the word `devices`: how many there are.
const COUNT: u32 = 0xff;
/// The bits of `order` that are an instance's place on its GPU.
const INSTANCE_BITS: u32 = 4;
/// Attempts to read a list that is being rewritten.
const TRIES: u32 = 3;

/// A GPU of the host, or an instance of one (MIG).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub uuid: Uuid,
    /// Its memory, in whole steps of 4 KiB.
    pub total: Bytes,
    /// NVML's index of the GPU.
    pub index: u32,
    /// The place on its GPU, from 1 to 15, of an instance; 0: the whole GPU.
    pub instance: u32,
    /// Whether it is a GPU that is partitioned into instances: no program computes on the GPU itself.
    pub is_partitioned: bool,
}

impl Device {
    /// A number by which devices stand in NVML's order.
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

/// Returns the list, if there is one; at most [`DEVICES`].
#[must_use]
pub(crate) fn list(page: &Grant) -> Option<Vec<Device>> {
    for _ in 0..TRIES {
        let word = page.devices.load(Ordering::Relaxed);
        // HB devices: meets the Release in `publish`.
        fence(Ordering::Acquire);
        let count = usize::try_from(word & COUNT).ok()?;
        let list: Vec<Device> = page.device.get(..count)?.iter().map(Device::of).collect();
        // What was read is not newer than the word that is now looked at again.
        fence(Ordering::Acquire);
        if page.devices.load(Ordering::Relaxed) == word {
            return (!list.is_empty()).then_some(list);
        }
    }
    None
}

/// Says which devices there are. More than there is room for are none: the containers' processes then ask NVML themselves. One writer at a
/// time.
pub(crate) fn publish(page: &Grant, devices: &[Device]) {
    let edition = (page.devices.load(Ordering::Relaxed) & !COUNT).wrapping_add(COUNT + 1);
    page.devices.store(edition, Ordering::Relaxed);
    // No record is new while the word still says the old count.
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
    page.devices.store(edition.wrapping_add(COUNT + 1) | count, Ordering::Release);
}

/// Returns what of a device's memory was free when NVML was last asked, and when that was; none: not told.
#[must_use]
pub(crate) fn free(page: &Grant, uuid: Uuid) -> Option<(Bytes, Nanos)> {
    let sampled = page.sampled.load(Ordering::Relaxed);
    // HB free: meets the Release in `publish_free`.
    fence(Ordering::Acquire);
    let at = list(page)?.iter().position(|device| device.uuid == uuid)?;
    let free = page.device.get(at)?.free.load(Ordering::Relaxed);
    (sampled != 0 && free != UNKNOWN).then(|| (Bytes(u64::from(free) * STEP), Nanos(sampled)))
}

/// Says what of each device's memory was free at a time, in the order of the list; none: not told.
pub(crate) fn publish_free(
    page: &Grant,
    free: impl Iterator<Item = Option<Bytes>>,
    sampled: Nanos,
) {
    for (record, free) in page.device.iter().zip(free) {
        record.free.store(free.and_then(steps).unwrap_or(UNKNOWN), Ordering::Relaxed);
    }
    // HB free: Release, so that what is found beside a time is at least as new.
    page.sampled.store(sampled.0, Ordering::Release);
}

/// None: more than can be said.
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

    /// A container's two sides.
    fn sides() -> (tempfile::TempDir, Region, GrantWriter) {
        let directory = tempfile::tempdir().expect("a directory");
        Region::make(directory.path(), RegionSpec::default()).expect("a region");
        let region = Region::open(directory.path()).expect("a region");
        let grantor = GrantWriter::open(directory.path()).expect("a grant page");
        (directory, region, grantor)
    }

    #[test]
    fn nothing_is_told_before_a_monitor_has_told_it() {
        let (_directory, region, _grantor) = sides();
        assert_eq!(region.grant().devices(), None);
        assert_eq!(region.grant().device_free(Uuid([1; 16])), None);
        assert_eq!(region.grant().pid_namespace(), 0);
    }

    #[test]
    fn what_was_told_is_read_and_later_told_anew() {
        let (_directory, region, grantor) = sides();
        let cut = Device { is_partitioned: true, ..device(2, 1, 0) };
        for list in
            [vec![device(1, 0, 0), cut, device(3, 1, 1), device(4, 1, 15)], vec![device(9, 5, 0)]]
        {
            grantor.set_devices(&list, 7);
            assert_eq!((region.grant().devices(), region.grant().pid_namespace()), (Some(list), 7));
        }
        let orders =
            [device(1, 0, 0), device(1, 0, 1), device(1, 1, 0)].map(|device| device.order());
        assert!(orders.is_sorted());
        grantor.set_devices(&[], 7);
        assert_eq!(region.grant().devices(), None);
    }

    #[test]
    fn more_devices_than_there_is_room_for_are_not_told() {
        let (_directory, region, grantor) = sides();
        let many: Vec<Device> =
            (0..57).map(|number| device(number, u32::from(number), 0)).collect();
        grantor.set_devices(&many[..DEVICES], 7);
        assert_eq!(region.grant().devices().map(|list| list.len()), Some(DEVICES));
        grantor.set_devices(&many, 7);
        assert_eq!(region.grant().devices(), None);
    }

    #[test]
    fn free_memory_goes_with_its_time_and_ends_with_the_list() {
        let (_directory, region, grantor) = sides();
        grantor.set_devices(&[device(1, 0, 0), device(2, 1, 0)], 7);
        assert_eq!(region.grant().device_free(Uuid([1; 16])), None);
        grantor.set_device_free([Some(Bytes::from_mib(7)), None].into_iter(), Nanos(5));
        assert_eq!(region.grant().device_free(Uuid([1; 16])), Some((Bytes::from_mib(7), Nanos(5))));
        assert_eq!(region.grant().device_free(Uuid([2; 16])), None);
        grantor.set_devices(&[device(2, 0, 0), device(1, 1, 0)], 7);
        assert_eq!(region.grant().device_free(Uuid([1; 16])), None);
    }
}
