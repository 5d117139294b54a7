//! Shares of GPUs, as a driver of dynamic resource allocation prepares them, and what a container
//! gets that has several: those of one GPU add up, because the claims have paid for all of them.

use std::collections::BTreeMap;

use cgpu_shm::limits::{Limits, MAX_WEIGHT};
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;

/// What a container's shares give it on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    memory: Bytes,
    weight: u32,
    percent: Option<u32>,
    high_priority: bool,
}

/// Combines the limits of a container's shares. It has one weight, so that its parts of several
/// GPUs must be alike.
///
/// # Errors
/// They cannot be combined; a message says why.
pub fn combined(shares: &[Limits]) -> Result<Limits, String> {
    let mut parts: BTreeMap<Uuid, Part> = BTreeMap::new();
    for limits in shares {
        let Limits { weight, percent, high_priority, .. } = *limits;
        for &(gpu, memory) in &limits.gpus {
            let added = Part { memory, weight, percent, high_priority };
            let part = match parts.get(&gpu) {
                None => added,
                Some(part) => part.and(added)?,
            };
            parts.insert(gpu, part);
        }
    }
    let mut each = parts.iter();
    let Some((first_gpu, first)) = each.next() else {
        return Err("the container has no share".into());
    };
    for (gpu, part) in each {
        if (Part { memory: first.memory, ..*part }) != *first {
            return Err(format!(
                "a container has one weight on all of its GPUs, and its shares give it {} on \
                 {first_gpu} and {} on {gpu}: request the same for each",
                first.compute(),
                part.compute()
            ));
        }
    }
    if first.weight > MAX_WEIGHT || first.percent.is_some_and(|percent| percent > 100) {
        return Err(format!(
            "the container's shares give it {} on {first_gpu}; a container has at most weight \
             {MAX_WEIGHT} and 100 %",
            first.compute()
        ));
    }
    Ok(Limits {
        name: None,
        weight: first.weight,
        percent: first.percent,
        high_priority: first.high_priority,
        gpus: parts.iter().map(|(gpu, part)| (*gpu, part.memory)).collect(),
    })
}

impl Part {
    fn and(self, other: Self) -> Result<Self, String> {
        let percent = match (self.percent, other.percent) {
            (None, None) => None,
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            _ => {
                return Err(
                    "a container cannot have shares of one GPU with and without `cores`".into()
                );
            }
        };
        if self.high_priority != other.high_priority {
            return Err(
                "a container cannot have shares of one GPU with and without high priority".into()
            );
        }
        Ok(Self {
            memory: Bytes(self.memory.0.saturating_add(other.memory.0)),
            weight: self.weight.saturating_add(other.weight),
            percent,
            high_priority: self.high_priority,
        })
    }

    /// Says what it gives of a GPU's compute.
    fn compute(&self) -> String {
        let priority = if self.high_priority { ", high priority" } else { "" };
        match self.percent {
            Some(percent) => format!("weight {}, {percent} %{priority}", self.weight),
            None => format!("weight {}{priority}", self.weight),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: Uuid = Uuid([1; 16]);
    const OTHER: Uuid = Uuid([2; 16]);

    fn share(gpu: Uuid, mib: u64, weight: u32) -> Limits {
        Limits { weight, gpus: vec![(gpu, Bytes(mib << 20))], ..Limits::default() }
    }

    #[test]
    fn shares_of_one_gpu_add_up() {
        let both = combined(&[share(GPU, 100, 2), share(GPU, 50, 3)]).unwrap();
        assert_eq!(both, share(GPU, 150, 5));
        let percent = |percent| Limits { percent: Some(percent), ..share(GPU, 100, 1) };
        assert_eq!(combined(&[percent(40), percent(60)]).unwrap().percent, Some(100));
        for (shares, message) in [
            (vec![percent(40), percent(61)], "101 %"),
            (vec![percent(40), share(GPU, 1, 1)], "with and without `cores`"),
            (vec![share(GPU, 1, 20), share(GPU, 1, 6)], "weight 26"),
            (
                vec![share(GPU, 1, 1), Limits { high_priority: true, ..share(GPU, 1, 1) }],
                "high priority",
            ),
        ] {
            let refused = combined(&shares).unwrap_err();
            assert!(refused.contains(message), "{refused}");
        }
    }

    #[test]
    fn shares_of_several_gpus_must_be_alike() {
        let both = combined(&[share(GPU, 100, 2), share(OTHER, 50, 2)]).unwrap();
        assert_eq!(both.gpus, [(GPU, Bytes(100 << 20)), (OTHER, Bytes(50 << 20))]);
        // What counts is the sum on each.
        combined(&[share(GPU, 1, 2), share(OTHER, 1, 1), share(OTHER, 1, 1)]).unwrap();
        let refused = combined(&[share(GPU, 1, 2), share(OTHER, 1, 1)]).unwrap_err();
        assert!(refused.contains("weight 2 on") && refused.contains("weight 1 on"), "{refused}");
    }
}
