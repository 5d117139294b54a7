//! The observer: an actor that reads at given instants what tenants have done.

use cgpu_proto::atomic::Ordering;
use cgpu_proto::units::Nanos;

use super::world::{BEGIN, Role};
use super::{SLOT, gpu};

/// What there is to see of a tenant at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    /// Kernels that the GPU has completed.
    pub(crate) kernels: u64,
    /// Time for which its work has computed, as the GPU counts it.
    pub(crate) computed: Nanos,
    /// GPU time that the tenant's own cell reports: what is called measured where it is shown.
    pub(crate) reported: Nanos,
}

pub(super) fn observe(role: &Role<'_, '_>, instants: &[Nanos]) -> Vec<Vec<Observed>> {
    let observed = instants.iter().map(|instant| {
        role.sleep_until(BEGIN + *instant);
        tenants(role)
    });
    observed.collect()
}

fn tenants(role: &Role<'_, '_>) -> Vec<Observed> {
    let used = role.gpu(|timeline, now| {
        timeline.settle(0, now);
        timeline.processes(0)
    });
    let observed = role.homes().iter().enumerate().map(|(number, home)| {
        let used = used.iter().find(|used| used.process == number);
        let (kernels, computed) = used.map_or_else(Default::default, |used| (used.kernels, used.busy));
        let reported = home.region.cell(gpu(), SLOT).busy.load(Ordering::Relaxed);
        Observed { kernels, computed, reported: Nanos(reported) }
    });
    observed.collect()
}
