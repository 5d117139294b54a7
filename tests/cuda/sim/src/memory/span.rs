//! A card's addresses in this process, and the bytes behind them.
//!
//! Two mappings of the same length. The first reserves the addresses that programs see: nothing else of the process can
//! lie there, and the host cannot touch them, as on a real card. The second, made when a byte is first needed, holds
//! the bytes: private, not reserved, committed page by page as they are written, so that cards of 80 GB fit anywhere as
//! long as programs write little.

use std::collections::BTreeSet;
use std::io;
use std::ptr;

use super::GRANULE;
use crate::words::index;

/// The two mappings.
#[derive(Debug)]
pub(super) struct Span {
    addresses: Region,
    bytes: Option<Region>,
    /// Granules that were written, by their first address.
    written: BTreeSet<u64>,
}

impl Span {
    /// Reserves addresses.
    pub(super) fn new(length: u64) -> io::Result<Self> {
        let addresses = Region::map(length, libc::PROT_NONE)?;
        Ok(Self { addresses, bytes: None, written: BTreeSet::new() })
    }

    /// The first address, a multiple of the granule, and how many there are.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.addresses.start(), self.addresses.length)
    }

    pub(super) fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.addresses.start()) < self.addresses.length
    }

    /// Where the byte of an address lies. The range must be within the span.
    pub(super) fn bytes(&mut self, address: u64, length: u64, writes: bool) -> io::Result<*mut u8> {
        if writes && length > 0 {
            let first = address / GRANULE;
            self.written.extend((first..=(address + length - 1) / GRANULE).map(|granule| granule * GRANULE));
        }
        let bytes = match &self.bytes {
            Some(bytes) => bytes,
            None => {
                self.bytes.insert(Region::map(self.addresses.length, libc::PROT_READ | libc::PROT_WRITE)?)
            }
        };
        Ok(bytes.at(address - self.addresses.start()))
    }

    /// Lets the bytes of a free range of granules go.
    pub(super) fn discard(&mut self, address: u64, length: u64) {
        let written: Vec<u64> = self.written.range(address..address + length).copied().collect();
        let Some(bytes) = &self.bytes else { return };
        for granule in written {
            self.written.remove(&granule);
            bytes.discard(granule - self.addresses.start(), GRANULE);
        }
    }
}

/// A private mapping, whose first granule-aligned address counts as its start. A forked child has it not.
#[derive(Debug)]
struct Region {
    map: *mut libc::c_void,
    length: u64,
}

// SAFETY: the pointer is only an address here; whoever makes pointers from it answers for their use.
unsafe impl Send for Region {}

impl Region {
    fn map(length: u64, protection: libc::c_int) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let whole = index(length + GRANULE);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let map = unsafe { libc::mmap(ptr::null_mut(), whole, protection, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let region = Self { map, length };
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            // SAFETY: the range is the mapping just made; neither advice changes what is in it.
            if unsafe { libc::madvise(map, whole, advice) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(region)
    }

    fn start(&self) -> u64 {
        (self.map.addr() as u64).next_multiple_of(GRANULE)
    }

    fn at(&self, offset: u64) -> *mut u8 {
        let skip = self.start() - self.map.addr() as u64;
        self.map.cast::<u8>().wrapping_add(index(skip + offset))
    }

    fn discard(&self, offset: u64, length: u64) {
        // SAFETY: the range is whole pages of our own private mapping; nobody holds a reference into it, and its
        // contents are of no more use. Should the kernel refuse, they merely stay.
        unsafe { libc::madvise(self.at(offset).cast(), index(length), libc::MADV_DONTNEED) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the machine that owns it is dropped by nobody who still uses its memory; a
        // forked child does not come here (Machine's drop).
        unsafe { libc::munmap(self.map, index(self.length + GRANULE)) };
    }
}
