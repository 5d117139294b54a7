//! The accounting of a node: which pod holds what of which GPU. It is computed from the node and
//! its pods, never kept by adding and subtracting.

use std::sync::Arc;

use crate::container_request::{Memory, most_of};
use crate::eviction::Eviction;
use crate::gpus::{Gpu, HeldPart, HeldPod, NodeGpus};
use crate::object::Texts;
use crate::pod_request::PodRequest;
use crate::refusal::Refusal;
use crate::share::Share;
use crate::sizes::Sizes;

/// What a pod holds on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// These parts of these GPUs.
    Shares(Vec<(u32, Share)>),
    /// The pod runs here or may start here, but its GPU is not known. It counts on every GPU.
    Unclear(Refusal),
    /// These parts of these GPUs: the pod was deleted, and its containers still live here.
    Left(Vec<(u32, Share)>),
    /// Nothing: it was bound here without GPUs, or its request is invalid. It will not be started.
    Nothing(Refusal),
}

impl Holding {
    /// Returns what `pod` holds on `node`.
    #[must_use]
    pub fn of(pod: &PodRequest, node: &NodeGpus) -> Self {
        match shares_of(pod, node) {
            Ok(shares) => Self::Shares(shares),
            // An invalid annotation may be corrected. Then the pod holds what it held before.
            Err(refusal) if pod.running || (pod.requests.is_ok() && pod.allocation != Ok(None)) => {
                Self::Unclear(refusal)
            }
            Err(refusal) => Self::Nothing(refusal),
        }
    }
}

fn shares_of(pod: &PodRequest, node: &NodeGpus) -> Result<Vec<(u32, Share)>, Refusal> {
    let requests = pod.requests.as_ref().map_err(Clone::clone)?;
    let Some(allocation) = pod.allocation.as_ref().map_err(Clone::clone)? else {
        return Err(Refusal::new("no GPU was chosen for it: it bypassed the scheduler extender"));
    };
    match &allocation.node {
        Some(claimed) if *claimed != node.name => Err(Refusal::new(format!(
            "its GPUs were chosen on node `{claimed}`, but it is bound to `{}`",
            node.name
        ))),
        _ => allocation.shares(requests, node, pod.sizes.as_ref().map_err(Clone::clone)?),
    }
}

/// A pod in the accounting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Pod.
    pub pod: Arc<PodRequest>,
    /// What it holds.
    pub holding: Holding,
}

/// The accounting of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAccounting {
    /// What is held of each GPU.
    pub held: Vec<Share>,
    /// Pods of the node, by namespace and name.
    pub holders: Vec<Holder>,
}

impl NodeAccounting {
    /// Computes the accounting. Pods that name another node are ignored. What the node reports of
    /// pods that are not among these counts as well.
    #[must_use]
    pub fn of<'a>(node: &NodeGpus, pods: impl IntoIterator<Item = &'a Arc<PodRequest>>) -> Self {
        Self::beside(node, pods, "")
    }

    /// Computes the accounting of these pods, which are all but the one of this uid.
    #[must_use]
    pub fn beside<'a>(
        node: &NodeGpus,
        pods: impl IntoIterator<Item = &'a Arc<PodRequest>>,
        uid: &str,
    ) -> Self {
        let mut holders: Vec<Holder> = pods
            .into_iter()
            .filter(|pod| pod.node() == Some(node.name.as_str()))
            .map(|pod| Holder { pod: Arc::clone(pod), holding: Holding::of(pod, node) })
            .collect();
        let is_gone = |known: &str| {
            known != uid && holders.iter().all(|holder| holder.pod.uid.as_str() != known)
        };
        let left: Vec<Holder> = node
            .held
            .iter()
            .filter(|(known, _)| is_gone(known))
            .map(|(uid, held)| held.holder(uid, node))
            .collect();
        holders.extend(left);
        holders.sort_by(|one, other| key(one).cmp(&key(other)));
        Self { held: sum(node, &holders), holders }
    }

    /// Returns the accounting of these holders alone.
    #[must_use]
    pub fn sum<'a>(node: &NodeGpus, holders: impl IntoIterator<Item = &'a Holder>) -> Self {
        let holders: Vec<Holder> = holders.into_iter().cloned().collect();
        Self { held: sum(node, &holders), holders }
    }

    /// Adds a pod that will have these parts of the GPUs.
    pub fn reserve(&mut self, node: &NodeGpus, pod: &Arc<PodRequest>, shares: Vec<(u32, Share)>) {
        let holder = Holder { pod: Arc::clone(pod), holding: Holding::Shares(shares) };
        add(&mut self.held, &holder, node);
        self.holders.push(holder);
    }

    /// Returns the accounting without this pod.
    #[must_use]
    pub fn without(&self, node: &NodeGpus, uid: &str) -> Self {
        let has_object = |holder: &&Holder| !matches!(holder.holding, Holding::Left(_));
        let pods = self.holders.iter().filter(has_object).map(|holder| &holder.pod);
        Self::beside(node, pods.filter(|pod| pod.uid != uid), uid)
    }

    /// Returns what is free of a GPU; zero if the GPU does not exist.
    #[must_use]
    pub fn free(&self, node: &NodeGpus, position: usize) -> Share {
        match (node.gpus.get(position), self.held.get(position)) {
            (Some(gpu), Some(held)) => gpu.whole().without(*held),
            _ => Share::NONE,
        }
    }

    /// Returns whether more of any resource is held than the GPU has.
    #[must_use]
    pub fn is_overfull(&self, node: &NodeGpus, position: usize) -> bool {
        node.gpus
            .get(position)
            .zip(self.held.get(position))
            .is_some_and(|(gpu, held)| !held.fits(gpu.whole()))
    }

    /// Returns the indexes of over-full GPUs.
    pub fn overfull<'a>(&'a self, node: &'a NodeGpus) -> impl Iterator<Item = u32> + 'a {
        let over =
            node.gpus.iter().enumerate().filter(|(position, _)| self.is_overfull(node, *position));
        over.map(|(_, gpu)| gpu.index)
    }

    /// Returns the units that are held, as a table shows them.
    #[must_use]
    pub fn units(&self, position: usize) -> u64 {
        self.holders.iter().fold(0, |sum: u64, holder| sum.saturating_add(holder.units(position)))
    }
}

impl Holder {
    /// Returns what counts as held by the pod, by the position of the GPU.
    #[must_use]
    pub fn parts(&self, node: &NodeGpus) -> Vec<(usize, Share)> {
        match &self.holding {
            Holding::Shares(shares) | Holding::Left(shares) => {
                shares.iter().map(|(gpu, share)| (*gpu as usize, *share)).collect()
            }
            Holding::Unclear(_) => {
                let requests = self.pod.requests.as_deref().unwrap_or_default();
                // An unreadable request may mean all of the GPU.
                let sizes = self.pod.sizes.clone().unwrap_or_default();
                let part = |gpu: &Gpu| match requests {
                    [] => gpu.whole(),
                    requests => most_of(requests, &sizes, gpu),
                };
                node.gpus.iter().map(part).enumerate().collect()
            }
            Holding::Nothing(_) => Vec::new(),
        }
    }

    /// Returns the units of a GPU that the pod is known to hold.
    #[must_use]
    pub fn units(&self, position: usize) -> u64 {
        self.share(position).map_or(0, |share| share.units)
    }

    /// Returns what the pod is known to hold of a GPU.
    #[must_use]
    pub fn share(&self, position: usize) -> Option<Share> {
        match &self.holding {
            Holding::Shares(shares) | Holding::Left(shares) => {
                shares.iter().find(|(gpu, _)| *gpu as usize == position).map(|(_, share)| *share)
            }
            Holding::Unclear(_) | Holding::Nothing(_) => None,
        }
    }
}

impl HeldPod {
    /// Returns the pod, which has no object any more, with what it holds.
    fn holder(&self, uid: &str, node: &NodeGpus) -> Holder {
        let (namespace, name) = self.pod.split_once('/').unwrap_or(("", &self.pod));
        let pod = PodRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            version: String::new(),
            bound: Some(node.name.clone()),
            running: true,
            requests: Ok(Vec::new()),
            labels: Texts::new(),
            rules: Texts::new(),
            allocation: Ok(None),
            sizes: Ok(Sizes::default()),
            // There is nothing to evict.
            priority: i32::MAX,
            nominated: None,
            eviction: Eviction::default(),
            weights: Vec::new(),
            in_gang: false,
            failure: None,
        };
        let share = |(index, part): (&u32, &HeldPart)| {
            let units = Memory::Mib(part.mib).units_of(node.gpu(*index)?);
            let HeldPart { percent, containers, .. } = *part;
            Some((*index, Share { units, percent, containers }))
        };
        let shares = self.gpus.iter().filter_map(share).collect();
        Holder { pod: Arc::new(pod), holding: Holding::Left(shares) }
    }
}

fn key(holder: &Holder) -> (&str, &str, &str) {
    (&holder.pod.namespace, &holder.pod.name, &holder.pod.uid)
}

fn sum(node: &NodeGpus, holders: &[Holder]) -> Vec<Share> {
    let mut held = vec![Share::NONE; node.gpus.len()];
    holders.iter().for_each(|holder| add(&mut held, holder, node));
    held
}

fn add(held: &mut [Share], holder: &Holder, node: &NodeGpus) {
    for (position, share) in holder.parts(node) {
        if let Some(sum) = held.get_mut(position) {
            *sum = sum.and(share);
        }
    }
}

#[cfg(test)]
mod tests;
