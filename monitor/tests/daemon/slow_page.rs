//! A page of memory that takes as long to fault in as a test wants.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// One page, which is not there before [`SlowPage::appear`].
#[derive(Debug)]
pub(crate) struct SlowPage {
    faults: OwnedFd,
    page: NonNull<libc::c_void>,
}

// SAFETY: the page is memory of the process, which only the kernel accesses.
unsafe impl Send for SlowPage {}
// SAFETY: as above.
unsafe impl Sync for SlowPage {}

const SIZE: usize = 4096;

// Of `linux/userfaultfd.h`.
const API: u64 = 0xaa;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::Ioctl = 0xc020_aa04;
const MODE_MISSING: u64 = 1;

impl SlowPage {
    /// # Errors
    /// Where the kernel does not let this process handle its page faults.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes flags and returns a descriptor, which is ours, or -1.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        let Ok(faults @ 0..) = i32::try_from(faults) else {
            return Err(io::Error::last_os_error());
        };
        // SAFETY: it is open, and nothing else owns it.
        let faults = unsafe { OwnedFd::from_raw_fd(faults) };
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of anonymous memory affects no other.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, flags, -1, 0) };
        let page = NonNull::new(page).filter(|page| page.as_ptr() != libc::MAP_FAILED);
        let page = Self { faults, page: page.ok_or_else(io::Error::last_os_error)? };
        page.control(UFFDIO_API, [API, 0, 0, 0])?;
        page.control(UFFDIO_REGISTER, [page.address(), SIZE as u64, MODE_MISSING, 0])?;
        Ok(page)
    }

    pub(crate) fn address(&self) -> u64 {
        self.page.as_ptr().addr() as u64
    }

    /// Fills the page, so that accesses to it go on.
    pub(crate) fn appear(&self) {
        self.control(UFFDIO_ZEROPAGE, [self.address(), SIZE as u64, 0, 0]).unwrap();
    }

    /// Writes a byte of the page to a file. Takes until the page has appeared.
    pub(crate) fn write_to(&self, file: &impl AsRawFd) -> io::Result<()> {
        // SAFETY: the page is mapped as long as this lives, and its byte is plain memory.
        let written = unsafe { libc::write(file.as_raw_fd(), self.page.as_ptr(), 1) };
        if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn control(&self, what: libc::Ioctl, mut argument: [u64; 4]) -> io::Result<()> {
        // SAFETY: each of these requests reads and writes at most these four words.
        let done = unsafe { libc::ioctl(self.faults.as_raw_fd(), what, &raw mut argument) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for SlowPage {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and no reference to it exists.
        unsafe { libc::munmap(self.page.as_ptr(), SIZE) };
    }
}
