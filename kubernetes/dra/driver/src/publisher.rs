//! The node's ResourceSlices at the API server.
//!
//! It is level-triggered: whenever the slices or the pool change, they are compared, and written if
//! they differ. So slices that the kubelet has deleted, while no driver was there, come back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cgpu_kubernetes_client::{Api, EventHandler, Failure, List};
use cgpu_kubernetes_dra::DRIVER;
use cgpu_kubernetes_dra::owner::Program;
use cgpu_kubernetes_dra::slices::{
    Change, Earlier, Existing, are_unshared, changes, earlier_devices,
};
use cgpu_kubernetes_node::owners::{Announcer, Slice};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::devices::ObservedPool;
use crate::objects::Node;

/// Delay before a failed write is repeated.
const RETRY_BACKOFF: Duration = Duration::from_secs(2);
/// Delay before slices are written again that the API server has stored without what lets claims
/// share devices. Until its feature gate is on, each write has the same answer.
const UNSHARED_RETRY_BACKOFF: Duration = Duration::from_secs(600);

/// The slices by name; none before the first list.
pub(crate) type Slices = Option<BTreeMap<String, Existing>>;

/// What the API server has of this node, slices of other drivers included.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    slices: Arc<watch::Sender<Slices>>,
    /// Version up to which the watch has reported all changes.
    reported: Arc<AtomicU64>,
}

impl Default for Published {
    fn default() -> Self {
        Self { slices: Arc::new(watch::Sender::new(None)), reported: Arc::default() }
    }
}

impl Published {
    /// Returns the devices that an earlier driver has published.
    pub(crate) async fn earlier(&self) -> Vec<Earlier> {
        let mut slices = self.slices.subscribe();
        let known = slices.wait_for(Option::is_some).await;
        let known = known.ok().and_then(|known| known.clone()).unwrap_or_default();
        earlier_devices(own(&known))
    }

    /// Returns all slices by name; none before the first list.
    pub(crate) fn slices(&self) -> watch::Receiver<Slices> {
        self.slices.subscribe()
    }

    /// Adds a slice that the API server has just returned, unless the watch has reported it: it
    /// may have been deleted since.
    fn put_written(&self, slice: Existing) {
        let version = slice.metadata.resource_version.parse().unwrap_or(u64::MAX);
        self.put(slice, || version > self.reported.load(Ordering::Acquire));
    }

    fn put(&self, slice: Existing, is_new: impl Fn() -> bool) {
        self.slices.send_if_modified(|known| {
            let Some(known) = known.as_mut().filter(|_| is_new()) else { return false };
            let name = slice.metadata.name.clone();
            known.insert(name, slice.clone()) != Some(slice)
        });
    }

    fn remove(&self, name: &str) {
        self.slices.send_if_modified(|known| {
            known.as_mut().is_some_and(|known| known.remove(name).is_some())
        });
    }
}

impl EventHandler<Slice> for Published {
    type Kept = Existing;

    fn condense(&self, slice: Slice) -> Existing {
        slice.0
    }

    fn replace(&self, all: List<Existing>) {
        let named = |slice: Existing| (slice.metadata.name.clone(), slice);
        self.slices.send_replace(Some(all.items.into_iter().map(named).collect()));
    }

    fn apply(&self, slice: Slice) {
        self.put(slice.0, || true);
    }

    fn delete(&self, slice: Slice) {
        self.remove(&slice.0.metadata.name);
    }

    fn caught_up(&self, version: &str) {
        self.reported.store(version.parse().unwrap_or(0), Ordering::Release);
    }
}

/// Keeps the slices equal to the pool, without end.
pub(crate) async fn publish(
    api: &Api,
    node: &str,
    published: &Published,
    mut pool: watch::Receiver<ObservedPool>,
) {
    let mut slices = published.slices();
    // When slices were written last that had been stored without shares.
    let mut unshared: Option<Instant> = None;
    let mut announcer = Announcer::new(Program::Driver);
    loop {
        let known = slices.borrow_and_update().clone();
        let observed = pool.borrow_and_update().clone();
        let mut delay = None;
        if let (Some(known), Some(observed)) = (known, observed) {
            let mut changes = changes(own(&known), &observed);
            if !changes.is_empty() && are_unshared(own(&known), &observed) {
                let elapsed = unshared.map_or(UNSHARED_RETRY_BACKOFF, |at| at.elapsed());
                if elapsed < UNSHARED_RETRY_BACKOFF {
                    changes.clear();
                    delay = Some(UNSHARED_RETRY_BACKOFF - elapsed);
                } else {
                    warn!(
                        "claims cannot share GPUs: the API server drops allowMultipleAllocations; \
                         enable its feature gate DRAConsumableCapacity (Kubernetes 1.36)"
                    );
                    unshared = Some(Instant::now());
                }
            }
            if let Err(failure) = write(api, node, published, changes).await {
                warn!("cannot write the node's ResourceSlices: {failure}");
                delay = Some(RETRY_BACKOFF);
            }
            let others = observed.devices.iter().filter_map(|device| device.other_owner.clone());
            if let Err(failure) = announcer.announce(api, node, others.collect()).await {
                warn!("cannot publish an event on the node: {failure}");
                delay = Some(RETRY_BACKOFF);
            }
        }
        tokio::select! {
            changed = slices.changed() => if changed.is_err() { return },
            changed = pool.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(delay.unwrap_or(Duration::MAX)), if delay.is_some() => {}
        }
    }
}

/// Returns the slices of this driver.
fn own(slices: &BTreeMap<String, Existing>) -> impl Iterator<Item = &Existing> {
    slices.values().filter(|slice| slice.driver() == DRIVER)
}

/// Writes changes, and applies the answers at once: the watch may report them later.
async fn write(
    api: &Api,
    node: &str,
    published: &Published,
    changes: Vec<Change>,
) -> Result<(), Failure> {
    if changes.is_empty() {
        return Ok(());
    }
    let uid = api.get::<Node>("", node).await?.metadata.uid;
    for change in changes {
        match change {
            Change::Create(slice) => {
                let created: Slice = api.create("", &slice.to_json(&uid)).await?;
                published.put_written(created.0);
            }
            Change::Replace(slice) => {
                let name = &slice.metadata.name;
                let replaced: Slice = api.replace("", name, &slice.to_json(&uid)).await?;
                published.put_written(replaced.0);
            }
            Change::Delete(name) => match api.delete::<Slice>("", &name).await {
                Ok(()) | Err(Failure::NotFound(_)) => published.remove(&name),
                Err(failure) => return Err(failure),
            },
        }
    }
    info!("the ResourceSlices are written");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(version: &str) -> Slice {
        let metadata = serde_json::json!({"name": "s", "resourceVersion": version});
        serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap()
    }

    /// The answer to a write may be read after the watch has reported the slice, and its deletion.
    #[test]
    fn late_answer_does_not_restore_a_deleted_slice() {
        let published = Published::default();
        let names = || published.slices().borrow().clone().unwrap().len();
        published.replace(List { items: Vec::new(), version: "5".into() });
        published.caught_up("5");
        published.apply(slice("6"));
        published.caught_up("6");
        published.delete(slice("7"));
        published.put_written(slice("6").0);
        assert_eq!(names(), 0);
        published.put_written(slice("8").0);
        assert_eq!(names(), 1);
    }
}
