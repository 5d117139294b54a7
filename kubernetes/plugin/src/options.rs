//! What the plugin is told.

use std::path::PathBuf;

use cgpu_kubernetes_client::Access;
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::unit::Unit;
use clap::Parser;

/// The kubelet's device plugin of cgpu: units of the node's GPUs, and whose they are.
#[derive(Debug, Parser)]
#[command(name = "cgpu-device-plugin", version)]
pub(crate) struct Options {
    /// The node's name
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node_name: String,
    /// What a unit of aliyun.com/gpu-mem is: GiB, MiB or 128MiB
    #[arg(long, value_name = "UNIT", default_value = "GiB", value_parser = unit)]
    pub(crate) memory_unit: Unit,
    /// Offer nvidia.com/gpu as well, with the meaning that HAMi gives it
    #[arg(long)]
    pub(crate) hami: bool,
    /// A GPU that reported an error is well again when it was quiet for so many seconds, and answers
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) recovery: u64,
    /// Errors (XID) that are no GPU's fault, beside those of programs
    #[arg(long, value_name = "XID,...", value_delimiter = ',')]
    pub(crate) ignore_xids: Vec<u64>,
    /// The monitor's root, where the socket for cgpu-runtime is made
    #[arg(long, value_name = "DIR", default_value = cgpu_shm::paths::RUN)]
    pub(crate) root: PathBuf,
    /// The kubelet's folder of device plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    pub(crate) kubelet_dir: PathBuf,
    /// Where engines look for CDI devices; it must outlast a restart of the node, as what the kubelet remembers does
    #[arg(long, value_name = "DIR", default_value = "/etc/cdi")]
    pub(crate) cdi_dir: PathBuf,
    /// Name no CDI devices: for engines that cannot resolve them
    #[arg(long)]
    pub(crate) no_cdi: bool,
    /// cgpu-runtime, as the host sees it
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
