//! Measurements of real GPUs, which the simulator must reproduce.

mod fixture;

use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::Command;
use cgpu_sim::{Kernel, Nanos};
use fixture::{Fixture, Habit, ratio};

const SECOND: Nanos = Nanos::from_millis(1_000);

fn assert_near(what: &str, value: f64, expected: f64, tolerance: f64) {
    assert!(
        (value - expected).abs() <= tolerance,
        "{what}: {value:.4}, expected {expected} +- {tolerance}"
    );
}

/// XSched (OSDI'25): two identical saturating processes get .45/.45 of a GV100.
#[test]
fn two_saturating_tenants_get_45_percent_each() {
    let mut fixture = Fixture::new(1, Figures::default());
    fixture.tenant(0, "spin_60us", Habit::Saturate);
    fixture.tenant(0, "spin_60us", Habit::Saturate);
    fixture.run_until(SECOND);
    for index in 0..2 {
        assert_near("share", fixture.share(index), 0.455, 0.005);
    }
}

/// The same paper: .48/.48 on a K40m, which a switch cost of about 40 us explains.
#[test]
fn two_saturating_tenants_with_cheap_switches_get_48_percent_each() {
    let mut fixture =
        Fixture::new(1, Figures { switch: Nanos::from_micros(40), ..Figures::default() });
    fixture.tenant(0, "spin_60us", Habit::Saturate);
    fixture.tenant(0, "spin_60us", Habit::Saturate);
    fixture.run_until(SECOND);
    for index in 0..2 {
        assert_near("share", fixture.share(index), 0.481, 0.005);
    }
}

#[test]
fn single_tenant_gets_the_whole_gpu() {
    let mut fixture = Fixture::new(1, Figures::default());
    fixture.tenant(0, "spin_20us", Habit::Saturate);
    fixture.run_until(SECOND);
    assert_near("share", fixture.share(0), 1.0, 0.001);
}

#[test]
fn shares_are_equal_for_any_kernel_length() {
    let mut fixture = Fixture::new(1, Figures::default());
    fixture.tenant(0, "spin_60us", Habit::Saturate);
    fixture.tenant(0, "spin_5ms", Habit::Saturate);
    fixture.tenant(0, "lognormal_200us_1.0", Habit::Saturate);
    fixture.run_until(SECOND);
    for index in 0..3 {
        assert_near("share", fixture.share(index), 1_024.0 / (3.0 * 1_124.0), 0.005);
    }
}

/// XSched's simple scheduler that waits for each launch loses 8 to 151 %, depending on the length
/// of kernels.
#[test]
fn waiting_for_every_launch_costs_8_to_150_percent() {
    let loss = |kernel: &str, micros: u64| {
        let mut fixture = Fixture::new(1, Figures::default());
        fixture.tenant(0, kernel, Habit::Synchronise);
        fixture.run_until(SECOND);
        let completed = fixture.completed(0);
        ratio(SECOND, Nanos::from_micros(micros * completed)) - 1.0
    };
    let losses = [
        loss("spin_6us", 6),
        loss("spin_20us", 20),
        loss("spin_60us", 60),
        loss("spin_113us", 113),
    ];
    assert_near("6 us", losses[0], 1.5, 0.15);
    assert_near("113 us", losses[3], 0.08, 0.01);
    assert!(losses.is_sorted_by(|longer, shorter| longer > shorter), "{losses:?}");
}

/// XSched, figure 11: more than 10 launches in flight cost below 1 %, few cost more.
#[test]
fn ten_launches_in_flight_cost_less_than_one_percent() {
    let rate = |habit| {
        let mut fixture = Fixture::new(1, Figures::default());
        fixture.tenant(0, "spin_20us", habit);
        fixture.run_until(SECOND);
        fixture.share(0)
    };
    let free = rate(Habit::Saturate);
    assert!(rate(Habit::Bound(10)) > 0.99 * free);
    assert!(rate(Habit::Bound(1)) < 0.8 * free);
}

/// A tenant that waits for each launch waits for its neighbour's slice and two switches every time.
#[test]
fn synchronising_tenant_starves_beside_saturating_one() {
    let mut fixture = Fixture::new(1, Figures::default());
    fixture.tenant(0, "spin_60us", Habit::Synchronise);
    fixture.tenant(0, "spin_60us", Habit::Saturate);
    fixture.run_until(SECOND);
    let cycle = 1_024.0 + 100.0 + 60.0 + 100.0;
    assert_near("share", fixture.share(0), 60.0 / cycle, 0.005);
    assert!(fixture.share(1) > 0.75);
}

#[test]
fn idle_context_loses_its_slice() {
    let mut fixture = Fixture::new(1, Figures::default());
    fixture.tenant(0, "spin_60us", Habit::Saturate);
    let timeline = &mut fixture.timeline();
    for process in 10..20 {
        timeline.attach(process, 1);
        timeline.create_context(process, 0).unwrap();
    }
    fixture.run_until(SECOND);
    assert_near("share", fixture.share(0), 1.0, 0.001);
}

#[test]
fn gpus_compute_concurrently() {
    let mut fixture = Fixture::new(3, Figures::default());
    for gpu in [0, 1, 2, 2] {
        fixture.tenant(gpu, "spin_60us", Habit::Saturate);
    }
    fixture.run_until(SECOND);
    assert_near("first GPU", fixture.share(0), 1.0, 0.001);
    assert_near("second GPU", fixture.share(1), 1.0, 0.001);
    assert_near("third GPU", fixture.share(2) + fixture.share(3), 0.91, 0.01);
}

/// The largest supported load: 25 tenants of 8 streams with 1000 kernels queued in each.
#[test]
fn many_tenants_get_equal_shares() {
    let mut fixture = Fixture::new(1, Figures::default());
    for process in 0..25 {
        let mut timeline = fixture.timeline();
        timeline.attach(process, 1);
        let context = timeline.create_context(process, 0).unwrap();
        for _ in 0..8 {
            let stream = timeline.create_stream(context, false).unwrap();
            for _ in 0..1_000 {
                timeline.launch(stream, Kernel::named("spin_10us"), Nanos::ZERO).unwrap();
            }
        }
    }
    let cycle = Nanos(25 * 1_124_000);
    fixture.run_until(Nanos(40 * cycle.0));
    for each in fixture.timeline().processes(0) {
        assert_near("share", ratio(each.busy, Nanos(40 * cycle.0)), 1_024.0 / 28_100.0, 0.001);
    }
    // The work, and the switches between slices, including the first.
    fixture.run_until(Nanos(25 * 8 * 10_000_000 + 25 * 80 * 100_000));
    assert_eq!(fixture.timeline().engine_time(0).busy, Nanos(25 * 8 * 10_000_000));
}

#[test]
fn same_seed_gives_same_history() {
    let history = |seed| {
        let mut fixture = Fixture::new(2, Figures { seed, ..Figures::default() });
        fixture.tenant(0, "lognormal_60us_0.8", Habit::Saturate);
        fixture.tenant(0, "lognormal_300us_0.5", Habit::Bound(3));
        fixture.tenant(1, "lognormal_100us_0.3", Habit::Synchronise);
        fixture.run_until(SECOND);
        (0..3).map(|index| (fixture.completed(index), fixture.share(index))).collect::<Vec<_>>()
    };
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
}

/// A limiter that measures with events on the NULL stream does this: every record waits for all
/// blocking streams, and they wait for it.
#[test]
fn events_on_the_null_stream_serialise_streams() {
    let span = Nanos::from_micros(100);
    let rounds = 50;
    // One stream copies while the other computes.
    let end = |with_events: bool| {
        let figures =
            Figures { launch_latency: Nanos::ZERO, switch: Nanos::ZERO, ..Figures::default() };
        let mut fixture = Fixture::new(1, figures);
        let mut timeline = fixture.timeline();
        timeline.attach(0, 1);
        let context = timeline.create_context(0, 0).unwrap();
        let [copies, computes] = [(); 2].map(|()| timeline.create_stream(context, true).unwrap());
        let (legacy, event) =
            (timeline.legacy_stream(context), timeline.create_event(context, true).unwrap());
        let mut tails = Vec::new();
        for _ in 0..rounds {
            let copy = Command::Copy { up: true, cost: span };
            tails.push(timeline.enqueue(copies, copy, 0, Nanos::ZERO).unwrap());
            if with_events {
                timeline.enqueue(legacy, Command::Mark(event), 0, Nanos::ZERO).unwrap();
            }
            tails.push(timeline.launch(computes, Kernel::Spin(Some(span)), Nanos::ZERO).unwrap());
            if with_events {
                timeline.enqueue(legacy, Command::Mark(event), 0, Nanos::ZERO).unwrap();
            }
        }
        timeline.advance(SECOND);
        let seen = tails.into_iter().map(|tail| timeline.visible_at(tail).unwrap()).max().unwrap();
        seen - figures.visibility
    };
    let (beside, serial) = (end(false), end(true));
    assert_eq!(beside, Nanos(rounds * span.0));
    assert!(serial >= Nanos(2 * beside.0), "{beside} and {serial}");
}

/// NVML reports the last whole window, in integers.
#[test]
fn utilisation_is_that_of_the_last_whole_window() {
    let figures = Figures::default();
    let mut fixture = Fixture::new(1, figures);
    fixture.tenant(0, "spin_60us", Habit::Saturate);
    let window = figures.window;
    fixture.run_until(Nanos(window.0 - 1));
    assert_eq!(fixture.timeline().utilisation(0, Nanos(window.0 - 1)), 0, "no window is whole yet");
    fixture.run_until(Nanos(3 * window.0));
    assert!(fixture.timeline().utilisation(0, Nanos(3 * window.0)) >= 99);
    fixture.tenant(0, "spin_60us", Habit::Saturate);
    fixture.run_until(Nanos(10 * window.0));
    let samples = fixture.timeline().process_samples(0, Nanos(9 * window.0), Nanos(10 * window.0));
    assert_eq!(samples.iter().map(|sample| sample.percent).collect::<Vec<_>>(), [45, 45]);
    assert!(samples.iter().all(|sample| sample.at == Nanos(10 * window.0)));
}
