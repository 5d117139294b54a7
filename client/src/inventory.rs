//! The GPUs of a host, as the monitor reports them: all or none.

use std::path::PathBuf;

use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use serde::{Deserialize, Serialize};

use crate::device_id::DeviceId;

/// A GPU of the host, or a MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its name in the control tree.
    pub id: DeviceId,
    /// Its memory.
    pub total: Bytes,
    /// Whether MIG is enabled on it, and it has no instances or the driver cannot distinguish them.
    pub is_partitioned: bool,
}

impl HostDevice {
    /// Returns the driver's name of the device. The bytes of a UUID do not tell a MIG instance from
    /// a GPU.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.uuid.to_string();
        if self.id.is_instance() { name.replacen("GPU", "MIG", 1) } else { name }
    }
}

/// The host's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// All devices of the host.
    pub gpus: Vec<ListedDevice>,
    /// Age of NVML's report, in milliseconds.
    pub age_ms: u64,
    /// Directory of the simulated GPUs' state, if they are simulated; empty: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<PathBuf>,
    /// Whether the limits of a GPU's containers may exceed its memory.
    pub allow_overcommit: bool,
}

/// A device in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedDevice {
    /// [`HostDevice::id`].
    pub index: DeviceId,
    /// `GPU-...`.
    pub uuid: String,
    /// Its memory in bytes.
    pub memory_total: u64,
    /// [`HostDevice::is_partitioned`].
    #[serde(default)]
    pub is_partitioned: bool,
}

impl From<&HostDevice> for ListedDevice {
    fn from(found: &HostDevice) -> Self {
        Self {
            index: found.id,
            uuid: found.uuid.to_string(),
            memory_total: found.total.0,
            is_partitioned: found.is_partitioned,
        }
    }
}

impl TryFrom<&ListedDevice> for HostDevice {
    type Error = cgpu_shm::uuid::NotAUuid;

    fn try_from(listed: &ListedDevice) -> Result<Self, Self::Error> {
        Ok(Self {
            uuid: listed.uuid.parse()?,
            id: listed.index,
            total: Bytes(listed.memory_total),
            is_partitioned: listed.is_partitioned,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_survives_a_round_trip_through_json() {
        for (id, is_partitioned) in [("0", false), ("1", true), ("3.2", false)] {
            let found = HostDevice {
                uuid: Uuid([7; 16]),
                id: id.parse().unwrap(),
                total: Bytes(15109 << 20),
                is_partitioned,
            };
            let line = serde_json::to_string(&ListedDevice::from(&found)).unwrap();
            let listed: ListedDevice = serde_json::from_str(&line).unwrap();
            assert_eq!(HostDevice::try_from(&listed), Ok(found), "{line}");
        }
    }
}
