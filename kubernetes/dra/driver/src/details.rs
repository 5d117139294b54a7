//! What NVML, or else the monitor, and the kernel say about a device.

use std::fs;
use std::path::{Path, PathBuf};

use cgpu_client::inventory::HostDevice;
use cgpu_client::message::GpuStatus;
use cgpu_kubernetes_dra::device::Details;
use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};

/// Reads what is known of a device. What cannot be read is left out. `pci_devices` is the kernel's
/// folder of PCI devices.
pub(crate) fn read(nvml: &Nvml, host: &HostDevice, pci_devices: &Path) -> Details {
    let whole = nvml.device_by_index(host.id.gpu()).ok();
    let own = nvml.device_by_uuid(host.name()).ok();
    let name = own.as_ref().or(whole.as_ref()).and_then(|device| device.name().ok());
    let cuda = nvml.sys_cuda_driver_version().ok().map(|version| {
        let (major, minor) =
            (cuda_driver_version_major(version), cuda_driver_version_minor(version));
        format!("{major}.{minor}")
    });
    let bus_id = whole.as_ref().and_then(|device| device.pci_info().ok()).map(|pci| pci.bus_id);
    let kernels = bus_id.and_then(|bus_id| kernel_device(pci_devices, &bus_id));
    Details {
        mig_profile: name.as_deref().filter(|_| host.id.is_instance()).and_then(mig_profile),
        product_name: name,
        architecture: whole
            .and_then(|device| device.architecture().ok())
            .map(|architecture| architecture.to_string()),
        driver_version: nvml.sys_driver_version().ok(),
        cuda_driver_version: cuda,
        numa_node: kernels.as_deref().and_then(numa_node),
        pcie_root: kernels.as_deref().and_then(pcie_root),
    }
}

/// Returns what the monitor reports of a device. It reports no architecture and no versions.
pub(crate) fn reported(gpu: &GpuStatus, pci_devices: &Path) -> Details {
    let kernels = kernel_device(pci_devices, &gpu.pci_bus_id);
    Details {
        mig_profile: mig_profile(&gpu.name).filter(|_| gpu.index.is_instance()),
        product_name: Some(gpu.name.clone()),
        numa_node: kernels.as_deref().and_then(numa_node),
        pcie_root: kernels.as_deref().and_then(pcie_root),
        ..Details::default()
    }
}

/// Returns the profile in the name of a MIG instance, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
fn mig_profile(name: &str) -> Option<String> {
    let (_, profile) = name.rsplit_once(" MIG ")?;
    Some(profile.to_owned())
}

/// Returns the kernel's folder of a PCI device. NVML writes the domain with eight digits and in
/// capitals: `00000000:3B:00.0`.
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

    #[test]
    fn profile_is_in_the_name_of_an_instance() {
        assert_eq!(mig_profile("NVIDIA A100-SXM4-40GB MIG 1g.5gb").as_deref(), Some("1g.5gb"));
        assert_eq!(mig_profile("NVIDIA A100-SXM4-40GB"), None);
    }
}
