//! Decides about one control group on one GPU. Pure.

use cgpu_client::message::Shim;
use cgpu_client::wall::{WallState, WallStatus};
use cgpu_inventory::memory_limits::{GroupMemory, Limits};
use cgpu_shm::units::Bytes;
use serde::{Deserialize, Serialize};

use super::{Present, Wall};

/// Least margin for a process, unless one is configured.
pub const MIN_MARGIN: Bytes = Bytes::from_mib(512);
/// Greatest margin that a measured context leads to. A container can make NVML show any size.
pub const MAX_MEASURED_MARGIN: Bytes = Bytes::from_mib(1024);
/// The driver may round a limit down by less than this.
const ROUNDING: Bytes = Bytes::from_mib(2);
/// Difference between what the driver charges and what NVML shows that says nothing.
const TOLERANCE: Bytes = Bytes::from_mib(64);
/// Samples with such a difference after which a container counts as one that was found late.
const MIN_UNCHARGED_SAMPLES: u32 = 2;
/// Samples in a row with an unexplained excess after which the ledger counts as tampered with. A
/// process that starts is charged for its context before that is accounted.
pub const MIN_TAMPERED_SAMPLES: u32 = 5;

/// What a wall's size depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The container's limit.
    pub limit: Bytes,
    /// For a process that starts.
    pub margin: Bytes,
    /// For the processes with a context ([`kept_margins`]).
    pub kept: Bytes,
    /// The GPU's memory; zero: not known.
    pub total: Bytes,
    /// Whether the GPU has clients of MPS.
    pub has_mps: bool,
    /// Whether the GPU's persistence mode is off: the driver forgets the limits that it keeps in a
    /// list of its own ([`Known::is_listed`]) when no program uses the GPU.
    pub is_not_persistent: bool,
}

impl Wanted {
    /// Returns the size of the wall.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.bounded(self.limit + self.allowance())
    }

    /// Returns by how much the wall exceeds the limit, unless the GPU is too small for that.
    #[must_use]
    pub fn allowance(&self) -> Bytes {
        self.margin + self.kept
    }

    /// A limit that exceeds the GPU is no limit.
    fn bounded(&self, size: Bytes) -> Bytes {
        if self.total > Bytes::ZERO { size.min(self.total) } else { size }
    }

    fn soft(&self, hard: Bytes) -> Bytes {
        if self.has_mps { hard } else { Bytes::ZERO }
    }
}

/// Returns the margin for a process: as configured, else by the largest context that NVML has shown
/// on the GPU.
#[must_use]
pub fn margin(configured: Option<Bytes>, context: Bytes) -> Bytes {
    configured.unwrap_or_else(|| context.clamp(MIN_MARGIN, MAX_MEASURED_MARGIN))
}

/// Returns the margins of processes with a context: a whole one for the largest, and a quarter for
/// each other, of what it has at most. `held`: the memory of each by NVML; none: not known.
///
/// All margins together are for the one process that takes them, and stay with it when the others
/// end. So a group that fills its limit with the memory of many processes has at most a third more
/// than with one.
#[must_use]
pub fn kept_margins(margin: Bytes, held: &[Option<Bytes>]) -> Bytes {
    let mut margins: Vec<Bytes> =
        held.iter().map(|held| held.map_or(margin, |held| held.min(margin))).collect();
    margins.sort_unstable();
    let largest = margins.pop().unwrap_or_default();
    largest + margins.into_iter().map(|margin| Bytes(margin.0 / 4)).sum::<Bytes>()
}

/// What is known of a control group's limit on a GPU, for the next monitor as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Known {
    /// The limit in force, in bytes: set and read back, or another program's lower one.
    pub set: Option<u64>,
    /// The limit that is being set.
    pub setting: Option<u64>,
    /// The last limit of another program.
    pub other: Option<u64>,
    /// Whether the container may have had memory before its first limit.
    pub is_late: bool,
    /// How often the limit was removed or raised, and set again.
    pub replaced: u32,
    /// Whether the driver keeps the limit in a list of its own (back end `misc`).
    pub is_listed: bool,
    /// Whether the limit has a soft one.
    pub has_soft: bool,
}

impl Known {
    /// Whether no limit was ever set.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.set.is_none() && self.setting.is_none()
    }

    /// Whether the limit, or a part of it, stays when the group goes without a release.
    #[must_use]
    pub const fn outlives_group(&self) -> bool {
        !self.is_new() && (self.is_listed || self.has_soft)
    }

    fn has(&self, hard: Bytes) -> bool {
        [self.set, self.setting].contains(&Some(hard.0))
    }

    /// Notes what was read after a limit was set. Returns whether it is that limit.
    pub fn read_back(&mut self, wanted: Bytes, read: Option<Bytes>) -> bool {
        let read = read.filter(|read| *read <= wanted && wanted - *read < ROUNDING);
        if let Some(read) = read {
            (self.set, self.setting) = (Some(read.0), None);
        }
        read.is_some()
    }

    /// Says what another program did.
    #[must_use]
    pub fn changes(&self) -> Option<String> {
        let mut changes = Vec::new();
        if let Some(other) = self.other {
            let mib = other >> 20;
            changes.push(format!("another program has set {mib} MiB, and the lower limit applies"));
        }
        if self.replaced > 0 {
            let times = self.replaced;
            changes.push(format!(
                "another program or the driver has raised or removed it ({times} times), and it was \
                 set again"
            ));
        }
        (!changes.is_empty()).then(|| changes.join("; "))
    }
}

/// What another program did with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It set a lower one, which stays.
    Lower(Bytes),
    /// It set a higher one, which is replaced.
    Higher(Bytes),
    /// It removed the limit, which is set again.
    Removed,
    /// The driver has forgotten the limit, which is set again.
    Forgotten,
}

/// Decides what to set, and what another program did. None: nothing. `read`: none where the driver
/// knows of no limit and of no use.
pub fn decide(
    wanted: &Wanted,
    read: Option<GroupMemory>,
    known: &mut Known,
) -> (Option<Limits>, Option<Change>) {
    let Limits { soft, hard } = read.map(|memory| memory.limits).unwrap_or_default();
    let used = read.map_or(Bytes::ZERO, |memory| memory.used);
    let own = wanted.bounded(wanted.size().max(used));
    let mut change = None;
    match hard {
        Some(hard) if known.has(hard) => {}
        // It is the wanted one, also where another program has set it in place of its lower one.
        Some(hard) if hard == own => known.other = known.other.map(|_| hard.0),
        Some(hard) => {
            // The lower of the two applies from now on, also after a resize.
            known.other = Some(hard.0);
            change = Some(if hard < own { Change::Lower(hard) } else { Change::Higher(hard) });
        }
        None if known.set.is_none() => {}
        None if known.is_listed && wanted.is_not_persistent => {
            known.other = None;
            change = Some(Change::Forgotten);
        }
        None => {
            known.other = None;
            change = Some(Change::Removed);
        }
    }
    if matches!(change, Some(Change::Higher(_) | Change::Removed)) {
        known.replaced = known.replaced.saturating_add(1);
    }
    let target = known.other.map_or(own, |other| own.min(Bytes(other)));
    let set = Limits { soft: wanted.soft(target), hard: Some(target) };
    // The driver may have rounded it.
    let is_hard_set = hard.is_some_and(|hard| {
        hard == target || known.set == Some(hard.0) && hard < target && target - hard < ROUNDING
    });
    // Another program's limit is left as it is.
    let is_others = known.other.is_some() && known.other == hard.map(|hard| hard.0);
    let is_set = is_hard_set && (soft == set.soft || is_others && !wanted.has_mps);
    if is_set {
        (known.set, known.setting) = (hard.map(|hard| hard.0), None);
        return (None, change);
    }
    (Some(set), change)
}

/// What is known of a container on a GPU beside its wall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Memory of its processes, by NVML; none: not known.
    pub measured: Option<Bytes>,
    /// Whether one of its processes there does not have the shim.
    pub is_unshimmed: bool,
    /// Whether one of its processes there is in another control group.
    pub is_outside: bool,
    /// Whether its processes have not all been searched for, so that `measured` may lack some.
    pub is_new: bool,
    /// The number of samples in a row in which `measured` has exceeded what the driver charges.
    pub uncharged_samples: u32,
}

/// Whether the processes of a group hold more than the driver charges it.
#[must_use]
pub fn is_uncharged(measured: Option<Bytes>, used: Option<Bytes>) -> bool {
    measured.zip(used).is_some_and(|(measured, used)| measured > used + TOLERANCE)
}

/// Whether the driver charges a group more than the ledger has, and more than the shim, which all
/// of its processes have, may not have accounted yet. `allowance`: [`Wanted::allowance`].
#[must_use]
pub fn is_unexplained(
    excess: Bytes,
    allowance: Bytes,
    shims: impl IntoIterator<Item = Shim>,
) -> bool {
    let mut shims = shims.into_iter().peekable();
    excess.0 >= WallStatus::MIN_EXCESS
        && excess > allowance
        && shims.peek().is_some()
        && shims.all(|shim| shim == Shim::Bound)
}

/// Returns what holds a container's limit, and why it is not the driver alone.
#[must_use]
pub fn state(wall: &Wall, observed: Observed) -> (WallState, Option<String>) {
    let present = match wall {
        Wall::Absent(reason) => return (WallState::Shim, Some(reason.to_string())),
        Wall::Set(present) => present,
    };
    let Present { used, is_late, groups, .. } = present;
    let is_uncharged = is_uncharged(observed.measured, *used);
    // One sample says nothing of a program that has just freed memory.
    let is_late = *is_late || observed.uncharged_samples >= MIN_UNCHARGED_SAMPLES;
    if is_late && (is_uncharged || used.is_none()) {
        let why = "the driver does not charge what the container held before the limit";
        return (WallState::Partial, Some(why.into()));
    }
    if is_late && observed.is_new {
        let why = "it is not known yet whether the driver charges what the container held before";
        return (WallState::Partial, Some(why.into()));
    }
    if *groups > 1 {
        let why = format!("{groups} control groups share the limit, and each may hold all of it");
        return (WallState::Partial, Some(why));
    }
    if observed.is_outside {
        let why = "a process of it is in another control group, which the limit does not hold";
        return (WallState::Partial, Some(why.into()));
    }
    if observed.is_unshimmed {
        let why = "a process without the shim could take managed memory";
        return (WallState::DriverExceptManaged, Some(why.into()));
    }
    (WallState::Driver, None)
}

#[cfg(test)]
mod tests;
