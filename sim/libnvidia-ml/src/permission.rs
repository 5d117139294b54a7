//! What only root may do.

use crate::answer::{Answer, NO_PERMISSION};

/// Refuses everybody else.
pub(crate) fn demand_root() -> Answer {
    // SAFETY: asks who the process is; cannot fail.
    if unsafe { libc::geteuid() } == 0 { Ok(()) } else { Err(NO_PERMISSION) }
}
