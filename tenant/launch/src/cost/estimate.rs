//! Launches with their expected cost, by kernel.

use cgpu_shm::units::Nanos;

use super::Kernel;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelLaunches {
    pub(super) kernel: Kernel,
    pub(super) launches: u64,
}

/// Kernels of an estimate that can be learned separately.
pub(super) const MAX_KERNELS: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CostEstimate {
    /// What they were expected to cost in all when they were charged.
    pub(crate) cost: Nanos,
    /// By how much they may exceed that.
    pub(crate) margin: Nanos,
    pub(crate) launches: u64,
    parts: [Option<KernelLaunches>; MAX_KERNELS],
    /// The cost of what is not in the parts.
    pub(super) other_cost: Nanos,
}

impl CostEstimate {
    pub(crate) fn is_empty(&self) -> bool {
        self.launches == 0
    }

    pub(crate) fn add(&mut self, kernel: Kernel, cost: Nanos, launches: u64) {
        self.cost = self.cost + cost;
        self.launches += launches;
        let mut places = self.parts.iter_mut();
        match places.find(|part| part.is_none_or(|part| part.kernel == kernel)) {
            Some(place) => {
                let before = place.map_or(0, |part| part.launches);
                *place = Some(KernelLaunches { kernel, launches: before + launches });
            }
            None => self.other_cost = self.other_cost + cost,
        }
    }

    /// Adds two estimates. Returns none if they have too many kernels together.
    pub(crate) fn with(mut self, other: &Self) -> Option<Self> {
        for part in other.parts() {
            let place = self
                .parts
                .iter_mut()
                .find(|place| place.is_none_or(|it| it.kernel == part.kernel))?;
            let before = place.map_or(0, |it| it.launches);
            *place = Some(KernelLaunches { launches: before + part.launches, ..part });
        }
        let (cost, margin) = (self.cost + other.cost, self.margin + other.margin);
        let other_cost = self.other_cost + other.other_cost;
        Some(Self { cost, margin, launches: self.launches + other.launches, other_cost, ..self })
    }

    /// Removes one launch, which the driver refused.
    pub(crate) fn remove(&mut self, kernel: Kernel, cost: Nanos) {
        self.cost = self.cost - cost;
        self.launches = self.launches.saturating_sub(1);
        if self.launches == 0 {
            self.margin = Nanos::ZERO;
        }
        match self.parts.iter_mut().flatten().find(|part| part.kernel == kernel) {
            Some(part) => part.launches = part.launches.saturating_sub(1),
            None => self.other_cost = self.other_cost - cost,
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = KernelLaunches> {
        self.parts.into_iter().flatten()
    }

    pub(super) fn single(&self) -> Option<Kernel> {
        let mut parts = self.parts().filter(|part| part.launches > 0);
        parts.next().filter(|_| self.launches == 1).map(|part| part.kernel)
    }
}
