//! Resizes running pods of the node as their annotations say.
//!
//! ```text
//!   annotation --> what is wanted --> room? --> written on the pod* --> room still? --> containers
//!                       | refused       | none                             | none          |
//!                       +---------------+----------------------------------+---> outcome <-+
//!
//!   * only if the pod is unchanged. From then on the extenders count it
//! ```
//!
//! More is written before containers get it, and less after they have lost it. So what a pod holds
//! is never less than what its containers have.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cgpu_client::record;
use cgpu_kubernetes_client::{Api, Event, EventHandler, Failure, Regarding, Severity};
use cgpu_kubernetes_core::gpus::{Held, NodeGpus};
use cgpu_kubernetes_core::names::annotation;
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::refusal::Refusal;
use cgpu_kubernetes_core::resize::{ANNOTATION, Outcome};
use cgpu_kubernetes_core::sizes::{self, ContainerLimits, Sizes, Wanted};
use cgpu_kubernetes_node::containers::Containers;
use cgpu_shm::limits::Limits;
use cgpu_shm::units::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::node::ObservedNode;
use crate::pods::Pods;

/// Interval at which pods with the annotation are compared with their containers.
const COMPARE_INTERVAL: Duration = Duration::from_secs(1);
const COMPONENT: &str = "cgpu-device-plugin";

/// Value of the annotation [`annotation::RESIZE_STATUS`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ResizeStatus {
    /// The annotation that it answers; empty: it was removed.
    resize: String,
    /// `Applied`, `Waiting`, `Refused`, or `Checking` while the room is confirmed.
    outcome: String,
    message: String,
    /// While the room is confirmed: the sizes that the containers have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Sizes>,
}

pub(crate) struct Resizer {
    pub(crate) api: Api,
    pub(crate) pods: Arc<Pods>,
    pub(crate) observed: watch::Receiver<ObservedNode>,
    pub(crate) held: watch::Receiver<Option<Held>>,
    pub(crate) root: PathBuf,
    pub(crate) may_grow: bool,
}

/// Running containers of a pod.
struct Running {
    monitor: Containers,
    /// Their positions, their names, and the weights with which they were started.
    own: Vec<(usize, String, u32)>,
}

impl Resizer {
    pub(crate) async fn run(&self) {
        self.pods.listed().await;
        loop {
            let pods = self.pods.resized();
            let node = self.observed.borrow().clone();
            let held = self.held.borrow().clone();
            if let (Some(node), Some(held)) = (node, held) {
                let node = NodeGpus { held, ..NodeGpus::clone(&node) };
                for pod in &pods {
                    if let Err(failure) = self.visit(pod, &node).await {
                        warn!(pod = pod.metadata.name, "cannot resize the pod: {failure}");
                    }
                }
            }
            let changed = self.pods.resizes.notified();
            if pods.is_empty() {
                changed.await;
            } else {
                let _ = tokio::time::timeout(COMPARE_INTERVAL, changed).await;
            }
        }
    }

    /// Does what the annotation of a pod says.
    async fn visit(&self, pod: &Pod, node: &NodeGpus) -> Result<(), Failure> {
        let annotations = &pod.metadata.annotations;
        let text = annotations.get(ANNOTATION).map(String::as_str).unwrap_or_default();
        let known: Option<ResizeStatus> =
            annotations.get(annotation::RESIZE_STATUS).and_then(|it| serde_json::from_str(it).ok());
        let Some(mut request) = PodRequest::of(pod, self.pods.dialects()) else { return Ok(()) };
        // A pod that no longer is what it was is not resized, and one that is not placed neither.
        if request.bound.as_deref() != Some(node.name.as_str()) {
            return Ok(());
        }
        let before = known.as_ref().and_then(|known| known.before.clone());
        let old = before.unwrap_or_else(|| request.sizes.clone().unwrap_or_default());
        request.sizes = Ok(old.clone());
        let is_refused =
            known.as_ref().is_some_and(|known| known.outcome == "Refused" && known.resize == text);
        let wanted = if is_refused {
            // It is refused once. Containers that start get what the pod has.
            Ok(Wanted { sizes: old.clone(), ..Wanted::default() })
        } else if text.is_empty() {
            let requests = request.requests.as_deref().unwrap_or_default();
            let waiting = requests.iter().map(|request| request.container.clone()).collect();
            Ok(Wanted { sizes: Sizes::default(), waiting })
        } else {
            sizes::wanted(&request, text, node, self.may_grow)
        };
        let (outcome, now) = match wanted {
            Err(refusal) => (Outcome::Refused(refusal.message().to_owned()), old),
            Ok(wanted) => {
                let mut pod = pod.clone();
                let done = self.resize(&mut pod, &request, node, &old, &wanted, text).await?;
                if is_refused {
                    return Ok(());
                }
                return self.report(&pod, known.as_ref(), text, done.0, &done.1).await;
            }
        };
        self.report(pod, known.as_ref(), text, outcome, &now).await
    }

    /// Gives a pod's containers what is wanted; returns what became of it, and what the pod has.
    async fn resize(
        &self,
        pod: &mut Pod,
        request: &PodRequest,
        node: &NodeGpus,
        old: &Sizes,
        wanted: &Wanted,
        text: &str,
    ) -> Result<(Outcome, Sizes), Failure> {
        let (root, uid) = (self.root.clone(), request.uid.clone());
        let running = tokio::task::spawn_blocking(move || running(&root, &uid)).await;
        let running = running.unwrap_or_else(|error| Err(error.to_string()));
        let mut changes = Vec::new();
        if let Ok(running) = &running {
            match running.changes(request, node, wanted) {
                Ok(found) => changes = found,
                Err(outcome) => return Ok((outcome, old.clone())),
            }
        }
        let most = old.or(&wanted.sizes);
        if wanted.sizes.exceeds(old) {
            let refused = |refusal: &Refusal| Outcome::Refused(refusal.message().to_owned());
            let room = self.room(request, &most, node).await?;
            if let Err(refusal) = room {
                return Ok((refused(&refusal), old.clone()));
            }
            let checking = ResizeStatus {
                resize: text.to_owned(),
                outcome: "Checking".to_owned(),
                message: "whether the GPUs have room".to_owned(),
                before: Some(old.clone()),
            };
            *pod = self.write(pod, &most, Some(&checking)).await?;
            if let Err(refusal) = self.room(request, &most, node).await? {
                return Ok((refused(&refusal), old.clone()));
            }
        }
        let described = sizes::described(request, node, &wanted.sizes);
        let applied = match running {
            Err(why) => Err(why),
            Ok(running) => {
                let apply = move || running.apply(&changes);
                tokio::task::spawn_blocking(apply).await.unwrap_or_else(|it| Err(it.to_string()))
            }
        };
        Ok(match applied {
            Ok(()) => (Outcome::Applied(described), wanted.sizes.clone()),
            Err(why) => {
                (Outcome::Waiting(format!("{described}; running containers wait: {why}")), most)
            }
        })
    }

    /// Compares what the API server lists with what a pod is to hold.
    async fn room(
        &self,
        request: &PodRequest,
        sizes: &Sizes,
        node: &NodeGpus,
    ) -> Result<Result<(), Refusal>, Failure> {
        let pods = self.api.holders(&node.name, self.pods.dialects()).await?;
        Ok(sizes::check_room(request, sizes, node, pods.values()))
    }

    /// Writes what became of the annotation on the pod, and an event, if it is new.
    async fn report(
        &self,
        pod: &Pod,
        known: Option<&ResizeStatus>,
        text: &str,
        outcome: Outcome,
        now: &Sizes,
    ) -> Result<(), Failure> {
        let [_, reason, message] = outcome.condition();
        let status = ResizeStatus {
            resize: text.to_owned(),
            outcome: reason.to_owned(),
            message: message.to_owned(),
            before: None,
        };
        // Nothing is left of an annotation that was removed.
        let is_over = text.is_empty() && matches!(outcome, Outcome::Applied(_));
        let is_new = known != Some(&status);
        let stands = pod.metadata.annotations.get(annotation::SIZES) == now.written().as_ref();
        if !is_new && stands {
            return Ok(());
        }
        self.write(pod, now, (!is_over).then_some(&status)).await?;
        if !is_new {
            return Ok(());
        }
        let metadata = &pod.metadata;
        let (severity, reason) = match outcome {
            Outcome::Applied(_) => (Severity::Normal, "GpuResized"),
            Outcome::Waiting(_) => (Severity::Warning, "GpuResizeWaits"),
            Outcome::Refused(_) => (Severity::Warning, "GpuResizeRefused"),
        };
        info!(namespace = metadata.namespace, pod = metadata.name, reason, "{}", status.message);
        let event = Event {
            regarding: Regarding::Pod,
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            severity,
            reason,
            message: status.message,
            component: COMPONENT,
        };
        if let Err(failure) = self.api.publish(&event).await {
            warn!(pod = metadata.name, reason, "cannot publish an event: {failure}");
        }
        Ok(())
    }

    /// Writes sizes and status on a pod, if it is unchanged.
    async fn write(
        &self,
        pod: &Pod,
        sizes: &Sizes,
        status: Option<&ResizeStatus>,
    ) -> Result<Pod, Failure> {
        let metadata = &pod.metadata;
        // Serializing plain fields cannot fail.
        let status = status.map(|status| serde_json::to_string(status).unwrap_or_default());
        let patch = json!({"metadata": {
            "uid": metadata.uid, "resourceVersion": metadata.resource_version,
            "annotations": {annotation::SIZES: sizes.written(), annotation::RESIZE_STATUS: status},
        }});
        let written: Pod = self.api.patch(&metadata.namespace, &metadata.name, &patch).await?;
        self.pods.apply(written.clone());
        Ok(written)
    }
}

/// Reads the running containers of a pod.
fn running(root: &Path, uid: &str) -> Result<Running, String> {
    let monitor = Containers::read(root)?;
    let mut own = Vec::new();
    for (at, container) in monitor.status().containers.iter().enumerate() {
        let recorded = record::containers(&container.dir).into_iter().next();
        let Some(pod) = recorded.and_then(|it| it.pod).filter(|pod| pod.uid == uid) else {
            continue;
        };
        let started = record::host_limits(&container.dir).map_err(|error| error.to_string())?;
        own.push((at, pod.container, started.weight));
    }
    Ok(Running { monitor, own })
}

impl Running {
    /// Returns the limits that the containers are to have, by their positions.
    fn changes(
        &self,
        request: &PodRequest,
        node: &NodeGpus,
        wanted: &Wanted,
    ) -> Result<Vec<(usize, Limits, Limits)>, Outcome> {
        let refused = |message: String| Outcome::Refused(message);
        let mut changes = Vec::new();
        for (at, name, started) in &self.own {
            let requests = request.requests.as_deref().unwrap_or_default();
            let own = requests.iter().find(|request| request.container == *name);
            let Some(own) = own else { continue };
            let limits = ContainerLimits::of(request, own, node, &wanted.sizes)
                .map_err(|refusal| refused(refusal.message().to_owned()))?;
            let has = &self.monitor.status().containers[*at];
            let gpus = limits.gpus.iter().filter_map(|(index, mib)| {
                let uuid = node.gpu(*index)?.uuid.as_ref()?.parse().ok()?;
                Some((uuid, Bytes(mib << 20)))
            });
            let held = Limits {
                name: None,
                weight: *started,
                percent: Some(limits.percent).filter(|percent| *percent > 0),
                high_priority: has.high_priority,
                gpus: gpus.collect(),
            };
            let limits = Limits { weight: limits.weight.unwrap_or(*started), ..held.clone() };
            self.check(*at, name, &limits, wanted.waiting.contains(name))?;
            changes.push((*at, limits, held));
        }
        Ok(changes)
    }

    /// Refuses memory below what a container uses, and a weight that a GPU has not left.
    fn check(&self, at: usize, name: &str, limits: &Limits, waits: bool) -> Result<(), Outcome> {
        let status = self.monitor.status();
        let container = &status.containers[at];
        for gpu in &container.gpus {
            let bytes = limits.gpus.iter().find(|(uuid, _)| uuid.to_string() == gpu.uuid);
            let used = gpu.used.saturating_add(gpu.implicit);
            if let Some((_, bytes)) = bytes.filter(|(_, bytes)| bytes.0 < gpu.limit.min(used)) {
                let message = format!(
                    "container `{name}` uses {} MiB of GPU {}, more than {} MiB",
                    used.div_ceil(1 << 20),
                    gpu.gpu,
                    bytes.0 >> 20
                );
                return Err(if waits {
                    Outcome::Waiting(format!("{message}: its limit is lowered when it uses less"))
                } else {
                    Outcome::Refused(format!("{message}; shrink=wait waits until it uses less"))
                });
            }
            let has = gpu.weight.unwrap_or(container.weight);
            let free =
                status.gpus.iter().find(|it| it.uuid == gpu.uuid).map_or(0, |it| it.free_weight);
            if limits.weight > container.weight && limits.weight > has + free {
                return Err(Outcome::Refused(format!(
                    "container `{name}` cannot have weight {}: GPU {} has {} left for it",
                    limits.weight,
                    gpu.gpu,
                    has + free
                )));
            }
        }
        Ok(())
    }

    fn apply(mut self, changes: &[(usize, Limits, Limits)]) -> Result<(), String> {
        changes.iter().try_for_each(|(at, limits, held)| self.monitor.apply(*at, limits, held))
    }
}
