//! Looks for other plugins and drivers that give out the node's GPUs.

use std::time::Duration;

use cgpu_kubernetes_client::Api;
use cgpu_kubernetes_dra::owner::OtherOwners;
use cgpu_kubernetes_node::owners::{ObservedOwners, note};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use crate::objects::Node;
use crate::options::Options;
use crate::publisher::Published;

/// Interval at which the node's capacity is read.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Delay before a failed read is repeated.
const RETRY_BACKOFF: Duration = Duration::from_secs(2);

/// Keeps the other owners up to date, without end.
pub(crate) async fn observe(
    api: &Api,
    options: &Options,
    published: &Published,
    owners: &watch::Sender<ObservedOwners>,
) {
    let (mut slices, mut capacity, mut due) = (published.slices(), None, Instant::now());
    loop {
        if Instant::now() >= due {
            due = Instant::now() + POLL_INTERVAL;
            match api.get::<Node>("", &options.node_name).await {
                Ok(node) => capacity = Some(node.status.capacity),
                Err(failure) => {
                    warn!("cannot read the node's capacity: {failure}");
                    due = Instant::now() + RETRY_BACKOFF;
                }
            }
        }
        let known = slices.borrow_and_update().clone();
        if let (Some(capacity), Some(known)) = (&capacity, known) {
            let now = OtherOwners::of(capacity, &options.disjoint_resources, known.values());
            note(owners, now);
        }
        tokio::select! {
            changed = slices.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due) => {}
        }
    }
}
