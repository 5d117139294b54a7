//! The programs of a real cluster, whose paths the environment gives, or that are in one folder.

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
        match Self::locate(None) {
            Ok(assets) => Some(assets),
            Err(missing) => {
                skip(test, TOOL, &missing[0]);
                None
            }
        }
    }

    /// Finds the programs by envtest's variables, else in this folder; and tools on the PATH.
    /// Returns everything that is missing.
    pub(super) fn locate(folder: Option<&Path>) -> Result<Self, Vec<String>> {
        let mut missing = Vec::new();
        let mut find = |name: &str| {
            named(name, folder).unwrap_or_else(|reason| {
                missing.push(reason);
                PathBuf::new()
            })
        };
        let mut assets = Self {
            etcd: find("etcd"),
            api_server: find("kube-apiserver"),
            controllers: find("kube-controller-manager"),
            scheduler: find("kube-scheduler"),
            kubelet: find("kubelet"),
            containerd: find("containerd"),
            kubectl: PathBuf::new(),
        };
        match named("kubectl", folder).or_else(|_| on_path("kubectl")) {
            Ok(kubectl) => assets.kubectl = kubectl,
            Err(reason) => missing.push(reason),
        }
        for beside in ["ctr", "containerd-shim-runc-v2"] {
            if assets.containerd.is_file() && !assets.beside_containerd(beside).is_file() {
                missing
                    .push(format!("there is no {beside} beside {}", assets.containerd.display()));
            }
        }
        let tools = ["runc", "ip", "unshare", "nsenter", "flock"];
        missing.extend(tools.into_iter().filter_map(|tool| on_path(tool).err()));
        if missing.is_empty() {
            assets.starts().map_err(|reason| vec![reason])
        } else {
            Err(missing)
        }
    }

    /// Tries whether this user can start a cluster.
    fn starts(self) -> Result<Self, String> {
        let mut probe = Command::new("unshare");
        probe.args([
            "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "probe", "type", "bridge",
        ]);
        if !probe.output().is_ok_and(|output| output.status.success()) {
            return Err("a cluster needs root, and a network of its own with a bridge".to_owned());
        }
        Ok(self)
    }

    pub(super) fn beside_containerd(&self, name: &str) -> PathBuf {
        self.containerd.with_file_name(name)
    }
}

fn named(name: &str, folder: Option<&Path>) -> Result<PathBuf, String> {
    let variable = format!("TEST_ASSET_{}", name.to_uppercase().replace('-', "_"));
    let Some(path) = std::env::var_os(&variable).map(PathBuf::from) else {
        let path = folder.map(|folder| folder.join(name)).filter(|path| path.is_file());
        let place = folder.map_or_else(String::new, |folder| {
            format!(", and there is no {name} in {}", folder.display())
        });
        return path.ok_or_else(|| format!("{variable} names no program of a real cluster{place}"));
    };
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
