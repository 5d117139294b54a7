//! Memory of a GPU that no process has and no container is charged for: exported memory whose
//! container has ended, which a program without CUDA keeps by a descriptor.

use std::collections::VecDeque;

use cgpu_shm::snapshot::Cell;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;

use super::Host;
use super::container::Container;
use super::device_state::DeviceState;

/// Exits, imports and the two readings that are compared leave some for a moment, which does not
/// count.
const WINDOW: Nanos = Nanos::from_millis(5000);
/// What is not reported: the driver's own memory varies.
const TOLERANCE: Bytes = Bytes(256 << 20);

/// The samples of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unattributed(VecDeque<(Nanos, Bytes)>);

impl Unattributed {
    /// Takes what a sample shows; none: NVML does not tell.
    pub(super) fn take(&mut self, now: Nanos, bytes: Option<Bytes>) {
        let Some(bytes) = bytes else { return self.0.clear() };
        self.0.push_back((now, bytes));
        // The first one begins the window.
        while self.0.get(1).is_some_and(|(at, _)| *at + WINDOW <= now) {
            self.0.pop_front();
        }
    }

    /// Returns the least of a whole window, zero within the tolerance.
    pub(crate) fn bytes(&self) -> Bytes {
        let (Some((first, _)), Some((last, _))) = (self.0.front(), self.0.back()) else {
            return Bytes::ZERO;
        };
        let least = self.0.iter().map(|(_, bytes)| *bytes).min().unwrap_or(Bytes::ZERO);
        if *first + WINDOW <= *last && least > TOLERANCE { least } else { Bytes::ZERO }
    }
}

impl Host {
    /// Returns the part of `unowned`, which no process has, that no container is charged for.
    pub(super) fn unattributed(&self, device: &DeviceState, unowned: Bytes) -> Bytes {
        let exported = |container: &Container| {
            let of = |pid: &u32| device.sample.processes.as_ref()?.get(pid).copied().flatten();
            let own = device.sample.gpu_processes.iter();
            let own = own.filter(|process| process.owner == Some(container.tenant.0));
            let has: Bytes = own.filter_map(|process| of(&process.id.pid)).sum();
            // A container that rewrites its ledger covers no more than its limit.
            container.charged(device.uuid).min(container.limit(device.uuid)) - has
        };
        unowned - self.containers.values().map(exported).sum::<Bytes>()
    }
}

impl Container {
    /// Returns what it is charged on a GPU.
    fn charged(&self, uuid: Uuid) -> Bytes {
        let seen = self
            .region
            .as_ref()
            .and_then(|region| Some((region, region.seen.gpus.get(region.gpu(uuid)?.get())?)));
        seen.map_or(Bytes::ZERO, |(region, gpu)| {
            region.seen.present(gpu).map(|(_, cell): (_, &Cell)| cell.total()).sum()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_counts_when_it_is_there_for_a_whole_window() {
        let mut unattributed = Unattributed::default();
        let mut after = |second: u64, mib: Option<u64>| {
            unattributed.take(Nanos::from_millis(1000 * second), mib.map(|mib| Bytes(mib * MIB)));
            unattributed.bytes().0 / MIB
        };
        for second in 0..5 {
            assert_eq!(after(second, Some(900)), 0, "after {second} s");
        }
        assert_eq!(after(5, Some(800)), 800);
        assert_eq!(after(6, Some(5000)), 800, "the least");
        assert_eq!(after(7, Some(200)), 0, "within the tolerance");
        for second in 8..12 {
            assert_eq!(after(second, Some(5000)), 0, "after {second} s");
        }
        assert_eq!(after(13, Some(5000)), 5000);
        assert_eq!(after(14, None), 0);
        assert_eq!(after(15, Some(5000)), 0, "it begins anew");
    }
}
