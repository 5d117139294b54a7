//! A part of a GPU.

/// What is held, requested or free of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Memory, in the GPU's units.
    pub units: u64,
    /// Percent of its compute.
    pub percent: u32,
    /// Number of containers.
    pub containers: u32,
}

impl Share {
    /// Nothing.
    pub const NONE: Self = Self { units: 0, percent: 0, containers: 0 };

    /// Returns the sum; saturates.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            units: self.units.saturating_add(other.units),
            percent: self.percent.saturating_add(other.percent),
            containers: self.containers.saturating_add(other.containers),
        }
    }

    /// Returns the difference; saturates at zero.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self {
            units: self.units.saturating_sub(other.units),
            percent: self.percent.saturating_sub(other.percent),
            containers: self.containers.saturating_sub(other.containers),
        }
    }

    /// Returns the larger of each resource.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            units: self.units.max(other.units),
            percent: self.percent.max(other.percent),
            containers: self.containers.max(other.containers),
        }
    }

    /// Returns whether it fits in `free`.
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
    /// Together with the other containers, after the init containers.
    Container,
    /// Alone, before the containers.
    Init,
    /// From its position among the init containers until the pod ends.
    Sidecar,
}

/// Returns the most that a pod holds at any time. As in Kubernetes, that is all containers and
/// sidecars, or an init container with the sidecars before it.
///
/// `parts` must have init containers and sidecars in the pod's order.
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
