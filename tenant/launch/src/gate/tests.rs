#![allow(clippy::cast_precision_loss, reason = "times far below 2^52 ns")]

use std::cell::RefCell;
use std::sync::Mutex;

use cgpu_shm::atomic::{AtomicU32, Ordering};
use cgpu_shm::grant::TurnState;
use cgpu_shm::units::Nanos;
use proptest::prelude::*;

use self::fake_driver::{Command, FakeDriver};
use self::harness::{BEGIN, Harness, Role, SLOT};
use self::monitor::{gpu, run_turns, set_turn};
use super::*;

mod bounds;
mod fake_driver;
mod grants;
mod harness;
mod markers;
mod monitor;
mod open;
mod shapes;
mod siblings;
mod synchronized;
mod turns;

const STREAM: Stream = Stream { handle: 0x10, per_thread: false };
const CONTEXT: ContextKey = ContextKey(0x1000);

fn ms(time: u64) -> Nanos {
    Nanos::from_millis(time)
}

fn us(time: u64) -> Nanos {
    Nanos::from_micros(time)
}

struct Program<'a, 'r, 's> {
    gate: &'a Gate<'r>,
    thread: Thread,
    driver: FakeDriver<'a, 's>,
    /// Launches on the thread's own budget.
    fast: std::cell::Cell<u64>,
    /// The thread's current context.
    context: std::cell::Cell<ContextKey>,
}

impl<'a, 'r, 's> Program<'a, 'r, 's> {
    fn new(gate: &'a Gate<'r>, driver: FakeDriver<'a, 's>) -> Self {
        Self {
            gate,
            thread: Thread::default(),
            driver,
            fast: std::cell::Cell::new(0),
            context: std::cell::Cell::new(CONTEXT),
        }
    }

    /// Launches as the shim does.
    fn launch(&self, function: usize, stream: Stream, cost: Nanos) {
        self.launch_as(function, stream, cost, false);
    }

    fn launch_as(&self, function: usize, stream: Stream, cost: Nanos, programmatic: bool) {
        self.launch_kernel(Kernel::new(function, [1; 3], [32, 1, 1]), stream, cost, programmatic);
    }

    fn launch_kernel(&self, kernel: Kernel, stream: Stream, cost: Nanos, programmatic: bool) {
        let word = self.gate.region.grant().gate();
        if word == self.gate.open.load(Ordering::Relaxed) || self.thread.spend(word, kernel, stream)
        {
            self.fast.set(self.fast.get() + 1);
            self.driver.launch(stream, cost, programmatic);
            return;
        }
        let launch = Launch {
            kernel,
            stream,
            context: self.context.get(),
            gpu: gpu(),
            programmatic,
            variable_cost: false,
        };
        let admitted = self.gate.before_launch(&self.thread, launch, &self.driver, &self.driver);
        self.driver.launch(stream, cost, programmatic);
        if let Some(admitted) = admitted {
            self.gate.after_launch(&self.thread, admitted, true, &self.driver, &self.driver);
        }
    }

    fn cell(&self) -> &cgpu_shm::layout::Cell {
        self.gate.region.cell(gpu(), SLOT)
    }

    fn counted(&self, reason: Reason) -> u32 {
        self.gate.region.slot(SLOT).counter[reason as usize].load(Ordering::Relaxed)
    }
}

/// Makes a gate for each tenant of a harness.
fn gates<'a, const N: usize>(harness: &'a Harness, opens: &'a [AtomicU32; N]) -> [Gate<'a>; N] {
    core::array::from_fn(|tenant| {
        let (container, slot) = harness.homes[tenant];
        Gate::new(&harness.regions[container], slot, &opens[tenant])
    })
}

/// Launches continuously, as fast as a host can, until `end`.
fn saturate(role: &Role<'_>, program: &Program<'_, '_, '_>, cost: Nanos, end: Nanos) {
    while role.now() < end {
        // The driver's own queue holds about a thousand launches; no program here fills it.
        program.launch(1, STREAM, cost);
        role.sleep(us(3));
    }
}

/// Runs one container's program under a monitor that follows `script`.
fn alone(
    script: impl Fn(&Role<'_>) + Sync,
    program: impl Fn(&Role<'_>, &Program<'_, '_, '_>) + Sync,
) -> Harness {
    let harness = Harness::new(1);
    let open = AtomicU32::new(0);
    let gate = Gate::new(&harness.regions[0], SLOT, &open);
    harness.run(&[&|role| script(role), &|role| {
        role.sleep(us(100));
        program(role, &Program::new(&gate, role.platform(0)));
    }]);
    drop(gate);
    harness
}

fn yours(granted: Nanos) -> impl Fn(&Role<'_>) + Sync {
    move |role| set_turn(role.harness, 0, 1, TurnState::Yours, granted)
}

#[test]
fn without_a_monitor_the_gate_is_open() {
    let harness = alone(
        |_| {},
        |role, program| {
            saturate(role, program, us(60), BEGIN + ms(5));
            assert_eq!(program.cell().launches.load(Ordering::Relaxed), 0);
        },
    );
    assert!(harness.gpu(|gpu| gpu.log.iter().all(|did| matches!(did, Command::Launch { .. }))));
}

#[test]
fn open_gpu_costs_one_slow_path_per_gate_word() {
    let bump = |role: &Role<'_>| {
        for _ in 0..10 {
            set_turn(role.harness, 0, 1, TurnState::Open, Nanos::ZERO);
            role.sleep(ms(1));
        }
    };
    let harness = alone(bump, |role, program| {
        let slow = RefCell::new(0);
        while role.now() < BEGIN + ms(9) {
            let before = program.fast.get();
            program.launch(1, STREAM, us(1));
            *slow.borrow_mut() += u64::from(program.fast.get() == before);
            role.sleep(us(3));
        }
        assert!((9..=10).contains(&*slow.borrow()), "{slow:?}");
    });
    assert_eq!(harness.notifications(), 1, "activity after a silence, once");
    assert!(harness.gpu(|gpu| gpu.log.iter().all(|did| matches!(did, Command::Launch { .. }))));
}

#[test]
fn exited_thread_drops_its_budget() {
    alone(yours(ms(1_000_000)), |role, program| {
        for _ in 0..20 {
            program.launch(1, STREAM, us(20));
            role.sleep(us(25));
        }
        role.sleep(ms(1));
        program.gate.thread_exited(&program.thread, &program.driver);
        let inflight = Nanos(program.cell().inflight.load(Ordering::Relaxed));
        assert!(inflight <= us(500), "{inflight}");
        let another = Program::new(program.gate, role.platform(0));
        role.sleep(ms(5));
        another.launch(1, Stream { handle: 0x99, per_thread: false }, us(20));
        role.sleep(ms(5));
        another.launch(1, Stream { handle: 0x99, per_thread: false }, us(20));
        let launches = another.cell().launches.load(Ordering::Relaxed);
        assert!(launches >= 20, "{launches}: all of the first one's are measured");
    });
}

#[test]
fn launch_from_a_signal_handler_inside_the_gate_is_not_held() {
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

    /// For any program and any monitor, every launch proceeds in the end, and no more is charged
    /// than ran.
    #[test]
    fn every_launch_proceeds_in_the_end(
        launches in proptest::collection::vec((0_usize..5, 1_u64..3000, 0_u64..900, any::<bool>(),
            0_usize..4), 20..150),
        turns in proptest::collection::vec((0_u8..3, 100_u64..9000), 1..40),
        dies in any::<bool>(),
    ) {
        let harness = alone(
            |role| {
                for (epoch, (state, length)) in turns.iter().enumerate() {
                    let state = [TurnState::Open, TurnState::Yours,
                        TurnState::Wait][usize::from(*state)];
                    set_turn(role.harness, 0, epoch as u64 + 1, state, us(*length));
                    role.harness.grantors[0].beat();
                    role.sleep(us(*length));
                }
                if !dies {
                    set_turn(role.harness, 0, 1000, TurnState::Open, Nanos::ZERO);
                }
            },
            |role, program| {
                for (function, cost, gap, programmatic, stream) in &launches {
                    let stream = Stream { handle: 0x100 + stream, per_thread: false };
                    let before = role.now();
                    program.launch_as(*function, stream, us(*cost), *programmatic);
                    // All turns, a second for an exited monitor, a poll or two.
                    assert!(role.now() - before < ms(360 + 1200));
                    role.sleep(us(*gap));
                }
                let cell = program.cell();
                assert_eq!(cell.waiting.load(Ordering::Relaxed), 0);
                program.gate.thread_exited(&program.thread, &program.driver);
                role.sleep(ms(1000));
                let busy = Nanos(cell.busy.load(Ordering::Relaxed));
                let ran = role.harness.gpu(|gpu| gpu.ran[&0]);
                assert!(busy <= ran + ms(launches.len() as u64), "{busy} of {ran}");
            },
        );
        drop(harness);
    }
}
