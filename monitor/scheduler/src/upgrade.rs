//! The state of a GPU that an upgrade transfers: what each container was charged and owes, and what
//! was learned.
//!
//! The current turn is closed and charged by what is known then. Lost are the sums of the last
//! second, and the allowance of high priority, at most a window's worth.

use cgpu_shm::units::Nanos;
use serde::{Deserialize, Serialize};

use super::audit::{Audit, AuditState};
use super::gpu::Gpu;
use super::step::TenantId;
use super::turns::Cause;
use crate::accounting::TurnAnomalies;

/// Greatest restored count, and greatest restored time that was learned, in ns: more than there can
/// be, and small enough to be added and multiplied.
const MAX_RESTORED: u64 = 1 << 48;

/// State of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuState {
    /// Turns begun.
    pub turns: u64,
    /// Total charge so far, ns.
    pub charged: u64,
}

/// State of a container on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantState {
    /// Credit; below 0: excess use, ns.
    pub balance: i64,
    /// Debt that it has yet to repay, ns.
    pub debt: u64,
    /// Charged so far, ns.
    pub charged: u64,
    /// Forgiven, ns.
    pub forgiven: u64,
    /// By its own reports, ns.
    pub reported: u64,
    /// Turns begun.
    pub turns: u64,
    /// Anomalies of its turns.
    pub anomalies: TurnAnomalies,
    /// Total charge of the GPU when it became known, ns.
    pub joined: u64,
    /// Length of the gaps in its work, ns.
    pub gap: u64,
    /// Learned delay of its work's end, ns.
    pub late: u64,
    /// How long its work ends before its turn, ns.
    pub early: u64,
    /// See `Tenant::overlap`.
    pub overlap: u64,
    /// See `Tenant::duty`.
    pub duty: (u64, u32),
    /// Cost of a switch to it, ns, and from how many turns that is known.
    pub switch_cost: (u64, u32),
    /// Its reports are ignored until then.
    pub distrusted_until: u64,
    /// What NVML's figures told of it.
    pub audit: AuditState,
}

impl Gpu {
    /// Ends the current turn, and returns the state for the next monitor.
    pub fn transfer(&mut self, now: Nanos) -> (GpuState, Vec<(TenantId, TenantState)>) {
        if let Some(turn) = self.turn.take() {
            self.close(now, now.max(turn.start), Cause::Calm, turn);
        }
        for at in 0..self.queue.len() {
            self.account_closed_turn(now, at);
        }
        let states = self.queue.iter().map(|tenant| {
            let state = TenantState {
                balance: tenant.balance,
                debt: tenant.debt.0,
                charged: tenant.account.charged.0,
                forgiven: tenant.account.forgiven.0,
                reported: tenant.account.reported.0,
                turns: tenant.account.turns,
                anomalies: tenant.account.anomalies,
                joined: tenant.joined.0,
                gap: tenant.gap.0,
                late: tenant.late.0,
                early: tenant.early.0,
                overlap: tenant.overlap,
                duty: tenant.duty,
                switch_cost: (tenant.switch_cost.0.0, tenant.switch_cost.1),
                distrusted_until: tenant.distrusted_until.0,
                audit: tenant.audit.transfer(),
            };
            (tenant.id, state)
        });
        (GpuState { turns: self.turns, charged: self.charged.0 }, states.collect())
    }

    /// Restores the state of a GPU. Impossible values are bounded: another release wrote them.
    pub fn restore(&mut self, gpu_state: GpuState) {
        self.turns = self.turns.saturating_add(gpu_state.turns).min(MAX_RESTORED);
        self.charged = self.charged + Nanos(gpu_state.charged);
    }

    /// Restores the state of a known container. Impossible values are bounded.
    pub fn restore_tenant(&mut self, id: TenantId, state: &TenantState) {
        let Some(tenant) = self.find_mut(id) else { return };
        let learned = |time: u64| Nanos(time.min(MAX_RESTORED));
        tenant.balance = state.balance;
        tenant.debt = Nanos(state.debt);
        tenant.account.charged = Nanos(state.charged);
        tenant.account.forgiven = Nanos(state.forgiven);
        tenant.account.reported = Nanos(state.reported);
        tenant.account.turns = state.turns.min(MAX_RESTORED);
        tenant.account.anomalies = state.anomalies.bounded(MAX_RESTORED);
        tenant.joined = Nanos(state.joined);
        tenant.gap = learned(state.gap);
        tenant.late = learned(state.late);
        tenant.early = learned(state.early);
        tenant.overlap = state.overlap.clamp(1000, MAX_RESTORED);
        tenant.duty = (state.duty.0.min(1000), state.duty.1);
        tenant.switch_cost = (learned(state.switch_cost.0), state.switch_cost.1);
        tenant.distrusted_until = Nanos(state.distrusted_until);
        tenant.audit = Audit::restore(&tenant.account, &state.audit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Entitlement, Policy};
    use crate::tuning::Tuning;

    fn gpu() -> Gpu {
        let mut gpu = Gpu::new(Tuning::DEFAULT, Policy::default());
        for id in [1, 2] {
            gpu.admit(Nanos(5), TenantId(id), Entitlement::of_weight(1));
        }
        gpu
    }

    #[test]
    fn restored_state_is_the_transferred_one() {
        let mut old = gpu();
        (old.turns, old.charged) = (9, Nanos(700));
        let tenant = old.find_mut(TenantId(2)).unwrap();
        (tenant.balance, tenant.debt, tenant.account.forgiven) = (-4_000_000, Nanos(8), Nanos(9));
        tenant.account.charge(Nanos(500));
        tenant.account.turns = 4;
        tenant.account.anomalies.over = 1;
        (tenant.gap, tenant.late, tenant.early) = (Nanos(1), Nanos(2), Nanos(3));
        (tenant.overlap, tenant.duty, tenant.switch_cost) = (1500, (700, 5), (Nanos(80), 6));
        let (gpu_state, states) = old.transfer(Nanos(10));
        // As transferred over the socket.
        let text = serde_json::to_string(&(gpu_state, &states[1].1)).unwrap();
        let (gpu_state, state): (GpuState, TenantState) = serde_json::from_str(&text).unwrap();

        let mut new = gpu();
        new.restore(gpu_state);
        new.restore_tenant(TenantId(2), &state);
        let (again, after) = new.transfer(Nanos(11));
        assert_eq!((again, after[1].1), (gpu_state, states[1].1));
        assert_eq!((state.balance, state.charged, state.switch_cost), (-4_000_000, 500, (80, 6)));
        assert_eq!(after[0].1, states[0].1, "the other one is unchanged");
    }

    #[test]
    fn field_missing_in_transferred_state_has_a_default() {
        let state: TenantState = serde_json::from_str(r#"{"balance":-3,"news":true}"#).unwrap();
        let mut gpu = gpu();
        gpu.restore_tenant(TenantId(1), &state);
        gpu.restore_tenant(TenantId(7), &state);
        let tenant = gpu.find(TenantId(1)).unwrap();
        assert_eq!((tenant.balance, tenant.overlap), (-3, 1000));
    }
}
