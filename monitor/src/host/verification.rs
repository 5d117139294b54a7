//! Whether NVML's figures allow a comparison of what containers hold with their limits.
//!
//! A container can write to its own ledger, so only NVML says what it really holds. Where NVML does
//! not, that is a standing finding of the GPU, and a fault of each container for which it does not.

use std::collections::BTreeSet;

use cgpu_scheduler::TenantId;
use cgpu_shm::units::Bytes;

use super::Host;
use super::container::Container;
use super::device_state::DeviceState;
use crate::probe::{GpuSample, LedgerSample};

/// Returns why a sample of a GPU does not allow it; none: it does.
pub(super) fn unverified(gpu: &GpuSample, samples: &[LedgerSample]) -> Option<&'static str> {
    let Some(processes) = &gpu.processes else {
        return Some("NVML does not list the processes on it.");
    };
    if !processes.is_empty() && processes.values().all(Option::is_none) {
        return Some("NVML does not report the memory of the processes on it.");
    }
    let mut using = samples.iter().filter(|sample| uses(sample)).peekable();
    (using.peek().is_some() && using.all(|sample| sample.reading.is_none())).then_some(
        "NVML does not list the containers' processes: it reports the process ids of another PID \
         namespace, or none.",
    )
}

/// Returns the containers of which NVML lists no process that holds memory by their own ledgers.
pub(super) fn unlisted(samples: &[LedgerSample]) -> BTreeSet<TenantId> {
    let tenants = |is_listed: bool| {
        let using = samples.iter().filter(|sample| uses(sample));
        let of = using.filter(move |sample| sample.reading.is_some() == is_listed);
        of.map(|sample| TenantId(sample.tenant)).collect::<BTreeSet<_>>()
    };
    &tenants(false) - &tenants(true)
}

/// Whether a process holds memory by its container's ledger. Two processes may start and exit
/// around a sample. Memory in use stays for all of it.
fn uses(sample: &LedgerSample) -> bool {
    let (before, after) = sample.accounted;
    before.used.min(after.used) > Bytes::ZERO
}

impl Host {
    /// Returns why the memory of containers with a limit on a GPU cannot be compared with that;
    /// none: it can be, or there are none.
    pub(crate) fn limits_unverified(&self, device: &DeviceState) -> Option<&'static str> {
        if !self.containers.values().any(|container| is_limited(container, device)) {
            return None;
        }
        match self.sampled {
            None => Some("NVML does not answer."),
            Some(_) if !device.known => Some("NVML does not list it."),
            Some(_) => device.unverified,
        }
    }

    /// Whether a container's memory on one of the GPUs cannot be compared with its limit there,
    /// although NVML lists the GPU's processes.
    pub(crate) fn is_unlisted(&self, container: &Container) -> bool {
        let unlisted = |device: &DeviceState| device.unlisted.contains(&container.tenant);
        self.sampled.is_some()
            && self.devices.iter().any(|device| unlisted(device) && is_limited(container, device))
    }
}

fn is_limited(container: &Container, device: &DeviceState) -> bool {
    container.gpus().contains(&device.uuid) && container.limit(device.uuid) > Bytes::ZERO
}

#[cfg(test)]
mod tests {
    use cgpu_shm::units::{DeviceIndex, Nanos, SlotIndex};

    use super::*;
    use crate::memory::unaccounted::{Accounted, Reading};

    fn sample(used: u64, measured: Option<u64>) -> LedgerSample {
        let accounted = Accounted { used: Bytes(used), ..Accounted::default() };
        let reading = |measured| Reading {
            at: Nanos::ZERO,
            before: accounted,
            measured: Bytes(measured),
            after: accounted,
            imported: Bytes::ZERO,
        };
        LedgerSample {
            tenant: 1,
            slot: SlotIndex(0),
            generation: 1,
            gpu: DeviceIndex::new(0).unwrap(),
            at: Nanos::ZERO,
            accounted: (accounted, accounted),
            container: None,
            reading: measured.map(reading),
        }
    }

    fn gpu(processes: Option<&[(u32, Option<u64>)]>) -> GpuSample {
        let processes = processes
            .map(|all| all.iter().map(|(pid, memory)| (*pid, memory.map(Bytes))).collect());
        GpuSample { processes, ..GpuSample::default() }
    }

    #[test]
    fn limits_are_unverified_where_nvml_has_no_figures() {
        let listed = || gpu(Some(&[(5, Some(9))]));
        let unlisted = sample(9, None);
        for (case, gpu, samples, expected) in [
            ("no list", gpu(None), vec![], Some("NVML does not list the processes on it.")),
            (
                "no memory",
                gpu(Some(&[(5, None)])),
                vec![],
                Some("NVML does not report the memory of the processes on it."),
            ),
            (
                "another namespace",
                listed(),
                vec![unlisted.clone()],
                Some(
                    "NVML does not list the containers' processes: it reports the process ids of \
                     another PID namespace, or none.",
                ),
            ),
            ("an idle GPU", gpu(Some(&[])), vec![], None),
            ("nothing allocated yet", gpu(Some(&[])), vec![sample(0, None)], None),
            ("measured", listed(), vec![sample(9, Some(9))], None),
            ("one of two has just started", listed(), vec![sample(9, Some(9)), unlisted], None),
        ] {
            assert_eq!(unverified(&gpu, &samples), expected, "{case}");
        }
    }

    #[test]
    fn neighbour_that_nvml_lists_does_not_hide_a_container_that_it_does_not() {
        let of = |tenant, used, measured| LedgerSample { tenant, ..sample(used, measured) };
        for (case, samples, expected) in [
            ("one is not listed", vec![of(1, 9, Some(9)), of(2, 9, None)], &[2][..]),
            ("a process has just started", vec![of(1, 9, Some(9)), of(1, 9, None)], &[]),
            ("nothing allocated yet", vec![of(1, 9, Some(9)), of(2, 0, None)], &[]),
            ("two are not listed", vec![of(1, 9, None), of(2, 9, None)], &[1, 2]),
        ] {
            let expected = expected.iter().copied().map(TenantId).collect();
            assert_eq!(unlisted(&samples), expected, "{case}");
        }
    }
}
