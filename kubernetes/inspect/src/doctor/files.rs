//! A node, as its own files have it: what containers need, what the engines are told, whether the plugin is there.

use std::fs;
use std::path::{Path, PathBuf};

use super::causes::{Cause, Findings};

/// What a container with a slice is made with.
const REQUIRED_FILES: [&str; 2] = ["/usr/bin/cgpu-runtime", "/usr/lib/cgpu/libcgpu.so"];
/// The plugin's socket in the kubelet's folder: the kubelet removes all of them when it starts, and the plugin makes its own anew.
const SOCKET: &str = "/var/lib/kubelet/device-plugins/cgpu-mem.sock";

/// Engines of Kubernetes: a file of theirs, and the folder of more of them.
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

/// The texts of what an engine reads.
fn texts(root: &Path, file: &str, folder: &str) -> Vec<String> {
    let more =
        fs::read_dir(below(root, folder)).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = [below(root, file)].into_iter().chain(more);
    files.filter_map(|file| fs::read_to_string(file).ok()).collect()
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
