//! The first 16 bytes of both files: version, magic, size. They tell a file that is ready from one that is not, from one of
//! another version, and from one that is broken.
//!
//! The version word is the one that publishes: everything else is in place before it is stored. Nobody waits for it without
//! bound; "not yet" is an answer like any other.

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
    /// Its name in the container's directory.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Grant => "grant",
        }
    }

    /// Its magic.
    #[must_use]
    pub const fn magic(self) -> u32 {
        match self {
            Self::Use => USE_MAGIC,
            Self::Grant => GRANT_MAGIC,
        }
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn size(self) -> u64 {
        (match self {
            Self::Use => size_of::<Use>(),
            Self::Grant => size_of::<Grant>(),
        }) as u64
    }
}

/// Why a file's first bytes do not make it one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPreamble {
    /// It is being made: look again shortly, and not for ever.
    NotYet,
    /// It is ready, but of another layout.
    WrongVersion {
        /// What its version word says.
        found: u32,
    },
    /// Its magic is not this kind's.
    WrongMagic {
        /// What is there.
        found: u32,
        /// What should be.
        expected: u32,
    },
    /// It is not as long as it should be.
    WrongSize {
        /// Its length, or what its header gives as such.
        found: u64,
        /// What should be.
        expected: u64,
    },
}

impl fmt::Display for InvalidPreamble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet => {
                write!(
                    f,
                    "it is still being made, or whoever made it died: if this stays so, remove it"
                )
            }
            Self::WrongVersion { found } => write!(
                f,
                "expected layout version {LAYOUT_VERSION}, found {found}: use the same release of cgpu inside and outside of \
                 the container, and remove the file when nobody uses it"
            ),
            Self::WrongMagic { found, expected } => {
                write!(
                    f,
                    "expected magic {expected:#010x}, found {found:#010x}: this is not a file of cgpu; remove it"
                )
            }
            Self::WrongSize { found, expected } => {
                write!(
                    f,
                    "expected {expected} bytes, found {found}: the file was cut short or replaced; remove it"
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
    /// Publishes the file: everything stored before is seen by whoever finds it ready.
    pub fn publish(&self, kind: Kind) {
        self.magic.store(kind.magic(), Ordering::Relaxed);
        self.size.store(kind.size(), Ordering::Relaxed);
        // HB version: Release meets the Acquire in `check`.
        self.version.store(LAYOUT_VERSION, Ordering::Release);
    }

    /// Whether the file is ready and of this kind.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, kind: Kind) -> Result<(), InvalidPreamble> {
        // HB version: Acquire meets the Release in `publish`.
        let version = self.version.load(Ordering::Acquire);
        check(kind, version, self.magic.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed))
    }
}

/// Whether these words, read in this order, begin a file of this kind that is ready.
///
/// # Errors
/// Why not.
pub fn check(kind: Kind, version: u32, magic: u32, size: u64) -> Result<(), InvalidPreamble> {
    match version {
        // Nothing else is to be believed before the version is there.
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
