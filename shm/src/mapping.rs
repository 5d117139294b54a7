//! A file of ours, mapped.

use std::fs::File;
use std::io;
use std::marker::PhantomData;

use memmap2::{MmapOptions, MmapRaw};

use crate::layout::{Grant, Use};
use crate::preamble::{Kind, Preamble};

/// What may lie in memory that other processes write.
///
/// # Safety
/// Every byte of the type must belong to an atomic or to a gap that nobody accesses, and every value of every byte be valid.
pub unsafe trait Shared {
    /// The file that holds one.
    const KIND: Kind;

    /// Its first words.
    fn preamble(&self) -> Preamble<'_>;
}

// SAFETY: all its fields are atomic integers, locks of one atomic integer, `Reserved`, or arrays and structs of those.
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
/// Through a read-only mapping atomics may only be loaded; any store kills the process. The types that hand out such mappings
/// ([`crate::grant::Granted`]) have no operation that stores.
#[derive(Debug)]
pub(crate) struct Mapping<T> {
    raw: MmapRaw,
    holds: PhantomData<T>,
}

impl<T: Shared> Mapping<T> {
    /// Maps `file`, which must be at least as long as a `T` and never be cut shorter by a peer that is not trusted to live.
    pub(crate) fn writable(file: &File) -> io::Result<Self> {
        Self::check(MmapOptions::new().len(size_of::<T>()).map_raw(file)?)
    }

    /// As [`Mapping::writable`], to be loaded from only.
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
        // Mappings begin at a page, so that the alignment which `check` has seen cannot be lost.
        #[allow(clippy::cast_ptr_alignment)]
        let at = self.raw.as_ptr().cast::<T>();
        // SAFETY:
        // - aligned, not null, and long enough: `check` has seen to it;
        // - mapped as long as `self`, to which the reference is bound;
        // - any bytes are a valid T, and other processes' writes meet atomics only: the contract of `Shared`.
        unsafe { &*at }
    }
}
