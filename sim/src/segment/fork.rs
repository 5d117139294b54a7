//! Detection of forked children of the process that opened the segment.
//!
//! A page that the kernel wipes in the child (MADV_WIPEONFORK) tells them apart with one load, in
//! any thread. It also works in a child of vfork before exec, where a cached process id would still
//! be the parent's.

use std::io;

use cgpu_shm::atomic::{AtomicU64, Ordering};
use memmap2::MmapRaw;

/// The page that is wiped on fork.
#[derive(Debug)]
pub struct ForkDetector {
    page: MmapRaw,
}

impl ForkDetector {
    const LENGTH: usize = 4096;

    /// Marks this process as the parent.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        let page = MmapRaw::from(memmap2::MmapMut::map_anon(Self::LENGTH)?);
        // SAFETY: the range is the private anonymous mapping just made, and nothing has been stored
        // there yet.
        if unsafe { libc::madvise(page.as_mut_ptr().cast(), Self::LENGTH, libc::MADV_WIPEONFORK) }
            == -1
        {
            return Err(io::Error::last_os_error());
        }
        let this = Self { page };
        this.word().store(1, Ordering::Relaxed);
        Ok(this)
    }

    /// Returns whether this process was forked from the one that called [`ForkDetector::new`].
    #[inline]
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped while self exists, aligned, and only ever accessed as this
        // atomic.
        unsafe { AtomicU64::from_ptr(self.page.as_mut_ptr().cast()) }
    }
}
