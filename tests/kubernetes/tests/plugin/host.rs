//! A node with a kubelet and an engine, its API server, and pods on it.

use std::collections::BTreeMap;

use cgpu_e2e::{Child, Fixture, Outcome};
use cgpu_kubernetes_tests::api_server::{ApiServer, Key};
use cgpu_kubernetes_tests::engine::{Container, Engine};
use cgpu_kubernetes_tests::kubelet::{Admitted, Kubelet};
use serde_json::{Value, json};

pub(crate) const MEMORY: &str = "aliyun.com/gpu-mem";
pub(crate) const CORE: &str = "aliyun.com/gpu-core.percentage";
pub(crate) const COUNT: &str = "aliyun.com/gpu-count";
pub(crate) const NODE: &str = "n1";
pub(crate) const MIB: u64 = 1 << 20;

/// A node with a kubelet and an engine, and its API server. Its parts are in the order of their
/// end.
pub(crate) struct Host<'a> {
    pub(crate) fixture: &'a Fixture,
    pub(crate) server: ApiServer,
    pub(crate) kubelet: Kubelet,
    pub(crate) engine: Engine<'a>,
}

impl<'a> Host<'a> {
    pub(crate) fn new(fixture: &'a Fixture, gpus: &str) -> Self {
        Self::labelled(fixture, gpus, &json!({}))
    }

    pub(crate) fn labelled(fixture: &'a Fixture, gpus: &str, labels: &Value) -> Self {
        let server = ApiServer::start();
        server.put("nodes", json!({"metadata": {"name": NODE, "labels": labels}, "status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}}));
        let engine = Engine::new(fixture, gpus, &fixture.path("cdi"));
        Self { fixture, server, kubelet: Kubelet::start(&fixture.path("plugins")), engine }
    }

    pub(crate) fn command(&self, options: &[&str]) -> std::process::Command {
        let dist = self.fixture.dist();
        let mut command = self.fixture.native(&dist.file("cgpu-device-plugin"));
        command.arg("--kubeconfig").arg(self.server.kubeconfig(&self.fixture.path("")));
        command.args(["--node-name", NODE]);
        for (option, path) in [
            ("--kubelet-dir", self.fixture.path("plugins")),
            ("--root", self.fixture.root()),
            ("--cdi-dir", self.fixture.path("cdi")),
            ("--runtime", dist.file("cgpu-runtime")),
        ] {
            command.arg(option).arg(path);
        }
        command.args(options);
        command
    }

    /// Starts the plugin, which may not have registered yet.
    pub(crate) fn plugin(&self, options: &[&str]) -> Child {
        Child::start_for(self.command(options), self.fixture.lifetime())
    }

    pub(crate) fn node(&self) -> Value {
        self.server.object(&Key::node(NODE)).expect("the node")
    }

    /// Returns the GPUs in the node's annotation.
    pub(crate) fn gpus(&self) -> Vec<Value> {
        let text =
            self.node()["metadata"]["annotations"]["cgpu.dev/gpus"].as_str().map(str::to_owned);
        let reported: Value = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
        reported["gpus"].as_array().cloned().unwrap_or_default()
    }

    /// Waits for this health of two GPUs in the node's annotation.
    pub(crate) fn wait_for_health(&self, healthy: [bool; 2]) {
        self.fixture.eventually("the health of the GPUs on the node", || {
            let gpus = self.gpus();
            (gpus[0]["healthy"] == healthy[0] && gpus[1]["healthy"] == healthy[1]).then_some(())
        });
    }

    /// Makes a GPU report an error (XID).
    pub(crate) fn report(&self, gpu: &str, code: &str) {
        let mut command = self.fixture.native(&self.fixture.dist().file("cgpu-sim"));
        command.args(["xid", gpu, code]);
        Outcome::of(command).exits(0);
    }

    pub(crate) fn uuid(&self, gpu: usize) -> String {
        self.gpus()[gpu]["uuid"].as_str().expect("a UUID").to_owned()
    }

    /// Creates a pod on the node: containers with their limits, and the allocation of GPUs. Null:
    /// the pod bypassed the extender.
    pub(crate) fn pod(
        &self,
        name: &str,
        containers: &[(&str, &[(&str, &str)])],
        allocation: &Value,
    ) -> Value {
        let containers: Vec<Value> =
            containers.iter().map(|(name, limits)| container(name, limits)).collect();
        self.put(name, &json!({ "nodeName": NODE, "containers": containers }), allocation)
    }

    pub(crate) fn put(&self, name: &str, spec: &Value, allocation: &Value) -> Value {
        let mut annotations = json!({});
        if !allocation.is_null() {
            annotations = json!({
                "scheduler.framework.gpushare.allocation": allocation.to_string(),
                "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
                "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
                "cgpu.dev/node": NODE,
            });
        }
        self.server.put(
            "pods",
            json!({
                "metadata": {"name": name, "namespace": "test", "annotations": annotations},
                "spec": spec, "status": {"phase": "Pending"},
            }),
        )
    }

    pub(crate) fn admit(&self, pod: &Value) -> Vec<Admitted> {
        self.kubelet.admit(pod).expect("devices for the pod")
    }

    pub(crate) fn create(&self, pod: &Value, admitted: &Admitted) -> Container {
        self.engine.create(pod, admitted).expect("a container")
    }

    pub(crate) fn wait_for_annotation(&self, pod: &str, name: &str, text: &str) {
        self.fixture.eventually(&format!("{name} of {pod} is {text}"), || {
            let pod = self.server.object(&Key::pod("test", pod))?;
            (pod["metadata"]["annotations"][name] == text).then_some(())
        });
    }
}

pub(crate) fn container(name: &str, limits: &[(&str, &str)]) -> Value {
    let limits: BTreeMap<&str, &str> = limits.iter().copied().collect();
    json!({"name": name, "resources": {"limits": limits, "requests": limits}})
}

/// Returns the limits in a container's `limits` file: bytes by GPU.
pub(crate) fn limits(container: &Container) -> BTreeMap<String, u64> {
    let text = container.limits.as_deref().expect("limits");
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .filter_map(|words| match words[..] {
            ["gpu", uuid, bytes] => Some((uuid.to_owned(), bytes.parse().expect("a number"))),
            _ => None,
        })
        .collect()
}
