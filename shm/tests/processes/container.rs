//! A container with one GPU.

use std::path::Path;

use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::gpus::Gpu;
use cgpu_shm::ledger::{Account, Column, Refused};
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::lock::Owner;
use cgpu_shm::paths::Candidate;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::{Claim, SlotOwner};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos};
use cgpu_shm::uuid::Uuid;

/// Timeout of locks: the watchdog ends a test first.
pub(crate) const FOREVER: Nanos = Nanos::MAX;

/// One process in a container.
pub(crate) struct Member {
    pub(crate) region: Region,
    pub(crate) claim: Claim<LivenessLock>,
    pub(crate) gpu: DeviceIndex,
}

impl Member {
    /// Opens or creates the region, claims a slot and registers the GPU.
    pub(crate) fn join(directory: &Path) -> Self {
        let region = open(directory);
        let who = SlotOwner { pid: std::process::id(), comm: b"member" };
        let claim = region.claim(who, Monotonic.now(), false).unwrap().expect("a slot is free");
        let gpu = Gpu { uuid: Uuid([7; 16]), total: Bytes(1000), limit: Bytes(100), ordinal: 0 };
        let gpu = region.register(claim.slot, &gpu).unwrap();
        Self { region, claim, gpu }
    }

    pub(crate) fn me(&self) -> Owner {
        self.claim.owner()
    }

    pub(crate) fn account(&self) -> Account<'_> {
        self.region.account(self.gpu, self.me())
    }

    pub(crate) fn charge(&self, bytes: Bytes, limit: Bytes) -> Result<(), Refused> {
        let liveness = |owner| self.region.liveness(owner);
        self.account().charge(Column::Used, bytes, || limit, FOREVER, liveness)
    }

    /// Refunds bytes, which must be there.
    pub(crate) fn refund(&self, bytes: Bytes) {
        assert_eq!(self.account().own().refund(Column::Used, bytes), bytes);
    }
}

pub(crate) fn open(directory: &Path) -> Region {
    let candidate = Candidate { directory: directory.to_path_buf(), owner: None };
    Region::open_or_make(&[candidate], RegionSpec::default()).unwrap()
}

/// Reclaims all exited processes, whenever they exited.
pub(crate) fn reclaim_exited(region: &Region) {
    let now = Monotonic.now();
    for time in [now, now + Nanos::from_millis(10_000)] {
        region.sweep(time, false).unwrap();
    }
}
