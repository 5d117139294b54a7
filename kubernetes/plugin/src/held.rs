//! What containers of pods hold that live on this node, from what `cgpu-runtime` records of them.
//! The node's annotation says it, so that a pod that is deleted by force keeps its room while its
//! containers live.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cgpu_client::record;
use cgpu_client::wall::{WallState, WallStatus};
use cgpu_kubernetes_core::gpus::{Held, NodeGpus};
use cgpu_kubernetes_node::containers::Containers;
use tokio::sync::watch;
use tracing::warn;

use crate::node::ObservedNode;

/// Interval at which the containers are read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which the monitor is asked what holds their limits.
const WALL_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// What holds the memory limit of a container and why not the driver, by pod uid and container.
type Walls = BTreeMap<(String, String), (WallState, Option<String>)>;

/// Sends what containers hold whenever it changes, without end. Nothing is sent before it is known.
pub(crate) async fn watch_containers(
    root: PathBuf,
    mut observed: watch::Receiver<ObservedNode>,
    sender: watch::Sender<Option<Held>>,
) {
    let mut is_known = true;
    let (mut walls, mut due) = (Arc::new(Walls::new()), Instant::now());
    loop {
        let node = observed.borrow_and_update().clone();
        if let Some(node) = node {
            if Instant::now() >= due {
                due = Instant::now() + WALL_POLL_INTERVAL;
                let folder = root.clone();
                let asked = tokio::task::spawn_blocking(move || read_walls(&folder)).await;
                // Without an answer those that were read last stay.
                if let Ok(Some(now)) = asked {
                    walls = Arc::new(now);
                }
            }
            let (folder, walls) = (root.clone(), Arc::clone(&walls));
            let read = tokio::task::spawn_blocking(move || read(&folder, &node, &walls)).await;
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

/// Asks the monitor what holds the memory limits of the pods' containers. Of several GPUs, the
/// weakest counts.
fn read_walls(root: &Path) -> Option<Walls> {
    let monitor = Containers::read(root).ok()?;
    let mut walls = Walls::new();
    for container in &monitor.status().containers {
        let walls_of_gpus = container.gpus.iter().filter_map(|gpu| gpu.wall.as_ref());
        let weakest = walls_of_gpus.max_by_key(|wall| wall.state);
        let recorded = record::containers(&container.dir);
        for pod in recorded.into_iter().filter_map(|container| container.pod) {
            let of = |wall: &WallStatus| (wall.state, wall.absent.clone());
            walls.extend(weakest.map(|wall| ((pod.uid, pod.container), of(wall))));
        }
    }
    Some(walls)
}

fn read(root: &Path, node: &NodeGpus, walls: &Walls) -> std::io::Result<Held> {
    let mut held = Held::new();
    for (container, limits) in record::pod_holdings(root)? {
        let uid = container.uid;
        let pod = held.entry(uid.clone()).or_default();
        pod.pod = format!("{}/{}", container.namespace, container.pod);
        if let Some((state, absent)) = walls.get(&(uid, container.container.clone())) {
            let reason = absent.clone().map(|absent| (container.container.clone(), absent));
            pod.wall_reasons.extend(reason);
            pod.walls.insert(container.container, state.name().to_owned());
        }
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
