//! The figures of a GPU's board, as NVML reports them.

use serde::{Deserialize, Serialize};

/// Temperature, power, clocks and link of a GPU. What NVML does not report is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Board {
    /// Temperature of the GPU, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// Power that the board draws, in milliwatts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<u32>,
    /// The limit in force of that power, in milliwatts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_mw: Option<u32>,
    /// Clock of the multiprocessors, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<u32>,
    /// The present link to the host; it may be slower than what both ends support.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
}

/// A PCIe link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Its generation.
    pub generation: u32,
    /// Its number of lanes.
    pub width: u32,
}
