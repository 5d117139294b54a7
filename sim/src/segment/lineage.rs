//! Whether this process is the one that opened the segment, or a child forked from it.
//!
//! A page that the kernel wipes in the child (MADV_WIPEONFORK): one load tells, in any thread, also in a child of vfork
//! that has not called exec yet, where a comparison of process ids would speak of the parent.

use std::io;

use cgpu_shm::atomic::{AtomicU64, Ordering};
use memmap2::MmapRaw;

/// The page.
#[derive(Debug)]
pub struct Lineage {
    page: MmapRaw,
}

impl Lineage {
    const LENGTH: usize = 4096;

    /// From now on this process is the parent.
    ///
    /// # Errors
    /// As the system says.
    pub fn new() -> io::Result<Self> {
        let page = MmapRaw::from(memmap2::MmapMut::map_anon(Self::LENGTH)?);
        // SAFETY: the range is the private anonymous mapping just made, and nothing has been stored there that could be
        // lost.
        if unsafe { libc::madvise(page.as_mut_ptr().cast(), Self::LENGTH, libc::MADV_WIPEONFORK) }
            == -1
        {
            return Err(io::Error::last_os_error());
        }
        let this = Self { page };
        this.word().store(1, Ordering::Relaxed);
        Ok(this)
    }

    /// Whether this process was forked from the one that called [`Lineage::new`].
    #[inline]
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as self lives, aligned, and only ever accessed as this atomic.
        unsafe { AtomicU64::from_ptr(self.page.as_mut_ptr().cast()) }
    }
}
