//! `deploy/node.sh`, which the DaemonSet cgpu-node runs, on a fake host of files: it removes
//! exactly what it installed, and only when removal is requested.
//!
//! The host's services (`nsenter`) and the API server (`curl`) are scripts here, which log their
//! arguments.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::{Child, Dist};
use cgpu_kubernetes_tests::wait::until_holds;
use tempfile::TempDir;

const CONFIG: &str = "etc/containerd/config.toml";
const BEFORE: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"runc\"\n";

struct Node {
    folder: TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self { folder: tempfile::tempdir().expect("a folder") };
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let dist = Dist::find();
        let link = |from: PathBuf, name: &str| {
            let to = node.at("opt/cgpu").join(name);
            fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
            symlink(fs::canonicalize(from).expect("a file"), to).expect("a link");
        };
        for name in ["libcgpu.so", "cgpu", "cgpu-monitor", "cgpu-runtime"] {
            link(dist.file(name), name);
        }
        // The scripts find each other in their own folder.
        for name in [
            "install.sh",
            "uninstall.sh",
            "files.sh",
            "node.sh",
            "monitor.toml",
            "cgpu-monitor.service",
        ] {
            let to = node.at("opt/cgpu/deploy").join(name);
            fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
            fs::copy(sources.join("deploy").join(name), to).expect("a copy");
        }
        node.script("enter", "case $* in *is-active*) exit 3 ;; sh*) echo /usr/bin/runc ;; esac\n");
        node.script("curl", "for last; do :; done\ncase $last in */daemonsets/*) cat \"$PLACE/daemonset\" ;; *) cat \"$PLACE/node\" ;; esac\n");
        node.put("account/token", "secret");
        node.put(&format!("host/{CONFIG}"), BEFORE);
        node.put("host/usr/bin/other", "not ours");
        node.answers("{}\n200", "{\"metadata\": {\"labels\": {\"gpushare\": \"true\"}}}\n200");
        node
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    /// Writes a program that logs its arguments.
    fn script(&self, name: &str, text: &str) {
        let path = format!("bin/{name}");
        self.put(&path, &format!("#!/bin/sh\necho \"$@\" >> \"$PLACE/{name}.log\"\n{text}"));
        fs::set_permissions(self.at(&path), Permissions::from_mode(0o755)).expect("a program");
    }

    /// Sets the API server's answers about the DaemonSet and the node: the body, and the status on
    /// the last line.
    fn answers(&self, daemonset: &str, node: &str) {
        self.put("daemonset", daemonset);
        self.put("node", node);
    }

    fn requested(&self, name: &str) -> String {
        fs::read_to_string(self.at(&format!("{name}.log"))).unwrap_or_default()
    }

    fn command(&self, what: &str) -> Command {
        let path =
            format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command.arg(self.at("opt/cgpu/deploy/node.sh")).arg(what);
        command.env("PATH", path).env("PLACE", self.folder.path()).env("HOST", self.at("host"));
        command
            .env("ENTER", self.at("bin/enter"))
            .env("READY", self.at("ready"))
            .env("ACCOUNT", self.at("account"));
        for (name, value) in [
            // The tests' shim is built for this system.
            ("NEW_GLIBC", "allow"),
            ("NAMESPACE", "kube-system"),
            ("DAEMONSET", "cgpu-node"),
            ("NODE_NAME", "one"),
            ("NODE_LABELS", "gpushare=true "),
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
        ] {
            command.env(name, value);
        }
        command
    }

    /// Installs, and is ended as pods are. It says nothing of steps that it has taken itself.
    fn stay(&self) {
        let _ = fs::remove_file(self.at("ready"));
        Child::start(self.command("ready")).finish().exits(1);
        let child = Child::start(self.command("stay"));
        until_holds("the node is ready", || self.at("ready").exists());
        Child::start(self.command("ready")).finish().exits(0);
        child.signal(15);
        let said = child.finish().exits(0);
        for step in ["was not started", "no container engine was changed", "next:"] {
            assert!(!format!("{said:?}").contains(step), "{said:?}");
        }
    }

    fn leave(&self) -> String {
        Child::start(self.command("leave")).finish().exits(0).stderr
    }

    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        fn all(folder: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() && !path.is_symlink() {
                    all(&path, found);
                } else {
                    found.insert(path.clone(), fs::read(&path).unwrap_or_default());
                }
            }
        }
        let mut found = BTreeMap::new();
        all(&self.at("host"), &mut found);
        found
    }
}

#[test]
fn node_is_set_up_and_removed() {
    let node = Node::new();
    let before = node.files();
    node.stay();
    let config = fs::read_to_string(node.at("host").join(CONFIG)).expect("a configuration");
    assert!(config.contains("BinaryName = \"/usr/bin/cgpu-runtime\""), "{config}");
    assert!(config.contains("  default_runtime_name = \"cgpu\""), "{config}");
    for path in [
        "usr/bin/cgpu-runtime",
        "usr/lib/cgpu/libcgpu.so",
        "usr/lib/systemd/system/cgpu-monitor.service",
    ] {
        assert!(node.at("host").join(path).is_file(), "{path}");
    }
    let monitor = fs::read_to_string(node.at("host/etc/cgpu/monitor.toml")).expect("settings");
    assert!(monitor.lines().any(|line| line.starts_with("over_limit = \"end\"")), "{monitor}");
    let requested = node.requested("enter");
    assert!(requested.contains("systemctl restart containerd\n"), "{requested}");
    assert!(requested.contains("systemctl enable --now cgpu-monitor\n"), "{requested}");

    // A replacing pod removes nothing and leaves the engine alone.
    let installed = node.files();
    assert!(node.leave().contains("the node keeps cgpu"));
    node.stay();
    assert_eq!(node.files(), installed);
    assert_eq!(node.requested("enter").matches("restart containerd").count(), 1);

    // Without the DaemonSet everything is removed, the slices' CDI devices too.
    node.put("host/etc/cdi/cgpu-slice-7-2.json", "{}");
    node.answers("{\"metadata\": {\"deletionTimestamp\": \"2026-01-01T00:00:00Z\"}}\n200", "");
    assert!(node.leave().contains("uninstalled"));
    assert_eq!(node.files(), before);
    let requested = node.requested("enter");
    assert!(requested.contains("systemctl disable --now cgpu-monitor\n"), "{requested}");
    assert_eq!(requested.matches("restart containerd").count(), 2);
    assert!(
        node.requested("curl").contains(
            "https://10.0.0.1:443/apis/apps/v1/namespaces/kube-system/daemonsets/cgpu-node"
        )
    );
}

/// The engine kills what it executes when it restarts, and the kubelet runs the hook again.
#[test]
fn removal_that_the_engine_interrupts_is_finished_by_the_next() {
    let node = Node::new();
    let before = node.files();
    node.script(
        "enter",
        "case $* in *is-active*) exit 3 ;; sh*) echo /usr/bin/runc ;;
*restart*) while [ ! -e \"$PLACE/restarted\" ]; do sleep 0.1; done ;; esac\n",
    );
    node.put("restarted", "");
    node.stay();
    fs::remove_file(node.at("restarted")).expect("a file");
    node.answers("{}\n404", "");
    let leaves = Child::start(node.command("leave"));
    let restarts = || node.requested("enter").matches("restart containerd").count();
    until_holds("the engine restarts", || restarts() == 2);
    leaves.signal(9);
    let _ = leaves.finish();
    node.put("restarted", "");
    assert!(node.at("host/usr/bin/cgpu").exists());
    assert!(node.leave().contains("uninstalled"));
    assert_eq!(restarts(), 2);
    assert_eq!(node.files(), before);
}

/// The service allows connections from this host only, unless the chart says otherwise.
#[test]
fn address_of_the_metrics_is_written_and_removed() {
    let node = Node::new();
    let before = node.files();
    let mut command = node.command("stay");
    command.env("METRICS", "0.0.0.0:9555").env("METRICS_ALLOW", "10.0.0.0/8 fd00::/8");
    let child = Child::start(command);
    until_holds("the node is ready", || node.at("ready").exists());
    child.signal(15);
    child.finish().exits(0);
    let read = |path: &str| fs::read_to_string(node.at("host").join(path)).expect("a file");
    let settings = read("etc/cgpu/monitor.toml");
    assert!(settings.lines().any(|line| line.starts_with("metrics = \"0.0.0.0:9555\"")));
    let allowed = read("etc/systemd/system/cgpu-monitor.service.d/cgpu-metrics.conf");
    assert_eq!(allowed, "[Service]\nIPAddressAllow=10.0.0.0/8 fd00::/8\n");
    node.answers("{}\n404", "");
    assert!(node.leave().contains("uninstalled"));
    assert_eq!(node.files(), before);
}

#[test]
fn cgpu_stays_unless_removal_is_requested() {
    let node = Node::new();
    let here = "{\"metadata\": {\"labels\": {\"gpushare\": \"true\"}}}\n200";
    for (daemonset, about, stays) in [
        // No answer, or one without a meaning.
        ("\n000", here, true),
        ("{}\n500", here, true),
        ("{}\n200", "\n503", true),
        ("{}\n200", here, true),
        ("{}\n404", here, false),
        // The account's rights were deleted first.
        ("{}\n403", here, false),
        ("{}\n401", here, false),
        ("{}\n200", "{\"metadata\":{\"labels\":{\"gpushare\":\"false\"}}}\n200", false),
        ("{}\n200", "{\"metadata\":{\"labels\":{}}}\n200", false),
    ] {
        node.stay();
        node.answers(daemonset, about);
        node.leave();
        assert_eq!(node.at("host/usr/bin/cgpu-runtime").exists(), stays, "{daemonset} {about}");
        node.answers("{}\n200", here);
    }
}

#[test]
fn running_containers_can_be_ended_after_removal() {
    let node = Node::new();
    node.stay();
    let bundle = "host/run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/options.json";
    node.put(bundle, "{\"binary_name\":\"/usr/bin/cgpu-runtime\"}");
    node.answers("{}\n404", "");
    assert!(node.leave().contains("a script that runs /usr/bin/runc"));
    let script = node.at("host/usr/bin/cgpu-runtime");
    assert!(fs::read_to_string(&script).expect("a script").contains("next='/usr/bin/runc'"));
    // A reinstallation finds its path free.
    fs::remove_file(node.at(bundle)).expect("a file");
    node.answers("{}\n200", "{\"metadata\":{\"labels\":{\"gpushare\":\"true\"}}}\n200");
    node.stay();
    assert!(fs::read_to_string(&script).is_err(), "it is the program again");
}

#[test]
fn node_with_cri_o_has_its_own_file() {
    let node = Node::new();
    let before = node.files();
    let run = |what: &str| {
        let mut command = node.command(what);
        command.env("ENGINE", "crio");
        Child::start(command)
    };
    let child = run("stay");
    until_holds("the node is ready", || node.at("ready").exists());
    child.signal(15);
    let outcome = child.finish().exits(0);
    assert!(!outcome.stderr.contains("cannot open"), "{outcome:?}");
    let file = fs::read_to_string(node.at("host/etc/crio/crio.conf.d/99-cgpu.conf"))
        .expect("a configuration");
    assert!(
        file.contains("default_runtime = \"cgpu\"")
            && file.contains("runtime_path = \"/usr/bin/cgpu-runtime\"")
    );
    assert_eq!(fs::read_to_string(node.at("host").join(CONFIG)).expect("a configuration"), BEFORE);
    assert!(node.requested("enter").contains("systemctl restart crio\n"));
    node.answers("{}\n404", "");
    run("leave").finish().exits(0);
    assert_eq!(node.files(), before);
}

/// cgpu-runtime takes the place of a default runtime to which it hands over, and gives it back.
#[test]
fn default_runtime_that_is_handed_over_to_is_restored() {
    let node = Node::new();
    let toolkit = "/usr/local/nvidia/toolkit/nvidia-container-runtime";
    let nvidia = BEFORE.replace("runc", "nvidia");
    let table = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia";
    node.put(
        &format!("host/{CONFIG}"),
        &format!(
            "{nvidia}{table}]\n  runtime_type = \"io.containerd.runc.v2\"\n\
             {table}.options]\n  BinaryName = \"{toolkit}\"\n"
        ),
    );
    // The documented line.
    node.put("host/etc/cgpu/runtime.toml", &format!("runtime = \"{toolkit}\"\n"));
    let before = node.files();
    node.stay();
    let config = fs::read_to_string(node.at("host").join(CONFIG)).expect("a configuration");
    assert!(config.contains("  default_runtime_name = \"cgpu\""), "{config}");
    assert!(config.contains(&format!("BinaryName = \"{toolkit}\"")), "{config}");
    let settings = fs::read_to_string(node.at("host/etc/cgpu/runtime.toml")).expect("settings");
    let lines: Vec<&str> = settings.lines().filter(|line| line.starts_with("runtime")).collect();
    assert_eq!(lines, [format!("runtime = \"{toolkit}\"")]);
    node.answers("{}\n404", "");
    assert!(node.leave().contains("uninstalled"));
    assert_eq!(node.files(), before);
}

/// A default runtime that others need is not replaced: the pod fails with an error, and containers
/// go on as before.
#[test]
fn node_with_another_default_runtime_is_unchanged() {
    let node = Node::new();
    node.put(&format!("host/{CONFIG}"), &BEFORE.replace("runc", "nvidia"));
    let outcome = Child::start(node.command("stay")).finish().exits(1);
    assert!(outcome.stderr.contains("its default runtime `nvidia`"), "{outcome:?}");
    assert!(!node.at("ready").exists() && !node.requested("enter").contains("restart"));
    // Pods that name the runtime class can still have it.
    let mut command = node.command("stay");
    command.env("DEFAULT_RUNTIME", "false");
    let child = Child::start(command);
    until_holds("the node is ready", || node.at("ready").exists());
    child.signal(15);
    child.finish().exits(0);
    let config = fs::read_to_string(node.at("host").join(CONFIG)).expect("a configuration");
    assert!(
        config.contains("default_runtime_name = \"nvidia\"") && config.contains("runtimes.cgpu"),
        "{config}"
    );
}
