//! The policies that replace old resource names by claims. Their settings are in two variables.

use std::slice;

use cgpu_kubernetes_core::container_request::{ContainerRequest, Memory};
use cgpu_kubernetes_core::names::{Dialects, annotation, label};
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::resource_request::ResourceRequest;
use cgpu_kubernetes_core::unit::Unit;
use cgpu_kubernetes_dra::dialect::{ClaimRequest, Compute};
use serde_json::{Value, json};

use crate::interpreter::Policy;
use crate::manifests;
use crate::requests::{AUTHOR, Operation, Request};

/// Name of the policies.
pub(crate) const NAME: &str = "cgpu-dialects";

/// Returns the policies and their bindings with these settings.
pub(crate) fn dialect_objects(unit: Unit, hami: bool) -> Vec<Value> {
    let mut objects = manifests();
    objects.retain(|object| object["metadata"]["name"] == NAME);
    assert_eq!(objects.len(), 4);
    for object in &mut objects {
        for variable in object["spec"]["variables"].as_array_mut().into_iter().flatten() {
            let setting = match variable["name"].as_str() {
                Some("unit") => unit.mib().to_string(),
                Some("hami") => hami.to_string(),
                _ => continue,
            };
            variable["expression"] = json!(setting);
        }
    }
    objects
}

/// The policy that translates, and the one that refuses what is left.
pub(crate) struct Policies {
    translation: Policy,
    refusal: Policy,
}

impl Policies {
    pub(crate) fn new(unit: Unit, hami: bool) -> Self {
        let objects = dialect_objects(unit, hami);
        let of = |kind: &str| {
            Policy::of(objects.iter().find(|object| object["kind"] == kind).expect("a policy"))
        };
        Self {
            translation: of("MutatingAdmissionPolicy"),
            refusal: of("ValidatingAdmissionPolicy"),
        }
    }

    /// Returns a new pod as it is stored, or the message of its refusal.
    pub(crate) fn admit(&self, pod: &Value) -> Result<Value, String> {
        let pod = self.translation.mutated(pod);
        let operation = Operation::Create(pod.clone());
        let request = Request { user: AUTHOR, resource: "pods", operation, refused: false };
        let refusal = self.refusal.refusal(&request);
        refusal.map_or(Ok(pod), |refusal| Err(refusal.message))
    }
}

fn container(name: &str, amounts: &Value) -> Value {
    json!({"name": name, "image": "i", "resources": {"limits": amounts, "requests": amounts}})
}

/// Adds variables, whose names begin with `ALIYUN_COM_GPU_`.
fn with_variables(container: &Value, variables: &[(&str, &str)]) -> Value {
    let mut container = container.clone();
    let variable = |(name, value): &(&str, &str)| json!({"name": format!("ALIYUN_COM_GPU_{name}"), "value": value});
    container["env"] = variables.iter().map(variable).collect();
    container
}

fn pod(containers: &[Value], init_containers: &[Value], gpus: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "new", "namespace": "default"},
        "spec": {"containers": containers},
    });
    if !init_containers.is_empty() {
        pod["spec"]["initContainers"] = json!(init_containers);
    }
    if let Some(gpus) = gpus {
        pod["metadata"]["labels"] = json!({"aliyun.com/gpu-count": gpus});
    }
    pod
}

/// Returns the templates of a pod's claims, and the claims of its containers and init containers.
pub(crate) fn claims(pod: &Value) -> (Vec<(String, String)>, Vec<Vec<String>>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let templates = pod["spec"]["resourceClaims"].as_array().into_iter().flatten();
    let templates = templates.map(|it| (text(&it["name"]), text(&it["resourceClaimTemplateName"])));
    let containers = ["containers", "initContainers"].map(|list| pod["spec"][list].as_array());
    let claims = containers.into_iter().flatten().flatten().map(|it| {
        let claims = it["resources"]["claims"].as_array();
        claims.into_iter().flatten().map(|it| text(&it["name"])).collect()
    });
    (templates.collect(), claims.collect())
}

/// A pod with old resource names, the templates of its claims by their names, and the claims of its
/// containers, init containers last.
type Case = (Value, &'static [(&'static str, &'static str)], &'static [&'static [&'static str]]);

pub(crate) fn translated() -> Vec<Case> {
    let both = json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "30"});
    let main = container("main", &json!({"aliyun.com/gpu-mem": "8", "cpu": "1"}));
    let mut sidecar = container("sidecar", &json!({"aliyun.com/gpu-mem": "8"}));
    sidecar["restartPolicy"] = json!("Always");
    let init = container("init", &json!({"aliyun.com/gpu-mem": "8"}));
    let other = container("other", &json!({"aliyun.com/gpu-mem": "2"}));
    let mut second = main.clone();
    second["name"] = json!("second");
    let mut last = other.clone();
    last["name"] = json!("last");
    let plain = container("plain", &json!({"cpu": "1"}));
    let mut claiming = pod(&[main.clone(), plain.clone()], &[], None);
    claiming["metadata"]["annotations"] = json!({"mine": "1"});
    claiming["metadata"]["labels"] = json!({"app": "x"});
    claiming["spec"]["resourceClaims"] = json!([{"name": "own", "resourceClaimName": "c"}]);
    claiming["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "own"}]);
    vec![
        (
            pod(slice::from_ref(&main), &[], None),
            &[("cgpu-0", "cgpu-memory-8192mi-gpus-1")],
            &[&["cgpu-0"]],
        ),
        // Memory and compute are one claim.
        (
            pod(&[container("main", &both)], &[], Some("2")),
            &[("cgpu-0", "cgpu-memory-4096mi-cores-15-gpus-2")],
            &[&["cgpu-0"]],
        ),
        // Each container has a claim of its own.
        (
            pod(&[plain.clone(), main.clone(), other.clone(), second], &[], None),
            &[
                ("cgpu-1", "cgpu-memory-8192mi-gpus-1"),
                ("cgpu-2", "cgpu-memory-2048mi-gpus-1"),
                ("cgpu-3", "cgpu-memory-8192mi-gpus-1"),
            ],
            &[&[], &["cgpu-1"], &["cgpu-2"], &["cgpu-3"]],
        ),
        // A sidecar runs beside the containers, an init container before them.
        (
            pod(
                slice::from_ref(&main),
                &[sidecar.clone(), init.clone(), plain.clone(), other, last.clone()],
                None,
            ),
            &[
                ("cgpu-0", "cgpu-memory-8192mi-gpus-1"),
                ("cgpu-1", "cgpu-memory-8192mi-gpus-1"),
                ("cgpu-4", "cgpu-memory-2048mi-gpus-1"),
            ],
            &[&["cgpu-0"], &["cgpu-1"], &["cgpu-0"], &[], &["cgpu-4"], &["cgpu-4"]],
        ),
        (
            pod(slice::from_ref(&plain), slice::from_ref(&init), None),
            &[("cgpu-1", "cgpu-memory-8192mi-gpus-1")],
            &[&[], &["cgpu-1"]],
        ),
        // An init container beside a running sidecar does not take its claim.
        (
            pod(slice::from_ref(&plain), &[sidecar, init], None),
            &[("cgpu-1", "cgpu-memory-8192mi-gpus-1"), ("cgpu-2", "cgpu-memory-8192mi-gpus-1")],
            &[&[], &["cgpu-1"], &["cgpu-2"]],
        ),
        // Weight and priority are in variables. Beside a percentage, a weight has no effect.
        (
            pod(
                &[
                    with_variables(&main, &[("SCHD_WEIGHT", "3"), ("HIGH_PRIO", "1")]),
                    with_variables(&container("cores", &both), &[("SCHD_WEIGHT", "3")]),
                    with_variables(&last, &[("SCHD_WEIGHT", "3"), ("SCHD_WEIGHT", "1")]),
                ],
                &[],
                None,
            ),
            &[
                ("cgpu-0", "cgpu-memory-8192mi-weight-3-high-gpus-1"),
                ("cgpu-1", "cgpu-memory-8192mi-cores-30-gpus-1"),
                ("cgpu-2", "cgpu-memory-2048mi-gpus-1"),
            ],
            &[&["cgpu-0"], &["cgpu-1"], &["cgpu-2"]],
        ),
        // Its own claims stay.
        (claiming, &[("cgpu-0", "cgpu-memory-8192mi-gpus-1")], &[&["own", "cgpu-0"], &[]]),
    ]
}

/// A pod with so many containers, half of them init containers.
pub(crate) fn large(containers: usize, amounts: &Value) -> Value {
    let all: Vec<Value> = (0..containers).map(|at| container(&format!("c{at}"), amounts)).collect();
    let (init_containers, containers) = all.split_at(containers / 2);
    pod(containers, init_containers, None)
}

/// Pods that the policies refuse.
pub(crate) fn refused() -> Vec<Value> {
    let of = |amounts: Value, gpus| pod(&[container("main", &amounts)], &[], gpus);
    let memory = json!({"aliyun.com/gpu-mem": "8"});
    let weighted = |weight: &str| {
        pod(&[with_variables(&container("main", &memory), &[("SCHD_WEIGHT", weight)])], &[], None)
    };
    vec![
        of(json!({"aliyun.com/gpu-core.percentage": "30"}), None),
        of(json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "101"}), None),
        of(json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "30"}), Some("4")),
        of(json!({"aliyun.com/gpu-mem": "4294967296"}), None),
        of(memory.clone(), Some("3")),
        of(memory.clone(), Some("0")),
        of(memory.clone(), Some("17")),
        of(memory.clone(), Some("two")),
        weighted("26"),
        weighted("heavy"),
        pod(&[with_variables(&container("main", &memory), &[("HIGH_PRIO", "yes")])], &[], None),
        // One container that is not understood leaves the pod as it is.
        pod(
            &[container("main", &memory), container("o", &json!({"aliyun.com/gpu-mem": "3"}))],
            &[],
            Some("2"),
        ),
    ]
}

#[test]
fn old_resources_become_claims() {
    let policies = Policies::new(Unit::Gib, false);
    for (pod, templates, of_containers) in translated() {
        let admitted = policies.admit(&pod).unwrap_or_else(|refusal| panic!("{refusal}: {pod:#}"));
        let (mut found, claimed) = claims(&admitted);
        let own = pod["spec"]["resourceClaims"].as_array().map_or(0, Vec::len);
        assert!(found.drain(..own).all(|(name, _)| name == "own"), "{admitted:#}");
        let found: Vec<(&str, &str)> = found.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(found, templates, "{pod:#}");
        assert_eq!(claimed, of_containers, "{pod:#}");
        for container in admitted["spec"]["containers"].as_array().expect("containers") {
            let resources = &container["resources"];
            assert!(!resources.to_string().contains("aliyun.com"), "{admitted:#}");
        }
        assert_eq!(admitted["metadata"]["labels"][label::TRANSLATED], "true");
        // The rest stays.
        assert_eq!(
            admitted["metadata"]["annotations"]["mine"],
            pod["metadata"]["annotations"]["mine"]
        );
        assert_eq!(admitted["metadata"]["labels"]["app"], pod["metadata"]["labels"]["app"]);
        let cpu = |pod: &Value| pod["spec"]["containers"][0]["resources"]["limits"]["cpu"].clone();
        assert_eq!(cpu(&admitted), cpu(&pod));
        // A translated pod, which another API server may get, is translated once.
        assert_eq!(policies.admit(&admitted).as_ref(), Ok(&admitted));
    }
}

/// The scheduler with the extender is not needed, and may not be there.
#[test]
fn translated_pods_have_the_schedulers_of_the_cluster() {
    let policies = Policies::new(Unit::Gib, false);
    let scheduler = |name: &str, amounts: &Value| {
        let mut pod = pod(&[container("main", amounts)], &[], None);
        pod["spec"]["schedulerName"] = json!(name);
        policies.admit(&pod).expect("a pod")["spec"]["schedulerName"].clone()
    };
    let memory = json!({"aliyun.com/gpu-mem": "8"});
    assert_eq!(scheduler("cgpu-scheduler", &memory), "default-scheduler");
    assert_eq!(scheduler("of-our-own", &memory), "of-our-own");
    assert_eq!(scheduler("cgpu-scheduler", &json!({})), "cgpu-scheduler");
}

#[test]
fn original_request_is_kept_in_an_annotation() {
    let amounts =
        json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "30", "cpu": "1"});
    let init = container("init", &json!({"aliyun.com/gpu-mem": "2"}));
    let pod = pod(&[container("main", &amounts), container("x", &json!({}))], &[init], None);
    let admitted = Policies::new(Unit::Gib, false).admit(&pod).expect("a pod");
    let original = admitted["metadata"]["annotations"][annotation::REQUEST].as_str();
    let original: Value = serde_json::from_str(original.expect("a text")).expect("JSON");
    assert_eq!(
        original,
        json!({
            "main": {"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "30"},
            "init": {"aliyun.com/gpu-mem": "2"},
        })
    );
}

#[test]
fn requests_that_cannot_become_claims_are_refused() {
    let policies = Policies::new(Unit::Gib, false);
    for pod in refused() {
        let refusal = policies.admit(&pod).expect_err(&format!("{pod:#}"));
        assert!(refusal.contains("cannot become one; expected"), "{refusal}");
        assert_eq!(policies.translation.mutated(&pod), pod);
    }
    // A request unlike its limit, and one without a limit.
    for resources in [
        json!({"limits": {"aliyun.com/gpu-mem": "2"}, "requests": {"aliyun.com/gpu-mem": "1"}}),
        json!({"requests": {"aliyun.com/gpu-mem": "1500m"}}),
    ] {
        let init = json!({"name": "init", "image": "i", "resources": resources});
        let pod = pod(&[container("main", &json!({}))], &[init], None);
        assert!(policies.admit(&pod).is_err(), "{pod:#}");
    }
    // Nothing is requested.
    for amounts in [json!({}), json!({"aliyun.com/gpu-mem": "0"}), json!({"nvidia.com/gpu": "1"})] {
        let pod = pod(&[container("main", &amounts)], &[], Some("two"));
        assert_eq!(policies.admit(&pod), Ok(pod));
    }
}

/// The core says what a pod requests at the other engine.
fn compare(policies: &Policies, unit: Unit, dialects: Dialects, pod: &Value) -> bool {
    let typed: Pod = serde_json::from_value(pod.clone()).expect("a pod");
    let requests = ContainerRequest::of_pod(&typed, dialects);
    let is_high = |request: &ContainerRequest| {
        request.high_priority.filter(|high| *high).map(|_| request.index)
    };
    let high: Vec<usize> = requests.iter().flatten().filter_map(is_high).collect();
    if requests == Ok(Vec::new()) {
        assert_eq!(policies.admit(pod).as_ref(), Ok(pod));
        return false;
    }
    let expected =
        requests.and_then(|requests| ResourceRequest::of(&requests, &typed.metadata.labels));
    let admitted = policies.admit(pod);
    let Ok(expected) = expected else {
        assert!(admitted.is_err(), "{expected:?}: {pod:#}");
        return false;
    };
    // A claim has no percentage of memory.
    if expected.needs.iter().any(|need| matches!(need.memory, Memory::Percent(_))) {
        assert!(admitted.is_err(), "{pod:#}");
        return false;
    }
    let admitted = admitted.unwrap_or_else(|refusal| panic!("{refusal}: {pod:#}"));
    let (templates, of_containers) = claims(&admitted);
    for (index, claimed) in of_containers.iter().enumerate() {
        let need =
            expected.needs.iter().find(|need| need.index == index).map(|need| ClaimRequest {
                mib: match need.memory {
                    Memory::Units(units) => Some(units * unit.mib()),
                    Memory::Mib(mib) => Some(mib),
                    Memory::Whole => None,
                    Memory::Percent(_) => unreachable!("a percentage"),
                },
                compute: match need.percent {
                    0 => Compute::Weight(1),
                    percent => Compute::Cores(percent),
                },
                high_priority: high.contains(&index),
                gpus: need.gpus,
            });
        let template = claimed.first().map(|claim| {
            let (_, template) = templates.iter().find(|(name, _)| name == claim).expect("a claim");
            ClaimRequest::named(template).unwrap_or_else(|| panic!("{template}"))
        });
        assert_eq!(template, need, "container {index} of {pod:#}");
    }
    !expected.needs.is_empty()
}

/// A pod whose containers request these amounts of these resources.
fn with_amounts<const N: usize>(
    names: &[&str; N],
    amounts: &[[&str; N]],
    gpus: Option<&str>,
) -> Value {
    let containers: Vec<Value> = amounts
        .iter()
        .enumerate()
        .map(|(number, amounts)| {
            let given = names.iter().zip(amounts).filter(|(_, amount)| !amount.is_empty());
            let given: serde_json::Map<String, Value> =
                given.map(|(name, amount)| ((*name).to_owned(), json!(amount))).collect();
            container(&format!("c{number}"), &json!(given))
        })
        .collect();
    pod(&containers[1..], &containers[..1], gpus)
}

#[test]
fn claims_have_the_amounts_of_the_other_engine() {
    let (mut translated, mut all) = (0, 0);
    for unit in Unit::ALL {
        let policies = Policies::new(unit, false);
        let names = ["aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"];
        let others = if unit == Unit::Gib {
            &[["", ""], ["2k", "100"], ["", "30"]][..]
        } else {
            &[["1", ""]]
        };
        for &first in others {
            for memory in ["", "0", "4", "6", "1e3", "-1", "1500m"] {
                for percent in ["", "30", "150", "200"] {
                    for gpus in [None, Some("2"), Some("4"), Some("17")] {
                        let pod = with_amounts(&names, &[first, [memory, percent]], gpus);
                        let dialects = Dialects { hami: false };
                        translated += usize::from(compare(&policies, unit, dialects, &pod));
                        all += 1;
                    }
                }
            }
        }
    }
    assert!(translated > 50 && all - translated > 100, "{translated} of {all}");
}

#[test]
fn claims_in_hamis_names_have_the_amounts_of_the_other_engine() {
    let dialects = Dialects { hami: true };
    let policies = Policies::new(Unit::Gib, true);
    let (mut translated, mut all) = (0, 0);
    for gpus in ["", "1", "2", "17"] {
        for (name, amounts) in [
            ("nvidia.com/gpumem", ["", "0", "3000"]),
            ("nvidia.com/gpumem-percentage", ["", "50", "101"]),
            ("nvidia.com/gpucores", ["", "30", "101"]),
        ] {
            for amount in amounts {
                for priority in ["", "0", "1", "2", "1500m"] {
                    // A priority alone requests nothing, and no node has it.
                    let requests_nothing = gpus.is_empty() && ["", "0"].contains(&amount);
                    if requests_nothing && !priority.is_empty() {
                        continue;
                    }
                    let names = ["nvidia.com/gpu", name, "nvidia.com/priority"];
                    let amounts = [["", "", priority], [gpus, amount, priority]];
                    let pod = with_amounts(&names, &amounts, None);
                    translated += usize::from(compare(&policies, Unit::Gib, dialects, &pod));
                    all += 1;
                }
            }
        }
    }
    assert!(translated > 8 && all - translated > 8, "{translated} of {all}");
    // Where two names give memory, the amount counts.
    let amounts = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000",
        "nvidia.com/gpumem-percentage": "50", "nvidia.com/gpucores": "30"});
    let both = pod(&[container("main", &amounts)], &[], None);
    assert!(compare(&policies, Unit::Gib, dialects, &both));
}

#[test]
fn priority_in_hamis_name_is_part_of_the_claim() {
    let policies = Policies::new(Unit::Gib, true);
    let of = |amounts: Value| pod(&[container("main", &amounts)], &[], None);
    for (priority, template) in [("0", "cgpu-high-gpus-1"), ("1", "cgpu-gpus-1")] {
        let amounts = json!({"nvidia.com/gpu": "1", "nvidia.com/priority": priority});
        let admitted = policies.admit(&of(amounts.clone())).expect("a pod");
        assert_eq!(claims(&admitted).0, [("cgpu-0".to_owned(), template.to_owned())]);
        assert!(!admitted["spec"].to_string().contains("nvidia.com"), "{admitted:#}");
        let original = admitted["metadata"]["annotations"][annotation::REQUEST].as_str();
        let original: Value = serde_json::from_str(original.expect("a text")).expect("JSON");
        assert_eq!(original, json!({"main": amounts}));
    }
    // No node has this resource, so the pod would wait without a reason.
    for amounts in [
        json!({"nvidia.com/priority": "1"}),
        json!({"aliyun.com/gpu-mem": "8", "nvidia.com/priority": "0"}),
    ] {
        let refusal = policies.admit(&of(amounts)).expect_err("a refusal");
        assert!(refusal.contains("nvidia.com/priority only beside nvidia.com/gpu"), "{refusal}");
    }
}
