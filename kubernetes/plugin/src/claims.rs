//! What else gives out this node's GPUs: cgpu's DRA driver, and NVIDIA's device plugin.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use cgpu_kubernetes_core::names::{HAMI_GPUS, is_of_nvidia};
use cgpu_kubernetes_core::object::{Node, Written};
use cgpu_kubernetes_core::quantity;
use tokio::sync::watch;
use tracing::{info, warn};

/// Interval at which prepared claims are looked for.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Waits until no claim is prepared: one engine gives out a node's GPUs, or they are oversold.
pub(crate) async fn wait_until_unprepared(root: &Path) {
    let folder = cgpu_shm::paths::shares(root);
    let mut waits = false;
    while has_files(&folder) {
        if !waits {
            warn!(
                "claims are prepared on this node, so its GPUs are not offered as units yet: label \
                 the node cgpu.dev/engine=dra, drain it, and remove the label ({} has a file for \
                 each share)",
                folder.display()
            );
        }
        waits = true;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    if waits {
        info!("no claim is prepared any more");
    }
}

/// Waits until NVIDIA's device plugin offers no GPUs of this node, which would give whole ones to
/// pods while others share them. `disjoint` are resources of plugins that have other GPUs. With
/// HAMi's names this plugin offers one of the same name.
pub(crate) async fn wait_until_alone(
    node: &mut watch::Receiver<Option<Node>>,
    disjoint: &[String],
    hami: bool,
) {
    let other = |node: &Node| {
        let is_other = |(name, amount): &(&String, &Written)| {
            is_of_nvidia(name)
                && !(hami && *name == HAMI_GPUS)
                && !disjoint.contains(name)
                // The kubelet keeps the resource of a plugin that is gone, with the amount 0.
                && quantity::whole(&amount.0) != Ok(0)
        };
        node.status.allocatable.iter().find(is_other).map(|(name, _)| name.clone())
    };
    let mut told = None;
    let alone = |known: &Option<Node>| {
        let found = known.as_ref().and_then(other);
        if let Some(resource) = found.as_ref().filter(|_| told != found) {
            warn!(
                "another device plugin offers {resource} on this node, so its GPUs are not offered \
                 as units yet: end that plugin on this node (GPU Operator: \
                 devicePlugin.enabled=false); if it has other GPUs, set \
                 plugin.arguments={{--disjoint-resources={resource}}} in the chart"
            );
        }
        told.clone_from(&found);
        found.is_none()
    };
    // It fails when this program ends.
    let _ = node.wait_for(alone).await;
}

/// Returns whether a folder has files, or cannot be read.
fn has_files(folder: &Path) -> bool {
    match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_that_cannot_be_read_counts_as_claims() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("shares");
        assert!(!has_files(&folder));
        fs::create_dir(&folder).unwrap();
        assert!(!has_files(&folder));
        fs::write(folder.join("u-0"), "").unwrap();
        assert!(has_files(&folder));
        assert!(has_files(&folder.join("u-0")));
    }
}
