//! Command line of the device plugin.

use std::path::PathBuf;

use cgpu_kubernetes_client::Access;
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::unit::Unit;
use clap::Parser;

/// Offer units of the node's GPUs to the kubelet, and bind them to containers
#[derive(Debug, Parser)]
#[command(name = "cgpu-device-plugin", version)]
pub(crate) struct Options {
    /// Name of the node
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node_name: String,
    /// Unit of aliyun.com/gpu-mem: GiB, MiB or 128MiB
    #[arg(long, value_name = "UNIT", default_value = "GiB", value_parser = unit)]
    pub(crate) memory_unit: Unit,
    /// Offer nvidia.com/gpu as well, as HAMi defines it
    #[arg(long)]
    pub(crate) hami: bool,
    /// Resources of device plugins that give out other GPUs than this plugin, such as
    /// nvidia.com/gpu
    #[arg(long, value_name = "RESOURCE,...", value_delimiter = ',')]
    pub(crate) disjoint_resources: Vec<String>,
    /// Let the annotation cgpu.dev/resize raise a container beyond what it requested: where an
    /// admission policy checks the permission of its author
    #[arg(long)]
    pub(crate) allow_growth: bool,
    /// Seconds without errors after which a GPU that answers is healthy again
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) recovery: u64,
    /// Errors (XID) to ignore, in addition to those caused by programs
    #[arg(long, value_name = "XID,...", value_delimiter = ',')]
    pub(crate) ignore_xids: Vec<u64>,
    /// Folder of the monitor, where the socket for cgpu-runtime is created
    #[arg(long, value_name = "DIR", default_value = cgpu_shm::paths::RUN)]
    pub(crate) root: PathBuf,
    /// Folder of device plugins of the kubelet
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    pub(crate) kubelet_dir: PathBuf,
    /// Folder of CDI specifications of the engines; it must persist over a restart of the node,
    /// like the kubelet's state
    #[arg(long, value_name = "DIR", default_value = "/etc/cdi")]
    pub(crate) cdi_dir: PathBuf,
    /// The kernel's folder of PCI devices, which has NUMA node and PCIe root of each GPU
    #[arg(long, value_name = "DIR", default_value = cgpu_kubernetes_node::pci::DEVICES)]
    pub(crate) pci_devices: PathBuf,
    /// Create no CDI devices: for engines that cannot resolve them
    #[arg(long)]
    pub(crate) no_cdi: bool,
    /// Path of cgpu-runtime on the host
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/cgpu-runtime")]
    pub(crate) runtime: PathBuf,
    #[command(flatten)]
    pub(crate) access: Access,
}

impl Options {
    pub(crate) fn dialects(&self) -> Dialects {
        Dialects { hami: self.hami }
    }
}

fn unit(name: &str) -> Result<Unit, String> {
    Unit::named(name).ok_or_else(|| {
        let all: Vec<&str> = Unit::ALL.into_iter().map(Unit::name).collect();
        format!("expected one of {}", all.join(", "))
    })
}
