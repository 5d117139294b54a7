//! The report of `cgpu smi`: a status, and where it comes from.

use cgpu_client::message::Status;
use cgpu_shm::uuid::Uuid;
use cgpu_sim::{GpuSpec, Model};
use serde::Serialize;

/// Policy 5: memory limits only.
pub const NATIVE: u32 = 5;

/// A status and where it comes from.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether a monitor answers. Without one there are no policies and shares, and only GPUs in
    /// use.
    pub monitor: bool,
    /// What the report is about.
    pub view: View,
    /// The status.
    #[serde(flatten)]
    pub status: Status,
}

/// What a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// A host.
    Host,
    /// One container, from its own files.
    Container,
}

/// Returns the model of a simulated GPU, whose UUID is made from that; none: it is not simulated.
#[must_use]
pub fn simulated(uuid: &str) -> Option<&'static Model> {
    let Uuid(bytes) = uuid.parse().ok()?;
    GpuSpec::model_of(bytes)
}

/// Names simulated GPUs where NVML does not.
pub fn name_simulated(status: &mut Status) {
    for gpu in status.gpus.iter_mut().filter(|gpu| gpu.name.is_empty()) {
        gpu.name = simulated(&gpu.uuid).map(|model| model.name.to_owned()).unwrap_or_default();
    }
}
