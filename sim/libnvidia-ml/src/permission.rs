//! Functions for root only.

use crate::answer::{Answer, NO_PERMISSION};

/// Fails unless the process is root's.
pub(crate) fn require_root() -> Answer {
    // SAFETY: queries the process's user; cannot fail.
    if unsafe { libc::geteuid() } == 0 { Ok(()) } else { Err(NO_PERMISSION) }
}
