//! A process of a container with one GPU, and words that all processes share and no code under test
//! accesses.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;

use cgpu_memory::{
    Bytes, Clock, DeviceIndex, Environment, GpuInfo, Inventory, Monotonic, Nanos, Start, System,
    Tenant, Uuid,
};
use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_shm::futex;
use cgpu_shm::region::Region;
use cgpu_shm::slots::State;
use cgpu_shm::units::SlotIndex;

const GPU: GpuInfo = GpuInfo { uuid: Uuid([7; 16]), total: Bytes(1 << 40), order: 0 };

/// A process of a container.
pub(crate) struct Member {
    pub(crate) tenant: Tenant,
    pub(crate) gpu: DeviceIndex,
}

impl Member {
    pub(crate) fn join() -> Self {
        Self::join_by(&System)
    }

    pub(crate) fn join_by(environment: &dyn Environment) -> Self {
        let inventory = Inventory { gpus: &[GPU], partitioned: &[], complete: true };
        match Tenant::start(environment, inventory, &Monotonic) {
            Ok(Start::On(tenant)) => {
                let gpu = tenant.gpu(GPU.uuid).expect("the GPU is sliced");
                Self { tenant, gpu }
            }
            other => panic!("expected a tenant, found {other:?}"),
        }
    }
}

/// The environment of the test's own process, which does not have its children's variables.
pub(crate) struct Inside<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) limit_mib: u64,
}

impl Environment for Inside<'_> {
    fn variable(&self, name: &std::ffi::CStr) -> Option<std::ffi::OsString> {
        match name.to_bytes() {
            b"CGPU_DIR" => Some(self.directory.into()),
            b"CGPU_MEM_UNIT" => Some("MiB".into()),
            b"ALIYUN_COM_GPU_MEM_CONTAINER" => Some(self.limit_mib.to_string().into()),
            _ => None,
        }
    }

    fn user(&self) -> u32 {
        System.user()
    }

    fn pid_namespace(&self) -> u64 {
        System.pid_namespace()
    }

    fn process_name(&self) -> Vec<u8> {
        System.process_name()
    }

    fn host_name(&self) -> String {
        System.host_name()
    }
}

/// Reclaims all exited processes, whenever they exited.
pub(crate) fn reclaim_exited(region: &Region) {
    let now = Monotonic.now();
    for time in [now, now + Nanos::from_millis(10_000)] {
        region.sweep(time, false).expect("exited processes can be scanned");
    }
}

/// Slots that are not free.
pub(crate) fn taken(region: &Region) -> Vec<SlotIndex> {
    let state = |slot| region.slots().word(slot).expect("a slot").state();
    SlotIndex::all().filter(|slot| state(*slot) != Some(State::Free)).collect()
}

const WORDS: usize = 64;

/// Words in a file, shared by all processes.
pub(crate) struct SharedWords {
    words: *const AtomicU64,
}

// SAFETY: the words are atomics, and are never unmapped.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    pub(crate) fn open(directory: &Path) -> Self {
        let path = directory.join("truth");
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.expect("a file");
        let length = WORDS * size_of::<AtomicU64>();
        file.set_len(length as u64).expect("it can grow");
        let (protection, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a fresh mapping at an address of the kernel's choice; the file has this length
        // and is never truncated.
        let page = unsafe {
            libc::mmap(ptr::null_mut(), length, protection, libc::MAP_SHARED, descriptor, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        Self { words: page.cast() }
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS);
        // SAFETY: the index is within the mapping.
        let word = unsafe { self.words.add(index) };
        // SAFETY: aligned, never unmapped, and only accessed as atomics.
        unsafe { &*word }
    }

    /// Returns a futex in the low half of a word that is used for nothing else.
    fn half(&self, index: usize) -> &AtomicU32 {
        let word = ptr::from_ref(self.word(index)).cast::<AtomicU32>();
        // SAFETY: within the word, aligned, and not accessed otherwise.
        unsafe { &*word }
    }

    /// Waits until `count` processes have called it.
    pub(crate) fn barrier(&self, count: u64) {
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
