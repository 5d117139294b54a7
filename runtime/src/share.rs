//! Shares of GPUs that a driver of dynamic resource allocation has prepared on this node.
//!
//! A share is a limits file, named after the share. A CDI device names it in the arguments of its
//! hooks, which no author of a pod can write. A container may have several: those of one GPU add
//! up, because the claims have paid for all of them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use cgpu_shm::limits::{Limits, MAX_WEIGHT};
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use cgpu_shm::{paths, regular_file};

use crate::folder::is_plain_name;
use crate::plan::Refusal;

/// What a container's shares give it on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    memory: Bytes,
    weight: u32,
    percent: Option<u32>,
    high_priority: bool,
}

/// Returns the limits of a container with these shares.
///
/// # Errors
/// A share is not prepared, its file cannot be read, or the shares cannot be combined.
pub fn limits(root: &Path, names: &[String]) -> Result<Limits, Refusal> {
    let read: Result<Vec<Limits>, Refusal> = names.iter().map(|name| read(root, name)).collect();
    combined(&read?)
}

fn read(root: &Path, name: &str) -> Result<Limits, Refusal> {
    if !is_plain_name(name) {
        return Err(Refusal(format!("`{}` is no name of a share", name.escape_default())));
    }
    let path = paths::shares(root).join(name);
    let text = regular_file::read_to_string(&path).map_err(|error| {
        Refusal(if error.kind() == ErrorKind::NotFound {
            format!(
                "the share {name} is not prepared on this node: delete the pod, and create it again"
            )
        } else {
            format!("cannot read {}: {error}", path.display())
        })
    })?;
    let limits: Limits =
        text.parse().map_err(|refused| Refusal(format!("{}: {refused}", path.display())))?;
    if limits.gpus.is_empty() {
        return Err(Refusal(format!("{} names no GPU", path.display())));
    }
    Ok(limits)
}

/// Combines the limits of shares. A container has one weight, so that its parts of several GPUs
/// must be alike.
fn combined(shares: &[Limits]) -> Result<Limits, Refusal> {
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
        return Err(Refusal("the container has no share".into()));
    };
    for (gpu, part) in each {
        if (Part { memory: first.memory, ..*part }) != *first {
            return Err(Refusal(format!(
                "a container has one weight on all of its GPUs, and its shares give it {} on \
                 {first_gpu} and {} on {gpu}: request the same for each",
                first.compute(),
                part.compute()
            )));
        }
    }
    if first.weight > MAX_WEIGHT || first.percent.is_some_and(|percent| percent > 100) {
        return Err(Refusal(format!(
            "the container's shares give it {} on {first_gpu}; a container has at most weight \
             {MAX_WEIGHT} and 100 %",
            first.compute()
        )));
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
    fn and(self, other: Self) -> Result<Self, Refusal> {
        let percent = match (self.percent, other.percent) {
            (None, None) => None,
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            _ => {
                return Err(Refusal(
                    "a container cannot have shares of one GPU with and without `cores`".into(),
                ));
            }
        };
        if self.high_priority != other.high_priority {
            return Err(Refusal(
                "a container cannot have shares of one GPU with and without high priority".into(),
            ));
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
    use std::fs;

    use super::*;

    const GPU: Uuid = Uuid([1; 16]);
    const OTHER: Uuid = Uuid([2; 16]);

    fn share(gpu: Uuid, mib: u64, weight: u32) -> Limits {
        Limits { weight, gpus: vec![(gpu, Bytes(mib << 20))], ..Limits::default() }
    }

    fn of(shares: &[Limits]) -> Result<Limits, String> {
        combined(shares).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn shares_of_one_gpu_add_up() {
        let both = of(&[share(GPU, 100, 2), share(GPU, 50, 3)]).unwrap();
        assert_eq!(both, share(GPU, 150, 5));
        let percent = |percent| Limits { percent: Some(percent), ..share(GPU, 100, 1) };
        assert_eq!(of(&[percent(40), percent(60)]).unwrap().percent, Some(100));
        for (shares, message) in [
            (vec![percent(40), percent(61)], "101 %"),
            (vec![percent(40), share(GPU, 1, 1)], "with and without `cores`"),
            (vec![share(GPU, 1, 20), share(GPU, 1, 6)], "weight 26"),
            (
                vec![share(GPU, 1, 1), Limits { high_priority: true, ..share(GPU, 1, 1) }],
                "high priority",
            ),
        ] {
            let refused = of(&shares).unwrap_err();
            assert!(refused.contains(message), "{refused}");
        }
    }

    #[test]
    fn shares_of_several_gpus_must_be_alike() {
        let both = of(&[share(GPU, 100, 2), share(OTHER, 50, 2)]).unwrap();
        assert_eq!(both.gpus, [(GPU, Bytes(100 << 20)), (OTHER, Bytes(50 << 20))]);
        // What counts is the sum on each.
        of(&[share(GPU, 1, 2), share(OTHER, 1, 1), share(OTHER, 1, 1)]).unwrap();
        let refused = of(&[share(GPU, 1, 2), share(OTHER, 1, 1)]).unwrap_err();
        assert!(refused.contains("weight 2 on") && refused.contains("weight 1 on"), "{refused}");
    }

    #[test]
    fn share_without_a_valid_file_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = paths::shares(root.path());
        fs::create_dir(&folder).unwrap();
        let refused = |name: &str| {
            limits(root.path(), &[name.to_owned()]).map(|_| ()).unwrap_err().to_string()
        };
        assert!(refused("absent").contains("absent is not prepared"));
        assert!(refused("../x").contains("no name of a share"));
        for (text, message) in
            [("version 1\nwieght 2\n", "line 2"), ("version 1\n", "names no GPU")]
        {
            fs::write(folder.join("bad"), text).unwrap();
            let refused = refused("bad");
            assert!(refused.contains(message), "{refused}");
        }
        fs::create_dir(folder.join("folder")).unwrap();
        assert!(refused("folder").contains("directory"));
    }
}
