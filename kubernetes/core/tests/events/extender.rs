//! An extender with an imperfect watch, and the scheduler that calls it.

use std::collections::HashMap;
use std::sync::Arc;

use cgpu_kubernetes_core::claim::{self, Change};
use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::extender::{self, Binding, Candidates};
use cgpu_kubernetes_core::gpus::Placement;
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::pod_request::PodRequest;
use fastrand::Rng;

use crate::api::{Api, Event};

/// A binding in progress.
pub(crate) struct Attempt {
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) version: String,
    /// Number of events up to that of the claim.
    pub(crate) written: usize,
    pub(crate) confirmed: bool,
}

/// How an extender checks its claims before it binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Not at all.
    Never,
    /// By its copy, whatever that has.
    AtOnce,
    /// By its copy when its watch has reported the claim, sometimes by lists before that.
    WhenSeen,
}

pub(crate) struct Extender {
    pub(crate) cluster: Cluster,
    pub(crate) read: usize,
    pub(crate) attempts: Vec<Attempt>,
}

impl Extender {
    pub(crate) fn new(api: &Api) -> Self {
        let mut new =
            Self { cluster: Cluster::new(Dialects::default()), read: 0, attempts: Vec::new() };
        new.list(api);
        new
    }

    pub(crate) fn list(&mut self, api: &Api) {
        self.cluster.replace(api.nodes.values(), api.pods.values());
        self.read = api.end();
    }

    /// Receives all events that it has not received yet.
    pub(crate) fn catch_up(&mut self, api: &Api) {
        while let Some(event) = api.event(self.read) {
            self.read += 1;
            self.apply(&event.clone());
        }
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Pod(pod) => self.cluster.apply_pod(pod),
            Event::PodDeleted(uid) => self.cluster.delete_pod(uid),
            Event::Node(node) => self.cluster.apply_node(node),
            Event::NodeDeleted(name) => self.cluster.delete_node(name),
        }
    }

    /// Receives the next events in their order; some are duplicated, and some old ones repeated. A
    /// broken watch lists at once. Losing events without breaking is what the API server's watches
    /// never do. Here they lose ends of pods, so that only a later list frees the room.
    pub(crate) fn watch(&mut self, api: &mut Api, random: &mut Rng) {
        for _ in 0..random.usize(0..12) {
            if self.read < api.dropped {
                api.count("behind");
                return self.list(api);
            }
            let Some(event) = api.event(self.read).cloned() else { return };
            self.read += 1;
            match random.u32(0..1000) {
                0..3 => {
                    api.count("broken watches");
                    return self.list(api);
                }
                3..30 if ends(&event) => api.count("lost"),
                10..100 => {
                    api.count("duplicated");
                    self.apply(&event);
                    self.apply(&event);
                }
                // A late event of a pod is repeated. The API server repeats no events of nodes.
                100..150 => {
                    let late =
                        api.event(random.usize(self.read.saturating_sub(20)..self.read)).cloned();
                    if let Some(late @ (Event::Pod(_) | Event::PodDeleted(_))) = late {
                        api.count("late");
                        self.apply(&late);
                    }
                    self.apply(&event);
                }
                _ => self.apply(&event),
            }
        }
    }

    /// Places a pod as kube-scheduler does: filter, prioritize, bind.
    pub(crate) fn place(&mut self, api: &mut Api, uid: &str, now: u64, is_received: bool) {
        if let Some(node) = self.choose(api, uid, now) {
            self.claim(api, uid, &node, now, is_received);
        }
    }

    /// Returns the best of the nodes that fit a pod.
    pub(crate) fn choose(&mut self, api: &Api, uid: &str, now: u64) -> Option<String> {
        let pod = api.pods.get(uid)?;
        let request =
            |names| Candidates { pod: Some(pod.clone()), nodes: None, node_names: Some(names) };
        let filtered = extender::filter_and_place(
            &mut self.cluster,
            &request(api.nodes.keys().cloned().collect()),
            Placement::Binpack,
            now,
        );
        let ranked = extender::prioritize(
            &self.cluster,
            &request(filtered.node_names.unwrap_or_default()),
            Placement::Binpack,
            &HashMap::new(),
        );
        Some(ranked.into_iter().max_by_key(|priority| priority.score)?.host)
    }

    /// Claims GPUs of a node for a pod, and begins to bind it.
    pub(crate) fn claim(
        &mut self,
        api: &mut Api,
        uid: &str,
        node: &str,
        now: u64,
        is_received: bool,
    ) {
        let Some(pod) = api.pods.get(uid) else { return };
        let binding = Binding {
            pod_name: pod.metadata.name.clone(),
            pod_namespace: pod.metadata.namespace.clone(),
            pod_uid: uid.to_owned(),
            node: node.to_owned(),
        };
        let Ok(change) = extender::bind(&self.cluster, &binding, now) else { return };
        if let Some(pod) = api.patch("claimed", &change) {
            // The reply is lost: the claim is written, but unknown here.
            if !is_received {
                return api.count("lost answers");
            }
            self.cluster.apply_pod(&pod);
            let version = pod.metadata.resource_version;
            self.attempts.push(Attempt {
                uid: uid.to_owned(),
                node: node.to_owned(),
                version,
                written: api.end(),
                confirmed: false,
            });
        }
    }

    /// Runs one step of a random attempt.
    pub(crate) fn advance(&mut self, api: &mut Api, random: &mut Rng, check: Check) {
        if self.attempts.is_empty() {
            return;
        }
        let index = random.usize(0..self.attempts.len());
        let attempt = &mut self.attempts[index];
        if check != Check::Never && !attempt.confirmed {
            let is_seen = self.read >= attempt.written;
            // The watch is late: the deadline is over, or it is not.
            let lists = check == Check::WhenSeen && !is_seen;
            if lists && random.u32(0..4) > 0 {
                return api.count("waits for the watch");
            }
            attempt.confirmed = true;
            let pods = on_or_nowhere(api, &attempt.node);
            let confirmed = if lists {
                api.count("confirmed by lists");
                self.cluster.confirm_listed(&attempt.uid, &attempt.node, &pods)
            } else {
                api.count("confirmed by the copy");
                self.cluster.confirm(&attempt.uid, &attempt.node)
            };
            if confirmed.is_err() {
                let own = pods
                    .iter()
                    .find(|pod| pod.uid == attempt.uid && pod.version == attempt.version);
                if let Some(pod) = own.map(|pod| api.patch("withdrawn", &claim::withdraw(pod))) {
                    pod.iter().for_each(|pod| self.cluster.apply_pod(pod));
                }
                self.attempts.swap_remove(index);
            }
            return;
        }
        let attempt = self.attempts.swap_remove(index);
        api.bind(&attempt.uid, &attempt.version, &attempt.node);
    }

    pub(crate) fn sweep(&mut self, api: &mut Api, now: u64) {
        self.cluster.expire_placements(now);
        let changes: Vec<Change> =
            self.cluster.stale(now).map(|pod| claim::withdraw(pod)).collect();
        for change in changes {
            if let Some(pod) = api.patch("withdrawn", &change) {
                self.cluster.apply_pod(&pod);
            }
        }
    }
}

/// Returns whether an event frees room for certain.
fn ends(event: &Event) -> bool {
    match event {
        Event::Pod(pod) => ["Succeeded", "Failed"].contains(&pod.status.phase.as_str()),
        Event::PodDeleted(_) => true,
        Event::Node(_) | Event::NodeDeleted(_) => false,
    }
}

/// Lists the pods that are bound to a node or unbound.
pub(crate) fn on_or_nowhere(api: &Api, node: &str) -> Vec<Arc<PodRequest>> {
    let listed =
        api.pods.values().filter(|pod| pod.spec.node_name.is_empty() || pod.spec.node_name == node);
    listed.filter_map(|pod| PodRequest::of(pod, Dialects::default()).map(Arc::new)).collect()
}
