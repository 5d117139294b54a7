//! The state that a monitor receives from its predecessor, with any content. What can be parsed is
//! transferred again unchanged, its settings are within their ranges, and a scheduler with it keeps
//! giving turns.

use std::path::Path;

use cgpu_monitor::settings::Settings;
use cgpu_monitor::upgrade::UpgradeState;
use cgpu_monitor::watcher::Watcher;
use cgpu_scheduler::policy::{Entitlement, Policy, Presence};
use cgpu_scheduler::report::TenantReport;
use cgpu_scheduler::tuning::Tuning;
use cgpu_scheduler::{Gpu, Observation, TenantId};
use cgpu_shm::units::{Nanos, SlotIndex};
use serde_json::Value;
use tempfile::TempDir;

use super::settings::check_settings;

/// The containers of a GPU.
const TENANTS: [TenantId; 2] = [TenantId(1), TenantId(2)];

/// A container that waits at its gate.
fn busy(tenant: TenantId, now: Nanos) -> Observation {
    let report = TenantReport {
        slot: SlotIndex::new(0).expect("a slot"),
        generation: 1,
        turn: 0,
        waiting: 1,
        active: now.0,
        busy: 0,
        inflight: 0,
        ends: 0,
        spent: 0,
        last: 0,
    };
    Observation {
        tenant,
        presence: Presence { created: true, open: true },
        has_doorbell: true,
        notified: true,
        unreadable: false,
        reports: vec![report],
    }
}

/// Restores a GPU and its containers, and lets them share it for some time.
fn check_scheduler(state: &UpgradeState) {
    for transferred in &state.gpus {
        let policy = Policy::default();
        let mut gpu = Gpu::new(Tuning::DEFAULT, policy);
        for tenant in TENANTS {
            gpu.admit(Nanos(1), tenant, Entitlement::of_weight(1));
        }
        gpu.restore(transferred.gpu);
        for (tenant, (_, state)) in TENANTS.into_iter().zip(&transferred.containers) {
            gpu.restore_tenant(tenant, state);
        }
        for step in 1..50 {
            let now = Nanos::from_millis(step * 5);
            let observations = TENANTS.map(|tenant| busy(tenant, now));
            let plan = gpu.advance(now, &observations);
            assert!(plan.next_step > now, "{plan:?}");
            for tenant in TENANTS {
                let share = gpu.share(now, tenant).expect("it was admitted");
                assert!(share.total.is_none_or(|percent| (0.0..=100.1).contains(&percent)));
            }
        }
        let (_, states) = gpu.transfer(Nanos::from_millis(1000));
        assert_eq!(states.len(), TENANTS.len());
    }
}

thread_local! {
    static FOLDER: TempDir = TempDir::with_prefix_in("cgpu-fuzz-", "/dev/shm").expect("a folder");
}

pub(crate) fn check(input: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(input) else { return };
    let Ok((state, refused)) = UpgradeState::parse(value) else { return };
    assert!(refused.is_none() || state.settings == Settings::default(), "{refused:?}");
    let written = serde_json::to_value(&state).expect("a state can be written");
    assert_eq!(UpgradeState::parse(written).ok(), Some((state.clone(), None)));
    FOLDER.with(|folder| check_settings(folder.path(), &state.settings));
    check_scheduler(&state);
    let mut watcher = Watcher::default();
    let directory = Path::new("/run/cgpu/containers/a");
    watcher.restore(state.watcher, |path| (path == directory).then_some(TENANTS[0]));
    let again = watcher.transfer(|tenant| (tenant == TENANTS[0]).then_some(directory));
    // What a second monitor drops, a third one does not know.
    let mut second = Watcher::default();
    second.restore(again.clone(), |path| (path == directory).then_some(TENANTS[0]));
    assert_eq!(second.transfer(|tenant| (tenant == TENANTS[0]).then_some(directory)), again);
}
