//! The node's pool: its GPUs and their health, how the monitor shares each, and what they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cgpu_client::device_id::DeviceId;
use cgpu_client::inventory::HostDevice;
use cgpu_client::message::GpuStatus;
use cgpu_kubernetes_dra::device::{Details, Device, Mode, Pool};
use cgpu_kubernetes_dra::owner::OtherOwners;
use cgpu_kubernetes_dra::slices::Earlier;
use cgpu_kubernetes_node::gpus::{Gpus, NodeGpu};
use cgpu_kubernetes_node::monitor::{self, are_simulated};
use cgpu_kubernetes_node::owners::ObservedOwners;
use nvml_wrapper::Nvml;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::details;
use crate::options::Options;

const NVML: &str = "libnvidia-ml.so.1";
/// Interval at which the monitor's settings are read, and its timeout.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const MONITOR_TIMEOUT: Duration = Duration::from_secs(2);
/// Policy of fixed shares.
const FIXED: u32 = 3;
/// `max_inst` of a monitor without settings.
const DEFAULT_MAX_WEIGHT: u32 = 20;

/// PCIe root of simulated GPUs, which the kernel does not know.
const SIMULATED_PCIE_ROOT: &str = "pci0000:00";

/// The pool, or none while the GPUs are unknown.
pub(crate) type ObservedPool = Option<Arc<Pool>>;

/// Keeps the pool up to date, without end. `earlier` is what another instance has published.
pub(crate) async fn observe(
    options: &Options,
    earlier: Vec<Earlier>,
    mut gpus: watch::Receiver<Gpus>,
    mut owners: watch::Receiver<ObservedOwners>,
    pool: &watch::Sender<ObservedPool>,
) {
    let mut observer = Observer {
        node: options.node_name.clone(),
        root: options.root.clone(),
        pci_devices: options.pci_devices.clone(),
        reported: BTreeMap::new(),
        details: BTreeMap::new(),
        earlier: earlier.into_iter().map(|it| (it.host.name(), it.details)).collect(),
        last_message: String::new(),
    };
    loop {
        let found = gpus.borrow_and_update().clone();
        let others = owners.borrow_and_update().clone();
        if let (Some(found), Some(others)) = (found, others) {
            let read = tokio::task::spawn_blocking(move || {
                let pool = observer.pool(&found, &others);
                (observer, pool)
            });
            let Ok((same, now)) = read.await else { return };
            observer = same;
            pool.send_if_modified(|known| {
                let changes = known.as_deref() != Some(&now);
                if changes {
                    info!(devices = now.devices.len(), "the pool has changed");
                    *known = Some(Arc::new(now));
                }
                changes
            });
        }
        tokio::select! {
            changed = gpus.changed() => if changed.is_err() { return },
            changed = owners.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

struct Observer {
    node: String,
    root: PathBuf,
    /// Folder of the kernel's PCI devices.
    pci_devices: PathBuf,
    /// The last answer of the monitor: how it shares each GPU, and what the GPU is.
    reported: BTreeMap<DeviceId, GpuStatus>,
    /// Details by name: reading them opens the driver.
    details: BTreeMap<String, Details>,
    /// Details that another instance has published. A GPU that does not answer keeps them: a
    /// selector of a claim fails where an attribute that it names is absent.
    earlier: BTreeMap<String, Details>,
    last_message: String,
}

impl Observer {
    fn pool(&mut self, gpus: &[NodeGpu], others: &OtherOwners) -> Pool {
        if let Some(reported) = reported(&self.root) {
            self.reported = reported;
        }
        self.read_details(gpus);
        let device = |gpu: &NodeGpu| {
            let sharing = self.reported.get(&gpu.device.id).map(|gpu| (gpu.policy, gpu.max_inst));
            let (policy, max_weight) = sharing.unwrap_or((0, DEFAULT_MAX_WEIGHT));
            let name = gpu.device.name();
            let details = self.details.get(&name).or_else(|| self.earlier.get(&name));
            Device {
                host: gpu.device,
                mode: if policy == FIXED { Mode::Cores } else { Mode::Weight },
                max_weight,
                healthy: gpu.is_healthy,
                other_owner: others.owner(&name),
                details: details.cloned().unwrap_or_default(),
            }
        };
        Pool { node: self.node.clone(), devices: gpus.iter().map(device).collect() }
    }

    fn read_details(&mut self, gpus: &[NodeGpu]) {
        let is_new = |gpu: &&NodeGpu| !self.details.contains_key(&gpu.device.name());
        let new: Vec<HostDevice> = gpus.iter().filter(is_new).map(|gpu| gpu.device).collect();
        if new.is_empty() {
            return;
        }
        let nvml = Nvml::builder().lib_path(NVML.as_ref()).init();
        let root = are_simulated(&self.root).then(|| SIMULATED_PCIE_ROOT.to_owned());
        for host in new {
            let pci_devices = &self.pci_devices;
            let read = match &nvml {
                Ok(nvml) => Some(details::read(nvml, &host, pci_devices)),
                Err(_) => {
                    let reported = self.reported.get(&host.id).filter(|gpu| !gpu.name.is_empty());
                    reported.map(|gpu| details::reported(gpu, pci_devices))
                }
            };
            // They are read again until the monitor knows them.
            let Some(read) = read else { continue };
            let earlier = self.earlier.get(&host.name()).cloned().unwrap_or_default();
            let mut details = read.or(earlier);
            details.pcie_root = details.pcie_root.or_else(|| root.clone());
            self.details.insert(host.name(), details);
        }
        if let Err(error) = nvml {
            let why = format!("versions and architectures of the GPUs are not known: {error}");
            if self.last_message != why {
                warn!("{why}");
                self.last_message = why;
            }
        }
    }
}

/// Reads from the monitor what its GPUs are; none: there is no monitor that answers.
fn reported(root: &Path) -> Option<BTreeMap<DeviceId, GpuStatus>> {
    let mut monitor = monitor::connect(root, MONITOR_TIMEOUT).ok()?;
    let status = monitor.status().ok()?;
    Some(status.gpus.into_iter().map(|gpu| (gpu.index, gpu)).collect())
}
