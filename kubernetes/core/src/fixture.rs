//! Pods and nodes for tests.

use crate::names::{COUNT, MEMORY, annotation};
use crate::object::{
    Address, Container, Metadata, Node, NodeStatus, Pod, PodSpec, PodStatus, Resources, Texts,
};

pub(crate) fn texts(pairs: &[(&str, &str)]) -> Texts {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

/// A node as gpushare's device plugin leaves it.
pub(crate) fn plain_node(name: &str, address: &str, units: u64, gpus: u32) -> Node {
    Node {
        metadata: Metadata {
            name: name.into(),
            labels: texts(&[("gpushare", "true")]),
            ..Default::default()
        },
        status: NodeStatus {
            allocatable: [
                (MEMORY.to_owned(), units.to_string().as_str().into()),
                (COUNT.to_owned(), gpus.to_string().as_str().into()),
            ]
            .into(),
            addresses: vec![Address { kind: "InternalIP".into(), address: address.into() }],
            ..Default::default()
        },
    }
}

/// A node as our device plugin leaves it, with GPUs of these sizes in MiB.
pub(crate) fn node(name: &str, unit: &str, mib: &[u64]) -> Node {
    let gpus: Vec<String> = mib
        .iter()
        .enumerate()
        .map(|(index, mib)| format!(r#"{{"uuid":"GPU-{name}-{index}","mib":{mib}}}"#))
        .collect();
    let text = format!(r#"{{"unit":"{unit}","gpus":[{}]}}"#, gpus.join(","));
    let metadata = Metadata {
        name: name.into(),
        annotations: texts(&[(annotation::GPUS, &text)]),
        ..Default::default()
    };
    Node { metadata, ..Default::default() }
}

pub(crate) fn container(name: &str, limits: &[(&str, &str)]) -> Container {
    let limits = limits.iter().map(|(name, text)| ((*name).to_owned(), (*text).into())).collect();
    Container {
        name: name.into(),
        resources: Resources { limits, ..Default::default() },
        ..Default::default()
    }
}

/// A pending pod of one container.
pub(crate) fn pod(name: &str, limits: &[(&str, &str)]) -> Pod {
    Pod {
        metadata: Metadata {
            name: name.into(),
            namespace: "test".into(),
            uid: format!("uid-{name}"),
            resource_version: "1".into(),
            ..Default::default()
        },
        spec: PodSpec { containers: vec![container("main", limits)], ..Default::default() },
        status: PodStatus { phase: "Pending".into(), ..Default::default() },
    }
}

/// A pending pod that requests only memory.
pub(crate) fn sharing(name: &str, units: u64) -> Pod {
    pod(name, &[(MEMORY, &units.to_string())])
}
