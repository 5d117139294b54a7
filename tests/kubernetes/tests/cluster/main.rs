//! A real control plane, kubelets and containerd with simulated GPUs, where the environment names
//! the programs (`docs/internals/testing.md`). The documents' pods run with their limits, and keep
//! them through restarts of everything.

mod claims;
mod owners;

use std::collections::BTreeMap;
use std::path::PathBuf;

use cgpu_kubernetes_tests::cluster::{Cluster, NodeSpec, until};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// A T4's allocatable memory in MiB.
const T4: u64 = 15109;

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../kubernetes/examples").join(name)
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().expect("a name")
}

fn pod(name: &str, labels: &str, units: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}{labels}}}}}\nspec:\n{spec}  containers:\n  - name: main\n    \
         image: cheyang/gpu-player:v2\n    resources: {{limits: {{aliyun.com/gpu-mem: {units}}}}}\n"
    )
}

/// Returns the last column of the table line that begins like this.
fn amount(table: &str, begins: &str) -> String {
    let line = table
        .lines()
        .find(|line| line.starts_with(begins))
        .unwrap_or_else(|| panic!("{begins}: {table}"));
    line.split_whitespace().next_back().unwrap_or_default().to_owned()
}

/// Waits until a pod runs. A kubelet rejects pods that come before the plugin has registered again:
/// their owners make others.
fn is_started(cluster: &Cluster, name: &str, text: &str) {
    until(&format!("{name} is started"), || {
        let status = cluster.object("pod", "default", name)?["status"].clone();
        if status["reason"] == "UnexpectedAdmissionError" {
            cluster.delete_text(text);
            cluster.apply_text(text);
        }
        (status["phase"] == "Running").then_some(())
    });
}

/// Four deployments on two nodes with a T4 each: 2, 8 and 8, 2, 5 units of 14, and the document's
/// tables. Then everything is restarted, one after the other.
#[test]
fn deployments_of_document_001_survive_restarts() {
    let test = "deployments_of_document_001_survive_restarts";
    let [one, other] = ["sd-cluster-04", "sd-cluster-05"];
    let node_specs = [(one, "192.168.1.214"), (other, "192.168.1.215")]
        .map(|(name, address)| NodeSpec { name, address, gpus: "T4:15109", is_claimed: false });
    let Some(mut cluster) = Cluster::start(test, &node_specs) else { return };
    let text = std::fs::read_to_string(example("001-four-deployments.yaml")).expect("an example");
    let deployments: Vec<&str> = text.split("\n---\n").collect();
    let mut held: BTreeMap<String, u64> = [one, other].map(|name| (name.to_owned(), 0)).into();
    let mut limits: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let sums = ["2/28 (7%)", "18/28 (64%)", "20/28 (71%)", "25/28 (89%)"];
    for (number, (units, replicas)) in [(2, 1), (8, 2), (2, 1), (5, 1)].into_iter().enumerate() {
        cluster.apply_text(deployments[number]);
        for pod in cluster.running(&format!("app=binpack-{}", number + 1), replicas) {
            let totals = cluster.totals(name(&pod));
            assert_eq!(totals, [T4 * units / 14 * MIB], "{}", name(&pod));
            limits.insert(name(&pod).to_owned(), totals);
            *held.get_mut(pod["spec"]["nodeName"].as_str().expect("a node")).expect("a node") +=
                units;
        }
        let row = |name: &str, address: &str| {
            let gpu = format!("{}/14", held[name]);
            format!("{name}  {address}  {gpu:<21}  {gpu}\n")
        };
        let table = format!(
            "NAME           IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)\n{}{}{}\nAllocated/Total GPU Memory In Cluster:\n{}\n",
            row(one, "192.168.1.214"),
            row(other, "192.168.1.215"),
            "-".repeat(50 + 2 * format!("{}/14", held[one]).len()),
            sums[number]
        );
        assert_eq!(cluster.inspect(&[]).exits(0).stdout, table);
    }
    // kube-scheduler chooses which of two equal nodes is used first.
    let mut amounts: Vec<u64> = held.values().copied().collect();
    amounts.sort_unstable();
    assert_eq!(amounts, [12, 13], "{held:?}");
    plugins_write_their_own_node_only(&cluster);
    let full = held.iter().find(|(_, units)| **units == 13).expect("the fuller one").0.clone();

    cluster.apply_text(&pod("late", "", "3", ""));
    cluster.reported("late", "Insufficient aliyun.com/gpu-mem");

    // A deleted pod's room goes to the pending one.
    cluster.kubectl(&["delete", "deployment", "binpack-4", "--wait=false"]).exits(0);
    let gone: Vec<String> =
        limits.keys().filter(|pod| pod.starts_with("binpack-4")).cloned().collect();
    assert_eq!(gone.len(), 1);
    let [late] = &cluster.running("app=late", 1)[..] else { panic!("one pod") };
    assert_eq!(late["spec"]["nodeName"], full.as_str());
    assert_eq!(cluster.totals("late"), [T4 * 3 / 14 * MIB]);
    limits.retain(|pod, _| !gone.contains(pod));
    limits.insert("late".to_owned(), vec![T4 * 3 / 14 * MIB]);
    let same = |cluster: &Cluster, after: &str| {
        for (pod, totals) in &limits {
            assert_eq!(cluster.totals(pod), *totals, "{pod} after {after}");
        }
    };

    // A restarted kubelet has forgotten the plugin, which registers again.
    cluster.node(&full).stop_kubelet();
    cluster.node(&full).start_kubelet();
    let comes = |cluster: &mut Cluster, pod_name: &str, after: &str| {
        // The forwarded port goes through a kubelet and its engine.
        cluster.forward();
        let spec = format!(
            "  nodeSelector: {{kubernetes.io/hostname: {full}}}\n  terminationGracePeriodSeconds: 1\n"
        );
        let text = pod(pod_name, "", "1", &spec);
        cluster.apply_text(&text);
        is_started(cluster, pod_name, &text);
        assert_eq!(cluster.totals(pod_name), [T4 / 14 * MIB], "after {after}");
        cluster.kubectl(&["delete", "pod", pod_name]).exits(0);
    };
    comes(&mut cluster, "after-kubelet", "a new kubelet");
    same(&cluster, "a new kubelet");

    for name in ["cgpu-device-plugin", "cgpu-scheduler-extender"] {
        let selector = format!("app.kubernetes.io/name={name}");
        cluster.kubectl(&["delete", "pods", "-n", "kube-system", "-l", &selector]).exits(0);
    }
    cluster.install("GiB");
    cluster.restart_scheduler();
    comes(&mut cluster, "after-ours", "new plugins, extenders and scheduler");
    same(&cluster, "new plugins, extenders and scheduler");

    // A follower passes on what it is asked, and another leader comes after the first.
    let [leader, follower] = cluster.leader_and_follower();
    cluster.forward_to(&format!("pod/{follower}"));
    let on_full = |pod_name: &str, units: &str| {
        let spec = format!(
            "  nodeSelector: {{kubernetes.io/hostname: {full}}}\n  terminationGracePeriodSeconds: 1\n  tolerations: [{{operator: Exists}}]\n"
        );
        pod(pod_name, "", units, &spec)
    };
    let passed_on = |cluster: &Cluster| {
        let passed_on = cluster.metric(&follower, "cgpu_extender_passed_on_total");
        passed_on.expect("the follower's metric")
    };
    let before = passed_on(&cluster);
    cluster.apply_text(&on_full("by-leader", "1"));
    cluster.running("app=by-leader", 1);
    let after = passed_on(&cluster);
    println!("{follower} passed on {before}, then {after} requests to {leader}");
    // Filter and bind. One node fits, so there is nothing to prioritize.
    assert!(after >= before + 2, "{before}, {after}");
    cluster.kubectl(&["delete", "pod", "-n", "kube-system", &leader]).exits(0);
    cluster.apply_text(&on_full("by-follower", "1"));
    cluster.running("app=by-follower", 1);
    // The one that is started in its place may lead as well.
    let [next, _] = cluster.leader_and_follower();
    println!("{next} leads after {leader}");
    assert_ne!(next, leader);
    cluster.kubectl(&["delete", "pod", "by-leader", "by-follower"]).exits(0);

    // A container that ends is started again with its slice.
    let restarted = limits.keys().find(|pod| pod.starts_with("binpack-2")).expect("a pod").clone();
    let _ = cluster.kubectl(&["exec", &restarted, "--", "sh", "-c", "kill -TERM 1"]);
    until("its container is replaced", || {
        let pod = cluster.object("pod", "default", &restarted)?;
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"] == 1 && status["ready"] == true).then_some(())
    });
    same(&cluster, "another container");

    // The engine, which its containers outlive.
    cluster.node(&full).stop_containerd();
    cluster.node(&full).start_containerd();
    comes(&mut cluster, "after-engine", "a new containerd");
    same(&cluster, "a new containerd");
    assert_eq!(amount(&cluster.inspect(&[]).exits(0).stdout, &full), "11/14");

    // A node that is gone: after the deadline, its report of containers does not count.
    cluster.kubectl(&["cordon", &full]).exits(0);
    let deployment = "deployment/cgpu-scheduler-extender";
    let deadline = ["CGPU_LOST_AFTER=1", "CGPU_SWEEP=1"];
    let words = [&["set", "env", "-n", "kube-system", deployment][..], &deadline].concat();
    cluster.kubectl(&words).exits(0);
    cluster.rolled_out("deployment", "cgpu-scheduler-extender");
    cluster.kubectl(&["uncordon", &full]).exits(0);
    cluster.forward();
    cluster.apply_text(&on_full("lost", "3"));
    let lost = &cluster.running("app=lost", 1)[0];
    let uid = lost["metadata"]["uid"].as_str().expect("a uid").to_owned();
    until("the node reports it", || {
        let node = cluster.object("node", "", &full)?;
        node["metadata"]["annotations"]["cgpu.dev/held"].as_str()?.contains(&uid).then_some(())
    });
    cluster.node(&full).stop_kubelet();
    cluster.node(&full).run("pkill", &["-KILL", "-f", "^/opt/cgpu/cgpu-device-plugin"]).exits(0);
    cluster.kubectl(&["delete", "pod", "lost", "--grace-period=0", "--force"]).exits(0);
    cluster.apply_text(&on_full("next", "3"));
    println!("{}", cluster.reported("next", "1/1 GPUs: 0 of 3 units free"));
    println!("{}", cluster.diagnosed("next", "no_room"));
    let since = std::time::Instant::now();
    until("the node's report does not count", || {
        // The scheduler tries again when something changes.
        let again = format!("again={}", since.elapsed().as_secs());
        cluster.kubectl(&["label", "node", &full, "--overwrite", &again]).exits(0);
        (cluster.object("pod", "default", "next")?["spec"]["nodeName"] == full.as_str())
            .then_some(())
    });
    println!("its room is given {:?} after the node was gone", since.elapsed());
    let node = cluster.object("node", "", &full).expect("the node");
    let conditions = node["status"]["conditions"].as_array().expect("conditions");
    assert!(conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "Unknown"));
    // It is back, and ends what has no pod any more.
    cluster.node(&full).start_kubelet();
    is_started(&cluster, "next", &on_full("next", "3"));
    assert_eq!(cluster.totals("next"), [T4 * 3 / 14 * MIB]);
    same(&cluster, "the node is back");
}

/// A token of the plugin's account says which pod has it, and by that which node: the policies
/// refuse all others.
fn plugins_write_their_own_node_only(cluster: &Cluster) {
    let account = "cgpu-device-plugin";
    let selector = format!("app.kubernetes.io/name={account}");
    let in_system = ["-n", "kube-system"];
    let get = ["get", "pods", "-l", &selector, "-o", "json"];
    let printed = cluster.kubectl(&[&get[..], &in_system].concat()).exits(0).stdout;
    let list: Value = serde_json::from_str(&printed).expect("JSON");
    let node_of = |pod: &Value| pod["spec"]["nodeName"].as_str().expect("a node").to_owned();
    let plugins = list["items"].as_array().expect("pods");
    let [plugin, other] = &plugins[..] else { panic!("{plugins:#?}") };
    let (own, foreign) = (node_of(plugin), node_of(other));
    let token = |bound: &[&str]| {
        let words = [&["create", "token", account][..], bound, &in_system].concat();
        cluster.kubectl(&words).exits(0).stdout.trim().to_owned()
    };
    let bound = token(&["--bound-object-kind=Pod", "--bound-object-name", name(plugin)]);
    let unbound = token(&[]);
    let refused = |token: &str, path: &str, annotation: &str, policy: &str| {
        let patch = json!({"metadata": {"annotations": {annotation: "{}"}}});
        let (status, body) = cluster.patch_by(token, path, &patch);
        assert_eq!(status, "422", "{path}: {body}");
        assert!(body.contains(&format!("'{policy}' denied")), "{path}: {body}");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        println!("{path}: {}", body["message"]);
    };
    let path = |node: &str| format!("/api/v1/nodes/{node}");
    refused(&bound, &path(&foreign), "cgpu.dev/gpus", "cgpu-nodes");
    refused(&bound, &format!("{}/status", path(&foreign)), "cgpu.dev/gpus", "cgpu-nodes");
    refused(&unbound, &path(&own), "cgpu.dev/gpus", "cgpu-nodes");
    let pods = cluster.pods("app");
    let one = pods.iter().find(|pod| node_of(pod) == foreign).expect("a pod of the other node");
    let pod = format!("/api/v1/namespaces/default/pods/{}", name(one));
    refused(&bound, &pod, "cgpu.dev/slices", "cgpu-pods");
    // A blank at the end changes nothing for its readers.
    let node = cluster.object("node", "", &own).expect("the node");
    let gpus = node["metadata"]["annotations"]["cgpu.dev/gpus"].as_str().expect("GPUs");
    let patch = json!({"metadata": {"annotations": {"cgpu.dev/gpus": format!("{gpus} ")}}});
    let (status, body) = cluster.patch_by(&bound, &path(&own), &patch);
    assert_eq!(status, "200", "{body}");
    println!("{}: the token of its own plugin may", path(&own));
}

/// Document 000: 8 GiB over four GPUs of one node. Document 003: 16 units of 128 MiB on the same
/// node, whose unit changes while the first pod runs. Then requests that cannot be met, and their
/// events.
#[test]
fn stateful_sets_of_documents_000_and_003_run() {
    let test = "stateful_sets_of_documents_000_and_003_run";
    let gpus = "T4:15109,T4:15109,T4:15109,T4:15109";
    let node = "gpu-node";
    let Some(mut cluster) = Cluster::start(
        test,
        &[NodeSpec { name: node, address: "192.168.1.214", gpus, is_claimed: false }],
    ) else {
        return;
    };
    cluster.apply(&example("000-four-gpus.yaml"));
    cluster.running("app=binpack-1", 1);
    let four = |cluster: &Cluster| {
        assert_eq!(cluster.totals("binpack-1-0"), [T4 * 2 / 14 * MIB; 4]);
        let printed = cluster.kubectl(&["exec", "binpack-1-0", "--", "env"]).exits(0).stdout;
        let variables: BTreeMap<&str, &str> =
            printed.lines().filter_map(|line| line.split_once('=')).collect();
        assert_eq!(
            variables["NVIDIA_VISIBLE_DEVICES"]
                .split(',')
                .filter(|gpu| gpu.starts_with("GPU-"))
                .count(),
            4
        );
        assert_eq!(variables["ALIYUN_COM_GPU_MEM_CONTAINER"], "2");
        assert_eq!(variables["ALIYUN_COM_GPU_MEM_DEV"], "14");
    };
    four(&cluster);

    for (pod_name, labels, units, reason, cause) in [
        ("indivisible", ", aliyun.com/gpu-count: \"3\"", "8", "3", "not_understood"),
        ("too-large", "", "15", "15", "never_fits"),
        ("far-too-large", "", "57", "Insufficient aliyun.com/gpu-mem", "never_fits"),
        ("too-many", ", aliyun.com/gpu-count: \"5\"", "5", "5", "never_fits"),
        ("no-number", ", aliyun.com/gpu-count: some", "5", "some", "not_understood"),
    ] {
        cluster.apply_text(&pod(pod_name, labels, units, ""));
        println!("{pod_name}: {}", cluster.reported(pod_name, reason));
        println!("{pod_name}: {}", cluster.diagnosed(pod_name, cause));
        let pod = cluster.object("pod", "default", pod_name).expect("the pod");
        assert!(pod["spec"]["nodeName"].is_null(), "{pod:#}");
        cluster.kubectl(&["delete", "pod", pod_name, "--force", "--grace-period=0"]).exits(0);
    }
    // A weight with which no container can start.
    let weight = "    env: [{name: ALIYUN_COM_GPU_SCHD_WEIGHT, value: \"26\"}]\n    resources:";
    cluster.apply_text(&pod("heavy", "", "2", "").replace("    resources:", weight));
    println!("heavy: {}", cluster.reported("heavy", "expected a whole number from 1 to 25"));
    println!("heavy: {}", cluster.diagnosed("heavy", "not_understood"));
    let heavy = cluster.object("pod", "default", "heavy").expect("the pod");
    assert!(heavy["spec"]["nodeName"].is_null(), "{heavy:#}");
    assert!(heavy["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].is_null(), "{heavy:#}");
    cluster.kubectl(&["delete", "pod", "heavy", "--force", "--grace-period=0"]).exits(0);
    // A pod that bypassed the scheduler is not started, and its status says why.
    cluster.apply_text(&pod("bypass", "", "2", &format!("  nodeName: {node}\n")));
    until("the pod says why it is not started", || {
        let pod = cluster.object("pod", "default", "bypass")?;
        let status = &pod["status"]["containerStatuses"][0];
        let reported = ["waiting", "terminated"]
            .iter()
            .find_map(|state| status["state"][state]["message"].as_str());
        reported.is_some_and(|reported| reported.contains("gets no slice of a GPU")).then_some(())
    });
    println!("bypass: {}", cluster.diagnosed("bypass", "bypassed"));
    cluster.kubectl(&["delete", "pod", "bypass", "--force", "--grace-period=0"]).exits(0);

    // The API server itself refuses what is no number of units.
    for (amount, why) in [
        ("-2", "must be greater than or equal to 0"),
        ("\"1.5\"", "must be an integer"),
        ("2GB", "quantities must match"),
    ] {
        let text = pod("no-amount", "", amount, "");
        let refused = cluster.apply_refused(&text);
        assert!(refused.contains(why), "{amount}: {refused}");
    }
    // HAMi's names without a number of GPUs: the policy adds one, as HAMi's webhook does.
    cluster.apply(&example("hami-one-gpu.yaml"));
    let part = pod("part", "", "1", "").replace("aliyun.com/gpu-mem: 1", "nvidia.com/gpumem: 3000");
    until("the policy adds one GPU", || {
        let _ = cluster.kubectl(&[
            "delete",
            "pod",
            "part",
            "--ignore-not-found",
            "--force",
            "--grace-period=0",
        ]);
        cluster.apply_text(&part);
        let resources =
            cluster.object("pod", "default", "part")?["spec"]["containers"][0]["resources"].clone();
        let one = |kind: &str| {
            resources[kind]["nvidia.com/gpu"] == "1" && resources[kind]["nvidia.com/gpumem"] == "3k"
        };
        (one("limits") && one("requests")).then_some(())
    });
    cluster.kubectl(&["delete", "pod", "part", "--force", "--grace-period=0"]).exits(0);
    // A policy refuses edits of annotations. Without it, as before Kubernetes 1.30, they have an
    // event, and the pod keeps its slice.
    let annotate = |allocation: &str| {
        let annotation = format!("scheduler.framework.gpushare.allocation={allocation}");
        cluster.kubectl(&["annotate", "pod", "binpack-1-0", "--overwrite", &annotation])
    };
    let edit = |allocation: &str| {
        until("the annotation is written", || {
            (annotate(allocation).code() == Some(0)).then_some(())
        })
    };
    let refused = annotate(r#"{"0":{"0":1}}"#).exits(1);
    assert!(refused.stderr.contains("ValidatingAdmissionPolicy 'cgpu-pods'"), "{refused:?}");
    cluster.kubectl(&["delete", "validatingadmissionpolicybinding", "cgpu-pods"]).exits(0);
    edit(r#"{"0":{"0":1}}"#);
    println!("{}", cluster.reported("binpack-1-0", "it counts on every GPU of its node"));
    println!("{}", cluster.diagnosed("binpack-1-0", "spoilt"));
    edit(r#"{"0":{"0":2,"1":2,"2":2,"3":2}}"#);
    four(&cluster);

    // Two schedulers at once. 12 of 14 units are free on each of four GPUs, so four of eight pods
    // of 7 fit, each on its own GPU.
    cluster.start_second_scheduler();
    let seven = |number: usize| {
        let name = format!("seven-{number}");
        let scheduler =
            if number.is_multiple_of(2) { "default-scheduler" } else { "cgpu-scheduler" };
        let spec = format!("  schedulerName: {scheduler}\n  terminationGracePeriodSeconds: 1\n");
        pod(&name, ", among: sevens", "7", &spec)
    };
    cluster.apply_text(&(0..8).map(seven).collect::<Vec<_>>().join("---\n"));
    let placed = until("all are placed or have an event", || {
        let all = cluster.pods("among=sevens");
        let (placed, waiting): (Vec<Value>, Vec<Value>) =
            all.into_iter().partition(|pod| pod["spec"]["nodeName"] == node);
        (placed.len() == 4 && waiting.len() == 4).then_some((placed, waiting))
    });
    for waiting in &placed.1 {
        println!("{}", cluster.reported(name(waiting), "no GPUs for the pod ("));
        println!("{}", cluster.diagnosed(name(waiting), "no_room"));
    }
    let mut gpus: Vec<&str> = Vec::new();
    for pod in &placed.0 {
        gpus.push(
            pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].as_str().expect("a GPU"),
        );
        until("it runs", || {
            let pod = cluster.object("pod", "default", name(pod))?;
            (pod["status"]["phase"] == "Running").then_some(())
        });
    }
    gpus.sort_unstable();
    assert_eq!(gpus, ["0", "1", "2", "3"]);
    cluster.kubectl(&["delete", "pods", "-l", "among=sevens"]).exits(0);
    let spec = "  schedulerName: cgpu-scheduler\n  terminationGracePeriodSeconds: 1\n";
    cluster.apply_text(&pod("by-second", "", "3", spec));
    cluster.running("app=by-second", 1);
    assert_eq!(
        cluster.totals("by-second").iter().filter(|total| **total == T4 * 3 / 14 * MIB).count(),
        1
    );
    cluster.kubectl(&["delete", "pod", "by-second"]).exits(0);

    cluster.install("128MiB");
    let units = (T4 / 128 * 4).to_string();
    until("the node offers smaller units", || {
        let node = cluster.object("node", "", node)?;
        (node["status"]["allocatable"]["aliyun.com/gpu-mem"] == units.as_str()).then_some(())
    });
    cluster.apply(&example("003-units-of-128-mib.yaml"));
    cluster.running("app=binpack-1", 2);
    // Simulated GPUs are all visible in a container, unlike those of the vendor's runtime; one of
    // them has the slice's limit.
    let limit = T4 * 16 / (T4 / 128) * MIB;
    let totals = cluster.totals("binpack-0");
    assert_eq!(totals.iter().filter(|total| **total == limit).count(), 1, "{totals:?}");
    four(&cluster);
    println!("{}", cluster.inspect(&["-d"]).exits(0).stdout);
}

/// Document 004 and other pods with HAMi's names. GPUs of one PCIe root are not next to each other.
#[test]
fn pods_with_hamis_names_run() {
    let gpus = "T4:15109@0.1,T4:15109@0.2,T4:15109@1.1,T4:15109@0.2";
    let node = "gpu-node";
    let node_spec = NodeSpec { name: node, address: "192.168.1.214", gpus, is_claimed: false };
    let Some(mut cluster) = Cluster::start("pods_with_hamis_names_run", &[node_spec]) else {
        return;
    };
    cluster.use_hami_names();
    let count = |cluster: &Cluster, pod: &str, mib: u64| {
        let totals = cluster.totals(pod);
        totals.iter().filter(|total| **total == mib * MIB).count()
    };
    let has = |cluster: &Cluster, pod: &str, line: &str| {
        let text = cluster.kubectl(&["exec", pod, "--", "cat", "/run/cgpu/limits"]).exits(0).stdout;
        println!("{text}");
        text.lines().any(|it| it == line)
    };
    cluster.apply(&example("004-hami.yaml"));
    for (job, is_limited) in [("ai-benchmark", true), ("ai-benchmark-2", false)] {
        let [pod] = &cluster.running(&format!("job-name={job}"), 1)[..] else { panic!("one pod") };
        assert_eq!(count(&cluster, name(pod), 3000), 1, "{job}");
        assert_eq!(has(&cluster, name(pod), "percent 30"), is_limited, "{job}");
    }
    let with = |name: &str, limits: &str| {
        let limits = format!("{{nvidia.com/gpu: {limits}}}");
        pod(name, "", "1", "").replace("{aliyun.com/gpu-mem: 1}", &limits)
    };
    // No node has priorities to give out.
    cluster.apply_text(&with("high", "1, nvidia.com/gpumem: 2000, nvidia.com/priority: 0"));
    cluster.running("app=high", 1);
    assert!(has(&cluster, "high", "high_priority 1"));
    assert_eq!(count(&cluster, "high", 2000), 1);
    cluster.apply_text(&with("two", "2, nvidia.com/gpumem: 5000"));
    let [two] = &cluster.running("app=two", 1)[..] else { panic!("one pod") };
    let allocation = &two["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"];
    println!("two: {allocation}");
    assert_eq!(*allocation, r#"{"0":{"1":5,"3":5}}"#);
    assert_eq!(count(&cluster, "two", 5000), 2);
    for (name, limits, reason, cause) in [
        ("both", "1, aliyun.com/gpu-mem: 2", "expected one of the two", "not_understood"),
        ("five", "5, nvidia.com/gpumem: 1000", "the node has 4", "never_fits"),
    ] {
        cluster.apply_text(&with(name, limits));
        println!("{name}: {}", cluster.reported(name, reason));
        println!("{name}: {}", cluster.diagnosed(name, cause));
        let pod = cluster.object("pod", "default", name).expect("the pod");
        assert!(pod["spec"]["nodeName"].is_null(), "{pod:#}");
        assert!(pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_DEV"].is_null(), "{pod:#}");
    }
    // Without the names, the containers count that the node reports.
    let [wrong, right] = [&["-d"][..], &["-d", "--hami"]].map(|flags| cluster.inspect(flags));
    assert!(wrong.stderr.contains("are not read (4): add --hami"), "{wrong:?}");
    assert_eq!((right.stderr.as_str(), right.code()), ("", Some(0)));
    println!("{}{}{}", wrong.stdout, wrong.stderr, right.stdout);
    let amounts = [&[][..], &["--hami"]].map(|flags| cluster.inspect(flags).exits(0).stdout);
    assert_eq!(amounts.map(|table| amount(&table, node)), ["18/56"; 2]);
}
