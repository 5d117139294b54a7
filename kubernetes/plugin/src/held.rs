//! What containers of pods hold that live on this node, from what `cgpu-runtime` records of them.
//! The node's annotation says it, so that a pod that is deleted by force keeps its room while its
//! containers live.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_client::record;
use cgpu_kubernetes_core::gpus::{Held, NodeGpus};
use tokio::sync::watch;
use tracing::warn;

use crate::node::ObservedNode;

/// Interval at which the containers are read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Sends what containers hold whenever it changes, without end. Nothing is sent before it is known.
pub(crate) async fn watch_containers(
    root: PathBuf,
    mut observed: watch::Receiver<ObservedNode>,
    sender: watch::Sender<Option<Held>>,
) {
    let mut is_known = true;
    loop {
        let node = observed.borrow_and_update().clone();
        if let Some(node) = node {
            let folder = root.clone();
            let read = tokio::task::spawn_blocking(move || read(&folder, &node)).await;
            match read {
                Ok(Ok(held)) => {
                    is_known = true;
                    sender.send_if_modified(|known| {
                        let changes = known.as_ref() != Some(&held);
                        *known = Some(held);
                        changes
                    });
                }
                // What was read last stays.
                Ok(Err(error)) if is_known => {
                    is_known = false;
                    warn!("cannot read what running containers hold: {error}");
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn read(root: &Path, node: &NodeGpus) -> std::io::Result<Held> {
    let mut held = Held::new();
    for (container, limits) in record::pod_holdings(root)? {
        let pod = held.entry(container.uid).or_default();
        pod.pod = format!("{}/{}", container.namespace, container.pod);
        for (uuid, memory) in limits.gpus {
            let uuid = uuid.to_string();
            let gpu = node.gpus.iter().find(|gpu| gpu.uuid.as_ref() == Some(&uuid));
            let Some(gpu) = gpu else { continue };
            let part = pod.gpus.entry(gpu.index).or_default();
            part.mib = part.mib.saturating_add(memory.0 >> 20);
            part.percent = part.percent.saturating_add(limits.percent.unwrap_or(0));
            part.containers += 1;
        }
    }
    Ok(held)
}
