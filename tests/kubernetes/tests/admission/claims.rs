//! Requests about claims of devices, and about the slices that offer them.

use serde_json::{Value, json};

use crate::requests::{ADMINISTRATOR, AUTHOR, KUBELET, Operation, Request, User, user};

const fn driver(node: Option<&'static str>) -> User {
    User { node, ..user("system:serviceaccount:kube-system:cgpu-dra-driver") }
}

/// A request for a device of this class.
fn exactly(class: &str, capacity: &Value) -> Value {
    json!({"name": "gpu", "exactly": {
        "deviceClassName": class, "allocationMode": "ExactCount", "count": 1,
        "capacity": {"requests": capacity},
    }})
}

fn claim(namespace: &str, requests: &[Value]) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "new", "namespace": namespace},
        "spec": {"devices": {"requests": requests}},
    })
}

fn template(namespace: &str, requests: &[Value]) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "new", "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": requests}}},
    })
}

fn slice(driver: &str, node: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": "new"},
        "spec": {"driver": driver, "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": []},
    })
}

/// Requests of a namespace that bounds memory to 8 GiB, weight to 2 and cores to 30.
fn bounded() -> Vec<(bool, Value)> {
    let (allow, refuse) = (false, true);
    let cgpu = |capacity: Value| exactly("cgpu", &capacity);
    let alternatives = |memory: &str| {
        let one = |name: &str, memory: &str| {
            json!({"name": name, "deviceClassName": "cgpu", "allocationMode": "ExactCount",
                "count": 1, "capacity": {"requests": {"memory": memory}}})
        };
        json!({"name": "gpu", "firstAvailable": [one("first", "4Gi"), one("then", memory)]})
    };
    let mut plain = exactly("cgpu", &json!({}));
    plain["exactly"].as_object_mut().expect("an object").remove("capacity");
    let mut everything = cgpu(json!({"memory": "9Gi"}));
    everything["exactly"]["allocationMode"] = json!("All");
    everything["exactly"].as_object_mut().expect("an object").remove("count");
    vec![
        (allow, cgpu(json!({"memory": "8Gi"}))),
        (allow, cgpu(json!({"memory": "8192Mi", "weight": "2", "cores": "30"}))),
        (allow, exactly("cgpu-mig", &json!({"memory": "4Gi"}))),
        (allow, exactly("gpu.example.com", &json!({"memory": "80Gi"}))),
        (allow, exactly("gpu.example.com", &json!({}))),
        (allow, alternatives("8Gi")),
        (refuse, plain),
        (refuse, cgpu(json!({}))),
        (refuse, cgpu(json!({"weight": "1"}))),
        (refuse, exactly("cgpu-mig", &json!({}))),
        (refuse, cgpu(json!({"memory": "8193Mi"}))),
        (refuse, cgpu(json!({"memory": "9e9"}))),
        (refuse, cgpu(json!({"memory": "8Gi", "weight": "3"}))),
        (refuse, cgpu(json!({"memory": "8Gi", "weight": "3000m"}))),
        (refuse, exactly("cgpu-cores", &json!({"memory": "8Gi", "cores": "31"}))),
        (refuse, exactly("cgpu-of-our-own", &json!({"memory": "9Gi"}))),
        // The driver's name before a capacity changes nothing.
        (refuse, cgpu(json!({"memory": "1Gi", "gpu.cgpu.dev/memory": "9Gi"}))),
        (refuse, alternatives("9Gi")),
        (refuse, everything),
    ]
}

pub(crate) fn requests() -> Vec<Request> {
    let (allow, refuse) = (false, true);
    let mut all = Vec::new();
    let mut add = |refused: bool, user: User, resource: &'static str, object: Value| {
        all.push(Request { user, resource, operation: Operation::Create(object), refused });
    };
    let mut claims = |refused: bool, namespace: &str, requests: &[Value]| {
        add(refused, AUTHOR, "resourceclaims", claim(namespace, requests));
        add(refused, AUTHOR, "resourceclaimtemplates", template(namespace, requests));
    };
    for (refused, request) in bounded() {
        claims(refused, "bounded", std::slice::from_ref(&request));
        claims(allow, "default", std::slice::from_ref(&request));
        // The second of two requests is bounded, too.
        let mut first = exactly("cgpu", &json!({"memory": "1Gi"}));
        first["name"] = json!("first");
        claims(refused, "bounded", &[first, request]);
    }
    // One bound of three, the others without.
    let light = |capacity: Value| [exactly("cgpu", &capacity)];
    claims(allow, "light", &light(json!({})));
    claims(allow, "light", &light(json!({"memory": "80Gi", "weight": "1", "cores": "90"})));
    claims(refuse, "light", &light(json!({"weight": "2"})));
    // What is no amount allows nothing, rather than all.
    claims(refuse, "mistaken", &light(json!({"memory": "1Gi"})));

    // A claim for administration consumes nothing. Its namespace has a label for it.
    let mut administration = exactly("cgpu", &json!({"memory": "128Mi"}));
    administration["exactly"]["adminAccess"] = json!(true);
    administration["exactly"].as_object_mut().expect("an object").remove("capacity");
    claims(allow, "bounded", &[administration]);

    // What `helm test` makes.
    for object in crate::objects_of("tests/kubernetes/tests/golden/helm-test.yaml") {
        let kind = object["kind"].as_str().expect("a kind").to_lowercase() + "s";
        let resource = ["pods", "resourceclaimtemplates"].into_iter().find(|it| *it == kind);
        add(allow, ADMINISTRATOR, resource.expect("a kind of it"), object);
    }
    // The controller makes templates of its own.
    let controller = user("system:serviceaccount:kube-system:cgpu-dra-controller");
    let mut own = template("default", &light(json!({"memory": "1Gi"})));
    add(refuse, controller, "resourceclaimtemplates", own.clone());
    own["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "helm"});
    add(refuse, controller, "resourceclaimtemplates", own.clone());
    own["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "cgpu-dra-controller"});
    add(allow, controller, "resourceclaimtemplates", own);

    // A driver offers the GPUs of its own node.
    let own = "gpu.cgpu.dev";
    for (refused, user, object) in [
        (allow, driver(Some("n1")), slice(own, "n1")),
        (refuse, driver(Some("n1")), slice(own, "n2")),
        (refuse, driver(Some("n1")), slice("gpu.example.com", "n1")),
        (refuse, driver(None), slice(own, "n1")),
        (allow, ADMINISTRATOR, slice(own, "n2")),
        (allow, KUBELET, slice("gpu.example.com", "n2")),
    ] {
        add(refused, user, "resourceslices", object);
    }
    all
}
