//! A reflector: lists objects, watches them, and lists again when the watch cannot continue.
//!
//! ```text
//!        +------------------ too old (410), or the resync interval is over ----------------+
//!        v                                                                                 |
//!   list, in pages --> replace --> watch from the list's version --> apply, delete --+     |
//!        ^                              ^                                            |     |
//!        +-- fails: backoff             +-- ended, broken or silent: from the  <-----+-----+
//!                                           last version
//! ```
//!
//! Between two lists nothing is lost: a watch continues from the last version that was received. A
//! list at each resync interval corrects any remaining error.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::api::Api;
use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::handler::EventHandler;
use crate::query::Query;
use crate::record::Record;
use crate::watch::{ObjectChange, follow};

/// Intervals and timeouts of a reflector.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Interval between two lists.
    pub resync_interval: Duration,
    /// Timeout of a watch, at the API server. A watch that is silent for longer is broken.
    pub watch_timeout: Duration,
    /// Delay after the first failure.
    pub min_backoff: Duration,
    /// Longest delay after a failure.
    pub max_backoff: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            resync_interval: Duration::from_secs(600),
            watch_timeout: Duration::from_secs(240),
            min_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(10),
        }
    }
}

/// Lists and watches without end, and passes the results to `handler`.
pub async fn run<R: Record>(
    api: &Api,
    query: &Query,
    timing: &Timing,
    handler: &impl EventHandler<R>,
) {
    let mut backoff = Backoff::new(timing.min_backoff, timing.max_backoff);
    loop {
        match api.list_each(query, |record| handler.condense(record)).await {
            Ok(list) => {
                let version = list.version.clone();
                info!(kind = R::PLURAL, objects = list.items.len(), version, "listed");
                handler.replace(list);
                handler.caught_up(&version);
                handler.connection_changed(Ok(()));
                backoff.reset();
                watch(api, query, timing, handler, version).await;
            }
            Err(failure) => {
                warn!(kind = R::PLURAL, %failure, "cannot list");
                handler.connection_changed(Err(&failure));
                backoff.wait().await;
            }
        }
    }
}

/// Watches from `version` until a list is needed.
async fn watch<R: Record>(
    api: &Api,
    query: &Query,
    timing: &Timing,
    handler: &impl EventHandler<R>,
    mut version: String,
) {
    let until = Instant::now() + timing.resync_interval;
    let mut backoff = Backoff::new(timing.min_backoff, timing.max_backoff);
    while Instant::now() < until {
        let before = version.clone();
        match watch_once(api, query, timing, handler, &mut version, until).await {
            Ok(()) => debug!(kind = R::PLURAL, version, "the watch has ended"),
            Err(Failure::Gone(why)) => {
                info!(kind = R::PLURAL, version, why, "the watch cannot continue");
                return;
            }
            // A change that cannot be read can only be recovered by a list.
            Err(failure @ Failure::Garbled(_)) => {
                warn!(kind = R::PLURAL, version, %failure, "the watch has broken");
                handler.connection_changed(Err(&failure));
                backoff.wait().await;
                return;
            }
            Err(failure) => {
                warn!(kind = R::PLURAL, version, %failure, "the watch has broken");
                handler.connection_changed(Err(&failure));
            }
        }
        // A watch that received changes is continued at once.
        if version == before {
            backoff.wait().await;
        } else {
            backoff.reset();
        }
    }
}

/// Runs one watch until it ends, and advances `version` with each change.
async fn watch_once<R: Record>(
    api: &Api,
    query: &Query,
    timing: &Timing,
    handler: &impl EventHandler<R>,
    version: &mut String,
    until: Instant,
) -> Result<(), Failure> {
    // Random between half and all of it, so that watches of many clients do not end together.
    let seconds = timing.watch_timeout.mul_f64(0.5 + fastrand::f64() / 2.0).as_secs().max(1);
    let events = follow::<R>(api, query, version, seconds).await?;
    handler.connection_changed(Ok(()));
    let mut events = std::pin::pin!(events);
    let deadline = Instant::now() + timing.watch_timeout + Duration::from_secs(10);
    loop {
        let next = tokio::time::timeout_at(deadline.min(until), events.next()).await;
        let change = match next {
            Ok(Some(change)) => change?,
            Ok(None) => return Ok(()),
            Err(_) if Instant::now() >= until => return Ok(()),
            Err(_) => return Err(Failure::Unreachable("the watch is silent".to_owned())),
        };
        match change {
            ObjectChange::Applied(record) => {
                advance(version, &record);
                handler.apply(record);
            }
            ObjectChange::Deleted(record) => {
                advance(version, &record);
                handler.delete(record);
            }
            ObjectChange::Bookmark(mark) => *version = mark,
        }
        handler.caught_up(version);
    }
}

fn advance<R: Record>(version: &mut String, record: &R) {
    let new = &record.metadata().resource_version;
    if !new.is_empty() {
        version.clone_from(new);
    }
}
