//! Devices that a node offers.

use cgpu_client::device_id::DeviceId;
use cgpu_client::inventory::HostDevice;

use crate::capacity::{Capacity, MEMORY_STEP};
use crate::owner::OtherOwner;

/// How the compute of a device is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By weight, under all policies but 3.
    Weight,
    /// By percentage, under policy 3.
    Cores,
}

impl Mode {
    /// Returns its name, the value of the attribute `mode`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Cores => "cores",
        }
    }
}

/// What NVML says about a device, as far as it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Name of the product.
    pub product_name: Option<String>,
    /// Architecture, such as `Ampere`.
    pub architecture: Option<String>,
    /// Profile of a MIG instance, such as `1g.10gb`.
    pub mig_profile: Option<String>,
    /// Version of the driver, as the driver writes it.
    pub driver_version: Option<String>,
    /// Newest version of CUDA that the driver supports.
    pub cuda_driver_version: Option<String>,
    /// NUMA node of the GPU.
    pub numa_node: Option<u32>,
    /// PCIe root, such as `pci0000:00`.
    pub pcie_root: Option<String>,
}

impl Details {
    /// Returns these details, and others where there are none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            product_name: self.product_name.or(other.product_name),
            architecture: self.architecture.or(other.architecture),
            mig_profile: self.mig_profile.or(other.mig_profile),
            driver_version: self.driver_version.or(other.driver_version),
            cuda_driver_version: self.cuda_driver_version.or(other.cuda_driver_version),
            numa_node: self.numa_node.or(other.numa_node),
            pcie_root: self.pcie_root.or(other.pcie_root),
        }
    }
}

/// A GPU or MIG instance that the node offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its UUID, id and memory.
    pub host: HostDevice,
    /// How its compute is shared.
    pub mode: Mode,
    /// Largest sum of weights (`max_inst`), 1 to 25.
    pub max_weight: u32,
    /// Whether new claims may get it.
    pub healthy: bool,
    /// What gives it out as well. Then no new claim may get it.
    pub other_owner: Option<OtherOwner>,
    /// Attributes.
    pub details: Details,
}

impl Device {
    /// Returns its name in the pool: `gpu-0`, `gpu-0-mig-3`.
    #[must_use]
    pub fn name(&self) -> String {
        let id = self.host.id;
        match id.instance() {
            Some(instance) => format!("gpu-{}-mig-{instance}", id.gpu()),
            None => format!("gpu-{}", id.gpu()),
        }
    }

    /// Returns the id of the device of this name.
    #[must_use]
    pub fn id_of(name: &str) -> Option<DeviceId> {
        let rest = name.strip_prefix("gpu-")?;
        let Some((gpu, instance)) = rest.split_once("-mig-") else {
            return Some(DeviceId::of_gpu(rest.parse().ok()?));
        };
        Some(DeviceId::of_instance(gpu.parse().ok()?, instance.parse().ok()?))
    }

    /// Returns all that claims can consume of it.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        Capacity {
            memory: self.host.total.0 / MEMORY_STEP * MEMORY_STEP,
            weight: self.max_weight,
            cores: match self.mode {
                Mode::Weight => 0,
                Mode::Cores => 100,
            },
        }
    }

    /// Returns whether it can be shared: it has memory for one step, and is no GPU that is
    /// partitioned into instances without names.
    #[must_use]
    pub fn is_offered(&self) -> bool {
        !self.host.is_partitioned && self.capacity().memory > 0
    }
}

/// The devices of a node. The pool has the node's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Name of the node.
    pub node: String,
    /// Its devices, lost ones included.
    pub devices: Vec<Device>,
}

impl Pool {
    /// Returns the device of this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.is_offered() && device.name() == name)
    }
}
