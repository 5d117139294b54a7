//! What NVML, or else the monitor, and the kernel say about a device.

use std::path::Path;

use cgpu_client::inventory::HostDevice;
use cgpu_client::message::GpuStatus;
use cgpu_kubernetes_dra::device::Details;
use cgpu_kubernetes_node::pci::Place;
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
    let place = bus_id.map(|bus_id| Place::of(pci_devices, &bus_id)).unwrap_or_default();
    Details {
        mig_profile: name.as_deref().filter(|_| host.id.is_instance()).and_then(mig_profile),
        product_name: name,
        architecture: whole
            .and_then(|device| device.architecture().ok())
            .map(|architecture| architecture.to_string()),
        driver_version: nvml.sys_driver_version().ok(),
        cuda_driver_version: cuda,
        numa_node: place.numa_node,
        pcie_root: place.pcie_root,
    }
}

/// Returns what the monitor reports of a device. It reports no architecture and no versions.
pub(crate) fn reported(gpu: &GpuStatus, pci_devices: &Path) -> Details {
    let place = Place::of(pci_devices, &gpu.pci_bus_id);
    Details {
        mig_profile: mig_profile(&gpu.name).filter(|_| gpu.index.is_instance()),
        product_name: Some(gpu.name.clone()),
        numa_node: place.numa_node,
        pcie_root: place.pcie_root,
        ..Details::default()
    }
}

/// Returns the profile in the name of a MIG instance, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
fn mig_profile(name: &str) -> Option<String> {
    let (_, profile) = name.rsplit_once(" MIG ")?;
    Some(profile.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_is_in_the_name_of_an_instance() {
        assert_eq!(mig_profile("NVIDIA A100-SXM4-40GB MIG 1g.5gb").as_deref(), Some("1g.5gb"));
        assert_eq!(mig_profile("NVIDIA A100-SXM4-40GB"), None);
    }
}
