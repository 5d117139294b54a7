//! What running containers hold of the node's GPUs although their claims are unprepared.

use std::collections::BTreeSet;
use std::path::Path;

use cgpu_client::record::{Holding, holdings};
use cgpu_kubernetes_core::refusal::Refusal;
use cgpu_kubernetes_dra::capacity::Capacity;
use cgpu_kubernetes_dra::ledger::Held;

/// Reads what containers hold that have a share which is not prepared.
///
/// # Errors
/// It cannot be read. Then it is not known whether there is room for another claim.
pub(crate) fn read(root: &Path, prepared: &BTreeSet<String>) -> Result<Vec<Held>, Refusal> {
    let is_orphaned = |shares: &[String]| shares.iter().any(|share| !prepared.contains(share));
    let holdings = holdings(root, is_orphaned).map_err(|error| {
        Refusal::new(format!("waits until it is known what running containers hold: {error}"))
    })?;
    Ok(holdings.into_iter().flat_map(held).collect())
}

fn held(Holding { shares, limits }: Holding) -> impl Iterator<Item = Held> {
    let (weight, cores) = (limits.weight, limits.percent.unwrap_or(0));
    limits.gpus.into_iter().map(move |(gpu, memory)| Held {
        shares: shares.clone(),
        gpu,
        capacity: Capacity { memory: memory.0, weight, cores },
    })
}
