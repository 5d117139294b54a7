//! The real extender with a real API server and kube-scheduler, where the environment names them.
//! There is no kubelet: a pod that is being deleted stays until the test ends it.

mod coscheduling;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Dist};
use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::objects::{node, pod, pod_with};
use cgpu_kubernetes_tests::plane::{Plane, scheduler_configuration, with_hami_resources};
use cgpu_kubernetes_tests::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

const LIFETIME: Duration = Duration::from_secs(600);

struct Cluster {
    plane: Plane,
    extender: Extender,
    folder: TempDir,
}

impl Cluster {
    /// A node of two GPUs of 14 units, and three priorities. None: a program is missing.
    fn start(test: &str) -> Option<Self> {
        let cluster = Self::start_with(test, [&[], &[]])?;
        cluster.plane.add_node(&node("n1", &[15109, 15109]));
        Some(cluster)
    }

    /// No node, and more arguments of the API server and the scheduler.
    fn start_with(test: &str, arguments: [&[String]; 2]) -> Option<Self> {
        Self::start_beside(test, arguments, "binpack", "")
    }

    /// As [`Cluster::start_with`], with this choice of nodes, and another extender in the
    /// scheduler's configuration.
    fn start_beside(
        test: &str,
        arguments: [&[String]; 2],
        placement: &str,
        other: &str,
    ) -> Option<Self> {
        let mut cluster = Self::prepare(test, arguments[0], placement)?;
        cluster.start_scheduler(arguments[1], other);
        Some(cluster)
    }

    /// All but the scheduler.
    fn prepare(test: &str, api_arguments: &[String], placement: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let plane = Plane::start(test, folder.path(), api_arguments)?;
        for (name, value) in [("low", 10), ("middle", 20), ("high", 1000)] {
            plane.apply(&json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": name}, "value": value,
            }));
        }
        let extender =
            Extender::start_for(&plane.kubeconfig(), &["--node-placement", placement], LIFETIME);
        Some(Self { plane, extender, folder })
    }

    /// Starts the scheduler with the shipped configuration, which `more` continues.
    fn start_scheduler(&mut self, arguments: &[String], more: &str) {
        let address = self.extender.address().to_string();
        let text = scheduler_configuration(&self.plane.kubeconfig(), &address);
        let text = with_hami_resources(&text);
        let configuration = self.folder.path().join("scheduler.yaml");
        fs::write(&configuration, format!("{text}\n{more}")).expect("a file");
        let configuration = format!("--config={}", configuration.display());
        self.plane.start_scheduler(&[arguments, &[configuration]].concat());
    }

    fn create(&self, name: &str, units: u64, class: &str) {
        let mut pod = pod("default", name, units);
        pod["spec"]["priorityClassName"] = json!(class);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(600);
        self.plane.apply(&pod);
    }

    fn pod(&self, name: &str) -> Value {
        let pods = self.plane.list("pods");
        pods.into_iter().find(|pod| pod["metadata"]["name"] == name).expect("the pod")
    }

    /// Creates a pod, waits until it is bound, and returns its GPU.
    fn place(&self, name: &str, units: u64, class: &str) -> String {
        self.create(name, units, class);
        self.gpu(name)
    }

    /// Waits until a pod is bound, and returns its GPU.
    fn gpu(&self, name: &str) -> String {
        until(&format!("{name} is bound"), || {
            let pod = self.pod(name);
            let gpu = pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].as_str()?;
            (pod["spec"]["nodeName"] == "n1").then(|| gpu.to_owned())
        })
    }

    /// Names of the pods that are being deleted.
    fn victims(&self) -> Vec<String> {
        let pods = self.plane.list("pods").into_iter();
        let victims = pods.filter(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
        victims.map(|pod| pod["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Returns what the doctor found of this cause about a pod.
    fn found(&self, pod: &str, cause: &str) -> String {
        let mut command = Command::new(Dist::find().file("kubectl-inspect-gpushare"));
        command.args(["doctor", pod, "-n", "default", "--json", "--root", "/nonexistent"]);
        command.arg("--kubeconfig").arg(self.plane.kubeconfig());
        let printed = Child::start(command).finish().stdout;
        let report: Value = serde_json::from_str(&printed).expect("JSON");
        let causes = report["causes"].as_array().expect("causes");
        let found = causes.iter().find(|it| it["cause"] == cause);
        let found = found.unwrap_or_else(|| panic!("{cause}: {printed}"));
        found["found"].as_str().expect("a text").to_owned()
    }

    /// Waits for an event of a pod with this reason, and returns its message.
    fn event(&self, pod: &str, reason: &str) -> String {
        until(&format!("{pod} has the event {reason}"), || {
            let events = self.plane.list("events");
            let is_it = |it: &&Value| it["reason"] == reason && it["involvedObject"]["name"] == pod;
            events.iter().find(is_it)?["message"].as_str().map(str::to_owned)
        })
    }

    fn end(&self, pod: &str) {
        let force = ["delete", "pod", pod, "--force", "--grace-period=0", "--wait=false"];
        self.plane.kubectl(&force).expect("it is deleted");
    }
}

/// By the sums of the node, kube-scheduler evicts the pods of the lowest priority, one of each GPU,
/// and the pod for which it did so fits none. A disruption budget protects a pod of the GPU that
/// has the lower priorities, so the other GPU is freed.
#[test]
fn pods_of_low_priority_make_room_on_one_gpu() {
    let Some(cluster) = Cluster::start("pods_of_low_priority_make_room_on_one_gpu") else { return };
    let mut gpus = Vec::new();
    for (name, class) in [("a", "low"), ("b", "low"), ("c", "low"), ("d", "middle")] {
        gpus.push((name, cluster.place(name, 7, class)));
    }
    assert_eq!(gpus[0].1, gpus[1].1);
    assert_eq!(gpus[2].1, gpus[3].1);
    cluster.plane.kubectl(&["label", "pod", "b", "guarded=yes"]).expect("it is labelled");
    cluster.plane.apply(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guard"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"guarded": "yes"}}},
    }));
    cluster.create("high", 14, "high");
    until("the pod is nominated", || {
        (cluster.pod("high")["status"]["nominatedNodeName"] == "n1").then_some(())
    });
    let mut victims = until("two pods are evicted", || {
        Some(cluster.victims()).filter(|victims| victims.len() == 2)
    });
    victims.sort();
    assert_eq!(victims, ["c", "d"]);
    // What the victims leave belongs to the pod.
    cluster.create("late", 7, "low");
    for victim in &victims {
        cluster.end(victim);
    }
    assert_eq!(cluster.gpu("high"), gpus[2].1);
    assert_eq!(cluster.victims(), [""; 0]);
    assert!(cluster.pod("late")["spec"]["nodeName"].is_null());
}

/// A scheduler that does not ask leaves the pod waiting, with an event; another one evicts.
#[test]
fn fragmented_node_is_reported_or_freed() {
    let Some(cluster) = Cluster::start("fragmented_node_is_reported_or_freed") else { return };
    let gpus = ["a", "b"].map(|name| cluster.place(name, 8, "low"));
    assert_ne!(gpus[0], gpus[1]);
    cluster.create("high", 9, "high");
    let outcome = until("the node is reported or freed", || {
        let is_event = |event: &Value| {
            event["reason"] == "GpuFragmented" && event["involvedObject"]["name"] == "high"
        };
        let event = cluster.plane.list("events").into_iter().find(is_event);
        let message = event.and_then(|event| Some(event["message"].as_str()?.to_owned()));
        message.or_else(|| Some(cluster.victims().join(", ")).filter(|names| !names.is_empty()))
    });
    println!("{outcome}");
    assert!(outcome.ends_with('a') || outcome.ends_with('b'), "{outcome}");
    if cluster.victims().is_empty() {
        let found = cluster.found("high", "fragmented");
        println!("{found}");
        assert!(found.starts_with("n1: in the way: "), "{found}");
    }
}

/// The scheduler of 1.36 places all pods of a group before it binds the first one. Two of 9 units
/// fit on a node; by its sum of 28 the scheduler finds room for three.
/// Nothing tells the scheduler that the GPUs are back.
#[test]
fn pod_is_tried_again_when_its_gpus_are_back() {
    let Some(cluster) = Cluster::start("real::pod_is_tried_again_when_its_gpus_are_back") else {
        return;
    };
    cluster.plane.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"gpus": "0,1"},
        "metadata": {"name": "unhealthy-gpu-n1", "namespace": "kube-system"},
    }));
    let probe = pod("default", "probe", 1);
    until("the extender knows it", || {
        (cluster.extender.filter(&probe, &["n1"])["NodeNames"] == json!([])).then_some(())
    });
    cluster.create("waits", 8, "low");
    until("it is refused", || {
        let conditions = cluster.pod("waits")["status"]["conditions"].to_string();
        conditions.contains("2/2 GPUs: unhealthy").then_some(())
    });
    let words = ["delete", "configmap", "unhealthy-gpu-n1", "--namespace", "kube-system"];
    cluster.plane.kubectl(&words).expect("it is deleted");
    cluster.gpu("waits");
    println!("{}", cluster.pod("waits")["metadata"]["annotations"]["cgpu.dev/retried"]);
}

#[test]
fn pods_of_a_gang_get_different_gpus_at_the_first_attempt() {
    let api = [
        "--feature-gates=GenericWorkload=true".to_owned(),
        "--runtime-config=scheduling.k8s.io/v1alpha2=true".to_owned(),
    ];
    let scheduler = ["--feature-gates=GenericWorkload=true,GangScheduling=true".to_owned()];
    let test = "pods_of_a_gang_get_different_gpus_at_the_first_attempt";
    let Some(cluster) = Cluster::start_with(test, [&api, &scheduler]) else { return };
    for name in ["n1", "n2"] {
        cluster.plane.add_node(&node(name, &[15109, 15109]));
    }
    let gang = |name: &str, pods: &[&str]| {
        cluster.plane.apply(&json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": pods.len()}}},
        }));
        for pod in pods {
            let mut pod = self::pod("default", pod, 9);
            pod["spec"]["schedulingGroup"] = json!({"podGroupName": name});
            cluster.plane.apply(&pod);
        }
    };
    let nodes = |pods: &[&str]| {
        until(&format!("{pods:?} are bound"), || {
            let node =
                |name: &&str| cluster.pod(name)["spec"]["nodeName"].as_str().map(str::to_owned);
            pods.iter().map(node).collect::<Option<Vec<String>>>()
        })
    };
    gang("g", &["a", "b", "c"]);
    let mut bound = nodes(&["a", "b", "c"]);
    bound.sort();
    bound.dedup();
    assert_eq!(bound.len(), 2, "{bound:?}");
    let events = cluster.plane.list("events");
    let warns =
        |event: &&Value| event["type"] == "Warning" && event["involvedObject"]["kind"] == "Pod";
    let failed: Vec<&Value> = events.iter().filter(warns).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    // A gang for which only a part has room binds nothing, and keeps no room.
    gang("h", &["d", "e"]);
    until("it does not fit", || {
        let events = cluster.plane.list("events");
        let waits = |pod: &str| {
            events.iter().any(|event| {
                event["involvedObject"]["name"] == pod && event["reason"] == "FailedScheduling"
            })
        };
        (waits("d") || waits("e")).then_some(())
    });
    cluster.plane.kubectl(&["delete", "pod", "d", "e", "--force"]).expect("they are deleted");
    cluster.plane.apply(&self::pod("default", "f", 9));
    nodes(&["f"]);
}

/// The scheduler's plugins prefer n1: the pod's affinity, a taint of n2, free CPU, and the image.
/// They decide between nodes that are equal to the extender, and not against its choice.
#[test]
fn choice_of_the_extender_outweighs_the_plugins_of_the_scheduler() {
    let test = "choice_of_the_extender_outweighs_the_plugins_of_the_scheduler";
    n2_is_chosen(test, "binpack", "n2");
}

/// The same for the emptiest node, with the scheduler's own strategy, LeastAllocated.
#[test]
fn emptiest_node_outweighs_the_plugins_of_the_scheduler() {
    n2_is_chosen("emptiest_node_outweighs_the_plugins_of_the_scheduler", "spread", "n1");
}

/// Asserts that a pod gets n2 when another pod has filled half of a node.
fn n2_is_chosen(test: &str, placement: &str, filled: &str) {
    let Some(cluster) = Cluster::start_beside(test, [&[], &[]], placement, "") else { return };
    let mut preferred = node("n1", &[15109]);
    preferred["status"]["images"] =
        json!([{"names": ["docker.io/example/inference:1"], "sizeBytes": 1_000_000_000}]);
    let mut other = node("n2", &[15109]);
    other["spec"]["taints"] = json!([{"key": "old", "effect": "PreferNoSchedule"}]);
    cluster.plane.add_node(&preferred);
    cluster.plane.add_node(&other);
    let place = |mut pod: Value| {
        let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
        let of_n1 = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]);
        pod["spec"]["affinity"] = json!({"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 100, "preference": {"matchExpressions": of_n1}}],
        }});
        cluster.plane.apply(&pod);
        until(&format!("{name} is bound"), || {
            cluster.pod(&name)["spec"]["nodeName"].as_str().map(str::to_owned)
        })
    };
    let on = |name: &str, mut pod: Value| {
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": name});
        assert_eq!(place(pod), name);
    };
    let mut busy = pod("default", "busy", 1);
    let cpu = json!({"cpu": "6", "memory": "20Gi"});
    busy["spec"]["containers"][0]["resources"] = json!({"limits": cpu, "requests": cpu});
    on("n2", busy);
    assert_eq!(place(pod("default", "equal", 2)), "n1");
    on(filled, pod("default", "full", 7));
    assert_eq!(place(pod("default", "chosen", 2)), "n2");
}

/// Another extender of the scheduler, whose answers are those of the test.
struct OtherExtender {
    listener: TcpListener,
}

/// The scheduler's question, which waits for its answer.
struct Question {
    stream: TcpStream,
    nodes: Value,
}

impl OtherExtender {
    fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").expect("a port") }
    }

    fn configuration(&self) -> String {
        let address = self.listener.local_addr().expect("an address");
        format!(
            "  - urlPrefix: http://{address}\n    filterVerb: filter\n    httpTimeout: 500s\n    nodeCacheCapable: true\n"
        )
    }

    /// Waits for the next question.
    fn question(&self) -> Question {
        let (stream, _) = self.listener.accept().expect("a connection");
        stream.set_read_timeout(Some(LIFETIME)).expect("a timeout");
        let mut reader = BufReader::new(&stream);
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).expect("a header");
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a number");
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let request: Value = serde_json::from_slice(&body).expect("JSON");
        Question { nodes: request["NodeNames"].clone(), stream }
    }
}

impl Question {
    fn answer(mut self, nodes: &Value) {
        let body = json!({"NodeNames": nodes}).to_string();
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json";
        let length = body.len();
        write!(self.stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").expect("an answer");
    }
}

/// The node is deleted after the scheduler has chosen it, and before it binds.
#[test]
fn pod_whose_node_is_gone_is_bound_to_another() {
    let test = "pod_whose_node_is_gone_is_bound_to_another";
    let other = OtherExtender::start();
    let Some(cluster) = Cluster::start_beside(test, [&[], &[]], "binpack", &other.configuration())
    else {
        return;
    };
    for name in ["n1", "n2"] {
        cluster.plane.add_node(&node(name, &[15109]));
    }
    cluster.create("p", 2, "low");
    let question = until("both nodes are known", || {
        let question = other.question();
        if question.nodes.as_array().is_some_and(|nodes| nodes.len() == 2) {
            return Some(question);
        }
        question.answer(&json!([]));
        None
    });
    cluster.plane.kubectl(&["delete", "node", "n1"]).expect("it is deleted");
    let probe = pod("default", "probe", 1);
    until("the extender knows it", || {
        let fitting = cluster.extender.filter(&probe, &["n1", "n2"])["NodeNames"].clone();
        (fitting == json!(["n2"])).then_some(())
    });
    question.answer(&json!(["n1"]));
    // The scheduler tries again.
    let question = other.question();
    assert_eq!(question.nodes, json!(["n2"]));
    let message = cluster.event("p", "GpuNodeUnknown");
    assert!(message.starts_with("not bound to node `n1`"), "{message}");
    assert_eq!(cluster.found("p", "node_gone"), message);
    println!("{message}\n{}", cluster.event("p", "FailedScheduling"));
    let claim = |pod: &Value| pod["metadata"]["annotations"]["cgpu.dev/node"].clone();
    assert_eq!(claim(&cluster.pod("p")), Value::Null);
    question.answer(&json!(["n2"]));
    until("it is bound", || (cluster.pod("p")["spec"]["nodeName"] == "n2").then_some(()));
    assert_eq!(claim(&cluster.pod("p")), "n2");
}

/// The GPUs of a pod are of one PCIe root, where the fuller ones are of two.
#[test]
fn pod_of_two_gpus_gets_those_of_one_pcie_root() {
    let test = "pod_of_two_gpus_gets_those_of_one_pcie_root";
    let Some(cluster) = Cluster::start_with(test, [&[], &[]]) else { return };
    let mut node = node("n1", &[15109; 4]);
    let gpus = [(0, "a"), (1, "b"), (2, "a"), (3, "b")].map(|(at, root)| {
        json!({"uuid": format!("GPU-{root}{at}"), "mib": 15109, "numa_node": 0,
            "pcie_root": format!("pci0000:{root}")})
    });
    let gpus = json!({"unit": "GiB", "gpus": gpus}).to_string();
    node["metadata"]["annotations"]["cgpu.dev/gpus"] = json!(gpus);
    cluster.plane.add_node(&node);
    assert_eq!(
        [("one", 14), ("other", 9)].map(|(name, units)| cluster.place(name, units, "low")),
        ["0", "1"]
    );
    // GPU 0 is full, so 1 comes first, and 3 is near to it.
    let mut pod = pod("default", "both", 4);
    pod["metadata"]["labels"] = json!({"aliyun.com/gpu-count": "2"});
    cluster.plane.apply(&pod);
    let allocation = until("it is bound", || {
        let pod = cluster.pod("both");
        let name = "scheduler.framework.gpushare.allocation";
        let text = pod["metadata"]["annotations"][name].as_str()?;
        serde_json::from_str::<Value>(text).ok()
    });
    assert_eq!(allocation["0"], json!({"1": 2, "3": 2}));
}

/// HAMi's annotations on the real scheduler, with HAMi's resources.
#[test]
fn annotations_of_hami_choose_node_and_gpu() {
    let test = "annotations_of_hami_choose_node_and_gpu";
    let Some(cluster) = Cluster::start_with(test, [&[], &[]]) else { return };
    for (name, products) in [("n1", ["Tesla T4", "Tesla T4"]), ("n2", ["NVIDIA A10", "Tesla T4"])] {
        let mut node = node(name, &[15109, 15109]);
        let gpus = [0, 1].map(
            |at| json!({"uuid": format!("GPU-{name}-{at}"), "mib": 15109, "product": products[at]}),
        );
        let gpus = json!({"unit": "GiB", "gpus": gpus}).to_string();
        node["metadata"]["annotations"]["cgpu.dev/gpus"] = json!(gpus);
        for amounts in ["capacity", "allocatable"] {
            node["status"][amounts]["nvidia.com/gpu"] = json!("20");
        }
        cluster.plane.add_node(&node);
    }
    let limits =
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000", "nvidia.com/priority": "0"});
    let create = |name: &str, annotations: Value| {
        let mut pod = pod_with("default", name, &limits);
        pod["metadata"]["annotations"] = annotations;
        cluster.plane.apply(&pod);
    };
    let place = |name: &str, annotations: Value| {
        create(name, annotations);
        until(&format!("{name} is bound"), || {
            let pod = cluster.pod(name);
            let gpu = pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].as_str()?;
            Some((pod["spec"]["nodeName"].as_str()?.to_owned(), gpu.to_owned()))
        })
    };
    let on = |node: &str, gpu: &str| (node.to_owned(), gpu.to_owned());
    assert_eq!(place("uuid", json!({"nvidia.com/use-gpuuuid": "GPU-n1-1"})), on("n1", "1"));
    // n1 has less free, so it would come first.
    assert_eq!(place("type", json!({"nvidia.com/use-gputype": "a10"})), on("n2", "0"));
    let not_on_n1 = json!({"nvidia.com/nouse-gpuuuid": "GPU-n1-0,GPU-n1-1",
        "nvidia.com/nouse-gputype": "A10"});
    assert_eq!(place("others", not_on_n1), on("n2", "1"));
    // n2 has less free, and a GPU of n1 is in use: the default takes neither.
    let spread = json!({"hami.io/node-scheduler-policy": "spread",
        "hami.io/gpu-scheduler-policy": "spread"});
    assert_eq!(place("policies", spread), on("n1", "0"));
    create("none", json!({"nvidia.com/use-gputype": "H100"}));
    let message = cluster.event("none", "FailedScheduling");
    assert!(message.contains("not permitted by the pod's annotations"), "{message}");
    assert!(cluster.pod("none")["spec"]["nodeName"].is_null());
}
