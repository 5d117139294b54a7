//! What of each GPU is left for another container.

use cgpu_client::device_id::DeviceId;
use cgpu_shm::limits::Limits;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;

use crate::plan::Refusal;

/// Most containers on a GPU.
pub(super) const MAX_CONTAINERS: usize = 25;

/// A GPU's memory, which containers share.
#[derive(Clone, Copy, Debug)]
pub struct GpuCapacity {
    /// The GPU.
    pub uuid: Uuid,
    /// Its id for messages.
    pub id: DeviceId,
    /// All of its memory.
    pub total: Bytes,
}

/// Checks whether each GPU that `wanted` names has room for one more container and its limit,
/// beside containers with the limits `others`. With `overcommit`, limits may add up to more than a
/// GPU has.
///
/// # Errors
/// A GPU has no room.
pub(super) fn check(
    wanted: &Limits,
    gpus: &[GpuCapacity],
    overcommit: bool,
    others: &[Limits],
) -> Result<(), Refusal> {
    for &(uuid, limit) in &wanted.gpus {
        let given: Vec<Bytes> = others
            .iter()
            .flat_map(|limits| &limits.gpus)
            .filter(|gpu| gpu.0 == uuid)
            .map(|gpu| gpu.1)
            .collect();
        let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == uuid) else { continue };
        if given.len() >= MAX_CONTAINERS {
            return Err(Refusal(format!(
                "GPU {} has {} containers, and more than {MAX_CONTAINERS} cannot share a GPU; end one of them",
                gpu.id,
                given.len()
            )));
        }
        let sum: u64 = given.iter().map(|limit| limit.0).sum();
        if !overcommit && sum.saturating_add(limit.0) > gpu.total.0 {
            let mib = |bytes: u64| bytes >> 20;
            return Err(Refusal(format!(
                "GPU {} has {} MiB, of which {} MiB are given to {} containers, so that {} MiB more do not fit; lower ALIYUN_COM_GPU_MEM_CONTAINER, end a container, or set allow_overcommit in /etc/cgpu/monitor.toml",
                gpu.id,
                mib(gpu.total.0),
                mib(sum),
                given.len(),
                mib(limit.0)
            )));
        }
    }
    Ok(())
}
