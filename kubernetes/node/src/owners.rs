//! Other owners of a node's GPUs at the API server: slices of any driver, and events.

use std::collections::BTreeSet;

use cgpu_kubernetes_client::{Api, Event, Failure, Record};
use cgpu_kubernetes_core::object::Metadata;
use cgpu_kubernetes_dra::owner::{EVENT, OtherOwner, OtherOwners, Program};
use cgpu_kubernetes_dra::slices::Existing;
use serde::Deserialize;
use tokio::sync::watch;
use tracing::{info, warn};

/// A ResourceSlice of any driver.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Slice(pub Existing);

impl Record for Slice {
    const GROUP: &'static str = "/apis/resource.k8s.io/v1";
    const PLURAL: &'static str = "resourceslices";
    const NAMESPACED: bool = false;

    fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }
}

/// The other owners; none before the first look.
pub type ObservedOwners = Option<OtherOwners>;

/// Replaces the other owners if they have changed.
pub fn note(owners: &watch::Sender<ObservedOwners>, now: OtherOwners) {
    owners.send_if_modified(|last| {
        let changes = last.as_ref() != Some(&now);
        if changes {
            info!(?now, "other owners of GPUs");
            *last = Some(now);
        }
        changes
    });
}

/// Publishes an event on the node about each other owner.
#[derive(Debug)]
pub struct Announcer {
    program: Program,
    published: BTreeSet<OtherOwner>,
}

impl Announcer {
    /// Returns one that has published nothing.
    #[must_use]
    pub fn new(program: Program) -> Self {
        Self { program, published: BTreeSet::new() }
    }

    /// Publishes those of `others` that are new.
    ///
    /// # Errors
    /// A request fails; the next call repeats it.
    pub async fn announce(
        &mut self,
        api: &Api,
        node: &str,
        others: BTreeSet<OtherOwner>,
    ) -> Result<(), Failure> {
        self.published.retain(|other| others.contains(other));
        for other in others {
            if self.published.contains(&other) {
                continue;
            }
            let message = other.message(self.program);
            warn!("{message}");
            let component = match self.program {
                Program::Plugin { .. } => "cgpu-device-plugin",
                Program::Driver => "cgpu-dra-driver",
            };
            api.publish(&Event::of_node(node, EVENT, message, component)).await?;
            self.published.insert(other);
        }
        Ok(())
    }
}
