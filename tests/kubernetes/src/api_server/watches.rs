//! Watches: what happened since a version, a line each, as long as somebody listens.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::World;
use super::selector::Selector;
use super::store::Happening;

/// So often somebody who asked for bookmarks is told the version, if there is a new one.
const BOOKMARKS: Duration = Duration::from_millis(300);

/// What somebody watches.
pub(crate) struct Watch {
    pub plural: String,
    /// Empty: all.
    pub namespace: String,
    pub selector: Selector,
    pub version: u64,
    pub bookmarks: bool,
    pub until: Instant,
}

struct Line {
    world: Arc<World>,
    watch: Watch,
    happened: watch::Receiver<u64>,
    broken: watch::Receiver<u64>,
    waiting: VecDeque<Bytes>,
    /// The last version that it was told.
    told: u64,
    over: bool,
}

/// As a body that goes on.
pub(crate) fn body(world: &Arc<World>, watch: Watch) -> Body {
    let mut broken = world.broken.subscribe();
    broken.mark_unchanged();
    let line = Line {
        happened: world.happened.subscribe(),
        broken,
        world: Arc::clone(world),
        told: watch.version,
        watch,
        waiting: VecDeque::new(),
        over: false,
    };
    Body::from_stream(stream::unfold(line, |mut line| async move {
        let next = line.next().await?;
        Some((next, line))
    }))
}

impl Line {
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        loop {
            if let Some(text) = self.waiting.pop_front() {
                return Some(Ok(text));
            }
            if self.over {
                return None;
            }
            self.happened.mark_unchanged();
            if self.read() {
                continue;
            }
            tokio::select! {
                changed = self.happened.changed() => if changed.is_err() { return None },
                _ = self.broken.changed() => {
                    self.over = true;
                    return Some(Err(std::io::Error::other("the line is cut")));
                }
                () = tokio::time::sleep(BOOKMARKS), if self.watch.bookmarks => self.bookmark(),
                () = tokio::time::sleep_until(self.watch.until) => {
                    self.bookmark();
                    self.over = true;
                }
            }
        }
    }

    /// Takes what happened; whether that was anything.
    fn read(&mut self) -> bool {
        let store = self.world.store();
        if self.watch.version < store.forgotten() {
            self.over = true;
            let message = format!("too old resource version: {} ({})", self.watch.version, store.forgotten());
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "Expired", "code": 410});
            self.waiting.push_back(line("ERROR", &status));
            return true;
        }
        let mut faults = self.world.faults();
        let before = self.watch.version;
        for happening in store.since(before) {
            self.watch.version = happening.version;
            let Some((kind, object)) = seen(&self.watch, happening) else { continue };
            if faults.lose > 0 {
                faults.lose -= 1;
                continue;
            }
            self.told = happening.version;
            let text = line(kind, object);
            if faults.double {
                self.waiting.push_back(text.clone());
            }
            self.waiting.push_back(text);
        }
        !self.waiting.is_empty()
    }

    fn bookmark(&mut self) {
        if self.watch.bookmarks && self.told < self.watch.version {
            self.told = self.watch.version;
            let kind = if self.watch.plural == "nodes" { "Node" } else { "Pod" };
            let object = json!({"kind": kind, "apiVersion": "v1",
                "metadata": {"resourceVersion": self.told.to_string(), "creationTimestamp": null}});
            self.waiting.push_back(line("BOOKMARK", &object));
        }
    }
}

/// What a watch is told of it: an object that comes to fit has come, one that ceases to has gone.
fn seen<'a>(watch: &Watch, happening: &'a Happening) -> Option<(&'static str, &'a Value)> {
    let key = &happening.key;
    if key.plural != watch.plural || !(watch.namespace.is_empty() || key.namespace == watch.namespace) {
        return None;
    }
    let fits =
        |object: &Option<Arc<Value>>| object.as_ref().is_some_and(|object| watch.selector.fits(object));
    match (fits(&happening.before), fits(&happening.after)) {
        (false, true) => Some(("ADDED", happening.after.as_deref()?)),
        (true, true) => Some(("MODIFIED", happening.after.as_deref()?)),
        (true, false) => Some(("DELETED", happening.after.as_deref().or(happening.before.as_deref())?)),
        (false, false) => None,
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    let mut text = json!({"type": kind, "object": object}).to_string();
    text.push('\n');
    text.into()
}
