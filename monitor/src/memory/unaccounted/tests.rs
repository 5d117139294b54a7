//! The rule against a process whose truth is known: any history of charges, frees, contexts and growth, with readings at any instant.

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

fn risen(growth: i64) -> Option<Correction> {
    Some(Correction { growth, ended: 0, risen: true })
}

fn fallen(growth: i64) -> Option<Correction> {
    Some(Correction { growth, ended: 0, risen: false })
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
    // With nothing else accounted it is sure at once.
    let mut process = Unaccounted::default();
    assert_eq!(process.take(&reading(1, 0, 512, 256)), fallen(-256));
    // Else it takes three readings, because it might be a charge ahead of the driver, or a free behind it.
    let mut process = Unaccounted::default();
    assert_eq!(process.take(&reading(1, 1000, 512, 1256)), None);
    assert_eq!(process.take(&reading(2, 1000, 512, 1256)), None);
    assert_eq!(process.take(&reading(3, 1000, 512, 1256)), fallen(-256));
    // What the program asked for is never taken off.
    assert_eq!(process.take(&reading(4, 1000, 512, 0)), fallen(-512));
}

/// Takes readings in turn; whether the implicit memory is confirmed after each.
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
    // A program that frees and allocates all the time is found in the middle of an allocation each time.
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
    // Growth of a program that always allocates is seen in the second reading.
    assert_eq!(process.take(&churn(5, 1)), risen(4850));
}

#[test]
fn figure_of_an_ended_context_is_dropped() {
    let mut process = Unaccounted::default();
    assert_eq!(process.take(&reading(1, 0, 50, 70)), risen(20));
    let mut after = reading(2, 0, 0, 0);
    (after.before.ended, after.after.ended) = (1, 1);
    assert_eq!(process.take(&after), None);
    after.measured = Bytes(9);
    assert_eq!(process.take(&after), Some(Correction { growth: 9, ended: 1, risen: true }));
    // One that ended while NVML was asked tells nothing.
    after.after.ended = 2;
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

/// Memory that a call is about to get or to give back.
#[derive(Clone, Copy, Debug)]
struct Call {
    since: u64,
    bytes: u64,
    /// The driver has done its part.
    done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Context {
    charged: u64,
    size: u64,
    /// The code that came unasked.
    grown: u64,
    /// On the GPU already.
    there: bool,
}

/// A process: what the driver holds for it, and what its cell says.
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
    Settle,
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
        3 => Just(Step::Settle),
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
            Step::Settle => self.live.extend(finished(&mut self.allocating)),
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
                    self.accounted.ended += 1;
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
                // None takes as long as SETTLED without saying so.
                let long =
                    |calls: &[Call]| calls.iter().any(|call| call.since + 400 < since + time);
                while long(&self.allocating) {
                    [Step::Take, Step::Settle].iter().for_each(|step| self.step(step));
                }
                while long(&self.freeing) {
                    [Step::Give, Step::Refund].iter().for_each(|step| self.step(step));
                }
            }
            Step::Create { .. } | Step::Created | Step::End => {}
        }
    }

    /// What the driver holds of what the program asked for.
    fn asked(&self) -> u64 {
        let taken = self.allocating.iter().filter(|call| call.done).map(|call| call.bytes);
        let kept = self.freeing.iter().filter(|call| !call.done).map(|call| call.bytes);
        taken.chain(kept).chain(self.live.iter().copied()).sum()
    }

    fn held(&self) -> u64 {
        let there = self.contexts.iter().filter(|context| context.there);
        self.asked() + there.map(|context| context.size + context.grown).sum::<u64>()
    }

    /// What is counted, with what was published last.
    fn counted(&self, (growth, ended): (i64, u32)) -> u64 {
        let growth = if ended == self.accounted.ended { growth } else { 0 };
        self.accounted.used.0 + self.accounted.implicit.0.saturating_add_signed(growth)
    }

    /// What must be counted whatever is known: all that was charged for. Code that came since the last reading is not known.
    fn least(&self) -> u64 {
        let there = self.contexts.iter().filter(|context| context.there);
        self.asked() + there.map(|context| context.size.min(context.charged)).sum::<u64>()
    }

    /// What may be counted as unaccounted: all that was not charged.
    fn most_growth(&self) -> u64 {
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

/// The driver does its part of the first call that waits for it.
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
            (prop::collection::vec(step(), 0..12), prop::collection::vec(step(), 0..5), 0..1100u64), 1..20,
        ),
    ) {
        let mut process = Process::default();
        let mut measured = Unaccounted::default();
        let mut published = (0, 0);
        // Readings in a row between whose looks something was charged: two may agree on what came and went.
        let mut churned = 0;
        for (steps, between, wait) in rounds {
            for step in &steps {
                process.step(step);
                prop_assert!(process.counted(published) >= process.least(), "too little: {process:?} {published:?}");
            }
            let reading = process.read(&between);
            churned = if reading.before.charges == reading.after.charges { 0 } else { churned + 1 };
            if let Some(verdict) = measured.take(&reading) {
                published = (verdict.growth, verdict.ended);
            }
            prop_assert!(process.counted(published) >= process.least(), "too little: {process:?} {published:?}");
            let growth = u64::try_from(published.0).unwrap_or(0);
            let counts = published.1 == process.accounted.ended;
            if churned < 2 && counts && growth > process.most_growth() {
                prop_assert!(false, "too much: {process:?} {published:?}");
            }
            process.step(&Step::Wait(wait));
        }
        // When all is quiet, all is right after three samples.
        process.step(&Step::Appear);
        process.step(&Step::Created);
        for _ in 0..3 {
            process.step(&Step::Wait(1000));
            if let Some(verdict) = measured.take(&process.read(&[])) {
                published = (verdict.growth, verdict.ended);
            }
        }
        prop_assert_eq!(process.counted(published), process.held());
    }
}
