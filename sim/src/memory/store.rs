//! Bytes of physical memory of this process alone: one shared mapping, parts of which are mapped
//! again where programs map the memory. It has no descriptor, so programs that close unknown
//! descriptors do no harm.

use std::io;
use std::ptr;

use super::space::Space;
use super::span::hide;
use crate::words::index;

#[derive(Debug)]
pub(super) struct Store {
    map: *mut libc::c_void,
    length: u64,
    space: Space,
}

// SAFETY: the pointer is only an address here; code that makes references from it is responsible
// for their use.
unsafe impl Send for Store {}

impl Store {
    /// Creates a store of that many bytes, committed page by page on writes.
    pub(super) fn new(length: u64) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let map = unsafe { libc::mmap(ptr::null_mut(), index(length), protection, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut space = Space::default();
        space.give(0, length, 0..length);
        let store = Self { map, length, space };
        hide(map, length)?;
        Ok(store)
    }

    /// Takes zeroed bytes; returns their offset, `None` if there are not enough.
    pub(super) fn take(&mut self, length: u64) -> Option<u64> {
        self.space.take(length)
    }

    pub(super) fn give(&mut self, offset: u64, length: u64) {
        let place = self.map.cast::<u8>().wrapping_add(index(offset));
        // SAFETY: whole pages of our own mapping that are no longer used; they are the kernel's
        // anonymous shared memory, from which pages can always be removed.
        unsafe { libc::madvise(place.cast(), index(length), libc::MADV_REMOVE) };
        self.space.give(offset, length, 0..self.length);
    }

    /// Returns the bytes of a granule. Reading commits them.
    pub(super) fn granule(&mut self, offset: u64) -> &[u8] {
        let place = self.map.cast::<u8>().wrapping_add(index(offset));
        // SAFETY: a granule of our own mapping, which was taken. Other mappings of it are written
        // only through the process's `Memory`, which owns this store and is borrowed mutably
        // meanwhile: the callers read GPU memory, to which the program itself has no access.
        unsafe { core::slice::from_raw_parts(place, index(super::GRANULE)) }
    }

    /// Maps bytes again, over the mapping at `place`.
    pub(super) fn map_over(&self, offset: u64, length: u64, place: *mut u8) -> io::Result<()> {
        let from = self.map.cast::<u8>().wrapping_add(index(offset));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: an old length of 0 leaves the source as it is and makes a second mapping of it;
        // at `place` are whole granules of our own mapping, into which no reference exists.
        let map = unsafe { libc::mremap(from.cast(), 0, index(length), flags, place) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        hide(map, length)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours. It is unmapped when its owner, the machine, is dropped: its
        // users have ended by then.
        unsafe { libc::munmap(self.map, index(self.length)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::GRANULE;
    use crate::memory::span::{Source, Span};

    #[test]
    fn two_mappings_share_bytes_until_restored() {
        let mut store = Store::new(64 * GRANULE).unwrap();
        let mut span = Span::new(8 * GRANULE, GRANULE, 0).unwrap();
        let (start, _) = span.range();
        let offset = store.take(2 * GRANULE).unwrap();
        span.alias(start, 2 * GRANULE, Source::Store(&store, offset)).unwrap();
        span.alias(start + 4 * GRANULE, 2 * GRANULE, Source::Store(&store, offset)).unwrap();
        let read = |span: &mut Span, at: u64| {
            let byte = span.bytes(start + at, 1, false).unwrap();
            // SAFETY: within the span's mapping, which still exists.
            unsafe { byte.read() }
        };
        let byte = span.bytes(start + GRANULE, 1, true).unwrap();
        // SAFETY: as above.
        unsafe { byte.write(7) };
        assert_eq!(read(&mut span, 5 * GRANULE), 7);
        span.restore(start, 2 * GRANULE).unwrap();
        assert_eq!(read(&mut span, GRANULE), 0, "no longer the store's");
        assert_eq!(read(&mut span, 5 * GRANULE), 7);
        span.discard(start + 4 * GRANULE, 2 * GRANULE);
        assert_eq!(read(&mut span, 5 * GRANULE), 0);
        store.give(offset, 2 * GRANULE);
        assert_eq!(store.take(64 * GRANULE), Some(0));
    }
}
