//! The admission policies of the manifests, against one table of requests: by an interpreter of
//! CEL, and by a real API server where the environment names one.

mod claims;
mod defaults;
mod dialects;
mod interpreter;
mod real;
mod requests;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cgpu_kubernetes_core::names::annotation;
use serde_json::Value;

use crate::interpreter::Policy;
use crate::requests::requests;

/// Returns the objects of a file of the repository.
fn objects_of(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let text = fs::read_to_string(path).expect("the manifests");
    serde_saphyr::from_multiple::<Value>(&text).expect("YAML")
}

/// Returns the objects of both manifests, which share some.
fn manifests() -> Vec<Value> {
    let mut objects = objects_of("kubernetes/manifests/cgpu.yaml");
    for object in objects_of("kubernetes/manifests/cgpu-dra.yaml") {
        if !objects.contains(&object) {
            objects.push(object);
        }
    }
    objects
}

/// Returns the policies of all namespaces, and their bindings.
fn policy_objects() -> Vec<Value> {
    let is_policy = |object: &Value| {
        object["kind"].as_str().unwrap_or_default().starts_with("ValidatingAdmissionPolicy")
            && object["metadata"]["name"] != dialects::NAME
    };
    manifests().into_iter().filter(is_policy).collect()
}

fn policies() -> Vec<Policy> {
    let objects = policy_objects();
    let is_policy = |object: &&Value| object["kind"] == "ValidatingAdmissionPolicy";
    objects.iter().filter(is_policy).map(Policy::of).collect()
}

#[test]
fn policies_allow_and_refuse_the_requests_of_the_table() {
    let policies = policies();
    assert_eq!(policies.len(), 6);
    let requests = requests();
    let refusals: BTreeSet<String> = requests
        .iter()
        .filter_map(|request| {
            let refusal = policies.iter().find_map(|policy| policy.refusal(request));
            assert_eq!(refusal.is_some(), request.refused, "{request:#?}: {refusal:?}");
            refusal.map(|refusal| refusal.rule)
        })
        .collect();
    // Each validation refuses a request of the table.
    let validations: usize = policies.iter().map(Policy::validations).sum();
    assert_eq!(refusals.len(), validations, "{refusals:#?}");
}

#[test]
fn policies_name_all_annotations_of_the_programs() {
    let objects = policy_objects();
    for name in ["cgpu-pods", "cgpu-bindings"] {
        let policy = objects.iter().find(|object| object["metadata"]["name"] == name).unwrap();
        let list = |variable: &str| -> Vec<String> {
            let variables = policy["spec"]["variables"].as_array().unwrap();
            let variable = variables.iter().find(|it| it["name"] == variable).unwrap();
            serde_json::from_str(variable["expression"].as_str().unwrap()).unwrap()
        };
        assert_eq!(list("claim"), annotation::ALL, "{name}");
        let given = [annotation::ASSIGNED, annotation::SLICES, annotation::SIZES];
        assert_eq!(list("given"), [&given[..], &[annotation::RESIZE_STATUS]].concat(), "{name}");
    }
}

/// Each policy has a binding that denies what it refuses.
#[test]
fn policies_are_bound() {
    let objects = policy_objects();
    let names = |kind: &str, name: &dyn Fn(&Value) -> Value| -> BTreeSet<String> {
        let of_kind = objects.iter().filter(|object| object["kind"] == kind);
        of_kind.map(|object| name(object).as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        names("ValidatingAdmissionPolicy", &|policy| policy["metadata"]["name"].clone()),
        names("ValidatingAdmissionPolicyBinding", &|binding| {
            assert_eq!(binding["spec"]["validationActions"], serde_json::json!(["Deny"]));
            binding["spec"]["policyName"].clone()
        })
    );
}
