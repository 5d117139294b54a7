//! The observer: an actor that reads at given times what tenants have done.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::grant_snapshot::Measured;
use cgpu_shm::units::Nanos;

use super::harness::{BEGIN, Role};
use super::monitor::Monitor;
use super::{SLOT, gpu};

/// Observation of a tenant at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    /// Kernels that the GPU has completed.
    pub(crate) kernels: u64,
    /// GPU time of its work, as the GPU counts it.
    pub(crate) computed: Nanos,
    /// GPU time that the tenant reports.
    pub(crate) reported: Nanos,
    /// Its share of the last second as shown by the monitor.
    pub(crate) measured: Option<Measured>,
}

pub(super) fn observe(
    role: &Role<'_, '_>,
    monitor: Option<&Monitor>,
    instants: &[Nanos],
) -> Vec<Vec<Observed>> {
    let observed = instants.iter().map(|instant| {
        role.sleep_until(BEGIN + *instant);
        tenants(role, monitor)
    });
    observed.collect()
}

fn tenants(role: &Role<'_, '_>, monitor: Option<&Monitor>) -> Vec<Observed> {
    let used = role.gpu(|timeline, now| {
        timeline.account_up_to(0, now);
        timeline.processes(0)
    });
    let observed = role.containers().iter().enumerate().map(|(number, container)| {
        let used = used.iter().find(|used| used.process == number);
        let (kernels, computed) =
            used.map_or_else(Default::default, |used| (used.kernels, used.busy));
        let reported = container.region.cell(gpu(), SLOT).busy.load(Ordering::Relaxed);
        let measured = monitor.and_then(|monitor| monitor.measured(role.now(), number));
        Observed { kernels, computed, reported: Nanos(reported), measured }
    });
    observed.collect()
}
