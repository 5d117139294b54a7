//! Checks the rule against a simulated process: any history of charges, frees, contexts and growth,
//! with readings at any time.

use proptest::prelude::*;

use super::*;

const SECOND: Nanos = Nanos::from_millis(1000);

fn reading(second: u64, used: u64, implicit: u64, measured: u64) -> Reading {
    let accounted =
        Accounted { used: Bytes(used), implicit: Bytes(implicit), ..Accounted::default() };
    Reading {
        at: Nanos(second * SECOND.0),
        before: accounted,
        measured: Bytes(measured),
        after: accounted,
        imported: Bytes::ZERO,
    }
}

fn risen(delta: i64) -> Option<Correction> {
    Some(Correction { delta, implicit_epoch: 0, risen: true })
}

fn fallen(delta: i64) -> Option<Correction> {
    Some(Correction { delta, implicit_epoch: 0, risen: false })
}

#[test]
fn code_loaded_by_a_launch_is_counted_at_once() {
    let mut process = Unaccounted::default();
    assert_eq!(process.take(&reading(1, 100, 50, 150)), None);
    assert_eq!(process.take(&reading(2, 100, 50, 170)), risen(20));
    assert_eq!(process.take(&reading(3, 100, 50, 170)), None);
}

#[test]
fn overestimated_context_is_corrected() {
    // With nothing else accounted, one reading is enough.
    let mut process = Unaccounted::default();
    assert_eq!(process.take(&reading(1, 0, 512, 256)), fallen(-256));
    // Else it takes three readings: it might be a charge ahead of the driver, or a free behind it.
    let mut process = Unaccounted::default();
    assert_eq!(process.take(&reading(1, 1000, 512, 1256)), None);
    assert_eq!(process.take(&reading(2, 1000, 512, 1256)), None);
    assert_eq!(process.take(&reading(3, 1000, 512, 1256)), fallen(-256));
    // What the program allocated is never subtracted.
    assert_eq!(process.take(&reading(4, 1000, 512, 0)), fallen(-512));
}

/// Takes readings; returns whether the implicit memory is confirmed after each.
fn confirmations(readings: &[Reading]) -> Vec<bool> {
    let mut process = Unaccounted::default();
    let mut confirmed_after = |reading| {
        process.take(reading);
        process.is_confirmed()
    };
    readings.iter().map(&mut confirmed_after).collect()
}

#[test]
fn implicit_memory_is_confirmed_by_one_reading_without_allocations_and_else_by_three() {
    assert_eq!(confirmations(&[reading(1, 0, 512, 256)]), [true]);
    let same = |second| reading(second, 1000, 512, 1256);
    assert_eq!(confirmations(&[same(1), same(2), same(3)]), [false, false, true]);
    // The program allocates before each reading.
    let busy = |second| reading(second, 1000 + second, 512, 1512 + second);
    assert_eq!(confirmations(&[busy(1), busy(2), busy(3), busy(4)]), [false; 4]);
}

#[test]
fn confirmation_is_lost_with_new_implicit_memory_and_kept_by_new_allocations() {
    let module_loaded = [reading(1, 0, 512, 512), reading(2, 1000, 600, 1600)];
    assert_eq!(confirmations(&module_loaded), [true, false]);
    let allocated = [reading(1, 0, 512, 512), reading(2, 1000, 512, 1512)];
    assert_eq!(confirmations(&allocated), [true, true]);
    let mut creating = reading(1, 0, 512, 512);
    creating.after.creating = 1;
    assert_eq!(confirmations(&[creating]), [false]);
}

#[test]
fn readings_too_close_together_are_no_evidence() {
    let mut process = Unaccounted::default();
    for after in 0..10 {
        let soon = Reading { at: Nanos(SECOND.0 + after), ..reading(1, 1000, 512, 1256) };
        assert_eq!(process.take(&soon), None);
    }
}

#[test]
fn charge_between_two_readings_ends_the_stable_interval() {
    let mut process = Unaccounted::default();
    let charges = |reading: Reading, charges| {
        let accounted = Accounted { charges, ..reading.before };
        Reading { before: accounted, after: accounted, ..reading }
    };
    // Each reading finds a program that frees and allocates all the time in an allocation.
    for second in 1..20 {
        let count = u32::try_from(second).unwrap();
        assert_eq!(process.take(&charges(reading(second, 1000, 512, 1256), count)), None);
    }
}

#[test]
fn memory_of_a_context_being_created_is_not_unaccounted() {
    let mut process = Unaccounted::default();
    let mut making = reading(1, 0, 0, 300);
    making.before.creating = 1;
    assert_eq!(process.take(&making), None);
    assert_eq!(process.take(&reading(2, 0, 300, 300)), None);
}

#[test]
fn memory_freed_between_the_samples_is_not_unaccounted() {
    let mut process = Unaccounted::default();
    let churn = |second, charges| {
        let mut churn = reading(second, 100, 50, 5000);
        churn.after.charges = churn.before.charges + charges;
        churn
    };
    assert_eq!(process.take(&reading(1, 100, 50, 150)), None);
    assert_eq!(process.take(&churn(2, 1)), None);
    assert_eq!(process.take(&reading(3, 100, 50, 150)), None);
    assert_eq!(process.take(&churn(4, 1)), None);
    // The delta of a program that always allocates is found by the second reading.
    assert_eq!(process.take(&churn(5, 1)), risen(4850));
}

#[test]
fn figure_of_an_ended_context_is_dropped() {
    let mut process = Unaccounted::default();
    assert_eq!(process.take(&reading(1, 0, 50, 70)), risen(20));
    let mut after = reading(2, 0, 0, 0);
    (after.before.implicit_epoch, after.after.implicit_epoch) = (1, 1);
    assert_eq!(process.take(&after), None);
    after.measured = Bytes(9);
    assert_eq!(process.take(&after), Some(Correction { delta: 9, implicit_epoch: 1, risen: true }));
    // A context that ended while NVML was called makes the reading void.
    after.after.implicit_epoch = 2;
    after.measured = Bytes(99);
    assert_eq!(process.take(&after), None);
}

#[test]
fn memory_of_several_processes_is_not_unaccounted() {
    let mut importer = Unaccounted::default();
    assert_eq!(importer.take(&Reading { imported: Bytes(64), ..reading(1, 0, 50, 114) }), None);
    assert_eq!(
        importer.take(&Reading { imported: Bytes(64), ..reading(2, 0, 50, 124) }),
        risen(10)
    );
    let mut exporter = Unaccounted::default();
    let exported = |second| {
        let mut reading = reading(second, 64, 50, 50);
        (reading.before.exported, reading.after.exported) = (Bytes(64), Bytes(64));
        reading
    };
    for second in 1..5 {
        assert_eq!(exporter.take(&exported(second)), None);
    }
}

#[test]
fn lost_gpu_has_unknown_use() {
    let mut process = Unaccounted::from_published(20, 0);
    assert_eq!(process.forget(), fallen(0));
    assert_eq!(process.forget(), None);
}

#[derive(Clone, Copy, Debug)]
struct Call {
    since: u64,
    bytes: u64,
    /// Whether the driver has done its part.
    done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Context {
    charged: u64,
    size: u64,
    /// Code loaded by launches.
    grown: u64,
    /// Whether it is on the GPU already.
    there: bool,
}

/// A simulated process: what the driver holds for it, and what its cell says.
#[derive(Clone, Debug, Default)]
struct Process {
    now: u64,
    accounted: Accounted,
    contexts: Vec<Context>,
    allocating: Vec<Call>,
    live: Vec<u64>,
    freeing: Vec<Call>,
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Take,
    Commit,
    Free,
    Give,
    Refund,
    Create { charged: u64, size: u64 },
    Appear,
    Created,
    End,
    Grow(u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..100u64).prop_map(Step::Allocate),
        3 => Just(Step::Take),
        3 => Just(Step::Commit),
        2 => Just(Step::Free),
        2 => Just(Step::Give),
        2 => Just(Step::Refund),
        2 => (1..60u64, 1..60u64).prop_map(|(charged, size)| Step::Create { charged, size }),
        2 => Just(Step::Appear),
        2 => Just(Step::Created),
        1 => Just(Step::End),
        1 => (1..50u64).prop_map(Step::Grow),
        2 => (1..900u64).prop_map(Step::Wait),
    ]
}

impl Process {
    fn step(&mut self, step: &Step) {
        let since = self.now;
        match *step {
            Step::Allocate(bytes) => {
                self.accounted.charges += 1;
                self.accounted.used = self.accounted.used + Bytes(bytes);
                self.allocating.push(Call { since, bytes, done: false });
            }
            Step::Take => take(&mut self.allocating),
            Step::Commit => self.live.extend(finished(&mut self.allocating)),
            Step::Free => {
                let bytes = self.live.pop();
                self.freeing.extend(bytes.map(|bytes| Call { since, bytes, done: false }));
            }
            Step::Give => take(&mut self.freeing),
            Step::Refund => {
                let bytes = finished(&mut self.freeing).unwrap_or(0);
                self.accounted.used = self.accounted.used - Bytes(bytes);
            }
            Step::Create { charged, size } if self.accounted.creating == 0 => {
                self.accounted.creating = 1;
                self.accounted.charges += 1;
                self.accounted.implicit = self.accounted.implicit + Bytes(charged);
                self.contexts.push(Context { charged, size, grown: 0, there: false });
            }
            Step::Appear => self.contexts.iter_mut().for_each(|context| context.there = true),
            Step::Created if self.contexts.last().is_some_and(|last| last.there) => {
                self.accounted.creating = 0
            }
            Step::End if self.accounted.creating == 0 => {
                if let Some(context) = self.contexts.pop() {
                    self.accounted.implicit_epoch += 1;
                    self.accounted.implicit = self.accounted.implicit - Bytes(context.charged);
                }
            }
            Step::Grow(bytes) => {
                if let Some(context) = self.contexts.first_mut().filter(|context| context.there) {
                    context.grown += bytes;
                }
            }
            Step::Wait(time) => {
                self.now += time;
                // No unmarked call takes as long as `STABLE_INTERVAL`.
                let long =
                    |calls: &[Call]| calls.iter().any(|call| call.since + 400 < since + time);
                while long(&self.allocating) {
                    [Step::Take, Step::Commit].iter().for_each(|step| self.step(step));
                }
                while long(&self.freeing) {
                    [Step::Give, Step::Refund].iter().for_each(|step| self.step(step));
                }
            }
            Step::Create { .. } | Step::Created | Step::End => {}
        }
    }

    /// Returns what the driver holds of the program's allocations.
    fn allocated(&self) -> u64 {
        let taken = self.allocating.iter().filter(|call| call.done).map(|call| call.bytes);
        let kept = self.freeing.iter().filter(|call| !call.done).map(|call| call.bytes);
        taken.chain(kept).chain(self.live.iter().copied()).sum()
    }

    fn held(&self) -> u64 {
        let there = self.contexts.iter().filter(|context| context.there);
        self.allocated() + there.map(|context| context.size + context.grown).sum::<u64>()
    }

    /// Returns what is counted, with the delta that was published last.
    fn counted(&self, (delta, implicit_epoch): (i64, u32)) -> u64 {
        let delta = if implicit_epoch == self.accounted.implicit_epoch { delta } else { 0 };
        self.accounted.used.0 + self.accounted.implicit.0.saturating_add_signed(delta)
    }

    /// Returns the least that must be counted: all that was charged for. Code loaded since the last
    /// reading is unknown.
    fn least(&self) -> u64 {
        let there = self.contexts.iter().filter(|context| context.there);
        self.allocated() + there.map(|context| context.size.min(context.charged)).sum::<u64>()
    }

    /// Returns the most that may be counted as unaccounted: all that was not charged.
    fn most_delta(&self) -> u64 {
        self.contexts
            .iter()
            .map(|context| (context.size + context.grown).saturating_sub(context.charged))
            .sum()
    }

    fn read(&mut self, between: &[Step]) -> Reading {
        let (at, before) = (Nanos::from_millis(self.now), self.accounted);
        let (first, rest) = between.split_at(between.len() / 2);
        first.iter().for_each(|step| self.step(step));
        let measured = Bytes(self.held());
        rest.iter().for_each(|step| self.step(step));
        Reading { at, before, measured, after: self.accounted, imported: Bytes::ZERO }
    }
}

/// Performs the driver's part of the first call that waits for it.
fn take(calls: &mut [Call]) {
    if let Some(call) = calls.iter_mut().find(|call| !call.done) {
        call.done = true;
    }
}

fn finished(calls: &mut Vec<Call>) -> Option<u64> {
    let at = calls.iter().position(|call| call.done)?;
    Some(calls.remove(at).bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn unaccounted_memory_stays_within_bounds(
        rounds in prop::collection::vec(
            (prop::collection::vec(step(), 0..12), prop::collection::vec(step(), 0..5), 0..1100u64),
            1..20,
        ),
    ) {
        let mut process = Process::default();
        let mut measured = Unaccounted::default();
        let mut published = (0, 0);
        // Consecutive readings with a charge between their samples: two may both measure memory
        // that was allocated and freed in between.
        let mut churned = 0;
        for (steps, between, wait) in rounds {
            for step in &steps {
                process.step(step);
                prop_assert!(
                    process.counted(published) >= process.least(),
                    "too little: {process:?} {published:?}"
                );
            }
            let reading = process.read(&between);
            churned = if reading.before.charges == reading.after.charges { 0 } else { churned + 1 };
            if let Some(correction) = measured.take(&reading) {
                published = (correction.delta, correction.implicit_epoch);
            }
            prop_assert!(
                    process.counted(published) >= process.least(),
                    "too little: {process:?} {published:?}"
                );
            let delta = u64::try_from(published.0).unwrap_or(0);
            let counts = published.1 == process.accounted.implicit_epoch;
            if churned < 2 && counts && delta > process.most_delta() {
                prop_assert!(false, "too much: {process:?} {published:?}");
            }
            process.step(&Step::Wait(wait));
        }
        // Without activity the count is exact after three samples.
        process.step(&Step::Appear);
        process.step(&Step::Created);
        for _ in 0..3 {
            process.step(&Step::Wait(1000));
            if let Some(correction) = measured.take(&process.read(&[])) {
                published = (correction.delta, correction.implicit_epoch);
            }
        }
        prop_assert_eq!(process.counted(published), process.held());
    }
}
