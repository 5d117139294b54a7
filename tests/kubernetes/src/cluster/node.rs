//! A node: containerd and a kubelet, with cgpu installed by its scripts.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_e2e::{Dist, Outcome};

use super::assets::Assets;
use super::control_plane::{ControlPlane, SERVER};
use super::image::PAUSE;
use super::machine::{Daemon, Machine};
use super::until;

/// The names of nodes' control groups begin with it; the id of this process and the node follow.
const GROUP: &str = "cgpu-test-";

/// The description of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeSpec {
    /// Its name.
    pub name: &'static str,
    /// An address in 192.168.1.0/24, between 210 and 254.
    pub address: &'static str,
    /// Its simulated GPUs, as CGPU_SIM_GPUS lists them.
    pub gpus: &'static str,
    /// Whether pods claim its GPUs. Its engine then knows nothing of cgpu.
    pub is_claimed: bool,
}

/// A running node.
pub struct Node {
    /// Its description.
    pub node_spec: NodeSpec,
    machine: Machine,
    assets: Assets,
    containerd: Option<Daemon>,
    kubelet: Option<Daemon>,
    monitor: Option<Daemon>,
    /// The path below each hierarchy of control groups.
    group: String,
    arguments: Vec<String>,
}

/// Keeps what a node's programs write out of the host's files, and presets what a kubelet sets in
/// the kernel.
const SETUP: &str = r#"
mount --make-rshared /
mkdir -p "$1/kubelet" "$1/containerd" "$1/cgpu"
for folder in etc var opt run usr; do
    mkdir -p "$1/over/$folder" "$1/changes/$folder"
    mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$1/over/$folder,workdir=$1/changes/$folder" "/$folder"
done
mkdir -p /var/lib/kubelet /var/lib/containerd /run/cgpu /etc/cni/net.d /opt/cni/bin
mount --bind "$1/kubelet" /var/lib/kubelet
mount --bind "$1/containerd" /var/lib/containerd
mount -t tmpfs -o mode=755 none /run/cgpu
while read -r name value; do
    echo "$value" > "$1/${name##*/}"
    mount --bind "$1/${name##*/}" "/proc/sys/$name"
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END
rm -rf /run/systemd/system /run/containerd
"#;

impl Node {
    /// Starts the node without its kubelet.
    pub(super) fn start(
        machine: &Machine,
        assets: &Assets,
        plane: &ControlPlane,
        node_spec: NodeSpec,
        folder: &Path,
        index: usize,
        is_bare: bool,
    ) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let identity = format!("{GROUP}{}-{}", std::process::id(), node_spec.name);
        let part = machine.part(folder, SETUP, &[] as &[&OsStr]);
        let group = make_groups(&identity);
        let kubeconfig = plane.authority.kubeconfig(
            node_spec.name,
            &format!("system:node:{}", node_spec.name),
            Some("system:nodes"),
            SERVER,
        );
        let configuration = folder.join("kubelet.yaml");
        let text = kubelet(node_spec, &group, &plane.authority.certificate());
        fs::write(&configuration, text).expect("a configuration");
        let arguments = vec![
            format!("--config={}", configuration.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={}", node_spec.name),
            format!("--node-ip={}", node_spec.address),
        ];
        let mut node = Self {
            node_spec,
            machine: part,
            assets: assets.clone(),
            containerd: None,
            kubelet: None,
            monitor: None,
            group,
            arguments,
        };
        node.furnish(index);
        if is_bare {
            node.furnish_services(folder);
            node.run("systemctl", &["start", "containerd"]).exits(0);
            node.wait_for_containerd();
        } else {
            node.install();
            node.start_containerd();
            node.start_monitor();
        }
        node
    }

    /// Does what an administrator would: installs, and configures the engine.
    fn install(&self) {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let dist = Dist::find();
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        let install = path(sources.join("deploy/install.sh"));
        let built = path(dist.folder().to_owned());
        // All nodes share the network namespace.
        let monitor = format!("metrics = \"{}:9445\"\n", self.node_spec.address);
        self.write("/etc/cgpu/monitor.toml", &monitor);
        // The tests' shim is built for this system.
        let words = ["NEW_GLIBC=allow", "sh", &install, "--no-start", &built];
        self.machine.run("env", &words).exits(0);
        if !self.node_spec.is_claimed {
            self.machine.run("/usr/bin/cgpu", &["setup", "containerd", "--default"]).exits(0);
        }
    }

    /// Gives it a service manager, of which containerd is a service. The monitor will be one, with
    /// the simulated GPUs.
    fn furnish_services(&self, folder: &Path) {
        let (place, path) = self.containerd_command();
        let containerd = format!("#!/bin/sh\nexec env {path} {place}\n");
        let monitor = format!(
            "[Service]\nRuntimeDirectory=cgpu/gpus\n{}",
            self.monitor_variables().map(|it| format!("Environment={it}\n")).concat()
        );
        for (file, text) in [
            ("/usr/bin/systemctl", include_str!("systemctl.sh")),
            ("/etc/cgpu-tests/containerd", &containerd),
            ("/etc/cgpu-tests/group", &self.group),
            ("/etc/cgpu-tests/logs", &folder.to_string_lossy()),
            ("/etc/systemd/system/cgpu-monitor.service.d/sim.conf", &monitor),
        ] {
            self.write(file, text);
        }
        let made = ["755", "/usr/bin/systemctl", "/etc/cgpu-tests/containerd"];
        self.machine.run("chmod", &made).exits(0);
        self.machine.run("mkdir", &["-p", "/run/systemd/system"]).exits(0);
    }

    /// Configures network and engine, and declares the GPUs.
    fn furnish(&self, index: usize) {
        let cni = include_str!("cni.sh");
        let network = r#"{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"test"}]}"#;
        let containerd = format!(
            "version = 3\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = {PAUSE:?}\n\
             [plugins.'io.containerd.cri.v1.runtime']\n  restrict_oom_score_adj = true\n\
             [plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = 'runc'\n\
             [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n"
        );
        let runtime = format!("sim = {:?}\n", self.node_spec.gpus);
        for (file, text) in [
            ("/opt/cni/bin/test", cni),
            ("/opt/cni/bin/loopback", cni),
            ("/etc/cni/net.d/10-test.conflist", network),
            ("/run/subnet", &format!("192.168.{}", 2 + index)),
            ("/etc/containerd/config.toml", &containerd),
            ("/etc/cgpu/runtime.toml", &runtime),
        ] {
            self.write(file, text);
        }
        self.machine.run("chmod", &["755", "/opt/cni/bin/test", "/opt/cni/bin/loopback"]).exits(0);
    }

    /// Writes a file as the node sees it.
    pub fn write(&self, file: &str, text: &str) {
        let mut command = self.machine.inside("sh");
        command.args([
            "-c",
            "mkdir -p \"$(dirname \"$1\")\" && printf '%s' \"$2\" > \"$1\"",
            "sh",
            file,
            text,
        ]);
        Outcome::of(command).exits(0);
    }

    /// Runs a program on the node to its end.
    #[must_use]
    pub fn run(&self, program: &str, arguments: &[&str]) -> Outcome {
        self.machine.run(program, arguments)
    }

    fn ctr(&self, arguments: &[&str]) -> Outcome {
        let all: Vec<&str> = ["--namespace", "k8s.io"].iter().chain(arguments).copied().collect();
        self.machine.run(self.assets.beside_containerd("ctr"), &all)
    }

    /// Loads an archive of images.
    pub(super) fn import(&self, archive: &Path) {
        self.ctr(&["images", "import", &archive.to_string_lossy()]).exits(0);
    }

    /// Returns containerd, and the PATH by which it finds its programs.
    fn containerd_command(&self) -> (String, String) {
        let folder = self.assets.containerd.parent().unwrap_or(Path::new("/"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("PATH={}:{path}:/usr/sbin:/sbin", folder.display());
        (self.assets.containerd.to_string_lossy().into_owned(), path)
    }

    fn wait_for_containerd(&self) {
        until("containerd answers", || (self.ctr(&["version"]).code() == Some(0)).then_some(()));
    }

    /// Starts containerd and waits until it answers.
    pub fn start_containerd(&mut self) {
        let (containerd, path) = self.containerd_command();
        let daemon = self.machine.start("containerd", Path::new("env"), &[path, containerd]);
        self.containerd = Some(daemon);
        self.wait_for_containerd();
    }

    /// Starts the kubelet.
    pub fn start_kubelet(&mut self) {
        self.kubelet = Some(self.machine.start("kubelet", &self.assets.kubelet, &self.arguments));
    }

    fn monitor_variables(&self) -> [String; 3] {
        let gpus = self.node_spec.gpus;
        [
            "LD_LIBRARY_PATH=/usr/lib/cgpu/sim".to_owned(),
            format!("CGPU_SIM_GPUS={gpus}"),
            format!("CGPU_SIM_STATE=/run/cgpu/gpus/{}", gpus.replace('/', "+")),
        ]
    }

    /// Starts the monitor on the node's simulated GPUs.
    pub fn start_monitor(&mut self) {
        self.machine.run("mkdir", &["-p", "/run/cgpu/gpus"]).exits(0);
        let mut arguments: Vec<String> = self.monitor_variables().into();
        arguments.push("/usr/bin/cgpu-monitor".to_owned());
        self.monitor = Some(self.machine.start("cgpu-monitor", Path::new("env"), &arguments));
    }

    /// Stops the kubelet.
    pub fn stop_kubelet(&mut self) {
        self.kubelet.take().into_iter().for_each(|daemon| daemon.end("TERM"));
    }

    /// Stops containerd; containers go on.
    pub fn stop_containerd(&mut self) {
        self.containerd.take().into_iter().for_each(|daemon| daemon.end("TERM"));
    }

    /// Removes control groups of nodes of processes that have ended.
    pub(super) fn clean_all() {
        for hierarchy in hierarchies() {
            for entry in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let process = name.strip_prefix(GROUP).and_then(|it| it.split('-').next());
                if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
                    // Processes that were killed with theirs may not have left yet.
                    let _ = (0..50).any(|_| {
                        std::thread::sleep(Duration::from_millis(20));
                        Self::clean(&name)
                    });
                }
            }
        }
    }

    /// Removes the node's control groups, which outlive it. Returns whether none is left.
    pub(super) fn clean(group: &str) -> bool {
        let tops: Vec<PathBuf> =
            hierarchies().iter().map(|hierarchy| hierarchy.join(group)).collect();
        for top in &tops {
            let mut command = std::process::Command::new("find");
            command.arg(top).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]);
            let _ = command.output();
        }
        !tops.iter().any(|top| top.exists())
    }

    pub(super) fn group(&self) -> &str {
        &self.group
    }
}

/// Returns the mount points of control groups: each hierarchy of version 1, or the one of version
/// 2.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = lines.filter(|words| words.get(2).is_some_and(|kind| kind.starts_with("cgroup")));
    found.filter_map(|words| words.get(1).map(PathBuf::from)).collect()
}

fn make_groups(name: &str) -> String {
    for hierarchy in hierarchies() {
        // A hierarchy that is not writable is left out.
        let _ = fs::create_dir(hierarchy.join(name));
    }
    name.to_owned()
}

/// Returns the kubelet's configuration. Without an address of DNS each pod would have a warning. At
/// this one, the API server's, no DNS server listens, so look-ups fail at once.
fn kubelet(node_spec: NodeSpec, group: &str, authority: &Path) -> String {
    let NodeSpec { address, .. } = node_spec;
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {address}
healthzBindAddress: {address}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
volumePluginDir: /var/lib/kubelet/plugins-of-volumes
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {authority:?}}}
authorization: {{mode: Webhook}}
cgroupDriver: cgroupfs
cgroupRoot: /{group}
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: 1Mi}}
resolvConf: \"\"
clusterDNS: [10.0.0.1]
clusterDomain: cluster.local
syncFrequency: 5s
nodeStatusUpdateFrequency: 2s
"
    )
}
