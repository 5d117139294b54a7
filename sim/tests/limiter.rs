//! A limiter that polls NVML, on the simulated GPU: it must be as inaccurate as on real ones.
//!
//! The limiter is the common one, as published for several products, written anew. Every launch
//! takes its grid's blocks from a bucket, and waits while the bucket is overdrawn. A watcher reads
//! the process's utilisation every 120 ms and adds a portion to the bucket. It raises or lowers the
//! portion by the distance from the limit. Users report that a limit of 50 % runs at 80 to 100 %:
//! blocks do not measure time, integers of past windows are poor feedback, and the gain grows with
//! the square of the multiprocessors.

mod fixture;

use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{ContextId, Forecast, StreamId, Ticket};
use cgpu_sim::{GpuSpec, Kernel, Nanos};
use fixture::{Fixture, ratio};

/// Polling interval of the watcher.
const POLL_INTERVAL: Nanos = Nanos::from_millis(120);
/// Poll interval of a launch that waits for the bucket.
const BUCKET_POLL_INTERVAL: Nanos = Nanos::from_millis(10);

/// The control law.
struct Limiter {
    percent: i64,
    multiprocessors: i64,
    threads: i64,
    /// The bucket's maximum.
    capacity: i64,
    bucket: i64,
    /// What each poll adds to the bucket.
    portion: i64,
}

impl Limiter {
    fn new(gpu: &GpuSpec, percent: i64) -> Self {
        let multiprocessors = i64::from(gpu.model.multiprocessors);
        let threads = i64::from(gpu.model.threads_per_multiprocessor);
        let capacity = multiprocessors * threads * 32;
        Self { percent, multiprocessors, threads, capacity, bucket: 0, portion: 0 }
    }

    /// Adjusts the limiter to an observed utilisation, in percent.
    fn adjust(&mut self, seen: i64) {
        if self.portion == self.capacity && self.bucket < 0 {
            self.capacity *= 2;
        }
        let off = (self.percent - seen).abs().max(5);
        let mut step = self.multiprocessors * self.multiprocessors * self.threads * off / 2_560;
        if off > self.percent / 2 {
            step = step * off * 2 / (self.percent + 1);
        }
        self.portion = if seen <= self.percent { self.portion + step } else { self.portion - step };
        self.portion = self.portion.clamp(0, self.capacity);
        self.bucket = (self.bucket + self.portion).min(self.capacity);
    }

    /// Admits a launch unless the bucket is overdrawn; the launch itself may overdraw it.
    fn admits(&mut self, blocks: i64) -> bool {
        let admits = self.bucket >= 0;
        self.bucket -= if admits { blocks } else { 0 };
        admits
    }
}

/// A limited program that launches kernels as fast as it is admitted.
struct Program {
    process: usize,
    context: ContextId,
    stream: StreamId,
    limiter: Limiter,
    launches_at: Nanos,
    looks_at: Nanos,
    awaits: Option<Ticket>,
}

impl Program {
    fn new(fixture: &mut Fixture, process: usize, limiter: Limiter) -> Self {
        let mut timeline = fixture.timeline();
        timeline.attach(process, pid(process));
        let context = timeline.create_context(process, 0).unwrap();
        let stream = timeline.create_stream(context, false).unwrap();
        Self {
            process,
            context,
            stream,
            limiter,
            launches_at: Nanos::ZERO,
            looks_at: POLL_INTERVAL,
            awaits: None,
        }
    }

    fn next(&self) -> Nanos {
        self.launches_at.min(self.looks_at)
    }

    fn act(&mut self, fixture: &mut Fixture, kernel: Kernel, blocks: i64) {
        let now = fixture.now;
        let (launch_cost, visibility) = (fixture.figures.launch_cost, fixture.figures.visibility);
        let mut timeline = fixture.timeline();
        timeline.advance(now);
        if self.looks_at <= now {
            timeline.account_up_to(0, now);
            let since = now - Nanos::from_millis(1_000);
            let samples = timeline.process_samples(0, since, now);
            let mine = samples.iter().rev().find(|sample| sample.process == self.process);
            self.limiter.adjust(mine.map_or(0, |sample| i64::from(sample.percent)));
            self.looks_at = now + POLL_INTERVAL;
            return;
        }
        if let Some(room) = self.awaits {
            match timeline.visible_at(room) {
                Some(at) if at <= now => self.awaits = None,
                Some(at) => self.launches_at = at,
                None => {
                    self.launches_at = match timeline.forecast(&[room]) {
                        Forecast::At(at) => at + visibility,
                        Forecast::NotBefore(at) => at.max(now + Nanos(1)),
                        Forecast::Unknown => now + BUCKET_POLL_INTERVAL,
                    };
                }
            }
            return;
        }
        if !self.limiter.admits(blocks) {
            self.launches_at = now + BUCKET_POLL_INTERVAL;
            return;
        }
        match timeline.launch(self.stream, kernel, now) {
            Ok(_) => self.launches_at = now + launch_cost,
            Err(full) => {
                self.limiter.bucket += blocks;
                self.awaits = Some(full.room);
            }
        }
    }
}

fn pid(process: usize) -> u32 {
    100 + u32::try_from(process).unwrap()
}

/// Returns each program's share of the GPU's time over 6 s, after 6 s of adjustment.
fn shares(percents: &[i64], kernel: &str, blocks: i64) -> Vec<f64> {
    let gpu = GpuSpec::default_list()[0];
    let mut fixture = Fixture::new(1, Figures::default());
    let mut programs: Vec<Program> = percents
        .iter()
        .enumerate()
        .map(|(process, &percent)| Program::new(&mut fixture, process, Limiter::new(&gpu, percent)))
        .collect();
    let mut busy_until = |end: Nanos| -> Vec<Nanos> {
        while let Some(program) = programs.iter_mut().min_by_key(|program| program.next())
            && program.next() <= end
        {
            fixture.now = program.next();
            program.act(&mut fixture, Kernel::named(kernel), blocks);
        }
        let mut timeline = fixture.timeline();
        timeline.advance(end);
        timeline.account_up_to(0, end);
        timeline.check().unwrap();
        programs.iter().map(|program| timeline.context_busy(program.context)).collect()
    };
    let span = Nanos::from_millis(6_000);
    let (before, after) = (busy_until(span), busy_until(span + span));
    before.into_iter().zip(after).map(|(before, after)| ratio(after - before, span)).collect()
}

#[test]
fn limit_of_50_percent_by_utilisation_gives_80_to_100() {
    for kernel in ["spin_1ms", "spin_2ms", "spin_5ms", "spin_10ms"] {
        // Half a wave of blocks on this GPU, one wave, two waves.
        for blocks in [72, 144, 288] {
            let share = shares(&[50], kernel, blocks)[0];
            assert!((0.80..=1.0).contains(&share), "{kernel} x {blocks}: {share:.3}");
        }
    }
}

/// The limiter works where a block costs what its control law assumes.
#[test]
fn limiter_limits_short_kernels_of_many_blocks() {
    for percent in [30_u32, 70] {
        let share = shares(&[i64::from(percent)], "spin_10us", 1_024)[0];
        assert!((share - f64::from(percent) / 100.0).abs() < 0.08, "{percent} %: {share:.3}");
    }
}

/// Users report 1 : 6 to 8 of such a pair.
#[test]
fn limits_of_10_and_90_percent_do_not_give_1_to_9() {
    let shares = shares(&[10, 90], "spin_1ms", 144);
    assert!(shares[1] / shares[0] < 8.0, "{shares:.3?}");
}
