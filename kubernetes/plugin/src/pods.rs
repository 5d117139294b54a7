//! Pods of the node, and the slices of their containers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cgpu_kubernetes_client::{Api, EventHandler, Failure, List};
use cgpu_kubernetes_core::checkpoint::{self, Checkpoint};
use cgpu_kubernetes_core::gpus::NodeGpus;
use cgpu_kubernetes_core::names::{Dialect, Dialects, annotation};
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::refusal::Refusal;
use cgpu_kubernetes_core::resize::ANNOTATION;
use cgpu_kubernetes_core::slice::{Slices, Token};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tracing::debug;

/// Largest checkpoint that is read, in bytes; ids of eight GPUs in MiB take some 20 MB.
const MAX_CHECKPOINT_BYTES: u64 = 64 << 20;

pub(crate) struct Pods {
    dialects: Dialects,
    /// The kubelet's checkpoint.
    checkpoint: PathBuf,
    inner: Mutex<Inner>,
    listed: watch::Sender<bool>,
    /// Notified when a pod needs an annotation, or a slice becomes unassigned.
    pub(crate) changed: Notify,
    /// Notified when a pod changes: it may have to be resized.
    pub(crate) resizes: Notify,
}

#[derive(Default)]
struct Inner {
    /// Pods that have not ended, by uid.
    live: BTreeMap<String, Pod>,
    slices: Slices,
}

/// Annotations to write on a pod.
pub(crate) struct PendingAnnotations {
    namespace: String,
    name: String,
    uid: String,
    slices: String,
}

impl Pods {
    pub(crate) fn new(dialects: Dialects, kubelet_dir: &Path) -> Self {
        Self {
            dialects,
            checkpoint: kubelet_dir.join(checkpoint::FILE),
            inner: Mutex::default(),
            listed: watch::Sender::new(false),
            changed: Notify::new(),
            resizes: Notify::new(),
        }
    }

    /// Reads what the kubelet has given; `None` if its file says nothing.
    fn checkpoint(&self) -> Option<Checkpoint> {
        let read = || -> io::Result<Vec<u8>> {
            let mut text = Vec::new();
            File::open(&self.checkpoint)?.take(MAX_CHECKPOINT_BYTES).read_to_end(&mut text)?;
            Ok(text)
        };
        let checkpoint = read().ok().and_then(|text| Checkpoint::parse(&text));
        if checkpoint.is_none() {
            debug!(path = %self.checkpoint.display(), "the kubelet's checkpoint cannot be read");
        }
        checkpoint
    }

    pub(crate) fn dialects(&self) -> Dialects {
        self.dialects
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // The next list repairs what a panic left behind.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the pods have been listed.
    pub(crate) async fn listed(&self) {
        let mut listed = self.listed.subscribe();
        let _ = listed.wait_for(|listed| *listed).await;
    }

    /// Returns the pod of this uid, if it is known and has not ended.
    pub(crate) fn get(&self, uid: &str) -> Option<Pod> {
        self.inner().live.get(uid).cloned()
    }

    /// Assigns a slice to a container: see [`Slices::assign`].
    pub(crate) fn assign(
        &self,
        token: Token,
        pod: &PodRequest,
        container: &str,
        node: &NodeGpus,
    ) -> Result<Vec<(&'static str, String)>, Refusal> {
        let checkpoint = self.checkpoint();
        let mut inner = self.inner();
        let Inner { live, slices } = &mut *inner;
        let exists = |uid: &str| live.contains_key(uid);
        let given = slices.assign(token, pod, container, node, checkpoint.as_ref(), exists);
        if given.is_ok() {
            self.changed.notify_one();
        }
        given
    }

    /// Returns the pod of the slice that begins with the same id as this one.
    pub(crate) fn owner(&self, token: Token) -> Option<Pod> {
        let inner = self.inner();
        inner.slices.owner(token).and_then(|uid| inner.live.get(uid)).cloned()
    }

    /// Returns whether an assigned slice begins with this id.
    pub(crate) fn begins(&self, dialect: Dialect, id: u64) -> bool {
        self.inner().slices.begins(dialect, id)
    }

    /// Returns the slices of pods that have not ended.
    pub(crate) fn slices(&self) -> Vec<Token> {
        let mut inner = self.inner();
        let Inner { live, slices } = &mut *inner;
        slices.retain(|uid| live.contains_key(uid));
        slices.tokens().collect()
    }

    /// Returns the pods that are to be resized, or were.
    pub(crate) fn resized(&self) -> Vec<Pod> {
        let names = [ANNOTATION, annotation::SIZES, annotation::RESIZE_STATUS];
        let is_one =
            |pod: &&Pod| names.iter().any(|name| pod.metadata.annotations.contains_key(*name));
        self.inner().live.values().filter(is_one).cloned().collect()
    }

    /// Returns the annotations that are missing on pods with slices.
    pub(crate) fn pending_annotations(&self) -> Vec<PendingAnnotations> {
        let inner = self.inner();
        let note = |pod: &Pod| {
            let slices = inner.slices.annotation(&pod.metadata.uid)?;
            let stands = |name: &str, text: &str| {
                pod.metadata.annotations.get(name).is_some_and(|other| other == text)
            };
            if stands(annotation::ASSIGNED, "true") && stands(annotation::SLICES, &slices) {
                return None;
            }
            let metadata = &pod.metadata;
            Some(PendingAnnotations {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
                uid: metadata.uid.clone(),
                slices,
            })
        };
        inner.live.values().filter_map(note).collect()
    }
}

impl PendingAnnotations {
    /// Writes the annotations, on condition of the pod's uid.
    pub(crate) async fn write(&self, api: &Api) -> Result<Pod, Failure> {
        let patch = json!({"metadata": {"uid": self.uid, "annotations": {
            annotation::ASSIGNED: "true", annotation::SLICES: self.slices,
        }}});
        api.patch(&self.namespace, &self.name, &patch).await
    }
}

impl Inner {
    fn apply(&mut self, pod: Pod) {
        let uid = pod.metadata.uid.clone();
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            self.live.remove(&uid);
            return;
        }
        self.live.insert(uid, pod);
    }

    /// Restores the slices that a previous plugin assigned. Only at the start: later, a user who
    /// may annotate a pod could claim a slice that is about to be assigned to another.
    fn restore(&mut self, dialects: Dialects, checkpoint: Option<&Checkpoint>) {
        for pod in self.live.values() {
            if let Some(slices) = pod.metadata.annotations.get(annotation::SLICES)
                && let Some(pod_request) = PodRequest::of(pod, dialects)
            {
                self.slices.restore(&pod_request, slices, checkpoint);
            }
        }
    }
}

impl EventHandler<Pod> for Pods {
    type Kept = Pod;

    fn condense(&self, pod: Pod) -> Pod {
        pod
    }

    fn replace(&self, all: List<Pod>) {
        let mut inner = self.inner();
        inner.live.clear();
        all.items.into_iter().for_each(|pod| inner.apply(pod));
        if !*self.listed.borrow() {
            inner.restore(self.dialects, self.checkpoint().as_ref());
        }
        drop(inner);
        self.listed.send_replace(true);
        self.changed.notify_one();
        self.resizes.notify_one();
    }

    fn apply(&self, pod: Pod) {
        self.inner().apply(pod);
        self.changed.notify_one();
        self.resizes.notify_one();
    }

    fn delete(&self, pod: Pod) {
        self.inner().live.remove(&pod.metadata.uid);
        self.changed.notify_one();
    }
}
