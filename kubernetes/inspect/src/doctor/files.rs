//! Checks of a node's own files: the files that containers need, the engines' configuration, and
//! the plugin's socket.

use std::fs;
use std::path::{Path, PathBuf};

use super::causes::{Cause, Findings};

/// Files that a container with a slice needs.
const REQUIRED_FILES: [&str; 2] = ["/usr/bin/cgpu-runtime", "/usr/lib/cgpu/libcgpu.so"];
/// Socket of the plugin in the kubelet's folder. A kubelet that starts removes all sockets there;
/// then the plugin creates its own again.
const SOCKET: &str = "/var/lib/kubelet/device-plugins/cgpu-mem.sock";

/// Engines of Kubernetes: name, configuration file, and folder of further files.
const ENGINES: [(&str, &str, &str); 2] = [
    ("containerd", "/etc/containerd/config.toml", "/etc/containerd/conf.d"),
    ("CRI-O", "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"),
];

pub(super) fn examine(root: &Path, findings: &mut Findings) {
    let subject = "this node";
    findings.examined("this node's files");
    for path in REQUIRED_FILES {
        if !below(root, path).is_file() {
            findings.add(Cause::RuntimeMissing, subject, path);
        }
    }
    let mut is_configured = false;
    for (engine, file, folder) in ENGINES {
        let texts = texts(root, file, folder);
        let lines = || texts.iter().flat_map(|text| text.lines()).map(str::trim);
        if !lines().any(|line| !line.starts_with('#') && line.contains("cgpu-runtime")) {
            continue;
        }
        is_configured = true;
        let is_default = |line: &str| {
            let (name, value) = line.split_once('=').unwrap_or_default();
            matches!(name.trim(), "default_runtime_name" | "default_runtime")
                && value.trim_start().starts_with("\"cgpu\"")
        };
        if !lines().any(is_default) {
            findings.add(Cause::NotDefault, subject, format!("{engine}: {file}"));
        }
    }
    if !is_configured {
        findings.add(Cause::EngineUnconfigured, subject, "");
    }
    if !below(root, SOCKET).exists() {
        findings.add(Cause::PluginAbsent, subject, SOCKET);
    }
}

/// Returns the contents of an engine's configuration files.
fn texts(root: &Path, file: &str, folder: &str) -> Vec<String> {
    let more =
        fs::read_dir(below(root, folder)).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = [below(root, file)].into_iter().chain(more);
    files.filter_map(|file| fs::read_to_string(file).ok()).collect()
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
