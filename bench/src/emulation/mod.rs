//! A GPU, its tenants and the monitor in virtual time: the unmodified gate and controller around
//! the timeline of the simulated GPU. An hour takes seconds, and a run is reproducible.
//!
//! ```text
//!   actor (a thread of a program)   actor ...          actor: the monitor
//!     gate (cgpu-launch)                                 controller (cgpu-scheduler)
//!        |        \___ region files, as between processes ___/ |
//!     driver calls                                             |
//!        +----------------- harness: time, timeline -----------+
//! ```
//!
//! Actors are threads of which one runs at a time; when it sleeps, the one that wakes next runs.
//! Sleeps and wake-ups have latencies of tens of microseconds, drawn from the seed. A program may
//! have several threads, each an actor, behind one gate. One more actor, the observer, reads what
//! the GPU and the tenants' reports have at given times.
//!
//! Not emulated: processes, the kernel's scheduler, and costs of the driver other than those of a
//! launch, an event and a memory write. Only the benchmarks in real time show their effect on
//! shares.

mod driver;
mod harness;
mod monitor;
mod observer;
mod program;

use anyhow::{Context, Result};
use cgpu_launch::gate::{DriverError, Gate};
use cgpu_scheduler::policy::Policy;
use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_shm::grant::GrantWriter;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::{State, Word};
use cgpu_shm::units::{DeviceIndex, Generation, Nanos, SlotIndex};
use cgpu_sim::settings::Figures;

use driver::Device;
use harness::{Harness, Role};
pub(crate) use observer::Observed;
use program::Process;
pub(crate) use program::{Grid, Program, Work};

/// The slot that each container uses.
const SLOT: SlotIndex = SlotIndex(0);

/// Returns the GPU's index in each container's table.
fn gpu() -> DeviceIndex {
    DeviceIndex::all().next().unwrap_or_else(|| unreachable!("a table has a first place"))
}

/// The code of a program's threads. It must return at the end of the run.
pub(crate) type Script<'a> = dyn Fn(&Program<'_>) -> Result<(), DriverError> + Sync + 'a;

/// A container with one program.
pub(crate) struct Tenant<'a> {
    pub(crate) weight: u32,
    /// Percentage of the GPU under fixed shares; `None`: by weight.
    pub(crate) percent: Option<u32>,
    /// Percentage of the GPU that it may take at high priority; `None`: it has none.
    pub(crate) high_priority: Option<u32>,
    pub(crate) script: &'a Script<'a>,
    /// Number of threads that run the script.
    pub(crate) threads: u32,
    /// Number of contexts of the program.
    pub(crate) contexts: u32,
}

impl<'a> Tenant<'a> {
    /// Creates a tenant with a weight and one thread.
    pub(crate) fn new(weight: u32, script: &'a Script<'a>) -> Self {
        Self { weight, percent: None, high_priority: None, script, threads: 1, contexts: 1 }
    }
}

/// The setup of a run.
pub(crate) struct Setup<'a> {
    pub(crate) figures: Figures,
    /// The policy; `None` for the GPU's own time slicing, without a monitor.
    pub(crate) policy: Option<Policy>,
    pub(crate) tenants: &'a [Tenant<'a>],
    pub(crate) seed: u64,
    /// Virtual time that it lasts.
    pub(crate) length: Nanos,
}

/// Number of words of a container that the GPU can write.
const PROGRESS: usize = 512;

/// A container's files, and the open gate word of its process.
struct Container {
    region: Region,
    grantor: GrantWriter,
    open: AtomicU32,
    /// Words that the GPU writes.
    progress: Vec<AtomicU64>,
    _directory: tempfile::TempDir,
}

impl Container {
    fn new() -> Result<Self> {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        Region::make(directory.path(), RegionSpec::default()).context("cannot make a region")?;
        let region = Region::open(directory.path()).context("cannot open the region")?;
        let grantor = GrantWriter::open(directory.path()).context("cannot open the grant page")?;
        let progress = (0..PROGRESS).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { region, grantor, open: AtomicU32::new(0), progress, _directory: directory })
    }

    /// Makes the slot live, as a process does when it starts.
    fn start(&self) {
        self.region.shared().header.high_water.store(1, Ordering::Relaxed);
        let live = Word::new(Generation::from_bits(1), State::Live);
        self.region.slot(SLOT).state.store(live.0, Ordering::Relaxed);
    }

    fn has_started(&self) -> bool {
        let word = Word(self.region.slot(SLOT).state.load(Ordering::Relaxed));
        word.state() == Some(State::Live)
    }
}

/// Runs a setup to its end.
pub(crate) fn run(setup: &Setup<'_>) -> Result<()> {
    observe(setup, &[]).map(drop)
}

/// Runs a setup to its end and returns the observations at these times: `[time][tenant]`.
pub(crate) fn observe(setup: &Setup<'_>, instants: &[Nanos]) -> Result<Vec<Vec<Observed>>> {
    let containers = setup.tenants.iter().map(|_| Container::new()).collect::<Result<Vec<_>>>()?;
    let mut actors: Vec<Option<usize>> = Vec::new();
    for (number, tenant) in setup.tenants.iter().enumerate() {
        actors.extend((0..tenant.threads).map(|_| Some(number)));
    }
    let observer = (!instants.is_empty()).then_some(actors.len());
    actors.extend(observer.map(|_| None));
    let monitor = actors.len();
    actors.push(None);

    let harness = Harness::new(&containers, &actors, setup.figures, setup.seed, setup.length);
    let device = |(number, tenant): (usize, &Tenant<'_>)| {
        Device::new(&harness, number, tenant.contexts).map_err(anyhow::Error::from)
    };
    let devices = setup.tenants.iter().enumerate().map(device).collect::<Result<Vec<_>>>()?;
    let processes = containers.iter().zip(&devices).map(|(container, device)| {
        let gate = Gate::new(&container.region, SLOT, &container.open);
        Process::new(container, gate, device)
    });
    let processes: Vec<Process<'_>> = processes.collect();

    let controller = setup.policy.map(monitor::Monitor::new);
    std::thread::scope(|scope| {
        let mut first = 0;
        let mut threads = Vec::new();
        for (tenant, process) in setup.tenants.iter().zip(&processes) {
            let actors = first..first + tenant.threads as usize;
            first = actors.end;
            for (number, actor) in (0..).zip(actors) {
                let harness = &harness;
                threads.push(scope.spawn(move || {
                    let role = Role::take(harness, actor);
                    let followed = (tenant.script)(&Program::new(process, number, &role));
                    followed.map_err(|DriverError| anyhow::anyhow!("the driver refused a call"))
                }));
            }
        }
        let observer = observer.map(|actor| {
            let (harness, controller) = (&harness, controller.as_ref());
            scope
                .spawn(move || observer::observe(&Role::take(harness, actor), controller, instants))
        });
        let role = Role::take(&harness, monitor);
        match &controller {
            Some(controller) => monitor::run(&role, controller, setup.tenants),
            None => role.sleep_until(role.end()),
        }
        drop(role);
        for thread in threads {
            joined(thread)?;
        }
        Ok(observer.map(joined).unwrap_or_default())
    })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests;
