//! What comes after a version.

use futures_util::{Stream, StreamExt};
use http::Method;
use kube::core::WatchEvent;

use crate::api::{Api, path, request};
use crate::failure::Failure;
use crate::query::Query;
use crate::record::Record;

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum Happening<R> {
    /// It came or changed.
    Seen(R),
    /// It went, or is not meant by the query any more; as it was then.
    Lost(R),
    /// Nothing, up to this version.
    Nothing(String),
}

/// What happens after `version`, for as long as the API server keeps the line open: not longer than `seconds`.
pub(crate) async fn follow<R: Record>(
    api: &Api,
    query: &Query,
    version: &str,
    seconds: u64,
) -> Result<impl Stream<Item = Result<Happening<R>, Failure>> + Send + use<R>, Failure> {
    let seconds = seconds.to_string();
    let parameters = [
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("resourceVersion", version),
        ("timeoutSeconds", seconds.as_str()),
    ];
    let request = request(Method::GET, &path::<R>(query, &parameters), None)?;
    let opened = tokio::time::timeout(api.timeout(), api.client().request_events::<R>(request)).await;
    let events = opened.map_err(|_| Failure::Unreachable(format!("not within {:?}", api.timeout())))??;
    Ok(events.map(|event: kube::Result<WatchEvent<R>>| match event {
        Ok(WatchEvent::Added(record) | WatchEvent::Modified(record)) => Ok(Happening::Seen(record)),
        Ok(WatchEvent::Deleted(record)) => Ok(Happening::Lost(record)),
        Ok(WatchEvent::Bookmark(mark)) => Ok(Happening::Nothing(mark.metadata.resource_version)),
        Ok(WatchEvent::Error(status)) => Err(Failure::of_status(status.code, &status.reason, status.message)),
        Err(error) => Err(error.into()),
    }))
}
