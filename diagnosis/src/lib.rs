//! The engine of both doctors: `cgpu doctor` and `kubectl inspect gpushare doctor`.
//!
//! A doctor has a table of causes ([`causes!`]) and functions that check facts and add what they
//! find to [`Findings`]. Checks run in the order in which they are called; a finding that explains
//! all later ones is returned at once, so the later checks do not run.

#![forbid(unsafe_code)]

mod cause;
mod findings;
#[cfg(feature = "fixture")]
pub mod fixture;

pub use cause::{Cause, Entry, Severity};
pub use findings::{Findings, Options};

/// Exit status where the subject cannot be examined, as for arguments that are not understood.
pub const CANNOT_EXAMINE: u8 = 2;
