//! Several containers on one GPU, each filled to its limit by a way of its own, while a witness looks at the GPU again and again.
//!
//! **At every look**: what the GPU says that a container's processes hold, the dead among them, does not pass the container's limit by more
//! than what came unasked and is on no books ([`Due`], which only the test knows): other interfaces' memory and the like, and what is lacking
//! on the books of what their contexts and variables take. So memory that was asked for never passes the limit, not for an instant.
//!
//! **In the end** what came unasked is shown: with a reading or two of the monitor, so within seconds; on a machine that has other things
//! to do nobody knows, and [`SEEING`] only ends what hangs. How long it took is told.
//!
//! Nothing is in step here: every container has a thread that drives its processes as fast as they go, and the witness looks in between.
//! Where a call may hold more than it is to keep, it looks when no call is under way.
//! [`race`] has one container instead, for whose last room many processes race, each driven by a thread of its own; there the witness
//! looks only when no call is under way.
//!
//! All sizes are such that the driver takes what is asked for. What comes unasked are contexts, which containers create at the same time, so
//! that what one costs is learned wrong here and there; green contexts, whose cost is known when they are there; other interfaces' memory,
//! whose making nobody sees.

mod race;
mod tenant;
mod ways;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cgpu_shm::atomic::{AtomicU64, Ordering};
use tenant::Tenant;

use crate::actor::{Actor, Setup};
use crate::command::Command;
use crate::host::Host;
use crate::model::MIB;
use crate::oracle::Oracle;
use crate::play::Files;

pub use race::{Raced, Racing, race};
pub use ways::Way;

/// Processes that one thread drives where containers are filled.
const PROCESSES: usize = 2;
/// How long growth may be there before it is shown.
const SEEING: Duration = Duration::from_secs(60);
/// How long the books and the GPU may take to forget the dead.
const FORGETTING: Duration = Duration::from_secs(30);

/// What is played.
#[derive(Clone, Debug)]
pub struct Filling {
    /// Of each container.
    pub ways: Vec<Way>,
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
    /// The most that the GPU said it held.
    pub peak: u64,
    /// The most that it held beyond the limit, of what came unasked.
    pub unasked: u64,
    /// The longest that this was not shown, of all looks.
    pub unseen: Duration,
}

/// Fills one container for each way.
///
/// # Errors
/// What a container held beyond its limit; an answer that is neither success nor out of memory; what was left in the end.
pub fn fill(plan: &Filling, files: &Files) -> Result<Vec<Filled>> {
    run(plan, files).with_context(|| format!("seed {}", plan.seed))
}

/// A process of a container. Once it has ended, and the GPU has forgotten it, its id may be another's.
struct Member {
    pid: u32,
    ended: bool,
    due: Due,
}

/// What comes unasked with what a process has: the GPU takes so much for it, or less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    /// On its books from the start: contexts, variables. A context may be charged too little.
    booked: u64,
    /// Seen when it is there.
    unseen: u64,
}

impl Due {
    fn booked(bytes: u64) -> Self {
        Self { booked: bytes, unseen: 0 }
    }

    fn unseen(bytes: u64) -> Self {
        Self { booked: 0, unseen: bytes }
    }
}

/// A container: who is in it, and who was, as long as the GPU knows them.
struct Container {
    name: String,
    setup: Setup,
    /// What a context takes.
    context: u64,
    members: Mutex<Vec<Member>>,
    /// Held for reading while a call is under way.
    calling: RwLock<()>,
    /// Looked at only when no call is. A pool may grow by more than it should, and is trimmed before the call returns.
    between_calls: bool,
}

impl Container {
    fn new(
        host: &Host,
        name: &str,
        (files, limit_mib): (&Files, u64),
        between_calls: bool,
    ) -> Result<Self> {
        let setup = Setup {
            dist: files.dist.clone(),
            actor: files.actor.clone(),
            state: files.folder.join(STATE),
            gpus: GPUS.to_owned(),
            driver: DRIVER,
            container: host.container(name),
            limit_mib,
            second: None,
            faults: None,
            names: false,
        };
        std::fs::create_dir_all(&setup.container)?;
        // Somebody who makes the books; the witness can open them then, and the GPU.
        undertaker(&setup)?;
        let context = Oracle::open(&setup.container, &setup.state, &setup.gpus)?.context_cost();
        Ok(Self {
            name: name.to_owned(),
            setup,
            context,
            members: Mutex::default(),
            calling: RwLock::default(),
            between_calls,
        })
    }

    /// What the GPU says that it holds, its dead processes among the others.
    fn held(&self, oracle: &Oracle) -> Result<u64> {
        let between = self.between_calls.then(|| self.calling.write());
        let mut members = self.members();
        let held = oracle.held()?;
        drop(between);
        members.retain(|member| !member.ended || held.contains_key(&member.pid));
        Ok(members.iter().filter_map(|member| held.get(&member.pid)).sum())
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came unasked with what each process has, and is not on its books: what the books do not know, at most. Of one that has no books
    /// any more the GPU has nothing either.
    fn unbooked(&self, accounting: &mut Oracle) -> Result<BTreeMap<u32, u64>> {
        let due: Vec<(u32, Due)> =
            self.members().iter().map(|member| (member.pid, member.due)).collect();
        let booked = accounting.implicit()?;
        // What the books have too much for one thing the monitor takes off: it makes up for nothing else.
        let short = |(pid, due): (u32, Due)| {
            Some((pid, due.unseen + due.booked.saturating_sub(*booked.get(&pid)?)))
        };
        Ok(due.into_iter().filter_map(short).collect())
    }

    /// More, or less, comes unasked with what a process has.
    fn owes(&self, pid: u32, change: impl FnOnce(&mut Due)) {
        if let Some(member) =
            self.members().iter_mut().find(|member| member.pid == pid && !member.ended)
        {
            change(&mut member.due);
        }
    }

    fn ended(&self, pid: u32) {
        self.members()
            .iter_mut()
            .filter(|member| member.pid == pid)
            .for_each(|member| member.ended = true);
    }

    fn limit(&self) -> u64 {
        self.setup.limit_mib * MIB
    }
}

/// The file of the simulated GPUs in a play's folder, and what they are: one with all that there is.
const STATE: &str = "gpus";
const GPUS: &str = "B200:65536";
const DRIVER: u32 = 13_050;

fn host(files: &Files) -> Result<Host> {
    Host::start(files, &files.folder.join(STATE), GPUS)
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
        self.at.is_some_and(|moment| Instant::now() >= moment)
            || self.operations.load(Ordering::Relaxed) == 0
    }

    fn count(&self) {
        // Threads that find it there at the same time make a few calls more.
        let _ = self
            .operations
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }
}

fn run(plan: &Filling, files: &Files) -> Result<Vec<Filled>> {
    let host = host(files)?;
    let make = |(place, way): (usize, &Way)| {
        Container::new(
            &host,
            &format!("{way:?}-{place}"),
            (files, plan.limit_mib),
            way.grows_in_calls(),
        )
    };
    let containers = plan.ways.iter().enumerate().map(make).collect::<Result<Vec<_>>>()?;
    let end = End::at(Instant::now() + plan.time);
    let (filled, watched) = std::thread::scope(|scope| {
        let threads: Vec<_> = containers
            .iter()
            .zip(&plan.ways)
            .zip(plan.seed..)
            .map(|((container, &way), seed)| {
                let (kill, end) = (plan.kill_once_in, &end);
                scope.spawn(move || Tenant::new(container, way, seed, kill, PROCESSES)?.work(end))
            })
            .collect();
        let watched = watch(&containers, &host, &end);
        if watched.is_err() {
            end.operations.store(0, Ordering::Relaxed);
        }
        let worked =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a panic")));
        let worked = worked.collect::<Result<Vec<Filled>>>();
        watched.and_then(|watched| Ok((worked?, watched)))
    })?;
    for container in &containers {
        let left = left(container).with_context(|| container.name.clone())?;
        ensure!(
            left == (0, 0),
            "{}: {left:?} are left on the books and on the GPU",
            container.name
        );
    }
    let with = |(filled, watched): (Filled, Watched)| Filled {
        peak: watched.peak,
        unasked: watched.unasked,
        unseen: watched.unseen,
        ..filled
    };
    Ok(filled.into_iter().zip(watched).map(with).collect())
}

/// What is seen of a container, look by look.
struct Watched<'a> {
    container: &'a Container,
    oracle: Oracle,
    peak: u64,
    unasked: u64,
    unseen: Duration,
    /// When it was found to hold more than is shown.
    since: Option<Instant>,
}

/// Looks at the GPU until the end.
fn watch<'a>(containers: &'a [Container], host: &Host, end: &End) -> Result<Vec<Watched<'a>>> {
    let open = |container: &'a Container| {
        let setup = &container.setup;
        let oracle = Oracle::open(&setup.container, &setup.state, &setup.gpus)?;
        let none = Duration::ZERO;
        Ok(Watched { container, oracle, peak: 0, unasked: 0, unseen: none, since: None })
    };
    let mut all = containers.iter().map(open).collect::<Result<Vec<_>>>()?;
    while !end.is_there() {
        for one in &mut all {
            one.look(host).with_context(|| one.container.name.clone())?;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(all)
}

impl Watched<'_> {
    fn look(&mut self, host: &Host) -> Result<()> {
        let container = self.container;
        // Before and after: what was booked only later, or went meanwhile, is in one of them.
        let mut unbooked = container.unbooked(&mut self.oracle)?;
        let held = container.held(&self.oracle)?;
        for (pid, bytes) in container.unbooked(&mut self.oracle)? {
            let known = unbooked.entry(pid).or_default();
            *known = bytes.max(*known);
        }
        let unbooked: u64 = unbooked.values().sum();
        let beyond = held.saturating_sub(container.limit());
        self.peak = held.max(self.peak);
        self.unasked = beyond.max(self.unasked);
        ensure!(
            beyond <= unbooked,
            "the GPU says {beyond} more than the limit; what came unasked is {unbooked} at most"
        );
        if beyond == 0 {
            self.since = None;
            return Ok(());
        }
        let growth = host.growth(&container.setup.container)?;
        let held = container.held(&self.oracle)?;
        let unshown = held.saturating_sub(container.limit().saturating_add_signed(growth));
        if unshown == 0 {
            self.since = None;
            return Ok(());
        }
        let unseen = self.since.get_or_insert_with(Instant::now).elapsed();
        self.unseen = unseen.max(self.unseen);
        ensure!(
            unseen < SEEING,
            "{unshown} beyond the limit, and {growth} that are shown, came unasked and are not shown"
        );
        Ok(())
    }
}

/// Waits until nothing of a container is on the books nor on the GPU, but not forever: what is left there.
fn left(container: &Container) -> Result<(u64, u64)> {
    let deadline = Instant::now() + FORGETTING;
    let setup = &container.setup;
    let mut accounting = Oracle::open(&setup.container, &setup.state, &setup.gpus)?;
    loop {
        // Without a monitor it is the next process that buries the dead.
        undertaker(setup)?;
        let left = (accounting.total()?.all, container.held(&accounting)?);
        if left == (0, 0) || Instant::now() > deadline {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn undertaker(setup: &Setup) -> Result<()> {
    let mut actor = Actor::start(setup, 0)?;
    ensure!(actor.perform(&Command::Init)?.code == 0, "cuInit was refused");
    actor.kill()
}
