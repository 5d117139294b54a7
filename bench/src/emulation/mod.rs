//! A GPU, its tenants and the monitor in virtual time: the gate and the controller as they are
//! shipped, around the simulated GPU's timeline. An hour takes seconds, and the same run comes out
//! the same each time.
//!
//! ```text
//!   actor (a thread of a program)   actor ...          actor: the monitor
//!     gate (cgpu-tenant)                                 controller (cgpu-monitor)
//!        |        \___ region files, as between processes ___/ |
//!     driver calls                                             |
//!        +------------------ world: time, timeline ------------+
//! ```
//!
//! Actors are threads of which one runs at a time; the one that sleeps lets run whichever wakes
//! next. Sleepers and wake-ups are late by tens of microseconds, drawn from the seed.
//!
//! Not in it: processes, the kernel's scheduler, the driver's own costs beyond those of a launch, an
//! event and a memory write. What these do to shares, only the benchmarks in real time show.

mod driver;
mod monitor;
mod world;

use anyhow::{Context, Result};
use cgpu_monitor::controller::policy::Policy;
use cgpu_proto::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_proto::grant::Grantor;
use cgpu_proto::region::{Birth, Region};
use cgpu_proto::slots::{State, Word};
use cgpu_proto::units::{CardIndex, Generation, Nanos, SlotIndex};
use cgpu_sim::settings::Figures;
use cgpu_tenant::gate::{ContextKey, Failed, Gate, Kernel, Launch, Stream, Thread};

use driver::Driver;
use world::{BEGIN, Role, World};

/// The only slot in use of each container.
const SLOT: SlotIndex = SlotIndex(0);

/// The GPU's place in each container's table.
fn gpu() -> CardIndex {
    CardIndex::all().next().unwrap_or_else(|| unreachable!("a table has a first place"))
}

/// What one program does; it ends when the run does, at the latest.
pub(crate) type Script<'a> = dyn Fn(&Program<'_>) -> Result<(), Failed> + Sync + 'a;

/// A container with one program of one thread.
pub(crate) struct Tenant<'a> {
    pub(crate) weight: u32,
    pub(crate) script: &'a Script<'a>,
}

/// What a run is made of.
pub(crate) struct Scene<'a> {
    pub(crate) figures: Figures,
    /// None: no monitor, so the GPU's own slicing.
    pub(crate) policy: Option<Policy>,
    pub(crate) tenants: &'a [Tenant<'a>],
    pub(crate) seed: u64,
    /// How long it lasts.
    pub(crate) length: Nanos,
}

/// A container's files, and its process's word of the open gate.
struct Home {
    region: Region,
    grantor: Grantor,
    open: AtomicU32,
    _directory: tempfile::TempDir,
}

impl Home {
    fn new() -> Result<Self> {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        Region::make(directory.path(), Birth::default()).context("cannot make a region")?;
        let region = Region::open(directory.path()).context("cannot open the region")?;
        region.shared().header.high_water.store(1, Ordering::Relaxed);
        let live = Word::new(Generation::from_bits(1), State::Live);
        region.slot(SLOT).state.store(live.0, Ordering::Relaxed);
        let grantor = Grantor::open(directory.path()).context("cannot open the grant page")?;
        Ok(Self { region, grantor, open: AtomicU32::new(0), _directory: directory })
    }
}

/// Runs a scene to its end.
pub(crate) fn run(scene: &Scene<'_>) -> Result<()> {
    let homes = scene.tenants.iter().map(|_| Home::new()).collect::<Result<Vec<_>>>()?;
    let world = World::new(&homes, scene.figures, scene.seed, scene.length);
    std::thread::scope(|scope| {
        let programs = scene.tenants.iter().enumerate().map(|(number, tenant)| {
            let (world, homes) = (&world, &homes);
            scope.spawn(move || {
                let role = Role::take(world, number);
                let home = &homes[number];
                let gate = Gate::new(&home.region, SLOT, &home.open);
                let driver = Driver::new(&role, number)?;
                let launched = AtomicU64::new(0);
                let program = Program { home, gate, thread: Thread::default(), driver, launched };
                (tenant.script)(&program).map_err(|Failed| anyhow::anyhow!("the driver refused a call"))
            })
        });
        let programs: Vec<_> = programs.collect();
        let role = Role::take(&world, homes.len());
        match scene.policy {
            Some(policy) => monitor::run(&role, policy, scene.tenants),
            None => role.sleep_until(role.end()),
        }
        drop(role);
        let ended = programs.into_iter().map(|program| match program.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect()
    })
}

/// A program of one thread, behind its gate.
pub(crate) struct Program<'a> {
    home: &'a Home,
    gate: Gate<'a>,
    thread: Thread,
    driver: Driver<'a>,
    launched: AtomicU64,
}

impl Program<'_> {
    /// Now, from the beginning of the run.
    pub(crate) fn now(&self) -> Nanos {
        self.driver.role.now() - BEGIN
    }

    /// Whether the run goes on.
    pub(crate) fn goes_on(&self) -> bool {
        self.driver.role.now() < self.driver.role.end()
    }

    /// Does nothing until then.
    pub(crate) fn sleep_until(&self, at: Nanos) {
        self.driver.role.sleep_until(BEGIN + at);
    }

    /// Launches a kernel that takes `cost`, as the shim does it.
    pub(crate) fn launch(&self, kernel: Kernel, stream: u32, cost: Nanos) -> Result<(), Failed> {
        self.launch_as(kernel, stream, cost, false)
    }

    /// The same; `programmatic`: it may begin before its predecessor has ended.
    fn launch_as(&self, kernel: Kernel, stream: u32, cost: Nanos, programmatic: bool) -> Result<(), Failed> {
        let stream = Stream { handle: 16 * (1 + stream as usize), per_thread: false };
        let word = self.home.region.granted().gate();
        if word == self.home.open.load(Ordering::Relaxed) || self.thread.spend(word, kernel, stream) {
            self.driver.launch(stream, cost)?;
        } else {
            let (context, card) = (ContextKey(1), gpu());
            let launch = Launch { kernel, stream, context, card, programmatic, asks: false };
            let passed = self.gate.pass(&self.thread, launch, &self.driver, &self.driver);
            let answer = self.driver.launch(stream, cost);
            if let Some(passed) = passed {
                self.gate.launched(&self.thread, passed, answer.is_ok(), &self.driver, &self.driver);
            }
            answer?;
        }
        self.launched.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until all that was launched has run.
    pub(crate) fn synchronize(&self) {
        self.driver.synchronize();
    }

    /// GPU time that its work really ran, as the GPU counts it.
    pub(crate) fn ran(&self) -> Nanos {
        self.driver.ran()
    }
}

#[cfg(test)]
mod tests;
