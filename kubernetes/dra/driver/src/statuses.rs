//! Writes the statuses of the node's claims.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cgpu_client::Client;
use cgpu_client::message::Status;
use cgpu_client::record;
use cgpu_kubernetes_client::{Api, Failure};
use cgpu_kubernetes_dra::allocation::NodeClaim;
use cgpu_kubernetes_dra::prepared::PreparedClaims;
use cgpu_kubernetes_dra::status::{Statuses, Use, Uses};
use cgpu_kubernetes_dra::store::Folders;
use cgpu_kubernetes_dra::{DRIVER, allocation::Share};
use serde_json::json;
use tracing::warn;

use crate::objects;
use crate::resizer::Resizer;

/// Interval between two looks at the claims: the node writes one status in it.
const TICK: Duration = Duration::from_secs(1);
/// Timeout for the monitor's answer.
const MONITOR_TIMEOUT: Duration = Duration::from_millis(500);

/// Writes the statuses, without end. Each is written at most once in `interval`.
pub(crate) async fn write(
    api: &Api,
    node: &str,
    root: &Path,
    claims: &Arc<PreparedClaims<Folders>>,
    resizer: &Resizer,
    interval: Duration,
) {
    let (mut statuses, start) = (Statuses::new(node, interval), Instant::now());
    loop {
        tokio::time::sleep(TICK).await;
        let prepared: Vec<NodeClaim> = claims.ledger().claims().cloned().collect();
        // Before the uses, which then show what a resize has changed.
        let conditions = resizer.conditions().clone();
        let (root, shares) = (root.to_owned(), prepared.clone());
        let uses = tokio::task::spawn_blocking(move || uses(&root, &shares)).await;
        let now = start.elapsed();
        let due = statuses.next(now, &prepared, &uses.unwrap_or_default(), &conditions);
        let Some((claim, devices)) = due else { continue };
        let NodeClaim { namespace, name, uid, .. } = claim;
        let part = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": name, "namespace": namespace, "uid": uid },
            "status": { "devices": devices },
        });
        match api.apply_status::<objects::Claim>(namespace, name, DRIVER, &part).await {
            // A claim that is gone has no status. It is unprepared soon.
            Ok(_) | Err(Failure::NotFound(_) | Failure::Conflict(_)) => {}
            Err(failure) => {
                warn!(namespace, name, "cannot write the status of the claim: {failure}");
                statuses.failed(now, uid);
            }
        }
    }
}

/// Returns what the containers of the claims' shares have used, as the monitor says. Without a
/// monitor nothing is known.
fn uses(root: &Path, claims: &[NodeClaim]) -> Uses {
    let shares: Vec<&Share> = claims.iter().flat_map(|claim| &claim.shares).collect();
    if shares.is_empty() {
        return Uses::new();
    }
    let socket = cgpu_shm::paths::socket(root);
    let status = Client::connect_within(&socket, MONITOR_TIMEOUT).and_then(|mut it| it.status());
    status.map(|status| of(&status, &shares, |dir| record::shares(dir))).unwrap_or_default()
}

fn of(status: &Status, shares: &[&Share], shares_of: impl Fn(&PathBuf) -> Vec<String>) -> Uses {
    let mut uses = Uses::new();
    for container in &status.containers {
        let own = shares_of(&container.dir);
        for share in shares.iter().filter(|share| own.contains(&share.name)) {
            let gpu = container.gpus.iter().find(|gpu| number(&gpu.uuid) == number(&share.gpu));
            let known = gpu.map(|gpu| Use {
                limit: gpu.limit,
                used: gpu.used.saturating_add(gpu.implicit),
                // A container that is alone on the GPU has no turns that could be measured.
                share: gpu.share_second.or(gpu.utilization.map(f64::from)),
                wall: gpu.wall.as_ref().map(|wall| wall.state),
                wall_reason: gpu.wall.as_ref().and_then(|wall| wall.absent.clone()),
            });
            uses.extend(known.map(|known| (share.name.clone(), known)));
        }
    }
    uses
}

/// Returns a UUID without `GPU-` or `MIG-`.
fn number(uuid: &str) -> Option<&str> {
    uuid.split_once('-').map(|(_, number)| number)
}

#[cfg(test)]
mod tests {
    use cgpu_client::message::{ContainerStatus, ShareStatus};
    use cgpu_client::wall::{WallState, WallStatus};
    use cgpu_kubernetes_dra::allocation::Access;

    use super::*;

    fn share(name: &str, gpu: &str) -> Share {
        Share {
            name: name.into(),
            request: "gpu".into(),
            device: "gpu-0".into(),
            share_id: None,
            gpu: gpu.into(),
            access: Access::Admin,
        }
    }

    /// The monitor's status of a container with this wall on its GPU.
    fn status(wall: Option<WallStatus>) -> Status {
        let gpu =
            ShareStatus { uuid: "MIG-1".into(), limit: 9, used: 3, implicit: 1, wall, ..default() };
        let container = ContainerStatus { dir: "/c/a".into(), gpus: vec![gpu], ..default() };
        Status { containers: vec![container], ..default() }
    }

    fn default<T: Default>() -> T {
        T::default()
    }

    #[test]
    fn wall_of_a_container_reaches_the_status_of_its_claim() {
        let (own, other) = (share("u1-0", "GPU-1"), share("u2-0", "GPU-1"));
        let held = |wall| {
            let shares_of = |dir: &PathBuf| {
                assert_eq!(dir, Path::new("/c/a"));
                vec!["u1-0".to_owned()]
            };
            let mut uses = of(&status(wall), &[&own, &other], shares_of);
            let known = uses.remove("u1-0").unwrap();
            assert_eq!((known.limit, known.used), (9, 4));
            assert!(uses.is_empty(), "no container has the other share");
            (known.wall, known.wall_reason)
        };
        let driver = WallStatus { state: WallState::DriverExceptManaged, ..default() };
        assert_eq!(held(Some(driver)), (Some(WallState::DriverExceptManaged), None));
        let old = WallStatus { absent: Some("old_driver".into()), ..default() };
        assert_eq!(held(Some(old)), (Some(WallState::Shim), Some("old_driver".into())));
        assert_eq!(held(None), (None, None));
    }
}
