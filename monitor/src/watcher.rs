//! The watcher: who is on a GPU and should not be, or has more of it than its container may. Pure.
//!
//! Once a second NVML tells who is on a GPU, and the kernel to which container each of them belongs (`probe/gpu_processes.rs`). Nothing that a
//! container can write is asked: neither its region nor its variables. What comes out are *findings*, for people, and *orders* to end a process,
//! if the configuration wants that.
//!
//! - **Unshimmed**: on the GPU, in none of the slots that the monitor has verified. Where it is a container's that shares the GPU, its work is
//!   neither limited nor gated. Where it is no container's, it is the host's own: shown, and never ended.
//! - **Over limit**: all processes of a container together hold more of the GPU, by NVML, than its limit. The finding names the one that holds most.
//!
//! Three things keep the innocent from harm. A finding needs **two looks** that agree: a process may be on the GPU before its slot is verified.
//! One is ended only when each look of [`TERM_DELAY`] wanted that, asked first (SIGTERM), and made to only when each of [`KILL_DELAY`] more did
//! (SIGKILL): one look that does not, and all of it starts anew. Whoever does it looks again at everything after it has got hold of the process
//! (`probe/end.rs`). And who is over a limit because **the limit was lowered**, or was over it when the monitor came, may keep what it has: it
//! counts from the greatest limit since it was last within it. A monitor that has just come has to find a container's processes first; until it
//! has, for [`SEARCH_TIMEOUT`] at most, nothing is concluded of what they hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cgpu_client::message::{Cause, Shim, Signal};
use cgpu_scheduler::TenantId;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;

mod upgrade;

pub use upgrade::WatcherState;

/// How long it is wanted that a process ends before it is told to.
pub const TERM_DELAY: Nanos = Nanos::from_millis(3_000);
/// How long after it was asked to end it is made to.
pub const KILL_DELAY: Nanos = Nanos::from_millis(10_000);
/// Looks that are closer together than this are one: NVML is asked again at once when somebody has died, and late samples come together.
pub const MIN_INTERVAL: Nanos = Nanos::from_millis(500);
/// Longer than it takes to find a new container's processes.
pub const SEARCH_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// Ended processes that are remembered.
const MAX_REMEMBERED: usize = 32;

/// What the configuration wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Containers' processes that use a GPU without the shim are ended.
    pub end_unshimmed: bool,
    /// Of a container that holds so much more than its limit, the process that holds most is ended;
    /// none: no process is.
    pub end_over_limit: Option<Bytes>,
}

/// A process that cannot be mistaken for a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId {
    /// Its id on the host.
    pub pid: u32,
    /// When it was started, in the kernel's ticks.
    pub start_time: u64,
}

/// A process on a GPU.
#[derive(Clone, Debug)]
pub struct ObservedProcess {
    /// Which.
    pub id: ProcessId,
    /// What it calls itself.
    pub comm: String,
    /// The container that it belongs to, and that shares this GPU; none: the host.
    pub owner: Option<TenantId>,
    /// What it has of the shim.
    pub shim: Shim,
    /// What the driver holds for it there; none: not told.
    pub memory: Option<Bytes>,
    /// The container itself says that it does not share this GPU, and nobody else says whether it does: not a reason to end its processes,
    /// nor one to look away.
    pub spared: bool,
}

/// A GPU at one time.
#[derive(Clone, Debug)]
pub struct GpuObservation {
    /// When.
    pub at: Nanos,
    /// Which.
    pub gpu: Uuid,
    /// Who is on it.
    pub seen: Vec<ObservedProcess>,
    /// What each container may have of it, where it is limited.
    pub limits: BTreeMap<TenantId, Bytes>,
    /// Containers of whom more may be on it than is known by now.
    pub unsure: BTreeSet<TenantId>,
}

/// What is to be done about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// People are to be told, once.
    Found(Finding),
    /// It is to be ended.
    End(Order),
}

/// Something that should not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub gpu: Uuid,
    /// Who.
    pub id: ProcessId,
    /// What it calls itself.
    pub comm: String,
    /// What is wrong.
    pub cause: Cause,
    /// Whose it is; none: the host's.
    pub owner: Option<TenantId>,
    /// What it has of the shim.
    pub shim: Shim,
    /// What the driver holds for it there.
    pub memory: Option<Bytes>,
    /// What all of its container's processes hold there.
    pub container_memory: Bytes,
    /// [`ObservedProcess::spared`].
    pub spared: bool,
    /// Since when.
    pub since: Nanos,
}

/// A process to be ended, and why: the prober checks it again before it sends the signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Where.
    pub gpu: Uuid,
    /// Who.
    pub id: ProcessId,
    /// What it calls itself.
    pub comm: String,
    /// Whose it is.
    pub owner: TenantId,
    /// Why.
    pub cause: Cause,
    /// What its container's processes may hold there together, where holding more is why.
    pub bound: Option<Bytes>,
    /// How.
    pub signal: Signal,
}

/// A process that was ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Who, where, why, how.
    pub order: Order,
    /// The container's id: it may be gone by now.
    pub container: String,
    /// When.
    pub at: Nanos,
}

type Key = (Uuid, ProcessId, Cause);

#[derive(Clone, Debug)]
struct TrackedFinding {
    finding: Finding,
    observations: u32,
    /// It is to be ended, and every look since then said so.
    wanted: Option<Nanos>,
    /// It was sent something then, for that.
    sent: Option<Nanos>,
}

/// What is known from look to look.
#[derive(Debug, Default)]
pub struct Watcher {
    known: BTreeMap<Key, TrackedFinding>,
    /// When each GPU was last looked at.
    observed_at: BTreeMap<Uuid, Nanos>,
    /// What a container may keep: its limit, or one that was lowered since, or what it had when it was first seen.
    allowed: BTreeMap<(Uuid, TenantId), Bytes>,
    /// Since when it is not known who of a container, which we do not know yet, is on a GPU.
    unsure: BTreeMap<(Uuid, TenantId), Nanos>,
    found: BTreeMap<(Cause, Option<TenantId>), u64>,
    counts: BTreeMap<(Cause, TenantId), u64>,
    ended: VecDeque<Ended>,
}

impl Watcher {
    /// Takes a look at a GPU; what is to be done.
    pub fn take(&mut self, observation: &GpuObservation, rules: Rules) -> Vec<Event> {
        if self
            .observed_at
            .get(&observation.gpu)
            .is_some_and(|last| observation.at - *last < MIN_INTERVAL)
        {
            return Vec::new();
        }
        self.observed_at.insert(observation.gpu, observation.at);
        let mut found = self.unshimmed(observation);
        found.extend(self.over_limit(observation));
        let before: Vec<Key> =
            self.known.keys().filter(|key| key.0 == observation.gpu).copied().collect();
        for key in before {
            if !found.iter().any(|finding| key == (finding.gpu, finding.id, finding.cause)) {
                self.known.remove(&key);
            }
        }
        let mut events = Vec::new();
        for finding in found {
            events.extend(self.note(finding, observation.at, rules));
        }
        events
    }

    /// NVML no longer tells of any GPU, or of this one.
    pub fn forget(&mut self, gpu: Option<Uuid>) {
        self.known.retain(|key, _| gpu.is_some_and(|gpu| key.0 != gpu));
    }

    /// A container is no more.
    pub fn dismiss(&mut self, tenant: TenantId) {
        self.allowed.retain(|(_, owner), _| *owner != tenant);
        self.unsure.retain(|(_, owner), _| *owner != tenant);
        self.known.retain(|_, known| known.finding.owner != Some(tenant));
        self.found.retain(|(_, owner), _| *owner != Some(tenant));
        self.counts.retain(|(_, owner), _| *owner != tenant);
    }

    /// What is wrong now.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.known.values().filter(|known| known.observations > 1).map(|known| &known.finding)
    }

    /// How many findings there have been, by cause and container.
    pub fn found(&self) -> impl Iterator<Item = (Cause, Option<TenantId>, u64)> + '_ {
        self.found.iter().map(|((cause, owner), count)| (*cause, *owner, *count))
    }

    /// How many processes have been sent a signal, by cause and container.
    pub fn ends(&self) -> impl Iterator<Item = (Cause, TenantId, u64)> + '_ {
        self.counts.iter().map(|((cause, owner), count)| (*cause, *owner, *count))
    }

    /// The last processes that were sent a signal, oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter()
    }

    /// An order was carried out.
    pub fn done(&mut self, order: Order, container: String, at: Nanos) {
        let count = self.counts.entry((order.cause, order.owner)).or_default();
        // One that is made to end has been counted when it was asked to.
        *count += u64::from(order.signal == Signal::Term);
        if self.ended.len() == MAX_REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back(Ended { order, container, at });
    }

    /// An order was not carried out: it is not known to have been asked to end.
    pub fn refused(&mut self, order: &Order) {
        if let Some(known) = self.known.get_mut(&(order.gpu, order.id, order.cause))
            && order.signal == Signal::Term
        {
            (known.wanted, known.sent) = (None, None);
        }
    }

    fn unshimmed(&self, observation: &GpuObservation) -> Vec<Finding> {
        let unshimmed = observation.seen.iter().filter(|seen| seen.shim != Shim::Bound);
        unshimmed
            .map(|seen| {
                finding(observation, seen, Cause::Unshimmed, seen.memory.unwrap_or_default())
            })
            .collect()
    }

    /// The one that holds most of each container that holds too much.
    fn over_limit(&mut self, observation: &GpuObservation) -> Vec<Finding> {
        self.allowed.retain(|(gpu, tenant), _| {
            *gpu != observation.gpu || observation.limits.contains_key(tenant)
        });
        let mut found = Vec::new();
        for (&tenant, &limit) in &observation.limits {
            if self.is_unsure(observation, tenant) {
                continue;
            }
            let own = || observation.seen.iter().filter(|seen| seen.owner == Some(tenant));
            let container_memory: Bytes = own().filter_map(|seen| seen.memory).sum();
            let over = container_memory > limit;
            let allowed = match self.allowed.get(&(observation.gpu, tenant)) {
                Some(before) if over => (*before).max(limit),
                Some(_) => limit,
                // It was so before this monitor or this limit: no process is to blame.
                None => container_memory.max(limit),
            };
            self.allowed.insert((observation.gpu, tenant), allowed);
            if over && let Some(most) = own().max_by_key(|seen| (seen.memory, seen.id)) {
                found.push(finding(observation, most, Cause::OverLimit, container_memory));
            }
        }
        found
    }

    /// What a container holds when it is first seen is its own from then on, so that first look must see all of it: a monitor that has just
    /// started finds its processes one by one. It waits for them, but not for ever: a container can always have one more.
    fn is_unsure(&mut self, observation: &GpuObservation, tenant: TenantId) -> bool {
        let key = (observation.gpu, tenant);
        if self.allowed.contains_key(&key) {
            return false;
        }
        let since = *self.unsure.entry(key).or_insert(observation.at);
        let waits = observation.unsure.contains(&tenant) && observation.at - since < SEARCH_TIMEOUT;
        if !waits {
            self.unsure.remove(&key);
        }
        waits
    }

    fn note(&mut self, finding: Finding, now: Nanos, rules: Rules) -> Vec<Event> {
        let key = (finding.gpu, finding.id, finding.cause);
        let is_reported = self.known.iter().any(|(other, known)| {
            *other != key && (other.1, other.2) == (key.1, key.2) && known.observations > 1
        });
        let wanted = self.wants(&finding, rules);
        let known = self.known.entry(key).or_insert_with(|| TrackedFinding {
            finding: finding.clone(),
            observations: 0,
            wanted: None,
            sent: None,
        });
        known.observations = known.observations.saturating_add(1);
        known.finding = Finding { since: known.finding.since, ..finding };
        let finding = known.finding.clone();
        let mut events = Vec::new();
        if known.observations == 2 && !is_reported {
            *self.found.entry((finding.cause, finding.owner)).or_default() += 1;
            events.push(Event::Found(finding.clone()));
        }
        let Some((owner, bound)) = wanted else {
            // A process that stops holding too much and does so again gets another SIGTERM first.
            (known.wanted, known.sent) = (None, None);
            return events;
        };
        let since = *known.wanted.get_or_insert(now);
        let signal = match known.sent {
            None => (now - since >= TERM_DELAY).then_some(Signal::Term),
            Some(at) => (now - at >= KILL_DELAY).then_some(Signal::Kill),
        };
        if let Some(signal) = signal {
            known.sent = Some(now);
            let Finding { gpu, id, comm, cause, .. } = finding;
            events.push(Event::End(Order { gpu, id, comm, owner, cause, bound, signal }));
        }
        events
    }

    /// Whether what is found is to be ended: whose it is, and what those may hold.
    fn wants(&self, finding: &Finding, rules: Rules) -> Option<(TenantId, Option<Bytes>)> {
        let owner = finding.owner.filter(|_| !finding.spared)?;
        match finding.cause {
            // A process that may have the shim is not known to be without it.
            Cause::Unshimmed => {
                let without = matches!(finding.shim, Shim::Absent | Shim::Loaded);
                (rules.end_unshimmed && without).then_some((owner, None))
            }
            Cause::OverLimit => {
                let bound = *self.allowed.get(&(finding.gpu, owner))? + rules.end_over_limit?;
                (finding.container_memory > bound).then_some((owner, Some(bound)))
            }
        }
    }
}

fn finding(
    observation: &GpuObservation,
    seen: &ObservedProcess,
    cause: Cause,
    container_memory: Bytes,
) -> Finding {
    Finding {
        gpu: observation.gpu,
        id: seen.id,
        comm: seen.comm.clone(),
        cause,
        owner: seen.owner,
        shim: seen.shim,
        memory: seen.memory,
        container_memory,
        spared: seen.spared,
        since: observation.at,
    }
}

#[cfg(test)]
mod tests;
