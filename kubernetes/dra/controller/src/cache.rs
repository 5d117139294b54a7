//! What the API server has: the templates that pods name, and the controller's own templates.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_kubernetes_client::{EventHandler, List, Record};
use cgpu_kubernetes_dra::templates::Key;
use tokio::sync::watch;

use crate::objects::{Pod, Template, key};

/// A pod, by what concerns templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodTemplates {
    /// Uid of the pod.
    pub(crate) uid: String,
    /// The templates that its claims name.
    pub(crate) templates: BTreeSet<Key>,
}

/// Pods and templates; none before their first list.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pods: Option<BTreeMap<Key, PodTemplates>>,
    templates: Option<BTreeSet<Key>>,
}

impl Known {
    /// Returns the templates that pods name, and those that exist; none before both were listed.
    pub(crate) fn templates(&self) -> Option<(BTreeSet<Key>, &BTreeSet<Key>)> {
        let pods = self.pods.as_ref()?.values();
        let used = pods.flat_map(|pod| &pod.templates).cloned().collect();
        Some((used, self.templates.as_ref()?))
    }

    /// Returns namespace, name and uid of the pods that name a template.
    pub(crate) fn pods_of(&self, template: &Key) -> Vec<(Key, String)> {
        let pods = self.pods.iter().flatten().filter(|(_, pod)| pod.templates.contains(template));
        pods.map(|(key, pod)| (key.clone(), pod.uid.clone())).collect()
    }
}

/// The known objects. A change of them wakes the controller, a change of a pod's status does not.
#[derive(Debug)]
pub(crate) struct Cache(watch::Sender<Known>);

impl Cache {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Known::default()))
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Known> {
        self.0.subscribe()
    }

    /// Adds or removes a template.
    pub(crate) fn put(&self, key: Key, exists: bool) {
        self.0.send_if_modified(|known| {
            let Some(templates) = &mut known.templates else { return false };
            if exists { templates.insert(key) } else { templates.remove(&key) }
        });
    }
}

impl EventHandler<Pod> for Cache {
    type Kept = (Key, PodTemplates);

    fn condense(&self, pod: Pod) -> Self::Kept {
        let templates =
            PodTemplates { uid: pod.metadata().uid.clone(), templates: pod.templates() };
        (key(pod.metadata()), templates)
    }

    fn replace(&self, all: List<Self::Kept>) {
        self.0.send_modify(|known| known.pods = Some(all.items.into_iter().collect()));
    }

    fn apply(&self, pod: Pod) {
        let (key, templates) = self.condense(pod);
        self.0.send_if_modified(|known| {
            let Some(pods) = &mut known.pods else { return false };
            pods.insert(key, templates.clone()) != Some(templates)
        });
    }

    fn delete(&self, pod: Pod) {
        let key = key(pod.metadata());
        self.0.send_if_modified(|known| {
            known.pods.as_mut().is_some_and(|pods| pods.remove(&key).is_some())
        });
    }
}

impl EventHandler<Template> for Cache {
    type Kept = Key;

    fn condense(&self, template: Template) -> Key {
        key(template.metadata())
    }

    fn replace(&self, all: List<Key>) {
        self.0.send_modify(|known| known.templates = Some(all.items.into_iter().collect()));
    }

    fn apply(&self, template: Template) {
        self.put(key(template.metadata()), true);
    }

    fn delete(&self, template: Template) {
        self.put(key(template.metadata()), false);
    }
}
