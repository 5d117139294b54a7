//! Why a node does not fit a pod, short enough for an Event.
//!
//! The scheduler groups nodes with equal reasons, so a reason does not name its node.

use std::fmt::Write;

use crate::gpus::{Gpu, NodeGpus};
use crate::resource_request::ResourceRequest;
use crate::share::Share;

/// Why a node does not fit a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The reason, as an Event shows it.
    pub text: String,
    /// Whether the pod could fit if other pods were removed. If not, no pod needs to be evicted.
    pub resolvable: bool,
}

impl Reason {
    /// Returns a reason that removing other pods does not change.
    #[must_use]
    pub fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), resolvable: false }
    }

    /// Returns the text for kube-scheduler, which prepends the number of nodes: `0/3 nodes are
    /// available: 2 node(s) with ...`.
    #[must_use]
    pub fn counted(&self) -> String {
        format!("node(s) with no GPUs for the pod ({})", self.text)
    }
}

/// A GPU with what is needed of it and what is free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuCandidate {
    pub(crate) position: usize,
    pub(crate) need: Share,
    pub(crate) free: Share,
    /// Whether more of any resource is held than the GPU has.
    pub(crate) overfull: bool,
    pub(crate) healthy: bool,
    /// Whether another plugin or driver gives it out as well.
    pub(crate) owned: bool,
    /// Whether the pod may have it.
    pub(crate) permitted: bool,
    /// Whether it would fit if no pod held any of it.
    pub(crate) large: bool,
}

impl GpuCandidate {
    /// Returns a GPU of which this much is held, for the largest part that is requested of a GPU.
    pub(crate) fn of(gpu: &Gpu, position: usize, held: Share, request: &ResourceRequest) -> Self {
        let need = request.of_gpu(0, gpu);
        Self {
            position,
            need,
            free: gpu.whole().without(held),
            overfull: !held.fits(gpu.whole()),
            healthy: gpu.healthy && !gpu.cordoned,
            owned: gpu.other_owner.is_some(),
            permitted: request.rules.permit(gpu),
            large: need.fits(gpu.whole()),
        }
    }

    pub(crate) fn fits(&self) -> bool {
        self.is_possible() && !self.overfull && self.need.fits(self.free)
    }

    /// Whether the pod may have it, and it takes pods.
    fn is_possible(&self) -> bool {
        self.healthy && !self.owned && self.permitted
    }
}

/// Returns why fewer than `gpus` GPUs fit.
pub(crate) fn of(node: &NodeGpus, gpus: usize, candidates: &[GpuCandidate]) -> Reason {
    let all = candidates.len();
    if gpus > all {
        return Reason::permanent(format!("{gpus} GPUs requested, the node has {all}"));
    }
    let fitting = candidates.iter().filter(|candidate| candidate.fits()).count();
    let mut text = String::new();
    if gpus > 1 {
        let _ = write!(text, "{fitting} of the {gpus} requested GPUs; ");
    }
    let mut parts: Vec<String> = Vec::new();
    let unhealthy = candidates.iter().filter(|candidate| !candidate.healthy).count();
    if unhealthy > 0 {
        parts.push(format!("{unhealthy}/{all} GPUs: unhealthy"));
    }
    let owned = candidates.iter().filter(|candidate| candidate.healthy && candidate.owned).count();
    if owned > 0 {
        parts.push(format!("{owned}/{all} GPUs: given out by another plugin or driver, too"));
    }
    let refused =
        |candidate: &&GpuCandidate| candidate.healthy && !candidate.owned && !candidate.permitted;
    let refused = candidates.iter().filter(refused).count();
    if refused > 0 {
        parts.push(format!("{refused}/{all} GPUs: not permitted by the pod's annotations"));
    }
    let misfits: Vec<&GpuCandidate> = candidates
        .iter()
        .filter(|candidate| candidate.is_possible() && !candidate.fits())
        .collect();
    let mut rest = misfits.as_slice().to_vec();
    let mut take = |lacks: &dyn Fn(&GpuCandidate) -> bool| -> Vec<&GpuCandidate> {
        let (taken, left) = rest.iter().partition(|candidate| lacks(candidate));
        rest = left;
        taken
    };
    // Memory is checked first: it is what users request.
    let most = |group: &[&GpuCandidate], of: fn(&Share) -> u64| {
        let free = group.iter().map(|candidate| of(&candidate.free)).max().unwrap_or(0);
        let requested = group.iter().map(|candidate| of(&candidate.need)).max().unwrap_or(0);
        (group.len(), free, requested)
    };
    let small = take(&|candidate| candidate.need.units > node.gpus[candidate.position].units);
    if !small.is_empty() {
        let largest =
            small.iter().map(|candidate| node.gpus[candidate.position].units).max().unwrap_or(0);
        let (count, _, requested) = most(&small, |share| share.units);
        parts.push(format!(
            "{count}/{all} GPUs: {requested} units requested, the largest has {largest}"
        ));
    }
    let short = take(&|candidate| candidate.need.units > candidate.free.units);
    if !short.is_empty() {
        let (count, free, requested) = most(&short, |share| share.units);
        let sum = candidates
            .iter()
            .filter(|candidate| candidate.is_possible())
            .fold(0_u64, |sum, candidate| sum.saturating_add(candidate.free.units));
        let apart = if sum >= requested && gpus == 1 {
            format!(", {sum} on all GPUs together")
        } else {
            String::new()
        };
        parts.push(format!("{count}/{all} GPUs: {free} of {requested} units free{apart}"));
    }
    let busy = take(&|candidate| candidate.need.percent > candidate.free.percent);
    if !busy.is_empty() {
        let (count, free, requested) = most(&busy, |share| u64::from(share.percent));
        parts.push(format!("{count}/{all} GPUs: {free} of {requested} percent free"));
    }
    let crowded = take(&|candidate| candidate.need.containers > candidate.free.containers);
    if !crowded.is_empty() {
        let (count, free, requested) = most(&crowded, |share| u64::from(share.containers));
        parts.push(format!("{count}/{all} GPUs: room for {free} of {requested} containers"));
    }
    // This one fits, but more of another resource is held than the GPU has.
    if !rest.is_empty() {
        parts.push(format!("{}/{all} GPUs: over-full", rest.len()));
    }
    text.push_str(&parts.join("; "));
    let resolvable = candidates.iter().filter(|it| it.is_possible() && it.large).count() >= gpus;
    Reason { text, resolvable }
}
