//! Running containers of the node, as the monitor knows them, and changes of their limits.

use std::path::Path;
use std::time::Duration;

use cgpu_client::message::{ContainerStatus, Status};
use cgpu_client::{Client, record};
use cgpu_shm::limits::Limits;

use crate::monitor;

/// Timeout for each answer of the monitor.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(2);

/// The monitor, and the containers that it knows.
pub struct Containers {
    client: Client,
    status: Status,
}

impl Containers {
    /// Reads them from the monitor of this root.
    ///
    /// # Errors
    /// There is no monitor, or it does not answer.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut client = monitor::connect(root, MONITOR_TIMEOUT)?;
        let status = client.status().map_err(|failure| failure.to_string())?;
        Ok(Self { client, status })
    }

    /// Returns what the monitor said.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Returns the positions of containers that have shares, with the names of these.
    #[must_use]
    pub fn with_shares(&self) -> Vec<(usize, Vec<String>)> {
        let shares = |(at, container): (usize, &ContainerStatus)| {
            let shares = record::shares(&container.dir);
            (!shares.is_empty()).then_some((at, shares))
        };
        self.status.containers.iter().enumerate().filter_map(shares).collect()
    }

    /// Gives the container at a position these limits, where it has others. `held` is recorded
    /// first: a container counts with the most that it had.
    ///
    /// # Errors
    /// They cannot be recorded, or the monitor refuses them.
    pub fn apply(&mut self, at: usize, limits: &Limits, held: &Limits) -> Result<(), String> {
        let Some(container) = self.status.containers.get(at) else { return Ok(()) };
        record::raise(&container.dir, held)
            .map_err(|error| format!("cannot record the limits of {}: {error}", container.id))?;
        let mut values = Vec::new();
        for gpu in &container.gpus {
            let path = |node: &str| format!("{}/{}/{node}", gpu.gpu, container.id);
            let uuid = gpu.uuid.parse().ok();
            let own = limits.gpus.iter().find(|(own, _)| Some(*own) == uuid);
            if let Some((_, bytes)) = own.filter(|(_, bytes)| bytes.0 != gpu.limit) {
                values.push((path("memsize"), bytes.0));
            }
            // These are set on all of its GPUs at once.
            if container.weight != limits.weight {
                values.push((path("weight"), limits.weight.into()));
            }
            if container.percent != limits.percent {
                values.push((path("percent"), limits.percent.unwrap_or(0).into()));
            }
        }
        for (path, value) in values {
            let set = self.client.set(&path, &value.to_string());
            set.map_err(|failure| format!("{path}: {failure}"))?;
        }
        Ok(())
    }
}
