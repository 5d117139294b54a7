//! Allocations: which GPUs a pod was given, parsed from its annotations and checked.

use std::collections::{BTreeMap, BTreeSet};

use crate::container_request::{Amount, ContainerRequest, Memory, part};
use crate::gpus::{Gpu, NodeGpus};
use crate::names::annotation;
use crate::object::Texts;
use crate::refusal::{Refusal, quoted};
use crate::share::{Role, Share, most};
use crate::sizes::Sizes;
use crate::unit::Unit;

/// Units by GPU index.
pub type ByGpu = BTreeMap<u32, u64>;

/// How an allocation is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Everything is on this GPU.
    Gpu(u32),
    /// Units of each container, by its position.
    Containers(BTreeMap<usize, ByGpu>),
}

/// Content of a pod's annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// GPUs, and units of them.
    pub split: Split,
    /// Units that the GPUs had at the time: one size for all, or one for each of the pod's GPUs by
    /// index. Empty if unchanged.
    pub sizes: Vec<u64>,
    /// Node that has the GPUs; gpushare does not write it.
    pub node: Option<String>,
    /// Time at which it was written, in nanoseconds since 1970; 0 if unknown.
    pub since: u64,
}

impl Allocation {
    /// Parses the annotations. Returns `None` if the pod has not been placed.
    ///
    /// # Errors
    /// An annotation is invalid.
    pub fn read(annotations: &Texts) -> Result<Option<Self>, Refusal> {
        let text = |name: &str| annotations.get(name).map(String::as_str);
        let split = match (text(annotation::ALLOCATION), text(annotation::INDEX)) {
            (Some(text), _) => Split::Containers(serde_json::from_str(text).map_err(|_| {
                invalid(
                    annotation::ALLOCATION,
                    text,
                    "units by GPU by container, such as `{\"0\":{\"1\":8}}`",
                )
            })?),
            // gpushare writes -1 if it found no GPU.
            (None, None | Some("-1")) => return Ok(None),
            (None, Some(text)) => Split::Gpu(
                number(text)
                    .ok_or_else(|| invalid(annotation::INDEX, text, "the index of a GPU"))?,
            ),
        };
        let sizes = match text(annotation::DEVICE) {
            None => Vec::new(),
            Some(text) => text
                .split(',')
                .map(|size| number(size).filter(|size| *size > 0))
                .collect::<Option<_>>()
                .ok_or_else(|| {
                    invalid(
                        annotation::DEVICE,
                        text,
                        "the units of a GPU, or of each joined by commas",
                    )
                })?,
        };
        // The time only decides when a claim is stale. An invalid one counts as long past.
        let since = text(annotation::ASSUME_TIME).and_then(number).unwrap_or(0);
        Ok(Some(Self { split, sizes, node: text(annotation::NODE).map(str::to_owned), since }))
    }

    /// Returns what the pod holds of each GPU of this node: what its containers requested, or have
    /// by `sizes` if that is more.
    ///
    /// # Errors
    /// The allocation does not match the requests or the node.
    pub fn shares(
        &self,
        requests: &[ContainerRequest],
        node: &NodeGpus,
        sizes: &Sizes,
    ) -> Result<Vec<(u32, Share)>, Refusal> {
        let own;
        let containers = match &self.split {
            Split::Gpu(gpu) => {
                own = requests
                    .iter()
                    .map(|request| Ok((request.index, self.on_one(request, *gpu, node)?)))
                    .collect::<Result<_, Refusal>>()?;
                &own
            }
            Split::Containers(containers) => containers,
        };
        if let Some((index, _)) = containers
            .iter()
            .find(|(index, _)| requests.iter().all(|request| request.index != **index))
        {
            return Err(Refusal::new(format!(
                "{} names container {index}, which requests nothing",
                annotation::ALLOCATION
            )));
        }
        let gpus: BTreeSet<u32> = containers.values().flat_map(BTreeMap::keys).copied().collect();
        let then = self.sizes_of(&gpus, node)?;
        let mut parts: BTreeMap<u32, Vec<(Role, Share)>> = BTreeMap::new();
        for request in requests {
            let none = BTreeMap::new();
            let by_gpu = containers.get(&request.index).unwrap_or(&none);
            check_matches_request(request, by_gpu, &then)?;
            for (index, units) in by_gpu {
                let gpu = &then[index];
                let percent = match request.amount {
                    Amount::InAll { percent, .. } => {
                        percent.div_ceil(u32::try_from(by_gpu.len()).unwrap_or(1))
                    }
                    Amount::Each { percent, .. } => percent,
                };
                let now = node.gpu(*index).unwrap_or(gpu);
                let units = part(*units, now.units, gpu.units);
                let share = Share { units, percent, containers: 1 };
                let share = sizes.held(&request.container, now, share);
                parts.entry(*index).or_default().push((request.role, share));
            }
        }
        Ok(parts.into_iter().map(|(gpu, parts)| (gpu, most(parts))).collect())
    }

    /// Returns the units of a container in gpushare's form: all of its request is on this GPU.
    pub(crate) fn on_one(
        &self,
        request: &ContainerRequest,
        index: u32,
        node: &NodeGpus,
    ) -> Result<ByGpu, Refusal> {
        let units = match request.amount {
            Amount::InAll { units, .. } => units,
            Amount::Each { memory, .. } => {
                let sizes = self.sizes_of(&[index].into(), node)?;
                memory.units_of(&sizes[&index])
            }
        };
        Ok([(index, units)].into())
    }

    /// Returns the GPUs with the sizes that they had when they were allocated.
    pub(crate) fn sizes_of(
        &self,
        gpus: &BTreeSet<u32>,
        node: &NodeGpus,
    ) -> Result<BTreeMap<u32, Gpu>, Refusal> {
        if self.sizes.len() > 1 && self.sizes.len() != gpus.len() {
            return Err(Refusal::new(format!(
                "{} has {} sizes for {} GPUs, expected one or as many",
                annotation::DEVICE,
                self.sizes.len(),
                gpus.len()
            )));
        }
        let mut sizes = BTreeMap::new();
        for (position, index) in gpus.iter().enumerate() {
            let Some(gpu) = node.gpu(*index) else {
                return Err(Refusal::new(format!(
                    "it names GPU {index}, but the node has {} GPUs",
                    node.gpus.len()
                )));
            };
            let units =
                self.sizes.get(position).or(self.sizes.first()).copied().unwrap_or(gpu.units);
            if !can_have_had(gpu, units) {
                return Err(Refusal::new(format!(
                    "{} has {units} units for GPU {index}, which is not its {} MiB in any unit",
                    annotation::DEVICE,
                    gpu.mib.unwrap_or_default()
                )));
            }
            sizes.insert(*index, Gpu { units, ..gpu.clone() });
        }
        Ok(sizes)
    }
}

/// Returns whether a GPU can ever have had so many units. Its memory is constant, but the unit may
/// have changed.
fn can_have_had(gpu: &Gpu, units: u64) -> bool {
    units == gpu.units
        || gpu.mib.is_none_or(|mib| Unit::ALL.iter().any(|unit| unit.units_of(mib) == units))
}

/// Checks that a container was given exactly what it requests. More would take memory from others;
/// less would let it exceed its share.
fn check_matches_request(
    request: &ContainerRequest,
    by_gpu: &ByGpu,
    sizes: &BTreeMap<u32, Gpu>,
) -> Result<(), Refusal> {
    let refuse = |has: u64, requests: u64| {
        Refusal::new(format!(
            "container `{}` was given {has} units, but requests {requests}",
            request.container
        ))
    };
    // A limit of 0 would mean no limit.
    if let Some((index, _)) = by_gpu.iter().find(|(_, units)| **units == 0) {
        return Err(Refusal::new(format!(
            "container `{}` was given 0 units of GPU {index}, expected at least 1",
            request.container
        )));
    }
    if let Some((index, units)) = by_gpu.iter().find(|(index, units)| **units > sizes[index].units)
    {
        return Err(Refusal::new(format!(
            "container `{}` was given {units} units of GPU {index}, which has {}",
            request.container, sizes[index].units
        )));
    }
    match request.amount {
        Amount::InAll { units, .. } => {
            let given = by_gpu.values().fold(0_u64, |sum, units| sum.saturating_add(*units));
            if given != units {
                return Err(refuse(given, units));
            }
        }
        Amount::Each { gpus, memory, .. } => {
            if by_gpu.len() != gpus {
                return Err(Refusal::new(format!(
                    "container `{}` was given {} GPUs, but requests {gpus}",
                    request.container,
                    by_gpu.len()
                )));
            }
            for (index, given) in by_gpu {
                let requested = memory.units_of(&sizes[index]);
                if *given != requested && memory != Memory::Whole {
                    return Err(refuse(*given, requested));
                }
            }
        }
    }
    Ok(())
}

fn invalid(name: &str, text: &str, expected: &str) -> Refusal {
    Refusal::new(format!("{name} is {}, expected {expected}", quoted(text)))
}

/// Parses a number of digits only.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;
