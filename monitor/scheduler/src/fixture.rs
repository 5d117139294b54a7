//! A GPU with containers, for the scheduler's unit tests.

use cgpu_shm::units::{Nanos, SlotIndex};

use super::gpu::Gpu;
use super::policy::{Entitlement, Policy, Presence};
use super::refill::Candidate;
use super::report::TenantReport;
use super::step::{Gate, Observation, TenantId};
use super::tenants::Tenant;
use super::tuning::Tuning;
use super::turns::{Cause, Closed, Phase, Turn};

pub(super) const NOW: Nanos = ms(10_000);

pub(super) const fn ms(time: u64) -> Nanos {
    Nanos::from_millis(time)
}

pub(super) const fn us(time: u64) -> Nanos {
    Nanos::from_micros(time)
}

/// Makes a GPU with a container for each weight. Each has a process with the GPU open. None has
/// launched, waits or has credit.
pub(super) fn idle(policy: Policy, weights: &[u32]) -> Gpu {
    let mut gpu = Gpu::new(Tuning::DEFAULT, policy);
    for (number, weight) in (0..).zip(weights) {
        gpu.admit(NOW, TenantId(number), Entitlement::of_weight(*weight));
    }
    for tenant in &mut gpu.queue {
        tenant.presence = Presence { created: true, open: true };
        tenant.balance = 0;
    }
    gpu.now = NOW;
    gpu
}

/// Makes a GPU with fixed shares in percent. All containers compute and wait at their gates.
pub(super) fn fixed(percents: &[u32]) -> Gpu {
    let mut gpu = busy(Policy::Fixed { slots: 20 }, &vec![1; percents.len()]);
    for (tenant, percent) in gpu.queue.iter_mut().zip(percents) {
        tenant.entitlement.percent = Some(*percent);
    }
    gpu
}

pub(super) fn busy(policy: Policy, weights: &[u32]) -> Gpu {
    let mut gpu = idle(policy, weights);
    for tenant in &mut gpu.queue {
        tenant.active = NOW;
        tenant.waiting = true;
    }
    gpu
}

/// Gives a container a turn that began at [`NOW`]. It no longer waits.
pub(super) fn give_turn(gpu: &mut Gpu, number: usize, length: Nanos) {
    let tenant = &mut gpu.queue[number];
    tenant.waiting = false;
    gpu.turn = Some(Turn {
        holder: tenant.id,
        word: 1 << 8 | 1,
        start: NOW,
        end: NOW + length,
        granted: length,
        handed: true,
        excluded: Nanos::ZERO,
        reported: Nanos::ZERO,
        charged: Nanos::ZERO,
        high: tenant.entitlement.high,
        goes_on: false,
        phase: Phase::Running,
    });
}

pub(super) fn fill_allowance(gpu: &mut Gpu) {
    gpu.update_allowance(NOW - ms(1000), NOW);
    assert!(gpu.may_preempt());
}

pub(super) fn candidates(gpu: &Gpu) -> Vec<Candidate> {
    gpu.queue.iter().map(|tenant| gpu.candidate(NOW, tenant)).collect()
}

/// Makes a container of which nothing is known yet.
pub(super) fn tenant() -> Tenant {
    Tenant::new(TenantId(0), Entitlement::of_weight(1), Gate::without_grant(0), Nanos::ZERO)
}

/// Makes the report of a process that has done nothing so far.
pub(super) fn report(slot: u8) -> TenantReport {
    TenantReport {
        slot: SlotIndex(slot),
        generation: 1,
        turn: 0,
        waiting: 0,
        active: 0,
        busy: 0,
        inflight: 0,
        ends: 0,
        spent: 0,
        last: 0,
    }
}

pub(super) fn observation(reports: &[TenantReport]) -> Observation {
    Observation {
        tenant: TenantId(0),
        presence: Presence { created: true, open: true },
        has_doorbell: true,
        notified: false,
        unreadable: false,
        reports: reports.to_vec(),
    }
}

pub(super) fn see(tenant: &mut Tenant, now: Nanos, reports: &[TenantReport]) {
    tenant.see(now, &observation(reports), &Tuning::DEFAULT);
}

/// Runs a background step at `to`, with the last one at `from`, in milliseconds. All containers
/// compute; the first one has reported `used` more.
pub(super) fn observe(gpu: &mut Gpu, from: u64, to: u64, used: Nanos) {
    gpu.queue.iter_mut().for_each(|tenant| tenant.active = NOW + ms(to));
    gpu.queue[0].account.reported = gpu.queue[0].account.reported + used;
    gpu.update_background(NOW + ms(from), NOW + ms(to));
}

pub(super) fn closed(held_us: u64, handed: bool) -> Closed {
    let start = Nanos::from_millis(1000);
    Closed {
        start,
        end: start + Nanos::from_micros(held_us),
        excluded: Nanos::ZERO,
        reported: Nanos::ZERO,
        charged: Nanos::ZERO,
        handed,
        high: false,
        cause: Cause::Spent,
        paid: start,
        by: start,
        beside: None,
    }
}
