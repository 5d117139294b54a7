//! A part of a GPU.

/// What somebody has of a GPU, or what is left of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Memory, in the GPU's units.
    pub units: u64,
    /// Percent of its compute that is set aside.
    pub percent: u32,
    /// Containers.
    pub containers: u32,
}

impl Share {
    /// Nothing.
    pub const NONE: Self = Self { units: 0, percent: 0, containers: 0 };

    /// Both together; saturates.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            units: self.units.saturating_add(other.units),
            percent: self.percent.saturating_add(other.percent),
            containers: self.containers.saturating_add(other.containers),
        }
    }

    /// What is left when this is taken away; never less than nothing.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self {
            units: self.units.saturating_sub(other.units),
            percent: self.percent.saturating_sub(other.percent),
            containers: self.containers.saturating_sub(other.containers),
        }
    }

    /// The larger of each.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            units: self.units.max(other.units),
            percent: self.percent.max(other.percent),
            containers: self.containers.max(other.containers),
        }
    }

    /// Whether it can be had from `free`.
    #[must_use]
    pub fn fits(self, free: Self) -> bool {
        self.units <= free.units
            && self.percent <= free.percent
            && self.containers <= free.containers
    }
}

/// When a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// With all the others, once those before have come up.
    Container,
    /// By itself, before them.
    Init,
    /// From its place among the init containers to the end.
    Sidecar,
}

/// The most that a pod has at any time, as Kubernetes counts: containers and sidecars together; or an init container with the sidecars before it.
///
/// Init containers and sidecars must come in the pod's order.
#[must_use]
pub fn most(parts: impl IntoIterator<Item = (Role, Share)>) -> Share {
    let (mut sidecars, mut containers, mut peak) = (Share::NONE, Share::NONE, Share::NONE);
    for (role, share) in parts {
        match role {
            Role::Container => containers = containers.and(share),
            Role::Sidecar => sidecars = sidecars.and(share),
            Role::Init => peak = peak.or(sidecars.and(share)),
        }
    }
    peak.or(sidecars.and(containers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(units: u64) -> Share {
        Share { units, percent: 0, containers: 1 }
    }

    #[test]
    fn init_containers_and_sidecars_count_as_kubernetes_counts() {
        use Role::{Container, Init, Sidecar};
        for (parts, expected, containers) in [
            (&[(Container, 2), (Container, 3)][..], 5, 2),
            (&[(Init, 8), (Container, 2)], 8, 1),
            (&[(Init, 1), (Container, 2)], 2, 1),
            (&[(Sidecar, 1), (Container, 2)], 3, 2),
            (&[(Sidecar, 1), (Init, 8), (Container, 2)], 9, 2),
            (&[(Init, 8), (Sidecar, 1), (Container, 2)], 8, 2),
            (&[(Init, 4), (Sidecar, 3), (Init, 4), (Sidecar, 1), (Container, 2)], 7, 3),
            (&[], 0, 0),
        ] {
            let most = most(parts.iter().map(|(role, amount)| (*role, units(*amount))));
            assert_eq!((most.units, most.containers), (expected, containers), "{parts:?}");
        }
    }

    #[test]
    fn share_arithmetic_saturates() {
        let all = Share { units: u64::MAX, percent: u32::MAX, containers: u32::MAX };
        assert_eq!(all.and(all), all);
        assert_eq!(Share::NONE.without(all), Share::NONE);
    }
}
