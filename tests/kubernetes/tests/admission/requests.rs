//! Requests to an API server, and whether the policies refuse them.

use cgpu_kubernetes_core::names::annotation;
use cgpu_kubernetes_core::resize::ANNOTATION;
use serde_json::{Value, json};

use crate::claims;

/// A user, and the node in its token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) name: &'static str,
    pub(crate) node: Option<&'static str>,
}

pub(crate) const fn user(name: &'static str) -> User {
    User { name, node: None }
}

const fn plugin(node: Option<&'static str>) -> User {
    User { name: "system:serviceaccount:kube-system:cgpu-device-plugin", node }
}

pub(crate) const AUTHOR: User = user("jane");
pub(crate) const ADMINISTRATOR: User = user("kubernetes-admin");
const SCHEDULER: User = user("system:kube-scheduler");
const OTHER_SCHEDULER: User = user("system:serviceaccount:kube-system:cgpu-scheduler");
pub(crate) const KUBELET: User = user("system:node:n1");
const EXTENDER: User = user("system:serviceaccount:kube-system:cgpu-scheduler-extender");
/// The extender's name in a namespace of its author's.
const IMPOSTOR: User = user("system:serviceaccount:jane:cgpu-scheduler-extender");
const PLUGIN: User = plugin(Some("n1"));
/// May let pods grow, in the namespace `default`.
pub(crate) const GROWER: User = user("carol");

/// Namespaces, with their labels. One more has none: `default`.
pub(crate) const NAMESPACES: [(&str, &[(&str, &str)]); 3] = [
    (
        "bounded",
        &[
            ("cgpu.dev/max-memory", "8Gi"),
            ("cgpu.dev/max-weight", "2"),
            ("cgpu.dev/max-cores", "30"),
            ("resource.kubernetes.io/admin-access", "true"),
        ],
    ),
    ("light", &[("cgpu.dev/max-memory", ""), ("cgpu.dev/max-weight", "1")]),
    ("mistaken", &[("cgpu.dev/max-memory", "8GB")]),
];

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// With this object.
    Create(Value),
    /// Of the object of this name, with a merge patch.
    Update(&'static str, Value),
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) user: User,
    /// With its subresource, such as `pods/status`.
    pub(crate) resource: &'static str,
    pub(crate) operation: Operation,
    pub(crate) refused: bool,
}

fn pod(name: &str, node: Option<&str>, annotations: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "x"}},
        "spec": {"containers": [{"name": "main", "image": "i",
            "resources": {"limits": {"aliyun.com/gpu-mem": "2"}, "requests": {"aliyun.com/gpu-mem": "2"}}}]},
        "status": {},
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    if annotations != &json!({}) {
        pod["metadata"]["annotations"] = annotations.clone();
    }
    pod
}

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "spec": {}, "status": {},
        "metadata": {"name": name, "annotations": {annotation::GPUS: "{}"}},
    })
}

fn claim(node: &str) -> Value {
    json!({
        annotation::INDEX: "0", annotation::DEVICE: "14", annotation::POD: "2",
        annotation::ASSIGNED: "false", annotation::ASSUME_TIME: "1",
        annotation::ALLOCATION: r#"{"0":{"0":2}}"#, annotation::NODE: node,
    })
}

/// Returns the objects that the requests find.
pub(crate) fn objects() -> Vec<Value> {
    let mut grown = claim("n1");
    grown[ANNOTATION] = json!("memory=8Gi,grow=true");
    vec![
        node("n1"),
        node("n2"),
        pod("pending", None, &json!({})),
        pod("claimed", None, &claim("n1")),
        pod("bound", Some("n1"), &claim("n1")),
        pod("grown", Some("n1"), &grown),
    ]
}

fn annotations(annotations: &Value) -> Value {
    json!({"metadata": {"annotations": annotations}})
}

fn binding(annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "pending", "namespace": "default", "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    })
}

pub(crate) fn requests() -> Vec<Request> {
    let mut all = Vec::new();
    let mut add = |refused: bool, user: User, resource: &'static str, operation: Operation| {
        all.push(Request { user, resource, operation, refused });
    };
    let (allow, refuse) = (false, true);
    use Operation::{Create, Update};

    // A new pod has no annotation of ours, whichever account creates it.
    let plain = pod("new", None, &json!({"mine": "1", "ALIYUN_COM_GPU_MEM": "1"}));
    let claimed = pod("new", None, &claim("n1"));
    for user in [AUTHOR, ADMINISTRATOR, EXTENDER, IMPOSTOR] {
        add(allow, user, "pods", Create(plain.clone()));
        add(refuse, user, "pods", Create(claimed.clone()));
    }
    let given = [annotation::SLICES, annotation::SIZES, annotation::RESIZE_STATUS];
    let names = annotation::ALL.iter().chain(&given);
    for name in names {
        add(refuse, AUTHOR, "pods", Create(pod("new", None, &json!({*name: "0"}))));
        let patch = || annotations(&json!({*name: "9"}));
        add(refuse, AUTHOR, "pods", Update("pending", patch()));
        add(refuse, AUTHOR, "pods", Update("bound", patch()));
        add(refuse, AUTHOR, "pods/status", Update("bound", patch()));
        add(refuse, SCHEDULER, "pods/binding", Create(binding(&json!({*name: "0"}))));
    }
    for name in annotation::ALL {
        add(refuse, AUTHOR, "pods", Update("bound", annotations(&json!({name: null}))));
    }

    // Everything else of a pod is its author's and the cluster's matter.
    let label = json!({"metadata": {"labels": {"app": "y"}, "annotations": {"mine": "2"}}});
    let ready = json!({"status": {"message": "m"}});
    let deadline = json!({"spec": {"activeDeadlineSeconds": 5}});
    for name in ["pending", "claimed", "bound"] {
        add(allow, AUTHOR, "pods", Update(name, label.clone()));
        add(allow, AUTHOR, "pods", Update(name, deadline.clone()));
        add(allow, SCHEDULER, "pods/status", Update(name, ready.clone()));
        add(allow, KUBELET, "pods/status", Update(name, ready.clone()));
    }
    for user in [ADMINISTRATOR, SCHEDULER, KUBELET, IMPOSTOR] {
        add(refuse, user, "pods", Update("bound", annotations(&json!({annotation::INDEX: "1"}))));
    }

    // The extender claims and withdraws, as long as the pod is not bound.
    let withdrawal = annotations(&json!({
        annotation::INDEX: null, annotation::DEVICE: null, annotation::POD: null,
        annotation::ASSIGNED: null, annotation::ASSUME_TIME: null, annotation::ALLOCATION: null,
        annotation::NODE: null,
    }));
    add(allow, EXTENDER, "pods", Update("pending", annotations(&claim("n1"))));
    add(allow, EXTENDER, "pods", Update("claimed", annotations(&claim("n2"))));
    add(allow, EXTENDER, "pods", Update("claimed", withdrawal.clone()));
    add(refuse, EXTENDER, "pods", Update("bound", annotations(&claim("n2"))));
    add(refuse, EXTENDER, "pods", Update("bound", withdrawal));
    add(
        refuse,
        EXTENDER,
        "pods",
        Update("pending", annotations(&json!({annotation::SLICES: "{}"}))),
    );
    add(refuse, EXTENDER, "pods", Update("pending", deadline.clone()));

    // A device plugin says what it gave, on pods of its own node.
    let given = annotations(&json!({annotation::ASSIGNED: "true", annotation::SLICES: "{}"}));
    for (refused, user, name) in [
        (allow, PLUGIN, "bound"),
        (refuse, PLUGIN, "claimed"),
        (refuse, PLUGIN, "pending"),
        (refuse, plugin(Some("n2")), "bound"),
        (refuse, plugin(None), "bound"),
        (refuse, plugin(None), "pending"),
        (refuse, AUTHOR, "bound"),
        (refuse, KUBELET, "bound"),
    ] {
        add(refused, user, "pods", Update(name, given.clone()));
    }
    add(refuse, PLUGIN, "pods", Update("bound", annotations(&json!({annotation::INDEX: "1"}))));
    add(refuse, PLUGIN, "pods", Update("bound", deadline));
    add(refuse, plugin(Some("n2")), "pods", Update("bound", label));

    // The author of a pod resizes it. To let it grow needs a permission, also at its creation.
    let resize = |text: &str| json!({ANNOTATION: text});
    for text in ["memory=1Gi,weight=2", "not understood"] {
        add(allow, AUTHOR, "pods", Update("bound", annotations(&resize(text))));
        add(allow, AUTHOR, "pods", Create(pod("new", None, &resize(text))));
    }
    for text in ["memory=8Gi,grow=true", "main: grow = true", "main:\u{b}grow\u{3000}=true"] {
        for (refused, user) in
            [(refuse, AUTHOR), (refuse, EXTENDER), (refuse, KUBELET), (allow, GROWER)]
        {
            if user.name == AUTHOR.name || user.name == GROWER.name {
                add(refused, user, "pods", Create(pod("new", None, &resize(text))));
                add(refused, user, "pods", Update("bound", annotations(&resize(text))));
            }
            add(refused, user, "pods/status", Update("bound", annotations(&resize(text))));
        }
    }
    add(refuse, AUTHOR, "pods", Update("grown", annotations(&resize("memory=9Gi,grow=true"))));
    add(allow, AUTHOR, "pods", Update("grown", annotations(&json!({"mine": "1"}))));
    add(allow, AUTHOR, "pods", Update("grown", annotations(&json!({ANNOTATION: null}))));
    add(allow, PLUGIN, "pods", Update("grown", annotations(&json!({annotation::SIZES: "{}"}))));
    for user in [SCHEDULER, GROWER] {
        add(refuse, user, "pods/binding", Create(binding(&resize("memory=1Gi"))));
    }

    // Every scheduler may bind.
    for user in [SCHEDULER, OTHER_SCHEDULER, EXTENDER] {
        add(allow, user, "pods/binding", Create(binding(&json!({"mine": "1"}))));
        add(allow, user, "bindings", Create(binding(&json!({}))));
        add(refuse, user, "bindings", Create(binding(&claim("n1"))));
    }

    // A node's GPUs are its plugin's matter, and a plugin has no other.
    let gpus = annotations(&json!({annotation::GPUS: "{\"unit\":\"GiB\"}"}));
    let count = json!({"status": {"capacity": {"aliyun.com/gpu-count": "1"}}});
    for (refused, user, name) in [
        (allow, PLUGIN, "n1"),
        (refuse, PLUGIN, "n2"),
        (refuse, plugin(None), "n1"),
        (refuse, ADMINISTRATOR, "n1"),
        (refuse, KUBELET, "n1"),
        (refuse, EXTENDER, "n1"),
    ] {
        add(refused, user, "nodes", Update(name, gpus.clone()));
        add(refused, user, "nodes/status", Update(name, gpus.clone()));
    }
    let held = annotations(&json!({annotation::HELD: "{}"}));
    add(allow, PLUGIN, "nodes", Update("n1", held.clone()));
    add(refuse, plugin(Some("n2")), "nodes", Update("n1", held.clone()));
    add(refuse, ADMINISTRATOR, "nodes", Update("n1", held));
    let removal = annotations(&json!({annotation::GPUS: null}));
    add(allow, ADMINISTRATOR, "nodes", Update("n1", removal.clone()));
    add(refuse, plugin(Some("n2")), "nodes", Update("n1", removal));
    add(allow, PLUGIN, "nodes/status", Update("n1", count.clone()));
    add(refuse, PLUGIN, "nodes/status", Update("n2", count.clone()));
    add(allow, KUBELET, "nodes/status", Update("n1", count));
    let shared = json!({"metadata": {"labels": {"gpushare": "true"}}});
    add(allow, ADMINISTRATOR, "nodes", Update("n1", shared.clone()));
    add(refuse, PLUGIN, "nodes", Update("n2", shared));
    let mut fresh = node("n3");
    add(refuse, KUBELET, "nodes", Create(fresh.clone()));
    fresh["metadata"]["annotations"] = json!({"mine": "1"});
    add(allow, KUBELET, "nodes", Create(fresh));
    all.extend(claims::requests());
    all
}
