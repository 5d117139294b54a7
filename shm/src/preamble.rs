//! The first 16 bytes of both files: version, magic, size. They distinguish a finished file from an
//! unfinished one, one of another version and a broken one.
//!
//! The version word publishes: everything else is in place before it is stored. No caller waits for
//! it without bound; "not yet" is a result like any other.

use core::fmt;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::layout::{GRANT_MAGIC, Grant, LAYOUT_VERSION, USE_MAGIC, Use};

/// Which of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `use`, the container's.
    Use,
    /// `grant`, the monitor's.
    Grant,
}

impl Kind {
    /// Returns its name in the container's directory.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Grant => "grant",
        }
    }

    /// Returns its magic.
    #[must_use]
    pub const fn magic(self) -> u32 {
        match self {
            Self::Use => USE_MAGIC,
            Self::Grant => GRANT_MAGIC,
        }
    }

    /// Returns its size in bytes.
    #[must_use]
    pub const fn size(self) -> u64 {
        (match self {
            Self::Use => size_of::<Use>(),
            Self::Grant => size_of::<Grant>(),
        }) as u64
    }
}

/// Why a file's first bytes are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPreamble {
    /// The file is being created: check again shortly, for a bounded time.
    NotYet,
    /// It is finished, but of another layout.
    WrongVersion {
        /// Its version word.
        found: u32,
    },
    /// It has another magic.
    WrongMagic {
        /// The magic found.
        found: u32,
        /// The magic expected.
        expected: u32,
    },
    /// It has another length.
    WrongSize {
        /// Its length, or the length in its header.
        found: u64,
        /// The length expected.
        expected: u64,
    },
}

impl fmt::Display for InvalidPreamble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet => f.write_str(
                "the file is still being created, or its creator exited: if this persists, \
                     remove it",
            ),
            Self::WrongVersion { found } => write!(
                f,
                "expected layout version {LAYOUT_VERSION}, found {found}: use the same release of \
                 cgpu inside and outside the container, and remove the file when it is not in use"
            ),
            Self::WrongMagic { found, expected } => {
                write!(
                    f,
                    "expected magic {expected:#010x}, found {found:#010x}: this is not a cgpu \
                     file; remove it"
                )
            }
            Self::WrongSize { found, expected } => {
                write!(
                    f,
                    "expected {expected} bytes, found {found}: the file was truncated or \
                     replaced; remove it"
                )
            }
        }
    }
}

impl core::error::Error for InvalidPreamble {}

/// The first words of a mapped file.
#[derive(Clone, Copy, Debug)]
pub struct Preamble<'a> {
    /// Published last.
    pub version: &'a AtomicU32,
    /// Which kind of file.
    pub magic: &'a AtomicU32,
    /// Its length.
    pub size: &'a AtomicU64,
}

impl Preamble<'_> {
    /// Publishes the file: a process that finds it ready sees everything stored before.
    pub fn publish(&self, kind: Kind) {
        self.magic.store(kind.magic(), Ordering::Relaxed);
        self.size.store(kind.size(), Ordering::Relaxed);
        // HB version: Release meets the Acquire in `check`.
        self.version.store(LAYOUT_VERSION, Ordering::Release);
    }

    /// Checks that the file is ready and of this kind.
    ///
    /// # Errors
    /// The reason why it is not.
    pub fn check(&self, kind: Kind) -> Result<(), InvalidPreamble> {
        // HB version: Acquire meets the Release in `publish`.
        let version = self.version.load(Ordering::Acquire);
        check(kind, version, self.magic.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed))
    }
}

/// Checks that these words, read in this order, begin a finished file of this kind.
///
/// # Errors
/// The reason why they do not.
pub fn check(kind: Kind, version: u32, magic: u32, size: u64) -> Result<(), InvalidPreamble> {
    match version {
        // Before the version is there, no other word is valid.
        0 => Err(InvalidPreamble::NotYet),
        _ if magic != kind.magic() => {
            Err(InvalidPreamble::WrongMagic { found: magic, expected: kind.magic() })
        }
        LAYOUT_VERSION if size != kind.size() => {
            Err(InvalidPreamble::WrongSize { found: size, expected: kind.size() })
        }
        LAYOUT_VERSION => Ok(()),
        found => Err(InvalidPreamble::WrongVersion { found }),
    }
}
