//! A container's view of itself, from its own files and what the monitor wrote there. It needs no
//! socket.
//!
//! The monitor's heartbeat changes four times a second while it runs.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use cgpu_client::message::{ContainerStatus, Gate, GpuStatus, Sharing, Status};
use cgpu_shm::grant::{STALE, TurnState};
use cgpu_shm::grant_snapshot::{GpuGrant, GrantReader, GrantSnapshot};

use crate::report::{self, NATIVE, Report, View};

/// Interval between two reads of the heartbeat.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A container, seen from inside.
pub(crate) struct Container {
    folder: PathBuf,
}

impl Container {
    pub(crate) const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Reads the container's files and the monitor's grant.
    pub(crate) fn report(&self) -> Report {
        let grant = self.wait_for_heartbeat();
        let mut status = Status { root: self.folder.clone(), ..Status::default() };
        status.containers.extend(report::container(&self.folder, &mut status.gpus));
        if let (Some(grant), Some(container)) = (&grant, status.containers.first_mut()) {
            apply(&grant.gpus, container, &mut status.gpus);
        }
        Report { monitor: grant.is_some(), view: View::Container, status }
    }

    /// Waits for a heartbeat; returns `None` if no monitor serves this container.
    fn wait_for_heartbeat(&self) -> Option<GrantSnapshot> {
        let reader = GrantReader::open(&self.folder).ok()?;
        let timeout = Duration::from_nanos(STALE.0);
        let (first, start) = (reader.read().ok()?, Instant::now());
        while first.monitor != 0 && start.elapsed() < timeout {
            thread::sleep(POLL_INTERVAL);
            let grant = reader.read().ok()?;
            if grant.heartbeat != first.heartbeat {
                return Some(grant);
            }
        }
        None
    }
}

/// Adds the monitor's values for each of the container's GPUs, in their order.
fn apply(grants: &[GpuGrant], container: &mut ContainerStatus, gpus: &mut [GpuStatus]) {
    for (at, (share, gpu_grant)) in container.gpus.iter_mut().zip(grants).enumerate() {
        share.share_set = f64::from(gpu_grant.share) / 1000.0;
        share.gate = match gpu_grant.turn.state() {
            TurnState::Open => Gate::Open,
            TurnState::Yours => Gate::Yours,
            TurnState::Wait => Gate::Wait,
        };
        share.gpu_time_ms = gpu_grant.busy.duration().as_secs_f64() * 1000.0;
        share.share_second = gpu_grant.measured.map(|measured| f64::from(measured.share) / 1000.0);
        share.share_estimated = gpu_grant.measured.is_some_and(|measured| !measured.exact);
        share.weight = Some(gpu_grant.weight);
        if at == 0 {
            container.weight = gpu_grant.weight;
        }
        if let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.index == share.gpu) {
            gpu.policy = gpu_grant.policy.min(NATIVE);
            // From here it cannot be seen whether other containers wait.
            gpu.sharing = if share.gate == Gate::Open { Sharing::Open } else { Sharing::Contended };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgpu_client::message::ShareStatus;
    use cgpu_shm::grant::{GrantWriter, Turn};
    use cgpu_shm::grant_snapshot::Measured;
    use cgpu_shm::region::{Region, RegionSpec};
    use cgpu_shm::units::{Bytes, Nanos};

    #[test]
    fn apply_takes_share_from_the_monitor() {
        let measured = Some(Measured { share: 30_000, exact: false });
        let gpu_grant = GpuGrant {
            turn: Turn::new(9, TurnState::Wait),
            limit: Bytes::ZERO,
            policy: 2,
            weight: 3,
            share: 33_333,
            busy: Nanos::from_millis(700),
            measured,
        };
        let mut container =
            ContainerStatus { gpus: vec![ShareStatus::default()], ..ContainerStatus::default() };
        let mut gpus = vec![GpuStatus::default()];
        apply(&[gpu_grant], &mut container, &mut gpus);
        let share = &container.gpus[0];
        assert_eq!(
            (share.share_set, share.share_second, share.share_estimated),
            (33.333, Some(30.0), true)
        );
        assert_eq!((share.gate, share.gpu_time_ms), (Gate::Wait, 700.0));
        assert_eq!((container.weight, gpus[0].policy, gpus[0].sharing), (3, 2, Sharing::Contended));
        apply(&[GpuGrant { measured: None, ..gpu_grant }], &mut container, &mut gpus);
        assert_eq!(
            (container.gpus[0].share_second, container.gpus[0].share_estimated),
            (None, false)
        );
    }

    #[test]
    fn wait_without_heartbeat_returns_none() {
        let folder = tempfile::tempdir().unwrap();
        Region::make(
            folder.path(),
            RegionSpec { name: "a", created: Nanos::ZERO, time_scale: None },
        )
        .unwrap();
        let container = Container::new(folder.path().to_owned());
        assert!(container.wait_for_heartbeat().is_none(), "no monitor yet");
        let grantor = GrantWriter::open(folder.path()).unwrap();
        grantor.adopt(7);
        grantor.beat();
        assert!(container.wait_for_heartbeat().is_none(), "the heartbeat has stopped");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(10 * POLL_INTERVAL);
                grantor.beat();
            });
            assert_eq!(container.wait_for_heartbeat().map(|grant| grant.monitor), Some(7));
        });
    }
}
