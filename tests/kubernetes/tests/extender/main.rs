//! The real extender with a fake API server.

mod binding;
mod faults;
mod gangs;
mod input;
mod left;
mod memory;
mod preemption;
mod real;
mod replicas;
mod retry;
mod serving;
mod tls;

use std::path::Path;
use std::time::Duration;

use cgpu_kubernetes_tests::api_server::{ApiServer, Fault, FaultAction, Key};
use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::wait::{until, until_holds};
use serde_json::{Value, json};
use tempfile::TempDir;

const NONE: [&str; 0] = [];

const CLAIM: [&str; 7] = [
    "ALIYUN_COM_GPU_MEM_ASSIGNED",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    "ALIYUN_COM_GPU_MEM_DEV",
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_MEM_POD",
    "cgpu.dev/node",
    "scheduler.framework.gpushare.allocation",
];

struct Fixture {
    server: ApiServer,
    folder: TempDir,
}

impl Fixture {
    fn with(nodes: &[Value]) -> Self {
        let server = ApiServer::start();
        for node in nodes {
            server.put("nodes", node.clone());
        }
        Self { server, folder: tempfile::tempdir().expect("a folder") }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn extender(&self) -> Extender {
        Extender::start(&self.server, self.folder(), &NONE)
    }

    fn pod(&self, pod: Value) -> Value {
        self.server.put("pods", pod)
    }

    fn now(&self, pod: &Value) -> Value {
        self.server.object(&key(pod)).expect("the pod is there")
    }

    fn node_of(&self, pod: &Value) -> Option<String> {
        self.now(pod)["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    fn claim(&self, pod: &Value) -> Vec<String> {
        let annotations = &self.now(pod)["metadata"]["annotations"];
        CLAIM
            .iter()
            .filter(|name| !annotations[**name].is_null())
            .map(|name| (*name).to_owned())
            .collect()
    }

    /// Waits for an event on a pod with this reason, and returns its message.
    fn event(&self, pod: &Value, reason: &str) -> String {
        until(&format!("an event {reason}"), || self.event_so_far(pod, reason))
    }

    fn event_so_far(&self, pod: &Value, reason: &str) -> Option<String> {
        let events = self.server.objects("events").into_iter();
        let event = events.into_iter().find(|event| {
            event["reason"] == reason && event["involvedObject"]["uid"] == pod["metadata"]["uid"]
        })?;
        Some(event["message"].as_str()?.to_owned())
    }

    fn wait_for_units(&self, extender: &Extender, node: &str, units: u64) {
        until_holds(&format!("{units} units of {node} are used"), || used(extender, node) == units);
    }
}

/// The steps of a binding at the API server. Between the first two the watch reports the claim.
const STEPS: [(&str, &str); 3] = [("PATCH", "/pods/"), ("", ""), ("POST", "/binding")];

/// Delays a step of the next binding; without a method, the watch, until it is released.
fn delay(fixture: &Fixture, method: &'static str, contains: &str) {
    if method.is_empty() {
        return fixture.server.hold_watches(true);
    }
    let wait = FaultAction::Wait(Duration::from_millis(300));
    fixture.server.fault(Fault::next(method, contains, wait));
}

/// Returns whether a binding has reached this step, by the requests after the first `before`.
fn is_begun(fixture: &Fixture, before: usize, method: &str, contains: &str) -> bool {
    let journal = fixture.server.journal();
    journal[before..].iter().any(|request| match method {
        "" => request.method == "PATCH" && request.status == 200,
        _ => request.method == method && request.path.contains(contains),
    })
}

fn key(pod: &Value) -> Key {
    let text = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
    Key::pod(&text("namespace"), &text("name"))
}

/// Returns a node's used units as the extender reports them.
fn used(extender: &Extender, node: &str) -> u64 {
    let path = format!("/gpushare-scheduler/inspect/{node}");
    let inspected = extender.connection().request("GET", &path, "").json();
    inspected["nodes"][0]["usedGPU"].as_u64().unwrap_or(u64::MAX)
}

fn running(mut pod: Value, node: &str, gpu: u32, units: u64) -> Value {
    let gpu = gpu.to_string();
    pod["spec"]["nodeName"] = json!(node);
    pod["status"]["phase"] = json!("Running");
    pod["metadata"]["annotations"] = json!({
        "ALIYUN_COM_GPU_MEM_IDX": gpu, "ALIYUN_COM_GPU_MEM_POD": units.to_string(),
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "scheduler.framework.gpushare.allocation": json!({"0": {gpu: units}}).to_string(),
        "cgpu.dev/node": node,
    });
    pod
}
