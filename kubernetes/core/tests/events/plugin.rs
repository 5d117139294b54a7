//! The device plugins of the nodes, which let running pods grow and shrink.

use std::collections::BTreeMap;

use cgpu_kubernetes_core::gpus::NodeGpus;
use cgpu_kubernetes_core::names::{Dialects, annotation};
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::share::Role;
use cgpu_kubernetes_core::sizes::{Size, Sizes, check_room};
use fastrand::Rng;

use crate::api::Api;
use crate::extender::{Check, on_or_nowhere};

/// The node and the request of a running pod whose annotations are valid.
fn running(api: &Api, uid: &str) -> Option<(NodeGpus, PodRequest)> {
    let pod = api.pods.get(uid).filter(|pod| pod.status.phase == "Running")?;
    if api.corrupted.contains_key(uid) || !api.taken.contains_key(uid) {
        return None;
    }
    let node = NodeGpus::of(api.nodes.get(&pod.spec.node_name)?);
    Some((node, PodRequest::of(pod, Dialects::default())?))
}

fn write(api: &mut Api, what: &'static str, uid: &str, text: Option<String>) {
    api.write(what, uid, |pod| {
        let annotations = &mut pod.metadata.annotations;
        match text {
            Some(text) => drop(annotations.insert(annotation::SIZES.to_owned(), text)),
            None => drop(annotations.remove(annotation::SIZES)),
        }
    });
}

/// Writes larger sizes of a pod where there was room a moment ago. It gets them when they are
/// confirmed.
pub(crate) fn grow(api: &mut Api, uid: &str, random: &mut Rng) {
    let Some((node, pod)) = running(api, uid) else { return };
    if api.resizing.contains_key(uid) {
        return;
    }
    let requests = pod.requests.as_ref().expect("valid");
    let Some(request) = requests.iter().find(|request| request.role == Role::Container) else {
        return;
    };
    let container = request.container.clone();
    let memory = Some(1024 * random.u64(1..12));
    let size = Size { memory, ..Size::default() };
    let wanted = pod.sizes.clone().expect("valid").or(&Sizes([(container, size)].into()));
    let others = on_or_nowhere(api, &node.name);
    if check_room(&pod, &wanted, &node, &others).is_err() {
        return api.count("resizes without room");
    }
    let before = api.pods[uid].metadata.annotations.get(annotation::SIZES).cloned();
    api.resizing.insert(uid.to_owned(), before);
    write(api, "resizing", uid, wanted.written());
}

/// Confirms what was written, so that the containers get it, or takes it back.
pub(crate) fn confirm(api: &mut Api, uid: &str, check: Check) {
    let Some((node, pod)) = running(api, uid) else { return };
    let Some(before) = api.resizing.remove(uid) else { return };
    let wanted = pod.sizes.clone().expect("valid");
    let others = on_or_nowhere(api, &node.name);
    if check != Check::Never && check_room(&pod, &wanted, &node, &others).is_err() {
        api.count("resizes taken back");
        return write(api, "resized", uid, before);
    }
    take(api, &pod, &node);
    write(api, "resized", uid, wanted.written());
    api.check(&node.name);
}

/// Lets a pod have again what it requested.
pub(crate) fn shrink(api: &mut Api, uid: &str, _: &mut Rng) {
    let Some((node, pod)) = running(api, uid) else { return };
    if api.resizing.contains_key(uid) || pod.sizes == Ok(Sizes::default()) {
        return;
    }
    let pod = PodRequest { sizes: Ok(Sizes::default()), ..pod };
    take(api, &pod, &node);
    write(api, "resized", uid, None);
}

/// Counts what the containers of a pod have, apart from the library: the first one's memory in
/// whole units, and the others' as they were bound.
fn take(api: &mut Api, pod: &PodRequest, node: &NodeGpus) {
    let split: BTreeMap<usize, BTreeMap<u32, u64>> =
        serde_json::from_str(&api.pods[&pod.uid].metadata.annotations[annotation::ALLOCATION])
            .expect("an allocation");
    let sizes = pod.sizes.clone().expect("valid");
    let mut gpus: BTreeMap<u32, u64> = BTreeMap::new();
    for request in pod.requests.as_ref().expect("valid") {
        // Init containers of these pods hold no more than the containers.
        if request.index >= api.pods[&pod.uid].spec.containers.len() {
            continue;
        }
        let mib = sizes.0.get(&request.container).and_then(|size| size.memory).unwrap_or(0);
        for (gpu, units) in &split[&request.index] {
            let total = node.gpu(*gpu).and_then(|gpu| gpu.mib).expect("a size");
            let whole = api.sizes[&node.name][*gpu as usize];
            let grown = (mib * whole).div_ceil(total);
            *gpus.entry(*gpu).or_insert(0) += grown.max(*units);
        }
    }
    api.taken.insert(pod.uid.clone(), (node.name.clone(), gpus));
}
