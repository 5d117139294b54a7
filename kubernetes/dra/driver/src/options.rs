//! Command line of the driver.

use std::path::PathBuf;

use cgpu_kubernetes_client::Access;
use cgpu_kubernetes_dra::DRIVER;
use clap::Parser;

/// Publish the node's GPUs for dynamic resource allocation, and prepare claims of them
#[derive(Debug, Parser)]
#[command(name = "cgpu-dra-driver", version)]
pub(crate) struct Options {
    /// Name of the node
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node_name: String,
    /// Seconds without errors after which a GPU that answers is healthy again
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) recovery: u64,
    /// Errors (XID) to ignore, in addition to those caused by programs
    #[arg(long, value_name = "XID,...", value_delimiter = ',')]
    pub(crate) ignore_xids: Vec<u64>,
    /// Shortest time in seconds between two writes of a claim's status
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) status_interval: u64,
    /// Seconds after which a prepared claim is unprepared that the API server no longer has
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(crate) sweep_after: u64,
    /// Time in seconds in which the annotations of all prepared claims are read again; a node reads
    /// one claim a second at most
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) resize_interval: u64,
    /// Resources of device plugins that give out other GPUs than this driver's, such as
    /// nvidia.com/gpu
    #[arg(long, value_name = "RESOURCE,...", value_delimiter = ',')]
    pub(crate) disjoint_resources: Vec<String>,
    /// Folder of the monitor, where the limits of shares are written
    #[arg(long, value_name = "DIR", default_value = cgpu_shm::paths::RUN)]
    pub(crate) root: PathBuf,
    /// Folder of plugins of the kubelet; it must persist over a restart of the node
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins")]
    pub(crate) plugins_dir: PathBuf,
    /// Folder where the kubelet finds plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins_registry")]
    pub(crate) registry_dir: PathBuf,
    /// Folder of CDI specifications of the engines
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    pub(crate) cdi_dir: PathBuf,
    /// CDI kind of the vendor's devices, such as nvidia.com/gpu, if they are named by UUID
    #[arg(long, value_name = "KIND")]
    pub(crate) vendor_cdi_kind: Option<String>,
    /// Folder of the kernel's PCI devices, for the PCIe root and NUMA node of GPUs
    #[arg(long, value_name = "DIR", default_value = cgpu_kubernetes_node::pci::DEVICES)]
    pub(crate) pci_devices: PathBuf,
    /// Path of cgpu-runtime on the host
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/cgpu-runtime")]
    pub(crate) runtime: PathBuf,
    /// Configuration of cgpu-runtime, if it is not /etc/cgpu/runtime.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) runtime_config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) access: Access,
}

impl Options {
    /// Returns the driver's own folder.
    pub(crate) fn driver_dir(&self) -> PathBuf {
        self.plugins_dir.join(DRIVER)
    }
}
