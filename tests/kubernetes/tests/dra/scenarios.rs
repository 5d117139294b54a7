//! Scenarios of pods and claims on a real control plane. `docs/internals/dra.md` lists them: those
//! that the tests of another driver have, too, and claims that are strange but legal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cgpu_e2e::{Child, Fixture};
use cgpu_kubelet_api::registration::PluginInfo;
use cgpu_kubernetes_tests::kubelet::driver::{DriverKubelet, PreparedDevice};
use cgpu_kubernetes_tests::wait::{until, until_holds};
use serde_json::{Value, json};

use crate::real::{ControlPlane, GPUS, Sums, consumed, devices, given, is_allocated};
use crate::{DRIVER, driver, uid};

/// Kinds of objects that a scenario may leave.
const KINDS: &str = "jobs,deployments,replicasets,pods,resourceclaims,resourceclaimtemplates,\
    resourcequotas";

struct Cluster<'a> {
    fixture: &'a Fixture,
    plane: ControlPlane,
    kubelet: DriverKubelet,
    info: PluginInfo,
    /// Names of the devices.
    names: BTreeMap<String, String>,
    _driver: Child,
}

impl<'a> Cluster<'a> {
    fn start(test: &str, fixture: &'a Fixture) -> Option<Self> {
        let plane = ControlPlane::start(test, &fixture.path(""))?;
        let driver = driver(fixture, &plane.kubeconfig(), &["--vendor-cdi-kind=x.example/gpu"]);
        let kubelet = DriverKubelet::new(&fixture.path("registry"));
        let info = until("the driver", || kubelet.register(DRIVER));
        let names = until("the devices", || Some(devices(&plane)).filter(|it| it.len() == 4));
        Some(Self { fixture, plane, kubelet, info, names, _driver: driver })
    }

    fn apply(&self, objects: &[Value]) {
        self.plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}));
    }

    fn objects(&self, kind: &str) -> Vec<Value> {
        let text = self.plane.kubectl(&["get", kind, "-o", "json"]).expect("objects");
        let list: Value = serde_json::from_str(&text).expect("JSON");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until there are so many claims, all of them allocated.
    fn allocated(&self, count: usize) -> Vec<Value> {
        until("the claims are allocated", || {
            let claims = self.plane.claims();
            (claims.len() == count && claims.iter().all(is_allocated)).then_some(claims)
        })
    }

    /// Waits until the scheduler says that there is no device for a pod's claims.
    fn stays_pending(&self, pod: &str) {
        until_holds("the scheduler finds no device", || {
            let pods = self.objects("pods");
            let pod = pods.iter().find(|it| it["metadata"]["name"] == pod).expect("the pod");
            let conditions = pod["status"]["conditions"].as_array();
            conditions.into_iter().flatten().any(|it| {
                let message = it["message"].as_str().unwrap_or_default();
                it["type"] == "PodScheduled"
                    && it["status"] == "False"
                    && message.contains("cannot allocate all claims")
            })
        });
    }

    /// Prepares claims, and compares what the node gives with what the scheduler counts.
    fn prepare(&self, claims: &[Value]) -> BTreeMap<String, Vec<PreparedDevice>> {
        let all: Vec<&Value> = claims.iter().collect();
        let answers = self.kubelet.prepare(&self.info, &all).expect("an answer");
        let prepared = answers.into_iter().map(|(uid, answer)| (uid, answer.expect("prepared")));
        let prepared = prepared.collect();
        assert_eq!(self.given(), consumed(claims));
        prepared
    }

    /// Returns the message with which the only claim is refused.
    fn refusal(&self, claim: &Value) -> String {
        let mut answers = self.kubelet.prepare(&self.info, &[claim]).expect("an answer");
        answers.remove(uid(claim)).expect("the claim").expect_err("a refusal")
    }

    fn given(&self) -> Sums {
        if self.fixture.root().join("shares").exists() {
            given(self.fixture, &self.names)
        } else {
            Sums::new()
        }
    }

    /// Deletes these kinds of objects.
    fn delete(&self, kinds: &str) {
        let force = ["--all", "--force", "--grace-period=0", "--wait=false"];
        self.plane.kubectl(&[&["delete", kinds][..], &force].concat()).expect("deleted");
    }

    /// Ends a scenario: nothing of its claims is left, at the API server and on the node.
    fn clean(&self, claims: &[Value]) {
        self.delete(KINDS);
        until_holds("the objects are gone", || {
            self.delete("pods");
            self.plane.claims().is_empty() && self.objects("pods").is_empty()
        });
        let all: Vec<&Value> = claims.iter().collect();
        let answers = self.kubelet.unprepare(&self.info, &all).expect("an answer");
        assert!(answers.values().all(Result::is_ok), "{answers:?}");
        assert_eq!(self.given(), Sums::new());
        let specifications = fs::read_dir(self.fixture.path("cdi")).into_iter().flatten();
        assert_eq!(specifications.count(), 0);
    }
}

/// A request for devices of a class, each with this capacity.
fn request(name: &str, class: &str, capacity: &Value) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": class, "capacity": {"requests": capacity}}})
}

fn with(mut request: Value, field: &str, value: Value) -> Value {
    request["exactly"][field] = value;
    request
}

fn devices_of(requests: &[Value]) -> Value {
    json!({"requests": requests})
}

fn claim(name: &str, devices: &Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name}, "spec": {"devices": devices}})
}

fn template(name: &str, devices: &Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name}, "spec": {"spec": {"devices": devices}}})
}

/// Where a pod finds a claim.
#[derive(Clone, Copy)]
enum Source {
    Claim(&'static str),
    Template(&'static str),
}

/// A pod's specification, with containers that each name all of the claims.
fn pod_spec(containers: usize, sources: &[Source]) -> Value {
    let name = |at: usize| format!("claim-{at}");
    let claims: Vec<Value> = (0..sources.len()).map(|at| json!({"name": name(at)})).collect();
    let container = |at: usize| json!({"name": format!("c{at}"), "image": "IMAGE", "resources": {"claims": claims}});
    let source = |(at, source): (usize, &Source)| match source {
        Source::Claim(claim) => json!({"name": name(at), "resourceClaimName": claim}),
        Source::Template(template) => {
            json!({"name": name(at), "resourceClaimTemplateName": template})
        }
    };
    json!({
        "containers": (0..containers).map(container).collect::<Vec<Value>>(),
        "resourceClaims": sources.iter().enumerate().map(source).collect::<Vec<Value>>(),
    })
}

fn pod(name: &str, sources: &[Source]) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": pod_spec(1, sources)})
}

fn results(claim: &Value) -> Vec<Value> {
    let results = claim["status"]["allocation"]["devices"]["results"].as_array();
    results.cloned().unwrap_or_default()
}

/// The devices that claims got, with repetitions, in the order of their names.
fn got(claims: &[Value]) -> Vec<String> {
    let results = claims.iter().flat_map(results);
    let mut names: Vec<String> =
        results.map(|it| it["device"].as_str().expect("a device").to_owned()).collect();
    names.sort();
    names
}

const SMALL: Source = Source::Template("small");
const WHOLE: Source = Source::Template("whole");

fn small() -> Value {
    template("small", &devices_of(&[request("gpu", "cgpu", &json!({"memory": "2Gi"}))]))
}

fn whole() -> Value {
    template("whole", &devices_of(&[request("gpu", "cgpu", &json!({}))]))
}

mod pods {
    use super::*;

    /// A pod for each GPU, and one that waits until the GPU of another is free again.
    pub(super) fn whole_gpus_are_given_once_and_again(cluster: &Cluster<'_>) {
        cluster.apply(&[whole(), pod("a", &[WHOLE]), pod("b", &[WHOLE])]);
        let first = cluster.allocated(2);
        assert_eq!(got(&first), ["gpu-0", "gpu-1"]);
        cluster.prepare(&first);
        cluster.apply(&[pod("c", &[WHOLE])]);
        cluster.stays_pending("c");
        let force = ["delete", "pod", "a", "--force", "--grace-period=0"];
        cluster.plane.kubectl(&force).expect("deleted");
        let claims = cluster.allocated(2);
        assert_eq!(got(&claims), ["gpu-0", "gpu-1"]);
        let is_new = |claim: &&Value| !first.iter().any(|old| uid(old) == uid(claim));
        let new = claims.iter().find(is_new).expect("a new claim");
        // The node has the old claim until it is unprepared.
        assert!(cluster.refusal(new).contains("waits for room"));
        let is_gone = |claim: &&Value| !claims.iter().any(|new| uid(new) == uid(claim));
        let gone: Vec<&Value> = first.iter().filter(is_gone).collect();
        cluster.kubelet.unprepare(&cluster.info, &gone).expect("an answer");
        cluster.prepare(&claims);
        cluster.clean(&claims);
    }

    /// Many pods, and two containers of each, share a claim: it is prepared once.
    pub(super) fn one_claim_of_many_pods_is_prepared_once(cluster: &Cluster<'_>) {
        for _ in 0..3 {
            let capacity = json!({"memory": "8Gi", "weight": "2"});
            let mut objects = vec![claim("c", &devices_of(&[request("gpu", "cgpu", &capacity)]))];
            objects.extend((0..8).map(|at| {
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{at}")},
                    "spec": pod_spec(2, &[Source::Claim("c")])})
            }));
            cluster.apply(&objects);
            let claims = until("the claim is reserved for all", || {
                let claims = cluster.plane.claims();
                let pods = claims[0]["status"]["reservedFor"].as_array().map_or(0, Vec::len);
                (pods == 8).then_some(claims)
            });
            let first = cluster.prepare(&claims);
            for _ in 0..7 {
                assert_eq!(cluster.prepare(&claims), first);
            }
            cluster.clean(&claims);
        }
    }

    /// Independent claims of memory share a GPU until it is full.
    pub(super) fn claims_share_a_gpu_until_it_is_full(cluster: &Cluster<'_>) {
        let first = json!([{"cel": {"expression":
            format!("device.attributes[\"{DRIVER}\"].index == 0")}}]);
        let half = with(request("gpu", "cgpu", &json!({"memory": "20Gi"})), "selectors", first);
        cluster.apply(&[template("half", &devices_of(&[half]))]);
        let half = [Source::Template("half")];
        cluster.apply(&[pod("a", &half), pod("b", &half)]);
        let claims = cluster.allocated(2);
        assert_eq!(got(&claims), ["gpu-0", "gpu-0"]);
        let shares: BTreeSet<String> =
            claims.iter().flat_map(results).map(|it| it["shareID"].to_string()).collect();
        assert_eq!(shares.len(), 2);
        cluster.prepare(&claims);
        cluster.apply(&[pod("c", &half)]);
        cluster.stays_pending("c");
        cluster.clean(&claims);
    }

    /// Two containers with an instance each.
    pub(super) fn instances_are_given_beside_whole_gpus(cluster: &Cluster<'_>) {
        let instance = |name: &str, profile: &str| {
            let expression = format!("device.attributes[\"{DRIVER}\"].migProfile == \"{profile}\"");
            let selectors = json!([{"cel": {"expression": expression}}]);
            with(request(name, "cgpu-mig", &json!({})), "selectors", selectors)
        };
        let both = devices_of(&[instance("small", "1g.5gb"), instance("large", "3g.20gb")]);
        let mut spec = pod_spec(2, &[Source::Template("both")]);
        for (at, name) in ["small", "large"].into_iter().enumerate() {
            spec["containers"][at]["resources"]["claims"] =
                json!([{"name": "claim-0", "request": name}]);
        }
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        cluster.apply(&[template("both", &both), pod]);
        let claims = cluster.allocated(1);
        assert_eq!(got(&claims), ["gpu-2-mig-0", "gpu-2-mig-1"]);
        let prepared = cluster.prepare(&claims);
        let requests: BTreeMap<&str, &str> = prepared[uid(&claims[0])]
            .iter()
            .map(|it| (it.requests[0].as_str(), it.device.as_str()))
            .collect();
        assert_eq!(requests, [("large", "n1/gpu-2-mig-0"), ("small", "n1/gpu-2-mig-1")].into());
        // The GPU of instances is no device, so no pod gets both.
        assert!(!cluster.names.values().any(|name| name == "gpu-2"));
        cluster.clean(&claims);
    }

    /// Selectors by attributes of GPUs.
    pub(super) fn selectors_choose_by_attributes(cluster: &Cluster<'_>) {
        let select = |name: &str, expression: &str| {
            let selectors = json!([{"cel": {"expression": expression}}]);
            let capacity = json!({"memory": "1Gi"});
            let one = with(request("gpu", "cgpu", &capacity), "selectors", selectors);
            template(name, &devices_of(&[one]))
        };
        let of = |attribute: &str| format!("device.attributes[\"{DRIVER}\"].{attribute}");
        cluster.apply(&[
            select(
                "fits",
                &format!(
                    "{}.startsWith(\"Ampere\") && {}.isGreaterThan(semver(\"450.0.0\")) &&
                device.capacity[\"{DRIVER}\"].memory.compareTo(quantity(\"30Gi\")) > 0",
                    of("architecture"),
                    of("driverVersion")
                ),
            ),
            select("none", &format!("{} == \"No such GPU\"", of("productName"))),
            pod("none", &[Source::Template("none")]),
            pod("fits", &[Source::Template("fits")]),
        ]);
        cluster.stays_pending("none");
        let claims: Vec<Value> = until("the claim that fits", || {
            let claims: Vec<Value> =
                cluster.plane.claims().into_iter().filter(is_allocated).collect();
            (claims.len() == 1).then_some(claims)
        });
        cluster.prepare(&claims);
        cluster.clean(&claims);
    }

    /// A job's pods end one after the other, and their claims with them; a deployment's pods have a
    /// GPU each.
    pub(super) fn workloads_of_templates_get_their_gpus(cluster: &Cluster<'_>) {
        let labels = json!({"app": "x"});
        let mut spec = pod_spec(1, &[WHOLE]);
        spec["restartPolicy"] = json!("Never");
        cluster.apply(&[
            whole(),
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"},
                "spec": {"completions": 3, "parallelism": 1, "template": {"spec": spec}}}),
        ]);
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            let claims = until("the next claim of the job", || {
                let claims = cluster.plane.claims();
                let is_next = claims.len() == 1
                    && claims.iter().all(|it| is_allocated(it) && !seen.contains(uid(it)));
                is_next.then_some(claims)
            });
            seen.insert(uid(&claims[0]).to_owned());
            cluster.prepare(&claims);
            let pods = cluster.objects("pods");
            let is_pending = |pod: &&Value| pod["status"]["phase"] == "Pending";
            let pod = pods.iter().find(is_pending).expect("a pod")["metadata"]["name"].clone();
            let pod = pod.as_str().expect("a name");
            let ended = json!({"status": {"phase": "Succeeded"}}).to_string();
            let patch = ["--subresource=status", "--type=merge", "-p", &ended];
            cluster.plane.kubectl(&[&["patch", "pod", pod][..], &patch].concat()).expect("ended");
            let all: Vec<&Value> = claims.iter().collect();
            cluster.kubelet.unprepare(&cluster.info, &all).expect("an answer");
        }
        until_holds("the job is complete", || {
            cluster.objects("jobs")[0]["status"]["succeeded"] == 3
        });
        cluster.clean(&[]);
        cluster.apply(&[
            whole(),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
                "spec": {"replicas": 2, "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod_spec(1, &[WHOLE])}}}),
        ]);
        let claims = cluster.allocated(2);
        assert_eq!(got(&claims), ["gpu-0", "gpu-1"]);
        cluster.prepare(&claims);
        cluster.clean(&claims);
    }

    /// Claims that come and go quickly leave nothing, and the slices unchanged.
    pub(super) fn quick_claims_leave_nothing(cluster: &Cluster<'_>) {
        let before = cluster.objects("resourceslices");
        for _ in 0..10 {
            cluster.apply(&[small(), pod("p", &[SMALL])]);
            let claims = cluster.allocated(1);
            cluster.prepare(&claims);
            cluster.clean(&claims);
        }
        assert_eq!(cluster.objects("resourceslices"), before);
    }

    /// Configuration that is not ours, or not understood, is refused before a container starts.
    pub(super) fn configuration_that_is_not_understood_is_refused(cluster: &Cluster<'_>) {
        for (parameters, words) in [
            (
                json!({"apiVersion": "cgpu.dev/v1alpha1", "kind": "SliceConfig", "burst": true}),
                "burst",
            ),
            (
                json!({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
                "sharing": {"strategy": "TimeSlicing"}}),
                "sharing",
            ),
        ] {
            let mut devices = devices_of(&[request("gpu", "cgpu", &json!({"memory": "1Gi"}))]);
            devices["config"] = json!([{"opaque": {"driver": DRIVER, "parameters": parameters}}]);
            cluster.apply(&[claim("c", &devices), pod("p", &[Source::Claim("c")])]);
            let claims = cluster.allocated(1);
            let refusal = cluster.refusal(&claims[0]);
            assert!(refusal.contains(words), "{refusal}");
            cluster.clean(&claims);
        }
    }

    /// The page's commands as they are, but for the rollout of DaemonSets that are not here.
    pub(super) fn commands_of_the_page_are_accepted(cluster: &Cluster<'_>) {
        cluster.plane.kubectl(&["create", "namespace", "team"]).expect("a namespace");
        for (heading, count) in
            [("## Switch a node's engine", 9), ("### Bound what a namespace may claim", 2)]
        {
            let commands = commands(heading);
            assert_eq!(commands.len(), count, "{commands:?}");
            for words in commands.iter().filter(|words| words[0] != "rollout") {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                assert!(cluster.plane.kubectl(&words).is_some(), "{words:?}");
            }
        }
        let quotas = cluster.plane.kubectl(&["get", "quota", "-n", "team", "-o", "json"]);
        let quotas: Value = serde_json::from_str(&quotas.expect("quotas")).expect("JSON");
        let resource = "cgpu.deviceclass.resource.k8s.io/devices";
        assert_eq!(quotas["items"][0]["spec"]["hard"][resource], "4");
    }

    /// A quota counts devices of a class: all of a request, and as many as possible of `All`.
    pub(super) fn quota_counts_devices(cluster: &Cluster<'_>) {
        let resource = "cgpu.deviceclass.resource.k8s.io/devices";
        cluster.apply(&[json!({"apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": "q"}, "spec": {"hard": {resource: "3"}}})]);
        until_holds("the quota counts", || {
            cluster.objects("resourcequotas")[0]["status"]["used"][resource] == "0"
        });
        let of = |name: &str, field: &str, value: Value| {
            let one = with(request("gpu", "cgpu", &json!({"memory": "1Gi"})), field, value);
            claim(name, &devices_of(&[one]))
        };
        cluster.apply(&[of("two", "count", json!(2))]);
        for claim in [of("three", "count", json!(2)), of("all", "allocationMode", json!("All"))] {
            let file = cluster.fixture.path("refused.json");
            fs::write(&file, claim.to_string()).expect("a file");
            let file = file.to_string_lossy().into_owned();
            let applied = ["create", "--validate=false", "-f", &file];
            assert_eq!(cluster.plane.kubectl(&applied), None, "{claim}");
        }
        cluster.apply(&[of("one", "count", json!(1))]);
        cluster.clean(&[]);
    }
}

/// Returns the commands of kubectl in a section of the page for users, in which names are in
/// capitals.
fn commands(heading: &str) -> Vec<Vec<String>> {
    let page = include_str!("../../../../docs/kubernetes.md");
    let section = page.split(heading).nth(1).expect("the section");
    let section = section.split("\n##").next().unwrap_or_default();
    let text = section.replace("\\\n", "");
    let lines = text.lines().filter_map(|line| line.strip_prefix("    kubectl "));
    let words = |line: &str| {
        let line = line.replace("NODE", crate::NODE).replace("TEAM", "team");
        line.split_whitespace().map(str::to_owned).collect()
    };
    lines.map(words).collect()
}

mod strange {
    use super::*;

    fn names(prepared: &BTreeMap<String, Vec<PreparedDevice>>) -> Vec<&str> {
        let devices = prepared.values().flatten();
        let mut names: Vec<&str> =
            devices.flat_map(|it| &it.requests).map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The second alternative is given, under the name that containers use.
    pub(super) fn first_available_alternative(cluster: &Cluster<'_>) {
        let alternative = |name: &str, memory: &str| {
            json!({"name": name, "deviceClassName": "cgpu",
                "capacity": {"requests": {"memory": memory}}})
        };
        let alternatives = [alternative("large", "80Gi"), alternative("small", "4Gi")];
        let requests = [json!({"name": "gpu", "firstAvailable": alternatives})];
        cluster.apply(&[claim("c", &devices_of(&requests)), pod("p", &[Source::Claim("c")])]);
        let claims = cluster.allocated(1);
        assert_eq!(results(&claims[0])[0]["request"], "gpu/small");
        assert_eq!(names(&cluster.prepare(&claims)), ["gpu"]);
        cluster.clean(&claims);
    }

    /// All GPUs, one share of each.
    pub(super) fn all_devices(cluster: &Cluster<'_>) {
        let all = with(
            request("gpu", "cgpu", &json!({"memory": "1000Mi"})),
            "allocationMode",
            json!("All"),
        );
        cluster.apply(&[claim("c", &devices_of(&[all])), pod("p", &[Source::Claim("c")])]);
        let claims = cluster.allocated(1);
        assert_eq!(got(&claims), ["gpu-0", "gpu-1"]);
        // Memory is rounded up to the step.
        assert_eq!(results(&claims[0])[0]["consumedCapacity"]["memory"], "1Gi");
        assert_eq!(cluster.prepare(&claims)[uid(&claims[0])].len(), 2);
        cluster.clean(&claims);
    }

    /// The devices of one request differ, those of several requests need not: a constraint makes
    /// them.
    pub(super) fn several_devices_of_one_claim(cluster: &Cluster<'_>) {
        let one = |name: &str| request(name, "cgpu", &json!({"memory": "1Gi"}));
        let counted = |count: u64| devices_of(&[with(one("gpu"), "count", json!(count))]);
        let named = |names: &[&str]| {
            let requests: Vec<Value> = names.iter().map(|name| one(name)).collect();
            devices_of(&requests)
        };
        let different = |mut devices: Value| {
            devices["constraints"] = json!([{"distinctAttribute": format!("{DRIVER}/uuid")}]);
            devices
        };
        for (devices, expected) in [
            (counted(2), &["gpu-0", "gpu-1"][..]),
            (counted(3), &[]),
            (different(counted(2)), &["gpu-0", "gpu-1"]),
            (named(&["a", "b", "c"]), &["gpu-0", "gpu-0", "gpu-0"]),
            (different(named(&["a", "b"])), &["gpu-0", "gpu-1"]),
            (different(named(&["a", "b", "c"])), &[]),
        ] {
            cluster.apply(&[claim("c", &devices), pod("p", &[Source::Claim("c")])]);
            if expected.is_empty() {
                cluster.stays_pending("p");
                cluster.clean(&[]);
                continue;
            }
            let claims = cluster.allocated(1);
            assert_eq!(got(&claims), expected, "{devices}");
            let prepared = cluster.prepare(&claims);
            let ids = prepared[uid(&claims[0])].iter().flat_map(|it| &it.cdi);
            let shares: BTreeSet<&String> =
                ids.filter(|id| id.starts_with("cgpu.dev/share=")).collect();
            assert_eq!(shares.len(), expected.len(), "{devices}");
            cluster.clean(&claims);
        }
    }

    /// Administration sees a GPU that is full, and has no limit.
    pub(super) fn administration(cluster: &Cluster<'_>) {
        let label = "resource.kubernetes.io/admin-access=true";
        cluster.plane.kubectl(&["label", "namespace", "default", label]).expect("a label");
        let most = json!({"memory": "30Gi"});
        let all = with(request("gpu", "cgpu", &most), "allocationMode", json!("All"));
        let one = request("gpu", "cgpu", &json!({"memory": "128Mi"}));
        let one = with(one, "adminAccess", json!(true));
        cluster.apply(&[
            claim("tenant", &devices_of(&[all])),
            claim("admin", &devices_of(&[one])),
            pod("tenant", &[Source::Claim("tenant")]),
            pod("admin", &[Source::Claim("admin")]),
        ]);
        let claims = cluster.allocated(2);
        let prepared = cluster.prepare(&claims);
        let admin = claims.iter().find(|it| it["metadata"]["name"] == "admin").expect("a claim");
        let devices = &prepared[uid(admin)];
        assert_eq!(devices.len(), 1);
        assert!(devices[0].cdi.iter().all(|id| id.starts_with("x.example/gpu=")), "{devices:?}");
        cluster.clean(&claims);
    }

    /// A claim with a device of another driver: ours is prepared, and nothing is said of the other.
    pub(super) fn devices_of_another_driver(cluster: &Cluster<'_>) {
        let expression = "device.driver == \"nic.example\"";
        cluster.apply(&[
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
                "metadata": {"name": "nic"},
                "spec": {"selectors": [{"cel": {"expression": expression}}]}}),
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
                "metadata": {"name": "nics"},
                "spec": {"driver": "nic.example", "nodeName": crate::NODE,
                    "pool": {"name": "nics", "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": "nic-0"}]}}),
        ]);
        let nic = json!({"name": "nic", "exactly": {"deviceClassName": "nic"}});
        let gpu = request("gpu", "cgpu", &json!({"memory": "1Gi"}));
        cluster.apply(&[claim("c", &devices_of(&[nic, gpu])), pod("p", &[Source::Claim("c")])]);
        let claims = cluster.allocated(1);
        assert_eq!(results(&claims[0]).len(), 2);
        assert_eq!(names(&cluster.prepare(&claims)), ["gpu"]);
        cluster.clean(&claims);
        cluster.plane.kubectl(&["delete", "resourceslice", "nics"]).expect("deleted");
    }

    /// One container with two claims, and with two requests of one of them.
    pub(super) fn several_claims_of_one_container(cluster: &Cluster<'_>) {
        let one = |name: &str| request(name, "cgpu", &json!({"memory": "1Gi"}));
        cluster.apply(&[
            small(),
            claim("c", &devices_of(&[one("first"), one("second")])),
            pod("p", &[Source::Claim("c"), SMALL]),
        ]);
        let claims = cluster.allocated(2);
        assert_eq!(names(&cluster.prepare(&claims)), ["first", "gpu", "second"]);
        cluster.clean(&claims);
        // Two whole GPUs of two claims are two GPUs.
        cluster.apply(&[whole(), pod("p", &[WHOLE, WHOLE])]);
        let claims = cluster.allocated(2);
        assert_eq!(got(&claims), ["gpu-0", "gpu-1"]);
        cluster.prepare(&claims);
        cluster.clean(&claims);
    }

    /// A class has defaults, and the claim may change them.
    pub(super) fn configuration_of_class_and_claim(cluster: &Cluster<'_>) {
        let config = |high: bool| {
            json!([{"opaque": {"driver": DRIVER, "parameters": {
                "apiVersion": "cgpu.dev/v1alpha1", "kind": "SliceConfig", "highPriority": high}}}])
        };
        let expression = format!(
            "device.driver == \"{DRIVER}\" && device.attributes[\"{DRIVER}\"].type == \"gpu\""
        );
        cluster.apply(&[json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": "cgpu-urgent"},
            "spec": {"selectors": [{"cel": {"expression": expression}}], "config": config(true)}})]);
        let plain = devices_of(&[request("gpu", "cgpu-urgent", &json!({"memory": "1Gi"}))]);
        let mut changed = plain.clone();
        changed["config"] = config(false);
        for (devices, is_high) in [(plain, true), (changed, false)] {
            cluster.apply(&[claim("c", &devices), pod("p", &[Source::Claim("c")])]);
            let claims = cluster.allocated(1);
            cluster.prepare(&claims);
            let share = format!("shares/{}-0", uid(&claims[0]));
            let limits = fs::read_to_string(cluster.fixture.root().join(share)).expect("limits");
            assert_eq!(limits.contains("high_priority 1"), is_high, "{limits}");
            cluster.clean(&claims);
        }
    }

    /// The scheduler knows capacities by their plain names only.
    pub(super) fn capacity_with_the_drivers_name(cluster: &Cluster<'_>) {
        let qualified = json!({format!("{DRIVER}/memory"): "1Gi"});
        let devices = devices_of(&[request("gpu", "cgpu", &qualified)]);
        cluster.apply(&[claim("c", &devices), pod("p", &[Source::Claim("c")])]);
        cluster.stays_pending("p");
        cluster.clean(&[]);
    }
}

#[test]
fn scenarios_of_pods_run_on_the_real_control_plane() {
    let fixture = Fixture::new(GPUS);
    let test = "scenarios_of_pods_run_on_the_real_control_plane";
    let Some(cluster) = Cluster::start(test, &fixture) else { return };
    pods::whole_gpus_are_given_once_and_again(&cluster);
    pods::one_claim_of_many_pods_is_prepared_once(&cluster);
    pods::claims_share_a_gpu_until_it_is_full(&cluster);
    pods::instances_are_given_beside_whole_gpus(&cluster);
    pods::selectors_choose_by_attributes(&cluster);
    pods::workloads_of_templates_get_their_gpus(&cluster);
    pods::quick_claims_leave_nothing(&cluster);
    pods::configuration_that_is_not_understood_is_refused(&cluster);
    pods::quota_counts_devices(&cluster);
    pods::commands_of_the_page_are_accepted(&cluster);
}

#[test]
fn strange_claims_are_prepared_as_allocated() {
    let fixture = Fixture::new(GPUS);
    let test = "strange_claims_are_prepared_as_allocated";
    let Some(cluster) = Cluster::start(test, &fixture) else { return };
    strange::first_available_alternative(&cluster);
    strange::all_devices(&cluster);
    strange::several_devices_of_one_claim(&cluster);
    strange::administration(&cluster);
    strange::devices_of_another_driver(&cluster);
    strange::several_claims_of_one_container(&cluster);
    strange::configuration_of_class_and_claim(&cluster);
    strange::capacity_with_the_drivers_name(&cluster);
}
