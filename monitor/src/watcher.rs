//! The watcher: finds processes that use a GPU without the shim, or whose container has more of it
//! than its limit. Pure.
//!
//! Once a second NVML lists the processes on each GPU, and the kernel says to which container each
//! of them belongs (`probe/gpu_processes.rs`). Nothing that a container can write counts: neither
//! its region nor its variables. The result is *findings*, for users, and *orders* to end a
//! process, if the configuration says so.
//!
//! - **Unshimmed**: on the GPU, and in none of the slots that the monitor has verified. The work of
//!   a container's process is then neither limited nor gated. A process of no container is the
//!   host's own: it is shown, and never ended.
//! - **Over limit**: by NVML, all processes of a container together hold more of the GPU than its
//!   limit. The finding names the one that holds most. Beyond a margin that grows with them,
//!   the container is *blocked* (it may allocate nothing), and its processes are ended, if that is
//!   configured.
//!
//! Five rules protect processes that did nothing wrong:
//!
//! - A finding needs two observations that agree: a process may be on the GPU before its slot is
//!   verified.
//! - An unshimmed process gets SIGTERM only after every observation of [`TERM_DELAY`] called for
//!   it, SIGKILL only after every one of [`KILL_DELAY`] more. One observation that does not starts
//!   all of it anew. The prober checks everything again once it has opened the process
//!   (`probe/end.rs`).
//! - A container's processes get SIGTERM only once it has been over its bound for the grace period.
//!   Time within the bound is subtracted, so a moment within it gains no more than that. From
//!   [`KILL_DELAY`] after the first SIGTERM on, other processes that exceed the bound get SIGKILL
//!   at once.
//! - A container whose limit was lowered, or that was over its limit when the monitor started, may
//!   keep what it has: it is held to the greatest limit since it was last within one.
//! - A monitor that has just started must find a container's processes first. Until it has, for at
//!   most [`SEARCH_TIMEOUT`], nothing is concluded from what they hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cgpu_client::message::{Cause, Shim, Signal};
use cgpu_scheduler::TenantId;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;

mod upgrade;

pub use upgrade::WatcherState;

/// Time for which every observation must call for the end of an unshimmed process before it gets
/// SIGTERM.
pub const TERM_DELAY: Nanos = Nanos::from_millis(3_000);
/// Time from SIGTERM to SIGKILL, and from one SIGKILL to the next.
pub const KILL_DELAY: Nanos = Nanos::from_millis(10_000);
/// Minimum interval between two observations. NVML is sampled again at once when a process has
/// exited, and late samples arrive together; those count as one.
pub const MIN_INTERVAL: Nanos = Nanos::from_millis(500);
/// Time after which a new container's processes count as found; a search takes less.
pub const SEARCH_TIMEOUT: Nanos = Nanos::from_millis(10_000);
const MAX_REMEMBERED: usize = 32;

/// What the configuration does about findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether containers' processes that use a GPU without the shim are ended.
    pub end_unshimmed: bool,
    /// What happens to a container over its limit.
    pub over_limit: OverLimit,
}

/// What happens to a container over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// The action.
    pub action: Action,
    /// How far a container of one process on the GPU may exceed its limit before anything but a
    /// report happens; a quarter more for each other process. It is what loading code and growing
    /// stacks may take without a call that could be refused.
    pub margin: Bytes,
    /// How long it must have exceeded both before a process is ended.
    pub grace: Nanos,
}

impl OverLimit {
    /// Default of [`OverLimit::margin`].
    pub const MARGIN: Bytes = Bytes::from_mib(1024);
    /// Default of [`OverLimit::grace`].
    pub const GRACE: Nanos = Nanos::from_millis(10_000);
}

impl Default for OverLimit {
    fn default() -> Self {
        Self { action: Action::Report, margin: Self::MARGIN, grace: Self::GRACE }
    }
}

/// What the processes of a container may hold of a GPU together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its limit, or what it may keep.
    pub allowed: Bytes,
    /// What one process may hold beyond that.
    pub margin: Bytes,
    /// What the driver charges all of them, where that may be more than their sum.
    pub charged: Bytes,
}

impl Bound {
    /// Returns what this many processes may hold. The margin is for the first, and a quarter of it
    /// for each other: a whole one would let processes that each take a small limit go unnoticed.
    fn of(self, processes: usize) -> Bytes {
        let others = processes.saturating_sub(1) as u64;
        let margin = self.margin.0.saturating_add((self.margin.0 / 4).saturating_mul(others));
        self.allowed + Bytes(margin)
    }

    /// Returns the largest processes, as few as leave the others within the bound.
    pub(crate) fn largest_beyond(
        self,
        held: impl Iterator<Item = (ProcessId, Bytes)>,
    ) -> BTreeSet<ProcessId> {
        // A process may be listed twice; both figures are of all that it holds.
        let held: BTreeMap<ProcessId, Bytes> = held.collect();
        let mut left = held.values().copied().sum::<Bytes>().max(self.charged);
        let mut largest: Vec<(Bytes, ProcessId)> =
            held.into_iter().map(|(id, memory)| (memory, id)).collect();
        largest.sort_unstable();
        let mut chosen = BTreeSet::new();
        while left > self.of(largest.len())
            && let Some((memory, id)) = largest.pop()
        {
            left = left - memory;
            chosen.insert(id);
        }
        chosen
    }
}

/// What the monitor does about a container over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Reports it.
    #[default]
    Report,
    /// Also lets it allocate nothing more, by its page, which it cannot write.
    Block,
    /// Also ends its largest processes after the grace period.
    End,
}

/// A process, distinguished from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId {
    /// Its id on the host.
    pub pid: u32,
    /// Start time in the kernel's ticks.
    pub start_time: u64,
}

/// A process on a GPU.
#[derive(Clone, Debug)]
pub struct ObservedProcess {
    /// The process.
    pub id: ProcessId,
    /// Its name.
    pub comm: String,
    /// The container that it belongs to and that shares this GPU; none: the host.
    pub owner: Option<TenantId>,
    /// Whether it has the shim.
    pub shim: Shim,
    /// What the driver holds for it there; none: unknown.
    pub memory: Option<Bytes>,
    /// Only the container itself says that it does not share this GPU. Then its processes are not
    /// ended, but still reported.
    pub spared: bool,
}

/// A GPU at one time.
#[derive(Clone, Debug)]
pub struct GpuObservation {
    /// Time of the observation.
    pub at: Nanos,
    /// The GPU.
    pub gpu: Uuid,
    /// The processes on it.
    pub seen: Vec<ObservedProcess>,
    /// The limits of the containers that have one.
    pub limits: BTreeMap<TenantId, Bytes>,
    /// Containers that arrived, with their limit, while the monitor ran: they never had more.
    pub fresh: BTreeSet<TenantId>,
    /// Containers that may have more processes on it than are known yet.
    pub unsure: BTreeSet<TenantId>,
    /// What the driver charges containers' control groups, where it limits them. It is more than
    /// the sum of the processes where a process is not known as the container's.
    pub charged: BTreeMap<TenantId, Bytes>,
}

impl GpuObservation {
    fn charged(&self, tenant: TenantId) -> Bytes {
        self.charged.get(&tenant).copied().unwrap_or_default()
    }
}

/// What to do about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Report it, once.
    Found(Finding),
    /// End it.
    End(Order),
}

/// A process without the shim, or that holds most in a container over its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The GPU.
    pub gpu: Uuid,
    /// The process.
    pub id: ProcessId,
    /// Its name.
    pub comm: String,
    /// What is wrong.
    pub cause: Cause,
    /// Its container; none: the host.
    pub owner: Option<TenantId>,
    /// Whether it has the shim.
    pub shim: Shim,
    /// What the driver holds for it there.
    pub memory: Option<Bytes>,
    /// What all of its container's processes hold there.
    pub container_memory: Bytes,
    /// [`ObservedProcess::spared`].
    pub spared: bool,
    /// When it was first observed.
    pub since: Nanos,
}

/// An order to end a process. The prober checks its cause again before it sends the signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The GPU.
    pub gpu: Uuid,
    /// The process.
    pub id: ProcessId,
    /// Its name.
    pub comm: String,
    /// Its container.
    pub owner: TenantId,
    /// Why it is ended.
    pub cause: Cause,
    /// For [`Cause::OverLimit`]: what the container's processes may hold there together.
    pub bound: Option<Bound>,
    /// The signal to send.
    pub signal: Signal,
}

/// A process that was ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The order that was carried out.
    pub order: Order,
    /// The container's id, since the container may no longer exist.
    pub container: String,
    /// Time of the signal.
    pub at: Nanos,
}

type Key = (Uuid, ProcessId, Cause);

#[derive(Clone, Debug)]
struct TrackedFinding {
    finding: Finding,
    observations: u32,
    /// Since when every observation has called for its end.
    wanted: Option<Nanos>,
    /// When it was last sent a signal for that.
    sent: Option<Nanos>,
}

/// State kept between observations.
#[derive(Debug, Default)]
pub struct Watcher {
    known: BTreeMap<Key, TrackedFinding>,
    observed_at: BTreeMap<Uuid, Nanos>,
    /// What a container may keep: its limit, a greater one that was lowered since, or what it had
    /// when it was first observed.
    allowed: BTreeMap<(Uuid, TenantId), Bytes>,
    /// Since when a container that is not in `allowed` yet has had processes that are not all
    /// known.
    unsure: BTreeMap<(Uuid, TenantId), Nanos>,
    found: BTreeMap<(Cause, Option<TenantId>), u64>,
    counts: BTreeMap<(Cause, TenantId), u64>,
    ended: VecDeque<Ended>,
    /// Containers beyond limit and margin.
    excess: BTreeMap<(Uuid, TenantId), Excess>,
}

/// A container that exceeds its limit by more than the margin, or lately did.
#[derive(Clone, Debug)]
struct Excess {
    /// Time of the last observation.
    at: Nanos,
    /// Whether it exceeded them then.
    is_now: bool,
    /// How long it has exceeded them, less the time for which it has not since, at most the grace
    /// period.
    time: Nanos,
    observations: u32,
    /// When the first SIGTERM was sent for it.
    term_sent: Option<Nanos>,
    /// Processes that were sent a signal for it, and when they last were.
    sent: BTreeMap<ProcessId, Nanos>,
}

impl Excess {
    fn new(at: Nanos) -> Self {
        Self {
            at,
            is_now: true,
            time: Nanos::ZERO,
            observations: 0,
            term_sent: None,
            sent: BTreeMap::new(),
        }
    }

    /// Takes an observation.
    fn take(&mut self, now: Nanos, is_now: bool, grace: Nanos) {
        let since = now - self.at;
        self.time = if is_now { (self.time + since).min(grace) } else { self.time - since };
        self.observations = self.observations.saturating_add(u32::from(is_now));
        (self.at, self.is_now) = (now, is_now);
    }
}

impl Watcher {
    /// Takes an observation of a GPU, and returns what to do.
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
        let mut gone = Vec::new();
        for key in before {
            if !found.iter().any(|finding| key == (finding.gpu, finding.id, finding.cause)) {
                gone.extend(self.known.remove(&key));
            }
        }
        let mut events = Vec::new();
        for finding in found {
            // Another process of the container may hold most now: it is the same finding.
            let same = |known: &&TrackedFinding| {
                (known.finding.cause, known.finding.owner) == (Cause::OverLimit, finding.owner)
            };
            let former = Some(&finding)
                .filter(|finding| finding.cause == Cause::OverLimit)
                .and_then(|_| gone.iter().find(same).cloned());
            events.extend(self.track(finding, former, observation.at, rules));
        }
        events.extend(self.end_excess(observation, rules.over_limit));
        events
    }

    /// Returns the containers that may allocate nothing. It does not say on which GPU: only the
    /// container's own region names its GPUs in its page.
    pub fn blocked(&self, rules: Rules) -> BTreeSet<TenantId> {
        let blocks = rules.over_limit.action >= Action::Block;
        let own = self
            .excess
            .iter()
            .filter(|(_, excess)| blocks && excess.is_now && excess.observations > 1);
        own.map(|((_, tenant), _)| *tenant).collect()
    }

    /// Forgets what was found on a GPU that NVML no longer lists; none: on all GPUs.
    pub fn forget(&mut self, gpu: Option<Uuid>) {
        self.known.retain(|key, _| gpu.is_some_and(|gpu| key.0 != gpu));
        self.excess.retain(|key, _| gpu.is_some_and(|gpu| key.0 != gpu));
    }

    /// Forgets a container that has been removed.
    pub fn dismiss(&mut self, tenant: TenantId) {
        self.allowed.retain(|(_, owner), _| *owner != tenant);
        self.unsure.retain(|(_, owner), _| *owner != tenant);
        self.excess.retain(|(_, owner), _| *owner != tenant);
        self.known.retain(|_, known| known.finding.owner != Some(tenant));
        self.found.retain(|(_, owner), _| *owner != Some(tenant));
        self.counts.retain(|(_, owner), _| *owner != tenant);
    }

    /// Returns the current findings.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.known.values().filter(|known| known.observations > 1).map(|known| &known.finding)
    }

    /// Counts the findings so far, by cause and container.
    pub fn found(&self) -> impl Iterator<Item = (Cause, Option<TenantId>, u64)> + '_ {
        self.found.iter().map(|((cause, owner), count)| (*cause, *owner, *count))
    }

    /// Counts the processes that were sent a signal, by cause and container.
    pub fn ends(&self) -> impl Iterator<Item = (Cause, TenantId, u64)> + '_ {
        self.counts.iter().map(|((cause, owner), count)| (*cause, *owner, *count))
    }

    /// Returns the last processes that were sent a signal, oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter()
    }

    /// Records that an order was carried out.
    pub fn done(&mut self, order: Order, container: String, at: Nanos) {
        if let Some(excess) = self.excess.get_mut(&(order.gpu, order.owner))
            && (order.cause, order.signal) == (Cause::OverLimit, Signal::Term)
        {
            excess.term_sent.get_or_insert(at);
        }
        let count = self.counts.entry((order.cause, order.owner)).or_default();
        // A process that gets another signal was counted with its first.
        let mut signalled = self.ended.iter().map(|ended| (ended.order.id, ended.order.cause));
        let is_first = !signalled.any(|known| known == (order.id, order.cause));
        *count += u64::from(order.signal == Signal::Term || is_first);
        if self.ended.len() == MAX_REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back(Ended { order, container, at });
    }

    /// Records that an order was not carried out. After a failed SIGTERM, everything starts anew
    /// for that process.
    pub fn refused(&mut self, order: &Order) {
        match order.cause {
            Cause::Unshimmed if order.signal == Signal::Term => {
                if let Some(known) = self.known.get_mut(&(order.gpu, order.id, order.cause)) {
                    (known.wanted, known.sent) = (None, None);
                }
            }
            Cause::Unshimmed => {}
            Cause::OverLimit => {
                if let Some(excess) = self.excess.get_mut(&(order.gpu, order.owner)) {
                    excess.sent.remove(&order.id);
                }
            }
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

    /// Returns the process that holds most, for each container over its limit.
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
            let listed: Bytes = own().filter_map(|seen| seen.memory).sum();
            let container_memory = listed.max(observation.charged(tenant));
            let over = container_memory > limit;
            let allowed = match self.allowed.get(&(observation.gpu, tenant)) {
                Some(before) if over => (*before).max(limit),
                Some(_) => limit,
                None if observation.fresh.contains(&tenant) => limit,
                // It was so before this monitor or this limit.
                None => container_memory.max(limit),
            };
            self.allowed.insert((observation.gpu, tenant), allowed);
            if over && let Some(most) = own().max_by_key(|seen| (seen.memory, seen.id)) {
                found.push(finding(observation, most, Cause::OverLimit, container_memory));
            }
        }
        found
    }

    /// Whether a container's use is not known yet. It may keep what it holds at its first
    /// observation, so that one must include all of its processes, which a new monitor finds one by
    /// one. The wait is bounded, since a container can always start one more.
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

    /// Updates which containers exceed limit and margin, and orders the end of as many of their
    /// processes, largest first, as it takes to be within both.
    fn end_excess(&mut self, observation: &GpuObservation, rule: OverLimit) -> Vec<Event> {
        let (gpu, now) = (observation.gpu, observation.at);
        let mut events = Vec::new();
        let mut excess = std::mem::take(&mut self.excess);
        excess.retain(|(on, tenant), _| *on != gpu || observation.limits.contains_key(tenant));
        for &tenant in observation.limits.keys() {
            let Some(allowed) = self.allowed.get(&(gpu, tenant)) else { continue };
            let bound = Bound {
                allowed: *allowed,
                margin: rule.margin,
                charged: observation.charged(tenant),
            };
            let own = || observation.seen.iter().filter(|seen| seen.owner == Some(tenant));
            let held = own().map(|seen| (seen.id, seen.memory.unwrap_or_default()));
            let chosen = bound.largest_beyond(held);
            let is_now = !chosen.is_empty() && own().all(|seen| !seen.spared);
            if is_now {
                excess.entry((gpu, tenant)).or_insert_with(|| Excess::new(now));
            }
            let Some(state) = excess.get_mut(&(gpu, tenant)) else { continue };
            if !is_now && state.time == Nanos::ZERO {
                excess.remove(&(gpu, tenant));
                continue;
            }
            state.take(now, is_now, rule.grace);
            state.sent.retain(|id, _| own().any(|seen| seen.id == *id));
            if !is_now || rule.action < Action::End || state.time < rule.grace {
                continue;
            }
            let is_warned = state.term_sent.is_some_and(|at| now - at >= KILL_DELAY);
            for seen in own().filter(|seen| chosen.contains(&seen.id)) {
                let signal = match state.sent.get(&seen.id) {
                    None if is_warned => Signal::Kill,
                    None => Signal::Term,
                    Some(at) if now - *at >= KILL_DELAY => Signal::Kill,
                    Some(_) => continue,
                };
                state.sent.insert(seen.id, now);
                events.push(Event::End(Order {
                    gpu,
                    id: seen.id,
                    comm: seen.comm.clone(),
                    owner: tenant,
                    cause: Cause::OverLimit,
                    bound: Some(bound),
                    signal,
                }));
            }
        }
        self.excess = excess;
        events
    }

    /// Tracks a finding; `former`: as it was found before, of another process of the container.
    fn track(
        &mut self,
        finding: Finding,
        former: Option<TrackedFinding>,
        now: Nanos,
        rules: Rules,
    ) -> Vec<Event> {
        let key = (finding.gpu, finding.id, finding.cause);
        let is_reported = self.known.iter().any(|(other, known)| {
            *other != key && (other.1, other.2) == (key.1, key.2) && known.observations > 1
        });
        let known = self.known.entry(key).or_insert_with(|| {
            former.unwrap_or_else(|| TrackedFinding {
                finding: finding.clone(),
                observations: 0,
                wanted: None,
                sent: None,
            })
        });
        known.observations = known.observations.saturating_add(1);
        known.finding = Finding { since: known.finding.since, ..finding };
        let finding = known.finding.clone();
        let mut events = Vec::new();
        if known.observations == 2 && !is_reported {
            *self.found.entry((finding.cause, finding.owner)).or_default() += 1;
            events.push(Event::Found(finding.clone()));
        }
        let Some(owner) = finding.owner.filter(|_| ends(&finding, rules)) else {
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
            events.push(Event::End(Order { gpu, id, comm, owner, cause, bound: None, signal }));
        }
        events
    }
}

/// Whether an unshimmed process is to be ended. One whose shim is unknown may have it.
fn ends(finding: &Finding, rules: Rules) -> bool {
    let without = matches!(finding.shim, Shim::Absent | Shim::Loaded);
    finding.cause == Cause::Unshimmed && rules.end_unshimmed && without && !finding.spared
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
