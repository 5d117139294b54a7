//! Readings that are recorded in any order.

use proptest::prelude::*;

use super::*;
use crate::pools::table::{PoolTable, Ticket};

/// A call in progress, as the table sees it.
#[derive(Clone, Copy, Debug)]
struct Call {
    reservation: Reservation,
    grows: Bytes,
    /// Its reading, after the driver has returned.
    reading: Option<(Ticket, Option<Bytes>)>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the order of calls and readings, at least what the driver holds is charged, as long
    /// as no pool grows by more than its pre-charge; and exactly that when no call is in progress.
    #[test]
    fn readings_in_any_order_lose_no_growth(
        steps in prop::collection::vec((0..7_u8, 0..64_usize, 0..33_u64), 1..200),
    ) {
        let driver = Fake::leaked();
        let pools = PoolTable::new();
        pools.enter(FIRST, Some(gpu()), driver, true).expect("memory");
        let Lookup::Charged(at) = pools.find(FIRST) else { panic!("it is charged") };
        let (mut truth, mut ledger) = (Bytes::ZERO, Bytes::ZERO);
        let mut calls: Vec<Call> = Vec::new();
        let mut readings: Vec<(Ticket, Option<Bytes>)> = Vec::new();
        let read = |pending: &mut (Ticket, Option<Bytes>), truth| _ = pending.1.get_or_insert(truth);
        let apply = |ledger: &mut Bytes, balance: Balance| {
            // A reading that is older than its ticket charges too much until the next one.
            let added = pools.add(at, balance.shortfall, false);
            *ledger = *ledger - balance.surplus + balance.shortfall - added.surplus;
            assert_eq!(added.shortfall, Bytes::ZERO);
        };
        for (step, which, amount) in steps {
            let some = which % calls.len().max(1);
            match step {
                0 => {
                    let reservation = Reservation::charged(mib(32), mib(1));
                    ledger = ledger + reservation.charged;
                    prop_assert!(pools.start(at, reservation));
                    calls.push(Call { reservation, grows: mib(amount), reading: None });
                }
                1 => {
                    if let Some(call) = calls.get_mut(some) {
                        truth = truth + std::mem::take(&mut call.grows);
                    }
                }
                2 => {
                    if let Some(call) = calls.get_mut(some)
                        && call.reading.is_none()
                    {
                        truth = truth + std::mem::take(&mut call.grows);
                        call.reading = pools.begin_reading(at).map(|ticket| (ticket, None));
                    }
                }
                3 => {
                    for call in &mut calls {
                        if let Some(pending) = &mut call.reading
                            && which % 2 == 0
                        {
                            read(pending, truth);
                        }
                    }
                }
                4 => {
                    if calls
                        .get(some)
                        .is_some_and(|call| call.reading.is_some_and(|pending| pending.1.is_some()))
                    {
                        let call = calls.swap_remove(some);
                        let (ticket, reading) = call.reading.expect("it has returned");
                        apply(
                            &mut ledger,
                            pools.record_reading(at, ticket, reading, Some(call.reservation)),
                        );
                    }
                }
                // Other threads read, and may record it late.
                5 => match readings.pop() {
                    Some(mut pending) => {
                        read(&mut pending, truth);
                        apply(&mut ledger, pools.record_reading(at, pending.0, pending.1, None));
                    }
                    None => readings.extend(
                        pools
                            .begin_reading(at)
                            .map(|ticket| (ticket, (which % 2 == 0).then_some(truth))),
                    ),
                },
                _ => truth = truth - mib(amount),
            }
            prop_assert!(ledger >= truth, "{} charged, {} held", ledger, truth);
        }
        for mut call in calls {
            truth = truth + call.grows;
            let mut pending = call
                .reading
                .take()
                .unwrap_or_else(|| (pools.begin_reading(at).expect("it is there"), None));
            read(&mut pending, truth);
            apply(&mut ledger, pools.record_reading(at, pending.0, pending.1, Some(call.reservation)));
        }
        let last = pools.begin_reading(at).expect("it is there");
        apply(&mut ledger, pools.record_reading(at, last, Some(truth), None));
        prop_assert_eq!(ledger, truth);
        prop_assert_eq!(pools.sums(), (truth, Bytes::ZERO));
    }
}
