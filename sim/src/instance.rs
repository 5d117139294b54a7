//! Instances of a partitioned GPU (MIG): devices with a part of its multiprocessors and memory.
//!
//! `CGPU_SIM_GPUS=A100:40960/mig=3g.20gb,2g.10gb,T4` is a partitioned A100 with two instances, and
//! a T4. In the list an instance follows its GPU. Only the instances compute, hold memory and take
//! turns.

use cgpu_shm::units::Bytes;

use crate::error::Error;
use crate::gpu::Model;

/// Compute slices of a GPU.
const SLICES: u32 = 7;
/// Memory slices of a GPU.
const EIGHTHS: u32 = 8;

/// The kind of an entry in a list of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A whole GPU.
    Whole,
    /// A partitioned GPU; its instances follow.
    Partitioned,
    /// An instance.
    Instance(Instance),
}

/// An instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The index of its GPU in the list.
    pub gpu: usize,
    /// Its number on the GPU, from 0.
    pub number: u32,
    /// Compute slices, of 7.
    pub slices: u32,
    /// Memory slices, of 8.
    pub eighths: u32,
    /// The size in its name.
    pub gigabytes: u32,
}

impl Instance {
    /// Parses a profile such as `3g.20gb`; `None` if it is not a profile.
    pub(crate) fn parse(profile: &str, total: Bytes) -> Option<Self> {
        let (slices, gigabytes) = profile.strip_suffix("gb")?.split_once("g.")?;
        let (slices, gigabytes): (u32, u32) = (slices.parse().ok()?, gigabytes.parse().ok()?);
        let eighth = total.0 / u64::from(EIGHTHS);
        let eighths = ((u64::from(gigabytes) << 30) + eighth / 2) / eighth;
        let eighths = u32::try_from(eighths).ok()?.max(1);
        Some(Self { gpu: 0, number: 0, slices, eighths, gigabytes })
    }

    /// Checks whether a GPU can be partitioned in this way.
    pub(crate) fn check(all: &[Self], model: &Model) -> Result<(), Error> {
        let refuse =
            |why: &str| Err(Error::Settings(format!("CGPU_SIM_GPUS: {} {why}", model.key)));
        if !supports_mig(model) {
            return refuse("cannot be partitioned; A100, A30, H100 and H200 can");
        }
        if all.is_empty() {
            return refuse("needs a list of profiles after /mig=, such as 3g.20gb,2g.10gb");
        }
        if all.iter().any(|each| !matches!(each.slices, 1..=4 | 7) || each.eighths > EIGHTHS) {
            return refuse("supports instances of 1, 2, 3, 4 or 7 slices, within its memory");
        }
        let sum = |of: fn(&Self) -> u32| all.iter().map(of).sum::<u32>();
        if sum(|each| each.slices) > SLICES || sum(|each| each.eighths) > EIGHTHS {
            return refuse("has 7 compute slices and 8 memory slices, and more were requested");
        }
        Ok(())
    }

    pub(crate) fn memory(&self, total: Bytes) -> Bytes {
        Bytes((total.0 / u64::from(EIGHTHS) * u64::from(self.eighths)) >> 20 << 20)
    }

    /// Returns its multiprocessors: 14 to a slice of an A100 or A30, 16 of an H100 or H200. There,
    /// a 3g instance has a few more, and a 7g instance has all.
    pub(crate) fn multiprocessors(&self, model: &Model) -> u32 {
        match (model.capability, self.slices) {
            ((9, _), 3) => 60,
            ((9, _), 7) => model.multiprocessors,
            ((9, _), slices) => 16 * slices,
            (_, slices) => 14 * slices,
        }
    }

    /// Returns its profile, as `3g.20gb`.
    #[must_use]
    pub fn profile(&self) -> String {
        format!("{}g.{}gb", self.slices, self.gigabytes)
    }
}

/// Returns whether a model supports instances.
#[must_use]
pub fn supports_mig(model: &Model) -> bool {
    matches!(model.capability, (8, 0) | (9, _))
}

impl Part {
    /// Packs it into a word of the segment.
    pub(crate) fn word(&self) -> u64 {
        match *self {
            Self::Whole => 0,
            Self::Partitioned => 1,
            Self::Instance(Instance { gpu, number, slices, eighths, gigabytes }) => {
                let numbers = [number, slices, eighths, gigabytes];
                numbers.iter().fold(gpu as u64 + 2, |word, &number| word << 12 | u64::from(number))
            }
        }
    }

    pub(crate) fn of_word(word: u64) -> Self {
        let number = |place: u32| u32::try_from(word >> (12 * place) & 0xfff).unwrap_or(0);
        match word {
            0 => Self::Whole,
            1 => Self::Partitioned,
            _ => Self::Instance(Instance {
                gpu: crate::words::index((word >> 48).saturating_sub(2)),
                number: number(3),
                slices: number(2),
                eighths: number(1),
                gigabytes: number(0),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuSpec;

    #[test]
    fn partitioned_gpu_is_followed_by_its_instances() {
        let gpus = GpuSpec::parse_list("T4,A100:40960/mig=3g.20gb,2g.10gb, 1g.5gb,T4").unwrap();
        let parts: Vec<Part> = gpus.iter().map(|gpu| gpu.part).collect();
        let instance = |number, slices, eighths, gigabytes| {
            Part::Instance(Instance { gpu: 1, number, slices, eighths, gigabytes })
        };
        assert_eq!(
            parts,
            [
                Part::Whole,
                Part::Partitioned,
                instance(0, 3, 4, 20),
                instance(1, 2, 2, 10),
                instance(2, 1, 1, 5),
                Part::Whole
            ]
        );
        assert_eq!(gpus[2].total, Bytes::from_mib(20_480));
        assert_eq!(gpus[4].total, Bytes::from_mib(5_120));
        let multiprocessors: Vec<u32> = gpus.iter().map(GpuSpec::multiprocessors).collect();
        assert_eq!(multiprocessors, [40, 108, 42, 28, 14, 40]);
        assert_eq!(gpus[2].name(), "NVIDIA A100-SXM4-80GB MIG 3g.20gb");
        assert!(parts.iter().all(|part| Part::of_word(part.word()) == *part));
    }

    #[test]
    fn mig_profile_maps_to_memory_slices() {
        for (list, eighths) in [
            ("A100/mig=1g.10gb", 1),
            ("H100/mig=3g.40gb", 4),
            ("H200/mig=2g.35gb", 2),
            ("A30/mig=4g.24gb", 8),
        ] {
            let gpus = GpuSpec::parse_list(list).unwrap();
            assert!(
                matches!(gpus[1].part, Part::Instance(each) if each.eighths == eighths),
                "{list}"
            );
        }
    }

    #[test]
    fn invalid_partition_is_refused_with_the_reason() {
        for (list, part) in [
            ("T4/mig=1g.5gb", "cannot be partitioned"),
            ("A100:40960/mig=4g.20gb,4g.20gb", "more were requested"),
            ("A100:40960/mig=5g.20gb", "1, 2, 3, 4 or 7"),
            ("A100/mig=", "after /mig="),
            ("A100/mig=big", "after /mig="),
            ("1g.5gb", "unknown model"),
        ] {
            let error = GpuSpec::parse_list(list).unwrap_err().to_string();
            assert!(error.contains(part), "{list}: {error}");
        }
    }
}
