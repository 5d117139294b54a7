//! What a monitor's status says of its host. The command line and the monitor's web page show the
//! same: the report of `cgpu smi`, and the causes of `cgpu doctor`.
//!
//! | module | what it is |
//! |---|---|
//! | [`report`] | the status as `cgpu smi --json` prints it; names of simulated GPUs |
//! | [`causes`] | the table of causes of a host |
//! | [`status`] | pure: finds causes in a status |

#![forbid(unsafe_code)]

pub mod causes;
pub mod report;
pub mod status;

/// Formats bytes as MiB, rounded up, so that only 0 bytes show as 0.
#[must_use]
pub fn mib(bytes: u64) -> String {
    bytes.div_ceil(1 << 20).to_string()
}
