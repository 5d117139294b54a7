//! A GPU whose oscillator is off, observed through a program that keeps it busy in turns.

use super::*;

const CONTEXT: ContextKey = ContextKey(1);
const US: i64 = 1_000;
const MS: i64 = 1_000 * US;
const SECOND: i64 = 1_000 * MS;

struct Harness {
    clock: GpuClock,
    now: i64,
    /// The GPU's clock: parts per billion, since when, and its value then.
    rate: i64,
    since: i64,
    shown: i64,
    base: Option<i64>,
    events: usize,
    random_state: u64,
    reanchored: u32,
    /// Error of the last placed event, and the extremes of all since the last reset.
    off: i64,
    worst: (i64, i64),
}

impl Harness {
    fn new(ppm: f64) -> Self {
        #[allow(clippy::cast_possible_truncation)]
        let rate = (ppm * 1_000.0) as i64;
        Self {
            clock: GpuClock::default(),
            now: 1_000 * SECOND,
            rate,
            since: 0,
            shown: 0,
            base: None,
            events: 0,
            random_state: 1,
            reanchored: 0,
            off: 0,
            worst: (0, 0),
        }
    }

    fn random(&mut self, most: i64) -> i64 {
        self.random_state = self
            .random_state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(self.random_state >> 33).unwrap() % most
    }

    fn gpu(&self, at: i64) -> i64 {
        let passed = at - self.since;
        self.shown + passed + over(passed, self.rate)
    }

    fn set(&mut self, rate: i64, step: i64) {
        (self.shown, self.since) = (self.gpu(self.now) + step, self.now);
        self.rate = rate;
    }

    /// Observes an event that happened at `at`, launched at most `ahead` before it, now.
    fn observe(&mut self, at: i64, ahead: i64) -> Located {
        let gpu = self.gpu(at) / 500 * 500;
        self.events += 1;
        // As the driver gives it.
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
        let elapsed =
            self.base.map(|base| (f64::from(((gpu - base) as f64 * 1e-6) as f32) * 1e6) as i64);
        let (least, seen) = (unsigned(at - ahead), unsigned(self.now));
        let limits = Limits { least, likely: least, seen };
        let placed = self.clock.place(CONTEXT, Event(self.events), elapsed, limits);
        if self.clock.base(CONTEXT) == Some(Event(self.events)) {
            self.base = Some(gpu);
        }
        self.reanchored += u32::from(placed.reanchored);
        self.off = signed(placed.at) - at;
        self.worst = (self.worst.0.min(self.off), self.worst.1.max(self.off));
        placed
    }

    /// Launches batches for a while, in turns of 15 ms of 60. Each is seen as late as a sleeping
    /// thread wakes.
    fn saturate(&mut self, time: i64) {
        let end = self.now + time;
        self.worst = (0, 0);
        while self.now < end {
            for _ in 0..25 {
                self.now += 600 * US;
                // It was polled 300 us before.
                let late = 3 * US + self.random(300 * US);
                self.observe(self.now - late, 323 * US - late);
            }
            self.now += 45 * MS;
        }
    }
}

#[test]
fn events_of_a_busy_gpu_are_placed_within_microseconds() {
    for ppm in
        [0.0, 2.0, -2.0, 15.0, -15.0, 50.0, -50.0, 100.0, -100.0, 200.0, -200.0, 450.0, -450.0]
    {
        let mut harness = Harness::new(ppm);
        // The first event is bounded by one poll before and one after it.
        harness.saturate(SECOND);
        assert!(
            harness.worst.0 > -323 * US && harness.worst.1 < 60 * US,
            "{ppm} ppm: {:?}",
            harness.worst
        );
        harness.saturate(10 * SECOND);
        let early = harness.worst;
        harness.saturate(300 * SECOND);
        println!(
            "{ppm} ppm: at first {early:?}, later {:?} ns, {:?}",
            harness.worst, harness.clock.rate
        );
        for worst in [early, harness.worst] {
            assert!(worst.0 > -100 * US && worst.1 < 100 * US, "{ppm} ppm: {worst:?}");
        }
        #[allow(clippy::cast_precision_loss)]
        let known = -(harness.clock.rate.0 as f64) / 1_000.0;
        assert!((known - ppm).abs() < 5.0, "{ppm} ppm taken for {known}");
        assert_eq!(harness.reanchored, 0, "{ppm} ppm");
    }
}

#[test]
fn idle_hour_costs_one_reanchoring() {
    for ppm in [2.0, -2.0, 100.0, -100.0] {
        let mut harness = Harness::new(ppm);
        harness.saturate(30 * SECOND);
        for hour in 1..4 {
            harness.now += 3_600 * SECOND;
            // The first batch after a pause begins at once, on an idle GPU.
            let at = harness.now;
            harness.now += 50 * US;
            harness.observe(at, 6 * US);
            assert!((-6 * US..=50 * US).contains(&harness.off), "{ppm} ppm: {}", harness.off);
            assert_eq!(harness.reanchored, hour);
            harness.saturate(SECOND);
            assert!(harness.worst.0 > -200 * US, "{ppm} ppm: {:?}", harness.worst);
        }
    }
}

#[test]
fn changing_clock_rate_is_followed() {
    let mut harness = Harness::new(-100.0);
    harness.saturate(SECOND);
    for step in 0..40 {
        let rate = harness.random(400_000) - 200_000;
        harness.set(rate, 0);
        let time = (5 + harness.random(30)) * SECOND;
        harness.saturate(time);
        println!("{step}: {rate} ppb, {:?} ns", harness.worst);
        assert!(
            harness.worst.0 > -100 * US && harness.worst.1 < 100 * US,
            "{rate} ppb: {:?} ns",
            harness.worst
        );
    }
    assert_eq!(harness.reanchored, 0);
}

#[test]
fn clock_that_was_set_is_reanchored() {
    for step in [20 * MS, -20 * MS, 3_600 * SECOND, -3_600 * SECOND] {
        let mut harness = Harness::new(30.0);
        harness.saturate(30 * SECOND);
        harness.set(30_000, step);
        harness.saturate(30 * SECOND);
        assert!(harness.reanchored > 0, "{step}");
        harness.saturate(20 * SECOND);
        assert!(
            harness.worst.0 > -200 * US && harness.worst.1 < 400 * US,
            "{step}: {:?}",
            harness.worst
        );
    }
}

#[test]
fn late_observations_do_not_move_the_offset() {
    // For any rate, known or not.
    for (ppm, known) in
        [(20.0, true), (-20.0, true), (20.0, false), (-100.0, false), (100.0, false)]
    {
        let mut harness = Harness::new(ppm);
        if known {
            harness.saturate(30 * SECOND);
        }
        // A launch every 5 ms, which is seen when the next one comes.
        for _ in 0..40_000 {
            let at = harness.now + 106 * US;
            harness.now += 5 * MS;
            harness.observe(at, 6 * US);
            assert!(harness.off.abs() < 100 * US, "{ppm} ppm: {}", harness.off);
        }
    }
}

#[test]
fn events_are_placed_between_launch_and_observation() {
    let mut harness = Harness::new(-50.0);
    for _ in 0..20_000 {
        let (ahead, late, pause) =
            (harness.random(2 * MS), harness.random(5 * MS), harness.random(30 * MS));
        harness.now += pause + late;
        let at = harness.now - late;
        let placed = harness.observe(at, ahead);
        assert!(placed.at >= unsigned(at - ahead) && placed.at <= unsigned(harness.now));
    }
}

#[test]
fn timestamps_are_comparable_within_one_epoch() {
    let mut harness = Harness::new(100.0);
    let first = harness.observe(harness.now - 10 * US, MS).stamp.unwrap();
    harness.now += 3 * SECOND;
    let second = harness.observe(harness.now - 10 * US, MS).stamp.unwrap();
    harness.now += MS;
    let third = harness.observe(harness.now - 10 * US, MS).stamp.unwrap();
    let near = |measured: Option<i64>, length: i64| {
        measured.is_some_and(|measured| (measured - length).abs() < 2 * US)
    };
    assert!(near(second.since(first), 3 * SECOND + 300 * US), "over a change of the base, too");
    assert!(near(third.since(second), MS) && near(first.since(third), -3 * SECOND - MS - 300 * US));
    harness.now += 10 * SECOND;
    let later = harness.observe(harness.now - 10 * US, MS);
    assert!(later.reanchored && later.stamp.unwrap().since(third).is_none());
    harness.clock.forget(CONTEXT);
    assert_eq!((harness.clock.base(CONTEXT), harness.clock.stamp(CONTEXT, 0)), (None, None));
}
