#![allow(clippy::cast_precision_loss, reason = "times far below 2^52 ns")]

use std::cell::RefCell;
use std::sync::Mutex;

use cgpu_shm::atomic::{AtomicU32, Ordering};
use cgpu_shm::grant::TurnState;
use cgpu_shm::units::Nanos;
use proptest::prelude::*;

use self::monitor::{conduct, gpu, say};
use self::stage::{BEGIN, Did, Place, Role, SLOT, Stage};
use super::*;

mod markers;
mod monitor;
mod open;
mod shapes;
mod siblings;
mod stage;
mod waited;

const STREAM: Stream = Stream { handle: 0x10, per_thread: false };
const CONTEXT: ContextKey = ContextKey(0x1000);

fn ms(time: u64) -> Nanos {
    Nanos::from_millis(time)
}

fn us(time: u64) -> Nanos {
    Nanos::from_micros(time)
}

/// A program's thread.
struct Program<'a, 'r, 's> {
    gate: &'a Gate<'r>,
    thread: Thread,
    place: Place<'a, 's>,
    /// Launches let through by the thread's own credit.
    unasked: std::cell::Cell<u64>,
}

impl<'a, 'r, 's> Program<'a, 'r, 's> {
    fn new(gate: &'a Gate<'r>, place: Place<'a, 's>) -> Self {
        Self { gate, thread: Thread::default(), place, unasked: std::cell::Cell::new(0) }
    }

    /// As the shim does it.
    fn launch(&self, function: usize, stream: Stream, cost: Nanos) {
        self.launch_as(function, stream, cost, false);
    }

    fn launch_as(&self, function: usize, stream: Stream, cost: Nanos, programmatic: bool) {
        self.launch_kernel(Kernel::new(function, [1; 3], [32, 1, 1]), stream, cost, programmatic);
    }

    fn launch_kernel(&self, kernel: Kernel, stream: Stream, cost: Nanos, programmatic: bool) {
        let word = self.gate.region.granted().gate();
        if word == self.gate.open.load(Ordering::Relaxed) || self.thread.spend(word, kernel, stream) {
            self.unasked.set(self.unasked.get() + 1);
            self.place.launch(stream, cost, programmatic);
            return;
        }
        let launch = Launch { kernel, stream, context: CONTEXT, gpu: gpu(), programmatic, asks: false };
        let passed = self.gate.pass(&self.thread, launch, &self.place, &self.place);
        self.place.launch(stream, cost, programmatic);
        if let Some(passed) = passed {
            self.gate.launched(&self.thread, passed, true, &self.place, &self.place);
        }
    }

    fn cell(&self) -> &cgpu_shm::layout::Cell {
        self.gate.region.cell(gpu(), SLOT)
    }

    fn counted(&self, reason: Reason) -> u32 {
        self.gate.region.slot(SLOT).counter[reason as usize].load(Ordering::Relaxed)
    }
}

/// Launches without a pause, as fast as a host can, until `end`.
fn saturate(role: &Role<'_>, program: &Program<'_, '_, '_>, cost: Nanos, end: Nanos) {
    while role.now() < end {
        // The driver's own queue is some thousand launches long; nobody gets there.
        program.launch(1, STREAM, cost);
        role.sleep(us(3));
    }
}

/// Plays one container's program under a monitor that says what `script` says.
fn alone(
    script: impl Fn(&Role<'_>) + Sync,
    program: impl Fn(&Role<'_>, &Program<'_, '_, '_>) + Sync,
) -> Stage {
    let stage = Stage::new(1);
    let open = AtomicU32::new(0);
    let gate = Gate::new(&stage.regions[0], SLOT, &open);
    stage.play(&[&|role| script(role), &|role| {
        role.sleep(us(100));
        program(role, &Program::new(&gate, role.edge(0)));
    }]);
    drop(gate);
    stage
}

fn yours(granted: Nanos) -> impl Fn(&Role<'_>) + Sync {
    move |role| say(role.stage, 0, 1, TurnState::Yours, granted)
}

#[test]
fn without_a_monitor_the_gate_is_open() {
    let stage = alone(
        |_| {},
        |role, program| {
            saturate(role, program, us(60), BEGIN + ms(5));
            assert_eq!(program.cell().launches.load(Ordering::Relaxed), 0);
        },
    );
    assert!(stage.gpu(|gpu| gpu.journal.iter().all(|did| matches!(did, Did::Launch { .. }))));
}

#[test]
fn an_open_gpu_costs_one_look_per_gate_word() {
    let bump = |role: &Role<'_>| {
        for _ in 0..10 {
            say(role.stage, 0, 1, TurnState::Open, Nanos::ZERO);
            role.sleep(ms(1));
        }
    };
    let stage = alone(bump, |role, program| {
        let slow = RefCell::new(0);
        while role.now() < BEGIN + ms(9) {
            let before = program.unasked.get();
            program.launch(1, STREAM, us(1));
            *slow.borrow_mut() += u64::from(program.unasked.get() == before);
            role.sleep(us(3));
        }
        assert!((9..=10).contains(&*slow.borrow()), "{slow:?}");
    });
    assert_eq!(stage.rings(), 1, "activity after a silence, once");
    assert!(stage.gpu(|gpu| gpu.journal.iter().all(|did| matches!(did, Did::Launch { .. }))));
}

#[test]
fn shares_come_out_as_the_turns_are() {
    for (slices, cost) in [([6, 12], 60), ([6, 12], 7), ([6, 6], 400), ([18, 2], 60)] {
        let stage = Stage::new(2);
        let end = BEGIN + ms(1500);
        let opens = [AtomicU32::new(0), AtomicU32::new(0)];
        let gates = [0, 1].map(|number: usize| Gate::new(&stage.regions[number], SLOT, &opens[number]));
        let books = Mutex::new(monitor::Books::default());
        let actor = |number: usize| {
            let gate = &gates[number];
            move |role: &Role<'_>| {
                role.sleep(us(10));
                saturate(role, &Program::new(gate, role.edge(number)), us(cost), end);
            }
        };
        let lengths = slices.map(ms);
        stage.play(&[
            &|role| *books.lock().expect("books") = conduct(role, &lengths, end),
            &actor(0),
            &actor(1),
        ]);
        let books = books.into_inner().expect("books");
        let (ran, most) = stage.gpu(|gpu| (gpu.ran.clone(), gpu.most.clone()));
        let total = (ran[&0] + ran[&1]).0 as f64;
        let set = slices[0] as f64 / (slices[0] + slices[1]) as f64;
        let share = ran[&0].0 as f64 / total;
        assert!((share / set - 1.0).abs() < 0.02, "{slices:?} {cost} us: {share} of {set}, {ran:?}");
        assert!(total > 0.96 * 1.5e9, "{slices:?} {cost} us: used {total}");
        for tenant in 0..2 {
            // What was reported is what ran, but for the start and what is in flight in the end.
            let error = books.busy[tenant].0.abs_diff(ran[&tenant].0);
            assert!(error < 8_000_000, "{slices:?} {cost} us: {tenant} reported {:?} of {ran:?}", books.busy);
            // The bound, a launch, and the other one's tail.
            assert!(most[&tenant] < us(500 + 3 * cost.max(20) + 500), "{slices:?} {cost} us: {most:?}");
        }
    }
}

/// NTP slews the host's clock by up to 8 %: what is measured does not change, and what is published is
/// in the clock that the monitor reads.
#[test]
fn a_host_clock_that_is_slewed_changes_no_length() {
    for millionths in [80_000, -80_000] {
        let stage = Stage::new(2);
        let end = BEGIN + ms(2500);
        stage.gpu(|gpu| gpu.slew = (BEGIN + ms(500), BEGIN + ms(1500), millionths));
        let opens = [AtomicU32::new(0), AtomicU32::new(0)];
        let gates = [0, 1].map(|number: usize| Gate::new(&stage.regions[number], SLOT, &opens[number]));
        let clamped = AtomicU32::new(0);
        let actor = |number: usize| {
            let (gate, clamped) = (&gates[number], &clamped);
            move |role: &Role<'_>| {
                role.sleep(us(10));
                let program = Program::new(gate, role.edge(number));
                for step in 1..=25 {
                    saturate(role, &program, us(60), BEGIN + ms(100 * step));
                    let cell = program.cell();
                    let last = Nanos(cell.last.load(Ordering::Relaxed));
                    let (now, old) = (role.monotonic(), ms(60));
                    assert!(last <= now && last + old > now, "{last} was published at {now}");
                }
                let odd = [Reason::LengthClamped, Reason::ClockReanchored];
                let counted = odd.into_iter().map(|reason| program.counted(reason)).sum();
                clamped.fetch_add(counted, Ordering::Relaxed);
            }
        };
        let books = Mutex::new(monitor::Books::default());
        stage.play(&[
            &|role| *books.lock().expect("books") = conduct(role, &[ms(6), ms(12)], end),
            &actor(0),
            &actor(1),
        ]);
        let books = books.into_inner().expect("books");
        let ran = stage.gpu(|gpu| gpu.ran.clone());
        for tenant in 0..2 {
            let error = books.busy[tenant].0.abs_diff(ran[&tenant].0);
            assert!(error < 8_000_000, "{tenant} reported {:?} of {ran:?}", books.busy);
        }
        assert_eq!(clamped.into_inner(), 0);
    }
}

#[test]
fn most_launches_in_a_turn_ask_nobody() {
    let stage = alone(yours(ms(1_000_000)), |role, program| {
        saturate(role, program, us(20), BEGIN + ms(200));
        let launches = 200_000 / 20;
        assert!(program.unasked.get() > launches * 8 / 10, "{} of {launches}", program.unasked.get());
    });
    stage.gpu(|gpu| {
        let count = |wanted: fn(&Did) -> bool| gpu.journal.iter().filter(|did| wanted(did)).count();
        let launches = count(|did| matches!(did, Did::Launch { .. }));
        let markers = count(|did| matches!(did, Did::Record(_)));
        assert!(launches > 9_500, "{launches}");
        assert!(markers < 1_400, "one for each 150 us at most: {markers}");
    });
}

/// What a saturating thread costs in its turn, for each millisecond of the GPU's time: it sleeps to a predicted time and does not look
/// whether it has come; a marker is a record and a write, and is asked for its time once.
#[test]
fn a_saturating_thread_sleeps_and_marks_as_seldom_as_the_bound_allows() {
    for (cost, late) in [(60, 0), (60, 60), (20, 0), (20, 60), (7, 30)] {
        let stage = Stage::new(1);
        stage.gpu(|gpu| gpu.late = us(late));
        let open = AtomicU32::new(0);
        let gate = Gate::new(&stage.regions[0], SLOT, &open);
        stage.play(&[&|role| yours(ms(1_000_000))(role), &|role| {
            role.sleep(us(100));
            saturate(role, &Program::new(&gate, role.edge(0)), us(cost), BEGIN + ms(200));
        }]);
        stage.gpu(|gpu| {
            let each = |wanted: fn(&Did) -> bool| {
                gpu.journal.iter().filter(|did| wanted(did)).count() as f64 / 200.0
            };
            let sleeps = each(|did| *did == Did::Sleep);
            let (records, writes) =
                (each(|did| matches!(did, Did::Record(_))), each(|did| matches!(did, Did::Write(_))));
            let asked = each(|did| *did == Did::Ask);
            let ran = gpu.ran[&0];
            let told = format!(
                "{cost} us, {late} us late: {sleeps} sleeps, {records} records, {writes} writes, {asked} questions per ms; ran {ran}"
            );
            assert!(sleeps < 4.0, "{told}");
            // The first one also asks whether the stream has run dry: no launch has waited yet. So
            // does every eighth.
            assert!(records < 2.0 && writes <= records && asked <= records * 9.0 / 8.0 + 0.05, "{told}");
            assert!(ran > ms(199), "the GPU runs dry: {told}");
        });
    }
}

#[test]
fn nothing_is_launched_out_of_turn() {
    let script = |role: &Role<'_>| {
        let mut epoch = 1;
        for _ in 0..20 {
            say(role.stage, 0, epoch, TurnState::Wait, Nanos::ZERO);
            role.sleep(us(200));
            let before = role.stage.gpu(|gpu| gpu.journal.len());
            role.sleep(ms(9));
            role.stage.grantors[0].beat();
            let after = role.stage.gpu(|gpu| {
                gpu.journal[before..].iter().filter(|did| matches!(did, Did::Launch { .. })).count()
            });
            assert_eq!(after, 0);
            say(role.stage, 0, epoch + 1, TurnState::Yours, ms(5));
            role.sleep(ms(5));
            epoch += 2;
        }
        say(role.stage, 0, epoch, TurnState::Open, Nanos::ZERO);
    };
    alone(script, |role, program| {
        while role.now() < BEGIN + ms(270) {
            program.launch(1, STREAM, us(60));
            role.sleep(us(3));
        }
        assert_eq!(program.cell().waiting.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_grant_is_exceeded_by_one_launch_at_most() {
    let stage = alone(
        |role| {
            say(role.stage, 0, 1, TurnState::Yours, ms(3));
            for _ in 0..100 {
                role.sleep(ms(1));
                role.stage.grantors[0].beat();
            }
            let ran = role.stage.gpu(|gpu| gpu.ran[&0]);
            assert!((ms(3) - us(150)..ms(3) + us(400)).contains(&ran), "{ran}");
            say(role.stage, 0, 2, TurnState::Open, Nanos::ZERO);
        },
        |role, program| {
            // Known kernels: three brackets before the turn counts.
            saturate(role, program, us(100), BEGIN + ms(50));
        },
    );
    assert!(stage.rings() >= 1);
}

#[test]
fn a_silent_monitor_opens_the_gate_after_a_second() {
    alone(
        |role| {
            say(role.stage, 0, 1, TurnState::Wait, Nanos::ZERO);
            for _ in 0..10 {
                role.sleep(ms(200));
                role.stage.grantors[0].beat();
            }
        },
        |role, program| {
            program.launch(1, STREAM, us(60));
            let waited = role.now() - BEGIN;
            assert!((ms(3000)..ms(3200)).contains(&waited), "{waited}");
            assert_eq!(program.counted(Reason::StaleMonitor), 1);
            let before = role.now();
            (0..1000).for_each(|_| program.launch(1, STREAM, us(60)));
            assert_eq!(role.now(), before, "open from then on");
            assert_eq!(program.cell().waiting.load(Ordering::Relaxed), 0);
        },
    );
}

/// Times in the grant page from before the world began, and from after its end: a turn is one all the same, and so is the end of it, as long as
/// the monitor lives.
#[test]
fn times_from_far_away_neither_wedge_nor_open_the_gate() {
    for (granted, until, bound) in [
        (Nanos::MAX, Nanos::ZERO, Nanos::ZERO),
        (Nanos::MAX, Nanos::MAX, Nanos::MAX),
        (Nanos(u64::MAX / 2), Nanos(1), Nanos(1)),
        (ms(50), Nanos::MAX, Nanos(u64::MAX - 1)),
        (ms(50), Nanos(1), Nanos(u64::MAX / 2 + 1)),
    ] {
        let stage = Stage::new(1);
        let open = AtomicU32::new(0);
        let gate = Gate::new(&stage.regions[0], SLOT, &open);
        let say = |epoch, state, granted| {
            stage.grantors[0].gpu(gpu()).bound.store(bound.0, Ordering::Relaxed);
            stage.grantors[0].set_turn(gpu(), Turn::new(epoch, state), granted, until);
            stage.grantors[0].turn_gate();
        };
        let beat_for = |role: &Role<'_>, time: Nanos| {
            for _ in 0..time.0 / ms(200).0 {
                role.sleep(ms(200));
                stage.grantors[0].beat();
            }
        };
        stage.play(&[
            &|role| {
                say(1, TurnState::Yours, granted);
                beat_for(role, ms(1000));
                say(2, TurnState::Wait, granted);
                beat_for(role, ms(5000));
                // Nothing is granted: as good as none.
                say(3, TurnState::Yours, Nanos::ZERO);
                beat_for(role, ms(3000));
                say(4, TurnState::Yours, granted);
                beat_for(role, ms(2000));
                say(5, TurnState::Open, granted);
            },
            &|role| {
                role.sleep(us(100));
                let program = Program::new(&gate, role.edge(0));
                // 30 ms of work: no more than any of them grants.
                for _ in 0..500 {
                    let before = role.now();
                    program.launch(1, STREAM, us(60));
                    assert!(role.now() - before < ms(10), "{granted} {until} {bound}");
                }
                role.sleep(BEGIN + ms(1500) - role.now());
                program.launch(1, STREAM, us(60));
                assert!(
                    role.now() >= BEGIN + ms(9000),
                    "{} under {granted} {until} {bound}",
                    role.now() - BEGIN
                );
                assert!(role.now() < BEGIN + ms(9100));
                assert_eq!(program.counted(Reason::StaleMonitor), 0);
            },
        ]);
    }
}

/// A process that was stopped for an hour, or whose clock has jumped by one, obeys a monitor that lives, and does not take its heart for stale.
#[test]
fn an_hour_that_nobody_saw_opens_no_gate() {
    const HOUR: Nanos = Nanos::from_millis(3_600_000);
    let back = BEGIN + ms(10) + HOUR;
    alone(
        |role| {
            say(role.stage, 0, 1, TurnState::Yours, ms(50));
            role.sleep(ms(10));
            role.sleep(HOUR);
            role.stage.grantors[0].beat();
            say(role.stage, 0, 2, TurnState::Wait, Nanos::ZERO);
            for _ in 0..10 {
                role.sleep(ms(200));
                role.stage.grantors[0].beat();
            }
            say(role.stage, 0, 3, TurnState::Yours, ms(50));
        },
        |role, program| {
            (0..20).for_each(|_| program.launch(1, STREAM, us(60)));
            role.sleep(back + ms(1) - role.now());
            program.launch(1, STREAM, us(60));
            assert!(role.now() >= back + ms(2000), "{} after it came back", role.now() - back);
            let before = role.now();
            (0..200).for_each(|_| program.launch(1, STREAM, us(60)));
            assert!(role.now() - before < ms(20), "what was launched before the hour is no burden");
            assert_eq!(program.counted(Reason::StaleMonitor), 0);
        },
    );
}

#[test]
fn a_launch_is_never_throttled_for_long() {
    // A kernel that waits for one that is launched after it, and another, and another.
    alone(yours(ms(1_000_000)), |role, program| {
        for _ in 0..5 {
            program.launch(1, STREAM, us(60));
        }
        program.launch(2, STREAM, Nanos::from_millis(3_600_000));
        for _ in 0..200 {
            let before = role.now();
            program.launch(1, STREAM, us(60));
            assert!(role.now() - before <= ms(2) + us(200), "{}", role.now() - before);
        }
        assert!(program.counted(Reason::BoundPassed) > 0);
    });
}

/// A host function waits for what is launched after it, on the same stream and on another one, and there is a neighbour. What the GPU waits for
/// is neither what a kernel costs nor what a turn is used up by, so all of it is launched in one turn.
#[test]
fn what_waits_for_the_host_uses_up_no_turn() {
    const OTHER: Stream = Stream { handle: 0x20, per_thread: false };
    let stage = Stage::new(2);
    let open = [AtomicU32::new(0), AtomicU32::new(0)];
    let gates = [0, 1].map(|place: usize| Gate::new(&stage.regions[place], SLOT, &open[place]));
    let end = BEGIN + ms(3000);
    let (rounds, longest) = (Mutex::new(0), Mutex::new(Nanos::ZERO));
    stage.play(&[
        &|role| {
            conduct(role, &[ms(6), ms(6)], end);
        },
        &|role| {
            role.sleep(us(100));
            let program = Program::new(&gates[0], role.edge(0));
            // The first one waits before its second launch is measured.
            while role.now() < end - ms(100) {
                let begun = role.now();
                program.launch(1, STREAM, us(100));
                program.place.host(STREAM, ms(40));
                for stream in [STREAM, OTHER] {
                    (0..5).for_each(|_| program.launch(1, stream, us(100)));
                }
                program.place.synchronize(OTHER);
                let mut longest = longest.lock().expect("nobody panicked");
                *longest = (*longest).max(role.now() - begun);
                program.place.synchronize(STREAM);
                *rounds.lock().expect("nobody panicked") += 1;
            }
            let cost = gates[0]
                .desk(gpu())
                .account
                .lock()
                .settlement
                .expect(Kernel::new(1, [1; 3], [32, 1, 1]))
                .cost;
            assert!((80_000..130_000).contains(&cost), "100 us are taken for {cost} ns");
        },
        &|role| {
            role.sleep(us(100));
            saturate(role, &Program::new(&gates[1], role.edge(1)), us(60), end);
        },
    ]);
    let (rounds, longest) = (rounds.into_inner().expect("it"), longest.into_inner().expect("it"));
    println!("{rounds} rounds, launched within {} us", longest.0 / 1000);
    // 40 ms each, and half of the GPU.
    assert!(rounds >= 50, "{rounds} rounds");
    assert!(longest <= ms(40), "{} us", longest.0 / 1000);
}

#[test]
fn several_streams_stay_within_the_bound() {
    let stage = alone(yours(ms(1_000_000)), |role, program| {
        for number in 0..20_000_usize {
            program.launch(number % 3, Stream { handle: 0x100 + number % 8, per_thread: false }, us(25));
            role.sleep(us(3));
        }
        let busy = Nanos(program.cell().busy.load(Ordering::Relaxed));
        assert!(busy > ms(490), "{busy}");
    });
    let (most, ran) = stage.gpu(|gpu| (gpu.most[&0], gpu.ran[&0]));
    assert!(most < us(1_500), "{most}");
    assert_eq!(ran, us(25 * 20_000));
}

/// Who may be pre-empted at any moment keeps less queued, and the GPU busy all the same.
#[test]
fn a_bound_that_is_told_is_kept() {
    for (bound, most_allowed) in [(us(0), us(560)), (us(250), us(350))] {
        let script = |role: &Role<'_>| {
            role.stage.grantors[0].gpu(gpu()).bound.store(bound.0, Ordering::Relaxed);
            say(role.stage, 0, 1, TurnState::Yours, ms(1_000_000));
        };
        let stage = alone(script, |role, program| saturate(role, program, us(60), BEGIN + ms(500)));
        let (most, ran) = stage.gpu(|gpu| (gpu.most[&0], gpu.ran[&0]));
        println!("bound {bound}: at most {most} queued, {ran} run");
        assert!(most <= most_allowed, "{bound}: {most}");
        assert!(ran >= ms(485), "{bound}: {ran}");
    }
}

#[test]
fn the_end_of_a_turns_work_is_reported_while_its_threads_are_held() {
    let script = |role: &Role<'_>| {
        say(role.stage, 0, 1, TurnState::Yours, ms(100));
        role.sleep(ms(20));
        say(role.stage, 0, 2, TurnState::Wait, Nanos::ZERO);
        let grantor = &role.stage.grantors[0];
        grantor.set_ring(gpu(), Some(SLOT));
        role.sleep(ms(2));
        let cell = role.stage.regions[0].cell(gpu(), SLOT);
        assert_eq!(cell.inflight.load(Ordering::Relaxed), 0);
        assert_eq!(cell.waiting.load(Ordering::Relaxed), 1);
        let (ran, busy) = (role.stage.gpu(|gpu| gpu.ran[&0]), Nanos(cell.busy.load(Ordering::Relaxed)));
        assert!(ran.0.abs_diff(busy.0) < 300_000, "ran {ran}, reported {busy}");
        assert_eq!(role.stage.rings(), 2, "held, drained");
        say(role.stage, 0, 3, TurnState::Open, Nanos::ZERO);
    };
    alone(script, |role, program| saturate(role, program, us(60), BEGIN + ms(30)));
}

#[test]
fn who_slept_through_its_turn_says_that_it_is_there() {
    let script = |role: &Role<'_>| {
        role.stage.grantors[0].set_ring(gpu(), None);
        say(role.stage, 0, 1, TurnState::Wait, Nanos::ZERO);
        role.sleep(ms(5));
        assert_eq!(role.stage.rings(), 1, "it came");
        // As a thread finds it that wakes late.
        for epoch in [3, 5] {
            say(role.stage, 0, epoch, TurnState::Wait, Nanos::ZERO);
            role.sleep(ms(5));
            assert_eq!(role.stage.rings(), u32::try_from(epoch.div_ceil(2)).unwrap());
        }
        let cell = role.stage.regions[0].cell(gpu(), SLOT);
        assert!(Nanos(cell.active.load(Ordering::Relaxed)) < BEGIN + ms(1), "it has launched nothing since");
        // Other news than a turn is none of its business.
        role.stage.grantors[0].turn_gate();
        role.sleep(ms(5));
        assert_eq!(role.stage.rings(), 3);
        say(role.stage, 0, 6, TurnState::Open, Nanos::ZERO);
    };
    alone(script, |_, program| program.launch(1, STREAM, us(60)));
}

#[test]
fn a_thread_with_gaps_is_seen_at_most_of_its_launches() {
    alone(yours(ms(1_000_000)), |role, program| {
        let mut longest = Nanos::ZERO;
        for round in 0..400 {
            program.launch(1, STREAM, us(20));
            program.place.synchronize(STREAM);
            role.sleep(us(100));
            if round > 50 {
                let active = Nanos(program.cell().active.load(Ordering::Relaxed));
                longest = longest.max(role.now() - active);
            }
        }
        assert!(longest < us(800), "silent for {longest}: the monitor would take it for idle");
        // 8 ms, and the way of each launch to the idle GPU.
        let busy = Nanos(program.cell().busy.load(Ordering::Relaxed));
        assert!((ms(8)..us(10_500)).contains(&busy), "{busy}");
    });
}

#[test]
fn a_thread_that_ends_gives_its_credit_back() {
    alone(yours(ms(1_000_000)), |role, program| {
        for _ in 0..20 {
            program.launch(1, STREAM, us(20));
            role.sleep(us(25));
        }
        role.sleep(ms(1));
        program.gate.ended(&program.thread, &program.place);
        let inflight = Nanos(program.cell().inflight.load(Ordering::Relaxed));
        assert!(inflight <= us(500), "{inflight}");
        let another = Program::new(program.gate, role.edge(0));
        role.sleep(ms(5));
        another.launch(1, Stream { handle: 0x99, per_thread: false }, us(20));
        role.sleep(ms(5));
        another.launch(1, Stream { handle: 0x99, per_thread: false }, us(20));
        let launches = another.cell().launches.load(Ordering::Relaxed);
        assert!(launches >= 20, "{launches}: all of the first one's are settled");
    });
}

#[test]
fn a_signal_handler_inside_the_gate_is_not_held_up() {
    alone(yours(ms(1)), |_, program| {
        assert!(program.thread.enter());
        for _ in 0..100 {
            program.launch(1, STREAM, us(60));
        }
        program.thread.leave();
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the program is like and whatever the monitor says, every launch goes on in the end, and the books close.
    #[test]
    fn nothing_wedges(
        launches in proptest::collection::vec((0_usize..5, 1_u64..3000, 0_u64..900, any::<bool>(), 0_usize..4), 20..150),
        turns in proptest::collection::vec((0_u8..3, 100_u64..9000), 1..40),
        dies in any::<bool>(),
    ) {
        let stage = alone(
            |role| {
                for (epoch, (state, length)) in turns.iter().enumerate() {
                    let state = [TurnState::Open, TurnState::Yours, TurnState::Wait][usize::from(*state)];
                    say(role.stage, 0, epoch as u64 + 1, state, us(*length));
                    role.stage.grantors[0].beat();
                    role.sleep(us(*length));
                }
                if !dies {
                    say(role.stage, 0, 1000, TurnState::Open, Nanos::ZERO);
                }
            },
            |role, program| {
                for (function, cost, gap, programmatic, stream) in &launches {
                    let stream = Stream { handle: 0x100 + stream, per_thread: false };
                    let before = role.now();
                    program.launch_as(*function, stream, us(*cost), *programmatic);
                    // All turns, a second for a monitor that died, a look or two.
                    assert!(role.now() - before < ms(360 + 1200));
                    role.sleep(us(*gap));
                }
                let cell = program.cell();
                assert_eq!(cell.waiting.load(Ordering::Relaxed), 0);
                program.gate.ended(&program.thread, &program.place);
                role.sleep(ms(1000));
                let busy = Nanos(cell.busy.load(Ordering::Relaxed));
                let ran = role.stage.gpu(|gpu| gpu.ran[&0]);
                assert!(busy <= ran + ms(launches.len() as u64), "{busy} of {ran}");
            },
        );
        drop(stage);
    }
}
