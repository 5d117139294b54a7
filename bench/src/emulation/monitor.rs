//! The monitor: the controller as in the daemon, with the tenants' real pages.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cgpu_scheduler::policy::{Entitlement, Policy, Presence};
use cgpu_scheduler::report::TenantReport;
use cgpu_scheduler::tuning::Tuning;
use cgpu_scheduler::{Gpu, Observation, Order, TenantId};
use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::grant::Turn;
use cgpu_shm::grant_snapshot::Measured;
use cgpu_shm::units::Nanos;

use super::harness::Role;
use super::{Container, SLOT, Tenant, gpu};

/// Interval between two heartbeats.
const HEARTBEAT_INTERVAL: Nanos = Nanos::from_millis(250);

/// The controller, which also returns what it has measured.
pub(super) struct Monitor(Mutex<Gpu>);

impl Monitor {
    pub(super) fn new(policy: Policy) -> Self {
        Self(Mutex::new(Gpu::new(Tuning::DEFAULT, policy)))
    }

    /// Returns a tenant's measured share of the last second.
    pub(super) fn measured(&self, now: Nanos, number: usize) -> Option<Measured> {
        self.scheduler().share(now, TenantId(number as u64))?.second
    }

    fn scheduler(&self) -> MutexGuard<'_, Gpu> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the controller until the end of the run.
pub(super) fn run(role: &Role<'_, '_>, monitor: &Monitor, tenants: &[Tenant<'_>]) {
    let containers = role.containers();
    let mut admitted = vec![false; containers.len()];
    let (mut stale, mut beat) = (true, Nanos::ZERO);
    while role.now() < role.end() {
        let now = role.now();
        let mut scheduler = monitor.scheduler();
        for number in 0..containers.len() {
            if !admitted[number] && containers[number].has_started() {
                admitted[number] = true;
                containers[number].grantor.adopt(1);
                let Tenant { weight, percent, high_priority, .. } = tenants[number];
                high_priority.iter().for_each(|ratio| scheduler.set_priority_ratio(*ratio));
                let entitlement = Entitlement { weight, percent, high: high_priority.is_some() };
                scheduler.admit(now, TenantId(number as u64), entitlement);
            }
        }
        if now >= beat {
            containers.iter().for_each(|container| container.grantor.beat());
            beat = now + HEARTBEAT_INTERVAL;
        }
        let notified = role.take_notified();
        notified.iter().for_each(|number| containers[*number].grantor.clear_notification());
        let mut polled: Vec<usize> = if std::mem::take(&mut stale) {
            (0..containers.len()).collect()
        } else {
            let interest = scheduler.interest(now, !notified.is_empty());
            interest.filter_map(|id| usize::try_from(id.0).ok()).collect()
        };
        polled.extend(&notified);
        polled.sort_unstable();
        polled.dedup();
        let observations: Vec<Observation> = polled
            .into_iter()
            .map(|number| {
                observe_container(&containers[number], number, notified.contains(&number))
            })
            .collect();
        let plan = scheduler.advance(now, &observations);
        plan.orders.iter().for_each(|order| apply_order(containers, order));
        for (number, container) in containers.iter().enumerate() {
            match scheduler.requests_notification(TenantId(number as u64)) {
                true => container.grantor.request_notification(),
                false => container.grantor.clear_notification(),
            }
        }
        drop(scheduler);
        role.wait_for_doorbell(
            plan.next_step.max(now + Nanos::from_micros(1)).min(beat).min(role.end()),
        );
    }
}

fn observe_container(container: &Container, number: usize, notified: bool) -> Observation {
    let cell = container.region.cell(gpu(), SLOT);
    let read = |word: &AtomicU64| word.load(Ordering::Acquire);
    let report = TenantReport {
        slot: SLOT,
        generation: 1,
        turn: read(&cell.turn),
        waiting: read(&cell.waiting),
        active: read(&cell.active),
        busy: read(&cell.busy),
        inflight: read(&cell.inflight),
        ends: read(&cell.ends),
        spent: read(&cell.spent),
        last: read(&cell.last),
    };
    let (tenant, presence) = (TenantId(number as u64), Presence { created: true, open: true });
    Observation {
        tenant,
        presence,
        has_doorbell: true,
        notified,
        unreadable: false,
        reports: vec![report],
    }
}

fn apply_order(containers: &[Container], order: &Order) {
    let Some(container) =
        usize::try_from(order.tenant.0).ok().and_then(|number| containers.get(number))
    else {
        return;
    };
    let (grantor, gate) = (&container.grantor, &order.gate);
    grantor.gpu(gpu()).beside.store(gate.concurrent, Ordering::Relaxed);
    grantor.gpu(gpu()).bound.store(gate.max_inflight.0, Ordering::Relaxed);
    grantor.set_notify_slot(gpu(), gate.notify_slot);
    grantor.set_turn(gpu(), Turn(gate.turn), gate.granted, gate.until);
    if order.bump {
        if order.wake {
            grantor.wake_gate();
        } else {
            grantor.bump_gate();
        }
    }
}
