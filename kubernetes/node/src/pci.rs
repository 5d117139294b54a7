//! Where GPUs are in their machine, as the kernel's folder of PCI devices says.

use std::fs;
use std::path::{Path, PathBuf};

/// The kernel's folder of PCI devices.
pub const DEVICES: &str = "/sys/bus/pci/devices";

/// Where a PCI device is, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// PCIe root, such as `pci0000:3a`.
    pub pcie_root: Option<String>,
}

impl Place {
    /// Returns the place of a device of the kernel's folder `devices`. NVML writes the domain of
    /// `bus_id` with eight digits and in capitals: `00000000:3B:00.0`.
    #[must_use]
    pub fn of(devices: &Path, bus_id: &str) -> Self {
        let Some(device) = kernel_device(devices, bus_id) else { return Self::default() };
        Self { numa_node: numa_node(&device), pcie_root: pcie_root(&device) }
    }
}

impl Place {
    /// Returns the place of a simulated GPU, which the kernel does not know: it is the device in
    /// its PCI address, `00000000:07:0A.0` (`CGPU_SIM_GPUS` in `docs/internals/simulator.md`).
    #[must_use]
    pub fn of_simulated(bus_id: &str) -> Self {
        let device = bus_id.rsplit(':').next().and_then(|rest| rest.split_once('.'));
        match device.and_then(|(device, _)| u32::from_str_radix(device, 16).ok()) {
            None | Some(0) => Self::default(),
            Some(device) => Self {
                numa_node: Some(device >> 3),
                pcie_root: Some(format!("pci0000:{device:02x}")),
            },
        }
    }
}

/// Returns the kernel's folder of a PCI device.
fn kernel_device(devices: &Path, bus_id: &str) -> Option<PathBuf> {
    let (domain, rest) = bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let address = format!("{domain:04x}:{}", rest.to_ascii_lowercase());
    fs::canonicalize(devices.join(address)).ok()
}

/// Returns the PCIe root of a device: the part of its path like `pci0000:3a`.
fn pcie_root(device: &Path) -> Option<String> {
    let parts = device.components().filter_map(|part| part.as_os_str().to_str());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_hexdigit());
    let is_root = |part: &&str| {
        let number = part.strip_prefix("pci").and_then(|rest| rest.split_once(':'));
        number.is_some_and(|(domain, bus)| is_number(domain) && is_number(bus))
    };
    parts.into_iter().find(is_root).map(str::to_owned)
}

/// Returns the NUMA node of a device; the kernel writes -1 for none.
fn numa_node(device: &Path) -> Option<u32> {
    fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn place_of_a_simulated_gpu_is_in_its_address() {
        let place = Place::of_simulated("00000000:07:0A.0");
        assert_eq!((place.numa_node, place.pcie_root.as_deref()), (Some(1), Some("pci0000:0a")));
        assert_eq!(Place::of_simulated("00000000:08:00.0"), Place::default());
        assert_eq!(Place::of_simulated(""), Place::default());
    }

    #[test]
    fn pcie_root_and_numa_node_are_those_of_the_kernel() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
        let links = root.path().join("bus");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(&links).unwrap();
        symlink(&device, links.join("0000:3b:00.0")).unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        let found = kernel_device(&links, "00000000:3B:00.0").unwrap();
        assert_eq!(
            (pcie_root(&found).as_deref(), numa_node(&found)),
            (Some("pci0000:3a"), Some(1))
        );
        fs::write(device.join("numa_node"), "-1\n").unwrap();
        assert_eq!(numa_node(&found), None);
        assert_eq!(kernel_device(&links, "00000001:3B:00.0"), None);
        assert_eq!(pcie_root(Path::new("/sys/devices/platform/pci:x/0000:3b:00.0")), None);
    }
}
