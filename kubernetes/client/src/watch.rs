//! A watch: the changes after a version.

use futures_util::{Stream, StreamExt};
use http::Method;
use kube::core::WatchEvent;

use crate::api::{Api, path, request};
use crate::failure::Failure;
use crate::query::Query;
use crate::record::Record;

/// A change that a watch reports.
#[derive(Clone, Debug)]
pub(crate) enum ObjectChange<R> {
    /// The object was created or changed.
    Applied(R),
    /// The object was deleted, or no longer matches the query. Has its last state.
    Deleted(R),
    /// There were no changes up to this version.
    Bookmark(String),
}

/// Watches from `version` until the API server ends the watch, after `seconds` at the latest.
pub(crate) async fn follow<R: Record>(
    api: &Api,
    query: &Query,
    version: &str,
    seconds: u64,
) -> Result<impl Stream<Item = Result<ObjectChange<R>, Failure>> + Send + use<R>, Failure> {
    let seconds = seconds.to_string();
    let parameters = [
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("resourceVersion", version),
        ("timeoutSeconds", seconds.as_str()),
    ];
    let request = request(Method::GET, &path::<R>(query, &parameters), None)?;
    let opened =
        tokio::time::timeout(api.timeout(), api.client().request_events::<R>(request)).await;
    let events = opened
        .map_err(|_| Failure::Unreachable(format!("no reply within {:?}", api.timeout())))??;
    Ok(events.map(|event: kube::Result<WatchEvent<R>>| match event {
        Ok(WatchEvent::Added(record) | WatchEvent::Modified(record)) => {
            Ok(ObjectChange::Applied(record))
        }
        Ok(WatchEvent::Deleted(record)) => Ok(ObjectChange::Deleted(record)),
        Ok(WatchEvent::Bookmark(mark)) => {
            Ok(ObjectChange::Bookmark(mark.metadata.resource_version))
        }
        Ok(WatchEvent::Error(status)) => {
            Err(Failure::of_status(status.code, &status.reason, status.message))
        }
        Err(error) => Err(error.into()),
    }))
}
