//! Events on pods and nodes. They are queued, so that no request waits for them. An event is not
//! repeated within [`REPEAT_INTERVAL`].

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cgpu_kubernetes_client::{Api, Event, Regarding, Severity};
use cgpu_kubernetes_core::pod_request::PodRequest;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::{debug, warn};

/// Interval before the same event is published again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(300);

/// Maximum number of queued events. Further events are dropped; persistent problems are reported
/// again.
const QUEUE_LENGTH: usize = 1024;

/// Number of published events after which old ones are removed from the record.
const MAX_REMEMBERED: usize = 8192;

/// The pod's request is invalid.
const REFUSED: &str = "GpuRequestRefused";
/// A label of the pod was ignored.
const LABEL_IGNORED: &str = "GpuLabelIgnored";
pub(crate) const NOT_BOUND: &str = "GpuNotBound";
/// The pod was to be bound to a node that is not in the copy.
pub(crate) const NODE_UNKNOWN: &str = "GpuNodeUnknown";
/// The pod is on a node, but its GPUs there are not known.
pub(crate) const UNCLEAR: &str = "GpuAllocationUnclear";
/// The pod is on a node without a GPU.
pub(crate) const NOT_ALLOCATED: &str = "GpuNotAllocated";

/// Enough is free on a node, but not on a GPU.
pub(crate) const FRAGMENTED: &str = "GpuFragmented";

/// A label of a node was ignored.
pub(crate) const NODE_LABEL_IGNORED: &str = "GpuNodeLabelIgnored";

#[derive(Debug)]
pub(crate) struct EventRecorder {
    sender: Sender<Event>,
    published: Mutex<HashMap<u64, Instant>>,
}

impl EventRecorder {
    /// Returns a recorder, and the queue that it fills.
    pub(crate) fn new() -> (Self, Receiver<Event>) {
        let (sender, receiver) = channel(QUEUE_LENGTH);
        (Self { sender, published: Mutex::default() }, receiver)
    }

    /// Reports a problem of a pod.
    pub(crate) fn warn(&self, pod: &PodRequest, reason: &'static str, message: &str) {
        self.record(pod, Severity::Warning, reason, message);
    }

    /// Reports information about a pod.
    fn note(&self, pod: &PodRequest, reason: &'static str, message: &str) {
        self.record(pod, Severity::Normal, reason, message);
    }

    /// Reports a problem of a pod whose message changes. Events of this reason count as equal.
    pub(crate) fn warn_at_times(&self, pod: &PodRequest, reason: &'static str, message: &str) {
        let event = event_of(pod, Severity::Warning, reason, message);
        self.enqueue(hash(&(&pod.uid, reason)), event);
    }

    fn record(&self, pod: &PodRequest, severity: Severity, reason: &'static str, message: &str) {
        let event = event_of(pod, severity, reason, message);
        self.enqueue(hash(&event), event);
    }

    /// Reports an invalid request, or labels that are ignored.
    pub(crate) fn report_request(&self, pod: &PodRequest) {
        match pod.resource_request() {
            Err(refusal) => self.warn(pod, REFUSED, refusal.message()),
            Ok(request) => {
                for note in &request.notes {
                    self.note(pod, LABEL_IGNORED, note);
                }
            }
        }
    }

    pub(crate) fn warn_of_node(&self, node: &str, reason: &'static str, message: &str) {
        let event = Event::of_node(node, reason, message.to_owned(), crate::NAME);
        self.enqueue(hash(&event), event);
    }

    /// Queues an event, unless one with this key was queued a short time ago.
    fn enqueue(&self, key: u64, event: Event) {
        if self.is_new(key) && self.sender.try_send(event).is_err() {
            debug!("the queue of events is full");
            self.published().remove(&key);
        }
    }

    fn published(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_new(&self, key: u64) -> bool {
        let now = Instant::now();
        let mut published = self.published();
        if published.len() >= MAX_REMEMBERED {
            published.retain(|_, at| now.duration_since(*at) < REPEAT_INTERVAL);
        }
        let last = published.get(&key).copied();
        let new = last.is_none_or(|at| now.duration_since(at) >= REPEAT_INTERVAL)
            && published.len() < 2 * MAX_REMEMBERED;
        if new {
            published.insert(key, now);
        }
        new
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn event_of(pod: &PodRequest, severity: Severity, reason: &'static str, message: &str) -> Event {
    Event {
        regarding: Regarding::Pod,
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        severity,
        reason,
        message: message.to_owned(),
        component: crate::NAME,
    }
}

/// Publishes queued events one by one, until the recorder is dropped.
pub(crate) async fn publish_all(api: Api, mut events: Receiver<Event>) {
    while let Some(event) = events.recv().await {
        let object = format!("{}/{}", event.namespace, event.name);
        match api.publish(&event).await {
            Ok(()) => debug!(object, reason = event.reason, "published"),
            Err(failure) => {
                warn!(object, reason = event.reason, %failure, "cannot publish an event")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_beyond_the_queue_is_published_later() {
        let (events, mut queue) = EventRecorder::new();
        let warn = |node: usize| events.warn_of_node(&node.to_string(), NODE_LABEL_IGNORED, "no");
        (0..=QUEUE_LENGTH).for_each(warn);
        assert_eq!(queue.len(), QUEUE_LENGTH);
        while queue.try_recv().is_ok() {}
        (0..=QUEUE_LENGTH).for_each(warn);
        assert_eq!(queue.try_recv().unwrap().name, QUEUE_LENGTH.to_string());
        assert!(queue.try_recv().is_err());
    }
}
