//! Other owners of the node's GPUs, while this plugin runs: NVIDIA's device plugin, and drivers of
//! dynamic resource allocation.
//!
//! ```text
//!   capacity of the node ----+
//!   ResourceSlices of it ----+--> owners --> no new pods on their GPUs, an event on the node
//!   sockets at the kubelet --+
//! ```
//!
//! Capacity and slices are watched. Sockets are looked at only with HAMi's names: then this plugin
//! offers the resource of NVIDIA's, and the capacity does not say which of the two it is of.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use cgpu_kubernetes_client::{Api, EventHandler, Failure, List, Query, Timing, reflector};
use cgpu_kubernetes_core::names::{HAMI_GPUS, MEMORY};
use cgpu_kubernetes_core::object::Node;
use cgpu_kubernetes_dra::owner::{OtherOwners, Program};
use cgpu_kubernetes_dra::slices::Existing;
use cgpu_kubernetes_node::owners::{ObservedOwners, Slice, note};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::options::Options;

/// Interval at which sockets of other plugins are looked for.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before a failed list of slices is repeated.
const RETRY_BACKOFF: Duration = Duration::from_secs(5);
/// Interval at which an API server is asked again that does not serve slices, or not to this
/// account.
const UNSERVED_POLL_INTERVAL: Duration = Duration::from_secs(600);

/// The node's slices by name; none before the first list.
type ObservedSlices = Option<BTreeMap<String, Existing>>;

/// The latest slices of the node.
#[derive(Debug)]
struct NodeSlices(watch::Sender<ObservedSlices>);

impl EventHandler<Slice> for NodeSlices {
    type Kept = Existing;

    fn condense(&self, slice: Slice) -> Existing {
        slice.0
    }

    fn replace(&self, all: List<Existing>) {
        let named = |slice: Existing| (slice.metadata.name.clone(), slice);
        self.0.send_replace(Some(all.items.into_iter().map(named).collect()));
    }

    fn apply(&self, slice: Slice) {
        self.0.send_modify(|known| {
            known.get_or_insert_default().insert(slice.0.metadata.name.clone(), slice.0);
        });
    }

    fn delete(&self, slice: Slice) {
        self.0.send_modify(|known| {
            known.get_or_insert_default().remove(&slice.0.metadata.name);
        });
    }
}

impl Options {
    /// Returns what this program is for other owners.
    pub(crate) fn program(&self) -> Program {
        Program::Plugin { hami: self.hami }
    }
}

/// Keeps the other owners up to date, without end.
pub(crate) async fn observe(
    api: &Api,
    options: &Options,
    mut node: watch::Receiver<Option<Node>>,
    owners: &watch::Sender<ObservedOwners>,
) {
    let slices = NodeSlices(watch::Sender::new(None));
    let mut listed = slices.0.subscribe();
    let mut disjoint = options.disjoint_resources.clone();
    disjoint.push(MEMORY.to_owned());
    if options.hami {
        disjoint.push(HAMI_GPUS.to_owned());
    }
    let compare = async {
        loop {
            let known = node.borrow_and_update().clone();
            let foreign = listed.borrow_and_update().clone();
            if let (Some(node), Some(slices)) = (known, foreign) {
                let mut now = OtherOwners::of(&node.status.capacity, &disjoint, slices.values());
                if options.hami && has_plugin_of_nvidia(&options.kubelet_dir).await {
                    now.insert_plugin(HAMI_GPUS);
                }
                note(owners, now);
            }
            tokio::select! {
                changed = node.changed() => if changed.is_err() { return },
                changed = listed.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(SOCKET_POLL_INTERVAL), if options.hami => {}
            }
        }
    };
    tokio::select! {
        () = compare => {}
        () = reflect(api, &options.node_name, &slices) => {}
    }
}

/// Keeps the slices up to date, without end. An API server that does not serve them has none.
async fn reflect(api: &Api, node: &str, slices: &NodeSlices) {
    let query = Query::all().field(format!("spec.nodeName={node}"));
    loop {
        match api.list_each(&query, |slice: Slice| slice.0).await {
            Ok(_) => reflector::run(api, &query, &Timing::default(), slices).await,
            Err(failure @ (Failure::NotFound(_) | Failure::Refused { code: 403 | 404, .. })) => {
                info!("drivers of claims are not looked for: {failure}");
                slices.0.send_replace(Some(BTreeMap::new()));
                tokio::time::sleep(UNSERVED_POLL_INTERVAL).await;
            }
            Err(failure) => {
                warn!("cannot list the node's ResourceSlices: {failure}");
                tokio::time::sleep(RETRY_BACKOFF).await;
            }
        }
    }
}

/// Returns whether a device plugin of NVIDIA, or one derived from it, listens in the kubelet's
/// folder: they name their sockets after their resources, `nvidia-gpu.sock`. A socket that a plugin
/// has left behind refuses connections.
async fn has_plugin_of_nvidia(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_theirs = |name: &str| name.starts_with("nvidia") && name.ends_with(".sock");
    let sockets = entries.filter(|entry| is_theirs(&entry.file_name().to_string_lossy()));
    for socket in sockets {
        match UnixStream::connect(socket.path()).await {
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {}
            _ => return true,
        }
    }
    false
}
