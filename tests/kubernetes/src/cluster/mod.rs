//! A real cluster: a control plane and kubelets of given programs, on a machine within this one.
//!
//! ```text
//!   unshare: network, processes, mounts          all of it ends with the test
//!     etcd, kube-apiserver, controllers, kube-scheduler (kubernetes/examples/control-plane.yaml)
//!     one part for each node: /etc, /usr, /var, /run, /opt of its own over the host's
//!       deploy/install.sh, cgpu setup containerd --default, cgpu-monitor, containerd, kubelet
//!         pods: kubernetes/manifests/cgpu.yaml, kubernetes/examples
//! ```
//!
//! Two parts of the manifests are left out, but in [`Cluster::start_bare`]. The scripts of the
//! DaemonSet `cgpu-node` run here directly. The second kube-scheduler is a process with that
//! configuration and those rights, where a test needs it. There is no kube-proxy: the API server
//! listens at its service's address, and kube-schedulers reach the extender by a forwarded port.
//!
//! A bare cluster is for the whole chart, which helm installs. `systemctl.sh` stands for systemd,
//! an image of the given kube-scheduler for that of Kubernetes, and [`services`] for cluster DNS
//! and kube-proxy.

mod assets;
mod certificates;
mod control_plane;
mod image;
mod lab;
mod machine;
mod node;
mod services;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use assets::Assets;
use cgpu_e2e::{Child, Dist, Fixture, Outcome};
use control_plane::{ControlPlane, EXTENDER};
pub use lab::Lab;
use machine::{Daemon, Machine};
pub use node::{Node, NodeSpec};
use serde_json::Value;

/// Timeout of waits: containers and Go programs start slowly on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

/// Deadline above the duration of any test of a cluster.
const LIFETIME: Duration = Duration::from_secs(900);

/// Seconds between two writes of a claim's status.
const STATUS_INTERVAL: u32 = 5;

/// `tests/manifests.rs` validates the manifests. kubectl would need the API's description, which
/// some API servers do not have at once.
const UNCHECKED: &str = "--validate=false";

/// Polls until there is a result, and returns it.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Returns whether the environment names all programs of a real cluster, and this user can start
/// one. Records the skip of the test otherwise.
#[must_use]
pub fn is_available(test: &str) -> bool {
    Assets::find(test).is_some()
}

/// A running cluster. Its parts are in the order of their end.
pub struct Cluster {
    nodes: Vec<Node>,
    forward: Option<Daemon>,
    /// The pods behind the extender's Service, where it is served.
    extender: Option<services::Pods>,
    plane: ControlPlane,
    machine: Machine,
    assets: Assets,
    folder: ClusterFolder,
    /// Whether our programs and the scheduler read HAMi's names.
    has_hami: bool,
}

/// The folder of all its files, which is removed in the end.
struct ClusterFolder(PathBuf);

impl ClusterFolder {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ClusterFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Cluster {
    /// Starts a cluster with these nodes and our manifests, and waits until they offer their GPUs.
    /// Returns None, after recording the skip, where the programs are missing.
    #[must_use]
    pub fn start(test: &str, node_specs: &[NodeSpec]) -> Option<Self> {
        let assets = Assets::find(test)?;
        // Not in memory, because containers' files are in it, and not on an overlay, because
        // containers' own overlays are made from it.
        let folder =
            tempfile::Builder::new().prefix("cgpu-cluster-").tempdir().expect("a temporary folder");
        let mut cluster = Self::start_in(folder.keep(), assets, node_specs, LIFETIME, false);
        cluster.share();
        Some(cluster)
    }

    /// As [`Cluster::start`], without cgpu: nodes are as they were before it, and have a service
    /// manager.
    #[must_use]
    pub fn start_bare(test: &str, node_specs: &[NodeSpec]) -> Option<Self> {
        let assets = Assets::find(test)?;
        let folder =
            tempfile::Builder::new().prefix("cgpu-cluster-").tempdir().expect("a temporary folder");
        Some(Self::start_in(folder.keep(), assets, node_specs, LIFETIME, true))
    }

    /// Starts control plane and nodes in this folder and for this time, and waits until the nodes
    /// are ready.
    fn start_in(
        folder: PathBuf,
        assets: Assets,
        node_specs: &[NodeSpec],
        lifetime: Duration,
        is_bare: bool,
    ) -> Self {
        let folder = ClusterFolder(folder);
        let addresses: Vec<&str> = node_specs.iter().map(|node_spec| node_spec.address).collect();
        let machine = Machine::new(folder.path(), &control_plane::network(&addresses), lifetime);
        let images = image::archive(
            &Fixture::new(node_specs[0].gpus),
            folder.path(),
            is_bare.then_some(assets.scheduler.as_path()),
        );
        let plane = ControlPlane::start(&machine, &assets, folder.path());
        let mut cluster = Self {
            nodes: Vec::new(),
            forward: None,
            extender: None,
            plane,
            machine,
            assets,
            folder,
            has_hami: false,
        };
        for (index, node_spec) in node_specs.iter().enumerate() {
            let path = cluster.folder.path().join(node_spec.name);
            let mut node = Node::start(
                &cluster.machine,
                &cluster.assets,
                &cluster.plane,
                *node_spec,
                &path,
                index,
                is_bare,
            );
            node.import(&images);
            node.start_kubelet();
            cluster.nodes.push(node);
        }
        for node_spec in node_specs {
            until("the node is ready", || {
                let node = cluster.object("node", "", node_spec.name)?;
                let conditions = node["status"]["conditions"].as_array()?;
                conditions
                    .iter()
                    .any(|it| it["type"] == "Ready" && it["status"] == "True")
                    .then_some(())
                    .filter(|()| node["spec"]["taints"].is_null())
            });
        }
        cluster
    }

    /// Labels the nodes, applies our manifests, and waits until they offer their GPUs.
    fn share(&mut self) {
        let node_specs: Vec<NodeSpec> = self.nodes.iter().map(|node| node.node_spec).collect();
        for node_spec in &node_specs {
            let engine = if node_spec.is_claimed { "dra" } else { "extender" };
            let engine = format!("cgpu.dev/engine={engine}");
            self.kubectl(&["label", "node", node_spec.name, "gpushare=true", &engine]).exits(0);
        }
        if node_specs.iter().all(|node_spec| node_spec.is_claimed) {
            self.install_driver();
        } else {
            self.install("GiB");
            self.forward();
        }
    }

    /// Runs helm as the cluster's administrator.
    #[must_use]
    pub fn helm(&self, helm: &Path, arguments: &[&str]) -> Outcome {
        let mut command = self.machine.inside(helm);
        command.env("HOME", self.folder.path()).args(arguments);
        command.arg("--kubeconfig").arg(&self.plane.administrator);
        command.args(["--namespace", "kube-system"]);
        Outcome::of(command)
    }

    /// Waits until a workload of kube-system has all its pods.
    pub fn rolled_out(&self, kind: &str, name: &str) {
        let object = format!("{kind}/{name}");
        let words = ["rollout", "status", &object, "-n", "kube-system", "--timeout=110s"];
        let rolled = self.kubectl(&words);
        assert!(rolled.code() == Some(0), "{rolled:?}\n{}", self.diagnostics());
    }

    /// Serves the extender's Service to pods. Without kube-proxy, the address is one of the
    /// machine's.
    pub fn serve_extender(&mut self) {
        self.serve_extender_by(|_| true);
    }

    /// As [`Cluster::serve_extender`], new connections by these pods alone.
    pub fn serve_extender_by(&mut self, serves: impl Fn(&str) -> bool) {
        const NAME: &str = "cgpu-scheduler-extender";
        if self.extender.is_none() {
            let service = self.object("service", "kube-system", NAME).expect("the Service");
            let address = service["spec"]["clusterIP"].as_str().expect("an address");
            let host = format!("{address}/32");
            self.machine.run("ip", &["address", "add", &host, "dev", "br0"]).exits(0);
            let port = service["spec"]["ports"][0]["port"].as_u64().expect("a port");
            let address = format!("{address}:{port}").parse().expect("an address");
            let pods = services::Pods::default();
            let name = format!("{NAME}.kube-system.svc");
            services::serve(self.machine.network(), &name, address, pods.clone());
            self.extender = Some(pods);
        }
        let selector = format!("app.kubernetes.io/name={NAME}");
        let printed = self
            .kubectl(&["get", "pods", "-n", "kube-system", "-l", &selector, "-o", "json"])
            .exits(0);
        let list: Value = serde_json::from_str(&printed.stdout).expect("JSON");
        let pods = list["items"].as_array().into_iter().flatten();
        let pods = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let pods = pods.filter(|pod| pod["metadata"]["name"].as_str().is_some_and(&serves));
        let addresses = pods.filter_map(|pod| pod["status"]["podIP"].as_str()?.parse().ok());
        self.extender.as_ref().expect("a Service").set(addresses.collect());
    }

    /// Waits until one extender leads and another follows, and returns their names.
    #[must_use]
    pub fn leader_and_follower(&self) -> [String; 2] {
        let selector = "app.kubernetes.io/name=cgpu-scheduler-extender";
        let words = ["get", "pods", "-n", "kube-system", "-l", selector, "-o", "name"];
        until("an extender leads, and another follows", || {
            let printed = self.kubectl(&words).exits(0).stdout;
            let pods = printed.lines().filter_map(|line| line.strip_prefix("pod/"));
            let leads = |pod: &&str| self.metric(pod, "cgpu_extender_leader") == Some(1);
            let (leaders, others): (Vec<&str>, Vec<&str>) = pods.partition(leads);
            let ([leader], [follower]) = (&leaders[..], &others[..]) else { return None };
            Some([leader, follower].map(|it| (*it).to_owned()))
        })
    }

    /// Returns a metric of an extender's pod, if it serves any.
    #[must_use]
    pub fn metric(&self, pod: &str, name: &str) -> Option<u64> {
        let read = |pod: &str| {
            let path = format!("/api/v1/namespaces/kube-system/pods/{pod}:39999/proxy/metrics");
            self.kubectl(&["get", "--raw", &path]).stdout
        };
        // With certificates, or without.
        let printed = read(&format!("https:{pod}")) + &read(pod);
        let value = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.parse().ok()
    }

    /// Applies our manifests for claims. Simulated GPUs have no CDI devices of a vendor.
    fn install_driver(&self) {
        let manifests = include_str!("../../../../kubernetes/manifests/cgpu-dra.yaml");
        let vendor = "--vendor-cdi-kind=nvidia.com/gpu";
        assert!(manifests.contains(vendor));
        let option = format!("--status-interval={STATUS_INTERVAL}");
        let file = self.folder.path().join("cgpu-dra.yaml");
        fs::write(&file, manifests.replace(vendor, &option)).expect("a file");
        let selector = "app.kubernetes.io/name!=cgpu-node";
        self.kubectl(&["apply", UNCHECKED, "-f", &file.to_string_lossy(), "-l", selector]).exits(0);
        until("the GPUs are published", || {
            let listed = self.kubectl(&["get", "resourceslices", "-o", "name"]);
            (!listed.stdout.is_empty()).then_some(())
        });
    }

    /// Applies our manifests with the nodes' memory in these units.
    pub fn install(&self, unit: &str) {
        let manifests = include_str!("../../../../kubernetes/manifests/cgpu.yaml");
        let reported = "--memory-unit=GiB";
        assert!(manifests.contains(reported));
        let mut text = manifests.replace(reported, &format!("--memory-unit={unit}"));
        if self.has_hami {
            // Of the plugin, and of the extender.
            for argument in ["- --memory-unit=", "- --port=39999"] {
                text = text.replace(argument, &format!("- --hami\n            {argument}"));
            }
        }
        let file = self.folder.path().join("cgpu.yaml");
        fs::write(&file, text).expect("a file");
        let selector = "app.kubernetes.io/name notin (cgpu-node,cgpu-scheduler)";
        self.kubectl(&["apply", UNCHECKED, "-f", &file.to_string_lossy(), "-l", selector]).exits(0);
        for (kind, name) in
            [("daemonset", "cgpu-device-plugin"), ("deployment", "cgpu-scheduler-extender")]
        {
            self.rolled_out(kind, name);
        }
    }

    /// Has plugin, extender and scheduler read HAMi's names, too, as the chart does with
    /// `hami=true`.
    pub fn use_hami_names(&mut self) {
        self.has_hami = true;
        self.install("GiB");
        self.plane.use_hami_names();
        self.restart_scheduler();
        self.forward();
    }

    /// Forwards kube-scheduler's port to an extender that is ready, in place of an earlier one.
    pub fn forward(&mut self) {
        self.forward_to("service/cgpu-scheduler-extender");
    }

    /// Forwards kube-scheduler's port to this Service or pod of extenders.
    pub fn forward_to(&mut self, target: &str) {
        self.forward.take().into_iter().for_each(|daemon| daemon.end("KILL"));
        let words = [
            "--kubeconfig",
            &self.plane.administrator.to_string_lossy(),
            "port-forward",
            "-n",
            "kube-system",
            target,
            &format!("{EXTENDER}:39999"),
        ]
        .map(str::to_owned);
        let mut daemon = self.machine.start("forward", &self.assets.kubectl, &words);
        let url = format!("http://127.0.0.1:{EXTENDER}");
        until("the extender can be reached", || {
            if !daemon.runs() {
                daemon = self.machine.start("forward", &self.assets.kubectl, &words);
            }
            let requested = self.kubectl_bare(&["--server", &url, "get", "--raw", "/readyz"]);
            (requested.code() == Some(0)).then_some(())
        });
        self.forward = Some(daemon);
    }

    fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.machine.inside(&self.assets.kubectl);
        command.env("HOME", self.folder.path()).args(arguments);
        command
    }

    fn kubectl_bare(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(self.kubectl_command(arguments))
    }

    /// Runs `kubectl` as the cluster's administrator.
    #[must_use]
    pub fn kubectl(&self, arguments: &[&str]) -> Outcome {
        let administrator = self.plane.administrator.to_string_lossy();
        self.kubectl_bare(&[&["--kubeconfig", &administrator], arguments].concat())
    }

    /// Sends a merge patch to the API server with this token, and returns status and body of the
    /// reply. kubectl would read the object first, which our programs may not.
    #[must_use]
    pub fn patch_by(&self, token: &str, path: &str, patch: &Value) -> (String, String) {
        let mut command = self.machine.inside("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--request", "PATCH"]);
        command.arg("--cacert").arg(self.plane.authority.certificate());
        command.arg("--header").arg(format!("Authorization: Bearer {token}"));
        command.args(["--header", "Content-Type: application/merge-patch+json"]);
        command.arg("--data").arg(patch.to_string()).args(["--write-out", "\n%{http_code}"]);
        command.arg(format!("{}{path}", control_plane::SERVER));
        let reply = Outcome::of(command).exits(0).stdout;
        let (body, status) = reply.trim_end().rsplit_once('\n').expect("a status");
        (status.to_owned(), body.to_owned())
    }

    /// Starts a program in a pod, whose input and output are the child's.
    #[must_use]
    pub fn start_in_pod(&self, pod: &str, program: &[&str]) -> Child {
        let administrator = self.plane.administrator.to_string_lossy();
        let exec = ["--kubeconfig", &administrator, "exec", "-i", pod, "--"];
        Child::start_for(self.kubectl_command(&[&exec, program].concat()), LIFETIME)
    }

    /// Applies a file.
    pub fn apply(&self, file: &Path) {
        self.kubectl(&["apply", UNCHECKED, "-f", &file.to_string_lossy()]).exits(0);
    }

    /// Applies a text.
    pub fn apply_text(&self, text: &str) {
        let file = self.folder.path().join("text.yaml");
        fs::write(&file, text).expect("a file");
        self.apply(&file);
    }

    /// Deletes what a text describes, and waits until it is gone.
    pub fn delete_text(&self, text: &str) {
        let file = self.folder.path().join("text.yaml");
        fs::write(&file, text).expect("a file");
        self.kubectl(&["delete", "--grace-period=1", "-f", &file.to_string_lossy()]).exits(0);
    }

    /// Applies a text, which the API server must refuse, and returns its message.
    #[must_use]
    pub fn apply_refused(&self, text: &str) -> String {
        let file = self.folder.path().join("refused.yaml");
        fs::write(&file, text).expect("a file");
        self.kubectl(&["apply", UNCHECKED, "-f", &file.to_string_lossy()]).exits(1).stderr
    }

    /// Returns an object, or None if there is none.
    #[must_use]
    pub fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let mut words = vec!["get", kind, name, "-o", "json"];
        if !namespace.is_empty() {
            words.extend(["-n", namespace]);
        }
        let printed = self.kubectl(&words);
        (printed.code() == Some(0)).then(|| serde_json::from_str(&printed.stdout).expect("JSON"))
    }

    /// Returns the pods of the default namespace with this label that are not being deleted.
    #[must_use]
    pub fn pods(&self, label: &str) -> Vec<Value> {
        let printed = self.kubectl(&["get", "pods", "-l", label, "-o", "json"]).exits(0);
        let list: Value = serde_json::from_str(&printed.stdout).expect("JSON");
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect()
    }

    /// Waits until exactly this many pods have this label, and all are running and ready.
    pub fn running(&self, label: &str, count: usize) -> Vec<Value> {
        let ready = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array();
            let ready = |it: &Value| it["type"] == "Ready" && it["status"] == "True";
            pod["status"]["phase"] == "Running"
                && conditions.is_some_and(|all| all.iter().any(ready))
        };
        until(&format!("{count} pods with {label} run"), || {
            let pods = self.pods(label);
            (pods.len() == count && pods.iter().all(ready)).then_some(pods)
        })
    }

    /// Returns the size of each GPU in bytes, as the driver reports it in a pod.
    #[must_use]
    pub fn totals(&self, pod: &str) -> Vec<u64> {
        let printed = self.kubectl(&["exec", pod, "--", "meminfo"]).exits(0);
        let lines =
            printed.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.map(|gpu| gpu["total"].as_u64().expect("a total")).collect()
    }

    /// Waits for an event of a pod of the default namespace that contains this text, and returns
    /// its message.
    pub fn reported(&self, pod: &str, part: &str) -> String {
        let selector = format!("involvedObject.name={pod}");
        until(&format!("an event of {pod} says {part}"), || {
            let printed = self
                .kubectl(&["get", "events", "--field-selector", &selector, "-o", "json"])
                .exits(0);
            let list: Value = serde_json::from_str(&printed.stdout).expect("JSON");
            let mut events = list["items"].as_array().into_iter().flatten();
            events.find_map(|event| {
                let message = event["message"].as_str()?;
                message
                    .contains(part)
                    .then(|| format!("{}: {message}", event["reason"].as_str().unwrap_or_default()))
            })
        })
    }

    /// Runs `kubectl-inspect-gpushare` with the rights that the documentation names.
    #[must_use]
    pub fn inspect(&self, arguments: &[&str]) -> Outcome {
        let config = self.folder.path().join("authority/inspector.conf");
        if !config.exists() {
            self.plane.authority.kubeconfig("inspector", "inspector", None, control_plane::SERVER);
            let bind = [
                "create",
                "clusterrolebinding",
                "inspector",
                "--clusterrole=cgpu-inspect",
                "--user=inspector",
            ];
            self.kubectl(&bind).exits(0);
            // A cluster of claims has no such Role.
            let bind = ["create", "rolebinding", "inspector", "--role=cgpu-unhealthy-gpus"];
            let in_system = ["--user=inspector", "-n", "kube-system"];
            self.kubectl(&[&bind[..], &in_system].concat()).exits(0);
        }
        let mut command = self.machine.inside(Dist::find().file("kubectl-inspect-gpushare"));
        command.arg("--kubeconfig").arg(config).args(arguments);
        Outcome::of(command)
    }

    /// Waits until this is the doctor's first cause for a pod, and returns what was found.
    pub fn diagnosed(&self, pod: &str, cause: &str) -> String {
        let mut words = vec!["doctor", pod, "-n", "default", "--json", "--root", "/nonexistent"];
        words.extend(self.has_hami.then_some("--hami"));
        until(&format!("the cause {cause} of {pod}"), || {
            let report: Value =
                serde_json::from_str(&self.inspect(&words).stdout).expect("a report");
            let first = &report["causes"][0];
            (first["cause"] == cause).then(|| format!("{cause}: {}", first["found"]))
        })
    }

    /// Returns a node.
    pub fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.node_spec.name == name).expect("a node of this name")
    }

    /// Restarts kube-scheduler.
    pub fn restart_scheduler(&mut self) {
        self.plane.restart_scheduler(&self.machine, &self.assets);
    }

    /// Starts the second kube-scheduler of our manifests (`schedulerName: cgpu-scheduler`) beside
    /// the cluster's own.
    pub fn start_second_scheduler(&mut self) {
        let file = self.folder.path().join("cgpu.yaml");
        let rights = "app.kubernetes.io/name=cgpu-scheduler";
        let kinds = ["serviceaccount", "role", "rolebinding", "clusterrolebinding"];
        let mut words =
            vec!["apply".to_owned(), UNCHECKED.to_owned(), "-l".to_owned(), rights.to_owned()];
        words.extend(["-f".to_owned(), self.part_of(&file, &kinds)]);
        self.kubectl(&words.iter().map(String::as_str).collect::<Vec<_>>()).exits(0);
        self.plane.start_second_scheduler(&self.machine, &self.assets, self.folder.path());
    }

    /// Writes a file's objects of these kinds to another file and returns its path.
    fn part_of(&self, file: &Path, kinds: &[&str]) -> String {
        let text = fs::read_to_string(file).expect("a file");
        let is_one = |object: &&str| {
            let kind =
                object.lines().find_map(|line| line.strip_prefix("kind: ")).unwrap_or_default();
            kinds.contains(&kind.to_lowercase().as_str())
        };
        let part: Vec<&str> = text.split("\n---\n").filter(is_one).collect();
        let path = self.folder.path().join("part.yaml");
        fs::write(&path, part.join("\n---\n")).expect("a file");
        path.to_string_lossy().into_owned()
    }

    /// Returns the cluster's state and logs, for the analysis of a failure.
    #[must_use]
    pub fn diagnostics(&self) -> String {
        let mut reported = String::new();
        for words in [
            &["get", "pods,nodes", "-A", "-o", "wide"][..],
            &["get", "events", "-A", "--sort-by=.lastTimestamp"],
            &[
                "logs",
                "-n",
                "kube-system",
                "-l",
                "app.kubernetes.io/name=cgpu-device-plugin",
                "--tail=40",
                "--prefix",
            ],
            &[
                "logs",
                "-n",
                "kube-system",
                "-l",
                "app.kubernetes.io/name=cgpu-scheduler-extender",
                "--tail=40",
                "--prefix",
            ],
            &[
                "logs",
                "-n",
                "kube-system",
                "-l",
                "app.kubernetes.io/name=cgpu-dra-driver",
                "--tail=40",
            ],
        ] {
            let printed = self.kubectl(words);
            reported.push_str(&format!(
                "--- kubectl {}\n{}{}\n",
                words.join(" "),
                printed.stdout,
                printed.stderr
            ));
        }
        reported
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() && self.machine.is_running() {
            eprintln!("{}", self.diagnostics());
        }
        let groups: Vec<String> = self.nodes.iter().map(|node| node.group().to_owned()).collect();
        // Its first process ends everything in it, mounts and networks too.
        self.nodes.clear();
        self.machine.end();
        until("no process is left in the nodes' control groups", || {
            groups.iter().all(|group| Node::clean(group)).then_some(())
        });
    }
}
