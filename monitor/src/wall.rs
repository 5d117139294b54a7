//! The driver's memory limits for containers' control groups, called walls here
//! (`docs/internals/memory-wall.md`).
//!
//! | module | what it does |
//! |---|---|
//! | [`decision`] | from limits, use and what was read: what to set, what to report. Pure |
//! | [`group`] | finds the control group of a container's process |
//! | [`record`] | keeps what was set, for the next monitor |
//! | [`walls`] | carries the decisions out, on the prober's thread |

use std::path::PathBuf;

use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;

use crate::watcher::ProcessId;

pub mod decision;
pub mod group;
pub mod record;
pub mod walls;

use decision::Wanted;

/// The walls that a container is to have. A container without an order is to have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The daemon's own number, returned as it is.
    pub tenant: u64,
    /// Its directory.
    pub dir: PathBuf,
    /// Living processes that registered it, each with the control group that was made for it.
    pub registrants: Vec<(ProcessId, Option<PathBuf>)>,
    /// Processes whose control groups were released.
    pub released: Vec<ProcessId>,
    /// What it is to have on each device.
    pub devices: Vec<Device>,
}

/// A container's part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device.
    pub uuid: Uuid,
    /// The wall.
    pub wanted: Wanted,
    /// Whether its processes may have memory there already: the container was not registered before
    /// its first process ran, or NVML lists some.
    pub may_have_memory: bool,
}

/// Why a container has no wall on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// `wall = "off"`.
    Off,
    /// The library has no such functions.
    OldDriver,
    /// The driver has the functions and does not support them here.
    NotSupported,
    /// NVML does not answer, or does not list the device.
    NoNvml,
    /// The host has no control groups of version 2, or none for its containers.
    Version1,
    /// Its control group has others' processes, too.
    NoOwnGroup,
    /// This control group does not pass `dmem` to its children.
    NoDmem(PathBuf),
    /// The driver does not know the group.
    NotFound,
    /// The device is a MIG instance.
    Mig,
    /// The driver's error.
    Refused(String),
    /// No first process is known, or it is one of another PID namespace.
    NotRegistered,
    /// The driver has not answered yet.
    #[default]
    Pending,
    /// Its limits were removed, because it ends.
    Released,
}

impl Reason {
    /// Returns the name in data.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::OldDriver => "old_driver",
            Self::NotSupported => "not_supported",
            Self::NoNvml => "no_nvml",
            Self::Version1 => "version_1",
            Self::NoOwnGroup => "no_own_group",
            Self::NoDmem(_) => "no_dmem",
            Self::NotFound => "not_found",
            Self::Mig => "mig",
            Self::Refused(_) => "refused",
            Self::NotRegistered => "not_registered",
            Self::Pending => "pending",
            Self::Released => "released",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "switched off (wall in monitor.toml)",
            Self::OldDriver => "the driver has no such limits: they need r615 (CUDA 13.4)",
            Self::NotSupported => "the driver does not support such limits here",
            Self::NoNvml => "NVML does not answer for the GPU",
            Self::Version1 => "its control group is of version 1",
            Self::NoOwnGroup => "it has no control group of its own",
            Self::NoDmem(group) => {
                let group = group.display();
                return write!(f, "no dmem in {group}/cgroup.subtree_control");
            }
            Self::NotFound => "the driver does not know its control group",
            Self::Mig => "the driver sets no such limits for MIG instances",
            Self::Refused(error) => return write!(f, "refused by the driver: {error}"),
            Self::NotRegistered => "its first process is not known",
            Self::Pending => "the driver has not answered yet",
            Self::Released => "the container ends",
        })
    }
}

/// A container's wall on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wall {
    /// There is none.
    Absent(Reason),
    /// It is set, and was read back.
    Set(Present),
}

/// A wall that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The limit, the largest of its control groups.
    pub hard: Bytes,
    /// What the driver charges its control groups together; none: it does not say.
    pub used: Option<Bytes>,
    /// Whether the container may have had memory before.
    pub is_late: bool,
    /// The number of its control groups. Each has the limit of all.
    pub groups: usize,
    /// What another program did with the limit.
    pub changed: Option<String>,
    /// Whether the driver keeps it in a list of its own.
    pub is_listed: bool,
}

/// What an [`Order`] led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// [`Order::tenant`].
    pub tenant: u64,
    /// The wall on each device of the order.
    pub walls: Vec<(Uuid, Wall)>,
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn each_reason_has_words() {
        for reason in [
            Reason::Off,
            Reason::OldDriver,
            Reason::NotSupported,
            Reason::NoNvml,
            Reason::Version1,
            Reason::NoOwnGroup,
            Reason::NoDmem("/cg".into()),
            Reason::NotFound,
            Reason::Mig,
            Reason::Refused("3".into()),
            Reason::NotRegistered,
            Reason::Pending,
            Reason::Released,
        ] {
            assert_ne!(cgpu_text::wall::words(reason.name()), reason.name());
        }
    }
}
