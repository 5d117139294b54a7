//! What a pod requests of each of its GPUs.

use crate::container_request::{Amount, ContainerRequest, Memory};
use crate::gpus::{Gpu, NodeGpus};
use crate::names::{COUNT, POD_LABELS};
use crate::object::Texts;
use crate::refusal::{Refusal, quoted};
use crate::rules::PlacementRules;
use crate::share::{Role, Share, most};

/// Maximum number of GPUs of a container: a region has entries for so many.
pub const MAX_GPUS: usize = 16;

/// What one container needs of each of its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Position in allocations.
    pub index: usize,
    /// When it runs.
    pub role: Role,
    /// Number of GPUs, counted from the pod's first.
    pub gpus: usize,
    /// Memory of each GPU.
    pub memory: Memory,
    /// Percent of compute of each GPU.
    pub percent: u32,
}

impl Need {
    /// Returns what it needs of this GPU.
    #[must_use]
    pub fn of(&self, gpu: &Gpu) -> Share {
        Share { units: self.memory.units_of(gpu), percent: self.percent, containers: 1 }
    }
}

/// What a pod requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRequest {
    /// Number of GPUs, all of one node.
    pub gpus: usize,
    /// Needs of the containers, in the order in which they run.
    pub needs: Vec<Need>,
    /// Which nodes and GPUs it may have, and which come first.
    pub rules: PlacementRules,
    /// Labels that were ignored, as messages.
    pub notes: Vec<String>,
}

impl ResourceRequest {
    /// Divides the requests by the number of GPUs in the pod's label.
    ///
    /// # Errors
    /// An amount does not divide, exceeds a GPU, or the label is invalid.
    pub fn of(requests: &[ContainerRequest], labels: &Texts) -> Result<Self, Refusal> {
        let mut notes = Vec::new();
        for name in labels.keys().filter(|name| name.starts_with(POD_LABELS) && *name != COUNT) {
            notes.push(format!("the label {} is not known; expected {COUNT}", quoted(name)));
        }
        let label = match labels.get(COUNT) {
            None => 1,
            Some(text) => parse_count(text)?,
        };
        let mut needs = Vec::with_capacity(requests.len());
        for request in requests {
            let need = match request.amount {
                Amount::InAll { units, percent } => divided(request, units, percent, label)?,
                Amount::Each { gpus, memory, percent } => {
                    if gpus > MAX_GPUS {
                        return Err(Refusal::new(format!(
                            "container `{}` requests {gpus} GPUs, expected at most {MAX_GPUS}",
                            request.container
                        )));
                    }
                    Need { index: request.index, role: request.role, gpus, memory, percent }
                }
            };
            needs.push(need);
        }
        let gpus = needs.iter().map(|need| need.gpus).max().unwrap_or(0);
        if labels.contains_key(COUNT)
            && requests.iter().any(|request| matches!(request.amount, Amount::Each { .. }))
        {
            notes.push(format!(
                "the label {COUNT} applies to aliyun.com/gpu-mem only; nvidia.com/gpu is the \
                 number of GPUs"
            ));
        }
        Ok(Self { gpus, needs, rules: PlacementRules::default(), notes })
    }

    /// Returns the most that the pod holds of `gpu` at any time, if that is its GPU at `position`,
    /// counted from 0.
    #[must_use]
    pub fn of_gpu(&self, position: usize, gpu: &Gpu) -> Share {
        most(
            self.needs
                .iter()
                .filter(|need| need.gpus > position)
                .map(|need| (need.role, need.of(gpu))),
        )
    }

    /// Returns the units that it holds of a node, all of whose GPUs are as large as the first.
    #[must_use]
    pub fn units_on(&self, node: &NodeGpus) -> u64 {
        let Some(gpu) = node.gpus.first() else { return 0 };
        (0..self.gpus).fold(0, |sum, position| sum.saturating_add(self.of_gpu(position, gpu).units))
    }
}

fn divided(
    request: &ContainerRequest,
    units: u64,
    percent: u32,
    gpus: usize,
) -> Result<Need, Refusal> {
    let wrong = |name: &str, amount: u64| {
        Refusal::new(format!(
            "{name} of container `{}` is {amount}, which does not divide by the {gpus} GPUs of the \
             label {COUNT}; expected a multiple of {gpus}",
            request.container
        ))
    };
    if !units.is_multiple_of(gpus as u64) {
        return Err(wrong(crate::names::MEMORY, units));
    }
    if !u64::from(percent).is_multiple_of(gpus as u64) {
        return Err(wrong(crate::names::CORE, u64::from(percent)));
    }
    let each = u64::from(percent) / gpus as u64;
    let Some(each) = u32::try_from(each).ok().filter(|each| *each <= 100) else {
        return Err(Refusal::new(format!(
            "{} of container `{}` is {percent} over {gpus} GPUs, expected at most 100 for each",
            crate::names::CORE,
            request.container
        )));
    };
    let memory = Memory::Units(units / gpus as u64);
    Ok(Need { index: request.index, role: request.role, gpus, memory, percent: each })
}

fn parse_count(text: &str) -> Result<usize, Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.filter(|number| (1..=MAX_GPUS).contains(number)).ok_or_else(|| {
        Refusal::new(format!(
            "the label {COUNT} is {}, expected a number of GPUs from 1 to {MAX_GPUS}",
            quoted(text)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(index: usize, role: Role, units: u64, percent: u32) -> ContainerRequest {
        ContainerRequest {
            container: format!("c{index}"),
            role,
            index,
            amount: Amount::InAll { units, percent },
            high_priority: None,
        }
    }

    fn label(text: &str) -> Texts {
        [(COUNT.to_owned(), text.to_owned())].into()
    }

    #[test]
    fn memory_is_divided_over_the_gpus() {
        // Document 000: 8 over 4 GPUs.
        let request =
            ResourceRequest::of(&[container(0, Role::Container, 8, 0)], &label("4")).unwrap();
        assert_eq!(request.gpus, 4);
        let gpu = Gpu::plain(0, 15);
        assert_eq!(request.of_gpu(3, &gpu), Share { units: 2, percent: 0, containers: 1 });
        assert_eq!(request.of_gpu(4, &gpu), Share::NONE);
        let both = ResourceRequest::of(
            &[container(0, Role::Container, 8, 100), container(1, Role::Container, 4, 0)],
            &label("2"),
        )
        .unwrap();
        assert_eq!(both.of_gpu(1, &gpu), Share { units: 6, percent: 50, containers: 2 });
        let plain =
            ResourceRequest::of(&[container(0, Role::Container, 8, 30)], &Texts::new()).unwrap();
        assert_eq!((plain.gpus, plain.of_gpu(0, &gpu).units), (1, 8));
    }

    #[test]
    fn amount_that_does_not_divide_is_refused() {
        for (units, percent, text, message) in [
            (
                8,
                0,
                "3",
                "aliyun.com/gpu-mem of container `c0` is 8, which does not divide by the 3 GPUs of \
                 the label aliyun.com/gpu-count; expected a multiple of 3",
            ),
            (
                8,
                30,
                "4",
                "aliyun.com/gpu-core.percentage of container `c0` is 30, which does not divide by \
                 the 4 GPUs",
            ),
            (8, 400, "2", "is 400 over 2 GPUs, expected at most 100 for each"),
            (
                8,
                0,
                "0",
                "the label aliyun.com/gpu-count is `0`, expected a number of GPUs from 1 to 16",
            ),
            (8, 0, "17", "is `17`, expected a number of GPUs from 1 to 16"),
            (8, 0, "-2", "is `-2`, expected"),
            (8, 0, "two", "is `two`, expected"),
            (8, 0, "", "is ``, expected"),
            (8, 0, "99999999999999999999999", "expected a number of GPUs"),
        ] {
            let refusal =
                ResourceRequest::of(&[container(0, Role::Container, units, percent)], &label(text))
                    .unwrap_err()
                    .to_string();
            assert!(refusal.contains(message), "{text}: {refusal}");
        }
    }

    #[test]
    fn unknown_labels_are_noted() {
        let labels = [
            ("aliyun.com/gpu-cout".to_owned(), "4".to_owned()),
            ("app".to_owned(), "x".to_owned()),
        ]
        .into();
        let request = ResourceRequest::of(&[container(0, Role::Container, 8, 0)], &labels).unwrap();
        assert_eq!(
            request.notes,
            ["the label `aliyun.com/gpu-cout` is not known; expected aliyun.com/gpu-count"]
        );
        assert_eq!(request.gpus, 1);
    }

    #[test]
    fn container_may_have_fewer_gpus_than_its_pod() {
        let each = |index, gpus| ContainerRequest {
            container: format!("c{index}"),
            role: Role::Container,
            index,
            amount: Amount::Each { gpus, memory: Memory::Units(3), percent: 0 },
            high_priority: None,
        };
        let request = ResourceRequest::of(&[each(0, 2), each(1, 1)], &label("9")).unwrap();
        let gpu = Gpu::plain(0, 14);
        assert_eq!(
            (request.gpus, request.of_gpu(0, &gpu).units, request.of_gpu(1, &gpu).units),
            (2, 6, 3)
        );
        assert_eq!(request.notes.len(), 1);
        assert!(ResourceRequest::of(&[each(0, 17)], &Texts::new()).is_err());
    }
}
