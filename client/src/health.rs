//! The health of a host's GPUs, as the monitor reports it: whether they answer, and which errors
//! (XID) they have reported. Which errors make a GPU unhealthy is for the reader to say.

use serde::{Deserialize, Serialize};

/// What a monitor tells of its host's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// All that NVML counts, those that are cut into instances (MIG) as one.
    pub gpus: Vec<GpuHealth>,
    /// How long ago they were asked, in milliseconds.
    pub age_ms: u64,
    /// Whether errors would be told of.
    pub listening: bool,
}

/// How a GPU is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHealth {
    /// Its number on the host.
    pub index: u32,
    /// Not so: it has fallen off its bus, or as good as that.
    pub answers: bool,
    /// It has pages to retire, and is to be reset before.
    #[serde(default)]
    pub needs_reset: bool,
    /// By number, each when it was last reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<GpuError>,
}

/// An error that a GPU has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuError {
    /// The driver's number for it; 0: it is not known.
    pub xid: u64,
    /// How long ago it was last reported, in milliseconds.
    pub ago_ms: u64,
}
