//! Live resize of a pod: what its containers have instead of what they requested, and what the
//! annotation makes of that. Pure.
//!
//! A pod's limits cannot be changed, and the scheduler and the kubelet go on counting them. So the
//! device plugin writes on the pod what its containers have (`cgpu.dev/sizes`), and a pod holds the
//! larger of the two.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::accounting::{Holding, NodeAccounting};
use crate::container_request::{Amount, ContainerRequest, Memory};
use crate::gpus::{Gpu, MAX_CONTAINERS, NodeGpus};
use crate::names::annotation;
use crate::object::Texts;
use crate::pod_request::PodRequest;
use crate::quantity;
use crate::refusal::{Refusal, quoted};
use crate::reservation;
use crate::resize::{self, ANNOTATION, Amounts};
use crate::share::Share;
use crate::variables::exact_mib;

/// Names in the annotation of a pod.
const NAMES: [&str; 5] = ["memory", "weight", "percent", "shrink", "grow"];
const FORM: &str = "memory=AMOUNT, weight=NUMBER, percent=NUMBER, shrink=wait or grow=true";
/// Greatest weight of a container: a GPU has so many capacity units.
pub(crate) const MAX_WEIGHT: u64 = MAX_CONTAINERS as u64;

/// What a container has instead of what it requested. What is absent is as requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Memory of each of its GPUs, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Percent of the compute of each of its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
}

impl Size {
    fn or(self, other: Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            weight: self.weight.max(other.weight),
            percent: self.percent.max(other.percent),
        }
    }
}

/// Sizes by container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sizes(pub BTreeMap<String, Size>);

impl Sizes {
    /// Parses the annotation [`annotation::SIZES`] of a pod.
    ///
    /// # Errors
    /// It is invalid.
    pub fn read(annotations: &Texts) -> Result<Self, Refusal> {
        let Some(text) = annotations.get(annotation::SIZES) else { return Ok(Self::default()) };
        serde_json::from_str(text).map_err(|_| {
            Refusal::new(format!(
                "{} is {}, which no device plugin wrote",
                annotation::SIZES,
                quoted(text)
            ))
        })
    }

    /// Returns the value of the annotation; none: every container has what it requested.
    #[must_use]
    pub fn written(&self) -> Option<String> {
        // Serializing plain fields cannot fail.
        (!self.0.is_empty()).then(|| serde_json::to_string(self).unwrap_or_default())
    }

    /// Returns the larger of each.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let mut all = self.clone();
        for (container, size) in &other.0 {
            let known = all.0.entry(container.clone()).or_default();
            *known = known.or(*size);
        }
        all
    }

    /// Returns whether a container would hold more by these sizes than by others.
    #[must_use]
    pub fn exceeds(&self, others: &Self) -> bool {
        self.0.iter().any(|(container, size)| {
            let other = others.0.get(container).copied().unwrap_or_default();
            size.memory > other.memory || size.percent > other.percent
        })
    }

    /// Returns what a container holds of this GPU if it requested `share`.
    #[must_use]
    pub fn held(&self, container: &str, gpu: &Gpu, share: Share) -> Share {
        let Some(size) = self.0.get(container) else { return share };
        let units = size.memory.map_or(0, |mib| Memory::Mib(mib).units_of(gpu));
        share.or(Share { units, percent: size.percent.unwrap_or(0), containers: 0 })
    }
}

/// The limits of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLimits {
    /// MiB by the index of the GPU.
    pub gpus: Vec<(u32, u64)>,
    /// Percent of the compute of each GPU; 0: by its weight.
    pub percent: u32,
    /// Weight; none: as its author wrote.
    pub weight: Option<u32>,
}

impl ContainerLimits {
    /// Returns what a container of a placed pod has with these sizes.
    ///
    /// # Errors
    /// The pod was not placed on this node, its allocation does not match its requests, or the node
    /// does not say how large its GPUs are.
    pub fn of(
        pod: &PodRequest,
        request: &ContainerRequest,
        node: &NodeGpus,
        sizes: &Sizes,
    ) -> Result<Self, Refusal> {
        let allocation = pod.allocation.as_ref().map_err(Clone::clone)?;
        let allocation = allocation.as_ref().ok_or_else(|| Refusal::new("it has no GPU"))?;
        let own = allocation.of_container(request, node)?;
        let then = allocation.sizes_of(&own.keys().copied().collect(), node)?;
        let gpus: Vec<(&Gpu, u64)> =
            own.iter().filter_map(|(index, units)| Some((node.gpu(*index)?, *units))).collect();
        let exact = exact_mib(request, &gpus);
        let size = sizes.0.get(&request.container).copied().unwrap_or_default();
        let mib = |gpu: &Gpu, units: u64| {
            let total = gpu.mib.ok_or_else(|| {
                Refusal::new(format!("the memory of GPU {} is not known", gpu.index))
            })?;
            let of = then.get(&gpu.index).map_or(gpu.units, |gpu| gpu.units).max(1);
            let given = u128::from(total) * u128::from(units) / u128::from(of);
            let given = exact.unwrap_or(u64::try_from(given).unwrap_or(u64::MAX));
            Ok((gpu.index, size.memory.unwrap_or(given)))
        };
        let percent = match request.amount {
            Amount::InAll { percent, .. } => {
                percent.div_ceil(u32::try_from(gpus.len().max(1)).unwrap_or(1))
            }
            Amount::Each { percent, .. } => percent,
        };
        Ok(Self {
            gpus: gpus.iter().map(|(gpu, units)| mib(gpu, *units)).collect::<Result<_, _>>()?,
            percent: size.percent.unwrap_or(percent),
            weight: size.weight,
        })
    }
}

impl fmt::Display for ContainerLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (gpu, mib)) in self.gpus.iter().enumerate() {
            write!(f, "{}{mib} MiB of GPU {gpu}", if at > 0 { ", " } else { "" })?;
        }
        if let Some(weight) = self.weight {
            write!(f, ", weight {weight}")?;
        }
        if self.percent > 0 {
            write!(f, ", {} % of the compute", self.percent)?;
        }
        Ok(())
    }
}

/// What the annotation of a pod requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// What the containers are to have.
    pub sizes: Sizes,
    /// Containers whose memory is lowered once they use less; that of others is not lowered then.
    pub waiting: BTreeSet<String>,
}

/// Returns what an annotation requests for a placed pod. With `may_grow` a container can get more
/// than it requested.
///
/// # Errors
/// The annotation is not understood, an amount is out of range, or it is more than the container
/// requested or a GPU has.
pub fn wanted(
    pod: &PodRequest,
    text: &str,
    node: &NodeGpus,
    may_grow: bool,
) -> Result<Wanted, Refusal> {
    let refuse =
        |why: String| Refusal::new(format!("the annotation {ANNOTATION} is refused: {why}"));
    let entries = resize::parsed(text, &NAMES, FORM).map_err(refuse)?;
    let requests = pod.requests.as_ref().map_err(Clone::clone)?;
    let is_known = |name: &str| requests.iter().any(|request| request.container == name);
    if let Some(unknown) = entries.keys().copied().flatten().find(|name| !is_known(name)) {
        let known: Vec<String> = requests.iter().map(|own| quoted(&own.container)).collect();
        return Err(refuse(format!(
            "the pod has no container {} that requests a GPU, only {}",
            quoted(unknown),
            known.join(", ")
        )));
    }
    if !node.isolated {
        return Err(refuse("the containers of this node have no limits".to_owned()));
    }
    let mut wanted = Wanted::default();
    for request in requests {
        let own = entries.get(&Some(request.container.as_str()));
        let Some(amounts) = own.or_else(|| entries.get(&None)) else { continue };
        let given = ContainerLimits::of(pod, request, node, &Sizes::default())?;
        let one = Resizing { request, given, node, amounts, may_grow };
        let size = one.size().map_err(refuse)?;
        if size != Size::default() {
            wanted.sizes.0.insert(request.container.clone(), size);
        }
        if one.flag("shrink", "wait", "refuse").map_err(refuse)? {
            wanted.waiting.insert(request.container.clone());
        }
    }
    Ok(wanted)
}

/// A container to be resized.
struct Resizing<'a> {
    request: &'a ContainerRequest,
    given: ContainerLimits,
    node: &'a NodeGpus,
    amounts: &'a Amounts<'a>,
    may_grow: bool,
}

impl Resizing<'_> {
    fn size(&self) -> Result<Size, String> {
        let bytes = self.number("memory", u64::MAX)?;
        let memory = bytes.map(|bytes| bytes.div_ceil(1 << 20));
        let weight = self.number("weight", MAX_WEIGHT)?;
        let percent = self.number("percent", 100)?;
        if let Some(mib) = memory {
            for &(index, given) in &self.given.gpus {
                let total = self.node.gpu(index).and_then(|gpu| gpu.mib).unwrap_or(given);
                if mib > total {
                    return Err(format!(
                        "memory of container `{}` is {}, and GPU {index} has {total} MiB",
                        self.request.container,
                        self.written("memory")
                    ));
                }
                self.check("memory", mib, given, " MiB")?;
            }
        }
        if let Some(percent) = percent {
            self.check("percent", percent, self.given.percent.into(), " %")?;
        }
        // Within their bounds, which are of this type.
        let small = |number: Option<u64>| number.and_then(|number| u32::try_from(number).ok());
        Ok(Size { memory, weight: small(weight), percent: small(percent) })
    }

    /// Refuses an amount beyond what the container requested, where it may not grow.
    fn check(&self, name: &str, wanted: u64, given: u64, unit: &str) -> Result<(), String> {
        let grows = self.flag("grow", "true", "false")?;
        if wanted <= given || (grows && self.may_grow) {
            return Ok(());
        }
        let remedy = if grows {
            "the device plugin of this node allows no growth (--allow-growth)"
        } else {
            "add grow=true, for which the permission to grow pods is needed"
        };
        Err(format!(
            "{name} of container `{}` is {}, more than the {given}{unit} that it requested: \
             {remedy}",
            self.request.container,
            self.written(name)
        ))
    }

    fn written(&self, name: &str) -> String {
        quoted(self.amounts.get(name).copied().unwrap_or_default())
    }

    fn number(&self, name: &str, most: u64) -> Result<Option<u64>, String> {
        let Some(text) = self.amounts.get(name) else { return Ok(None) };
        let what = format!("{name} of container `{}`", self.request.container);
        let number = quantity::whole(text).map_err(|invalid| invalid.of(&what, text))?;
        if (1..=most).contains(&number) {
            return Ok(Some(number));
        }
        let most = if most == u64::MAX { "at least 1".to_owned() } else { format!("1 to {most}") };
        Err(format!("{what} is {}, expected {most}", quoted(text)))
    }

    /// Returns whether a field has the first of two values; it has the second without it.
    fn flag(&self, name: &str, value: &str, default: &str) -> Result<bool, String> {
        match self.amounts.get(name) {
            None => Ok(false),
            Some(text) if *text == value => Ok(true),
            Some(text) if *text == default => Ok(false),
            Some(text) => Err(format!(
                "{name} of container `{}` is {}, expected {value} or {default}",
                self.request.container,
                quoted(text)
            )),
        }
    }
}

/// Describes what the containers of a pod have with these sizes.
#[must_use]
pub fn described(pod: &PodRequest, node: &NodeGpus, sizes: &Sizes) -> String {
    let requests = pod.requests.as_deref().unwrap_or_default();
    let has = |request: &ContainerRequest| match ContainerLimits::of(pod, request, node, sizes) {
        Ok(limits) => format!("container `{}` has {limits}", request.container),
        Err(refusal) => format!("container `{}`: {refusal}", request.container),
    };
    requests.iter().map(has).collect::<Vec<_>>().join("; ")
}

/// Checks whether the GPUs of a pod have room for these sizes, beside what is kept for nominated
/// pods. `pods` are those that the API server lists as bound to its node or unbound.
///
/// # Errors
/// A GPU of the pod would be over-full, or it is not known which it has.
pub fn check_room<'a>(
    pod: &PodRequest,
    sizes: &Sizes,
    node: &NodeGpus,
    pods: impl IntoIterator<Item = &'a Arc<PodRequest>>,
) -> Result<(), Refusal> {
    let own = Arc::new(PodRequest { sizes: Ok(sizes.clone()), ..pod.clone() });
    let others: Vec<&Arc<PodRequest>> =
        pods.into_iter().filter(|other| other.uid != pod.uid).collect();
    let shares = match Holding::of(&own, node) {
        Holding::Shares(shares) | Holding::Left(shares) => shares,
        Holding::Unclear(refusal) | Holding::Nothing(refusal) => return Err(refusal),
    };
    let beside = NodeAccounting::beside(node, others.iter().copied(), &pod.uid);
    for (index, share) in &shares {
        let (index, share, position) = (*index, *share, *index as usize);
        let free = beside.free(node, position);
        if !share.fits(free) {
            return Err(Refusal::new(format!(
                "no room on GPU {index}: the pod would hold {} of {} units and {} % of its compute; \
                 beside the other pods it can hold {} units and {} %",
                share.units,
                node.gpu(index).map_or(0, |gpu| gpu.units),
                share.percent,
                free.units,
                free.percent
            )));
        }
    }
    let is_own = |index: &u32| shares.iter().any(|(own, _)| own == index);
    let mut with_own = beside;
    with_own.reserve(node, &own, shares.clone());
    let kept = reservation::against(&own, node, &with_own, others);
    match kept.overfull(node).find(is_own) {
        Some(index) => Err(Refusal::new(format!(
            "no room on GPU {index}: it is kept for a pod for which others were evicted"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
