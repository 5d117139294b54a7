//! A kube-scheduler with the coscheduling plugin, which holds the pods of a gang back in Permit
//! until all of them have a node.

use std::collections::BTreeSet;

use cgpu_e2e::skip;
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::plane::program;
use cgpu_kubernetes_tests::wait::{until, until_holds};
use serde_json::{Value, json};

use super::Cluster;

/// Waits longer than a test takes, unless a gang has a timeout of its own. A gang that found no
/// room rests for a minute: without that, another pod did not get its room within three.
const PROFILE: &str = "\
profiles:
  - schedulerName: default-scheduler
    plugins:
      multiPoint:
        enabled: [{name: Coscheduling}]
      queueSort:
        enabled: [{name: Coscheduling}]
        disabled: [{name: '*'}]
    pluginConfig:
      - name: Coscheduling
        args: {permitWaitingTimeSeconds: 600, podGroupBackoffSeconds: 60}
";

/// A scheduler that does not run. Its pods count as members of their gang, so the plugin tries the
/// others, and never come.
const ABSENT: &str = "absent";

/// Starts all but the scheduler. None, after recording the skip: a program is missing.
fn prepare(test: &str) -> Option<Cluster> {
    let Some(scheduler) = program("COSCHEDULER") else {
        let reason = "TEST_ASSET_COSCHEDULER names no kube-scheduler with the coscheduling plugin";
        skip(test, "coscheduling", reason);
        return None;
    };
    let mut cluster = Cluster::prepare(test, &[], "binpack")?;
    cluster.plane.set_scheduler(scheduler);
    let group = "scheduling.x-k8s.io";
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    cluster.plane.apply(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("podgroups.{group}"),
            // The API server demands it of all that is called `*.k8s.io`.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    }));
    until_holds("the API server serves gangs", || {
        cluster.plane.kubectl(&["get", &format!("podgroups.{group}")]).is_some()
    });
    Some(cluster)
}

impl Cluster {
    /// Creates a gang of so many pods.
    fn add_gang(&self, name: &str, members: usize, more: Value) {
        let mut spec = more;
        spec["minMember"] = json!(members);
        self.plane.apply(&json!({
            "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec,
        }));
    }

    /// Creates a pod of a gang with 9 units.
    fn add_member(&self, gang: &str, name: &str, scheduler: &str) {
        let mut pod = pod("default", name, 9);
        pod["metadata"]["labels"] = json!({"scheduling.x-k8s.io/pod-group": gang});
        pod["spec"]["schedulerName"] = json!(scheduler);
        self.plane.apply(&pod);
    }

    /// Creates a gang of three pods. Two wait in Permit: the third never comes.
    fn add_waiting(&self, gang: &str, [one, two, third]: [&str; 3], more: Value) {
        self.add_gang(gang, 3, more);
        self.add_member(gang, third, ABSENT);
        self.add_member(gang, one, "default-scheduler");
        self.add_member(gang, two, "default-scheduler");
    }

    /// Waits until pods are bound, and returns the node and GPU of each.
    fn devices(&self, pods: &[&str]) -> BTreeSet<(String, String)> {
        let device = |name: &&str| {
            let pod = self.pod(name);
            let gpu = pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].as_str()?;
            Some((pod["spec"]["nodeName"].as_str()?.to_owned(), gpu.to_owned()))
        };
        until(&format!("{pods:?} are bound"), || pods.iter().map(device).collect())
    }

    /// Waits until the scheduler has chosen a node for these pods, and holds them back.
    fn wait_for_permit(&self, pods: &[&str]) {
        until_holds(&format!("{pods:?} wait"), || {
            pods.iter().all(|name| self.pod(name)["status"]["nominatedNodeName"] == "n1")
        });
    }

    fn is_bound(&self, pod: &str) -> bool {
        !self.pod(pod)["spec"]["nodeName"].is_null()
    }

    /// Waits for a Warning of one of these pods with this text.
    fn wait_for_warning(&self, pods: &[&str], text: &str) -> String {
        until(&format!("{pods:?}: {text}"), || {
            self.warnings(pods).into_iter().find(|message| message.contains(text))
        })
    }

    /// Returns the messages of the Warnings of these pods.
    fn warnings(&self, pods: &[&str]) -> Vec<String> {
        let events = self.plane.list("events").into_iter();
        let is_of = |event: &Value| {
            let name = event["involvedObject"]["name"].as_str().unwrap_or_default();
            event["type"] == "Warning" && pods.contains(&name)
        };
        events.filter(is_of).filter_map(|it| it["message"].as_str().map(str::to_owned)).collect()
    }
}

/// Two of 9 units fit on a node; by its sum of 28 the scheduler finds room for three.
#[test]
fn pods_of_the_coscheduling_plugin_get_different_gpus() {
    let test = "pods_of_the_coscheduling_plugin_get_different_gpus";
    let Some(mut cluster) = prepare(test) else { return };
    for name in ["n1", "n2"] {
        cluster.plane.add_node(&node(name, &[15109, 15109]));
    }
    // The plugin fails the first pods of a gang until the last one is there.
    cluster.add_gang("g", 3, json!({}));
    for name in ["a", "b", "c"] {
        cluster.add_member("g", name, "default-scheduler");
    }
    cluster.start_scheduler(&[], PROFILE);
    let devices = cluster.devices(&["a", "b", "c"]);
    println!("{devices:?}");
    assert_eq!(devices.len(), 3, "{devices:?}");
    assert_eq!(cluster.warnings(&["a", "b", "c"]), [""; 0], "bound at the first attempt");
    // A gang for which only a part has room binds nothing, and keeps no room.
    cluster.add_gang("h", 2, json!({}));
    for name in ["d", "e"] {
        cluster.add_member("h", name, "default-scheduler");
    }
    println!("{}", cluster.wait_for_warning(&["d", "e"], "optimistic rejection"));
    cluster.plane.apply(&pod("default", "f", 9));
    println!("{:?}", cluster.devices(&["f"]));
    assert!(!cluster.is_bound("d") && !cluster.is_bound("e"));
}

/// By the sum of the node the scheduler finds room for a third pod of 9 units.
#[test]
fn pods_that_wait_in_permit_keep_their_room_until_they_end_or_time_out() {
    let test = "pods_that_wait_in_permit_keep_their_room_until_they_end_or_time_out";
    let Some(mut cluster) = prepare(test) else { return };
    cluster.plane.add_node(&node("n1", &[15109, 15109]));
    cluster.start_scheduler(&[], PROFILE);
    cluster.add_waiting("g", ["a", "b", "c"], json!({}));
    cluster.wait_for_permit(&["a", "b"]);
    cluster.plane.apply(&pod("default", "large", 9));
    println!("{}", cluster.event("large", "FailedScheduling"));
    cluster.plane.apply(&pod("default", "small", 5));
    println!("{:?}", cluster.devices(&["small"]));
    assert!(["a", "b", "large"].iter().all(|name| !cluster.is_bound(name)));
    for name in ["a", "b", "c"] {
        cluster.end(name);
    }
    println!("{:?}", cluster.devices(&["large"]));
    for name in ["small", "large"] {
        cluster.end(name);
    }
    cluster.add_waiting("h", ["d", "e", "f"], json!({"scheduleTimeoutSeconds": 20}));
    cluster.wait_for_permit(&["d", "e"]);
    cluster.plane.apply(&pod("default", "next", 9));
    println!("{}", cluster.event("next", "FailedScheduling"));
    assert!(!cluster.is_bound("next"));
    println!("{:?}", cluster.devices(&["next"]));
    println!("{:?}", cluster.warnings(&["d", "e"]));
    assert!(!cluster.is_bound("d") && !cluster.is_bound("e"));
}
