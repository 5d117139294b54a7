//! Which GPUs of a node a pod gets, and which node. Called by `extender.rs` (filter, prioritize)
//! and `claim.rs` (bind).

use crate::accounting::NodeAccounting;
use crate::gpus::{NodeGpus, Placement};
use crate::reason::{self, GpuCandidate, Reason};
use crate::resource_request::ResourceRequest;

/// Chooses GPUs and returns their positions in the node's list.
///
/// Each GPU must have room for the largest part that the pod requests of one GPU, and be one that
/// the pod may have. Of the GPUs that fit, the fullest or the emptiest are taken; of equal ones,
/// the first. Of several, those that are close together come first.
///
/// A GPU of which more is held than it has takes no pod, not even one that requests none of what is
/// short. A claim on such a GPU is never confirmed ([`crate::claim`]), so it would be made and
/// withdrawn again and again.
///
/// # Errors
/// Why too few GPUs fit.
pub fn choose(
    node: &NodeGpus,
    accounting: &NodeAccounting,
    request: &ResourceRequest,
) -> Result<Vec<usize>, Reason> {
    if let Some(closed) = &node.closed {
        return Err(Reason::permanent(closed.message()));
    }
    let candidates: Vec<GpuCandidate> = node
        .gpus
        .iter()
        .enumerate()
        .map(|(position, gpu)| {
            let held = accounting.held.get(position).copied().unwrap_or(gpu.whole());
            GpuCandidate::of(gpu, position, held, request)
        })
        .collect();
    let mut fitting: Vec<&GpuCandidate> =
        candidates.iter().filter(|candidate| candidate.fits()).collect();
    if fitting.len() < request.gpus {
        return Err(reason::of(node, request.gpus, &candidates));
    }
    match request.rules.gpus.unwrap_or(node.placement) {
        Placement::Binpack => {
            fitting.sort_by_key(|candidate| (candidate.free.units, candidate.position))
        }
        Placement::Spread => fitting
            .sort_by_key(|candidate| (std::cmp::Reverse(candidate.free.units), candidate.position)),
    }
    let ordered: Vec<usize> = fitting.iter().map(|candidate| candidate.position).collect();
    let mut positions = close_together(node, &ordered, request.gpus);
    positions.sort_unstable();
    Ok(positions)
}

/// Returns so many GPUs of these, which are in the order of preference: those of one NUMA node and
/// one PCIe root, or else of one NUMA node, or else the first ones. Of several such groups, it
/// takes the one whose last GPU comes first.
fn close_together(node: &NodeGpus, ordered: &[usize], count: usize) -> Vec<usize> {
    let is_near = |one: usize, other: usize, also_root: bool| {
        let [one, other] = [one, other].map(|position| &node.gpus[position].locality);
        let same_root = one.pcie_root.is_some() && one.pcie_root == other.pcie_root;
        match (one.numa_node, other.numa_node) {
            (Some(one), Some(other)) => one == other && (same_root || !also_root),
            // A machine with one NUMA node may report none.
            (None, None) => also_root && same_root,
            _ => false,
        }
    };
    let group = |also_root: bool| {
        // The first GPUs that are near to a GPU; the group is complete at the rank of the last one.
        let of = |first: &usize| {
            let near = ordered.iter().enumerate();
            let near = near.filter(|(_, other)| is_near(*first, **other, also_root)).take(count);
            let (ranks, found): (Vec<usize>, Vec<usize>) = near.unzip();
            (found.len() == count).then(|| (ranks.last().copied(), found))
        };
        ordered.iter().filter_map(of).min().map(|(_, found)| found)
    };
    let near = if count > 1 { group(true).or_else(|| group(false)) } else { None };
    near.unwrap_or_else(|| ordered[..count].to_vec())
}

/// Returns how full a node would be with the pod on it, in millionths.
#[must_use]
pub fn fullness(
    node: &NodeGpus,
    accounting: &NodeAccounting,
    request: &ResourceRequest,
    positions: &[usize],
) -> u64 {
    let held = accounting.held.iter().fold(0_u64, |sum, share| sum.saturating_add(share.units));
    let new = positions.iter().enumerate().fold(0_u64, |sum, (rank, position)| {
        sum.saturating_add(
            node.gpus.get(*position).map_or(0, |gpu| request.of_gpu(rank, gpu).units),
        )
    });
    crate::container_request::part(
        held.saturating_add(new).min(node.units()),
        1_000_000,
        node.units(),
    )
}

/// Highest score that kube-scheduler accepts.
pub const MAX_SCORE: u64 = 10;

/// Puts these nodes behind the others, each part in its order.
pub fn put_behind(scores: &mut [u64], behind: &[bool]) {
    if behind.iter().all(|behind| *behind) || !behind.contains(&true) {
        return;
    }
    for (score, behind) in scores.iter_mut().zip(behind) {
        *score = if *behind { *score * 4 / MAX_SCORE } else { MAX_SCORE / 2 + *score / 2 };
    }
}

/// Scores nodes by fullness. The fullest or the emptiest node gets [`MAX_SCORE`], the opposite one
/// 0, and the others a score in proportion.
#[must_use]
pub fn scores(fullness: &[u64], placement: Placement) -> Vec<u64> {
    let (Some(least), Some(most)) = (fullness.iter().min(), fullness.iter().max()) else {
        return Vec::new();
    };
    let score = |full: &u64| match placement {
        _ if least == most => MAX_SCORE,
        Placement::Binpack => (full - least) * MAX_SCORE / (most - least),
        Placement::Spread => (most - full) * MAX_SCORE / (most - least),
    };
    fullness.iter().map(score).collect()
}

#[cfg(test)]
mod tests;
