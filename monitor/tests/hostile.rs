//! Whatever containers write and whenever it is read, the controller neither panics nor gives a card to two at once, and its
//! answers stay bounded.

use std::collections::HashMap;

use cgpu_monitor::controller::Card;
use cgpu_monitor::controller::policy::{Policy, Standing};
use cgpu_monitor::controller::tenants::{Sight, TenantId};
use cgpu_monitor::controller::tuning::Tuning;
use cgpu_monitor::controller::words::Words;
use cgpu_proto::units::{Nanos, SlotIndex};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    /// Time passes, in ns; then these are seen.
    Step(u64, Vec<(u64, Standing, bool, bool, bool, Vec<Words>)>),
    Admit(u64, u32),
    Dismiss(u64),
    Weigh(u64, u32),
    Policy(u32, bool),
}

/// Numbers as liars choose them: anything, the edges, and what looks right.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), Just(0), Just(u64::MAX), 0..100_000_000_000_u64, 0..3_u64]
}

fn words() -> impl Strategy<Value = Words> {
    (
        any::<u8>(),
        0..3_u64,
        [number(), number(), number(), number()],
        [number(), number(), number(), number()],
    )
        .prop_map(|(slot, generation, [turn, waiting, active, busy], [inflight, ends, spent, last])| {
            Words {
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
        })
}

fn event() -> impl Strategy<Value = Event> {
    let standing = (any::<bool>(), any::<bool>()).prop_map(|(created, open)| Standing { created, open });
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.1));
    let sight = (0..6_u64, standing, flags, prop::collection::vec(words(), 0..4)).prop_map(
        |(tenant, standing, (bell, rang, garbled), words)| (tenant, standing, bell, rang, garbled, words),
    );
    let time =
        prop_oneof![0..10_000_000_u64, 0..100_000_u64, Just(0), Just(u64::MAX / 4), Just(3_600_000_000_000)];
    prop_oneof![
        8 => (time, prop::collection::vec(sight, 0..6)).prop_map(|(time, sights)| Event::Step(time, sights)),
        1 => (0..6_u64, any::<u32>()).prop_map(|(tenant, weight)| Event::Admit(tenant, weight)),
        1 => (0..6_u64).prop_map(Event::Dismiss),
        1 => (0..6_u64, any::<u32>()).prop_map(|(tenant, weight)| Event::Weigh(tenant, weight)),
        1 => (0..6_u32, any::<bool>()).prop_map(|(number, conserving)| Event::Policy(number, conserving)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_written_breaks_the_controller(events in prop::collection::vec(event(), 1..100)) {
        let mut card = Card::new(Tuning::DEFAULT, Policy::Preemptive);
        let mut gates: HashMap<TenantId, u64> = HashMap::new();
        let mut now = 1_000_000_000_u64;
        let mut epoch = 0;
        for event in events {
            match event {
                Event::Step(time, sights) => {
                    now = now.saturating_add(time);
                    let sights: Vec<Sight> = sights
                        .into_iter()
                        .map(|(tenant, standing, bell, rang, garbled, words)| Sight {
                            tenant: TenantId(tenant), standing, bell, rang, garbled, words,
                        })
                        .collect();
                    let _ = card.interest(Nanos(now), true).count();
                    let plan = card.advance(Nanos(now), &sights);
                    prop_assert!(plan.orders.len() <= 6);
                    prop_assert!(plan.look > Nanos(now) || now == u64::MAX);
                    for order in plan.orders {
                        let before = gates.insert(order.tenant, order.gate.turn);
                        if before != Some(order.gate.turn) {
                            prop_assert!(order.bump);
                            epoch = epoch.max(order.gate.turn >> 8);
                        }
                    }
                    // Time enough for epochs to be told apart.
                    if now < u64::MAX / 1000 {
                        let holders = gates.values().filter(|turn| *turn & 0xff == 1).count();
                        prop_assert!(holders <= 1, "{gates:?}");
                    }
                }
                Event::Admit(tenant, weight) => card.admit(Nanos(now), TenantId(tenant), weight),
                Event::Dismiss(tenant) => {
                    card.dismiss(Nanos(now), TenantId(tenant));
                    gates.remove(&TenantId(tenant));
                }
                Event::Weigh(tenant, weight) => card.set_weight(Nanos(now), TenantId(tenant), weight),
                Event::Policy(number, conserving) => {
                    if let Some(policy) = Policy::numbered(number, conserving) {
                        card.set_policy(Nanos(now), policy);
                    }
                }
            }
        }
    }
}
