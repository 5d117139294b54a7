//! Events on pods and nodes. Whoever has one to tell does not wait for it, and nothing is told over and over.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cgpu_kubernetes_client::{About, Api, Gravity, Notice};
use cgpu_kubernetes_core::pod_request::PodRequest;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::{debug, warn};

/// So long the same is not told again.
const QUIET: Duration = Duration::from_secs(300);

/// So many may wait to be told; more are dropped: what still holds will be said again.
const QUEUE: usize = 1024;

/// After so many it is looked which are long ago.
const REMEMBERED: usize = 8192;

/// What a pod asks for makes no sense.
pub(crate) const REFUSED: &str = "GpuRequestRefused";
/// Something in what it asks for was passed over.
pub(crate) const PASSED_OVER: &str = "GpuLabelIgnored";
/// It was not bound.
pub(crate) const NOT_BOUND: &str = "GpuNotBound";
/// It is on a node, and it cannot be told which GPUs it has there.
pub(crate) const UNCLEAR: &str = "GpuAllocationUnclear";
/// It is on a node without any GPU.
pub(crate) const WITHOUT: &str = "GpuNotAllocated";

/// A label of a node was passed over.
pub(crate) const NODE_LABEL: &str = "GpuNodeLabelIgnored";

/// Where notices are handed in.
#[derive(Debug)]
pub(crate) struct Notices {
    sender: Sender<Notice>,
    told: Mutex<HashMap<u64, Instant>>,
}

impl Notices {
    /// And where they come out.
    pub(crate) fn new() -> (Self, Receiver<Notice>) {
        let (sender, receiver) = channel(QUEUE);
        (Self { sender, told: Mutex::default() }, receiver)
    }

    /// Something that somebody should do something about.
    pub(crate) fn warn(&self, pod: &PodRequest, reason: &'static str, sentence: &str) {
        self.tell(pod, Gravity::Warning, reason, sentence);
    }

    /// Something that is good to know.
    pub(crate) fn note(&self, pod: &PodRequest, reason: &'static str, sentence: &str) {
        self.tell(pod, Gravity::Normal, reason, sentence);
    }

    fn tell(&self, pod: &PodRequest, gravity: Gravity, reason: &'static str, sentence: &str) {
        // kube-scheduler may have sent it without.
        if pod.namespace.is_empty() || pod.name.is_empty() {
            return;
        }
        self.hand_in(Notice {
            about: About::Pod,
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            gravity,
            reason,
            message: sentence.to_owned(),
            component: crate::NAME,
        });
    }

    /// Something about a node that somebody should do something about.
    pub(crate) fn warn_of_node(&self, node: &str, reason: &'static str, sentence: &str) {
        self.hand_in(Notice::of_node(node, reason, sentence.to_owned(), crate::NAME));
    }

    fn hand_in(&self, notice: Notice) {
        let mut hasher = DefaultHasher::new();
        notice.hash(&mut hasher);
        let key = hasher.finish();
        if self.is_new(key) && self.sender.try_send(notice).is_err() {
            debug!("more notices than can be told");
            self.told().remove(&key);
        }
    }

    fn told(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_new(&self, key: u64) -> bool {
        let now = Instant::now();
        let mut told = self.told();
        if told.len() >= REMEMBERED {
            told.retain(|_, at| now.duration_since(*at) < QUIET);
        }
        let last = told.get(&key).copied();
        let new = last.is_none_or(|at| now.duration_since(at) >= QUIET) && told.len() < 2 * REMEMBERED;
        if new {
            told.insert(key, now);
        }
        new
    }
}

/// Tells them, one after the other, until nobody can hand in any more.
pub(crate) async fn tell_all(api: Api, mut notices: Receiver<Notice>) {
    while let Some(notice) = notices.recv().await {
        let whom = format!("{}/{}", notice.namespace, notice.name);
        match api.tell(&notice).await {
            Ok(()) => debug!(whom, reason = notice.reason, "told"),
            Err(failure) => warn!(whom, reason = notice.reason, %failure, "an event could not be told"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_was_no_room_for_is_told_later() {
        let (notices, mut queue) = Notices::new();
        let warn = |node: usize| notices.warn_of_node(&node.to_string(), NODE_LABEL, "no");
        (0..=QUEUE).for_each(warn);
        assert_eq!(queue.len(), QUEUE);
        while queue.try_recv().is_ok() {}
        (0..=QUEUE).for_each(warn);
        assert_eq!(queue.try_recv().unwrap().name, QUEUE.to_string());
        assert!(queue.try_recv().is_err());
    }
}
