//! Device memory under random histories. Processes allocate, share, export, import and free in any
//! order, and end at any point. The GPU's accounting must equal a simple model's, and nothing of a
//! killed process may remain.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cgpu_sim::clock::{Clock, VirtualClock};
use cgpu_sim::kernel::mix;
use cgpu_sim::machine::{
    Access, ContextId, Member, Offer, PhysicalId, PhysicalPlace, PoolId, PoolSettings, Side,
    StreamId, StreamKind,
};
use cgpu_sim::settings::Figures;
use cgpu_sim::{Bytes, Error, GpuSpec, Machine, Nanos, Settings};

/// Serialises the tests: a forked child inherits every open descriptor until it executes another
/// program, and so holds whatever that descriptor holds.
static ALONE: Mutex<()> = Mutex::new(());

const MIB: u64 = 1 << 20;
const GRANULE: u64 = 2 * MIB;

fn settings(directory: &Path) -> Settings {
    Settings {
        state: directory.join("segment"),
        gpus: Some(GpuSpec::parse_list("T4:2048").unwrap()),
        time_scale_milli: 1_000,
        figures: Figures::default(),
    }
}

/// Returns the number of files of exports.
fn files(directory: &Path) -> usize {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains(".export-")).count()
}

/// A generator of pseudo-random numbers.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.0 += 1;
        usize::try_from(mix(self.0) % end as u64).unwrap()
    }

    /// Removes an element of the list.
    fn take<T>(&mut self, list: &mut Vec<T>) -> Option<T> {
        (!list.is_empty()).then(|| list.swap_remove(self.below(list.len())))
    }
}

/// Memory that several processes may hold, in the model.
#[derive(Debug)]
struct Export {
    bytes: u64,
    /// The processes that hold it, the first holder first, with the number of holds.
    holders: Vec<(usize, usize)>,
    descriptors: usize,
}

impl Export {
    fn hold(&mut self, index: usize) {
        match self.holders.iter_mut().find(|(holder, _)| *holder == index) {
            Some((_, holds)) => *holds += 1,
            None => self.holders.push((index, 1)),
        }
    }

    fn drop_hold(&mut self, index: usize) {
        let place = self.holders.iter().position(|(holder, _)| *holder == index).unwrap();
        self.holders[place].1 -= 1;
        if self.holders[place].1 == 0 {
            self.holders.remove(place);
        }
    }
}

/// A team of the GPU, in the model.
#[derive(Debug, Default)]
struct Team {
    /// The processes that have it, once for each handle.
    holders: Vec<usize>,
    descriptors: usize,
    /// What is bound at each granule: by which process, which export.
    bound: BTreeMap<u64, (usize, usize)>,
}

/// Size of a team in granules.
const ROOM: u64 = 8;

/// A process and its state in the model.
struct Process {
    machine: Machine,
    context: ContextId,
    stream: StreamId,
    pool: PoolId,
    linear: Vec<(u64, u64)>,
    /// Offered allocations and their exports in the model; they no longer belong to the context.
    offered: BTreeMap<u64, (usize, Offer)>,
    opened: Vec<(u64, usize)>,
    private: Vec<(PhysicalId, u64)>,
    shareable: Vec<(PhysicalId, usize)>,
    /// Mapped at an address: the size, and the export or the bytes that the mapping holds.
    mapped: Vec<(u64, u64, Result<usize, u64>)>,
    pooled: Vec<u64>,
    teams: Vec<(PhysicalId, usize)>,
}

/// A GPU with processes, descriptors in transit, and the expected accounting.
struct Harness {
    directory: tempfile::TempDir,
    clock: VirtualClock,
    processes: Vec<Option<Process>>,
    exports: Vec<Export>,
    descriptors: Vec<(OwnedFd, usize)>,
    teams: Vec<Team>,
    team_descriptors: Vec<(OwnedFd, usize)>,
    draws: Draws,
    /// Number of operations of each kind.
    counts: BTreeMap<&'static str, usize>,
}

impl Harness {
    fn new(seed: u64) -> Self {
        let clock = VirtualClock::default();
        clock.set(Nanos::from_millis(1));
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let draws = Draws(seed << 32);
        let mut harness = Self {
            directory,
            clock,
            processes: (0..3).map(|_| None).collect(),
            exports: Vec::new(),
            descriptors: Vec::new(),
            teams: Vec::new(),
            team_descriptors: Vec::new(),
            draws,
            counts: BTreeMap::new(),
        };
        (0..3).for_each(|index| harness.join(index));
        harness
    }

    fn machine(&self) -> Machine {
        Machine::open_with(&settings(self.directory.path()), Clock::Virtual(self.clock.clone()))
            .unwrap()
    }

    fn join(&mut self, index: usize) {
        let machine = self.machine();
        let Ok(context) = machine.create_context(0) else { return };
        let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
        let pool = machine
            .create_pool(PoolSettings { site: 0.into(), shareable: true, most: Bytes::ZERO })
            .unwrap();
        self.processes[index] = Some(Process {
            machine,
            context,
            stream,
            pool,
            linear: Vec::new(),
            offered: BTreeMap::new(),
            opened: Vec::new(),
            private: Vec::new(),
            shareable: Vec::new(),
            mapped: Vec::new(),
            pooled: Vec::new(),
            teams: Vec::new(),
        });
    }

    /// Ends a process with everything that it has.
    fn leave(&mut self, index: usize) {
        self.processes[index] = None;
        for export in &mut self.exports {
            export.holders.retain(|(holder, _)| *holder != index);
        }
        for team in &mut self.teams {
            team.bound.retain(|_, (binder, _)| *binder != index);
            team.holders.retain(|holder| *holder != index);
        }
        (0..self.teams.len()).for_each(|team| self.end_if_unheld(team));
    }

    fn end_if_unheld(&mut self, team: usize) {
        let its = &mut self.teams[team];
        if its.holders.is_empty() && its.descriptors == 0 && !its.bound.is_empty() {
            for (binder, export) in std::mem::take(&mut its.bound).into_values() {
                self.exports[export].drop_hold(binder);
            }
            self.count("a team ended with memory");
        }
    }

    /// Performs an operation on teams.
    fn act_on_teams(&mut self, index: usize, process: &mut Process) {
        let machine = &process.machine;
        match self.draws.below(9) {
            0 => {
                let team = machine.create_team(1, Bytes(ROOM * GRANULE), true).unwrap();
                machine.add_to_team(team, 0).unwrap();
                self.team_descriptors
                    .push((machine.export_physical(team).unwrap(), self.teams.len()));
                process.teams.push((team, self.teams.len()));
                self.teams.push(Team {
                    holders: vec![index],
                    descriptors: 1,
                    bound: BTreeMap::new(),
                });
            }
            1 => {
                if let Some((descriptor, team)) = self.team_descriptors.last() {
                    let id = machine.import_physical(descriptor.as_fd()).unwrap();
                    process.teams.push((id, *team));
                    self.teams[*team].holders.push(index);
                }
            }
            2..=4 => {
                let Some(&(team, its)) = process.teams.last() else { return };
                let Some(&(id, export)) = process.shareable.last() else { return };
                let place = self.draws.below(usize::try_from(ROOM).unwrap()) as u64;
                let bound = machine.bind(
                    team,
                    (place * GRANULE, Bytes(GRANULE)),
                    Member::Handle(id, 0),
                    Some(0),
                );
                if self.teams[its].bound.contains_key(&place) {
                    assert!(matches!(bound, Err(Error::Invalid(_))), "{bound:?}");
                    return;
                }
                bound.unwrap();
                self.teams[its].bound.insert(place, (index, export));
                self.exports[export].hold(index);
                self.count("bound");
            }
            5 | 6 => {
                let bound = |(_, team): &&(PhysicalId, usize)| !self.teams[*team].bound.is_empty();
                let Some(&(team, its)) = process.teams.iter().find(bound) else { return };
                let Some((place, (binder, export))) = self.teams[its].bound.pop_first() else {
                    return;
                };
                machine.unbind(team, 0, (place * GRANULE, Bytes(GRANULE))).unwrap();
                self.exports[export].drop_hold(binder);
                self.count(if binder == index { "unbound" } else { "another's unbound" });
            }
            7 => {
                if let Some((id, team)) = self.draws.take(&mut process.teams) {
                    machine.release_physical(id).unwrap();
                    let holders = &mut self.teams[team].holders;
                    holders
                        .swap_remove(holders.iter().position(|holder| *holder == index).unwrap());
                    self.end_if_unheld(team);
                }
            }
            _ => {
                if let Some((descriptor, team)) = self.draws.take(&mut self.team_descriptors) {
                    drop(descriptor);
                    self.teams[team].descriptors -= 1;
                    self.end_if_unheld(team);
                }
            }
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Performs an operation, which may fail for lack of memory.
    fn act(&mut self, index: usize) {
        let what = self.draws.below(28);
        let size = [GRANULE, 3 * MIB, 16 * MIB, 90 * MIB][self.draws.below(4)];
        let rounded = size.next_multiple_of(GRANULE);
        let Some(mut process) = self.processes[index].take() else { return self.join(index) };
        let machine = &process.machine;
        match what {
            0..=2 => match machine.allocate(process.context, Bytes(size)) {
                Ok(address) => process.linear.push((address, rounded)),
                Err(error) => self.refused(&error),
            },
            3 => {
                if let Some((address, _)) = self.draws.take(&mut process.linear) {
                    machine.free(address).unwrap();
                    if let Some((export, _)) = process.offered.remove(&address) {
                        self.exports[export].drop_hold(index);
                        self.count("freed while offered");
                    }
                }
            }
            4 => {
                if let Some(&(address, bytes)) = process.linear.last() {
                    let offer = machine.offer_memory(address).unwrap();
                    process.offered.entry(address).or_insert_with(|| {
                        self.exports.push(Export {
                            bytes,
                            holders: vec![(index, 1)],
                            descriptors: 0,
                        });
                        (self.exports.len() - 1, offer)
                    });
                }
            }
            5 => {
                let others =
                    self.processes.iter().flatten().flat_map(|other| other.offered.values());
                if let Some((export, offer)) = others.last().copied() {
                    let address = machine.open_memory(process.context, &offer).unwrap();
                    // An allocation that is already open is held once.
                    if !process.opened.iter().any(|(_, its)| *its == export) {
                        self.exports[export].hold(index);
                    }
                    process.opened.push((address, export));
                    self.count("opened");
                }
            }
            6 => {
                if let Some((address, export)) = self.draws.take(&mut process.opened) {
                    machine.close_memory(address).unwrap();
                    if !process.opened.iter().any(|(_, its)| *its == export) {
                        self.exports[export].drop_hold(index);
                    }
                }
            }
            7 | 8 => match machine.create_physical(
                PhysicalPlace::On(0.into()),
                Bytes(rounded),
                what == 8,
            ) {
                Ok(id) if what == 7 => process.private.push((id, rounded)),
                Ok(id) => {
                    self.exports.push(Export {
                        bytes: rounded,
                        holders: vec![(index, 1)],
                        descriptors: 0,
                    });
                    process.shareable.push((id, self.exports.len() - 1));
                }
                Err(error) => self.refused(&error),
            },
            9 => {
                if let Some((id, bytes)) = self.draws.take(&mut process.private) {
                    if let Some(address) = map(machine, id, bytes) {
                        process.mapped.push((address, bytes, Err(bytes)));
                    }
                    machine.release_physical(id).unwrap();
                }
            }
            10 => {
                if let Some((id, export)) = self.draws.take(&mut process.shareable) {
                    let bytes = self.exports[export].bytes;
                    if let Some(address) = map(machine, id, bytes) {
                        process.mapped.push((address, bytes, Ok(export)));
                        machine.release_physical(id).unwrap();
                    } else {
                        machine.release_physical(id).unwrap();
                        self.exports[export].drop_hold(index);
                    }
                }
            }
            11 => {
                if let Some((address, bytes, kept)) = self.draws.take(&mut process.mapped) {
                    machine.unmap(address, Bytes(bytes)).unwrap();
                    machine.free_addresses(address, Bytes(bytes)).unwrap();
                    if let Ok(export) = kept {
                        self.exports[export].drop_hold(index);
                    }
                }
            }
            12 => {
                if let Some(&(id, export)) = process.shareable.last() {
                    self.descriptors.push((machine.export_physical(id).unwrap(), export));
                    self.exports[export].descriptors += 1;
                    if self.draws.below(2) == 0 {
                        process.shareable.pop();
                        machine.release_physical(id).unwrap();
                        self.exports[export].drop_hold(index);
                    }
                }
            }
            13 => {
                if let Some((descriptor, export)) = self.descriptors.last() {
                    let id = machine.import_physical(descriptor.as_fd()).unwrap();
                    process.shareable.push((id, *export));
                    if self.exports[*export].holders.is_empty() {
                        *self.counts.entry("imported from a descriptor alone").or_default() += 1;
                    }
                    self.exports[*export].hold(index);
                }
            }
            14 => {
                if let Some((descriptor, export)) = self.draws.take(&mut self.descriptors) {
                    drop(descriptor);
                    self.exports[export].descriptors -= 1;
                }
            }
            15 | 16 => {
                match machine.allocate_from(process.pool, Bytes(size / 3), Some(process.stream)) {
                    Ok(address) => process.pooled.push(address),
                    Err(error) => self.refused(&error),
                }
            }
            17 => {
                if let Some(address) = self.draws.take(&mut process.pooled) {
                    machine.free_in(address, process.stream).unwrap();
                }
            }
            18 => machine.synchronize_stream(process.stream).unwrap(),
            19..=26 => self.act_on_teams(index, &mut process),
            _ if self.draws.below(4) == 0 => {
                // Put back, so that `leave` drops it.
                self.processes[index] = Some(process);
                self.count("left");
                return self.leave(index);
            }
            _ => machine.trim_pool(process.pool, Bytes::ZERO).unwrap(),
        }
        self.processes[index] = Some(process);
    }

    fn refused(&mut self, error: &Error) {
        assert_eq!(*error, Error::OutOfMemory);
        self.count("refused");
    }

    /// Returns the bytes that a process must have.
    fn due(&self, index: usize, process: &Process) -> u64 {
        let linear =
            process.linear.iter().filter(|(address, _)| !process.offered.contains_key(address));
        let mapped = process.mapped.iter().filter_map(|(_, _, kept)| kept.err());
        let owned = self
            .exports
            .iter()
            .filter(|export| export.holders.first().is_some_and(|(h, _)| *h == index));
        process.machine.figures().context_memory.0
            + linear.map(|(_, bytes)| bytes).sum::<u64>()
            + process.private.iter().map(|(_, bytes)| bytes).sum::<u64>()
            + mapped.sum::<u64>()
            + owned.map(|export| export.bytes).sum::<u64>()
            + process.machine.pool_usage(process.pool).unwrap().reserved.0
    }

    fn compare(&self, step: usize) {
        let orphaned: u64 = self
            .exports
            .iter()
            .filter(|export| export.holders.is_empty() && export.descriptors > 0)
            .map(|export| export.bytes)
            .sum();
        let Some(any) = self.processes.iter().flatten().next() else { return };
        let used = any.machine.memory_info(0).unwrap().used.0;
        let due: Vec<u64> = self
            .processes
            .iter()
            .enumerate()
            .filter_map(|(index, process)| Some(self.due(index, process.as_ref()?)))
            .collect();
        assert_eq!(
            used,
            due.iter().sum::<u64>() + orphaned,
            "step {step}: {due:?}, {orphaned} orphaned"
        );
        // The machine lists processes in the order of their slots.
        let mut reported: Vec<u64> =
            any.machine.processes(0).unwrap().iter().map(|process| process.memory.0).collect();
        let mut due = due;
        reported.sort_unstable();
        due.sort_unstable();
        assert_eq!(reported, due, "step {step}: memory of each process");
        any.machine.check().unwrap();
    }
}

/// Maps all of a piece of physical memory and writes to it. Returns the address.
fn map(machine: &Machine, id: PhysicalId, bytes: u64) -> Option<u64> {
    let address = machine.reserve_addresses(Bytes(bytes), 0, 0).ok()?;
    machine.map(address, Bytes(bytes), id).unwrap();
    machine.set_access(address, Bytes(bytes), &[(Side::Gpu(0), Access::ReadWrite)]).unwrap();
    Some(address)
}

#[test]
fn memory_accounting_equals_a_simple_model() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut counts = BTreeMap::new();
    for seed in 0..24 {
        let mut harness = Harness::new(seed);
        for step in 0..250 {
            let index = harness.draws.below(3);
            harness.act(index);
            harness.compare(step);
        }
        (0..3).for_each(|index| harness.leave(index));
        harness.descriptors.clear();
        harness.team_descriptors.clear();
        let machine = harness.machine();
        assert_eq!(machine.memory_info(0).unwrap().used, Bytes::ZERO, "seed {seed}");
        assert_eq!(files(harness.directory.path()), 0, "seed {seed}");
        machine.check().unwrap();
        for (what, times) in harness.counts {
            *counts.entry(what).or_insert(0) += times;
        }
    }
    for what in [
        "opened",
        "freed while offered",
        "imported from a descriptor alone",
        "bound",
        "unbound",
        "another's unbound",
        "a team ended with memory",
        "left",
        "refused",
    ] {
        assert!(counts.get(what).is_some_and(|&times| times > 5), "hardly ever {what}: {counts:?}");
    }
}

/// Variable with the segment's folder, for child processes.
const STATE: &str = "CGPU_SIM_TEST_MEMORY";

/// Operates on memory until it is killed. Run by child processes; does nothing as a test.
#[test]
fn child_operates_on_memory() {
    let Some(directory) = std::env::var_os(STATE) else { return };
    let directory = Path::new(&directory);
    let machine = Machine::open(&settings(directory)).unwrap();
    let mut draws = Draws(u64::from(std::process::id()) << 32);
    let offers = directory.join("offers");
    loop {
        let Ok(context) = machine.create_context(0) else { continue };
        operate(&machine, context, &mut draws, &offers);
        machine.destroy_context(context).unwrap();
    }
}

fn operate(machine: &Machine, context: ContextId, draws: &mut Draws, offers: &Path) {
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let pool = machine
        .create_pool(PoolSettings { site: 0.into(), shareable: true, most: Bytes::ZERO })
        .unwrap();
    let (mut linear, mut opened, mut pooled, mut physical) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut descriptors, mut teams) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        match draws.below(12) {
            0 | 1 => linear.extend(machine.allocate(context, Bytes(700_000 << draws.below(5)))),
            2 => {
                if let Some(&address) = linear.last() {
                    let Offer { export, serial, offset, size } =
                        machine.offer_memory(address).unwrap();
                    // A partly written line is not an offer, and the export of an offer may be
                    // gone.
                    fs::write(offers, format!("{export} {serial} {offset} {}", size.0)).unwrap();
                }
            }
            3 => opened.extend(
                read_offer(offers).and_then(|offer| machine.open_memory(context, &offer).ok()),
            ),
            4 => pooled.extend(machine.allocate_from(
                pool,
                Bytes(300_000 << draws.below(6)),
                Some(stream),
            )),
            5 => {
                if let Some(address) = draws.take(&mut pooled) {
                    machine.free_in(address, stream).unwrap();
                }
            }
            6 => {
                let size = Bytes(GRANULE << draws.below(4));
                let made =
                    machine.create_physical(PhysicalPlace::On(0.into()), size, draws.below(2) == 0);
                physical.extend(made.ok().map(|id| (id, size)));
            }
            7 => {
                if let Some(&(id, size)) = physical.last() {
                    descriptors.extend(machine.export_physical(id));
                    map(machine, id, size.0);
                }
            }
            8 => {
                let received =
                    descriptors.last().map(|fd: &OwnedFd| machine.import_physical(fd.as_fd()));
                let size = |id| machine.physical(id).map(|info| (id, info.size));
                physical.extend(received.and_then(Result::ok).and_then(|id| size(id).ok()));
            }
            9 | 10 => {
                let Some(&(id, _)) = physical.last() else { continue };
                if teams.is_empty() || draws.below(3) == 0 {
                    let team = machine.create_team(1, Bytes(4 * GRANULE), false).unwrap();
                    machine.add_to_team(team, 0).unwrap();
                    teams.push(team);
                }
                let team = teams[draws.below(teams.len())];
                let part = (draws.below(4) as u64 * GRANULE, Bytes(GRANULE));
                // Refused where memory is bound already. Binding private memory makes it shareable.
                if machine.bind(team, part, Member::Handle(id, 0), None).is_err() {
                    machine.unbind(team, 0, part).unwrap();
                    teams.retain(|its| *its != team);
                    machine.release_physical(team).unwrap();
                }
            }
            _ => {
                if let Some(address) = draws.take(&mut linear) {
                    machine.free(address).unwrap();
                }
                if let Some(address) = draws.take(&mut opened) {
                    machine.close_memory(address).unwrap();
                }
                if let Some((id, _)) = draws.take(&mut physical) {
                    machine.release_physical(id).unwrap();
                }
            }
        }
    }
    machine.destroy_pool(pool).unwrap();
    for address in pooled {
        machine.free_now(address).unwrap();
    }
}

fn read_offer(offers: &Path) -> Option<Offer> {
    let text = fs::read_to_string(offers).ok()?;
    let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [export, serial, offset, size] = numbers[..] else { return None };
    Some(Offer { export, serial, offset, size: Bytes(size) })
}

/// A child that is killed on drop.
struct Watched(Child);

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn child(directory: &Path) -> Watched {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_operates_on_memory", "--nocapture"]).env(STATE, directory);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let end_with_parent = || {
        // SAFETY: requests a signal at the parent's death; touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: starts this process's own timer, which survives exec, as a watchdog.
        unsafe { libc::alarm(60) };
        Ok(())
    };
    // SAFETY: both calls are async-signal-safe.
    unsafe { command.pre_exec(end_with_parent) };
    Watched(command.spawn().unwrap())
}

#[test]
fn killed_processes_leave_no_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let machine = Machine::open(&settings(directory.path())).unwrap();
    let mut draws = Draws(7);
    let mut children: Vec<Watched> = (0..3).map(|_| child(directory.path())).collect();
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(5 + draws.below(40) as u64));
        let mut killed = children.swap_remove(draws.below(3));
        assert!(killed.0.try_wait().unwrap().is_none(), "it has ended by itself");
        drop(killed);
        machine.check().unwrap();
        children.push(child(directory.path()));
    }
    drop(children);
    let timeout = Instant::now() + Duration::from_secs(30);
    loop {
        // Reclaims exited processes, and exports that no process holds.
        machine.processes(0).unwrap();
        if machine.memory_info(0).unwrap().used == Bytes::ZERO && files(directory.path()) == 0 {
            break;
        }
        assert!(Instant::now() < timeout, "{:?}", machine.memory_info(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    machine.check().unwrap();
}
