//! A copy that follows the API server: list, watch, and list again when the watch cannot go on.
//!
//! ```text
//!          +--------------------------- too old (410), or it is time for a list ----------------------------+
//!          v                                                                                                |
//!   list, page by page --> keeper.replace --> watch from its version --> keeper.see, lose --+               |
//!          ^                                      ^                                        |               |
//!          +-- fails: waits, twice as long each time                                       v               |
//!                                                 +-- ended, broken or silent: from the last version  -----+
//! ```
//!
//! Between two of its lists nothing is lost as long as the API server keeps its word: a watch goes on from the version that was last heard of. A list now and
//! then puts right what went wrong all the same.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::api::Api;
use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::keeper::Keeper;
use crate::query::Query;
use crate::record::Record;
use crate::watch::{Happening, follow};

/// How often what is done.
#[derive(Clone, Debug)]
pub struct Pace {
    /// After so long everything is listed anew.
    pub list: Duration,
    /// So long the API server is asked to keep a watch open. One that is silent for longer is broken.
    pub watch: Duration,
    /// The first wait after something went wrong.
    pub first: Duration,
    /// The longest.
    pub most: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            list: Duration::from_secs(600),
            watch: Duration::from_secs(240),
            first: Duration::from_millis(100),
            most: Duration::from_secs(10),
        }
    }
}

/// Keeps a copy for ever.
pub async fn keep<R: Record>(api: &Api, query: &Query, pace: &Pace, keeper: &impl Keeper<R>) {
    let mut backoff = Backoff::new(pace.first, pace.most);
    loop {
        match api.list_each(query, |record| keeper.condense(record)).await {
            Ok(list) => {
                let version = list.version.clone();
                info!(kind = R::PLURAL, objects = list.items.len(), version, "listed");
                keeper.replace(list);
                keeper.reached(Ok(()));
                backoff.reset();
                watch(api, query, pace, keeper, version).await;
            }
            Err(failure) => {
                warn!(kind = R::PLURAL, %failure, "cannot list");
                keeper.reached(Err(&failure));
                backoff.wait().await;
            }
        }
    }
}

/// Watches from `version` until a list is needed.
async fn watch<R: Record>(
    api: &Api,
    query: &Query,
    pace: &Pace,
    keeper: &impl Keeper<R>,
    mut version: String,
) {
    let until = Instant::now() + pace.list;
    let mut backoff = Backoff::new(pace.first, pace.most);
    while Instant::now() < until {
        let before = version.clone();
        match follow_on(api, query, pace, keeper, &mut version, until).await {
            Ok(()) => debug!(kind = R::PLURAL, version, "the watch has ended"),
            Err(Failure::Gone(why)) => {
                info!(kind = R::PLURAL, version, why, "the watch cannot go on");
                return;
            }
            // What it says cannot be read, so what it means can only be had by a list.
            Err(failure @ Failure::Garbled(_)) => {
                warn!(kind = R::PLURAL, version, %failure, "the watch has broken");
                keeper.reached(Err(&failure));
                backoff.wait().await;
                return;
            }
            Err(failure) => {
                warn!(kind = R::PLURAL, version, %failure, "the watch has broken");
                keeper.reached(Err(&failure));
            }
        }
        // One that brought something may go on at once.
        if version == before {
            backoff.wait().await;
        } else {
            backoff.reset();
        }
    }
}

/// One watch, until it ends. `version` goes with what it brings.
async fn follow_on<R: Record>(
    api: &Api,
    query: &Query,
    pace: &Pace,
    keeper: &impl Keeper<R>,
    version: &mut String,
    until: Instant,
) -> Result<(), Failure> {
    // Half of it or more, so that the watches of many do not end together.
    let seconds = pace.watch.mul_f64(0.5 + fastrand::f64() / 2.0).as_secs().max(1);
    let events = follow::<R>(api, query, version, seconds).await?;
    keeper.reached(Ok(()));
    let mut events = std::pin::pin!(events);
    let deadline = Instant::now() + pace.watch + Duration::from_secs(10);
    loop {
        let next = tokio::time::timeout_at(deadline.min(until), events.next()).await;
        let happening = match next {
            Ok(Some(happening)) => happening?,
            Ok(None) => return Ok(()),
            Err(_) if Instant::now() >= until => return Ok(()),
            Err(_) => return Err(Failure::Unreachable("the watch is silent".to_owned())),
        };
        match happening {
            Happening::Seen(record) => {
                advance(version, &record);
                keeper.see(record);
            }
            Happening::Lost(record) => {
                advance(version, &record);
                keeper.lose(record);
            }
            Happening::Nothing(mark) => *version = mark,
        }
    }
}

fn advance<R: Record>(version: &mut String, record: &R) {
    let new = &record.metadata().resource_version;
    if !new.is_empty() {
        version.clone_from(new);
    }
}
