//! When a turn begins, closes, drains, continues and ends.

use super::*;
use crate::allowance::Allowance;
use crate::fixture::{NOW, busy, fill_allowance, fixed, give_turn, ms, report, see, tenant, us};
use crate::policy::{Policy, Presence};
use crate::report::TenantReport;
use crate::tuning::Tuning;

const FAIR: Policy = Policy::Preemptive;
const STRICT: Policy = Policy::Weighted { conserving: false };
const TUNING: Tuning = Tuning::DEFAULT;
const MS: i64 = 1_000_000;
const HOLDER: TenantId = TenantId(0);
const OTHER: TenantId = TenantId(1);

#[derive(Debug, PartialEq)]
enum Decided {
    Keep,
    Vacate,
    Close(Cause),
    Over(Nanos, Cause),
}

use Decided::{Close, Keep, Over, Vacate};

fn decide(gpu: &Gpu, now: Nanos) -> Decided {
    match gpu.decide(now, gpu.turn.as_ref().unwrap()) {
        Decision::Keep => Keep,
        Decision::Vacate => Vacate,
        Decision::Close(cause) => Close(cause),
        Decision::Over { boundary, cause } => Over(boundary, cause),
    }
}

/// Makes a report of the holder's process: it has seen the turn, launched at `active`, and has work
/// in flight until `ends`, if that is not zero.
fn says(gpu: &Gpu, active: Nanos, ends: Nanos) -> TenantReport {
    TenantReport {
        turn: gpu.turn.as_ref().unwrap().word,
        active: active.0,
        inflight: u64::from(ends > Nanos::ZERO),
        ends: ends.0,
        ..report(0)
    }
}

/// Makes two containers under this policy. The first has had the turn for 6 ms since [`NOW`], and
/// has seen it. The second waits.
fn taken(policy: Policy) -> Gpu {
    let mut gpu = busy(policy, &[1, 1]);
    give_turn(&mut gpu, 0, ms(6));
    let report = says(&gpu, NOW, Nanos::ZERO);
    see(&mut gpu.queue[0], NOW, &[report]);
    gpu
}

/// Makes the same with a launch of the holder at this time that takes so long.
fn running(policy: Policy, now: Nanos, remaining: Nanos) -> Gpu {
    let mut gpu = taken(policy);
    let report = says(&gpu, now, now + remaining);
    see(&mut gpu.queue[0], now, &[report]);
    gpu
}

/// Gives the holder high priority and its full allowance.
fn rank(gpu: &mut Gpu) {
    gpu.queue[0].entitlement.high = true;
    gpu.turn.as_mut().unwrap().high = true;
    fill_allowance(gpu);
}

fn closing(gpu: &mut Gpu, least: Nanos) {
    gpu.turn.as_mut().unwrap().phase =
        Phase::Closing { since: NOW, least, paid: least, cause: Cause::Spent };
}

fn others_idle(gpu: &mut Gpu) {
    gpu.queue[1].waiting = false;
}

#[test]
fn turn_of_a_container_without_a_process_is_over() {
    let now = NOW + us(300);
    let decided = |change: fn(&mut Gpu)| {
        let mut gpu = taken(FAIR);
        change(&mut gpu);
        decide(&gpu, now)
    };
    let over = Over(now, Cause::Gone);
    assert_eq!(decided(|gpu| gpu.queue[0].processes.clear()), over);
    assert_eq!(decided(|gpu| gpu.queue[0].presence = Presence::default()), over);
    assert_eq!(decided(|gpu| _ = gpu.queue.remove(0)), over);
}

#[test]
fn strict_or_distrusted_turn_ends_by_the_clock_alone() {
    for (policy, distrusted) in [(STRICT, false), (FAIR, true)] {
        for gone in [false, true] {
            let mut gpu = taken(policy);
            if distrusted {
                gpu.queue[0].distrusted_until = NOW + ms(100);
            }
            if gone {
                gpu.queue[0].processes.clear();
            }
            assert_eq!(decide(&gpu, NOW + ms(3)), Keep, "{policy:?}, gone {gone}");
        }
    }
    let mut gpu = taken(STRICT);
    rank(&mut gpu);
    assert_eq!(
        decide(&gpu, NOW + ms(3)),
        Over(NOW + ms(3), Cause::Silent),
        "high priority burns nothing"
    );
}

#[test]
fn closing_turn_is_over_a_lead_before_its_work_has_run() {
    let now = NOW + ms(7);
    for (remaining_us, decision) in [(61, Keep), (60, Over(now + us(60), Cause::Spent))] {
        let mut gpu = running(FAIR, now, us(remaining_us));
        closing(&mut gpu, NOW);
        assert_eq!(decide(&gpu, now), decision, "{remaining_us} us");
    }
}

#[test]
fn closing_turn_is_not_over_before_a_compliant_gate_has_drained() {
    let now = NOW + ms(7);
    let mut gpu = taken(FAIR);
    closing(&mut gpu, now + us(61));
    assert_eq!(decide(&gpu, now), Keep);
    closing(&mut gpu, now + us(60));
    assert_eq!(decide(&gpu, now), Over(now + us(60), Cause::Spent));
}

#[test]
fn drain_has_24_ms() {
    for (after, decision) in [(23_999, Keep), (24_000, Over(NOW + ms(24), Cause::Overrun))] {
        let now = NOW + us(after);
        let mut gpu = running(FAIR, now, ms(500));
        gpu.turn.as_mut().unwrap().end = NOW;
        closing(&mut gpu, NOW);
        assert_eq!(decide(&gpu, now), decision, "after {after} us");
    }
}

#[test]
fn vacant_turn_lasts_until_any_container_wants_the_gpu() {
    let (since, now) = (NOW, NOW + ms(9));
    let vacant = |change: fn(&mut Gpu)| {
        let mut gpu = taken(FAIR);
        others_idle(&mut gpu);
        gpu.turn.as_mut().unwrap().phase = Phase::Vacant { since };
        change(&mut gpu);
        decide(&gpu, now)
    };
    assert_eq!(vacant(|_| ()), Keep);
    assert_eq!(vacant(|gpu| gpu.queue[0].active = NOW + us(1)), Over(now, Cause::Resumed));
    assert_eq!(vacant(|gpu| gpu.queue[0].waiting = true), Over(now, Cause::Resumed));
    assert_eq!(vacant(|gpu| gpu.queue[1].waiting = true), Over(now, Cause::Silent));
}

#[test]
fn turn_is_exhausted_when_its_holder_waits_with_nothing_left() {
    let now = NOW + us(500);
    let exhausted = |change: &dyn Fn(&mut TenantReport)| {
        let mut gpu = taken(FAIR);
        let mut report = says(&gpu, now, Nanos::ZERO);
        report.waiting = 1;
        change(&mut report);
        see(&mut gpu.queue[0], now, &[report]);
        decide(&gpu, now)
    };
    assert_eq!(exhausted(&|_| ()), Close(Cause::Spent));
    assert_eq!(exhausted(&|report| report.waiting = 0), Keep);
    assert_eq!(exhausted(&|report| report.turn = 0), Keep, "it has not seen the turn");
    let spent = |report: &mut TenantReport, spent: Nanos| {
        (report.inflight, report.ends, report.spent) = (1, (now + ms(1)).0, spent.0);
    };
    assert_eq!(exhausted(&|report| spent(report, ms(6))), Close(Cause::Spent));
    assert_eq!(exhausted(&|report| spent(report, ms(6) - Nanos(1))), Keep);
}

#[test]
fn distrusted_container_cannot_end_its_turn_early() {
    let mut gpu = taken(FAIR);
    gpu.queue[0].waiting = true;
    assert_eq!(decide(&gpu, NOW + us(500)), Close(Cause::Spent));
    gpu.queue[0].distrusted_until = NOW + ms(100);
    assert_eq!(decide(&gpu, NOW + us(500)), Keep);
}

#[test]
fn exhausted_holder_does_not_count_as_silent() {
    let mut gpu = taken(FAIR);
    gpu.queue[0].waiting = true;
    assert_eq!(decide(&gpu, NOW + ms(2)), Close(Cause::Spent));
}

#[test]
fn silent_holder_loses_its_turn_after_the_tolerance() {
    let now = NOW + ms(1);
    let mut gpu = taken(FAIR);
    assert_eq!(decide(&gpu, now - Nanos(1)), Keep);
    assert_eq!(decide(&gpu, now), Over(now, Cause::Silent));
    others_idle(&mut gpu);
    assert_eq!(decide(&gpu, now), Vacate, "no other container wants it");
    let mut gpu = taken(FAIR);
    see(&mut gpu.queue[0], NOW, &[report(0)]);
    assert_eq!(decide(&gpu, now), Over(now, Cause::Missed), "it has not taken up its turn");
}

#[test]
fn silence_begins_with_the_end_of_work_or_the_last_turn_word() {
    let now = NOW + ms(3);
    let mut gpu = running(FAIR, NOW, us(2_500));
    assert_eq!(decide(&gpu, now), Keep);
    gpu.queue[0].processes.clear();
    see(&mut gpu.queue[0], NOW, &[TenantReport { turn: 0x101, ..report(0) }]);
    assert_eq!(decide(&gpu, now), Over(now, Cause::Silent));
    gpu.queue[0].given = NOW + us(2_500);
    assert_eq!(decide(&gpu, now), Keep);
}

#[test]
fn turn_closes_a_lead_before_its_end() {
    let at = NOW + us(5_940);
    assert_eq!(decide(&running(FAIR, at, us(500)), at), Close(Cause::Spent));
    assert_eq!(decide(&running(FAIR, at, us(500)), at - Nanos(1)), Keep);
}

#[test]
fn turn_of_high_priority_closes_when_its_allowance_is_used_up_and_others_want_the_gpu() {
    let now = NOW + us(500);
    let mut gpu = running(FAIR, now, us(500));
    assert_eq!(decide(&gpu, now), Keep, "an ordinary turn needs no allowance");
    rank(&mut gpu);
    assert_eq!(decide(&gpu, now), Keep);
    gpu.allowance = Allowance::new(80);
    assert_eq!(decide(&gpu, now), Close(Cause::Spent));
    others_idle(&mut gpu);
    assert_eq!(decide(&gpu, now), Keep);
}

#[test]
fn high_priority_takes_the_turn_however_short_it_was() {
    let now = NOW + us(100);
    let mut gpu = running(FAIR, now, us(500));
    gpu.queue[1].entitlement.high = true;
    fill_allowance(&mut gpu);
    assert_eq!(decide(&gpu, now), Close(Cause::Preempted));
}

/// Makes a GPU whose second container has credit, and is summoned or has come back at [`NOW`] + 200
/// us.
fn rival(policy: Policy, now: Nanos, summoned: bool) -> Gpu {
    let mut gpu = running(policy, now, us(500));
    gpu.queue[1].balance = 6 * MS;
    if summoned {
        gpu.summon(Some(OTHER));
    } else {
        (gpu.queue[1].returned, gpu.queue[1].silence) = (NOW + us(200), ms(1));
    }
    gpu
}

#[test]
fn summoned_or_returning_container_with_credit_takes_the_turn_after_1_ms() {
    let now = NOW + ms(1);
    for summoned in [true, false] {
        assert_eq!(decide(&rival(FAIR, now, summoned), now), Close(Cause::Preempted), "{summoned}");
        assert_eq!(decide(&rival(FAIR, now, summoned), now - Nanos(1)), Keep, "{summoned}");
        assert_eq!(decide(&rival(STRICT, now, summoned), now), Keep, "slots that burn: {summoned}");
        let mut high = rival(FAIR, now, summoned);
        rank(&mut high);
        assert_eq!(decide(&high, now), Keep, "high priority: {summoned}");
    }
    assert_eq!(decide(&running(FAIR, now, us(500)), now), Keep);
}

#[test]
fn next_turn_is_decided_early_only_where_the_holder_goes_on() {
    let lead = |change: fn(&mut Gpu), remaining| {
        let mut gpu = running(FAIR, NOW, remaining);
        others_idle(&mut gpu);
        change(&mut gpu);
        gpu.lead(NOW, &gpu.queue[0])
    };
    assert_eq!(lead(|_| (), us(500)), TUNING.extension_lead);
    assert_eq!(lead(|_| (), Nanos::ZERO), TUNING.wakeup_lead, "nothing is in flight");
    assert_eq!(lead(|gpu| gpu.queue[1].waiting = true, us(500)), TUNING.wakeup_lead);
    assert_eq!(
        lead(|gpu| gpu.queue[0].distrusted_until = NOW + ms(1), us(500)),
        TUNING.default_inflight
    );
}

#[test]
fn holder_goes_on_where_no_other_container_could_be_next() {
    let goes_on = |gpu: &Gpu| gpu.goes_on(NOW, &gpu.queue[0]);
    let mut gpu = taken(FAIR);
    assert!(!goes_on(&gpu));
    others_idle(&mut gpu);
    assert!(goes_on(&gpu));
    let mut gpu = fixed(&[50, 30]);
    give_turn(&mut gpu, 0, ms(6));
    others_idle(&mut gpu);
    assert!(!goes_on(&gpu), "its credit may run out");
    gpu.queue[1].waiting = true;
    rank(&mut gpu);
    assert!(goes_on(&gpu), "only an ordinary container waits");
    gpu.queue[1].entitlement.high = true;
    assert!(!goes_on(&gpu), "it has a rival");
    let mut gpu = taken(FAIR);
    gpu.queue[0].entitlement.high = true;
    assert!(!goes_on(&gpu), "without allowance it is an ordinary one");
}

#[test]
fn container_comes_back_with_a_wait_that_began_during_the_turn_and_credit() {
    let comes_back = |change: fn(&mut Gpu), at: usize| {
        let mut gpu = rival(FAIR, NOW, false);
        change(&mut gpu);
        gpu.comes_back(NOW, &gpu.queue[at], NOW)
    };
    assert!(comes_back(|_| (), 1));
    assert!(!comes_back(|gpu| gpu.queue[1].returned = NOW, 1), "it waited already");
    assert!(!comes_back(|gpu| gpu.queue[1].returned = NOW - us(1), 1), "it waited already");
    assert!(!comes_back(others_idle, 1));
    assert!(!comes_back(|gpu| gpu.queue[1].entitlement.high = true, 1));
    assert!(!comes_back(|gpu| gpu.queue[1].balance = MS, 1), "less than a quarter of its quantum");
    let holder = |gpu: &mut Gpu| {
        let holder = &mut gpu.queue[0];
        (holder.waiting, holder.returned, holder.balance) = (true, NOW + us(200), 6 * MS);
        holder.silence = ms(1);
    };
    assert!(!comes_back(holder, 0));
    let promised = |gpu: &mut Gpu| gpu.rule = Policy::Fixed { slots: 2 };
    assert!(!comes_back(promised, 1), "a fixed share needs a whole slice");
}

#[test]
fn turn_is_summoned_away_only_by_a_container_that_could_use_it() {
    let called = |change: fn(&mut Gpu)| {
        let mut gpu = rival(FAIR, NOW, true);
        change(&mut gpu);
        gpu.is_summoned_away(NOW, HOLDER)
    };
    assert!(called(|_| ()));
    assert!(!called(others_idle));
    assert!(!called(|gpu| gpu.queue[1].balance = MS));
    let itself = |gpu: &mut Gpu| {
        (gpu.queue[0].waiting, gpu.queue[0].balance) = (true, 6 * MS);
        gpu.summon(Some(HOLDER));
    };
    assert!(!called(itself));
    assert!(!called(|gpu| _ = gpu.summon(None)));
}

#[test]
fn high_priority_gives_the_gpu_up_after_1_ms_whatever_its_gaps() {
    let mut gpu = taken(FAIR);
    (gpu.queue[0].gap, gpu.queue[0].quantum) = (us(700), ms(6));
    let tolerance = |gpu: &Gpu| gpu.tolerance(NOW, gpu.turn.as_ref().unwrap(), &gpu.queue[0]);
    assert_eq!(tolerance(&gpu), us(2_800));
    rank(&mut gpu);
    assert_eq!(tolerance(&gpu), ms(1));
}

fn max_inflight(gpu: &Gpu) -> Nanos {
    gpu.max_inflight(NOW, gpu.turn.as_ref().unwrap())
}

#[test]
fn holder_has_more_in_flight_where_no_other_container_would_wait_for_it() {
    let max_inflight_after = |change: fn(&mut Gpu)| {
        let mut gpu = taken(FAIR);
        gpu.queue.push(Tenant { id: TenantId(2), active: NOW, ..tenant() });
        change(&mut gpu);
        max_inflight(&gpu)
    };
    assert_eq!(
        max_inflight_after(|_| ()),
        TUNING.uncontested_inflight,
        "the other one is in the queue"
    );
    assert_eq!(max_inflight_after(others_idle), Nanos::ZERO, "the other one may come back");
    let silent =
        |gpu: &mut Gpu| (gpu.queue[1].waiting, gpu.queue[1].active) = (false, NOW - ms(20));
    assert_eq!(max_inflight_after(silent), TUNING.uncontested_inflight);
    let back = |gpu: &mut Gpu| {
        (gpu.queue[1].returned, gpu.queue[1].silence, gpu.queue[1].balance) =
            (NOW + us(1), ms(1), 6 * MS);
    };
    assert_eq!(max_inflight_after(back), Nanos::ZERO, "the other one is about to take the turn");
    let member = |gpu: &mut Gpu| gpu.queue[2].presence.open = true;
    assert_eq!(max_inflight_after(member), Nanos::ZERO);
    assert_eq!(max_inflight_after(|gpu| _ = gpu.summon(Some(HOLDER))), Nanos::ZERO);
    assert_eq!(max_inflight_after(|gpu| gpu.queue[0].distrusted_until = NOW + ms(1)), Nanos::ZERO);
}

#[test]
fn ordinary_holder_has_less_in_flight_beside_high_priority() {
    let mut gpu = taken(FAIR);
    gpu.queue[1].entitlement.high = true;
    assert_eq!(max_inflight(&gpu), TUNING.priority_inflight);
}

#[test]
fn high_priority_has_more_in_flight_while_it_cannot_lose_its_turn() {
    let mut gpu = taken(FAIR);
    rank(&mut gpu);
    assert_eq!(max_inflight(&gpu), Nanos::ZERO, "it does not report when its work ends");
    gpu.queue[0].predicted_at = NOW;
    assert_eq!(max_inflight(&gpu), TUNING.uncontested_inflight);
    gpu.turn.as_mut().unwrap().high = false;
    assert_eq!(
        max_inflight(&gpu),
        Nanos::ZERO,
        "its turn was given to it as to any other container"
    );
}

fn close(gpu: &mut Gpu, now: Nanos, cause: Cause) -> Phase {
    gpu.begin_closing(now, cause);
    gpu.turn.as_ref().unwrap().phase
}

#[test]
fn work_in_flight_at_the_end_of_turns_is_learned() {
    let mut gpu = running(FAIR, NOW, ms(2));
    close(&mut gpu, NOW, Cause::Spent);
    assert_eq!((gpu.queue[0].tail, gpu.queue[1].tail), (us(500), Nanos::ZERO));
    gpu.queue[0].tail = ms(4);
    close(&mut gpu, NOW, Cause::Spent);
    assert_eq!(gpu.queue[0].tail, us(3_500));
}

#[test]
fn closing_turn_lasts_as_long_as_a_compliant_gate_may_have_work_in_flight() {
    for (max_inflight, least_us) in
        [(Nanos::ZERO, 1_500), (us(250), 1_250), (ms(2), 3_000), (ms(9), 6_000)]
    {
        let now = NOW + ms(1);
        let mut gpu = running(FAIR, now, us(400));
        gpu.queue[1].balance = 6 * MS;
        gpu.queue[0].gate.max_inflight = max_inflight;
        let cause = Cause::Silent;
        let least = NOW + us(least_us);
        assert_eq!(
            close(&mut gpu, now, cause),
            Phase::Closing { since: now, least, paid: least, cause }
        );
    }
}

/// A container that came back once waited for 250 us where 100 us were in flight.
#[test]
fn pre_empted_turn_ends_as_reported_and_is_charged_for_the_bound() {
    let closing = |distrusted_until| {
        let mut gpu = running(FAIR, NOW + ms(1), us(400));
        (gpu.queue[1].balance, gpu.queue[0].gate.max_inflight, gpu.queue[0].distrusted_until) =
            (6 * MS, us(250), distrusted_until);
        close(&mut gpu, NOW + ms(1), Cause::Preempted)
    };
    let (since, paid, cause) = (NOW + ms(1), NOW + us(1_250), Cause::Preempted);
    assert_eq!(closing(Nanos::ZERO), Phase::Closing { since, least: since, paid, cause });
    assert_eq!(
        closing(NOW + ms(2)),
        Phase::Closing { since, least: paid, paid, cause },
        "it has no turn word"
    );

    let mut gpu = busy(FAIR, &[1, 1]);
    give_turn(&mut gpu, 0, ms(6));
    let phase = Phase::Closing { since, least: since, paid, cause };
    let turn = Turn { phase, handed: false, ..gpu.turn.take().unwrap() };
    gpu.close(since, since + us(100), cause, turn);
    // What its report shows to have run until then is not charged twice.
    for (last, balance) in
        [(us(1_100), -1_250_000), (us(1_180), -1_250_000), (us(1_300), -1_300_000)]
    {
        let mut gpu = gpu.clone();
        let at = gpu.queue.iter().position(|tenant| tenant.closed.is_some()).unwrap();
        give_turn(&mut gpu, 1 - at, ms(6));
        gpu.turn.as_mut().unwrap().start = since + us(100);
        let ran = TenantReport { last: (NOW + last).0, busy: last.0, ..report(0) };
        see(&mut gpu.queue[at], since + ms(1), &[ran]);
        gpu.account_closed_turn(since + ms(1), at);
        assert_eq!(gpu.queue[at].balance, balance, "until {last}");
    }
}

#[test]
fn only_a_used_up_turn_is_followed_by_the_same_container() {
    let mut gpu = running(FAIR, NOW, Nanos::ZERO);
    others_idle(&mut gpu);
    gpu.queue[0].balance = 20 * MS;
    assert!(matches!(close(&mut gpu, NOW, Cause::Preempted), Phase::Closing { .. }));
    gpu.turn.as_mut().unwrap().phase = Phase::Running;
    assert_eq!(close(&mut gpu, NOW, Cause::Spent), Phase::Running);
    // The other container has credit, and the holder has used up its own.
    let mut gpu = running(FAIR, NOW + ms(6), Nanos::ZERO);
    (gpu.queue[0].balance, gpu.queue[1].balance) = (6 * MS, 6 * MS);
    assert!(matches!(close(&mut gpu, NOW + ms(6), Cause::Spent), Phase::Closing { .. }));
}

/// A holder got another grant at each poll, so 60 ms were in flight. The drain timed out, and the
/// neighbour had half of the GPU meanwhile.
#[test]
fn holder_that_goes_on_has_another_grant_when_its_work_has_nearly_run() {
    let now = NOW + ms(1);
    let mut gpu = running(FAIR, now, ms(9));
    (gpu.queue[0].balance, gpu.queue[1].balance) = (20 * MS, -20 * MS);
    let word = |gpu: &Gpu| gpu.turn.as_ref().unwrap().word;
    let (first, ends) = (word(&gpu), now + ms(9));
    assert_eq!(close(&mut gpu, now, Cause::Spent), Phase::Running);
    assert_eq!((word(&gpu), gpu.turn.as_ref().unwrap().end), (first, ends));
    gpu.queue[0].waiting = false;
    let nearly = ends - TUNING.extension_lead;
    assert_eq!(decide(&gpu, nearly - us(1)), Keep);
    assert_eq!(decide(&gpu, nearly), Close(Cause::Spent));
    assert_eq!(close(&mut gpu, nearly, Cause::Spent), Phase::Running);
    assert_ne!(word(&gpu), first);
}

#[test]
fn drain_is_timed_from_the_end_of_what_was_granted() {
    let mut gpu = running(FAIR, NOW + ms(1), ms(60));
    gpu.queue[1].balance = 6 * MS;
    close(&mut gpu, NOW + ms(1), Cause::Spent);
    let limit = NOW + ms(6) + TUNING.drain_timeout();
    assert_eq!(decide(&gpu, limit - us(1)), Keep);
    assert_eq!(decide(&gpu, limit), Over(limit, Cause::Overrun));
}

#[test]
fn turn_goes_on_with_what_is_left_of_the_balance() {
    // It has had 4 ms, of which 2 are charged, and 400 us are in flight. The other one's debt takes
    // four rounds.
    for (balance, rounds) in [(13, 0), (8, 0), (7, 1)] {
        let now = NOW + ms(4);
        let mut gpu = running(FAIR, now, TUNING.extension_lead);
        (gpu.queue[0].balance, gpu.queue[1].balance) = (balance * MS / 2, -20 * MS);
        gpu.turn.as_mut().unwrap().charged = ms(2);
        assert_eq!(close(&mut gpu, now, Cause::Spent), Phase::Running);
        assert_eq!(gpu.queue[1].balance, (6 * rounds - 20) * MS, "balance {balance} / 2 ms");
    }
}

#[test]
fn extended_turn_has_a_new_word_and_begins_where_its_work_ends() {
    let now = NOW + us(5_700);
    let mut gpu = running(FAIR, now, us(200));
    others_idle(&mut gpu);
    (gpu.queue[0].balance, gpu.queue[0].overlap) = (6 * MS, 2000);
    assert!(gpu.advance_turn(now));
    let turn = gpu.turn.clone().unwrap();
    assert_ne!(turn.word, 0x101);
    assert_eq!(turn.word & 0xff, YOURS);
    assert_eq!((turn.start, turn.charged), (NOW, us(5_900)));
    // 100 us are left of its balance, and another round begins.
    assert_eq!((turn.end, turn.granted), (NOW + us(5_900) + us(6_100), us(12_200)));
    assert!(!turn.high && turn.phase == Phase::Running);
    assert_eq!(gpu.queue[0].given, now);
    assert_eq!(gpu.turns(), 1);
    assert_eq!((gpu.queue[0].account.charged, gpu.charged), (us(5_900), us(5_900)));
}

#[test]
fn turn_goes_on_at_high_priority_once_its_holder_has_it() {
    let mut gpu = taken(FAIR);
    others_idle(&mut gpu);
    gpu.queue[0].entitlement.high = true;
    assert_eq!(close(&mut gpu, NOW + ms(1), Cause::Spent), Phase::Running);
    assert!(gpu.turn.as_ref().unwrap().high);
}

#[test]
fn turn_is_charged_as_it_goes_and_once() {
    let mut gpu = taken(FAIR);
    let turn = gpu.turn.take().unwrap();
    let turn = gpu.charge(NOW + ms(2), turn);
    let turn = gpu.charge(NOW + ms(5), turn);
    assert_eq!(turn.charged, ms(5));
    assert_eq!((gpu.queue[0].balance, gpu.queue[1].balance), (-5 * MS, 0));
    assert_eq!((gpu.queue[0].account.charged, gpu.charged), (ms(5), ms(5)));
    let high = Turn { high: true, ..turn };
    gpu.charge(NOW + ms(6), high);
    assert_eq!(gpu.queue[0].balance, -5 * MS, "high priority costs no balance");
    assert_eq!(gpu.charged, ms(6));
}

/// Ends the turn of the last of three containers after 6 ms.
fn end(cause: Cause, change: impl FnOnce(&mut Gpu)) -> Gpu {
    let mut gpu = busy(FAIR, &[1, 1, 1]);
    give_turn(&mut gpu, 2, ms(6));
    change(&mut gpu);
    let turn = gpu.turn.take().unwrap();
    gpu.close(NOW + ms(5), NOW + ms(6), cause, turn);
    gpu
}

fn ended(gpu: &Gpu) -> &Tenant {
    gpu.queue.iter().find(|tenant| tenant.id == TenantId(2)).unwrap()
}

#[test]
fn ended_turn_is_charged_less_a_switch_until_its_report_is_in() {
    let gpu = end(Cause::Spent, |_| ());
    let closed = ended(&gpu).closed.as_ref().unwrap();
    assert_eq!((closed.end, closed.charged, closed.by), (NOW + ms(6), us(5_900), NOW + ms(55)));
    let gpu = end(Cause::Spent, |gpu| gpu.turn.as_mut().unwrap().handed = false);
    assert_eq!(ended(&gpu).account.charged, ms(6), "there was no switch");
}

#[test]
fn vacant_time_is_not_charged() {
    let vacant = |gpu: &mut Gpu| {
        let turn = gpu.turn.as_mut().unwrap();
        turn.phase = Phase::Vacant { since: NOW + ms(2) };
        turn.charged = ms(2);
    };
    let gpu = end(Cause::Silent, vacant);
    let closed = ended(&gpu).closed.as_ref().unwrap();
    assert_eq!((closed.end, closed.charged), (NOW + ms(2), ms(2)));
    assert_eq!(ended(&gpu).account.charged, Nanos::ZERO);
}

#[test]
fn container_still_wants_the_gpu_after_its_turn_was_ended_by_others() {
    for (cause, presumed) in [
        (Cause::Spent, NOW + ms(6)),
        (Cause::Preempted, NOW + ms(6)),
        (Cause::Resumed, NOW + ms(6)),
        (Cause::Silent, Nanos::ZERO),
        (Cause::Gone, Nanos::ZERO),
    ] {
        assert_eq!(ended(&end(cause, |_| ())).presumed_until, presumed, "{cause:?}");
    }
}

#[test]
fn missed_and_overrun_turns_are_counted() {
    let missed = end(Cause::Missed, |_| ());
    assert!(ended(&missed).dormant.is_some());
    assert_eq!(
        (ended(&missed).account.anomalies.missed, ended(&missed).account.anomalies.overruns),
        (1, 0)
    );
    let overrun = end(Cause::Overrun, |_| ());
    assert!(ended(&overrun).overrun && ended(&overrun).dormant.is_none());
    assert_eq!(
        (ended(&overrun).account.anomalies.missed, ended(&overrun).account.anomalies.overruns),
        (0, 1)
    );
}

#[test]
fn container_that_uses_up_its_turns_is_steady_though_others_come_between() {
    for (cause, before, steady) in [
        (Cause::Spent, false, true),
        (Cause::Spent, true, true),
        (Cause::Preempted, true, true),
        (Cause::Preempted, false, false),
        (Cause::Silent, true, false),
    ] {
        let gpu = end(cause, |gpu| gpu.queue[2].steady = before);
        assert_eq!(ended(&gpu).steady, steady, "{cause:?} after {before}");
    }
}

#[test]
fn interrupted_container_is_next_after_the_one_that_came_back() {
    let order = |cause| {
        let back = |gpu: &mut Gpu| {
            (gpu.queue[1].returned, gpu.queue[1].silence, gpu.queue[1].balance) =
                (NOW + ms(1), ms(1), 6 * MS);
        };
        end(cause, back).queue.iter().map(|tenant| tenant.id.0).collect::<Vec<_>>()
    };
    assert_eq!(order(Cause::Preempted), [1, 2, 0]);
    assert_eq!(order(Cause::Spent), [0, 1, 2]);
}

#[test]
fn turn_after_another_container_has_room_for_the_switch() {
    for (from, handed, length_us) in
        [(Some(OTHER), true, 4_100), (None, true, 4_100), (Some(HOLDER), false, 4_000)]
    {
        let mut gpu = busy(FAIR, &[1, 1]);
        gpu.queue[0].balance = 4 * MS;
        gpu.begin(NOW, NOW + us(50), from);
        let turn = gpu.turn.as_ref().unwrap();
        assert_eq!((turn.holder, turn.handed, turn.granted), (HOLDER, handed, ms(4)));
        assert_eq!((turn.start, turn.end), (NOW + us(50), NOW + us(50 + length_us)));
        assert_eq!(gpu.turns(), 1);
        assert_eq!(
            (gpu.queue[1].id, gpu.queue[1].account.turns),
            (HOLDER, 1),
            "it is last in the queue"
        );
    }
}

#[test]
fn step_applies_its_decision() {
    let mut gpu = taken(FAIR);
    gpu.queue[1].balance = 6 * MS;
    assert!(!gpu.advance_turn(NOW + us(500)), "nothing changes");
    assert!(gpu.advance_turn(NOW + ms(1)), "the turn of the silent holder passes on");
    assert_eq!(gpu.holder(), Some(OTHER));
    let mut gpu = taken(FAIR);
    others_idle(&mut gpu);
    assert!(!gpu.advance_turn(NOW + ms(1)));
    assert_eq!(gpu.turn.as_ref().unwrap().phase, Phase::Vacant { since: NOW + ms(1) });
    assert_eq!(gpu.queue[0].account.charged, ms(1));
    gpu.turn = None;
    gpu.queue[1].waiting = true;
    assert!(!gpu.advance_turn(NOW + ms(2)));
    assert_eq!(gpu.holder(), Some(OTHER));
}
