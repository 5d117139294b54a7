use super::runs::{Completed, Ran};
use super::*;
use crate::emulation::Observed;

#[test]
fn profiles_are_distinct_with_the_default_first() {
    let all = Profile::all();
    assert_eq!((all.len(), all[0]), (12, Profile::USUAL));
    assert!(all.iter().enumerate().all(|(number, profile)| !all[..number].contains(profile)));
}

#[test]
fn whole_cycles_of_each_thread_count_between_its_ends() {
    let ended = |thread, micros| Completed { thread, begun: us(micros - 50), ended: us(micros) };
    let completed = vec![ended(0, 100), ended(1, 150), ended(0, 200), ended(0, 300), ended(1, 650)];
    let ran = Ran { completed, own: Observed::default(), other: Observed::default() };
    // Two in 200 us, and one in 500 us.
    assert!((ran.cycles() - 12_000.0).abs() < 1e-6, "{}", ran.cycles());
    assert!((ran.latency()[0] - 50e-6).abs() < 1e-12);
}

/// Two programs that saturate the GPU: with native slicing their progress shows the cost of
/// switches.
#[test]
fn progress_is_over_what_each_completes_alone() {
    let pattern = Pattern::new("", |program| batch(program, LONG, 20));
    let alone = Alone::measure(&pattern, 1e6 / 60.0).unwrap();
    assert!(alone.duty() > 0.98 && alone.fair() < 0.51, "{}", alone.duty());
    let row = Row::measure(&alone, &Profile::USUAL, &SHARINGS[1..]).unwrap();
    let [own, other] = alone.progress(row.under(None));
    assert!((0.43..0.48).contains(&own) && (0.43..0.48).contains(&other), "{own} and {other}");
    assert!(row.sum_ratio() > 1.03 && row.own_ratio() > 1.03, "{}", row.line());
    assert!((0.97..1.001).contains(&row.bound_ratio()), "{}", row.line());
}

/// Requires a property of a pattern beside its neighbour, under policy 1 and native slicing.
fn check(name: &str, profile: &Profile, is_right: impl Fn(&Row<'_>) -> bool) {
    let pattern = PATTERNS.iter().find(|pattern| pattern.name == name).unwrap();
    let alone = Alone::measure(pattern, 1e6 / 60.4).unwrap();
    let row = Row::measure(&alone, profile, &SHARINGS[1..]).unwrap();
    assert!(is_right(&row), "{} {}", profile.describe(), row.line());
}

/// Regression: a request took 2.25 times as long as alone, and the neighbour did less than with
/// native slicing.
#[test]
fn request_gets_its_own_turn_at_once() {
    let in_one_piece = |row: &Row<'_>| {
        let [ours, _] = row.both();
        let slower = ours.latency()[1] / row.alone.ran.latency()[1];
        slower < 1.2 && row.sum_ratio() > 1.05 && row.bound_ratio() > 0.97
    };
    check(REQUESTS, &Profile::USUAL, in_one_piece);
    check(REQUESTS, &Profile { slice: us(2_048), switch: us(180), ..Profile::USUAL }, in_one_piece);
}

/// Regression: it did 0.73 of its work alone, as with native slices shorter than its batches.
#[test]
fn loader_gets_its_own_turn_for_each_batch() {
    check("loader", &Profile::USUAL, |row| row.own_ratio() > 0.88 && row.sum_ratio() > 1.04);
}

/// Regression: gaps of the host were measured as longer kernels, so the program seemed to fill its
/// turns.
#[test]
fn host_bound_program_shares_turns_whatever_the_slices() {
    for (slice, switch) in [(1_024, 180), (2_048, 100)] {
        let profile = Profile { slice: us(slice), switch: us(switch), idle: us(20) };
        check("eager", &profile, |row| row.sum_ratio() > 0.97 && row.own_ratio() > 0.97);
    }
}
