//! Several containers on one GPU, each filled to its limit by another kind of allocation, while an
//! observer samples the GPU.
//!
//! **At every sample** the memory that a container's processes hold on the GPU, exited processes
//! included, may exceed the limit only by memory that no ledger could refuse ([`Due`], which only
//! the test knows): other interfaces' memory, and what the ledger lacks of contexts and variables.
//! Requested memory never exceeds the limit, not even briefly.
//!
//! **In the end** this excess is shown as unaccounted, usually within seconds, after one or two
//! readings of the monitor. A busy machine takes longer: [`SHOWN_TIMEOUT`] only ends a test that
//! hangs. The time taken is reported.
//!
//! Nothing is synchronised. A thread for each container drives its processes as fast as it can, and
//! samples fall in between. Where a call may hold more than it keeps, samples are taken only when
//! no call is in progress. In [`race`] many processes of one container, each with its own thread,
//! compete for its last memory; its samples are always taken between calls.
//!
//! All sizes are such that the driver takes exactly what is requested. The excess comes from
//! contexts, which containers create at the same time, so that some measure their cost wrongly;
//! from green contexts, whose cost is known only once they exist; and from other interfaces'
//! memory.

mod kinds;
mod race;
mod tenant;

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
use crate::run::Files;

pub use kinds::AllocationKind;
pub use race::{Raced, Racing, race};

/// Processes that one thread drives where containers are filled.
const PROCESSES: usize = 2;
/// Timeout for an excess to be shown as unaccounted.
const SHOWN_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout until the ledger and the GPU have released the memory of exited processes.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a test consists of.
#[derive(Clone, Debug)]
pub struct Filling {
    /// Kind of allocation of each container.
    pub kinds: Vec<AllocationKind>,
    /// Seed of all draws.
    pub seed: u64,
    /// Duration.
    pub time: Duration,
    /// Limit of each container in MiB.
    pub limit_mib: u64,
    /// A process is killed once in this many steps.
    pub kill_once_in: u64,
}

/// Counts of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Its kind of allocation.
    pub kind: AllocationKind,
    /// Calls.
    pub operations: u64,
    /// Allocations granted.
    pub granted: u64,
    /// Allocations refused with out of memory.
    pub refused: u64,
    /// Processes killed.
    pub kills: u64,
    /// Maximum held on the GPU in bytes.
    pub peak: u64,
    /// Maximum held beyond the limit in bytes.
    pub excess: u64,
    /// Longest time until an excess was shown as unaccounted.
    pub unshown_for: Duration,
}

/// Fills one container for each kind of allocation.
///
/// # Errors
/// If a container exceeds its limit, an answer is neither success nor out of memory, or memory is
/// left at the end.
pub fn fill(plan: &Filling, files: &Files) -> Result<Vec<Filled>> {
    run(plan, files).with_context(|| format!("seed {}", plan.seed))
}

/// A process of a container. Once it has exited and the GPU has released its memory, another
/// process may get its id.
struct Member {
    pid: u32,
    ended: bool,
    due: Due,
}

/// Implicit memory of a process that may be missing from the ledger: the GPU takes at most this for
/// it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    /// Charged from the start: contexts, variables. A context may be undercharged.
    charged: u64,
    /// Unaccounted until the monitor observes it.
    unseen: u64,
}

impl Due {
    fn charged(bytes: u64) -> Self {
        Self { charged: bytes, unseen: 0 }
    }

    fn unseen(bytes: u64) -> Self {
        Self { charged: 0, unseen: bytes }
    }
}

/// A container with its processes, and its former ones as long as the GPU has their memory.
struct Container {
    name: String,
    setup: Setup,
    /// Bytes that a context takes.
    context: u64,
    members: Mutex<Vec<Member>>,
    /// Read-locked during a call.
    calling: RwLock<()>,
    /// Whether samples are taken only between calls. A pool may grow by more than it should and is
    /// trimmed before the call returns.
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
            wall: None,
            container: host.container(name),
            limit_mib,
            second: None,
            faults: None,
            names: false,
        };
        std::fs::create_dir_all(&setup.container)?;
        // Creates the region and the GPU's state, so that the observer can open them.
        reclaimer(&setup)?;
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

    /// Returns the container's bytes on the GPU, exited processes included.
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

    /// Returns the maximum implicit memory that the ledger lacks, by process. A process that the
    /// ledger no longer has is left out: the GPU has nothing of it either.
    fn uncharged(&self, accounting: &mut Oracle) -> Result<BTreeMap<u32, u64>> {
        let due: Vec<(u32, Due)> =
            self.members().iter().map(|member| (member.pid, member.due)).collect();
        let charged = accounting.implicit()?;
        // What the ledger has in excess for one process does not make up for another: the monitor
        // subtracts it.
        let short = |(pid, due): (u32, Due)| {
            Some((pid, due.unseen + due.charged.saturating_sub(*charged.get(&pid)?)))
        };
        Ok(due.into_iter().filter_map(short).collect())
    }

    /// Changes the implicit memory of a process.
    fn change_due(&self, pid: u32, change: impl FnOnce(&mut Due)) {
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

/// The simulated GPU: its file in the run's folder and its description, with every feature.
const STATE: &str = "gpus";
const GPUS: &str = "B200:65536";
const DRIVER: u32 = 13_050;

fn host(files: &Files) -> Result<Host> {
    Host::start(files, &files.folder.join(STATE), GPUS)
}

/// End condition of threads.
struct End {
    /// The time, or `None`.
    at: Option<Instant>,
    /// Remaining calls.
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
        // Threads that reach the end together make a few more calls.
        let _ = self
            .operations
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }
}

fn run(plan: &Filling, files: &Files) -> Result<Vec<Filled>> {
    let host = host(files)?;
    let make = |(place, kind): (usize, &AllocationKind)| {
        Container::new(
            &host,
            &format!("{kind:?}-{place}"),
            (files, plan.limit_mib),
            kind.grows_in_calls(),
        )
    };
    let containers = plan.kinds.iter().enumerate().map(make).collect::<Result<Vec<_>>>()?;
    let end = End::at(Instant::now() + plan.time);
    let (filled, watched) = std::thread::scope(|scope| {
        let threads: Vec<_> = containers
            .iter()
            .zip(&plan.kinds)
            .zip(plan.seed..)
            .map(|((container, &kind), seed)| {
                let (kill, end) = (plan.kill_once_in, &end);
                scope.spawn(move || Tenant::new(container, kind, seed, kill, PROCESSES)?.work(end))
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
            "{}: {left:?} are left in the ledger and on the GPU",
            container.name
        );
    }
    let with = |(filled, watched): (Filled, Watched)| Filled {
        peak: watched.peak,
        excess: watched.excess,
        unshown_for: watched.unshown_for,
        ..filled
    };
    Ok(filled.into_iter().zip(watched).map(with).collect())
}

/// Observations of a container.
struct Watched<'a> {
    container: &'a Container,
    oracle: Oracle,
    peak: u64,
    excess: u64,
    unshown_for: Duration,
    /// Since when it has held more than is shown.
    since: Option<Instant>,
}

/// Samples the GPU until the end.
fn watch<'a>(containers: &'a [Container], host: &Host, end: &End) -> Result<Vec<Watched<'a>>> {
    let open = |container: &'a Container| {
        let setup = &container.setup;
        let oracle = Oracle::open(&setup.container, &setup.state, &setup.gpus)?;
        let none = Duration::ZERO;
        Ok(Watched { container, oracle, peak: 0, excess: 0, unshown_for: none, since: None })
    };
    let mut all = containers.iter().map(open).collect::<Result<Vec<_>>>()?;
    while !end.is_there() {
        for one in &mut all {
            one.sample(host).with_context(|| one.container.name.clone())?;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(all)
}

impl Watched<'_> {
    fn sample(&mut self, host: &Host) -> Result<()> {
        let container = self.container;
        // Sampled before and after: what is charged later, or released meanwhile, is in one of the
        // samples.
        let mut uncharged = container.uncharged(&mut self.oracle)?;
        let held = container.held(&self.oracle)?;
        for (pid, bytes) in container.uncharged(&mut self.oracle)? {
            let known = uncharged.entry(pid).or_default();
            *known = bytes.max(*known);
        }
        let uncharged: u64 = uncharged.values().sum();
        let beyond = held.saturating_sub(container.limit());
        self.peak = held.max(self.peak);
        self.excess = beyond.max(self.excess);
        ensure!(
            beyond <= uncharged,
            "the GPU has {beyond} beyond the limit, of which at most {uncharged} cannot be charged"
        );
        if beyond == 0 {
            self.since = None;
            return Ok(());
        }
        let unaccounted = host.unaccounted(&container.setup.container)?;
        let held = container.held(&self.oracle)?;
        let unshown = held.saturating_sub(container.limit().saturating_add_signed(unaccounted));
        if unshown == 0 {
            self.since = None;
            return Ok(());
        }
        let unshown_for = self.since.get_or_insert_with(Instant::now).elapsed();
        self.unshown_for = unshown_for.max(self.unshown_for);
        ensure!(
            unshown_for < SHOWN_TIMEOUT,
            "{unshown} beyond the limit, and {unaccounted} shown as unaccounted: the rest was not \
             shown in time"
        );
        Ok(())
    }
}

/// Waits until neither the ledger nor the GPU has memory of the container, with a timeout. Returns
/// what is left in both.
fn left(container: &Container) -> Result<(u64, u64)> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    let setup = &container.setup;
    let mut accounting = Oracle::open(&setup.container, &setup.state, &setup.gpus)?;
    loop {
        // Without a monitor the next process reclaims the slots of exited ones.
        reclaimer(setup)?;
        let left = (accounting.total()?.all, container.held(&accounting)?);
        if left == (0, 0) || Instant::now() > deadline {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn reclaimer(setup: &Setup) -> Result<()> {
    let mut actor = Actor::start(setup, 0)?;
    ensure!(actor.perform(&Command::Init)?.code == 0, "cuInit was refused");
    actor.kill()
}
