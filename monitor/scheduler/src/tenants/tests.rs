//! Observations of containers' reports.

use super::*;
use crate::fixture::{NOW, ms, observation, report, see, tenant, us};
use crate::report::TenantReport;
use crate::step::OPEN;

const TUNING: Tuning = Tuning::DEFAULT;

/// Makes a container whose process launched at [`NOW`] and was observed at once.
fn launched() -> Tenant {
    let mut tenant = tenant();
    see(&mut tenant, NOW, &[TenantReport { active: NOW.0, ..report(0) }]);
    tenant.gap = Nanos::ZERO;
    tenant
}

fn launch(tenant: &mut Tenant, at: Nanos) {
    see(tenant, at, &[TenantReport { active: at.0, ..report(0) }]);
}

/// Makes a container with processes in flight until these instants; zero: nothing in flight.
fn in_flight(ends: &[Nanos]) -> Tenant {
    let mut tenant = tenant();
    let report = |(slot, ends): (u8, &Nanos)| TenantReport {
        inflight: u64::from(*ends > Nanos::ZERO),
        ends: ends.0,
        ..report(slot)
    };
    see(&mut tenant, NOW, &(0..).zip(ends).map(report).collect::<Vec<_>>());
    tenant
}

#[test]
fn reports_of_all_processes_add_up() {
    let mut tenant = tenant();
    let report = |first: Nanos, second: Nanos| {
        [TenantReport { busy: first.0, ..report(0) }, TenantReport { busy: second.0, ..report(1) }]
    };
    see(&mut tenant, NOW, &report(ms(5000), ms(1000)));
    see(&mut tenant, NOW + ms(10), &report(ms(5002), ms(1003)));
    assert_eq!(tenant.account.reported, ms(5));
    assert_eq!(tenant.account.anomalies.invalid, 0);
    assert!(!tenant.is_distrusted(NOW + ms(10)));
}

#[test]
fn invalid_report_is_distrusted_for_a_second() {
    let mut tenant = tenant();
    see(&mut tenant, NOW, &[TenantReport { busy: 5, ..report(0) }]);
    see(&mut tenant, NOW, &[TenantReport { busy: 4, ..report(0) }]);
    assert_eq!(tenant.account.anomalies.invalid, 1);
    assert!(tenant.is_distrusted(NOW + ms(999)));
    assert!(!tenant.is_distrusted(NOW + ms(1000)));
}

#[test]
fn prediction_is_recent_while_work_in_flight_ends_later() {
    let mut tenant = tenant();
    let flight = |ends: Nanos| [TenantReport { inflight: 1, ends: ends.0, ..report(0) }];
    see(&mut tenant, NOW, &flight(NOW));
    assert_eq!(tenant.predicted_at, Nanos::ZERO);
    see(&mut tenant, NOW, &flight(NOW + ms(2)));
    assert_eq!(tenant.predicted_at, NOW);
    see(&mut tenant, NOW + ms(3), &flight(NOW + ms(2)));
    assert_eq!(tenant.predicted_at, NOW);
}

#[test]
fn waits_at_the_gate_are_counted_and_timed() {
    let mut tenant = tenant();
    for (at, waiting, returned, waits, waited) in
        [(0, 2, 0, 1, 0), (3, 1, 0, 1, 3), (5, 0, 0, 1, 5), (8, 1, 8, 2, 5), (9, 1, 8, 2, 6)]
    {
        see(&mut tenant, NOW + ms(at), &[report(1), TenantReport { waiting, ..report(0) }]);
        assert_eq!(tenant.waiting, waiting > 0);
        assert_eq!(tenant.returned, NOW + ms(returned), "at {at} ms");
        assert_eq!(
            (tenant.account.waits, tenant.account.waited),
            (waits, ms(waited)),
            "at {at} ms"
        );
    }
}

#[test]
fn notification_without_a_reason_is_counted_and_gives_no_turn() {
    let quiet = report(0);
    let launched = |ago| TenantReport { active: (NOW - ago).0, ..quiet };
    for (name, notified, open, report, invalid) in [
        ("silent", true, true, quiet, true),
        ("silent and quiet", false, true, quiet, false),
        ("without the GPU open", true, false, quiet, false),
        ("waiting", true, true, TenantReport { waiting: 1, ..quiet }, false),
        ("just launched", true, true, launched(us(100)), false),
        ("launched 20 ms ago", true, true, launched(ms(20)), false),
        ("launched 21 ms ago", true, true, launched(ms(21)), true),
        (
            "work in flight",
            true,
            true,
            TenantReport { inflight: 1, ends: NOW.0 + 1, ..quiet },
            false,
        ),
        ("work just ended", true, true, TenantReport { last: NOW.0, ..quiet }, false),
    ] {
        let mut tenant = tenant();
        let presence = Presence { created: true, open };
        tenant.see(NOW, &Observation { notified, presence, ..observation(&[report]) }, &TUNING);
        assert_eq!(tenant.account.anomalies.invalid, u64::from(invalid), "{name}");
        assert!(!tenant.is_distrusted(NOW), "{name}");
        assert_eq!(tenant.wants(NOW), tenant.waiting, "{name}");
    }
}

#[test]
fn region_that_cannot_be_read_is_an_invalid_report() {
    let mut tenant = tenant();
    tenant.see(NOW, &Observation { unreadable: true, ..observation(&[]) }, &TUNING);
    assert_eq!(tenant.account.anomalies.invalid, 1);
    assert!(tenant.is_distrusted(NOW) && tenant.wants(NOW));
}

#[test]
fn dormant_container_returns_when_any_field_of_any_process_changes() {
    let mut quiet: Vec<TenantReport> = (0..64).map(report).collect();
    let mut tenant = tenant();
    see(&mut tenant, NOW, &quiet);
    tenant.returned = Nanos::ZERO;
    for at in 0..quiet.len() {
        tenant.dormant = Some(tenant.fingerprint());
        let now = NOW + us(10 * at as u64);
        see(&mut tenant, now, &quiet);
        assert!(tenant.dormant.is_some(), "nothing changed before process {at}");
        quiet[at].turn = 0x101;
        see(&mut tenant, now + us(1), &quiet);
        assert_eq!((tenant.dormant, tenant.returned), (None, now + us(1)), "process {at}");
    }
}

#[test]
fn first_launch_after_20_ms_of_silence_ends_it_and_is_no_gap() {
    let mut tenant = launched();
    assert_eq!(tenant.awake, NOW);
    launch(&mut tenant, NOW + ms(20));
    assert_eq!((tenant.awake, tenant.gap), (NOW, ms(5)));
    launch(&mut tenant, NOW + ms(41));
    assert_eq!((tenant.awake, tenant.gap), (NOW + ms(41), ms(5)));
}

#[test]
fn gap_lasts_from_the_end_of_work_to_the_next_launch() {
    let mut tenant = launched();
    launch(&mut tenant, NOW + ms(4));
    // A quarter of the way to each gap.
    assert_eq!(tenant.gap, ms(1));
    let ends = (NOW + ms(6)).0;
    see(
        &mut tenant,
        NOW + ms(5),
        &[TenantReport { active: (NOW + ms(5)).0, inflight: 1, ends, ..report(0) }],
    );
    assert_eq!(tenant.gap, ms(1));
    launch(&mut tenant, NOW + ms(7));
    assert_eq!(tenant.gap, ms(1));
    // Nothing was launched meanwhile.
    see(&mut tenant, NOW + ms(9), &[TenantReport { active: (NOW + ms(7)).0, ..report(0) }]);
    assert_eq!(tenant.gap, ms(1));
}

#[test]
fn silence_shorter_than_20_us_is_no_gap() {
    let mut tenant = launched();
    launch(&mut tenant, NOW + us(20));
    assert_eq!(tenant.gap, us(5));
    launch(&mut tenant, NOW + us(39));
    assert_eq!(tenant.gap, Nanos(3_750));
}

#[test]
fn silence_that_the_monitor_has_caused_is_no_gap() {
    let mut held = launched();
    held.waiting = true;
    launch(&mut held, NOW + ms(4));
    assert_eq!(held.gap, Nanos::ZERO);
    // Its turn began after its last launch.
    for (state, gap) in [(YOURS, Nanos::ZERO), (OPEN, Nanos::ZERO), (WAIT, ms(1))] {
        let mut revoked = launched();
        (revoked.gate.turn, revoked.given) = (0x100 | state, NOW + ms(1));
        launch(&mut revoked, NOW + ms(4));
        assert_eq!(revoked.gap, gap, "state {state}");
    }
    let mut running = launched();
    (running.gate.turn, running.given) = (0x100 | YOURS, NOW);
    launch(&mut running, NOW + ms(4));
    assert_eq!(running.gap, ms(1));
}

/// `docs/internals/turns.md`, section 2.
#[test]
fn container_is_active_with_a_recent_launch_a_waiting_thread_or_work_in_flight() {
    assert!(!tenant().is_active(NOW, &TUNING));
    assert!(!tenant().is_active(ms(10), &TUNING), "nor on a host that has just booted");
    let tenant_with = |active, waiting, dormant, overrun, distrusted_until| Tenant {
        active,
        waiting,
        dormant,
        overrun,
        distrusted_until,
        ..tenant()
    };
    let zero = Nanos::ZERO;
    for (name, tenant, active) in [
        ("launch", tenant_with(NOW - ms(19), false, None, false, zero), true),
        ("old launch", tenant_with(NOW - ms(20), false, None, false, zero), false),
        ("waits", tenant_with(zero, true, None, false, zero), true),
        ("dormant", tenant_with(zero, true, Some(0), false, zero), false),
        ("overrun", tenant_with(zero, false, None, true, zero), true),
        ("distrusted", tenant_with(zero, false, None, false, NOW + ms(1)), true),
        ("in flight", in_flight(&[Nanos::ZERO, NOW + us(1)]), true),
        ("has just ended", in_flight(&[NOW]), false),
    ] {
        assert_eq!(tenant.is_active(NOW, &TUNING), active, "{name}");
    }
}

#[test]
fn distrusted_container_has_no_priority() {
    let mut tenant = tenant();
    assert!(!tenant.is_high(NOW));
    tenant.entitlement.high = true;
    assert!(tenant.is_high(NOW));
    tenant.distrusted_until = NOW + ms(1);
    assert!(!tenant.is_high(NOW));
    tenant.entitlement.high = false;
    assert!(!tenant.is_high(NOW));
}

#[test]
fn container_without_weight_is_barred() {
    let mut tenant = tenant();
    assert!(!tenant.is_barred());
    tenant.entitlement.weight = 0;
    assert!(tenant.is_barred());
}

#[test]
fn container_wants_the_gpu_while_it_waits_or_has_just_launched() {
    let mut tenant = tenant();
    assert!(!tenant.wants(NOW));
    tenant.presumed_until = NOW + us(1);
    assert!(tenant.wants(NOW));
    assert!(!tenant.wants(NOW + us(1)));
    tenant.waiting = true;
    assert!(tenant.wants(NOW + us(1)));
    tenant.dormant = Some(0);
    assert!(!tenant.wants(NOW), "it missed its turn");
    (tenant.dormant, tenant.overrun) = (None, true);
    assert!(!tenant.wants(NOW), "its work runs already");
    tenant.distrusted_until = NOW + ms(1);
    assert!(tenant.wants(NOW), "a distrusted container always has turns");
}

#[test]
fn work_in_flight_ends_as_late_as_it_has_before() {
    let mut tenant = in_flight(&[NOW + ms(3), Nanos::ZERO, NOW + ms(1)]);
    assert_eq!(tenant.latest_end(), NOW + ms(3));
    assert!(!tenant.is_drained());
    tenant.late = us(100);
    assert_eq!(tenant.remaining(NOW + ms(1)), us(2_100));
    let mut drained = in_flight(&[Nanos::ZERO; 2]);
    drained.late = us(100);
    assert!(drained.is_drained());
    assert_eq!(drained.remaining(Nanos::ZERO), Nanos::ZERO);
}

#[test]
fn process_whose_work_ends_last_is_requested_to_notify() {
    let tenant = in_flight(&[NOW + ms(1), NOW + ms(3), Nanos::ZERO]);
    assert_eq!(tenant.last_to_end(), Some(SlotIndex(1)));
    assert_eq!(in_flight(&[Nanos::ZERO; 2]).last_to_end(), None);
}

#[test]
fn turn_is_spent_by_the_processes_that_have_seen_it() {
    let mut tenant = tenant();
    let process = |slot, turn, spent: Nanos| TenantReport {
        turn,
        spent: spent.0,
        last: (NOW - ms(u64::from(slot))).0,
        ..report(slot)
    };
    let processes = [process(1, 0x101, ms(1)), process(2, 0x201, ms(2)), process(3, 0x101, ms(4))];
    see(&mut tenant, NOW, &processes);
    assert!(tenant.took(0x101) && tenant.took(0x201) && !tenant.took(0x301));
    assert_eq!((tenant.spent(0x101), tenant.spent(0x201)), (ms(5), ms(2)));
    assert_eq!(tenant.last(), NOW - ms(1));
}

/// `docs/internals/turns.md`, section 4, "Gaps".
#[test]
fn holder_may_be_silent_for_four_gaps_if_they_fit_its_slice() {
    let tolerance = |gap| Tenant { gap, quantum: ms(6), ..tenant() }.tolerance(&TUNING);
    assert_eq!(tolerance(us(100)), ms(1));
    assert_eq!(tolerance(us(1_500)), ms(6));
    assert_eq!(tolerance(us(1_501)), ms(1));
}

#[test]
fn displayed_gate_is_the_state_of_its_turn_word() {
    let shown = |turn| Tenant { gate: Gate::without_grant(turn), ..tenant() }.gate_state();
    assert_eq!(shown(0x100 | OPEN), TurnState::Open);
    assert_eq!(shown(0x1_0200 | YOURS), TurnState::Yours);
    assert_eq!(shown(0x300 | WAIT), TurnState::Wait);
}
