//! Each cause is planted in objects of the API server or in a node's files, and found.

use std::fs;
use std::path::Path;

use cgpu_diagnosis::fixture;
use cgpu_kubernetes_core::cordon::Cordon;
use cgpu_kubernetes_core::names::Dialects;
use serde_json::{Value, json};

use super::causes::{Cause, Findings, Question};
use super::claim::ClaimFacts;
use super::facts::{Facts, ObservedClass, ObservedNode, ObservedPod};
use super::{Scope, diagnose, files};

mod claims;

/// A healthy cluster: a node with two GPUs and its plugin, and a running pod.
struct Cluster {
    nodes: Vec<Value>,
    pods: Vec<Value>,
    classes: Option<Vec<Value>>,
    dialects: Dialects,
}

fn node(name: &str) -> Value {
    let gpus = json!([{"uuid": "GPU-0", "mib": 15109}, {"uuid": "GPU-1", "mib": 15109}]);
    let gpus = json!({"unit": "GiB", "gpus": gpus});
    json!({
        "metadata": {
            "name": name, "labels": {"gpushare": "true"},
            "annotations": {"cgpu.dev/gpus": gpus.to_string()},
        },
        "status": {
            "allocatable": {"aliyun.com/gpu-mem": "28", "aliyun.com/gpu-count": "2"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "runtimeHandlers": [{"name": ""}, {"name": "runc"}, {"name": "cgpu"}],
        },
    })
}

fn pod(name: &str, units: u64) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "test", "uid": format!("uid-{name}"),
            "labels": {}, "annotations": {},
        },
        "spec": {"schedulerName": "cgpu-scheduler",
            "containers": [
                {"name": "main", "env": [], "resources": {"limits": {"aliyun.com/gpu-mem": units}}},
            ]},
        "status": {"phase": "Pending"},
    })
}

/// A running pod, placed on a GPU.
fn running(name: &str, units: u64) -> Value {
    let mut pod = pod(name, units);
    pod["metadata"]["annotations"] = json!({
        "scheduler.framework.gpushare.allocation": json!({"0": {"0": units}}).to_string(),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "cgpu.dev/node": "one",
    });
    pod["spec"]["nodeName"] = json!("one");
    pod["status"]["phase"] = json!("Running");
    pod
}

fn plugin() -> Value {
    json!({
        "metadata": {"name": "plugin-x", "namespace": "kube-system", "uid": "uid-plugin",
            "labels": {"app.kubernetes.io/name": "cgpu-device-plugin"}},
        "spec": {"nodeName": "one", "containers": [{"name": "plugin"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "plugin", "state": {"running": {}}}],
        },
    })
}

fn unscheduled(mut pod: Value, message: &str) -> Value {
    pod["status"]["conditions"] =
        json!([{"type": "PodScheduled", "status": "False", "message": message}]);
    pod
}

impl Cluster {
    fn healthy() -> Self {
        let class = json!({"metadata": {"name": "cgpu"}, "handler": "cgpu"});
        let other = json!({"metadata": {"name": "kata"}, "handler": "kata"});
        Self {
            nodes: vec![node("one")],
            pods: vec![plugin(), running("runs", 2)],
            classes: Some(vec![class, other]),
            dialects: Dialects::default(),
        }
    }

    fn with(mut self, pod: Value) -> Self {
        self.pods.push(pod);
        self
    }

    fn on(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.nodes[0]);
        self
    }

    fn facts(self, claims: ClaimFacts) -> Facts {
        let read = |values: Vec<Value>| -> Vec<ObservedPod> {
            values.into_iter().map(|value| serde_json::from_value(value).unwrap()).collect()
        };
        let nodes: Vec<ObservedNode> =
            self.nodes.into_iter().map(|value| serde_json::from_value(value).unwrap()).collect();
        let classes: Option<Vec<ObservedClass>> = self.classes.map(|all| {
            all.into_iter().map(|value| serde_json::from_value(value).unwrap()).collect()
        });
        Facts::new(self.dialects, nodes, read(self.pods), classes, claims)
    }

    fn findings(self, scope: Scope<'_>) -> Findings {
        let mut findings = Findings::default();
        diagnose(&self.facts(ClaimFacts::default()), &scope, &mut findings).unwrap();
        findings
    }

    fn names(self) -> Vec<&'static str> {
        self.findings(Scope::default()).names()
    }
}

#[test]
fn healthy_system_has_no_findings() {
    assert_eq!(Cluster::healthy().names(), [""; 0]);
    let scope = Scope { pod: Some("runs"), namespace: Some("test"), node: None };
    let findings = Cluster::healthy().findings(scope);
    assert_eq!(findings.text(), "nothing is wrong; examined: pod test/runs\n");
    // A node that is not labelled for sharing is ignored.
    let mut cluster = Cluster::healthy();
    cluster.nodes.push(
        json!({"metadata": {"name": "plain"}, "status": {"runtimeHandlers": [{"name": "runc"}]}}),
    );
    assert_eq!(cluster.names(), [""; 0]);
}

#[test]
fn pending_pods_have_a_cause() {
    let mut divided = pod("p", 9);
    divided["metadata"]["labels"] = json!({"aliyun.com/gpu-count": "2"});
    let mut claimed = running("p", 2);
    claimed["spec"]["nodeName"] = json!("");
    claimed["status"]["phase"] = json!("Pending");
    let refused = "failed calling extender: Post \
                   \"http://x:39999/gpushare-scheduler/filter\": connection refused";
    for (pod, expected) in [
        (divided, vec!["not_understood"]),
        (pod("p", 15), vec!["never_fits"]),
        (pod("p", 5), vec!["unseen"]),
        (unscheduled(pod("p", 5), refused), vec!["extender_silent"]),
        (
            unscheduled(pod("p", 5), "0/3 nodes are available: 3 Insufficient cpu."),
            vec!["other_obstacle"],
        ),
        (claimed, vec!["claimed"]),
    ] {
        assert_eq!(Cluster::healthy().with(pod).names(), expected);
    }
    let mut full = running("full", 14);
    full["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"] =
        json!("{\"0\":{\"1\":14}}");
    let text = Cluster::healthy().with(full).with(pod("p", 13)).findings(Scope::default()).text();
    assert_eq!(
        text,
        "Why is this pod pending?\n  pod test/p (no_room)\n    \
         No node has enough free for the pod.\n    \
         found: one: 2/2 GPUs: 12 of 13 units free\n    \
         do:    Wait until other pods end, request less, divide the request over several GPUs \
         (label aliyun.com/gpu-count), or add a node.\n\
         something is wrong; examined: 1 nodes, 4 pods\n"
    );
    let mut low = running("low", 2);
    low["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"] =
        json!("{\"0\":{\"1\":2}}");
    let mut high = pod("p", 13);
    let cluster = |high: &Value| Cluster::healthy().with(low.clone()).with(high.clone());
    assert_eq!(cluster(&high).names(), ["no_room"]);
    high["spec"]["priority"] = json!(1);
    assert_eq!(cluster(&high).names(), ["fragmented"]);
    let text = cluster(&high).findings(Scope::default()).text();
    assert!(text.contains("found: one: in the way: test/runs\n"), "{text}");
    let mut cluster = Cluster::healthy();
    cluster.nodes.clear();
    cluster.pods = vec![pod("p", 1)];
    assert_eq!(cluster.names(), ["no_nodes"]);
}

/// The cause says what the extender's Event says.
#[test]
fn pod_with_a_bad_request_has_the_refusal_as_its_cause() {
    let with = |limits: Value| {
        let mut pod = pod("p", 2);
        pod["spec"]["containers"][0]["resources"]["limits"] = limits;
        pod
    };
    let units = |amount: &str| with(json!({"aliyun.com/gpu-mem": amount}));
    let mut heavy = pod("p", 2);
    heavy["spec"]["containers"][0]["env"] =
        json!([{"name": "ALIYUN_COM_GPU_SCHD_WEIGHT", "value": "26"}]);
    let both = with(json!({"aliyun.com/gpu-mem": "2", "nvidia.com/gpu": "1"}));
    let [plain, hami] = [false, true].map(|hami| Dialects { hami });
    for (pod, dialects, words) in [
        (units("-2"), plain, "is `-2`, which is negative"),
        (units("1.5"), plain, "is `1.5`, which is not a whole number"),
        (units("2GB"), plain, "is `2GB`, which is not a quantity"),
        (heavy, plain, "is `26`, expected a whole number from 1 to 25"),
        (both.clone(), hami, "requests both aliyun.com/gpu-mem and nvidia.com/gpu"),
    ] {
        let mut cluster = Cluster::healthy().with(pod);
        cluster.dialects = dialects;
        let findings = cluster.findings(Scope::default());
        assert_eq!(findings.names(), ["not_understood"], "{words}");
        assert!(findings.text().contains(words), "{words}: {}", findings.text());
    }
    // Without HAMi's names the second resource is another plugin's.
    assert_eq!(Cluster::healthy().with(both).names(), ["unseen"]);
}

#[test]
fn pod_whose_node_is_gone_has_a_cause() {
    let refused = "binding rejected: failed bind with extender at URL \
                   http://x:39999/gpushare-scheduler/bind, code 500";
    let message = "not bound to node `n9`";
    let names = |pod: Value, uid: &str| {
        let event = json!({
            "reason": "GpuNodeUnknown", "involvedObject": {"uid": uid}, "message": message,
        });
        let mut facts = Cluster::healthy().with(pod).facts(ClaimFacts::default());
        facts.unknown_nodes = vec![serde_json::from_value(event).unwrap()];
        let mut findings = Findings::default();
        diagnose(&facts, &Scope::default(), &mut findings).unwrap();
        assert_eq!(findings.text().contains(message), findings.names() == ["node_gone"]);
        findings.names()
    };
    // Also if no node is left that fits.
    for units in [5, 15] {
        assert_eq!(names(unscheduled(pod("p", units), refused), "uid-p"), ["node_gone"]);
    }
    assert_eq!(names(unscheduled(pod("p", 5), refused), "uid-q"), ["extender_silent"]);
    // The scheduler has tried other nodes since.
    let since = unscheduled(pod("p", 15), "0/1 nodes are available: 1 Insufficient cpu.");
    assert_eq!(names(since, "uid-p"), ["never_fits"]);
}

#[test]
fn unstarted_pods_have_a_cause() {
    let bound = |change: fn(&mut Value)| {
        let mut pod = running("p", 2);
        pod["status"]["phase"] = json!("Pending");
        change(&mut pod);
        pod
    };
    let waiting = |pod: &mut Value, reason: &str| {
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"waiting": {"reason": reason, "message": "no"}}}]);
    };
    let mut refused = bound(|_| ());
    waiting(&mut refused, "RunContainerError");
    let mut pulls = bound(|_| ());
    waiting(&mut pulls, "ContainerCreating");
    let mut rejected = bound(|pod| {
        pod["status"] =
            json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no"})
    });
    rejected["metadata"]["name"] = json!("r");
    for (pod, expected) in [
        (refused, "start_refused"),
        (pulls, "starting"),
        (rejected, "rejected"),
        (bound(|pod| pod["metadata"]["annotations"] = json!({})), "bypassed"),
        (
            bound(|pod| {
                pod["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"] =
                    json!("x")
            }),
            "spoilt",
        ),
        (bound(|pod| pod["spec"]["nodeName"] = json!("gone")), "node_not_ready"),
    ] {
        assert_eq!(Cluster::healthy().with(pod).names(), [expected]);
    }
    let silent = Cluster::healthy().on(|node| {
        node["status"]["conditions"][0] =
            json!({"type": "Ready", "status": "Unknown", "message": "silent"})
    });
    assert_eq!(silent.with(bound(|_| ())).names(), ["node_not_ready"]);
    // Other failures are reported only for a pod that is named.
    let failed = || bound(|pod| pod["status"] = json!({"phase": "Failed", "reason": "Evicted"}));
    assert_eq!(Cluster::healthy().with(failed()).names(), [""; 0]);
    let scope = Scope { pod: Some("p"), namespace: Some("test"), node: None };
    assert_eq!(Cluster::healthy().with(failed()).findings(scope).names(), ["ended"]);
    let done = bound(|pod| pod["status"] = json!({"phase": "Succeeded"}));
    assert_eq!(Cluster::healthy().with(done).findings(scope).names(), ["ended"]);
    let too_much = bound(|pod| {
        pod["status"] = json!({"phase": "Failed", "reason": "OutOfaliyun.com/gpu-mem"})
    });
    assert_eq!(Cluster::healthy().with(too_much).names(), ["rejected"]);
    let metadata = json!({"name": "p", "namespace": "test", "uid": "u"});
    let other = || json!({"metadata": metadata, "status": {"phase": "Running"}});
    assert_eq!(Cluster::healthy().with(other()).names(), [""; 0]);
    assert_eq!(Cluster::healthy().with(other()).findings(scope).names(), ["requests_nothing"]);
}

#[test]
fn unlimited_pods_have_a_cause() {
    let labelled = |name: &'static str, value: &'static str| {
        Cluster::healthy().on(move |node| node["metadata"]["labels"][name] = json!(value))
    };
    assert_eq!(labelled("cgpu.disable.isolation", "true").names(), ["isolation_off"]);
    assert_eq!(labelled("ack.node.gpu.schedule", "share").names(), ["mode_share"]);
    let without = Cluster::healthy()
        .on(|node| node["status"]["runtimeHandlers"] = json!([{"name": ""}, {"name": "runc"}]));
    assert_eq!(without.names(), ["no_runtime"]);
    // Kubelets before 1.30 do not report runtimes.
    assert_eq!(
        Cluster::healthy().on(|node| node["status"]["runtimeHandlers"] = json!(null)).names(),
        [""; 0]
    );
    let with = |change: fn(&mut Value)| {
        let mut pod = running("p", 2);
        change(&mut pod);
        Cluster::healthy().with(pod).names()
    };
    assert_eq!(with(|pod| pod["spec"]["runtimeClassName"] = json!("kata")), ["other_runtime"]);
    assert_eq!(with(|pod| pod["spec"]["runtimeClassName"] = json!("cgpu")), [""; 0]);
    let off = |pod: &mut Value| {
        pod["spec"]["containers"][0]["env"] = json!([{"name": "CGPU_DISABLE", "value": "true"}])
    };
    assert_eq!(with(off), ["switched_off"]);
    let unbound = |pod: &mut Value| {
        pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] = json!("false")
    };
    assert_eq!(with(unbound), ["not_bound"]);
    let resized = |outcome: &'static str| {
        let mut pod = running("p", 2);
        let status = json!({"resize": "weight=0", "outcome": outcome, "message": "m"});
        pod["metadata"]["annotations"]["cgpu.dev/resize-status"] = json!(status.to_string());
        Cluster::healthy().with(pod).names()
    };
    assert_eq!(resized("Applied"), [""; 0]);
    for outcome in ["Refused", "Waiting"] {
        assert_eq!(resized(outcome), ["not_resized"]);
    }
}

#[test]
fn nodes_without_gpus_have_a_cause() {
    let unreported = |pods: Vec<Value>| {
        let mut cluster = Cluster::healthy().on(|node| {
            node["metadata"]["annotations"] = json!({});
            node["status"]["allocatable"] = json!({});
        });
        cluster.pods = pods;
        cluster.names()
    };
    assert_eq!(unreported(vec![]), ["no_nodes", "no_plugin"]);
    assert_eq!(unreported(vec![plugin()]), ["no_nodes", "no_plugin"]);
    let mut failing = plugin();
    failing["status"]["containerStatuses"][0]["state"] =
        json!({"waiting": {"reason": "CrashLoopBackOff"}});
    assert_eq!(unreported(vec![failing]), ["no_nodes", "plugin_failing"]);
    for (name, value) in [("gpushare", "false"), ("ack.node.gpu.schedule", "default")] {
        let out = Cluster::healthy().on(|node| node["metadata"]["labels"][name] = json!(value));
        assert_eq!(out.names(), ["taken_out"], "{name}");
    }
    let unreadable =
        Cluster::healthy().on(|node| node["metadata"]["annotations"]["cgpu.dev/gpus"] = json!("x"));
    // What the pod holds there is not known any more.
    assert_eq!(unreadable.names(), ["no_nodes", "gpus_unreadable", "spoilt"]);
    let unallocatable = || {
        Cluster::healthy()
            .on(|node| node["status"]["allocatable"]["aliyun.com/gpu-mem"] = json!("0"))
    };
    assert_eq!(unallocatable().names(), ["no_units"]);
    let mut removed = unallocatable();
    removed.pods.clear();
    assert_eq!(removed.names(), ["plugin_gone"]);
    let unhealthy = json!({"unit": "GiB", "gpus": [
        {"uuid": "GPU-0", "mib": 15109},
        {"uuid": "GPU-1", "mib": 15109, "healthy": false},
    ]});
    let unhealthy = Cluster::healthy()
        .on(|node| node["metadata"]["annotations"]["cgpu.dev/gpus"] = json!(unhealthy.to_string()));
    assert_eq!(unhealthy.names(), ["gpu_unhealthy"]);
    let mut facts = Cluster::healthy().facts(ClaimFacts::default());
    let node = "one".to_owned();
    facts.cluster.replace_cordons([Cordon { node, gpus: [1].into(), ..Cordon::default() }]);
    let mut findings = Findings::default();
    diagnose(&facts, &Scope::default(), &mut findings).unwrap();
    assert_eq!(findings.names(), ["gpu_taken_out"]);
    let over = Cluster::healthy().with(running("b", 13));
    assert_eq!(over.names(), ["over_full"]);
    let placed = Cluster::healthy()
        .on(|node| node["metadata"]["labels"]["ack.node.gpu.placement"] = json!("x"));
    assert_eq!(placed.names(), ["label_ignored"]);
}

#[test]
fn other_owner_of_a_gpu_is_the_cause() {
    let owned = |owners: [Option<&str>; 2], units: &str| {
        let gpus: Vec<Value> = (0..2)
            .map(|at| json!({"uuid": format!("GPU-{at}"), "mib": 15109, "other_owner": owners[at]}))
            .collect();
        let gpus = json!({"unit": "GiB", "gpus": gpus}).to_string();
        Cluster::healthy().on(|node| {
            node["metadata"]["annotations"]["cgpu.dev/gpus"] = json!(gpus);
            node["status"]["allocatable"]["aliyun.com/gpu-mem"] = json!(units);
        })
    };
    assert_eq!(owned([None, Some("gpu.nvidia.com")], "14").names(), ["other_owner"]);
    // The plugin offers no units then.
    let all = owned([Some("nvidia.com/gpu"); 2], "0");
    assert_eq!(all.names(), ["other_owner"; 2]);
    let text = owned([Some("nvidia.com/gpu"), None], "14")
        .with(pod("large", 15))
        .findings(Scope::default())
        .text();
    for expected in [
        "1/2 GPUs: given out by another plugin or driver, too",
        "found: GPU 0 (GPU-0): nvidia.com/gpu: end that plugin on this node",
        "plugin.arguments={--disjoint-resources=nvidia.com/gpu}",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn files_of_a_node_have_causes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let names = || {
        let mut findings = Findings::default();
        files::examine(root, &mut findings);
        findings.names()
    };
    assert_eq!(
        names(),
        ["runtime_missing", "runtime_missing", "engine_unconfigured", "plugin_absent"]
    );
    put(root, "usr/bin/cgpu-runtime", "");
    put(root, "usr/lib/cgpu/libcgpu.so", "");
    put(root, "var/lib/kubelet/device-plugins/nvidia-gpu.sock", "");
    put(root, "etc/containerd/config.toml", "#BinaryName = \"/usr/bin/cgpu-runtime\"\n");
    assert_eq!(names(), ["engine_unconfigured", "plugin_absent"]);
    put(
        root,
        "etc/containerd/config.toml",
        "[x]\n  BinaryName = \"/usr/bin/cgpu-runtime\"\n  default_runtime_name = \"runc\"\n",
    );
    put(root, "var/lib/kubelet/device-plugins/cgpu-mem.sock", "");
    assert_eq!(names(), ["not_default"]);
    put(root, "etc/containerd/conf.d/a.toml", "default_runtime_name = \"cgpu\" # cgpu\n");
    assert_eq!(names(), [""; 0]);
}

#[test]
fn findings_are_reported_as_json() {
    let findings = Cluster::healthy()
        .with(pod("p", 15))
        .findings(Scope::default())
        .about(Some(Question::Pending));
    let json = findings.json();
    assert_eq!(json["ok"], false);
    assert_eq!(json["causes"][0]["cause"], "never_fits");
    assert_eq!(json["causes"][0]["question"], "pending");
    assert_eq!(json["causes"][0]["found"], "one: 2/2 GPUs: 15 units requested, the largest has 14");
    assert_eq!(json["causes"][0]["severity"], "wrong");
    let none = Cluster::healthy()
        .with(pod("p", 15))
        .findings(Scope::default())
        .about(Some(Question::NoGpu));
    assert!(none.is_well());
}

#[test]
fn missing_pod_or_node_is_an_error() {
    let pod = Scope { pod: Some("x"), namespace: Some("test"), node: None };
    let node = Scope { pod: None, namespace: None, node: Some("x") };
    for (scope, message) in
        [(pod, "pods \"x\" not found in namespace \"test\""), (node, "nodes \"x\" not found")]
    {
        let facts = Cluster::healthy().facts(ClaimFacts::default());
        let error = diagnose(&facts, &scope, &mut Findings::default()).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn each_cause_has_a_name_a_message_and_a_remedy() {
    fixture::check_table::<Cause>();
}

/// `BLESS=1 cargo test -p cgpu-kubernetes-inspect the_page_lists_every_cause` writes the page.
#[test]
fn the_page_lists_every_cause() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/troubleshooting.md");
    fixture::check_page::<Cause>(page, "kubernetes causes");
}

#[test]
fn every_cause_is_planted_by_a_test_here() {
    let tests = [include_str!("tests.rs"), include_str!("tests/claims.rs")].concat();
    fixture::check_planted::<Cause>(&tests);
}
