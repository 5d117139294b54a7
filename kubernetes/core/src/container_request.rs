//! What the containers of a pod request, by their limits alone: limits cannot be changed once the pod
//! exists.

use crate::gpus::Gpu;
use crate::names::{Dialect, Dialects, HAMI_GPUS, Meaning, RESOURCES, Resource};
use crate::object::{Container, Pod};
use crate::quantity::{self, InvalidQuantity};
use crate::refusal::Refusal;
use crate::share::{Role, Share, most};

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
    /// In the GPU's units; rounded up, so that nobody gets less than was asked for. More than the GPU has, where that is asked for; and at
    /// least 1 of any GPU, also of one that has none, for a limit of 0 would be no limit.
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

/// `amount` x `times` / `of`, rounded up.
pub(crate) fn part(amount: u64, times: u64, of: u64) -> u64 {
    let exact = (u128::from(amount) * u128::from(times)).div_ceil(u128::from(of.max(1)));
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// How much, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Over all GPUs that the container gets.
    InAll {
        /// Of memory.
        units: u64,
        /// Of compute; 100 is one GPU.
        percent: u32,
    },
    /// Of each GPU.
    Each {
        /// How many.
        gpus: usize,
        /// Of memory.
        memory: Memory,
        /// Of compute.
        percent: u32,
    },
}

/// What one container requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Its name.
    pub container: String,
    /// When it runs.
    pub role: Role,
    /// Its place in allocations: containers first, then init containers.
    pub index: usize,
    /// How much.
    pub amount: Amount,
}

impl ContainerRequest {
    /// Those of a pod, init containers first, as they run. None: it asks for nothing of ours.
    ///
    /// # Errors
    /// An amount that cannot be understood, or two dialects at once.
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
                requests.push(Self { container: container.name.clone(), role, index, amount });
            }
        }
        let in_all = |request: &Self| matches!(request.amount, Amount::InAll { .. });
        if let [one, rest @ ..] = requests.as_slice()
            && let Some(other) = rest.iter().find(|other| in_all(other) != in_all(one))
        {
            return Err(Refusal::new(format!(
                "container `{}` asks by names of aliyun.com and container `{}` by names of nvidia.com; expected one kind in a pod",
                if in_all(one) { &one.container } else { &other.container },
                if in_all(one) { &other.container } else { &one.container },
            )));
        }
        Ok(requests)
    }

    /// The most it can have of this GPU, wherever the rest is.
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

/// The most that a pod can have of a GPU, when nobody knows on which GPUs it is.
#[must_use]
pub fn most_of(requests: &[ContainerRequest], gpu: &Gpu) -> Share {
    most(requests.iter().map(|request| (request.role, request.most_of(gpu))))
}

/// Units that a pod asks for in all, as tables show them; of HAMi's names, as a GPU of `unit` MiB each would count them.
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

/// What limits say; where there is no limit, the request.
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
    let mut speaks = found.iter().filter(|(_, number)| *number > 0).map(|(resource, _)| resource);
    let Some(first) = speaks.next() else { return Ok(None) };
    if let Some(other) = speaks.find(|other| other.dialect != first.dialect) {
        return Err(Refusal::new(format!(
            "container `{}` asks for {} and for {}; expected one of the two",
            container.name, first.name, other.name
        )));
    }
    match first.dialect {
        Dialect::Aliyun => {
            let units = of(Meaning::Units).unwrap_or(0);
            let percent = of(Meaning::Percent).unwrap_or(0);
            if units == 0 {
                return Err(Refusal::new(format!(
                    "container `{}` asks for {} but not for {}; expected memory as well: ask for both",
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

/// HAMi's names: amounts of each GPU. `first` is one of those that are asked for.
fn each(
    container: &Container,
    first: &str,
    of: impl Fn(Meaning) -> Option<u64>,
) -> Result<Option<Amount>, Refusal> {
    // The kubelet is asked for GPUs alone, so it would give none; HAMi has a webhook that asks for one.
    let gpus = of(Meaning::Gpus).ok_or_else(|| {
        Refusal::new(format!(
            "container `{}` asks for {first} but not for {HAMI_GPUS}; expected the number of GPUs as well: ask for `{HAMI_GPUS}: 1`",
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
                "{name} of container `{}` is `{}`, expected at most 100, for it is of each GPU",
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
