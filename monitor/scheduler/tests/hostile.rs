//! For any reports at any time, the scheduler neither panics nor gives a GPU to two containers at
//! once, and its answers stay bounded.

use std::collections::HashMap;

use cgpu_scheduler::Gpu;
use cgpu_scheduler::policy::{Entitlement, Policy, Presence};
use cgpu_scheduler::report::TenantReport;
use cgpu_scheduler::tuning::Tuning;
use cgpu_scheduler::{Observation, TenantId};
use cgpu_shm::units::{Nanos, SlotIndex};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    /// Time passes, in ns; then these are observed.
    Step(u64, Vec<(u64, Presence, bool, bool, bool, Vec<TenantReport>)>),
    Admit(u64, Entitlement),
    Dismiss(u64),
    Entitle(u64, Entitlement),
    Policy(u32, u32, bool),
    Ratio(u32),
    Summon(Option<u64>),
}

/// Numbers as a misreporting tenant chooses them: arbitrary, extreme, and plausible ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), Just(0), Just(u64::MAX), 0..100_000_000_000_u64, 0..3_u64]
}

fn report() -> impl Strategy<Value = TenantReport> {
    (
        any::<u8>(),
        0..3_u64,
        [number(), number(), number(), number()],
        [number(), number(), number(), number()],
    )
        .prop_map(
            |(slot, generation, [turn, waiting, active, busy], [inflight, ends, spent, last])| {
                TenantReport {
                    slot: SlotIndex(slot),
                    generation,
                    turn,
                    waiting,
                    active,
                    busy,
                    inflight,
                    ends,
                    spent,
                    last,
                }
            },
        )
}

fn entitlement() -> impl Strategy<Value = Entitlement> {
    let weight = prop_oneof![any::<u32>(), 0..26_u32];
    let percent = prop::option::of(prop_oneof![any::<u32>(), 0..101_u32]);
    (weight, percent, prop::bool::weighted(0.3)).prop_map(|(weight, percent, high)| Entitlement {
        weight,
        percent,
        high,
    })
}

fn event() -> impl Strategy<Value = Event> {
    let presence =
        (any::<bool>(), any::<bool>()).prop_map(|(created, open)| Presence { created, open });
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.1));
    let observation = (0..6_u64, presence, flags, prop::collection::vec(report(), 0..4)).prop_map(
        |(tenant, presence, (has_doorbell, notified, unreadable), reports)| {
            (tenant, presence, has_doorbell, notified, unreadable, reports)
        },
    );
    let time = prop_oneof![
        0..10_000_000_u64,
        0..100_000_u64,
        Just(0),
        Just(u64::MAX / 4),
        Just(3_600_000_000_000)
    ];
    prop_oneof![
        8 => (time, prop::collection::vec(observation, 0..6))
            .prop_map(|(time, observations)| Event::Step(time, observations)),
        1 => (0..6_u64, entitlement())
            .prop_map(|(tenant, entitlement)| Event::Admit(tenant, entitlement)),
        1 => (0..6_u64).prop_map(Event::Dismiss),
        1 => (0..6_u64, entitlement())
            .prop_map(|(tenant, entitlement)| Event::Entitle(tenant, entitlement)),
        1 => (0..6_u32, 0..30_u32, any::<bool>()).prop_map(|(number, slots, conserving)| {
            Event::Policy(number, slots, conserving)
        }),
        1 => (0..200_u32).prop_map(Event::Ratio),
        1 => prop::option::of(0..6_u64).prop_map(Event::Summon),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_reports_never_break_the_scheduler(
        events in prop::collection::vec(event(), 1..100),
    ) {
        let mut gpu = Gpu::new(Tuning::DEFAULT, Policy::Preemptive);
        let mut gates: HashMap<TenantId, u64> = HashMap::new();
        let mut now = 1_000_000_000_u64;
        let mut epoch = 0;
        for event in events {
            match event {
                Event::Step(time, observations) => {
                    now = now.saturating_add(time);
                    let observations: Vec<Observation> = observations
                        .into_iter()
                        .map(|(tenant, presence, has_doorbell, notified, unreadable, reports)|
                            Observation {
                            tenant: TenantId(tenant), presence, has_doorbell, notified, unreadable,
                            reports,
                        })
                        .collect();
                    let _ = gpu.interest(Nanos(now), true).count();
                    let plan = gpu.advance(Nanos(now), &observations);
                    prop_assert!(plan.orders.len() <= 6);
                    prop_assert!(plan.next_step > Nanos(now) || now == u64::MAX);
                    for order in plan.orders {
                        let before = gates.insert(order.tenant, order.gate.turn);
                        if before != Some(order.gate.turn) {
                            prop_assert!(order.bump);
                            epoch = epoch.max(order.gate.turn >> 8);
                        }
                    }
                    // Enough time for distinct epochs.
                    if now < u64::MAX / 1000 {
                        let holders = gates.values().filter(|turn| *turn & 0xff == 1).count();
                        let beside = gpu.policy() == Policy::Soft;
                        prop_assert!(holders <= 1 || beside, "{gates:?}");
                    }
                }
                Event::Admit(tenant, entitlement) => gpu.admit(Nanos(now), TenantId(tenant),
                    entitlement),
                Event::Dismiss(tenant) => {
                    gpu.dismiss(Nanos(now), TenantId(tenant));
                    gates.remove(&TenantId(tenant));
                }
                Event::Entitle(tenant, entitlement) => {
                    gpu.set_entitlement(Nanos(now), TenantId(tenant), entitlement);
                }
                Event::Policy(number, slots, conserving) => {
                    if let Some(policy) = Policy::numbered(number, slots, conserving) {
                        gpu.set_policy(Nanos(now), policy);
                    }
                }
                Event::Ratio(percent) => gpu.set_priority_ratio(percent),
                Event::Summon(tenant) => {
                    gpu.summon(tenant.map(TenantId));
                }
            }
        }
    }
}
