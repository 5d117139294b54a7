//! Words in a file that all processes share and no code under test accesses.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;

use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_shm::futex;
use cgpu_shm::units::Nanos;

const WORDS: usize = 64;

/// The words. The last two are the barrier's.
pub(crate) struct SharedWords {
    words: *const AtomicU64,
}

// SAFETY: the words are atomics, and are never unmapped.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    pub(crate) fn open(directory: &Path) -> Self {
        let path = directory.join("words");
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.expect("a file");
        let length = WORDS * size_of::<AtomicU64>();
        file.set_len(length as u64).expect("it can grow");
        let (protection, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses; the file has this length and
        // is never truncated.
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

    /// Returns a futex in half of a word that is used for nothing else.
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
