//! A play: steps drawn from a seed, each of which must do what the model says.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::actor::{Actor, Stage};
use crate::command::{Answer, Command, PRIMARY, Sight};
use crate::model::{Allocation, MIB, Model, Physical, Process, rounded};
use crate::random::Random;
use crate::witness::Witness;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_UNKNOWN`: what the driver refuses with when it is told to. No call that is played answers so by itself.
const TOLD_TO: i32 = 999;
/// What pools grow by, at least.
const CHUNK: u64 = 32 * MIB;
/// Contexts of one process, primary one included.
const MOST_CONTEXTS: u32 = 4;
/// Allocations of one process; beyond, it rather frees.
const MANY: usize = 200;
/// How long the books may take to forget the dead.
const FORGETTING: Duration = Duration::from_secs(30);

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
    /// `target/dist`.
    pub dist: PathBuf,
    /// The actor's program.
    pub actor: PathBuf,
    /// A folder of its own, in memory.
    pub folder: PathBuf,
}

struct Play<'a> {
    plan: &'a Plan,
    stage: Stage,
    random: Random,
    model: Model,
    actors: Vec<Actor>,
    witness: Witness,
    /// What the dead had, as long as it may be on the books.
    dead: u64,
    next_key: u32,
    outcome: Outcome,
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
            play.witness.check_card()?;
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
        let faults = names.map(|name| format!("{name}:p0.03:{TOLD_TO}")).join(",");
        let stage = Stage {
            dist: files.dist.clone(),
            actor: files.actor.clone(),
            cards: files.folder.join("cards"),
            gpus: "A10:23028".to_owned(),
            container,
            limit_mib: plan.limit_mib,
            faults: None,
        };
        // The first context teaches what one costs on this card: alone, and from a driver that does not refuse it.
        let mut first = Actor::start(&stage, plan.seed)?;
        for command in [Command::Init, Command::ContextCreate { context: 1 }] {
            ensure!(first.perform(&command)?.code == 0, "the first {command:?} was refused");
        }
        let witness = Witness::open(&stage.container, &stage.cards, &stage.gpus)?;
        let context = witness.context_cost();
        first.kill()?;

        let stage = Stage { faults: plan.refusals.then_some(faults), ..stage };
        let mut random = Random::of(plan.seed);
        let actors = (0..plan.processes)
            .map(|_| Actor::start(&stage, random.below(u64::MAX)))
            .collect::<Result<Vec<_>>>()?;
        let processes = vec![Process::default(); plan.processes];
        let model = Model { limit: plan.limit_mib * MIB, context, processes };
        let outcome = Outcome::default();
        Ok(Self { plan, stage, random, model, actors, witness, dead: context, next_key: 1, outcome })
    }

    fn step(&mut self) -> Result<()> {
        let who = usize::try_from(self.random.below(self.actors.len() as u64))?;
        self.outcome.operations += 1;
        if self.random.once_in(self.plan.kill_once_in) {
            return self.replace(who);
        }
        let command = self.draw(who);
        let Some(actor) = self.actors.get_mut(who) else { bail!("no actor {who}") };
        let answer = actor.perform(&command)?;
        if let Err(error) = self.judge(who, &command, &answer) {
            let (books, card, dead) = (self.witness.total()?, self.witness.truth()?, self.dead);
            bail!(
                "actor {who}: {command:?} -> {answer:?}: {error:#} ({books:?}, {card} on the card, {dead} of the dead)"
            );
        }
        self.compare(who).with_context(|| format!("after actor {who}: {command:?} -> {answer:?}"))
    }

    /// The next step of a process, by what it has.
    fn draw(&mut self, who: usize) -> Command {
        let process = &self.model.processes[who];
        if !process.started {
            return Command::Init;
        }
        let keys: Vec<u32> = process.allocations.keys().copied().collect();
        let Some(&context) = self.random.pick(&process.contexts) else {
            return if self.random.once_in(2) {
                Command::PrimaryRetain
            } else {
                Command::ContextCreate { context: 1 }
            };
        };
        let key = self.random.pick(&keys).copied();
        match (self.random.below(100), key) {
            (0..=1, _) => {
                let free = (1..MOST_CONTEXTS).find(|context| !process.has(*context));
                free.map_or(Command::Look { context }, |context| Command::ContextCreate { context })
            }
            (2, _) => Command::PrimaryRetain,
            (3, _) if process.has(PRIMARY) => Command::PrimaryRelease,
            // What a reset does to pools is not played.
            (4, _) if process.has(PRIMARY) && process.pooled.is_empty() && self.random.once_in(3) => {
                Command::PrimaryReset
            }
            (5, _) if context != PRIMARY => Command::ContextDestroy { context },
            (6, _) => Command::FreeUnknown,
            (7, _) if self.random.once_in(4) => Command::Fork,
            (8, _) if self.random.once_in(8) => Command::Execute,
            (9..=18, _) => Command::Look { context },
            (19..=58, Some(key)) => Command::Free { key },
            (_, Some(key)) if keys.len() > MANY => Command::Free { key },
            (59..=65, _) => {
                let (width, height) = (self.random.below(100_000) + 1, self.random.below(2000) + 1);
                Command::AllocatePitch { context, key: self.new_key(), width, height }
            }
            (66..=84, _) => self.draw_other(who, context),
            _ => {
                let bytes = self.random.size(self.model.limit / 2);
                Command::Allocate { context, key: self.new_key(), bytes }
            }
        }
    }

    /// Physical memory, arrays, pools.
    fn draw_other(&mut self, who: usize, context: u32) -> Command {
        let process = self.model.processes[who].clone();
        let pick = |random: &mut Random, names: Vec<u32>| random.pick(&names).copied();
        let map = pick(&mut self.random, process.maps.keys().copied().collect());
        let handle = pick(&mut self.random, process.handles.keys().copied().collect());
        let array = pick(&mut self.random, process.arrays.keys().copied().collect());
        let pooled = pick(&mut self.random, process.pooled.keys().copied().collect());
        match self.random.below(16) {
            0 | 1 => {
                let bytes = (self.random.below(64) + 1) * 2 * MIB;
                Command::PhysicalCreate { context, key: self.new_key(), bytes, host: self.random.once_in(6) }
            }
            2 | 3 if handle.is_some() => {
                let key = handle.unwrap_or_default();
                let bytes = process.handles.get(&key).and_then(|first| process.physical.get(first));
                let bytes = bytes.map_or(0, |physical| physical.bytes);
                Command::PhysicalMap { key, map: self.new_key(), bytes }
            }
            4 if map.is_some() => Command::PhysicalUnmap { map: map.unwrap_or_default() },
            5 if handle.is_some() => Command::PhysicalRelease { key: handle.unwrap_or_default() },
            6 if map.is_some() => {
                Command::PhysicalRetain { map: map.unwrap_or_default(), key: self.new_key() }
            }
            7 | 8 => Command::ArrayCreate {
                context,
                key: self.new_key(),
                width: self.random.below(3000) + 1,
                height: self.random.below(1500),
                depth: 0,
                channels: *self.random.pick(&[1, 2, 4]).unwrap_or(&1),
            },
            9 | 10 if array.is_some() => {
                let key = array.unwrap_or_default();
                let context = process.arrays.get(&key).map_or(context, |array| array.context);
                Command::ArrayDestroy { context, key }
            }
            11 | 12 => {
                let bytes = self.random.size(256 * MIB);
                Command::PoolAllocate { context, key: self.new_key(), bytes }
            }
            13 | 14 if pooled.is_some() => Command::PoolFree { context, key: pooled.unwrap_or_default() },
            _ => Command::Synchronise { context },
        }
    }

    fn new_key(&mut self) -> u32 {
        self.next_key += 1;
        self.next_key
    }

    /// Whether the answer is what the model says, and what follows from it.
    fn judge(&mut self, who: usize, command: &Command, answer: &Answer) -> Result<()> {
        if answer.code == TOLD_TO && self.plan.refusals {
            // Nothing has happened.
            self.outcome.by_driver += 1;
        } else {
            self.judge_untold(who, command, answer)?;
        }
        let read = matches!(command, Command::Look { .. } | Command::Synchronise { .. });
        self.model.processes[who].pool_seen(answer.pooled, read && answer.code == 0);
        if let Command::Look { .. } = command {
            self.judge_sight(answer.sight)?;
        }
        Ok(())
    }

    fn judge_untold(&mut self, who: usize, command: &Command, answer: &Answer) -> Result<()> {
        let code = answer.code;
        match *command {
            Command::Init => {
                ensure!(code == 0, "cuInit was refused");
                self.model.processes[who].started = true;
            }
            Command::ContextCreate { context } => {
                self.granted_if_fits(self.model.context, code)?;
                if code == 0 {
                    self.model.processes[who].contexts.push(context);
                }
            }
            Command::ContextDestroy { context } => {
                ensure!(code == 0, "the context was not destroyed");
                self.model.processes[who].lose(context);
            }
            Command::PrimaryRetain => {
                let active = self.model.processes[who].has(PRIMARY);
                if active {
                    ensure!(code == 0, "the primary context is there");
                } else {
                    self.granted_if_fits(self.model.context, code)?;
                }
                ensure!(answer.active == (active || code == 0), "the primary context's state");
                if answer.active && !active {
                    self.model.processes[who].contexts.push(PRIMARY);
                }
            }
            Command::PrimaryRelease | Command::PrimaryReset => {
                ensure!(code == 0, "the primary context was not let go");
                if !answer.active {
                    self.model.processes[who].lose(PRIMARY);
                }
            }
            Command::Allocate { context, key, bytes } => {
                let charged = rounded(bytes);
                self.granted_if_fits(charged, code)?;
                if self.counts(code) {
                    self.model.processes[who].allocations.insert(key, Allocation { context, charged });
                }
            }
            Command::AllocatePitch { context, key, width, height } => {
                // The driver chooses the pitch; where it refuses, no pitch would have fitted.
                let pitch = if code == 0 { answer.pitch } else { width.next_multiple_of(512) };
                ensure!(pitch >= width, "the pitch");
                let charged = rounded(pitch * height);
                self.granted_if_fits(charged, code)?;
                if self.counts(code) {
                    self.model.processes[who].allocations.insert(key, Allocation { context, charged });
                }
            }
            Command::Free { key } => {
                ensure!(code == 0, "the free was refused");
                self.model.processes[who].allocations.remove(&key);
            }
            Command::FreeUnknown => ensure!(code != 0, "an unknown address was freed"),
            Command::PhysicalCreate { key, bytes, host, .. } => {
                let charged = if host { 0 } else { bytes };
                self.granted_if_fits(charged, code)?;
                if self.counts(code) {
                    let process = &mut self.model.processes[who];
                    process.physical.insert(key, Physical { charged, bytes, references: 1 });
                    process.handles.insert(key, key);
                }
            }
            Command::PhysicalMap { key, map, .. } => {
                ensure!(code == 0, "the memory was not mapped");
                self.model.processes[who]
                    .hold(key, |process, physical| _ = process.maps.insert(map, physical));
            }
            Command::PhysicalUnmap { map } => {
                ensure!(code == 0, "the memory was not unmapped");
                let process = &mut self.model.processes[who];
                let physical = process.maps.remove(&map).unwrap_or_default();
                process.let_go(physical);
            }
            Command::PhysicalRelease { key } => {
                ensure!(code == 0, "the handle was not released");
                let process = &mut self.model.processes[who];
                let physical = process.handles.remove(&key).unwrap_or_default();
                process.let_go(physical);
            }
            Command::PhysicalRetain { map, key } => {
                ensure!(code == 0, "the mapped memory has no handle");
                let process = &mut self.model.processes[who];
                let physical = process.maps.get(&map).copied().unwrap_or_default();
                process.handles.insert(key, physical);
                process.hold(key, |_, _| ());
            }
            Command::ArrayCreate { context, key, .. } => {
                ensure!(answer.needed > 0, "the driver does not say what the array needs");
                let charged = rounded(answer.needed);
                self.granted_if_fits(charged, code)?;
                if self.counts(code) {
                    let array = Allocation { context, charged };
                    self.model.processes[who].arrays.insert(key, array);
                }
            }
            Command::ArrayDestroy { key, .. } => {
                ensure!(code == 0, "the array was not destroyed");
                self.model.processes[who].arrays.remove(&key);
            }
            Command::PoolAllocate { key, bytes, .. } => {
                // How a pool grows is the driver's business: by two chunks more than what is asked for, at most.
                let surely = self.model.fits(bytes.next_multiple_of(CHUNK) + 2 * CHUNK);
                let never = !self.model.might_fit(bytes);
                self.granted_if(surely, never, code)?;
                if self.counts(code) {
                    self.model.processes[who].pooled.insert(key, bytes);
                }
            }
            Command::PoolFree { key, .. } => {
                ensure!(code == 0, "the free was refused");
                self.model.processes[who].pooled.remove(&key);
            }
            Command::Synchronise { .. } => ensure!(code == 0, "the stream was not waited for"),
            Command::Look { .. } => ensure!(code == 0, "the getters were refused"),
            Command::Fork => ensure!(code == 0, "the child ended with {code}"),
            Command::Execute => self.bury(who),
        }
        Ok(())
    }

    /// A process has ended, and another takes its place.
    fn bury(&mut self, who: usize) {
        let process = std::mem::take(&mut self.model.processes[who]);
        self.dead += self.model.of(&process) + process.stale();
    }

    fn granted_if_fits(&self, bytes: u64, code: i32) -> Result<()> {
        self.granted_if(self.model.fits(bytes), !self.model.might_fit(bytes), code)
    }

    /// What must be granted is; what must never be is not; in between, where pools are trimmed first, either.
    fn granted_if(&self, surely: bool, never: bool, code: i32) -> Result<()> {
        let (total, limit) = (self.model.total(), self.model.limit);
        match code {
            0 if never => bail!("granted although {total} of {limit} are in use"),
            OUT_OF_MEMORY if surely => bail!("refused although {total} of {limit} are in use"),
            0 | OUT_OF_MEMORY => Ok(()),
            code => bail!("refused with {code}, which is not out of memory, with {total} of {limit} in use"),
        }
    }

    /// Counts an allocation's answer; whether it was granted.
    fn counts(&mut self, code: i32) -> bool {
        let count = if code == 0 { &mut self.outcome.granted } else { &mut self.outcome.over_limit };
        *count += 1;
        code == 0
    }

    /// All getters show one thing.
    fn judge_sight(&mut self, sight: Sight) -> Result<()> {
        let limit = self.model.limit;
        ensure!(
            [sight.total, sight.device_total, sight.nvml_total] == [limit; 3]
                && sight.nvml_free == sight.free
                && sight.nvml_used == limit - sight.free,
            "the getters disagree"
        );
        let (least, most) = (self.model.total(), self.model.most() + self.dead);
        let used = limit - sight.free;
        // The dead may take it over the limit, of which no more than all can be shown.
        ensure!(used >= least.min(limit) && used <= most, "{used} shown of {least} to {most} in use");
        Ok(())
    }

    /// Whether books and card agree with the model.
    fn compare(&mut self, who: usize) -> Result<()> {
        let total = self.witness.total()?;
        let (least, most) = (self.model.total(), self.model.most() + self.dead);
        ensure!(
            total.all >= least && total.all <= most,
            "the books say {} for {least} to {most} in use",
            total.all
        );
        if total.all == least && self.model.most() == least {
            self.dead = 0;
        }
        let process = &self.model.processes[who];
        let Some(actor) = self.actors.get(who).filter(|_| process.started) else { return Ok(()) };
        let seen = self.witness.process(actor.pid())?;
        let (used, implicit) = (process.used(), self.model.implicit(process));
        ensure!(
            (used..=used + process.stale()).contains(&seen.used) && seen.implicit == implicit,
            "the books say {} and {} implicit for {used} and {implicit}",
            seen.used,
            seen.implicit
        );
        // Small allocations come out of blocks of 2 MiB, which are the driver's own business: what of them is not in use is slack.
        let (large, small) = (implicit + used - process.small(), process.small());
        let agrees =
            |truth: u64| truth.checked_sub(large).is_some_and(|rest| rest % (2 * MIB) == 0 && rest >= small);
        ensure!(
            seen.truths.iter().copied().any(agrees) || (large + small == 0 && seen.truths.is_empty()),
            "the card has {:?} for {large} of contexts and large allocations and {small} of small ones",
            seen.truths
        );
        let overshoot = least.saturating_sub(self.model.limit);
        self.outcome.overshoot = self.outcome.overshoot.max(overshoot);
        ensure!(overshoot == 0, "{overshoot} over the limit when the call had returned");
        Ok(())
    }

    /// Kills a process, which another one takes the place of.
    fn replace(&mut self, who: usize) -> Result<()> {
        self.bury(who);
        let seed = self.random.below(u64::MAX);
        let successor = Actor::start(&self.stage, seed)?;
        let Some(place) = self.actors.get_mut(who) else { bail!("no actor {who}") };
        std::mem::replace(place, successor).kill()?;
        self.outcome.kills += 1;
        Ok(())
    }

    /// Ends everybody, and looks what is left.
    fn end(mut self) -> Result<Outcome> {
        for actor in self.actors.drain(..) {
            actor.kill()?;
        }
        let deadline = Instant::now() + FORGETTING;
        loop {
            // Without a monitor it is the next process that buries the dead.
            let mut undertaker = Actor::start(&Stage { faults: None, ..self.stage.clone() }, 0)?;
            ensure!(undertaker.perform(&Command::Init)?.code == 0, "the last cuInit was refused");
            undertaker.kill()?;
            let (books, card) = (self.witness.total()?.all, self.witness.truth()?);
            if (books, card) == (0, 0) || Instant::now() > deadline {
                self.outcome.leak = books.max(card);
                ensure!(self.outcome.leak == 0, "{books} are left on the books and {card} on the card");
                return Ok(self.outcome);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
