//! A play: steps drawn from a seed, each of which must do what the model says.

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

use crate::actor::{Actor, Second, Setup};
use crate::command::{Command, GraphStep, Mode, Step, Thread};
use crate::model::{Lent, MIB, Model, Process, Progress};
use crate::oracle::Oracle;
use crate::random::Random;

/// `CUDA_ERROR_UNKNOWN`: what the driver refuses with when it is told to. No call that is played answers so by itself.
const TOLD_TO: i32 = 999;
/// How long the books may take to forget the dead.
const FORGETTING: Duration = Duration::from_secs(30);
/// How long the simulated GPU takes dead ones for living, at most: whoever looks after that notices them.
const UNNOTICED: Duration = Duration::from_millis(50);

/// What is played.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of all draws.
    pub seed: u64,
    /// Steps.
    pub operations: u64,
    /// Processes of the container.
    pub processes: usize,
    /// The container's limit.
    pub limit_mib: u64,
    /// Whether the driver refuses now and then what it is asked.
    pub refusals: bool,
    /// A process is killed once in so many steps.
    pub kill_once_in: u64,
    /// What is played beside what always is.
    pub routes: Vec<Route>,
    /// Whether `cuMemGetInfo` is looked at after every step, not only where it is drawn.
    pub look_always: bool,
}

/// A family of calls that not every play has: a seed found something among those that its play had.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Memory that goes between processes: by values, and by descriptors
    Exchange,
    /// Graphs that allocate
    Graphs,
    /// Green contexts
    Green,
    /// Limits of contexts, and modules
    Implicit,
    /// Arrays with depth, and mipmapped ones
    Shapes,
    /// Pools that are told what to keep, trimmed and destroyed, and their memory freed in other ways
    Trims,
    /// Libraries, which look-ups bring into contexts
    Libraries,
    /// Graphs that are made node by node, with parts and conditions, by all their calls
    Nodes,
    /// Graphs that are made by captures of streams
    Captures,
    /// Code that comes with first launches and look-ups
    Lazy,
    /// Multicast objects, logical endpoints, and locality domains: on a GPU that has them
    Bound,
    /// Sparse arrays with mapped tiles
    Sparse,
    /// Memory of another interface
    External,
    /// Processes that checkpoint each other
    Checkpoint,
    /// A second GPU, with a limit of its own, which some programs see before the first one
    Gpus,
    /// Several threads of each process
    Threads,
    /// Arrays of two dimensions, by entry points of their own
    Flat,
    /// Pools that may hold no more than so much, lie in locality domains, or are what the GPU allocates from; resets with them
    Pools,
    /// Streams that are made: memory is taken in one and given back in another
    Streams,
    /// The older names and other flavours of entry points, drawn by whoever calls them; memory with addresses of 32 bits
    Names,
    /// Contexts whose uses are counted
    Uses,
    /// Handles whose memory is mapped more than once, in parts, and unmapped so
    Ranges,
}

impl Route {
    /// Whether it came after seeds that replay: those draw what they drew then. It is drawn more often than the others.
    fn is_drawn_more(self) -> bool {
        matches!(self, Self::Nodes | Self::Captures | Self::Lazy)
    }
}

/// What a descriptor that is under way is of.
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

/// What the driver refuses, too, in plays that have one of the newer routes: in the others each name keeps its place, and so its draws.
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

/// What it refuses in plays that have graphs made node by node, captures, or code.
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
    /// The second GPU, where there is one: with less room.
    fn second(&self) -> Second {
        Second { limit_mib: self.limit_mib / 4 * 3, swapped: false }
    }

    fn has(&self, route: Route) -> bool {
        self.routes.contains(&route)
    }

    /// What the driver refuses, too.
    fn more_that_refuses(&self) -> &'static [&'static str] {
        use Route::{Flat, Names, Pools, Ranges, Streams, Uses};
        let newer = [Flat, Pools, Streams, Names, Uses, Ranges];
        if newer.iter().any(|route| self.routes.contains(route)) { &MORE_THAT_REFUSES } else { &[] }
    }

    /// The same of graphs and code.
    fn graphs_and_code_that_refuse(&self) -> &'static [&'static str] {
        let newer = self.routes.iter().any(|route| route.is_drawn_more());
        if newer { &GRAPHS_AND_CODE_THAT_REFUSE } else { &[] }
    }

    /// Whether the GPU is one with a switch and two locality domains. Else it is a small one.
    fn is_of_two_domains(&self) -> bool {
        self.routes.contains(&Route::Bound)
    }
}

/// What came out, where nothing was wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Steps played.
    pub operations: u64,
    /// Allocations granted; refused by the limit; refused by the driver.
    pub granted: u64,
    /// See `granted`.
    pub over_limit: u64,
    /// See `granted`.
    pub by_driver: u64,
    /// Processes killed.
    pub kills: u64,
    /// The greatest excess of what programs hold over the limit.
    pub overshoot: u64,
    /// What was left on the books in the end.
    pub leak: u64,
}

/// The files that a play needs.
#[derive(Clone, Debug)]
pub struct Files {
    /// `target/test`.
    pub dist: PathBuf,
    /// The actor's program.
    pub actor: PathBuf,
    /// A folder of its own, in memory.
    pub folder: PathBuf,
}

struct Play<'a> {
    plan: &'a Plan,
    setup: Setup,
    random: Random,
    model: Model,
    actors: Vec<Actor>,
    /// Looks on, without a context.
    bystander: Actor,
    oracle: Oracle,
    /// What the dead had, as long as it may be on the books.
    dead: u64,
    /// What the driver may have taken beyond that.
    slack_of_the_dead: u64,
    next_key: u32,
    /// Descriptors which are under way between processes.
    descriptors: BTreeMap<u32, (Kind, OwnedFd)>,
    /// Other interfaces' memory that dead processes had, which may be on the GPU for a moment.
    dying_foreign: Vec<u32>,
    /// When a program last ended, or became another.
    last_end: Option<Instant>,
    outcome: Outcome,
    /// The GPU that has its turn: all that is said of a GPU above is said of it.
    gpu: usize,
    /// The GPU that does not have its turn.
    other: Option<Gpu>,
}

/// Plays. `progress` is told after every thousand steps.
///
/// # Errors
/// The first step that did something else than the model; it names the seed.
pub fn play(plan: &Plan, files: &Files, progress: impl FnMut(u64)) -> Result<Outcome> {
    run(plan, files, progress).with_context(|| format!("seed {}", plan.seed))
}

fn run(plan: &Plan, files: &Files, mut progress: impl FnMut(u64)) -> Result<Outcome> {
    let mut play = Play::start(plan, files)?;
    for step in 1..=plan.operations {
        play.step().with_context(|| format!("step {step}"))?;
        if step % 1000 == 0 {
            play.oracle.check_gpu()?;
            progress(step);
        }
    }
    play.end()
}

impl<'a> Play<'a> {
    fn start(plan: &'a Plan, files: &Files) -> Result<Self> {
        let container = files.folder.join("container");
        std::fs::create_dir_all(&container)?;
        // Not of arrays: the shim makes some of its own, to learn what they need.
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
            .map(|name| format!("{name}:p0.03:{TOLD_TO}"))
            .collect();
        let faults = faults.join(",");
        let gpus = if plan.has(Route::Gpus) { 2 } else { 1 };
        let setup = Setup {
            dist: files.dist.clone(),
            actor: files.actor.clone(),
            state: files.folder.join("gpus"),
            gpus: vec![if plan.is_of_two_domains() { "B200:183359" } else { "A10:23028" }; gpus]
                .join(","),
            driver: if plan.is_of_two_domains() { 13_050 } else { 13_000 },
            container,
            limit_mib: plan.limit_mib,
            second: plan.has(Route::Gpus).then(|| plan.second()),
            faults: None,
            names: plan.routes.contains(&Route::Names),
        };
        // The first context teaches what one costs on this GPU: alone, and from a driver that does not refuse it.
        let mut first = Actor::start(&setup, plan.seed)?;
        ensure!(first.perform(&Command::Init)?.code == 0, "the first cuInit was refused");
        for gpu in 0..gpus {
            let step = Step { gpu, ..Step::from(Command::ContextCreate { context: 1 }) };
            ensure!(first.take(&step)?.code == 0, "the first {step:?} was refused");
        }
        let witnesses = (0..gpus)
            .map(|gpu| Ok(Oracle::open(&setup.container, &setup.state, &setup.gpus)?.of_gpu(gpu)));
        let mut witnesses = witnesses.collect::<Result<Vec<_>>>()?.into_iter();
        let oracle = witnesses.next().context("a GPU")?;
        let context = oracle.context_cost();
        first.kill()?;
        // Nobody else looks at the GPU meanwhile, and the books forget the dead by the time alone.
        let deadline = Instant::now() + FORGETTING;
        while oracle.truth()? > 0 {
            ensure!(Instant::now() < deadline, "the GPU does not forget the first process");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut bystander = Actor::start(&setup, plan.seed)?;
        ensure!(bystander.perform(&Command::Init)?.code == 0, "the bystander's cuInit was refused");

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
            lent: BTreeMap::new(),
            orphans: 0,
            foreign: BTreeMap::new(),
        };
        let other = witnesses.next().map(|oracle| {
            let limit = plan.second().limit_mib * MIB;
            Gpu::new(1, Model { limit, ..model.clone() }, oracle, context)
        });
        Ok(Self {
            plan,
            setup,
            random,
            model,
            actors,
            bystander,
            oracle,
            dead: context,
            slack_of_the_dead: 0,
            next_key: 1,
            descriptors: BTreeMap::new(),
            dying_foreign: Vec::new(),
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
        let who = usize::try_from(self.random.below(self.actors.len() as u64))?;
        self.outcome.operations += 1;
        if self.random.once_in(self.plan.kill_once_in) {
            self.replace(who)?;
            return self.look_around(who).context("after a kill");
        }
        if !self.descriptors.is_empty() && self.random.once_in(200) {
            self.descriptors.pop_first();
            // What nobody else holds goes like what the dead had.
            self.last_end = Some(Instant::now());
        }
        let who = self.free_to_go(who);
        let command = self.draw(who);
        if let Command::GreenCreate { .. }
        | Command::ModuleLoad { .. }
        | Command::LibraryBring { .. }
        | Command::Code(_) = command
        {
            self.settle()?;
        }
        let Some(actor) = self.actors.get_mut(who) else { bail!("no actor {who}") };
        if let Command::PhysicalImport { lent, .. }
        | Command::PoolImport { lent, .. }
        | Command::ObjectImport { lent, .. }
        | Command::ExternalImport { key: lent, .. } = command
        {
            let (_, descriptor) = self.descriptors.get(&lent).context("no such descriptor")?;
            actor.line().send(descriptor.as_fd())?;
        }
        let thread =
            if self.plan.has(Route::Threads) { thread(&mut self.random) } else { Thread::First };
        // A capture that is not relaxed is one thread's.
        let strict = self.model.processes[who].drawn.is_strict() || is_strict(&command);
        let thread = if strict { Thread::First } else { thread };
        let step = Step { command, gpu: self.gpu, thread };
        let answer = actor.take(&step)?;
        let command = &step.command;
        if let Err(error) = self.judge(who, command, &answer) {
            let (accounting, gpu, dead) = (self.oracle.total()?, self.oracle.truth()?, self.dead);
            bail!(
                "actor {who}: {step:?} -> {answer:?}: {error:#} ({accounting:?}, {gpu} on the GPU, {dead} of the dead)"
            );
        }
        let look = self.look(who, command).and_then(|()| self.look_around(who));
        look.with_context(|| format!("after actor {who}: {step:?} -> {answer:?}"))
    }

    /// Has `cuMemGetInfo` asked, where that is always done, by whoever has just done something, or the next one who can.
    fn look_around(&mut self, who: usize) -> Result<()> {
        if !self.plan.look_always {
            return Ok(());
        }
        let all = self.actors.len();
        let can = |who: &usize| {
            let process = &self.model.processes[*who];
            process.progress == Progress::Running && !process.contexts.is_empty()
        };
        let Some(who) = (who..who + all).map(|who| who % all).find(can) else { return Ok(()) };
        let contexts = &self.model.processes[who].contexts;
        // In each of them in turn.
        let turn = usize::try_from(self.outcome.operations)? % contexts.len();
        let command = Command::Look { context: contexts[turn] };
        let step = Step { command: command.clone(), gpu: self.gpu, thread: Thread::First };
        let answer = self.actors[who].take(&step)?;
        self.judge(who, &command, &answer)
            .with_context(|| format!("actor {who}: {command:?} -> {answer:?}"))
    }

    /// Whether books, GPU and getters agree with the model, about who has done something and whom it was done to.
    fn look(&mut self, who: usize, command: &Command) -> Result<()> {
        self.compare(who)?;
        if let Command::Checkpoint { pid } | Command::Restore { pid } = *command {
            let other = self.place_of(pid).context("no such process")?;
            self.on_each_gpu(|play| play.compare_process(other))
                .into_iter()
                .collect::<Result<()>>()?;
        }
        let answer = self.bystander.take(&Step { gpu: self.gpu, ..Step::from(Command::Watch) })?;
        self.judge_watch(&answer).with_context(|| format!("{answer:?}"))
    }

    /// That process, or the next one that no checkpoint keeps waiting. There is one: nobody locks himself.
    fn free_to_go(&self, who: usize) -> usize {
        let all = self.actors.len();
        let is_free = |who: &usize| self.model.processes[*who].progress == Progress::Running;
        (who..who + all).map(|who| who % all).find(is_free).unwrap_or(who)
    }

    /// Waits until what the dead had is gone: what is about to be done is measured by the GPU's free memory, which grows with that.
    fn settle(&mut self) -> Result<()> {
        let deadline = Instant::now() + FORGETTING;
        while !self.is_settled()? || self.oracle.draining()? > 0 {
            ensure!(Instant::now() < deadline, "the dead are not forgotten");
            std::thread::sleep(Duration::from_millis(5));
            // Without a monitor it is a living process that buries the dead.
            self.bystander.perform(&Command::Watch)?;
        }
        Ok(())
    }

    /// Whether the GPU has forgotten the dead.
    fn is_settled(&self) -> Result<bool> {
        // Until somebody has looked they are taken for living, and a program that became another one for that.
        if self.last_end.is_some_and(|end| end.elapsed() < UNNOTICED) {
            return Ok(false);
        }
        let living: Vec<u32> =
            self.actors.iter().chain([&self.bystander]).map(Actor::pid).collect();
        self.oracle.is_settled(&living)
    }

    fn place_of(&self, pid: u32) -> Option<usize> {
        self.actors.iter().position(|actor| actor.pid() == pid)
    }

    /// A process has ended, and another takes its place.
    fn bury(&mut self, who: usize) {
        self.on_each_gpu(|play| play.bury_here(who));
    }

    fn bury_here(&mut self, who: usize) {
        let process = std::mem::take(&mut self.model.processes[who]);
        self.slack_of_the_dead += process.slack();
        self.dead += self.model.of(&process) + process.stale();
        self.model.orphans += process.outlives();
        self.dying_foreign.extend(process.holds_of_others());
        self.last_end = Some(Instant::now());
        for lent in process.lends() {
            if let Some(lent) = self.model.lent.get_mut(&lent) {
                lent.bereaved = true;
            }
        }
    }

    /// Something is known to others from now on. What nobody can have any more is forgotten.
    fn lend(&mut self, name: u32, lent: Lent) {
        let (model, descriptors) = (&self.model, &self.descriptors);
        let known = |name: u32| {
            model.maker(name).is_some()
                || model.is_borrowed(name)
                || descriptors.contains_key(&name)
        };
        let gone: Vec<u32> = model.lent.keys().copied().filter(|name| !known(*name)).collect();
        for name in gone {
            self.model.lent.remove(&name);
        }
        self.model.lent.insert(name, lent);
    }

    /// Kills a process, which another one takes the place of.
    fn replace(&mut self, who: usize) -> Result<()> {
        self.bury(who);
        let successor = start(&self.setup, &mut self.random)?;
        let Some(place) = self.actors.get_mut(who) else { bail!("no actor {who}") };
        std::mem::replace(place, successor).kill()?;
        self.last_end = Some(Instant::now());
        self.outcome.kills += 1;
        Ok(())
    }

    /// Ends everybody, and looks what is left.
    fn end(self) -> Result<Outcome> {
        let Self { actors, bystander, oracle, setup, mut outcome, other, .. } = self;
        let mut witnesses: Vec<Oracle> =
            other.into_iter().map(Gpu::into_witness).chain([oracle]).collect();
        for actor in actors.into_iter().chain([bystander]) {
            actor.kill()?;
        }
        let deadline = Instant::now() + FORGETTING;
        loop {
            // Without a monitor it is the next process that buries the dead.
            let mut undertaker = Actor::start(&Setup { faults: None, ..setup.clone() }, 0)?;
            ensure!(undertaker.perform(&Command::Init)?.code == 0, "the last cuInit was refused");
            undertaker.kill()?;
            let left =
                witnesses.iter_mut().map(|oracle| Ok((oracle.total()?.all, oracle.truth()?)));
            let left = left.collect::<Result<Vec<_>>>()?;
            outcome.leak = left.iter().map(|(accounting, gpu)| accounting.max(gpu)).sum();
            if outcome.leak == 0 {
                return Ok(outcome);
            }
            ensure!(Instant::now() < deadline, "left by the books, and on the GPUs: {left:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Starts a process. Where there are two GPUs, one in two sees them in the other order.
fn start(setup: &Setup, random: &mut Random) -> Result<Actor> {
    let seed = random.below(u64::MAX);
    let second = setup.second.map(|second| Second { swapped: random.once_in(2), ..second });
    Actor::start(&Setup { second, ..setup.clone() }, seed)
}

/// Whether a capture begins that only its thread can go on with.
fn is_strict(command: &Command) -> bool {
    matches!(command, Command::Graph(GraphStep::Begin { mode, .. }) if *mode != Mode::Relaxed)
}

fn thread(random: &mut Random) -> Thread {
    *random.pick(&[Thread::First, Thread::Second, Thread::Passing]).unwrap_or(&Thread::First)
}

/// A folder for a play's files: in memory, because regions need a file system that keeps locks.
///
/// # Errors
/// If none can be made.
pub fn folder() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.context("a folder")
}
