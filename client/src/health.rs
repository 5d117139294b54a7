//! The health of a host's GPUs, as the monitor reports it: whether they answer, and which errors
//! (XID) they have reported. The reader decides which errors make a GPU unhealthy.

use serde::{Deserialize, Serialize};

/// The health of the host's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// All GPUs that NVML counts. A GPU with MIG enabled is one entry.
    pub gpus: Vec<GpuHealth>,
    /// Age of the report, in milliseconds.
    pub age_ms: u64,
    /// Whether the monitor receives error events.
    pub listening: bool,
}

/// The health of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHealth {
    /// NVML's index.
    pub index: u32,
    /// Whether it answers. If not, it has fallen off its bus or is as good as lost.
    pub answers: bool,
    /// Whether it has memory pages to retire, which takes a reset.
    #[serde(default)]
    pub needs_reset: bool,
    /// One entry per error number, at the last time it was reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<GpuError>,
}

/// An error that a GPU has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuError {
    /// The driver's XID; 0: not known.
    pub xid: u64,
    /// Time since the last report, in milliseconds.
    pub ago_ms: u64,
}
