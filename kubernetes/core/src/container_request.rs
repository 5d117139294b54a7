//! What the containers of a pod request. Only limits count: they cannot be changed once the pod
//! exists.

use crate::gpus::Gpu;
use crate::names::{
    Dialect, Dialects, HAMI_GPUS, HAMI_PRIORITY, Meaning, RESOURCES, Resource, variable,
};
use crate::object::{Container, Pod};
use crate::quantity::{self, InvalidQuantity};
use crate::refusal::Refusal;
use crate::share::{Role, Share, most};
use crate::sizes::{MAX_WEIGHT, Sizes};

/// Memory of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The GPU's own units.
    Units(u64),
    /// MiB.
    Mib(u64),
    /// Percent of the GPU's memory.
    Percent(u32),
    /// All of it.
    Whole,
}

impl Memory {
    /// Returns the amount in the GPU's units, rounded up so that no container gets less than it
    /// requested. The result may exceed the GPU. It is at least 1, even for a GPU of 0 units: a
    /// limit of 0 would mean no limit.
    #[must_use]
    pub fn units_of(self, gpu: &Gpu) -> u64 {
        let units = match self {
            Self::Units(units) => units,
            Self::Mib(mib) => match gpu.mib {
                Some(total) if total > 0 => part(mib, gpu.units, total),
                _ => mib.div_ceil(gpu.unit.mib()),
            },
            Self::Percent(percent) => part(u64::from(percent), gpu.units, 100),
            Self::Whole => gpu.units,
        };
        units.max(1)
    }
}

/// Returns `amount` x `times` / `of`, rounded up.
pub(crate) fn part(amount: u64, times: u64, of: u64) -> u64 {
    let exact = (u128::from(amount) * u128::from(times)).div_ceil(u128::from(of.max(1)));
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// An amount of memory and compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Totals over all GPUs of the container.
    InAll {
        /// Units of memory.
        units: u64,
        /// Percent of compute; 100 is one GPU.
        percent: u32,
    },
    /// Amounts for each GPU.
    Each {
        /// Number of GPUs.
        gpus: usize,
        /// Memory of each.
        memory: Memory,
        /// Percent of compute of each.
        percent: u32,
    },
}

/// What one container requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Name of the container.
    pub container: String,
    /// When it runs.
    pub role: Role,
    /// Position in allocations: containers first, then init containers.
    pub index: usize,
    /// Amount.
    pub amount: Amount,
    /// Whether its priority is high; `None`: its limits do not say.
    pub high_priority: Option<bool>,
}

impl ContainerRequest {
    /// Returns the requests of a pod in the order in which the containers run, init containers
    /// first. Empty if the pod requests no GPU.
    ///
    /// # Errors
    /// An amount or a weight is invalid, or the pod uses two dialects.
    pub fn of_pod(pod: &Pod, dialects: Dialects) -> Result<Vec<Self>, Refusal> {
        let containers = &pod.spec.containers;
        let first = pod.spec.init_containers.iter().enumerate().map(|(position, container)| {
            let role =
                if container.restart_policy == "Always" { Role::Sidecar } else { Role::Init };
            (container, role, containers.len() + position)
        });
        let then = containers
            .iter()
            .enumerate()
            .map(|(index, container)| (container, Role::Container, index));
        let mut requests = Vec::new();
        for (container, role, index) in first.chain(then) {
            if let Some(amount) = amount_of(container, dialects)? {
                check_weight(container)?;
                let name = container.name.clone();
                let high_priority = priority_of(container, amount, dialects)?;
                requests.push(Self { container: name, role, index, amount, high_priority });
            }
        }
        let in_all = |request: &Self| matches!(request.amount, Amount::InAll { .. });
        if let [one, rest @ ..] = requests.as_slice()
            && let Some(other) = rest.iter().find(|other| in_all(other) != in_all(one))
        {
            return Err(Refusal::new(format!(
                "container `{}` requests resources of aliyun.com and container `{}` those of \
                 nvidia.com; expected one kind in a pod",
                if in_all(one) { &one.container } else { &other.container },
                if in_all(one) { &other.container } else { &one.container },
            )));
        }
        Ok(requests)
    }

    /// Returns the most that it can hold of this GPU, however the rest is divided.
    #[must_use]
    fn most_of(&self, gpu: &Gpu) -> Share {
        match self.amount {
            Amount::InAll { units, percent } => Share { units, percent, containers: 1 },
            Amount::Each { memory, percent, .. } => {
                Share { units: memory.units_of(gpu), percent, containers: 1 }
            }
        }
    }
}

/// Returns the most that a pod can hold of a GPU when its GPUs are not known.
#[must_use]
pub fn most_of(requests: &[ContainerRequest], sizes: &Sizes, gpu: &Gpu) -> Share {
    let held =
        |request: &ContainerRequest| sizes.held(&request.container, gpu, request.most_of(gpu));
    most(requests.iter().map(|request| (request.role, held(request))))
}

/// Returns the units that a pod requests in all, as tables show them. Requests in HAMi's names are
/// converted to the units of `gpu`; without one they count 0.
#[must_use]
pub fn units_in_all(requests: &[ContainerRequest], gpu: Option<&Gpu>) -> u64 {
    let units = |request: &ContainerRequest| match (request.amount, gpu) {
        (Amount::InAll { units, .. }, _) => units,
        (Amount::Each { gpus, memory, .. }, Some(gpu)) => {
            memory.units_of(gpu).saturating_mul(gpus as u64)
        }
        (Amount::Each { .. }, None) => 0,
    };
    most(
        requests
            .iter()
            .map(|request| (request.role, Share { units: units(request), ..Share::NONE })),
    )
    .units
}

/// Returns the container's amount, from its limits; a resource without a limit counts by its
/// request.
fn amount_of(container: &Container, dialects: Dialects) -> Result<Option<Amount>, Refusal> {
    let mut found: Vec<(Resource, u64)> = Vec::new();
    for resource in RESOURCES {
        if dialects.includes(resource.dialect)
            && let Some(number) = number_of(container, resource.name)?
        {
            found.push((resource, number));
        }
    }
    let of = |meaning| {
        found.iter().find(|(resource, _)| resource.meaning == meaning).map(|(_, number)| *number)
    };
    let mut requested =
        found.iter().filter(|(_, number)| *number > 0).map(|(resource, _)| resource);
    let Some(first) = requested.next() else { return Ok(None) };
    if let Some(other) = requested.find(|other| other.dialect != first.dialect) {
        return Err(Refusal::new(format!(
            "container `{}` requests both {} and {}; expected one of the two",
            container.name, first.name, other.name
        )));
    }
    match first.dialect {
        Dialect::Aliyun => {
            let units = of(Meaning::Units).unwrap_or(0);
            let percent = of(Meaning::Percent).unwrap_or(0);
            if units == 0 {
                return Err(Refusal::new(format!(
                    "container `{}` requests {} but not {}; expected memory as well: request both",
                    container.name,
                    crate::names::CORE,
                    crate::names::MEMORY
                )));
            }
            let percent = u32::try_from(percent).unwrap_or(u32::MAX);
            Ok(Some(Amount::InAll { units, percent }))
        }
        Dialect::Hami => each(container, first.name, of),
    }
}

/// Returns the amount in HAMi's names, which is for each GPU. `first` is one of the requested
/// resources.
fn each(
    container: &Container,
    first: &str,
    of: impl Fn(Meaning) -> Option<u64>,
) -> Result<Option<Amount>, Refusal> {
    // Without this resource the kubelet would allocate nothing. HAMi has a webhook that adds it.
    let gpus = of(Meaning::Gpus).ok_or_else(|| {
        Refusal::new(format!(
            "container `{}` requests {first} but not {HAMI_GPUS}; expected the number of GPUs as \
             well: request `{HAMI_GPUS}: 1`",
            container.name
        ))
    })?;
    if gpus == 0 {
        return Ok(None);
    }
    let percent = |meaning, name: &str| {
        let number = of(meaning).filter(|number| *number > 0);
        match number.map(u32::try_from) {
            Some(Ok(percent @ 1..=100)) => Ok(Some(percent)),
            Some(_) => Err(Refusal::new(format!(
                "{name} of container `{}` is `{}`, expected at most 100: it applies to each GPU",
                container.name,
                number.unwrap_or_default()
            ))),
            None => Ok(None),
        }
    };
    let compute = percent(Meaning::PercentEach, "nvidia.com/gpucores")?.unwrap_or(0);
    let share = percent(Meaning::MemoryPercentEach, "nvidia.com/gpumem-percentage")?;
    let memory = match (of(Meaning::MibEach).filter(|mib| *mib > 0), share) {
        (Some(mib), _) => Memory::Mib(mib),
        (None, Some(percent)) => Memory::Percent(percent),
        (None, None) => Memory::Whole,
    };
    Ok(Some(Amount::Each {
        gpus: usize::try_from(gpus).unwrap_or(usize::MAX),
        memory,
        percent: compute,
    }))
}

/// Checks the weight, with which the container could not start.
fn check_weight(container: &Container) -> Result<(), Refusal> {
    let Some(text) = &container.weight else { return Ok(()) };
    let number = text.trim().parse::<u64>().ok();
    match number.filter(|weight| (1..=MAX_WEIGHT).contains(weight)) {
        Some(_) => Ok(()),
        None => Err(Refusal::new(format!(
            "{} of container `{}` is `{text}`, expected a whole number from 1 to {MAX_WEIGHT}",
            variable::WEIGHT,
            container.name
        ))),
    }
}

/// Returns whether the container's priority is high.
fn priority_of(
    container: &Container,
    amount: Amount,
    dialects: Dialects,
) -> Result<Option<bool>, Refusal> {
    let number = if dialects.hami { number_of(container, HAMI_PRIORITY)? } else { None };
    match (number, amount) {
        (None, _) => Ok(None),
        (Some(_), Amount::InAll { .. }) => Err(Refusal::new(format!(
            "container `{}` requests both {} and {HAMI_PRIORITY}; expected the variable \
             ALIYUN_COM_GPU_HIGH_PRIO instead of the second",
            container.name,
            crate::names::MEMORY
        ))),
        (Some(number @ (0 | 1)), Amount::Each { .. }) => Ok(Some(number == 0)),
        (Some(number), Amount::Each { .. }) => Err(Refusal::new(format!(
            "{HAMI_PRIORITY} of container `{}` is `{number}`, expected 0 (high) or 1 (low)",
            container.name
        ))),
    }
}

fn number_of(container: &Container, name: &str) -> Result<Option<u64>, Refusal> {
    let limit = container.resources.limits.get(name);
    let request = container.resources.requests.get(name);
    let Some(written) = limit.or(request) else { return Ok(None) };
    let subject = || format!("{name} of container `{}`", container.name);
    let refuse = |invalid: InvalidQuantity| {
        Refusal::new(format!(
            "{}; expected a whole number of units, such as `2`",
            invalid.of(&subject(), &written.0)
        ))
    };
    let number = quantity::whole(&written.0).map_err(refuse)?;
    if let (Some(limit), Some(request)) = (limit, request)
        && quantity::whole(&request.0) != Ok(number)
    {
        return Err(Refusal::new(format!(
            "{} is `{}` as a limit and `{}` as a request, expected the same; leave the request out",
            subject(),
            limit.0,
            request.0
        )));
    }
    Ok(Some(number))
}

#[cfg(test)]
mod tests;
