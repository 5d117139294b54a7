//! The GPUs that a program sees, and their numbers: `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`.
//!
//! The driver numbers GPUs from the fastest to the slowest. `CUDA_DEVICE_ORDER=PCI_BUS_ID` selects
//! the order of the bus instead, which is the machine's. `CUDA_VISIBLE_DEVICES` then selects some
//! by these numbers or by UUIDs, which may be abbreviated, and renumbers them. The first entry that
//! names no GPU ends the list, so `-1` and an empty value hide all GPUs. Naming a GPU twice hides
//! all, too. NVML ignores both variables.
//!
//! Of partitioned GPUs, a program sees a single instance: the first that is named, by its UUID
//! (`MIG-…`) or by its GPU. If none is named, the program sees the whole GPUs, or, if there are
//! none, the first instance of the first GPU.

use std::cmp::Reverse;

use cgpu_abi::types::CUdevice;
use cgpu_shm::uuid::Uuid;
use cgpu_sim::GpuSpec;
use cgpu_sim::instance::Part;

/// `CU_DEVICE_INVALID`: the device number of a GPU that is not visible.
pub(crate) const NO_GPU: CUdevice = -2;

/// The visible GPUs: the index in the machine of each device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Visible(Vec<usize>);

impl Visible {
    pub(crate) fn from_environment(gpus: &[GpuSpec]) -> Self {
        let read =
            |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let by_bus = read("CUDA_DEVICE_ORDER").as_deref() == Some("PCI_BUS_ID");
        Self::read(gpus, by_bus, read("CUDA_VISIBLE_DEVICES").as_deref())
    }

    fn read(gpus: &[GpuSpec], by_bus: bool, picked: Option<&str>) -> Self {
        let is_instance = |gpu: usize| matches!(gpus[gpu].part, Part::Instance(_));
        let mut order: Vec<usize> = (0..gpus.len()).filter(|&gpu| !is_instance(gpu)).collect();
        if !by_bus {
            order.sort_by_key(|&gpu| {
                Reverse(gpus[gpu].model.multiprocessors * gpus[gpu].model.core_mhz)
            });
        }
        // A partitioned GPU computes on its first instance.
        let computing = |gpu: usize| match gpus[gpu].part {
            Part::Partitioned => gpu + 1,
            Part::Whole | Part::Instance(_) => gpu,
        };
        let Some(picked) = picked else {
            let whole: Vec<usize> =
                order.iter().copied().filter(|&gpu| gpus[gpu].part == Part::Whole).collect();
            let first = order.first().map(|&gpu| computing(gpu));
            return Self(if whole.is_empty() { first.into_iter().collect() } else { whole });
        };
        let name = |gpu: usize| {
            let kind = if is_instance(gpu) { "MIG" } else { "GPU" };
            Uuid(gpus[gpu].uuid(gpu)).to_string().replacen("GPU", kind, 1)
        };
        let mut visible = Vec::new();
        for entry in picked.split(',').map(str::trim) {
            let kind = ["GPU-", "MIG-"].into_iter().find(|kind| entry.starts_with(kind));
            let named = match kind.map(|kind| (kind, &entry[kind.len()..])) {
                Some((kind, digits)) if !digits.is_empty() => {
                    let entry = format!("{kind}{}", digits.to_lowercase());
                    let mut found = (0..gpus.len()).filter(|&gpu| name(gpu).starts_with(&entry));
                    found.next().filter(|_| found.next().is_none())
                }
                _ => entry.parse().ok().and_then(|number: usize| order.get(number).copied()),
            };
            match named.map(computing) {
                Some(gpu) if visible.contains(&gpu) => return Self(Vec::new()),
                Some(gpu) => visible.push(gpu),
                None => break,
            }
        }
        match visible.iter().copied().find(|&gpu| is_instance(gpu)) {
            Some(instance) => Self(vec![instance]),
            None => Self(visible),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the index in the machine of a device.
    pub(crate) fn gpu(&self, device: CUdevice) -> Option<usize> {
        self.0.get(usize::try_from(device).ok()?).copied()
    }

    /// Returns the number of a GPU; `None` if it is not visible.
    pub(crate) fn device(&self, gpu: usize) -> Option<CUdevice> {
        CUdevice::try_from(self.0.iter().position(|&place| place == gpu)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_gpus_are_in_the_requested_order() {
        let gpus = GpuSpec::parse_list("T4:15109,A100:40960,A10:23028").expect("a list of GPUs");
        let full = |gpu: usize| Uuid(gpus[gpu].uuid(gpu)).to_string();
        let short = full(0)[..12].to_owned();
        let (first, two) = (full(2), format!("{short},{}", full(1)));
        for (by_bus, picked, expected) in [
            (false, None, &[1, 2, 0][..]),
            (true, None, &[0, 1, 2]),
            (false, Some("0"), &[1]),
            (true, Some("0"), &[0]),
            (true, Some("2,0"), &[2, 0]),
            (false, Some("2, 0"), &[0, 1]),
            (true, Some(""), &[]),
            (true, Some("-1"), &[]),
            (true, Some("1,7,0"), &[1]),
            (true, Some("1,1"), &[]),
            (true, Some("GPU-"), &[]),
            (false, Some(first.as_str()), &[2]),
            (false, Some(two.as_str()), &[0, 1]),
        ] {
            assert_eq!(Visible::read(&gpus, by_bus, picked).0, expected, "{by_bus} {picked:?}");
        }
    }

    #[test]
    fn one_instance_of_partitioned_gpus_is_visible() {
        let gpus = GpuSpec::parse_list("A100:40960/mig=3g.20gb,1g.5gb,T4").expect("a list of GPUs");
        let uuid = |gpu: usize| Uuid(gpus[gpu].uuid(gpu)).to_string();
        let (last, whole) = (uuid(2).replacen("GPU", "MIG", 1), uuid(0));
        for (picked, expected) in [
            (None, 3),
            (Some("0"), 1),
            (Some("1"), 3),
            (Some("1,0"), 1),
            (Some(last.as_str()), 2),
            (Some(&last[..10]), 2),
            (Some(whole.as_str()), 1),
        ] {
            assert_eq!(Visible::read(&gpus, true, picked).0, [expected], "{picked:?}");
        }
        let divided = GpuSpec::parse_list("A100/mig=1g.10gb,1g.10gb").expect("a list of GPUs");
        assert_eq!(Visible::read(&divided, true, None).0, [1]);
    }

    #[test]
    fn device_numbers_map_both_ways() {
        let gpus = GpuSpec::parse_list("A10,A10,A10").expect("a list of GPUs");
        let visible = Visible::read(&gpus, true, Some("2,0"));
        assert_eq!(visible.count(), 2);
        assert_eq!(
            (visible.gpu(0), visible.gpu(1), visible.gpu(2), visible.gpu(-1)),
            (Some(2), Some(0), None, None)
        );
        assert_eq!(
            (visible.device(2), visible.device(0), visible.device(1)),
            (Some(0), Some(1), None)
        );
    }
}
