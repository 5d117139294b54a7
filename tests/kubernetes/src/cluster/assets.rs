//! The programs of a real cluster, whose paths the environment gives.

use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::skip;

const TOOL: &str = "cluster";

#[derive(Clone, Debug)]
pub(super) struct Assets {
    pub(super) etcd: PathBuf,
    pub(super) api_server: PathBuf,
    pub(super) controllers: PathBuf,
    pub(super) scheduler: PathBuf,
    pub(super) kubelet: PathBuf,
    pub(super) containerd: PathBuf,
    pub(super) kubectl: PathBuf,
}

impl Assets {
    /// Finds the programs by envtest's variables. Returns None, after recording the skip, where one
    /// is missing or this user cannot start a cluster.
    #[must_use]
    pub(super) fn find(test: &str) -> Option<Self> {
        match Self::locate() {
            Ok(assets) => Some(assets),
            Err(reason) => {
                skip(test, TOOL, &reason);
                None
            }
        }
    }

    fn locate() -> Result<Self, String> {
        let assets = Self {
            etcd: named("ETCD")?,
            api_server: named("KUBE_APISERVER")?,
            controllers: named("KUBE_CONTROLLER_MANAGER")?,
            scheduler: named("KUBE_SCHEDULER")?,
            kubelet: named("KUBELET")?,
            containerd: named("CONTAINERD")?,
            kubectl: named("KUBECTL").or_else(|_| on_path("kubectl"))?,
        };
        for beside in ["ctr", "containerd-shim-runc-v2"] {
            if !assets.beside_containerd(beside).is_file() {
                return Err(format!("there is no {beside} beside {}", assets.containerd.display()));
            }
        }
        for tool in ["runc", "ip", "unshare", "nsenter", "flock"] {
            on_path(tool)?;
        }
        let mut probe = Command::new("unshare");
        probe.args([
            "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "probe", "type", "bridge",
        ]);
        if !probe.output().is_ok_and(|output| output.status.success()) {
            return Err("a cluster needs root, and a network of its own with a bridge".to_owned());
        }
        Ok(assets)
    }

    pub(super) fn beside_containerd(&self, name: &str) -> PathBuf {
        self.containerd.with_file_name(name)
    }
}

fn named(name: &str) -> Result<PathBuf, String> {
    let variable = format!("TEST_ASSET_{name}");
    let path = std::env::var_os(&variable).map(PathBuf::from);
    let path = path.ok_or_else(|| format!("{variable} names no program of a real cluster"))?;
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("{variable} names {}, which is no file", path.display()))
    }
}

fn on_path(name: &str) -> Result<PathBuf, String> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&folders)
        .chain(["/usr/sbin", "/sbin"].map(|it| Path::new(it).to_owned()));
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| format!("there is no {name}"))
}
