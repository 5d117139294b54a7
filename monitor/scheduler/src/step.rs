//! Input and output of a step: observations of the containers, and what their gates are to say.

use cgpu_shm::units::{Nanos, SlotIndex};

use super::policy::Presence;
use super::report::TenantReport;

/// A container, by the daemon's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// How a GPU is being shared (`docs/internals/turns.md`, section 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Fewer than two containers, or the native policy: nothing is metered.
    #[default]
    Open,
    /// Several containers, at most one active: nothing is metered.
    Watched,
    /// Turns are given.
    Contended,
}

/// Result of polling a container.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The container.
    pub tenant: TenantId,
    /// Whether it is registered for the GPU, and uses it.
    pub presence: Presence,
    /// It can notify. Without a doorbell it must be polled.
    pub has_doorbell: bool,
    /// It has just notified.
    pub notified: bool,
    /// Its file cannot be read (truncated, overwritten), but its locks show that it lives.
    pub unreadable: bool,
    /// Its living processes that have the GPU open.
    pub reports: Vec<TenantReport>,
}

/// What a container's grant page is to say for the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// `epoch << 8 | state`.
    pub turn: u64,
    /// GPU time of the turn, in the container's own measure.
    pub granted: Nanos,
    /// When the turn is expected to end.
    pub until: Nanos,
    /// Slot of the process that notifies when its work has run out.
    pub notify_slot: Option<SlotIndex>,
    /// Whether the container is to notify at all.
    pub notify_requested: bool,
    /// Number of others whose work runs at the same time: measurements are not the container's
    /// alone.
    pub concurrent: u32,
    /// Most work in flight; zero: the gate's default.
    pub max_inflight: Nanos,
}

impl Gate {
    pub(super) const fn without_grant(turn: u64) -> Self {
        let (granted, until, max_inflight) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        Self {
            turn,
            granted,
            until,
            notify_slot: None,
            notify_requested: false,
            concurrent: 0,
            max_inflight,
        }
    }
}

/// `CGPU_TURN_OPEN`.
pub(super) const OPEN: u64 = 0;
/// `CGPU_TURN_YOURS`.
pub(super) const YOURS: u64 = 1;
/// `CGPU_TURN_WAIT`.
pub(super) const WAIT: u64 = 2;
/// The turn of a container before the first step with it.
pub(super) const UNDECIDED: u64 = 0xff;

/// Result of a step.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Gates that change.
    pub orders: Vec<Order>,
    /// When to call again; [`Nanos::MAX`]: when a container notifies.
    pub next_step: Nanos,
}

/// A gate that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The container.
    pub tenant: TenantId,
    /// What its grant page is to say for the GPU.
    pub gate: Gate,
    /// The container's gate word must change afterwards.
    pub bump: bool,
    /// Threads that wait at the gate must be woken.
    pub wake: bool,
}
