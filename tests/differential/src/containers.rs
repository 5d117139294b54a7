//! Several containers on one card, each filled to its limit by a way of its own, while a witness looks at the card again and again: what
//! the card says that a container's processes hold, the dead among them, never passes the container's limit by more than what is shown as
//! growth that could not be refused.
//!
//! Nothing is in step here: every container has a thread that drives its processes as fast as they go, and the witness looks in between.
//! [`race`] has one container instead, for whose last room many processes race, each driven by a thread of its own; there the witness
//! looks only when no call is under way.
//! All sizes are such that the driver takes what is asked for. What remains are contexts, which containers create at the same time, so that
//! what one costs is learned wrong here and there: the monitor finds what they really have.

mod race;

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cgpu_proto::atomic::{AtomicU64, Ordering};

use crate::actor::{Actor, Stage};
use crate::command::{Answer, Command, DEFAULT_POOL, Place, Words};
use crate::host::Host;
use crate::model::MIB;
use crate::play::Files;
use crate::random::Random;
use crate::witness::Witness;

pub use race::{Raced, Racing, race};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// Processes that one thread drives where containers are filled.
const PROCESSES: usize = 2;
/// The one context of each.
const CONTEXT: u32 = 1;
/// How long growth may be there before it is shown.
const SEEING: Duration = Duration::from_secs(10);
/// How long the books and the card may take to forget the dead.
const FORGETTING: Duration = Duration::from_secs(30);

/// How a container's memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Linear memory.
    Linear,
    /// Pitched memory.
    Pitched,
    /// Physical memory: mapped, its handle released.
    Physical,
    /// Memory in stream order.
    Pooled,
    /// Arrays.
    Arrays,
    /// Linear memory that another process of the container opens, and holds on to.
    Lent,
}

/// All ways.
pub const WAYS: [Way; 6] = [Way::Linear, Way::Pitched, Way::Physical, Way::Pooled, Way::Arrays, Way::Lent];

/// What is played.
#[derive(Clone, Copy, Debug)]
pub struct Filling {
    /// Of all draws.
    pub seed: u64,
    /// For how long.
    pub time: Duration,
    /// Each container's limit.
    pub limit_mib: u64,
    /// A process is killed once in so many steps.
    pub kill_once_in: u64,
}

/// What one thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// How.
    pub way: Way,
    /// Calls made.
    pub operations: u64,
    /// Allocations granted.
    pub granted: u64,
    /// Allocations refused, each as out of memory.
    pub refused: u64,
    /// Processes killed.
    pub kills: u64,
    /// The most that the card said it held.
    pub peak: u64,
}

/// Fills one container for each of [`WAYS`].
///
/// # Errors
/// What a container held beyond its limit; an answer that is neither success nor out of memory; what was left in the end.
pub fn fill(plan: &Filling, files: &Files) -> Result<Vec<Filled>> {
    run(plan, files).with_context(|| format!("seed {}", plan.seed))
}

/// A process of a container. Once it has ended, and the card has forgotten it, its id may be another's.
struct Member {
    pid: u32,
    ended: bool,
}

/// A container: who is in it, and who was, as long as the card knows them.
struct Container {
    name: String,
    stage: Stage,
    members: Mutex<Vec<Member>>,
    /// Held for reading while a call is under way.
    calling: RwLock<()>,
    /// Looked at only when no call is. A pool may grow by more than it should, and is trimmed before the call returns.
    between_calls: bool,
}

impl Container {
    fn new(host: &Host, name: &str, (files, limit_mib): (&Files, u64), between_calls: bool) -> Result<Self> {
        let stage = Stage {
            dist: files.dist.clone(),
            actor: files.actor.clone(),
            cards: files.folder.join(CARDS),
            gpus: GPUS.to_owned(),
            driver: 13_000,
            container: host.container(name),
            limit_mib,
            second: None,
            faults: None,
            names: false,
        };
        std::fs::create_dir_all(&stage.container)?;
        // Somebody who makes the books; the witness can open them then, and the card.
        undertaker(&stage)?;
        Ok(Self {
            name: name.to_owned(),
            stage,
            members: Mutex::default(),
            calling: RwLock::default(),
            between_calls,
        })
    }

    /// What the card says that it holds, its dead processes among the others.
    fn held(&self, witness: &Witness) -> Result<u64> {
        let between = self.between_calls.then(|| self.calling.write());
        let mut members = self.members();
        let held = witness.held()?;
        drop(between);
        members.retain(|member| !member.ended || held.contains_key(&member.pid));
        Ok(members.iter().filter_map(|member| held.get(&member.pid)).sum())
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, pid: u32) {
        self.members().iter_mut().filter(|member| member.pid == pid).for_each(|member| member.ended = true);
    }

    fn limit(&self) -> u64 {
        self.stage.limit_mib * MIB
    }
}

/// The file of the simulated cards in a play's folder, and what they are.
const CARDS: &str = "cards";
const GPUS: &str = "A10:23028";

fn host(files: &Files) -> Result<Host> {
    Host::start(files, &files.folder.join(CARDS), GPUS)
}

/// When threads end.
struct End {
    /// At this time.
    at: Option<Instant>,
    /// Calls that are left.
    operations: AtomicU64,
}

impl End {
    fn at(moment: Instant) -> Self {
        Self { at: Some(moment), operations: AtomicU64::new(u64::MAX) }
    }

    fn after(operations: u64) -> Self {
        Self { at: None, operations: AtomicU64::new(operations) }
    }

    fn is_there(&self) -> bool {
        self.at.is_some_and(|moment| Instant::now() >= moment) || self.operations.load(Ordering::Relaxed) == 0
    }

    fn count(&self) {
        // Threads that find it there at the same time make a few calls more.
        let _ =
            self.operations.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }
}

fn run(plan: &Filling, files: &Files) -> Result<Vec<Filled>> {
    let host = host(files)?;
    let make = |way| Container::new(&host, &format!("{way:?}"), (files, plan.limit_mib), way == Way::Pooled);
    let containers = WAYS.into_iter().map(make).collect::<Result<Vec<_>>>()?;
    let first = &containers[0].stage;
    let witness = Witness::open(&first.container, &first.cards, &first.gpus)?;
    let end = End::at(Instant::now() + plan.time);
    let (filled, peaks) = std::thread::scope(|scope| {
        let threads: Vec<_> = containers
            .iter()
            .zip(WAYS)
            .zip(plan.seed..)
            .map(|((container, way), seed)| {
                let (kill, end) = (plan.kill_once_in, &end);
                scope.spawn(move || Tenant::new(container, way, seed, kill, PROCESSES)?.work(end))
            })
            .collect();
        let watched = watch(&containers, (&witness, &host), &end);
        let worked = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a panic")));
        let worked = worked.collect::<Result<Vec<Filled>>>();
        watched.and_then(|peaks| Ok((worked?, peaks)))
    })?;
    for container in &containers {
        let left = left(container, &witness).with_context(|| container.name.clone())?;
        ensure!(left == (0, 0), "{}: {left:?} are left on the books and on the card", container.name);
    }
    Ok(filled.into_iter().zip(peaks).map(|(filled, peak)| Filled { peak, ..filled }).collect())
}

/// Looks at the card until the end; the most that each container held.
fn watch(containers: &[Container], (witness, host): (&Witness, &Host), end: &End) -> Result<Vec<u64>> {
    let mut peaks = vec![0; containers.len()];
    while !end.is_there() {
        for (container, peak) in containers.iter().zip(&mut peaks) {
            let held = container.held(witness)?;
            *peak = held.max(*peak);
            if held > container.limit() {
                let (excess, growth) = excess(container, witness, host)?;
                ensure!(
                    excess == 0,
                    "{}: the card says {excess} more than the limit, and than {growth} that are shown as growth",
                    container.name
                );
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(peaks)
}

/// What a container holds beyond its limit was charged to nobody: it is seen by the monitor, and shown as growth, within a moment.
/// Answers what is not, and what is.
fn excess(container: &Container, witness: &Witness, host: &Host) -> Result<(u64, i64)> {
    let deadline = Instant::now() + SEEING;
    loop {
        let growth = host.growth(&container.stage.container)?;
        let held = container.held(witness)?;
        let excess = held.saturating_sub(container.limit().saturating_add_signed(growth));
        if excess == 0 || Instant::now() > deadline {
            return Ok((excess, growth));
        }
    }
}

/// Waits until nothing of a container is on the books nor on the card, but not forever: what is left there.
fn left(container: &Container, witness: &Witness) -> Result<(u64, u64)> {
    let deadline = Instant::now() + FORGETTING;
    let stage = &container.stage;
    let mut books = Witness::open(&stage.container, &stage.cards, &stage.gpus)?;
    loop {
        // Without a monitor it is the next process that buries the dead.
        undertaker(stage)?;
        let left = (books.total()?.all, container.held(witness)?);
        if left == (0, 0) || Instant::now() > deadline {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn undertaker(stage: &Stage) -> Result<()> {
    let mut actor = Actor::start(stage, 0)?;
    ensure!(actor.perform(&Command::Init)?.code == 0, "cuInit was refused");
    actor.kill()
}

/// A process and what it has, by the names of commands that give it back.
struct Process {
    actor: Actor,
    has_context: bool,
    things: Vec<Command>,
}

/// One thread, and the processes of a container that it drives.
struct Tenant<'a> {
    container: &'a Container,
    way: Way,
    kill_once_in: u64,
    random: Random,
    processes: Vec<Process>,
    next: u32,
    filled: Filled,
}

impl<'a> Tenant<'a> {
    fn new(
        container: &'a Container,
        way: Way,
        seed: u64,
        kill_once_in: u64,
        processes: usize,
    ) -> Result<Self> {
        let filled = Filled { way, operations: 0, granted: 0, refused: 0, kills: 0, peak: 0 };
        let random = Random::of(seed);
        let mut tenant =
            Self { container, way, kill_once_in, random, processes: Vec::new(), next: 0, filled };
        for _ in 0..processes {
            let process = tenant.start()?;
            tenant.processes.push(process);
        }
        Ok(tenant)
    }

    fn start(&mut self) -> Result<Process> {
        let mut actor = Actor::start(&self.container.stage, 0)?;
        self.container.members().push(Member { pid: actor.pid(), ended: false });
        ensure!(actor.perform(&Command::Init)?.code == 0, "cuInit was refused");
        Ok(Process { actor, has_context: false, things: Vec::new() })
    }

    fn work(mut self, end: &End) -> Result<Filled> {
        while !end.is_there() {
            let who = usize::try_from(self.random.below(self.processes.len() as u64))?;
            if self.random.once_in(self.kill_once_in) {
                let successor = self.start()?;
                let former = std::mem::replace(&mut self.processes[who], successor);
                self.end(former)?;
                self.filled.kills += 1;
            }
            let before = self.filled.operations;
            self.step(who).with_context(|| format!("{:?}", self.way))?;
            (before..self.filled.operations).for_each(|_| end.count());
        }
        for process in std::mem::take(&mut self.processes) {
            self.end(process)?;
        }
        Ok(self.filled)
    }

    fn end(&self, process: Process) -> Result<()> {
        let pid = process.actor.pid();
        process.actor.kill()?;
        self.container.ended(pid);
        Ok(())
    }

    fn step(&mut self, who: usize) -> Result<()> {
        if !self.processes[who].has_context {
            let made = self.granted(who, &Command::ContextCreate { context: CONTEXT })?.is_some();
            self.processes[who].has_context = made;
            return if made { Ok(()) } else { self.give((who + 1) % self.processes.len()) };
        }
        let full = !self.take(who)?;
        if full || self.random.once_in(50) { self.give(who) } else { Ok(()) }
    }

    /// Takes more; whether it was granted.
    fn take(&mut self, who: usize) -> Result<bool> {
        self.next += 1;
        let (context, key) = (CONTEXT, self.next);
        let mib = (self.random.below(48) + 1) * 2;
        let bytes = mib * MIB;
        let (command, back) = match self.way {
            Way::Linear | Way::Lent => (Command::Allocate { context, key, bytes }, Command::Free { key }),
            Way::Pitched => {
                // A pitch of half a MiB, whatever the driver aligns it to.
                let (width, height) = (1 << 19, 2 * mib);
                (Command::AllocatePitch { context, key, width, height }, Command::Free { key })
            }
            Way::Physical => (
                Command::PhysicalCreate {
                    context,
                    key,
                    bytes,
                    place: Place::Card,
                    shared: false,
                    tiles: false,
                },
                Command::PhysicalUnmap { map: key },
            ),
            Way::Pooled => (
                Command::PoolAllocate { context, key, bytes, pool: DEFAULT_POOL },
                Command::PoolFree { context, key },
            ),
            Way::Arrays => {
                let (width, height) = (1024, 256 * mib);
                let make =
                    Command::ArrayCreate { context, key, width, height, depth: 0, channels: 1, levels: 0 };
                (make, Command::ArrayDestroy { context, key })
            }
        };
        if self.granted(who, &command)?.is_none() {
            return Ok(false);
        }
        match self.way {
            Way::Physical => {
                self.surely(who, &Command::PhysicalMap { key, map: key, bytes })?;
                self.surely(who, &Command::PhysicalRelease { key })?;
            }
            Way::Lent => self.lend(who, key)?,
            _ => {}
        }
        self.processes[who].things.push(back);
        Ok(true)
    }

    /// Makes an allocation known to the other process, which opens it now and then, and holds it when it is free here.
    fn lend(&mut self, who: usize, key: u32) -> Result<()> {
        let handle = self.surely(who, &Command::Lend { key, lent: key })?;
        let other = &mut self.processes[1 - who];
        if other.has_context && self.random.once_in(2) {
            let open = Command::Open { context: CONTEXT, open: key, lent: key, handle };
            other.things.push(Command::Close { open: key });
            self.surely(1 - who, &open)?;
        }
        Ok(())
    }

    /// Gives some of what a process has back.
    fn give(&mut self, who: usize) -> Result<()> {
        let has = self.processes[who].things.len() as u64;
        for _ in 0..has.div_ceil(3) {
            let things = self.processes[who].things.len() as u64;
            let which = usize::try_from(self.random.below(things))?;
            let back = self.processes[who].things.swap_remove(which);
            self.surely(who, &back)?;
        }
        if self.way == Way::Pooled && self.processes[who].has_context && self.random.once_in(4) {
            self.surely(who, &Command::Synchronise { context: CONTEXT })?;
        }
        Ok(())
    }

    /// What may be refused, as out of memory.
    fn granted(&mut self, who: usize, command: &Command) -> Result<Option<Words>> {
        let answer = self.perform(who, command)?;
        match answer.code {
            0 => {
                self.filled.granted += 1;
                Ok(Some(answer.handle))
            }
            OUT_OF_MEMORY => {
                self.filled.refused += 1;
                Ok(None)
            }
            code => bail!("{command:?} answered {code}"),
        }
    }

    /// What must be granted.
    fn surely(&mut self, who: usize, command: &Command) -> Result<Words> {
        let answer = self.perform(who, command)?;
        ensure!(answer.code == 0, "{command:?} answered {}", answer.code);
        Ok(answer.handle)
    }

    fn perform(&mut self, who: usize, command: &Command) -> Result<Answer> {
        let _calling = self.container.calling.read();
        self.filled.operations += 1;
        self.processes[who].actor.perform(command)
    }
}
