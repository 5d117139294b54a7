//! The environment of a container, in the variables of gpushare.

use crate::allocation::Allocation;
use crate::container_request::{Amount, ContainerRequest, Memory, units_in_all};
use crate::gpus::{Gpu, NodeGpus};
use crate::names::variable;
use crate::pod_request::PodRequest;
use crate::refusal::{Refusal, quoted};
use crate::sizes::Sizes;

/// Returns the variables of a container of a pod that was placed on this node, or `None` if the
/// container requests nothing.
///
/// # Errors
/// The pod was not placed on this node, or its allocation does not match its requests.
pub fn of(
    pod: &PodRequest,
    container: &str,
    node: &NodeGpus,
) -> Result<Option<Vec<(&'static str, String)>>, Refusal> {
    let requests = pod.requests.as_ref().map_err(Clone::clone)?;
    let Some(request) = requests.iter().find(|request| request.container == container) else {
        return Ok(None);
    };
    let Some(allocation) = pod.allocation.as_ref().map_err(Clone::clone)? else {
        return Err(Refusal::new(format!(
            "no GPU was chosen for {}: it bypassed the scheduler extender; set `schedulerName` to \
             a scheduler with the extender, or configure the extender",
            pod.title()
        )));
    };
    if let Some(claimed) = allocation.node.as_ref().filter(|claimed| **claimed != node.name) {
        return Err(Refusal::new(format!(
            "the GPUs of {} were chosen on node `{claimed}`, not on `{}`; delete the pod, \
             and its owner creates it again",
            pod.title(),
            node.name
        )));
    }
    // The whole pod is checked, so that no container starts in a pod in which another cannot.
    let shares = allocation.shares(requests, node, &Sizes::default())?;
    pod.check_permitted(node, shares.iter().map(|(gpu, _)| *gpu))?;
    let own = allocation.of_container(request, node)?;
    let gpus: Vec<(&Gpu, u64)> =
        own.iter().filter_map(|(index, units)| Some((node.gpu(*index)?, *units))).collect();
    let list = |of: &dyn Fn(&Gpu, u64) -> String| {
        let all: Vec<String> = gpus.iter().map(|(gpu, units)| of(gpu, *units)).collect();
        all.join(",")
    };
    let amounts = |name: &str, of: &dyn Fn(&Gpu, u64) -> u64| {
        let all: Vec<u64> = gpus.iter().map(|(gpu, units)| of(gpu, *units)).collect();
        let text = match all.split_first() {
            Some((first, rest)) if rest.iter().all(|other| other == first) => first.to_string(),
            _ => all.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
        };
        // An amount that is 0 or missing would mean no limit.
        if all.is_empty() || all.contains(&0) {
            return Err(Refusal::new(format!(
                "{name} of container `{container}` of {} would be {}, expected at least 1 for each \
                 GPU",
                pod.title(),
                quoted(&text)
            )));
        }
        Ok(text)
    };
    let exact = exact_mib(request, &gpus);
    let sizes = allocation.sizes_of(&own.keys().copied().collect(), node)?;
    let mut variables = vec![
        (
            variable::VISIBLE,
            list(&|gpu, _| gpu.uuid.clone().unwrap_or_else(|| gpu.index.to_string())),
        ),
        (variable::INDEX, list(&|gpu, _| gpu.index.to_string())),
        (variable::POD, units_in_all(requests, gpus.first().map(|(gpu, _)| *gpu)).to_string()),
        (variable::CONTAINER, amounts(variable::CONTAINER, &|_, units| exact.unwrap_or(units))?),
        (
            variable::DEVICE,
            amounts(variable::DEVICE, &|gpu, _| match (exact, gpu.mib) {
                (Some(_), Some(mib)) => mib,
                _ => sizes.get(&gpu.index).map_or(gpu.units, |size| size.units),
            })?,
        ),
    ];
    let percent = match request.amount {
        // Rounded up as in the accounting: rounded down, 1 percent over two GPUs would be no limit.
        Amount::InAll { percent, .. } => {
            percent.div_ceil(u32::try_from(gpus.len().max(1)).unwrap_or(1))
        }
        Amount::Each { percent, .. } => percent,
    };
    if percent > 0 {
        variables.push((variable::PERCENT, percent.to_string()));
    }
    if let Some(high) = request.high_priority {
        variables.push((variable::HIGH_PRIORITY, u8::from(high).to_string()));
    }
    if !node.isolated {
        variables.push((variable::DISABLE, "true".to_owned()));
    }
    Ok(Some(variables))
}

/// Returns the limit in MiB if MiB were requested and the sizes of all GPUs are known: then the
/// limit is exact, not a number of units.
pub(crate) fn exact_mib(request: &ContainerRequest, gpus: &[(&Gpu, u64)]) -> Option<u64> {
    match request.amount {
        Amount::Each { memory: Memory::Mib(mib), .. }
            if gpus.iter().all(|(gpu, _)| gpu.mib.is_some()) =>
        {
            Some(mib)
        }
        _ => None,
    }
}

impl Allocation {
    /// Returns the container's units by GPU.
    pub(crate) fn of_container(
        &self,
        request: &ContainerRequest,
        node: &NodeGpus,
    ) -> Result<crate::allocation::ByGpu, Refusal> {
        match &self.split {
            crate::allocation::Split::Gpu(gpu) => self.on_one(request, *gpu, node),
            crate::allocation::Split::Containers(containers) => {
                Ok(containers.get(&request.index).cloned().unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests;
