//! A real etcd, API server, controller manager and scheduler, where the environment names them
//! (envtest's variables). There is no kubelet: nodes are objects, and no container runs.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, skip};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::wait::until_holds;

/// The control plane outlives a slow test.
const LIFETIME: Duration = Duration::from_secs(600);

/// The controllers that run.
const CONTROLLERS: &str = "--controllers=resourceclaim-controller,garbage-collector-controller,\
    job-controller,deployment-controller,replicaset-controller,resourcequota-controller";

/// Returns our example for a cluster's own kube-scheduler, for an extender at this address without
/// TLS.
#[must_use]
pub fn scheduler_configuration(kubeconfig: &Path, extender: &str) -> String {
    let example = include_str!("../../../kubernetes/examples/control-plane.yaml");
    let (path, address) = ("/etc/kubernetes/scheduler.conf", "127.0.0.1:32766");
    assert!(
        example.contains(path) && example.contains(&format!("https://{address}/")),
        "{example}"
    );
    let is_tls =
        |line: &&str| ["tlsConfig:", "/etc/kubernetes/cgpu/"].iter().any(|it| line.contains(it));
    let plain: Vec<&str> = example.lines().filter(|line| !is_tls(line)).collect();
    let plain = plain.join("\n").replace("https://", "http://").replace(address, extender);
    let plain = plain.replace("enableHTTPS: true", "enableHTTPS: false");
    // A leader that a busy machine holds up for long ends.
    let plain = plain.replace("leaderElect: true", "leaderElect: false");
    plain.replace(path, &kubeconfig.to_string_lossy())
}

/// Adds HAMi's resources to that configuration, as the chart with `hami=true` does.
#[must_use]
pub fn with_hami_resources(configuration: &str) -> String {
    const HAMI: [(&str, bool); 5] = [
        ("gpu", false),
        ("gpumem", true),
        ("gpumem-percentage", true),
        ("gpucores", true),
        ("priority", true),
    ];
    let entries = HAMI.map(|(name, is_ignored)| {
        format!("      - name: nvidia.com/{name}\n        ignoredByScheduler: {is_ignored}\n")
    });
    let first = "    managedResources:\n";
    assert!(configuration.contains(first), "{configuration}");
    configuration.replace(first, &format!("{first}{}", entries.concat()))
}

/// A running control plane.
pub struct Plane {
    folder: PathBuf,
    kubectl: PathBuf,
    scheduler: PathBuf,
    children: Vec<Child>,
}

/// Returns the program that `TEST_ASSET_*` names, if it is a file.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let given = std::env::var_os(format!("TEST_ASSET_{name}")).map(PathBuf::from);
    given.filter(|path| path.is_file())
}

fn address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

fn start(program: &Path, arguments: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments);
    Child::start_for(command, LIFETIME)
}

impl Plane {
    /// Starts all but the scheduler, with more arguments of the API server. Returns None, after
    /// recording the skip, where a program is missing.
    #[must_use]
    pub fn start(test: &str, folder: &Path, api_arguments: &[String]) -> Option<Self> {
        let names = ["ETCD", "KUBE_APISERVER", "KUBE_CONTROLLER_MANAGER", "KUBE_SCHEDULER"];
        let programs: Vec<PathBuf> = names.into_iter().filter_map(program).collect();
        let kubectl = program("KUBECTL").unwrap_or_else(|| "kubectl".into());
        let has_kubectl = Command::new(&kubectl).arg("help").output().is_ok();
        let ([etcd, api_server, controllers, scheduler], true) = (&programs[..], has_kubectl)
        else {
            skip(test, "cluster", "TEST_ASSET_* names no control plane, or there is no kubectl");
            return None;
        };
        let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let [clients, peers] = [address(), address()].map(|address| format!("http://{address}"));
        let secure = address();
        let key = KeyPair::generate().expect("a key");
        fs::write(at("key"), key.serialize_pem()).expect("a file");
        fs::write(at("public"), key.public_key_pem()).expect("a file");
        fs::write(at("tokens"), "secret,admin,1,system:masters\n").expect("a file");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster":
                {"server": format!("https://{secure}"), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(at("kubeconfig"), kubeconfig.to_string()).expect("a file");
        let etcd = start(
            etcd,
            &[
                "--name=default".to_owned(),
                format!("--data-dir={}", at("etcd")),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=default={peers}"),
            ],
        );
        let arguments = [
            format!("--etcd-servers={clients}"),
            format!("--secure-port={}", secure.rsplit(':').next().unwrap_or_default()),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", at("certificates")),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--authorization-mode=AlwaysAllow".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", at("public")),
            format!("--service-account-signing-key-file={}", at("key")),
            format!("--token-auth-file={}", at("tokens")),
        ];
        let api_server = start(api_server, &[&arguments[..], api_arguments].concat());
        let mut plane = Self {
            folder: folder.to_owned(),
            kubectl,
            scheduler: scheduler.clone(),
            children: vec![etcd, api_server],
        };
        until_holds("the API server is ready", || {
            plane.kubectl(&["get", "--raw", "/readyz"]).is_some()
        });
        let arguments = [
            format!("--kubeconfig={}", at("kubeconfig")),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            CONTROLLERS.to_owned(),
        ];
        plane.children.push(start(controllers, &arguments));
        Some(plane)
    }

    /// Sets another program as the scheduler.
    pub fn set_scheduler(&mut self, program: PathBuf) {
        self.scheduler = program;
    }

    /// Starts the scheduler.
    pub fn start_scheduler(&mut self, arguments: &[String]) {
        let port = "--secure-port=0".to_owned();
        self.children.push(start(&self.scheduler, &[arguments, &[port]].concat()));
    }

    /// Adds a node with its status.
    pub fn add_node(&self, node: &Value) {
        self.apply(node);
        let name = node["metadata"]["name"].as_str().expect("a name");
        let status = json!({"status": node["status"]}).to_string();
        self.kubectl(&[
            "patch",
            "node",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ])
        .expect("a status");
        let _ = self.kubectl(&["taint", "node", name, "node.kubernetes.io/not-ready-"]);
    }

    /// Returns the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Runs kubectl. Returns None if it failed.
    pub fn kubectl(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(&self.kubectl);
        command.env("HOME", &self.folder).arg("--kubeconfig").arg(self.kubeconfig());
        command.args(arguments);
        let outcome = Child::start(command).finish();
        (outcome.code() == Some(0)).then_some(outcome.stdout)
    }

    /// Applies an object.
    pub fn apply(&self, object: &Value) {
        self.apply_text(&object.to_string());
    }

    /// Applies a text.
    pub fn apply_text(&self, text: &str) {
        let file = self.folder.join("applied.yaml");
        fs::write(&file, text).expect("a file");
        let file = file.to_string_lossy().into_owned();
        self.kubectl(&["apply", "--validate=false", "-f", &file]).expect("it is applied");
    }

    /// Returns the objects of a kind in the default namespace.
    #[must_use]
    pub fn list(&self, kind: &str) -> Vec<Value> {
        let text = self.kubectl(&["get", kind, "-o", "json"]).expect("a list");
        let list: Value = serde_json::from_str(&text).expect("JSON");
        list["items"].as_array().cloned().unwrap_or_default()
    }
}
