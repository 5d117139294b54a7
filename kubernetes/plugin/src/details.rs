//! What the GPUs are and where: names of products, NUMA nodes, PCIe roots.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cgpu_client::message::GpuStatus;
use cgpu_kubernetes_core::gpus::{Inventory, Locality};
use cgpu_kubernetes_core::names::annotation;
use cgpu_kubernetes_core::object::Node;
use cgpu_kubernetes_node::gpus::NodeGpu;
use cgpu_kubernetes_node::monitor::{self, are_simulated};
use cgpu_kubernetes_node::pci::Place;
use nvml_wrapper::Nvml;

const NVML: &str = "libnvidia-ml.so.1";
const MONITOR_TIMEOUT: Duration = Duration::from_secs(2);

/// What is known of a GPU besides its UUID and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Details {
    pub(crate) product: Option<String>,
    pub(crate) locality: Locality,
}

/// Details of GPUs by name. They are read once: reading them opens the driver.
#[derive(Debug)]
pub(crate) struct DetailsReader {
    /// Folder of the monitor.
    pub(crate) root: PathBuf,
    /// Folder of the kernel's PCI devices.
    pub(crate) pci_devices: PathBuf,
    pub(crate) known: BTreeMap<String, Details>,
}

impl DetailsReader {
    /// Reads the details of GPUs that are not known yet, from NVML or else from the monitor.
    pub(crate) fn read(&mut self, gpus: &[NodeGpu]) {
        if self.are_known(gpus) {
            return;
        }
        let nvml = Nvml::builder().lib_path(NVML.as_ref()).init().ok();
        let reported = if nvml.is_none() { self.reported() } else { Vec::new() };
        for gpu in gpus {
            let host = &gpu.device;
            let found = match &nvml {
                Some(nvml) => of_nvml(nvml, gpu),
                None => {
                    let of_gpu = reported.iter().find(|it| it.index == host.id);
                    of_gpu.map(|it| (it.name.clone(), it.pci_bus_id.clone()))
                }
            };
            if let Some((product, bus_id)) = found.filter(|(product, _)| !product.is_empty()) {
                let place = Place::of(&self.pci_devices, &bus_id);
                let is_unknown = place == Place::default() && are_simulated(&self.root);
                let Place { numa_node, pcie_root } =
                    if is_unknown { Place::of_simulated(&bus_id) } else { place };
                let locality = Locality { numa_node, pcie_root };
                self.known.insert(host.name(), Details { product: Some(product), locality });
            }
        }
    }

    /// Returns whether nothing is left to be read.
    pub(crate) fn are_known(&self, gpus: &[NodeGpu]) -> bool {
        gpus.iter().all(|gpu| self.known.contains_key(&gpu.device.name()))
    }

    /// Returns the details of a GPU; those that are written on the node if it does not answer.
    pub(crate) fn of(&self, name: &str, node: &Node) -> Details {
        self.known.get(name).cloned().or_else(|| earlier(name, node)).unwrap_or_default()
    }

    fn reported(&self) -> Vec<GpuStatus> {
        let monitor = monitor::connect(&self.root, MONITOR_TIMEOUT).ok();
        let status = monitor.and_then(|mut monitor| monitor.status().ok());
        status.map_or_else(Vec::new, |status| status.gpus)
    }
}

/// Returns the name of a device's product, and the PCI address of its GPU.
fn of_nvml(nvml: &Nvml, gpu: &NodeGpu) -> Option<(String, String)> {
    let whole = nvml.device_by_index(gpu.device.id.gpu()).ok()?;
    let bus_id = whole.pci_info().map_or_else(|_| String::new(), |pci| pci.bus_id);
    let own = nvml.device_by_uuid(gpu.device.name()).ok();
    Some((own.as_ref().unwrap_or(&whole).name().ok()?, bus_id))
}

fn earlier(name: &str, node: &Node) -> Option<Details> {
    let text = node.metadata.annotations.get(annotation::GPUS)?;
    let inventory: Inventory = serde_json::from_str(text).ok()?;
    let entry = inventory.gpus.into_iter().find(|entry| entry.uuid == name)?;
    Some(Details { product: entry.product, locality: entry.locality })
}
