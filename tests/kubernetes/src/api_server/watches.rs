//! Watches: the events after a version, one line each, until the client disconnects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::SharedState;
use super::selector::Selector;
use super::store::StoredEvent;

/// Interval of bookmarks, where a client requests them and there is a new version.
const BOOKMARK_INTERVAL: Duration = Duration::from_millis(300);

pub(crate) struct Watch {
    pub plural: String,
    /// Empty: all.
    pub namespace: String,
    pub selector: Selector,
    pub version: u64,
    pub bookmarks: bool,
    pub until: Instant,
}

struct WatchStream {
    state: Arc<SharedState>,
    watch: Watch,
    latest_version: watch::Receiver<u64>,
    broken: watch::Receiver<u64>,
    waiting: VecDeque<Bytes>,
    sent: u64,
    over: bool,
}

pub(crate) fn body(state: &Arc<SharedState>, watch: Watch) -> Body {
    let mut broken = state.broken.subscribe();
    broken.mark_unchanged();
    let stream = WatchStream {
        latest_version: state.latest_version.subscribe(),
        broken,
        state: Arc::clone(state),
        sent: watch.version,
        watch,
        waiting: VecDeque::new(),
        over: false,
    };
    Body::from_stream(stream::unfold(stream, |mut stream| async move {
        let next = stream.next().await?;
        Some((next, stream))
    }))
}

impl WatchStream {
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        loop {
            if let Some(text) = self.waiting.pop_front() {
                self.state.count(text.len());
                return Some(Ok(text));
            }
            if self.over {
                return None;
            }
            self.latest_version.mark_unchanged();
            if self.read_events() {
                continue;
            }
            tokio::select! {
                changed = self.latest_version.changed() => if changed.is_err() { return None },
                _ = self.broken.changed() => {
                    self.over = true;
                    return Some(Err(std::io::Error::other("the connection broke")));
                }
                () = tokio::time::sleep(BOOKMARK_INTERVAL), if self.watch.bookmarks => self.bookmark(),
                () = tokio::time::sleep_until(self.watch.until) => {
                    self.bookmark();
                    self.over = true;
                }
            }
        }
    }

    /// Queues the events since the last read. Returns whether there are any.
    fn read_events(&mut self) -> bool {
        let store = self.state.store();
        if self.watch.version < store.compacted() {
            self.over = true;
            let message =
                format!("too old resource version: {} ({})", self.watch.version, store.compacted());
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "Expired", "code": 410});
            self.waiting.push_back(line("ERROR", &status));
            return true;
        }
        let mut faults = self.state.faults();
        if faults.hold {
            return false;
        }
        let before = self.watch.version;
        for event in store.since(before) {
            self.watch.version = event.version;
            let Some((kind, object)) = event_of(&self.watch, event) else { continue };
            if faults.lose > 0 {
                faults.lose -= 1;
                continue;
            }
            self.sent = event.version;
            let text = line(kind, object);
            if faults.double {
                self.waiting.push_back(text.clone());
            }
            self.waiting.push_back(text);
        }
        !self.waiting.is_empty()
    }

    fn bookmark(&mut self) {
        if self.watch.bookmarks && self.sent < self.watch.version {
            self.sent = self.watch.version;
            let kind = if self.watch.plural == "nodes" { "Node" } else { "Pod" };
            let object = json!({"kind": kind, "apiVersion": "v1",
                "metadata": {"resourceVersion": self.sent.to_string(), "creationTimestamp": null}});
            self.waiting.push_back(line("BOOKMARK", &object));
        }
    }
}

/// Returns the event as the watch reports it: an object that begins to match the selector was
/// added, one that ceases to match was deleted.
fn event_of<'a>(watch: &Watch, event: &'a StoredEvent) -> Option<(&'static str, &'a Value)> {
    let key = &event.key;
    if key.plural != watch.plural
        || !(watch.namespace.is_empty() || key.namespace == watch.namespace)
    {
        return None;
    }
    let fits = |object: &Option<Arc<Value>>| {
        object.as_ref().is_some_and(|object| watch.selector.fits(object))
    };
    match (fits(&event.before), fits(&event.after)) {
        (false, true) => Some(("ADDED", event.after.as_deref()?)),
        (true, true) => Some(("MODIFIED", event.after.as_deref()?)),
        (true, false) => Some(("DELETED", event.after.as_deref().or(event.before.as_deref())?)),
        (false, false) => None,
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    let mut text = json!({"type": kind, "object": object}).to_string();
    text.push('\n');
    text.into()
}
