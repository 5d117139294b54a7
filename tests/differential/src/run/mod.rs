//! A run of steps that are drawn from a seed and compared with the model.

mod compare;
mod draw;
mod gpus;
mod judge;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use gpus::Gpu;

use crate::actor::{Actor, Second, Setup, Wall};
use crate::command::{Command, GraphStep, Mode, Step, Thread};
use crate::model::{Exported, MIB, Model, Process, Progress};
use crate::oracle::Oracle;
use crate::random::Random;

/// `CUDA_ERROR_UNKNOWN`, with which the simulated driver refuses on request. No call of a run
/// returns it otherwise.
const FORCED_ERROR: i32 = 999;
/// Timeout until the ledger and the GPU have released the memory of exited processes.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time until the simulated GPU notices that a process has exited.
const EXIT_NOTICE_DELAY: Duration = Duration::from_millis(50);

/// What a run consists of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all draws.
    pub seed: u64,
    /// Number of steps.
    pub operations: u64,
    /// Processes of the container.
    pub processes: usize,
    /// The container's limit in MiB.
    pub limit_mib: u64,
    /// Whether the driver refuses some of the calls.
    pub refusals: bool,
    /// A process is killed once in this many steps.
    pub kill_once_in: u64,
    /// Kinds of steps to draw beside the basic ones.
    pub routes: Vec<Route>,
    /// Whether `cuMemGetInfo` is compared after every step, not only when it is drawn.
    pub compare_always: bool,
    /// The driver's own limit, if all processes are to be in a limited control group.
    pub wall: Option<Wall>,
}

/// A family of calls that a run may leave out. A seed repeats its run only with the same families.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Memory exchanged between processes, by handle and by descriptor
    Exchange,
    /// Graphs that allocate
    Graphs,
    /// Green contexts
    Green,
    /// Limits of contexts, and modules
    Implicit,
    /// Three-dimensional and mipmapped arrays
    Shapes,
    /// Pools with a release threshold, trimmed and destroyed, and their memory freed by other calls
    Trims,
    /// Libraries, which look-ups load into contexts
    Libraries,
    /// Graphs built node by node, with children and conditions, by all their calls
    Nodes,
    /// Graphs built by stream capture
    Captures,
    /// Code loaded by first launches and look-ups
    Lazy,
    /// Multicast objects, logical endpoints and locality domains, on a GPU that has them
    Bound,
    /// Sparse arrays with mapped tiles
    Sparse,
    /// Memory of another interface
    External,
    /// Processes that checkpoint each other
    Checkpoint,
    /// A second GPU with its own limit, which some programs see before the first one
    Gpus,
    /// Several threads of each process
    Threads,
    /// Two-dimensional arrays by their own entry points
    Flat,
    /// Pools with a maximum size, in locality domains, or set as current pool; resets with them
    Pools,
    /// Created streams: memory is allocated in one and freed in another
    Streams,
    /// Older names and per-thread variants of entry points, drawn by the actor; 32-bit addresses
    Names,
    /// Contexts with counted uses
    Uses,
    /// Handles whose memory is mapped several times, in parts, and unmapped so
    Ranges,
}

impl Route {
    /// Returns whether steps of this family are drawn more often. These families are newer than
    /// seeds that must still repeat their run, so they must not change the draws of runs without
    /// them.
    fn is_drawn_more(self) -> bool {
        matches!(self, Self::Nodes | Self::Captures | Self::Lazy)
    }
}

/// The object of a descriptor in transit between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Physical memory.
    Physical,
    /// A pool.
    Pool,
    /// Another interface's memory.
    Foreign,
    /// A multicast object.
    Object,
}

/// `CGPU_SIM_DRIVER` of a driver that limits control groups.
const WALL_DRIVER: u32 = 13_040;

/// Further functions that the driver refuses in runs with a newer family. Older runs keep their
/// list, because a name's place in it determines its draws.
const MORE_THAT_REFUSES: [&str; 19] = [
    "cuArrayCreate",
    "cuArrayCreate_v2",
    "cuMemPoolCreate",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamDestroy",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemFreeAsync_ptsz",
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemFree",
    "cuCtxCreate",
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuCtxDestroy",
    "cuCtxAttach",
    "cuCtxDetach",
    "cuMemAddressReserve",
];

/// Functions that it refuses in runs with graphs built node by node, captures or code.
const GRAPHS_AND_CODE_THAT_REFUSE: [&str; 14] = [
    "cuGraphAddNode_v2",
    "cuGraphAddNode_v3",
    "cuGraphInstantiate",
    "cuGraphInstantiate_v2",
    "cuGraphInstantiateWithParams",
    "cuGraphUpload",
    "cuGraphExecUpdate",
    "cuGraphExecUpdate_v2",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuFuncLoad",
    "cuKernelGetFunction",
];

impl Plan {
    /// Returns the second GPU, which has a smaller limit.
    fn second(&self) -> Second {
        Second { limit_mib: self.limit_mib / 4 * 3, swapped: false }
    }

    fn has(&self, route: Route) -> bool {
        self.routes.contains(&route)
    }

    /// Returns the further functions that the driver refuses.
    fn more_that_refuses(&self) -> &'static [&'static str] {
        use Route::{Flat, Names, Pools, Ranges, Streams, Uses};
        let newer = [Flat, Pools, Streams, Names, Uses, Ranges];
        if newer.iter().any(|route| self.routes.contains(route)) { &MORE_THAT_REFUSES } else { &[] }
    }

    /// Returns the further functions of graphs and code that the driver refuses.
    fn graphs_and_code_that_refuse(&self) -> &'static [&'static str] {
        let newer = self.routes.iter().any(|route| route.is_drawn_more());
        if newer { &GRAPHS_AND_CODE_THAT_REFUSE } else { &[] }
    }

    /// Returns whether the GPU has a switch and two locality domains. Otherwise it is a small one.
    fn is_of_two_domains(&self) -> bool {
        self.routes.contains(&Route::Bound)
    }
}

/// Counts of a run that found no disagreement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Steps performed.
    pub operations: u64,
    /// Allocations that were granted.
    pub granted: u64,
    /// Allocations refused by the limit.
    pub over_limit: u64,
    /// Allocations refused by the driver.
    pub by_driver: u64,
    /// Processes killed.
    pub kills: u64,
    /// Maximum excess over the limit in bytes.
    pub overshoot: u64,
    /// Bytes that the ledger or a GPU still has at the end.
    pub leak: u64,
}

/// Files of a run.
#[derive(Clone, Debug)]
pub struct Files {
    /// `target/test`.
    pub dist: PathBuf,
    /// The actor's program.
    pub actor: PathBuf,
    /// Folder of this run, in memory.
    pub folder: PathBuf,
}

struct Run<'a> {
    plan: &'a Plan,
    setup: Setup,
    random: Random,
    model: Model,
    actors: Vec<Actor>,
    /// An observer process without a context.
    observer: Actor,
    oracle: Oracle,
    /// Maximum that the ledger may have for exited processes, in bytes.
    exited: u64,
    /// Maximum that the driver may have taken beyond that.
    exited_slack: u64,
    next_key: u32,
    /// Descriptors in transit between processes.
    descriptors: BTreeMap<u32, (Kind, OwnedFd)>,
    /// Other interfaces' memory of exited processes, which the GPU may still have.
    exited_foreign: Vec<u32>,
    /// When a program last exited or executed another one.
    last_end: Option<Instant>,
    outcome: Outcome,
    /// The GPU whose turn it is: `model`, `oracle` and the fields for exited processes describe it.
    gpu: usize,
    /// State of the GPU whose turn it is not.
    other: Option<Gpu>,
}

/// Runs a plan. `progress` is called after every thousand steps.
///
/// # Errors
/// The first step that disagrees with the model. The error names the seed.
pub fn run_plan(plan: &Plan, files: &Files, progress: impl FnMut(u64)) -> Result<Outcome> {
    run_steps(plan, files, progress).with_context(|| format!("seed {}", plan.seed))
}

fn run_steps(plan: &Plan, files: &Files, mut progress: impl FnMut(u64)) -> Result<Outcome> {
    let mut run = Run::start(plan, files)?;
    for step in 1..=plan.operations {
        run.step().with_context(|| format!("step {step}"))?;
        if step % 1000 == 0 {
            run.oracle.check_gpu()?;
            progress(step);
        }
    }
    run.end()
}

impl<'a> Run<'a> {
    fn start(plan: &'a Plan, files: &Files) -> Result<Self> {
        let container = files.folder.join("container");
        std::fs::create_dir_all(&container)?;
        // Arrays are left out: the shim creates some itself to measure them.
        let names = [
            "cuMemAlloc_v2",
            "cuMemAllocPitch_v2",
            "cuMemFree_v2",
            "cuMemCreate",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemRelease",
            "cuMemRetainAllocationHandle",
            "cuMemAllocAsync",
            "cuMemFreeAsync",
            "cuCtxCreate_v2",
            "cuCtxDestroy_v2",
        ];
        let shared = [
            "cuIpcGetMemHandle",
            "cuIpcOpenMemHandle_v2",
            "cuIpcCloseMemHandle",
            "cuMemExportToShareableHandle",
            "cuMemImportFromShareableHandle",
            "cuMemAllocFromPoolAsync",
            "cuMemPoolExportToShareableHandle",
            "cuMemPoolImportFromShareableHandle",
            "cuMemPoolExportPointer",
            "cuMemPoolImportPointer",
            "cuGraphAddMemAllocNode",
            "cuGraphInstantiateWithFlags",
            "cuGraphLaunch",
            "cuGreenCtxCreate",
            "cuCtxSetLimit",
            "cuModuleLoadData",
            "cuLibraryGetModule",
            "cuLibraryGetGlobal",
            "cuMulticastCreate",
            "cuMulticastBindMem",
            "cuMulticastUnbind",
            "cuLogicalEndpointCreate",
            "cuLogicalEndpointBindMem",
            "cuLogicalEndpointUnbind",
            "cuLogicalEndpointDestroy",
            "cuMemMapArrayAsync",
            "cuImportExternalMemory",
            "cuExternalMemoryGetMappedBuffer",
            "cuDestroyExternalMemory",
            "cuCheckpointProcessLock",
            "cuCheckpointProcessCheckpoint",
            "cuCheckpointProcessRestore",
            "cuCheckpointProcessUnlock",
        ];
        let faults: Vec<String> = names
            .iter()
            .chain(&shared)
            .chain(plan.more_that_refuses())
            .chain(plan.graphs_and_code_that_refuse())
            .map(|name| format!("{name}:p0.03:{FORCED_ERROR}"))
            .collect();
        let faults = faults.join(",");
        let gpus = if plan.has(Route::Gpus) { 2 } else { 1 };
        let setup = Setup {
            dist: files.dist.clone(),
            actor: files.actor.clone(),
            state: files.folder.join("gpus"),
            gpus: vec![if plan.is_of_two_domains() { "B200:183359" } else { "A10:23028" }; gpus]
                .join(","),
            driver: match &plan.wall {
                _ if plan.is_of_two_domains() => 13_050,
                Some(_) => WALL_DRIVER,
                None => 13_000,
            },
            wall: plan.wall.clone(),
            container,
            limit_mib: plan.limit_mib,
            second: plan.has(Route::Gpus).then(|| plan.second()),
            faults: None,
            names: plan.routes.contains(&Route::Names),
        };
        let _limited = plan.wall.as_ref().map(|wall| wall.set(&setup)).transpose()?;
        // The first context measures what one takes on this GPU: alone, and with a driver that
        // refuses nothing.
        let mut first = Actor::start(&setup, plan.seed)?;
        ensure!(first.perform(&Command::Init)?.code == 0, "the first cuInit was refused");
        for gpu in 0..gpus {
            let step = Step { gpu, ..Step::from(Command::ContextCreate { context: 1 }) };
            ensure!(first.take(&step)?.code == 0, "the first {step:?} was refused");
        }
        let oracles = (0..gpus)
            .map(|gpu| Ok(Oracle::open(&setup.container, &setup.state, &setup.gpus)?.of_gpu(gpu)));
        let mut oracles = oracles.collect::<Result<Vec<_>>>()?.into_iter();
        let oracle = oracles.next().context("a GPU")?;
        let context = oracle.context_cost();
        if let Some(wall) = &plan.wall {
            ensure!(
                oracle.used_by(&wall.group)? == context,
                "the driver does not charge the group"
            );
        }
        first.kill()?;
        // No other process observes the GPU meanwhile, and the ledger forgets exited processes
        // after a fixed time.
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        while oracle.gpu_memory()? > 0 {
            ensure!(Instant::now() < deadline, "the GPU does not release the first process");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut observer = Actor::start(&setup, plan.seed)?;
        ensure!(observer.perform(&Command::Init)?.code == 0, "the observer's cuInit was refused");

        let setup = Setup { faults: plan.refusals.then_some(faults), ..setup };
        let mut random = Random::of(plan.seed);
        let actors =
            (0..plan.processes).map(|_| start(&setup, &mut random)).collect::<Result<Vec<_>>>()?;
        let processes = vec![Process::default(); plan.processes];
        let limit = plan.limit_mib * MIB;
        let model = Model {
            limit,
            context,
            processes,
            exported: BTreeMap::new(),
            orphans: 0,
            foreign: BTreeMap::new(),
        };
        let other = oracles.next().map(|oracle| {
            let limit = plan.second().limit_mib * MIB;
            Gpu::new(1, Model { limit, ..model.clone() }, oracle, context)
        });
        Ok(Self {
            plan,
            setup,
            random,
            model,
            actors,
            observer,
            oracle,
            exited: context,
            exited_slack: 0,
            next_key: 1,
            descriptors: BTreeMap::new(),
            exited_foreign: Vec::new(),
            last_end: None,
            outcome: Outcome::default(),
            gpu: 0,
            other,
        })
    }

    fn step(&mut self) -> Result<()> {
        if self.plan.has(Route::Gpus) && self.random.once_in(3) {
            self.turn();
        }
        let index = usize::try_from(self.random.below(self.actors.len() as u64))?;
        self.outcome.operations += 1;
        if self.random.once_in(self.plan.kill_once_in) {
            self.replace(index)?;
            return self.compare_memory_info(index).context("after a kill");
        }
        if !self.descriptors.is_empty() && self.random.once_in(200) {
            self.descriptors.pop_first();
            // Memory that only the descriptor held is released as that of an exited process is.
            self.last_end = Some(Instant::now());
        }
        let index = self.free_to_go(index);
        let command = self.draw(index);
        if let Command::GreenCreate { .. }
        | Command::ModuleLoad { .. }
        | Command::LibraryUse { .. }
        | Command::Code(_) = command
        {
            self.wait_for_release()?;
        }
        let Some(actor) = self.actors.get_mut(index) else { bail!("no actor {index}") };
        if let Command::PhysicalImport { exported, .. }
        | Command::PoolImport { exported, .. }
        | Command::ObjectImport { exported, .. }
        | Command::ExternalImport { key: exported, .. } = command
        {
            let (_, descriptor) = self.descriptors.get(&exported).context("no such descriptor")?;
            actor.line().send(descriptor.as_fd())?;
        }
        let thread =
            if self.plan.has(Route::Threads) { thread(&mut self.random) } else { Thread::First };
        // A capture that is not relaxed belongs to one thread.
        let strict = self.model.processes[index].drawn.is_strict() || is_strict(&command);
        let thread = if strict { Thread::First } else { thread };
        let step = Step { command, gpu: self.gpu, thread };
        let answer = actor.take(&step)?;
        let command = &step.command;
        if let Err(error) = self.judge(index, command, &answer) {
            let (accounting, gpu, exited) =
                (self.oracle.total()?, self.oracle.gpu_memory()?, self.exited);
            bail!(
                "actor {index}: {step:?} -> {answer:?}: {error:#} ({accounting:?}, {gpu} on the \
                 GPU, {exited} of exited processes)"
            );
        }
        let compared =
            self.compare_all(index, command).and_then(|()| self.compare_memory_info(index));
        compared.with_context(|| format!("after actor {index}: {step:?} -> {answer:?}"))
    }

    /// Compares `cuMemGetInfo` if the plan says so, in this process or the next one that has a
    /// context.
    fn compare_memory_info(&mut self, index: usize) -> Result<()> {
        if !self.plan.compare_always {
            return Ok(());
        }
        let all = self.actors.len();
        let can = |index: &usize| {
            let process = &self.model.processes[*index];
            process.progress == Progress::Running && !process.contexts.is_empty()
        };
        let Some(index) = (index..index + all).map(|index| index % all).find(can) else {
            return Ok(());
        };
        let contexts = &self.model.processes[index].contexts;
        // Contexts take turns.
        let turn = usize::try_from(self.outcome.operations)? % contexts.len();
        let command = Command::MemoryInfo { context: contexts[turn] };
        let step = Step { command: command.clone(), gpu: self.gpu, thread: Thread::First };
        let answer = self.actors[index].take(&step)?;
        self.judge(index, &command, &answer)
            .with_context(|| format!("actor {index}: {command:?} -> {answer:?}"))
    }

    /// Compares ledger, GPU and getters with the model, for the process that acted and the one
    /// acted on.
    fn compare_all(&mut self, index: usize, command: &Command) -> Result<()> {
        self.compare(index)?;
        if let Command::Checkpoint { pid } | Command::Restore { pid } = *command {
            let other = self.place_of(pid).context("no such process")?;
            self.on_each_gpu(|run| run.compare_process(other))
                .into_iter()
                .collect::<Result<()>>()?;
        }
        let answer =
            self.observer.take(&Step { gpu: self.gpu, ..Step::from(Command::NvmlQuery) })?;
        self.judge_nvml(&answer).with_context(|| format!("{answer:?}"))
    }

    /// Returns this process, or the next one that is not locked. There is one, since no process
    /// locks itself.
    fn free_to_go(&self, index: usize) -> usize {
        let all = self.actors.len();
        let is_free = |index: &usize| self.model.processes[*index].progress == Progress::Running;
        (index..index + all).map(|index| index % all).find(is_free).unwrap_or(index)
    }

    /// Waits until the memory of exited processes is gone. The next command is measured by the
    /// GPU's free memory, which their release would raise.
    fn wait_for_release(&mut self) -> Result<()> {
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        while !self.is_released()? || self.oracle.draining()? > 0 {
            ensure!(Instant::now() < deadline, "the memory of exited processes is not released");
            std::thread::sleep(Duration::from_millis(5));
            // Without a monitor a live process reclaims the slots of exited ones.
            self.observer.perform(&Command::NvmlQuery)?;
        }
        Ok(())
    }

    /// Returns whether the GPU has released the memory of exited processes.
    fn is_released(&self) -> Result<bool> {
        // Until an observation the GPU takes exited processes, and programs before an `exec`, for
        // live ones.
        if self.last_end.is_some_and(|end| end.elapsed() < EXIT_NOTICE_DELAY) {
            return Ok(false);
        }
        let living: Vec<u32> = self.actors.iter().chain([&self.observer]).map(Actor::pid).collect();
        self.oracle.holds_only(&living)
    }

    fn place_of(&self, pid: u32) -> Option<usize> {
        self.actors.iter().position(|actor| actor.pid() == pid)
    }

    /// Replaces a process that has exited by a new one in the model.
    fn remove_process(&mut self, index: usize) {
        self.on_each_gpu(|run| run.remove_process_here(index));
    }

    fn remove_process_here(&mut self, index: usize) {
        let process = std::mem::take(&mut self.model.processes[index]);
        self.exited_slack += process.slack();
        self.exited += self.model.of(&process) + process.stale();
        self.model.orphans += process.outlives();
        self.exited_foreign.extend(process.holds_of_others());
        self.last_end = Some(Instant::now());
        for exported in process.exports() {
            if let Some(exported) = self.model.exported.get_mut(&exported) {
                exported.maker_exited = true;
            }
        }
    }

    /// Records exported memory, and forgets exports that no process can have any more.
    fn enter_export(&mut self, name: u32, exported: Exported) {
        let (model, descriptors) = (&self.model, &self.descriptors);
        let known = |name: u32| {
            model.maker(name).is_some()
                || model.is_imported(name)
                || descriptors.contains_key(&name)
        };
        let gone: Vec<u32> = model.exported.keys().copied().filter(|name| !known(*name)).collect();
        for name in gone {
            self.model.exported.remove(&name);
        }
        self.model.exported.insert(name, exported);
    }

    /// Kills a process and starts another one in its place.
    fn replace(&mut self, index: usize) -> Result<()> {
        self.remove_process(index);
        let successor = start(&self.setup, &mut self.random)?;
        let Some(place) = self.actors.get_mut(index) else { bail!("no actor {index}") };
        std::mem::replace(place, successor).kill()?;
        self.last_end = Some(Instant::now());
        self.outcome.kills += 1;
        Ok(())
    }

    /// Kills all processes and measures what is left.
    fn end(self) -> Result<Outcome> {
        let Self { actors, observer, oracle, setup, mut outcome, other, .. } = self;
        let mut oracles: Vec<Oracle> =
            other.into_iter().map(Gpu::into_oracle).chain([oracle]).collect();
        for actor in actors.into_iter().chain([observer]) {
            actor.kill()?;
        }
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        loop {
            // Without a monitor the next process reclaims the slots of exited ones.
            let mut reclaimer = Actor::start(&Setup { faults: None, ..setup.clone() }, 0)?;
            ensure!(reclaimer.perform(&Command::Init)?.code == 0, "the last cuInit was refused");
            reclaimer.kill()?;
            let left =
                oracles.iter_mut().map(|oracle| Ok((oracle.total()?.all, oracle.gpu_memory()?)));
            let left = left.collect::<Result<Vec<_>>>()?;
            outcome.leak = left.iter().map(|(accounting, gpu)| accounting.max(gpu)).sum();
            if outcome.leak == 0 {
                return Ok(outcome);
            }
            ensure!(Instant::now() < deadline, "left in the ledger and on the GPUs: {left:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Starts a process. With two GPUs, every second process sees them in reverse order.
fn start(setup: &Setup, random: &mut Random) -> Result<Actor> {
    let seed = random.below(u64::MAX);
    let second = setup.second.map(|second| Second { swapped: random.once_in(2), ..second });
    Actor::start(&Setup { second, ..setup.clone() }, seed)
}

/// Returns whether the command begins a capture that only its thread can continue.
fn is_strict(command: &Command) -> bool {
    matches!(command, Command::Graph(GraphStep::Begin { mode, .. }) if *mode != Mode::Relaxed)
}

fn thread(random: &mut Random) -> Thread {
    *random.pick(&[Thread::First, Thread::Second, Thread::Passing]).unwrap_or(&Thread::First)
}

/// Creates a folder for the files of a run: in memory, because regions need a file system that
/// keeps locks.
///
/// # Errors
/// If it cannot be created.
pub fn folder() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.context("a folder")
}
