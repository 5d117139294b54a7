//! Images from this host's files, under the names in examples and manifests.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use cgpu_e2e::{Fixture, Outcome, find, furnish, install, needed};
use serde_json::json;

/// The image of each pod's sandbox.
pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// The examples' images, that of our own programs, and that of the lab.
const NAMES: [&str; 6] = [
    "docker.io/cheyang/gpu-player:v2",
    "registry.cn-shanghai.aliyuncs.com/tensorflow-samples/tensorflow-gpu-mem:10.0-runtime-centos7",
    "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:tensorflow-1.5",
    "docker.io/4pdosc/ai-benchmark:2.4.1-gpu",
    concat!("docker.io/library/cgpu:", env!("CARGO_PKG_VERSION")),
    "docker.io/library/cgpu-lab:1",
];
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Prints the sizes of its GPUs and stays.
const CONTAINER_SCRIPT: &str = "#!/bin/sh\ntrap 'exit 0' TERM\nmeminfo\nsleep 100000 &\nwait\n";

/// What the image of the chart has besides, as the package does: the files that `cgpu-node`
/// installs, and tools of its scripts.
const PACKAGED: [&str; 6] = [
    "cgpu",
    "cgpu-monitor",
    "cgpu-runtime",
    "libcgpu.so",
    "sim/libcuda.so.1",
    "sim/libnvidia-ml.so.1",
];
const TOOLS: [&str; 23] = [
    "awk", "chmod", "cksum", "cp", "curl", "cut", "date", "dirname", "grep", "head", "id", "ln",
    "mkdir", "mktemp", "mv", "nsenter", "readlink", "rm", "rmdir", "sed", "sort", "tail", "tr",
];

/// Makes an archive of the images. With a program kube-scheduler, also its image and what the
/// chart's DaemonSet `cgpu-node` needs.
pub(super) fn archive(
    fixture: &Fixture,
    folder: &Path,
    scheduler: Option<&Path>,
) -> std::path::PathBuf {
    let rootfs = folder.join("rootfs");
    furnish(fixture, &rootfs);
    let put = |name: &str, from: &Path| {
        let to = rootfs.join(name);
        fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
        fs::copy(from, to).expect("a copy");
    };
    fs::copy(rootfs.join("bin/sh"), rootfs.join("bin/bash")).expect("a copy");
    for name in ["bin/player", "gpushare/run.sh"] {
        let to = rootfs.join(name);
        fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
        fs::write(&to, CONTAINER_SCRIPT).expect("a script");
        fs::set_permissions(&to, Permissions::from_mode(0o755)).expect("a script");
    }
    for name in
        ["cgpu-device-plugin", "cgpu-dra-controller", "cgpu-dra-driver", "cgpu-scheduler-extender"]
    {
        let program = fixture.dist().file(name);
        put(&format!("opt/cgpu/{name}"), &program);
        for library in needed(&program) {
            put(
                library.strip_prefix("/").expect("an absolute path").to_str().expect("a name"),
                &library,
            );
        }
    }
    let mut names: Vec<String> = NAMES.map(str::to_owned).into();
    if let Some(scheduler) = scheduler {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let entries = fs::read_dir(sources).expect("the scripts").flatten();
        for entry in entries.filter(|entry| entry.path().is_file()) {
            put(&format!("opt/cgpu/deploy/{}", entry.file_name().to_string_lossy()), &entry.path());
        }
        for name in PACKAGED {
            put(&format!("opt/cgpu/{name}"), &fixture.dist().file(name));
        }
        let tools = TOOLS.map(|name| find(name).unwrap_or_else(|| panic!("no {name}")));
        install(&rootfs, &tools);
        put("bin/kube-scheduler", scheduler);
        let mut command = Command::new(scheduler);
        command.arg("--version");
        let printed = Outcome::of(command).exits(0).stdout;
        let version = printed.split_whitespace().next_back().expect("a version");
        names.push(format!("registry.k8s.io/kube-scheduler:{version}"));
    }
    let machine = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let configuration = |program: &[&str], sum: &str| {
        json!({
            "architecture": machine, "os": "linux",
            // The tests' shim is built for this system.
            "config": {"Cmd": program, "Env": [PATH, "NEW_GLIBC=allow"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]},
        })
        .to_string()
    };
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(folder);
        Outcome::of(command).exits(0).stdout
    };
    let sum = shell("tar -C rootfs -cf layer.tar . && sha256sum layer.tar | cut -d' ' -f1");
    fs::write(folder.join("pause.json"), configuration(&["sleep", "infinity"], sum.trim()))
        .expect("a file");
    fs::write(folder.join("player.json"), configuration(&["player"], sum.trim())).expect("a file");
    let manifest = json!([
        {"Config": "pause.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"]},
        {"Config": "player.json", "RepoTags": names, "Layers": ["layer.tar"]},
    ]);
    fs::write(folder.join("manifest.json"), manifest.to_string()).expect("a file");
    shell(
        "tar -cf images.tar manifest.json pause.json player.json layer.tar && rm -rf rootfs layer.tar",
    );
    folder.join("images.tar")
}
