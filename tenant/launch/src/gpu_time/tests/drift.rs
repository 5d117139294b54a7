//! Measured lengths on a GPU whose clock is fast or slow, over virtual hours.

use super::*;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const SECOND: u64 = 1_000 * MS;
/// Length of a batch: ten kernels of 60 us.
const BATCH: u64 = 600 * US;

/// A program that keeps one stream busy in turns of 15 ms of 60, on a GPU with its own clock.
struct Program {
    gpu_time: GpuTime,
    now: u64,
    ppm: i64,
    events: usize,
    /// Launch time and end of each batch in flight.
    in_flight: std::collections::VecDeque<(u64, u64)>,
    stamps: Vec<i64>,
    random_state: u64,
    /// True busy time.
    busy: u64,
    clamped: u32,
    /// Batches whose length is wrong by more than a hundredth and 2 us.
    wrong: u32,
}

impl Program {
    fn new(ppm: i64) -> Self {
        Self {
            gpu_time: GpuTime::new(),
            now: 1_000 * SECOND,
            ppm,
            events: 0,
            in_flight: std::collections::VecDeque::new(),
            stamps: Vec::new(),
            random_state: 7,
            busy: 0,
            clamped: 0,
            wrong: 0,
        }
    }

    fn random(&mut self, most: u64) -> u64 {
        self.random_state = self
            .random_state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random_state >> 33) % most
    }

    /// Records an event at a true time, by the GPU's clock.
    fn event(&mut self, at: u64) -> Event {
        let at = at.cast_signed();
        self.stamps.push((at + at / 1_000_000 * self.ppm) / 500 * 500);
        self.events += 1;
        Event(self.events - 1)
    }

    fn elapsed(&self, from: Event, to: Event) -> i64 {
        let span = self.stamps[to.0] - self.stamps[from.0];
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
        let reported = (f64::from((span as f64 * 1e-6) as f32) * 1e6) as i64;
        reported
    }

    fn launch(&mut self) {
        let now = Nanos(self.now);
        let stream = Stream { handle: 16, per_thread: false };
        let id = self
            .gpu_time
            .lane(LaneKey { thread: ThreadKey(1), context: CONTEXT, stream }, now)
            .unwrap()
            .id;
        let begins =
            self.in_flight.back().map_or(self.now + 6 * US, |last| last.1.max(self.now + 6 * US));
        let start = match self.in_flight.is_empty() {
            true => Start::Event(self.event(begins)),
            false => Start::Previous,
        };
        self.gpu_time.find(id).unwrap().open.start = start;
        let expected = self.gpu_time.expect(kernel());
        self.gpu_time.charge(Some(id), kernel(), expected, 10, now);
        let end = begins + BATCH;
        let event = self.event(end);
        let marker = self.gpu_time.plan_marker(id).unwrap();
        let placement = super::MarkerPlacement {
            at: now,
            contention: Contention::Alone,
            dry: false,
            backlog: false,
        };
        self.gpu_time.close_batch(id, &marker, event, true, placement);
        self.in_flight.push_back((self.now, end));
        self.busy += BATCH;
    }

    fn collect(&mut self) {
        loop {
            let over = self.in_flight.front().is_some_and(|first| first.1 + 3 * US <= self.now);
            let word = if over { u64::MAX } else { 0 };
            let due = self.gpu_time.next_ended(&[], |_, _| word, Nanos(self.now));
            let Some(due) = due.filter(|_| over) else { return };
            self.in_flight.pop_front();
            let since_base = due.base.map(|base| self.elapsed(base, due.end));
            let length = match due.start {
                Start::Event(start) => Some(self.elapsed(start, due.end)),
                _ => None,
            };
            let before = self.gpu_time.busy();
            let measured = self
                .gpu_time
                .measure(&due, Timing { since_base, length }, Nanos(self.now))
                .unwrap();
            self.clamped += u32::from(measured.clamped);
            let length = (measured.span.end - measured.span.start).0;
            let added = (self.gpu_time.busy() - before).0;
            let off = length.abs_diff(BATCH).max(added.abs_diff(BATCH));
            self.wrong += u32::from(off > BATCH / 100 + 2 * US);
        }
    }

    /// Checks the measured busy time to a thousandth.
    fn check_busy(&self) {
        let (ppm, busy, truth) = (self.ppm, self.gpu_time.busy().0, self.busy);
        println!("{ppm} ppm: {busy} of {truth} ns, {} wrong, {} clamped", self.wrong, self.clamped);
        assert!(busy.abs_diff(truth) < truth / 1_000, "{ppm} ppm: {busy} of {truth}");
    }

    fn run(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            let turn = self.now + 15 * MS;
            while self.now < turn {
                // About 1 ms is launched ahead; sleeping threads wake then.
                while self.in_flight.back().is_none_or(|last| last.1 < self.now + MS) {
                    self.launch();
                }
                self.now += 200 * US + self.random(300 * US);
                self.collect();
            }
            while !self.in_flight.is_empty() {
                self.now += 250 * US;
                self.collect();
            }
            self.now += 44 * MS;
        }
    }
}

#[test]
fn lengths_do_not_depend_on_the_rate_of_the_gpus_clock() {
    for ppm in [0, 2, -2, 15, -15, 50, -50, 100, -100, 200, -200] {
        let mut program = Program::new(ppm);
        program.run(1_200 * SECOND);
        program.check_busy();
        // Only the first observation of the clock is uncertain; from then on no length is wrong.
        assert!(program.wrong <= 2, "{ppm} ppm: {} lengths are wrong", program.wrong);
        assert_eq!(program.clamped, 0, "{ppm} ppm");
        let expected = program.gpu_time.expect(kernel()).cost;
        assert!(
            (59_000..61_000).contains(&expected),
            "{ppm} ppm: a kernel is taken for {expected} ns"
        );
    }
}

#[test]
fn idle_hours_cost_no_length() {
    for ppm in [2, -2, 15, -15, 50, -50, 100, -100, 200, -200] {
        let mut program = Program::new(ppm);
        for _ in 0..4 {
            program.run(20 * SECOND);
            program.now += 3_600 * SECOND;
        }
        program.check_busy();
        assert!(program.wrong <= 4 && program.clamped == 0, "{ppm} ppm: {} wrong", program.wrong);
    }
}

#[test]
fn clock_that_is_set_costs_one_length() {
    for step in [3_600_000_000_000, -3_600_000_000_000, 50_000_000, -50_000_000_i64] {
        let mut program = Program::new(20);
        program.run(10 * SECOND);
        // In the middle of a batch.
        program.launch();
        let last = program.stamps.len() - 1;
        program.stamps[last] += step;
        program.now += 2 * MS;
        program.collect();
        let busy = program.gpu_time.busy().0;
        assert!(busy.abs_diff(program.busy) < 20 * MS, "{step}: {busy} of {}", program.busy);
        assert_eq!(program.clamped, 1, "{step}");
    }
}
