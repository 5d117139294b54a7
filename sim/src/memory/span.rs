//! A range of addresses in this process, and the bytes behind them.
//!
//! There are two mappings of the same length. The first reserves the addresses that programs see:
//! no other memory of the process can be there, and the host cannot access them, as on a real GPU.
//! The second holds the bytes and is made when they are first needed. It is private, not reserved,
//! and committed page by page on writes, so that a GPU of 80 GB fits anywhere while programs write
//! little. Parts of it can be [aliases](Span::alias) of bytes elsewhere.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use super::GRANULE;
use super::store::Store;
use crate::words::index;

/// The location of aliased bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    /// In this process's store, from an offset on.
    Store(&'a Store, u64),
    /// In a file, from its start on.
    File(&'a File),
}

impl Source<'_> {
    /// Maps the bytes over the mapping at `place`.
    fn map_over(self, place: *mut u8, length: u64) -> io::Result<()> {
        let file = match self {
            Self::Store(store, offset) => return store.map_over(offset, length, place),
            Self::File(file) => file,
        };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        map_over(place, length, libc::PROT_READ | libc::PROT_WRITE, flags, file.as_raw_fd())
    }
}

#[derive(Debug)]
pub(super) struct Span {
    addresses: Region,
    bytes: Option<Region>,
    /// Granules that were written, by first address; aliases always count.
    written: BTreeSet<u64>,
    /// Granules that are aliases.
    aliased: BTreeSet<u64>,
}

impl Span {
    /// Reserves addresses, at `wanted` if that is not 0 and free.
    pub(super) fn new(length: u64, align: u64, wanted: u64) -> io::Result<Self> {
        let addresses = Region::map(length, align, wanted, libc::PROT_NONE)?;
        Ok(Self { addresses, bytes: None, written: BTreeSet::new(), aliased: BTreeSet::new() })
    }

    /// Returns the first address, a multiple of the granule, and the length.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.addresses.start, self.addresses.length)
    }

    pub(super) fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.addresses.start) < self.addresses.length
    }

    fn backing(&mut self) -> io::Result<&Region> {
        Ok(match &mut self.bytes {
            Some(bytes) => bytes,
            none => none.insert(Region::map(
                self.addresses.length,
                GRANULE,
                0,
                libc::PROT_READ | libc::PROT_WRITE,
            )?),
        })
    }

    /// Returns the bytes of a range, which must be within the span.
    pub(super) fn bytes(&mut self, address: u64, length: u64, writes: bool) -> io::Result<*mut u8> {
        if writes && length > 0 {
            self.written.extend(granules(address, length));
        }
        let offset = address - self.addresses.start;
        Ok(self.backing()?.at(offset))
    }

    /// Returns the granules of a range that were written.
    pub(super) fn written(&self, address: u64, length: u64) -> Vec<u64> {
        self.written.range(address..address + length).copied().collect()
    }

    /// Discards the bytes of free granules: they read as zeros, also through other aliases.
    pub(super) fn discard(&mut self, address: u64, length: u64) {
        for granule in self.written(address, length) {
            let aliased = self.aliased.contains(&granule);
            if !aliased {
                self.written.remove(&granule);
            }
            let Some(bytes) = &self.bytes else { continue };
            let place = bytes.at(granule - self.addresses.start);
            if aliased {
                clear_shared(place, GRANULE);
            } else {
                // SAFETY: whole pages of our own private mapping; no reference into it exists, and
                // its contents are no longer needed. If the kernel refuses, they merely stay.
                unsafe { libc::madvise(place.cast(), index(GRANULE), libc::MADV_DONTNEED) };
            }
        }
    }

    /// Backs granules with bytes elsewhere instead of their own.
    pub(super) fn alias(
        &mut self,
        address: u64,
        length: u64,
        source: Source<'_>,
    ) -> io::Result<()> {
        let offset = address - self.addresses.start;
        source.map_over(self.backing()?.at(offset), length)?;
        self.written.extend(granules(address, length));
        self.aliased.extend(granules(address, length));
        Ok(())
    }

    /// Makes granules accessible to the host at these very addresses, with the bytes of `source`.
    pub(super) fn reveal(&self, address: u64, length: u64, source: Source<'_>) -> io::Result<()> {
        source.map_over(self.addresses.at(address - self.addresses.start), length)
    }

    /// Backs granules with their own bytes again, all zero and inaccessible to the host.
    pub(super) fn restore(&mut self, address: u64, length: u64) -> io::Result<()> {
        let offset = address - self.addresses.start;
        self.backing()?.restore(offset, length, libc::PROT_READ | libc::PROT_WRITE)?;
        self.addresses.restore(offset, length, libc::PROT_NONE)?;
        for granule in granules(address, length) {
            self.aliased.remove(&granule);
            self.written.remove(&granule);
        }
        Ok(())
    }
}

/// Returns the granules that a range overlaps, by first address.
fn granules(address: u64, length: u64) -> impl Iterator<Item = u64> {
    (address / GRANULE..=(address + length - 1) / GRANULE).map(|granule| granule * GRANULE)
}

/// Zeroes shared bytes, and releases their pages if the file system can.
fn clear_shared(place: *mut u8, length: u64) {
    // SAFETY: whole pages of our own mapping; no reference into it exists, and its contents are no
    // longer needed.
    let removed = unsafe { libc::madvise(place.cast(), index(length), libc::MADV_REMOVE) };
    if removed == -1 {
        // SAFETY: as above; the mapping is writable.
        unsafe { place.write_bytes(0, index(length)) };
    }
}

fn map_over(
    place: *mut u8,
    length: u64,
    protection: libc::c_int,
    flags: libc::c_int,
    file: libc::c_int,
) -> io::Result<()> {
    // SAFETY: replaces whole granules of our own mapping, into which no reference exists.
    let map = unsafe { libc::mmap(place.cast(), index(length), protection, flags, file, 0) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    hide(map, length)
}

/// Excludes a mapping from forked children and core dumps.
pub(super) fn hide(map: *mut libc::c_void, length: u64) -> io::Result<()> {
    for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
        // SAFETY: the range is our own mapping; neither advice changes its contents.
        if unsafe { libc::madvise(map, index(length), advice) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A private mapping, of which an aligned part is used.
#[derive(Debug)]
struct Region {
    map: *mut libc::c_void,
    whole: usize,
    /// First address and length of that part.
    start: u64,
    length: u64,
}

// SAFETY: the pointer is only an address here; code that makes references from it is responsible
// for their use.
unsafe impl Send for Region {}

const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

impl Region {
    fn map(length: u64, align: u64, wanted: u64, protection: libc::c_int) -> io::Result<Self> {
        if wanted != 0
            && let Some(region) = Self::map_at(length, wanted, protection)?
        {
            return Ok(region);
        }
        let whole = index(length + align);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let map = unsafe { libc::mmap(ptr::null_mut(), whole, protection, PRIVATE, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = (map.addr() as u64).next_multiple_of(align);
        let region = Self { map, whole, start, length };
        hide(map, length + align)?;
        Ok(region)
    }

    /// Maps at an address; `None` if it is not free.
    fn map_at(length: u64, wanted: u64, protection: libc::c_int) -> io::Result<Option<Self>> {
        let place = ptr::without_provenance_mut(index(wanted));
        let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a fresh mapping that replaces nothing.
        let map = unsafe { libc::mmap(place, index(length), protection, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Ok(None);
        }
        let region = Self { map, whole: index(length), start: map.addr() as u64, length };
        // A kernel before 4.17 takes the address as a hint; then the region is dropped here.
        if region.start != wanted {
            return Ok(None);
        }
        hide(map, length)?;
        Ok(Some(region))
    }

    fn at(&self, offset: u64) -> *mut u8 {
        let skip = self.start - self.map.addr() as u64;
        self.map.cast::<u8>().wrapping_add(index(skip + offset))
    }

    fn restore(&self, offset: u64, length: u64, protection: libc::c_int) -> io::Result<()> {
        map_over(self.at(offset), length, protection, PRIVATE | libc::MAP_FIXED, -1)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours. It is unmapped when its owner, the machine, is dropped: its
        // users have ended by then. A forked child does not get here (Machine's drop).
        unsafe { libc::munmap(self.map, self.whole) };
    }
}
