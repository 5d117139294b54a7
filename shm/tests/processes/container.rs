//! A container with one GPU, and the truth beside it: words that all processes share and that no code under test touches.

use std::fs::OpenOptions;
use std::path::Path;

use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_shm::futex;
use cgpu_shm::gpus;
use cgpu_shm::ledger::Account;
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::lock::Owner;
use cgpu_shm::paths::Candidate;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::{Claim, SlotOwner};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos};
use cgpu_shm::uuid::Uuid;
use memmap2::{MmapOptions, MmapRaw};

use crate::child::now;

/// How long a lock is waited for here: as long as the watchdog.
pub(crate) const FOREVER: Nanos = Nanos::MAX;

/// One process in a container.
pub(crate) struct Member {
    pub(crate) region: Region,
    pub(crate) claim: Claim<LivenessLock>,
    pub(crate) gpu: DeviceIndex,
}

impl Member {
    /// Opens or makes the region, claims a slot, registers the GPU.
    pub(crate) fn join(directory: &Path) -> Self {
        let region = open(directory);
        let who = SlotOwner { pid: std::process::id(), comm: b"member" };
        let claim = region.claim(who, now(), false).unwrap().expect("a slot is free");
        let facts =
            gpus::Gpu { uuid: Uuid([7; 16]), total: Bytes(1000), limit: Bytes(100), ordinal: 0 };
        let gpu = region.register(claim.slot, &facts).unwrap();
        Self { region, claim, gpu }
    }

    pub(crate) fn me(&self) -> Owner {
        self.claim.owner()
    }

    pub(crate) fn account(&self) -> Account<'_> {
        self.region.account(self.gpu, self.me())
    }
}

pub(crate) fn open(directory: &Path) -> Region {
    let candidate = Candidate { directory: directory.to_path_buf(), owner: None };
    Region::open_or_make(&[candidate], RegionSpec::default()).unwrap()
}

/// Finds all the dead and buries them, whenever they died.
pub(crate) fn bury(region: &Region) {
    let later = now() + Nanos::from_millis(10_000);
    region.sweep(now(), false).unwrap();
    region.sweep(later, false).unwrap();
}

const WORDS: usize = 64;

/// Words of a file of their own.
pub(crate) struct Truth {
    map: MmapRaw,
}

impl Truth {
    pub(crate) fn open(directory: &Path) -> Self {
        let path = directory.join("truth");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        file.set_len(8 * WORDS as u64).unwrap();
        Self { map: MmapOptions::new().len(8 * WORDS).map_raw(&file).unwrap() }
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS);
        #[allow(clippy::cast_ptr_alignment)] // the map begins at a page
        let words = self.map.as_mut_ptr().cast::<AtomicU64>();
        // SAFETY: the index is within the map.
        let word = unsafe { words.add(index) };
        // SAFETY: aligned, mapped as long as `self`, and accessed as atomics only.
        unsafe { &*word }
    }

    /// A futex over the low half of a word that is used for nothing else.
    fn half(&self, index: usize) -> &AtomicU32 {
        let word = std::ptr::from_ref(self.word(index)).cast::<AtomicU32>();
        // SAFETY: within the word, aligned, and nobody accesses it otherwise.
        unsafe { &*word }
    }

    /// Waits until `count` processes are here.
    pub(crate) fn meet(&self, count: u64) {
        let (arrived, round) = (self.word(WORDS - 1), self.half(WORDS - 2));
        let this = round.load(Ordering::SeqCst);
        if arrived.fetch_add(1, Ordering::SeqCst) + 1 == count {
            arrived.store(0, Ordering::SeqCst);
            round.store(this.wrapping_add(1), Ordering::SeqCst);
            futex::wake(round, u32::MAX);
        }
        while round.load(Ordering::SeqCst) == this {
            futex::wait(round, this, Nanos::from_millis(100));
        }
    }
}
