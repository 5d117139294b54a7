//! A mapped region file.

use std::fs::File;
use std::io;
use std::marker::PhantomData;

use memmap2::{MmapOptions, MmapRaw};

use crate::layout::{Grant, Use};
use crate::preamble::{Kind, Preamble};

/// A type that may lie in memory that other processes write.
///
/// # Safety
/// Every byte of the type must belong to an atomic or to a gap that no code accesses, and every
/// value of every byte must be valid.
pub unsafe trait Shared {
    /// The file that holds the type.
    const KIND: Kind;

    /// Its first words.
    fn preamble(&self) -> Preamble<'_>;
}

// SAFETY: all its fields are atomic integers, locks of one atomic integer, `Reserved`, or arrays
// and structs of those.
unsafe impl Shared for Use {
    const KIND: Kind = Kind::Use;

    fn preamble(&self) -> Preamble<'_> {
        let Self { header, .. } = self;
        Preamble { version: &header.version, magic: &header.magic, size: &header.size }
    }
}

// SAFETY: as above.
unsafe impl Shared for Grant {
    const KIND: Kind = Kind::Grant;

    fn preamble(&self) -> Preamble<'_> {
        Preamble { version: &self.version, magic: &self.magic, size: &self.size }
    }
}

/// A file that holds one `T`, mapped and shared.
///
/// Through a read-only mapping atomics may only be loaded; a store kills the process. The type that
/// hands out such a mapping ([`crate::grant::GrantView`]) has no operation that stores.
#[derive(Debug)]
pub(crate) struct Mapping<T> {
    raw: MmapRaw,
    holds: PhantomData<T>,
}

impl<T: Shared> Mapping<T> {
    /// Maps `file` for loads and stores. The file must be at least as long as a `T`; truncating it
    /// later kills a process that accesses the mapping (see [`crate::truncation`]).
    pub(crate) fn writable(file: &File) -> io::Result<Self> {
        Self::check(MmapOptions::new().len(size_of::<T>()).map_raw(file)?)
    }

    /// Maps `file` for loads only, otherwise as [`Mapping::writable`].
    pub(crate) fn read_only(file: &File) -> io::Result<Self> {
        Self::check(MmapOptions::new().len(size_of::<T>()).map_raw_read_only(file)?)
    }

    fn check(raw: MmapRaw) -> io::Result<Self> {
        if raw.len() < size_of::<T>() || !raw.as_ptr().cast::<T>().is_aligned() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { raw, holds: PhantomData })
    }

    pub(crate) fn get(&self) -> &T {
        // Mappings begin at a page, so the alignment that `check` verified is kept.
        #[allow(clippy::cast_ptr_alignment)]
        let at = self.raw.as_ptr().cast::<T>();
        // SAFETY:
        // - aligned, not null and long enough, which `check` verified;
        // - mapped as long as `self`, to which the reference is bound;
        // - any bytes are a valid T, and other processes' writes meet only atomics, by the contract
        //   of `Shared`.
        unsafe { &*at }
    }
}
