//! A GPU whose oscillator is off, observed through a program that keeps it busy in turns.

use super::*;

const CONTEXT: ContextKey = ContextKey(1);
const US: i64 = 1_000;
const MS: i64 = 1_000 * US;
const SECOND: i64 = 1_000 * MS;

struct Bench {
    clock: GpuClock,
    now: i64,
    /// The GPU's clock: parts per billion, since when, and its value then.
    rate: i64,
    since: i64,
    shown: i64,
    base: Option<i64>,
    events: usize,
    draws: u64,
    reanchored: u32,
    /// Error of the last placed event, and the extremes of all since the last reset.
    off: i64,
    worst: (i64, i64),
}

impl Bench {
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
            draws: 1,
            reanchored: 0,
            off: 0,
            worst: (0, 0),
        }
    }

    fn draw(&mut self, most: i64) -> i64 {
        self.draws = self
            .draws
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(self.draws >> 33).unwrap() % most
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
    fn see(&mut self, at: i64, ahead: i64) -> Located {
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
                let late = 3 * US + self.draw(300 * US);
                self.see(self.now - late, 323 * US - late);
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
        let mut bench = Bench::new(ppm);
        // The first event is bounded by one poll before and one after it.
        bench.saturate(SECOND);
        assert!(
            bench.worst.0 > -323 * US && bench.worst.1 < 60 * US,
            "{ppm} ppm: {:?}",
            bench.worst
        );
        bench.saturate(10 * SECOND);
        let early = bench.worst;
        bench.saturate(300 * SECOND);
        println!(
            "{ppm} ppm: at first {early:?}, later {:?} ns, {:?}",
            bench.worst, bench.clock.rate
        );
        for worst in [early, bench.worst] {
            assert!(worst.0 > -100 * US && worst.1 < 100 * US, "{ppm} ppm: {worst:?}");
        }
        #[allow(clippy::cast_precision_loss)]
        let known = -(bench.clock.rate.0 as f64) / 1_000.0;
        assert!((known - ppm).abs() < 5.0, "{ppm} ppm taken for {known}");
        assert_eq!(bench.reanchored, 0, "{ppm} ppm");
    }
}

#[test]
fn idle_hour_costs_one_reanchoring() {
    for ppm in [2.0, -2.0, 100.0, -100.0] {
        let mut bench = Bench::new(ppm);
        bench.saturate(30 * SECOND);
        for hour in 1..4 {
            bench.now += 3_600 * SECOND;
            // The first batch after a pause begins at once, on an idle GPU.
            let at = bench.now;
            bench.now += 50 * US;
            bench.see(at, 6 * US);
            assert!((-6 * US..=50 * US).contains(&bench.off), "{ppm} ppm: {}", bench.off);
            assert_eq!(bench.reanchored, hour);
            bench.saturate(SECOND);
            assert!(bench.worst.0 > -200 * US, "{ppm} ppm: {:?}", bench.worst);
        }
    }
}

#[test]
fn changing_clock_rate_is_followed() {
    let mut bench = Bench::new(-100.0);
    bench.saturate(SECOND);
    for step in 0..40 {
        let rate = bench.draw(400_000) - 200_000;
        bench.set(rate, 0);
        let time = (5 + bench.draw(30)) * SECOND;
        bench.saturate(time);
        println!("{step}: {rate} ppb, {:?} ns", bench.worst);
        assert!(
            bench.worst.0 > -100 * US && bench.worst.1 < 100 * US,
            "{rate} ppb: {:?} ns",
            bench.worst
        );
    }
    assert_eq!(bench.reanchored, 0);
}

#[test]
fn clock_that_was_set_is_reanchored() {
    for step in [20 * MS, -20 * MS, 3_600 * SECOND, -3_600 * SECOND] {
        let mut bench = Bench::new(30.0);
        bench.saturate(30 * SECOND);
        bench.set(30_000, step);
        bench.saturate(30 * SECOND);
        assert!(bench.reanchored > 0, "{step}");
        bench.saturate(20 * SECOND);
        assert!(bench.worst.0 > -200 * US && bench.worst.1 < 400 * US, "{step}: {:?}", bench.worst);
    }
}

#[test]
fn late_observations_do_not_move_the_offset() {
    // For any rate, known or not.
    for (ppm, known) in
        [(20.0, true), (-20.0, true), (20.0, false), (-100.0, false), (100.0, false)]
    {
        let mut bench = Bench::new(ppm);
        if known {
            bench.saturate(30 * SECOND);
        }
        // A launch every 5 ms, which is seen when the next one comes.
        for _ in 0..40_000 {
            let at = bench.now + 106 * US;
            bench.now += 5 * MS;
            bench.see(at, 6 * US);
            assert!(bench.off.abs() < 100 * US, "{ppm} ppm: {}", bench.off);
        }
    }
}

#[test]
fn events_are_placed_between_launch_and_observation() {
    let mut bench = Bench::new(-50.0);
    for _ in 0..20_000 {
        let (ahead, late, pause) = (bench.draw(2 * MS), bench.draw(5 * MS), bench.draw(30 * MS));
        bench.now += pause + late;
        let at = bench.now - late;
        let placed = bench.see(at, ahead);
        assert!(placed.at >= unsigned(at - ahead) && placed.at <= unsigned(bench.now));
    }
}

#[test]
fn timestamps_are_comparable_within_one_epoch() {
    let mut bench = Bench::new(100.0);
    let first = bench.see(bench.now - 10 * US, MS).stamp.unwrap();
    bench.now += 3 * SECOND;
    let second = bench.see(bench.now - 10 * US, MS).stamp.unwrap();
    bench.now += MS;
    let third = bench.see(bench.now - 10 * US, MS).stamp.unwrap();
    let near =
        |told: Option<i64>, length: i64| told.is_some_and(|told| (told - length).abs() < 2 * US);
    assert!(near(second.since(first), 3 * SECOND + 300 * US), "over a change of the base, too");
    assert!(near(third.since(second), MS) && near(first.since(third), -3 * SECOND - MS - 300 * US));
    bench.now += 10 * SECOND;
    let later = bench.see(bench.now - 10 * US, MS);
    assert!(later.reanchored && later.stamp.unwrap().since(third).is_none());
    bench.clock.forget(CONTEXT);
    assert_eq!((bench.clock.base(CONTEXT), bench.clock.stamp(CONTEXT, 0)), (None, None));
}
