//! What schedulers do beside placing one pod: gangs that wait until all pods have a node, signs of
//! the node, and preemption. Each call may reach another extender, as after a change of the leader.

use std::collections::BTreeMap;

use cgpu_kubernetes_core::extender::{Candidates, filter_and_place};
use cgpu_kubernetes_core::gpus::{NodeGpus, Placement};
use cgpu_kubernetes_core::names::{Dialects, GANGS};
use cgpu_kubernetes_core::object::{Condition, Pod};
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::preemption::{self, Chosen, MetaPod, Question};
use serde_json::json;

use crate::api::Api;
use crate::harness::Harness;
use crate::objects::{container, pod};

/// Nodes on which a scheduler looks for victims.
const DRY_RUNS: usize = 8;

/// Pods of gangs that wait for the others of their gang, with the node that each will have.
#[derive(Default)]
pub(crate) struct Permit(BTreeMap<String, Wait>);

struct Wait {
    node: String,
    /// The extender that answered it.
    extender: usize,
}

impl Harness {
    /// Runs one step of the schedulers.
    pub(crate) fn schedule(&mut self) {
        self.permit.0.retain(|uid, _| is_waiting(&self.api, uid));
        let which = self.random.usize(0..self.extenders.len());
        match self.random.u32(0..100) {
            0..6 => self.create_gang(),
            6..12 => self.create_important(),
            12..50 => self.wait_for_gang(which),
            50..62 => self.show_nodes(),
            62..80 => self.end_wait(which),
            80..92 => self.preempt(which),
            _ => self.end_victim(),
        }
    }

    fn create_gang(&mut self) {
        let name = format!("gang-{}", self.created);
        let units = self.random.u64(1..12);
        for _ in 0..self.random.u64(2..5) {
            let mut pod = self.pod_of(units);
            pod.metadata.labels.insert(GANGS[0].into(), name.clone());
            self.add(pod);
        }
    }

    fn create_important(&mut self) {
        let units = self.random.u64(4..15);
        let mut pod = self.pod_of(units);
        pod.spec.priority = [10, 100][self.random.usize(0..2)];
        self.add(pod);
    }

    fn pod_of(&mut self, units: u64) -> Pod {
        self.created += 1;
        pod(self.created, &json!([container("main", &json!(units))]))
    }

    /// Lets a pod of a gang wait on the node that filter answers.
    fn wait_for_gang(&mut self, which: usize) {
        let gangs = self.api.waiting().into_iter().filter(|uid| gang(&self.api, uid).is_some());
        let pods: Vec<String> = gangs.filter(|uid| !self.permit.0.contains_key(uid)).collect();
        let Some(uid) = self.random.choice(&pods) else { return };
        let candidates = Candidates {
            pod: self.api.pods.get(uid).cloned(),
            nodes: None,
            node_names: Some(self.api.nodes.keys().cloned().collect()),
        };
        let cluster = &mut self.extenders[which].cluster;
        let answer = filter_and_place(cluster, &candidates, Placement::Binpack, self.now);
        let nodes = answer.node_names.unwrap_or_default();
        assert!(nodes.len() <= 1, "{nodes:?} for a pod of a gang");
        if let Some(node) = nodes.first() {
            self.api.count("waits of a gang");
            let wait = Wait { node: node.clone(), extender: which };
            self.permit.0.insert(uid.clone(), wait);
        }
    }

    /// Writes the node of a pod that waits, as schedulers do since Kubernetes 1.35.
    fn show_nodes(&mut self) {
        if let Some((uid, wait)) = self.random.choice(&self.permit.0) {
            nominate(&mut self.api, uid, &wait.node);
        }
    }

    /// Binds a gang that is complete, or gives up.
    fn end_wait(&mut self, which: usize) {
        let waiting: Vec<String> = self.permit.0.keys().cloned().collect();
        let Some(uid) = self.random.choice(&waiting) else { return };
        let name = gang(&self.api, uid).map(str::to_owned);
        let members = self.api.waiting().into_iter();
        let members: Vec<String> =
            members.filter(|uid| gang(&self.api, uid) == name.as_deref()).collect();
        let is_complete = members.iter().all(|uid| self.permit.0.contains_key(uid));
        if !is_complete && self.random.u32(0..8) > 0 {
            return;
        }
        self.api.count(if is_complete { "complete gangs" } else { "gangs that gave up" });
        for uid in members {
            let Some(wait) = self.permit.0.remove(&uid) else { continue };
            if is_complete {
                if wait.extender != which {
                    self.api.count("placed by another extender");
                }
                self.extenders[which].claim(&mut self.api, &uid, &wait.node, self.now, true);
            } else if self.random.bool() {
                nominate(&mut self.api, &uid, "");
            } else {
                // kube-scheduler 1.35 and 1.36 leave the node in the object.
                let message = format!("rejected at {}", self.now);
                self.api.write("gave up", &uid, |pod| {
                    let [kind, status] = ["PodScheduled", "False"].map(String::from);
                    pod.status.conditions = vec![Condition { kind, status, message }];
                });
            }
        }
    }

    /// Evicts pods for a pod with a priority that fits nowhere, as kube-scheduler does.
    fn preempt(&mut self, which: usize) {
        let waiting = self.api.waiting().into_iter();
        let important: Vec<String> =
            waiting.filter(|uid| self.api.pods[uid].spec.priority > 0).collect();
        let Some(uid) = self.random.choice(&important) else { return };
        let pod = self.api.pods[uid].clone();
        if self.extenders[which].choose(&self.api, uid, self.now).is_some() {
            return;
        }
        let mut nodes: Vec<String> = self.api.nodes.keys().cloned().collect();
        self.random.shuffle(&mut nodes);
        let victims = nodes.into_iter().take(DRY_RUNS).filter_map(|node| {
            let pods = victims_by_sums(&self.api, &node, &pod)?;
            Some((node, Some(Chosen { pods, violations: 0 })))
        });
        let question = Question {
            pod: Some(pod.clone()),
            node_name_to_meta_victims: victims.collect(),
            ..Question::default()
        };
        let cluster = &self.extenders[which].cluster;
        let answer = preemption::preempt(cluster, &[], &question).node_name_to_meta_victims;
        for (node, victims) in &answer {
            assert!(!victims.pods.is_empty(), "an empty list fails the whole preemption");
            for victim in victims.pods.iter().filter_map(|victim| self.api.pods.get(&victim.uid)) {
                assert_eq!(&victim.spec.node_name, node, "a victim elsewhere");
                assert!(victim.spec.priority < pod.spec.priority, "a victim of the same priority");
            }
        }
        let Some((node, victims)) = answer.into_iter().next() else { return };
        self.api.count("preemptions");
        for MetaPod { uid } in victims.pods {
            self.api.write("evicted", &uid, |pod| pod.metadata.deletion_timestamp = true);
        }
        nominate(&mut self.api, uid, &node);
    }

    /// Ends a pod that is being deleted.
    fn end_victim(&mut self) {
        let pods = self.api.pods.values().filter(|pod| pod.metadata.deletion_timestamp);
        let uids: Vec<String> = pods.map(|pod| pod.metadata.uid.clone()).collect();
        if let Some(uid) = self.random.choice(&uids) {
            self.api.delete(uid);
        }
    }

    /// Ends all waits, evictions and nominations.
    pub(crate) fn end_schedule(&mut self) {
        self.permit.0.clear();
        let pods: Vec<Pod> = self.api.pods.values().cloned().collect();
        for pod in pods {
            if pod.metadata.deletion_timestamp {
                self.api.delete(&pod.metadata.uid);
            } else if pod.spec.node_name.is_empty() {
                nominate(&mut self.api, &pod.metadata.uid, "");
            }
        }
    }
}

fn is_waiting(api: &Api, uid: &str) -> bool {
    api.pods
        .get(uid)
        .is_some_and(|pod| pod.spec.node_name.is_empty() && pod.status.phase == "Pending")
}

fn gang<'a>(api: &'a Api, uid: &str) -> Option<&'a str> {
    Some(api.pods.get(uid)?.metadata.labels.get(GANGS[0])?)
}

fn nominate(api: &mut Api, uid: &str, node: &str) {
    if api.pods.get(uid).is_some_and(|pod| pod.status.nominated_node_name != node) {
        api.write("nominated", uid, |pod| node.clone_into(&mut pod.status.nominated_node_name));
    }
}

/// Chooses pods of lower priority by the sum of a node, as the scheduler does: none if it suffices.
fn victims_by_sums(api: &Api, node: &str, pod: &Pod) -> Option<Vec<MetaPod>> {
    let gpus = NodeGpus::of(&api.nodes[node]);
    let need = PodRequest::of(pod, Dialects::default())?.resource_request().ok()?.units_on(&gpus);
    let on_node = api.taken.iter().filter(|(_, (on, _))| on == node);
    let held: Vec<(&String, u64)> =
        on_node.map(|(uid, (_, gpus))| (uid, gpus.values().sum())).collect();
    let mut free = gpus.units().saturating_sub(held.iter().map(|(_, units)| units).sum());
    let mut victims = Vec::new();
    for (uid, units) in held {
        if free < need && api.pods[uid].spec.priority < pod.spec.priority {
            free += units;
            victims.push(MetaPod { uid: uid.clone() });
        }
    }
    (free >= need).then_some(victims)
}
