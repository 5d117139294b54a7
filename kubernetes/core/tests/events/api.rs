//! A fake API server.

use std::collections::BTreeMap;

use cgpu_kubernetes_core::claim::Change;
use cgpu_kubernetes_core::names::annotation;
use cgpu_kubernetes_core::object::{Node, Pod};
use fastrand::Rng;

use crate::objects::ALLOCATION;

#[derive(Clone)]
pub(crate) enum Event {
    Pod(Pod),
    PodDeleted(String),
    Node(Node),
    NodeDeleted(String),
}

/// What a pod took when it was bound: the node, and units by GPU.
pub(crate) type Taken = (String, BTreeMap<u32, u64>);

#[derive(Default)]
pub(crate) struct Api {
    pub(crate) version: u64,
    pub(crate) pods: BTreeMap<String, Pod>,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) sizes: BTreeMap<String, Vec<u64>>,
    pub(crate) events: Vec<Event>,
    /// Number of events that were dropped before those.
    pub(crate) dropped: usize,
    pub(crate) taken: BTreeMap<String, Taken>,
    /// Resizes that were written and are not confirmed: the units of the pod's GPUs before.
    pub(crate) resizing: BTreeMap<String, Option<String>>,
    /// Original annotations of the pods whose annotations were edited.
    pub(crate) corrupted: BTreeMap<String, BTreeMap<String, String>>,
    /// Number of each kind of event.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// A GPU that was given twice.
    pub(crate) fault: Option<String>,
}

/// Counts of events of pods, as a watch reports them.
pub(crate) const POD_EVENTS: [&str; 12] = [
    "created",
    "claimed",
    "withdrawn",
    "bound",
    "started",
    "succeeded",
    "failed",
    "corrupted",
    "repaired",
    "deleted",
    "resizing",
    "resized",
];

impl Api {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn counted(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    pub(crate) fn pod_events(&self) -> u64 {
        POD_EVENTS.iter().map(|what| self.counted(what)).sum()
    }

    pub(crate) fn write(&mut self, what: &'static str, uid: &str, change: impl FnOnce(&mut Pod)) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        *self.counts.entry(what).or_default() += 1;
        change(pod);
        self.version += 1;
        pod.metadata.resource_version = self.version.to_string();
        self.events.push(Event::Pod(pod.clone()));
    }

    /// Applies a change if the pod has the version that was read.
    pub(crate) fn patch(&mut self, what: &'static str, change: &Change) -> Option<Pod> {
        let same = |pod: &&Pod| {
            pod.metadata.uid == change.uid && pod.metadata.resource_version == change.version
        };
        if self.pods.get(&change.uid).filter(same).is_none() {
            self.count("conflicts");
            return None;
        }
        self.write(what, &change.uid, |pod| change.apply(pod));
        self.pods.get(&change.uid).cloned()
    }

    pub(crate) fn bind(&mut self, uid: &str, version: &str, node: &str) {
        let bound = self.pods.get(uid).filter(|pod| {
            pod.metadata.resource_version == version && pod.spec.node_name.is_empty()
        });
        let Some(pod) = bound else {
            self.count("conflicts");
            return;
        };
        let split: BTreeMap<String, BTreeMap<u32, u64>> =
            serde_json::from_str(&pod.metadata.annotations[ALLOCATION]).expect("what was claimed");
        // Init containers of these pods hold no more than the containers, so they do not count.
        let containers = pod.spec.containers.len();
        let mut gpus = BTreeMap::new();
        for (index, by_gpu) in split {
            if index.parse::<usize>().unwrap() < containers {
                by_gpu.into_iter().for_each(|(gpu, units)| *gpus.entry(gpu).or_insert(0) += units);
            }
        }
        self.taken.insert(uid.to_owned(), (node.to_owned(), gpus));
        if pod.status.nominated_node_name == node && pod.spec.priority > 0 {
            self.count("preemptors that were bound");
        }
        self.write("bound", uid, |pod| node.clone_into(&mut pod.spec.node_name));
        self.check(node);
    }

    pub(crate) fn check(&mut self, node: &str) {
        let mut given = BTreeMap::new();
        for (_, gpus) in self.taken.values().filter(|(on, _)| on == node) {
            gpus.iter().for_each(|(gpu, units)| *given.entry(*gpu).or_insert(0_u64) += units);
        }
        for (gpu, units) in given {
            let size = self.sizes[node][gpu as usize];
            if units > size {
                self.fault = Some(format!("GPU {gpu} of {node} has {size} units and gave {units}"));
            }
        }
    }

    pub(crate) fn delete(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.taken.remove(uid);
        self.resizing.remove(uid);
        self.corrupted.remove(uid);
        self.version += 1;
        self.count("deleted");
        self.events.push(Event::PodDeleted(uid.to_owned()));
    }

    pub(crate) fn finish(&mut self, uid: &str, phase: &str) {
        self.taken.remove(uid);
        self.resizing.remove(uid);
        self.corrupted.remove(uid);
        let what = if phase == "Failed" { "failed" } else { "succeeded" };
        self.write(what, uid, |pod| phase.clone_into(&mut pod.status.phase));
    }

    pub(crate) fn set_node(&mut self, node: Node) {
        self.events.push(Event::Node(node.clone()));
        self.nodes.insert(node.metadata.name.clone(), node);
    }

    pub(crate) fn end(&self) -> usize {
        self.dropped + self.events.len()
    }

    pub(crate) fn event(&self, number: usize) -> Option<&Event> {
        self.events.get(number.checked_sub(self.dropped)?)
    }

    /// Drops old events. A watch that is further behind breaks.
    pub(crate) fn compact(&mut self) {
        if self.events.len() > 4000 {
            self.dropped += 2000;
            self.events.drain(..2000);
        }
    }

    pub(crate) fn waiting(&self) -> Vec<String> {
        let waits = |pod: &&Pod| pod.spec.node_name.is_empty() && pod.status.phase == "Pending";
        self.pods.values().filter(waits).map(|pod| pod.metadata.uid.clone()).collect()
    }
}

/// Corrupts the annotations of a bound pod: invalid text or other units; of a running pod, it may
/// remove them.
pub(crate) fn corrupt(api: &mut Api, uid: &str, random: &mut Rng) {
    let Some(pod) = api.pods.get(uid) else { return };
    if !api.taken.contains_key(uid)
        || api.corrupted.contains_key(uid)
        || api.resizing.contains_key(uid)
    {
        return;
    }
    let runs = pod.status.phase == "Running";
    api.corrupted.insert(uid.to_owned(), pod.metadata.annotations.clone());
    let kind = random.usize(0..if runs { 5 } else { 4 });
    api.write("corrupted", uid, |pod| {
        let annotations = &mut pod.metadata.annotations;
        match kind {
            0 => drop(annotations.insert(ALLOCATION.into(), r#"{"0":{"0":0}}"#.into())),
            1 => drop(annotations.insert(ALLOCATION.into(), "mine".into())),
            2 => drop(annotations.insert("cgpu.dev/node".into(), "elsewhere".into())),
            3 => drop(annotations.insert("ALIYUN_COM_GPU_MEM_DEV".into(), "100000".into())),
            // What a plugin wrote stays: an admission policy keeps it.
            _ => annotations.retain(|name, _| name == annotation::SIZES),
        }
    });
}

pub(crate) fn repair(api: &mut Api, uid: &str) {
    if let Some(annotations) = api.corrupted.remove(uid) {
        api.write("repaired", uid, |pod| pod.metadata.annotations = annotations);
    }
}
