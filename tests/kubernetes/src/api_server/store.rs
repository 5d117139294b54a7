//! Objects, their versions and their history.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::{Value, json};

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind in the plural, as in paths.
    pub plural: String,
    /// Empty if the kind has no namespaces.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// Returns the key of any object.
    #[must_use]
    pub fn new(plural: &str, namespace: &str, name: &str) -> Self {
        Self { plural: plural.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns a pod's key.
    #[must_use]
    pub fn pod(namespace: &str, name: &str) -> Self {
        Self::new("pods", namespace, name)
    }

    /// Returns a node's key.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self::new("nodes", "", name)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct StoredEvent {
    pub version: u64,
    pub key: Key,
    pub before: Option<Arc<Value>>,
    /// None if it was deleted.
    pub after: Option<Arc<Value>>,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    version: u64,
    created: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    /// Pods by the node that they are bound to, as the real server indexes them.
    by_node: BTreeMap<String, BTreeSet<Key>>,
    events: VecDeque<StoredEvent>,
    /// The history up to this version is compacted.
    compacted: u64,
    /// Remaining pages of lists, by token.
    pub snapshots: BTreeMap<u64, (u64, Vec<Arc<Value>>)>,
}

impl Store {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key).map(Arc::clone)
    }

    pub(crate) fn all(&self, plural: &str) -> impl Iterator<Item = &Arc<Value>> {
        let first = Key::new(plural, "", "");
        self.objects
            .range((Bound::Included(first), Bound::Unbounded))
            .take_while(move |(key, _)| key.plural == plural)
            .map(|(_, object)| object)
    }

    /// Returns the pods that are bound to this node, or the unbound ones if it is empty.
    pub(crate) fn on_node(&self, node: &str) -> impl Iterator<Item = &Arc<Value>> {
        self.by_node.get(node).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    pub(crate) fn since(&self, version: u64) -> impl Iterator<Item = &StoredEvent> {
        let first = self.events.partition_point(|event| event.version <= version);
        self.events.range(first..)
    }

    pub(crate) fn put(&mut self, plural: &str, mut object: Value) -> Value {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let key = Key::new(
            plural,
            &text(&object["metadata"]["namespace"]),
            &text(&object["metadata"]["name"]),
        );
        let uid = match self.objects.get(&key) {
            Some(known) => known["metadata"]["uid"].clone(),
            None => {
                self.created += 1;
                json!(format!("788d1c6b-6f2a-4f0f-9d4e-{:012x}", self.created))
            }
        };
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = uid;
        }
        if object["metadata"]["creationTimestamp"].is_null() {
            object["metadata"]["creationTimestamp"] = json!("2026-11-23T09:00:00Z");
        }
        self.write(key, object)
    }

    /// Changes an object. One that does not change keeps its version.
    pub(crate) fn edit(&mut self, key: &Key, change: impl FnOnce(&mut Value)) -> Option<Value> {
        let known = self.get(key)?;
        let mut object = Value::clone(&known);
        change(&mut object);
        object["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"].clone();
        Some(if object == *known { object } else { self.write(key.clone(), object) })
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Value> {
        let known = self.objects.remove(key)?;
        self.index(key, Some(&known), None);
        self.version += 1;
        let mut last = Value::clone(&known);
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        // A deletion event has the version of the deletion.
        let before = Some(Arc::new(last.clone()));
        self.events.push_back(StoredEvent {
            version: self.version,
            key: key.clone(),
            before,
            after: None,
        });
        Some(last)
    }

    pub(crate) fn compact(&mut self) {
        self.events.clear();
        self.snapshots.clear();
        // As after an event of another kind: a watch from the latest version is too old, too.
        self.version += 1;
        self.compacted = self.version;
    }

    fn write(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let after = Arc::new(object.clone());
        let before = self.objects.insert(key.clone(), Arc::clone(&after));
        self.index(&key, before.as_deref(), Some(&after));
        self.events.push_back(StoredEvent {
            version: self.version,
            key,
            before,
            after: Some(after),
        });
        object
    }

    fn index(&mut self, key: &Key, before: Option<&Value>, after: Option<&Value>) {
        if key.plural != "pods" {
            return;
        }
        let node = |pod: &Value| pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        if let Some(pods) = before.and_then(|pod| self.by_node.get_mut(&node(pod))) {
            pods.remove(key);
        }
        if let Some(pod) = after {
            self.by_node.entry(node(pod)).or_default().insert(key.clone());
        }
    }
}
