//! Graph launches: one call puts a whole plan on tracks, and the launch's stream waits for them.
//!
//! ```text
//!   stream:   ... earlier | (wait for the launch before) begin | (wait for the end) | later ...
//!   track 0:                     (wait for begin)  a  b  ...
//!   track 1:                     (wait for begin)  c  ...
//! ```
//!
//! The stream's part is put first, in one operation. It names the last command of a track by its
//! number, in advance. So the graph's place in the stream is fixed whatever other threads enqueue
//! meanwhile. The tracks follow in batches that fit the undo log. If the process dies in between,
//! its stream waits for a command that never comes; both go with the context.
//!
//! Tracks belong to a context and are taken for a launch: those of the previous launch if they have
//! room, else idle ones, else new ones. From [`TRACKS`] on, the least full track is taken. No other
//! launch can take a track while one is being put.

use std::collections::HashMap;
use std::sync::Mutex;

use cgpu_shm::units::Nanos;

use super::effects::Effect;
use super::plan::{Item, Plan, Position, Work};
use super::{ContextId, Core, Machine, StreamId, Ticket, enqueued, lock};
use crate::error::Error;
use crate::timeline::{Command, QueueFull};

/// Tracks that a context creates before launches share them.
const TRACKS: usize = 128;
/// The most commands that a track may hold after a launch, so that all fit its ring.
const RING: u64 = 2_000;
/// Commands of one operation: a fraction of the undo log, and short enough for others to wait for
/// the lock.
const BATCH: usize = 128;

/// The launches in flight of one executable graph.
#[derive(Debug, Default)]
pub struct Flight {
    /// The end of the last one.
    last: Option<Ticket>,
    /// Its tracks, by their index in the plan.
    tracks: Vec<StreamId>,
}

impl Flight {
    /// Returns the end of the last launch.
    #[must_use]
    pub fn last(&self) -> Option<Ticket> {
        self.last
    }
}

/// The tracks of this process, by context.
#[derive(Debug, Default)]
pub(super) struct Tracks(Mutex<HashMap<ContextId, Pool>>);

#[derive(Debug, Default)]
struct Pool {
    /// Those that no launch has taken.
    free: Vec<StreamId>,
    made: usize,
}

impl Tracks {
    pub(super) fn forget(&self, context: ContextId) {
        lock(&self.0).remove(&context);
    }
}

struct Entry {
    track: StreamId,
    kind: Kind,
    token: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Command(Command),
    Kernel(super::Launch),
    /// An event's last record at the time the command is put.
    Await(super::EventId),
}

impl Machine {
    /// Launches a plan whose steps do `works`: after the work that the stream holds, after the
    /// flight's last launch, and before later work of the stream. Blocks while the stream's queue
    /// or a track is full.
    ///
    /// # Errors
    /// [`Error::NoStream`], [`Error::NoContext`], [`Error::NoEvent`], [`Error::Full`];
    /// [`Error::NoAllocation`] if a range of a step leaves its allocation. Then nothing is
    /// launched.
    ///
    /// # Safety
    /// Host memory that the steps use must stay valid, unborrowed by Rust code, until the ticket is
    /// done or the contexts are destroyed.
    pub unsafe fn launch_plan(
        &self,
        stream: StreamId,
        plan: &Plan,
        works: &[Work],
        flight: &mut Flight,
    ) -> Result<Ticket, Error> {
        self.check_not_forked()?;
        let begun = self.now();
        let cost =
            self.figures().launch_cost + Nanos(self.figures().node_cost.0 * plan.len() as u64);
        if works.len() != plan.len() {
            return Err(Error::Invalid("a graph launch needs the work of each step"));
        }
        let signals = works.iter().any(|work| matches!(work, Work::Signal(..)));
        let effects_first = signals
            && (works.iter().any(Work::has_host_effect) || self.core.has_pending_effects()?);
        let works = works
            .iter()
            .map(|work| self.prepare(work, effects_first))
            .collect::<Result<Vec<_>, _>>()?;
        let tracks = self.core.take_tracks(plan, flight)?;
        let launched = self.core.put(stream, plan, works, &tracks, flight.last);
        self.core.give_tracks(plan, &tracks);
        let end = launched?;
        flight.last = Some(end);
        flight.tracks = tracks;
        self.core.clock.spin_until(begun + cost);
        Ok(end)
    }

    /// Returns whether a ticket is done on the GPU. Unlike [`Machine::is_done`] it performs no
    /// effects and calls no host functions, so the caller may hold locks.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`].
    pub fn has_passed(&self, ticket: Ticket) -> Result<bool, Error> {
        self.core.with(|timeline, _| Ok(timeline.is_done(ticket)))
    }

    /// Converts a step to a command; checked, so that a launch does not fail half way. With
    /// `effects_first`, the host has effects to perform before a signal.
    fn prepare(&self, work: &Work, effects_first: bool) -> Result<(Kind, Option<Effect>), Error> {
        let (command, effect) = match *work {
            Work::Nothing => (Command::Nothing, None),
            Work::Kernel(launch) => return Ok((Kind::Kernel(launch), None)),
            Work::Copy(kind, copy) => {
                let moves = copy.bytes() != Some(0);
                (self.copy_command(kind, &copy)?, moves.then_some(Effect::Copy(copy)))
            }
            Work::Fill(fill) => match self.fill_command(&fill)? {
                Command::Nothing => (Command::Nothing, None),
                command => (command, Some(Effect::Fill(fill))),
            },
            Work::Call(ref call) => {
                let call = std::sync::Arc::clone(call);
                (Command::Outside, Some(Effect::Call(Box::new(move || call()))))
            }
            Work::Write(address, width, value) => {
                self.check_word(address, width)?;
                (Command::Write, Some(Effect::Write { address, width, value }))
            }
            Work::Watch(address, width, condition, value) => {
                self.check_word(address, width)?;
                (Command::Outside, Some(Effect::Watch { address, width, condition, value }))
            }
            Work::Signal(semaphore, value) => {
                self.semaphore_value(semaphore)?;
                if effects_first {
                    (Command::Outside, Some(Effect::Signal(semaphore, value)))
                } else {
                    (Command::Signal(semaphore, value), None)
                }
            }
            Work::Acquire(semaphore, value) => {
                self.semaphore_value(semaphore)?;
                (Command::Acquire(semaphore, value), None)
            }
            Work::Record(event) => {
                self.event_context(event)?;
                (Command::Mark(event), None)
            }
            Work::Await(event) => {
                self.event_context(event)?;
                return Ok((Kind::Await(event), None));
            }
        };
        Ok((Kind::Command(command), effect))
    }
}

impl Core {
    /// Takes tracks for those of the plan.
    fn take_tracks(&self, plan: &Plan, flight: &Flight) -> Result<Vec<StreamId>, Error> {
        let mut pools = lock(&self.tracks.0);
        for wanted in &plan.tracks {
            pools.entry(wanted.context).or_default();
        }
        let (under_way, held) = self.with(|timeline, _| {
            let mut held = HashMap::new();
            for wanted in &plan.tracks {
                self.own_context(timeline, wanted.context)?;
            }
            for &track in pools.values().flat_map(|pool| &pool.free) {
                held.insert(track, timeline.held(track));
            }
            Ok((flight.last.is_some_and(|last| !timeline.is_done(last)), held))
        })?;
        let held = |track: &StreamId| held.get(track).copied().unwrap_or_default();
        let mut taken: Vec<StreamId> = Vec::with_capacity(plan.tracks.len());
        for (number, wanted) in plan.tracks.iter().enumerate() {
            let Some(pool) = pools.get_mut(&wanted.context) else { continue };
            let own = flight.tracks.get(number).filter(|_| under_way);
            let fits = |track: &&StreamId| held(track) + wanted.commands < RING;
            let own =
                own.filter(fits).and_then(|own| pool.free.iter().position(|track| track == own));
            let idle = || pool.free.iter().position(|track| held(track) == 0);
            let track = match own.or_else(idle) {
                Some(place) => Ok(pool.free.swap_remove(place)),
                None if pool.made >= TRACKS && !pool.free.is_empty() => Err(Error::Full("tracks")),
                None => self
                    .with(|timeline, _| timeline.create_track(wanted.context))
                    .inspect(|_| pool.made += 1),
            };
            // When all are in use, also by other processes, launches share them.
            let least = (0..pool.free.len()).min_by_key(|&place| held(&pool.free[place]));
            let track = match (track, least) {
                (Err(Error::Full(_)), Some(place)) => Ok(pool.free.swap_remove(place)),
                (track, _) => track,
            };
            match track {
                Ok(track) => taken.push(track),
                Err(error) => {
                    drop(pools);
                    self.give_tracks(plan, &taken);
                    return Err(error);
                }
            }
        }
        Ok(taken)
    }

    fn give_tracks(&self, plan: &Plan, tracks: &[StreamId]) {
        let mut pools = lock(&self.tracks.0);
        for (&track, wanted) in tracks.iter().zip(&plan.tracks) {
            // Missing if the context was destroyed.
            if let Some(pool) = pools.get_mut(&wanted.context) {
                pool.free.push(track);
            }
        }
    }

    /// Puts the stream's part, then the tracks'.
    fn put(
        &self,
        stream: StreamId,
        plan: &Plan,
        works: Vec<(Kind, Option<Effect>)>,
        tracks: &[StreamId],
        before: Option<Ticket>,
    ) -> Result<Ticket, Error> {
        let (begin, end, starts) = self.open(stream, plan, tracks, before)?;
        let place = |Position { track, commands }: Position| {
            let Ticket { stream, number } = starts[track];
            Ticket { stream, number: number + commands }
        };
        let mut batch = Vec::with_capacity(BATCH);
        let mut works: Vec<_> = works.into_iter().map(Some).collect();
        for (track, item) in &plan.items {
            let (kind, effect) = match item {
                Item::Begin => (Kind::Command(Command::Wait(begin)), None),
                Item::Wait(other) => (Kind::Command(Command::Wait(place(*other))), None),
                Item::Work(step) => works
                    .get_mut(*step)
                    .and_then(Option::take)
                    .unwrap_or((Kind::Command(Command::Nothing), None)),
            };
            batch.push((Entry { track: tracks[*track], kind, token: 0 }, effect));
            if batch.len() == BATCH {
                self.put_batch(&mut batch)?;
            }
        }
        self.put_batch(&mut batch)?;
        enqueued::note(end);
        Ok(end)
    }

    /// Puts the stream's part: returns its begin, its end, and where each track begins.
    fn open(
        &self,
        stream: StreamId,
        plan: &Plan,
        tracks: &[StreamId],
        before: Option<Ticket>,
    ) -> Result<(Ticket, Ticket, Vec<Ticket>), Error> {
        loop {
            let opened = self.with(|timeline, now| {
                self.own_stream(timeline, stream)?;
                if let Err(full) = timeline.room_for(stream, 3) {
                    return Ok(Err(full));
                }
                tracks.iter().for_each(|&track| timeline.inherit_priority(track, stream));
                let starts: Vec<Ticket> =
                    tracks.iter().map(|&track| timeline.ticket_after(track, 0)).collect();
                // Launches in one stream are in order anyway.
                let before =
                    before.filter(|before| before.stream != stream && !timeline.is_done(*before));
                let mut last = None;
                let end = tracks.last().zip(plan.tracks.last());
                let end =
                    end.map(|(&track, planned)| timeline.ticket_after(track, planned.commands));
                let commands =
                    [before.map(Command::Wait), Some(Command::Nothing), end.map(Command::Wait)];
                let mut begin = None;
                for command in commands.into_iter().flatten() {
                    match timeline.enqueue(stream, command, 0, now) {
                        Ok(ticket) => last = Some(ticket),
                        // Cannot happen: there was room for all of them.
                        Err(full) => return Ok(Err(full)),
                    }
                    if command == Command::Nothing {
                        begin = last;
                    }
                }
                Ok(Ok((begin, last, starts)))
            })?;
            match opened {
                Ok((Some(begin), Some(end), starts)) => return Ok((begin, end, starts)),
                Ok(_) => return Err(Error::NoStream),
                Err(QueueFull { room }) => self.wait_for(&[room])?,
            }
        }
    }

    /// Puts commands on tracks, in one operation if they have room.
    fn put_batch(&self, batch: &mut Vec<(Entry, Option<Effect>)>) -> Result<(), Error> {
        let mut rest: Vec<Entry> = Vec::with_capacity(batch.len());
        let mut tokens = self.effects.tokens();
        for (mut entry, effect) in batch.drain(..) {
            entry.token = effect.map_or(0, |effect| tokens.put(effect));
            rest.push(entry);
        }
        drop(tokens);
        let mut put = 0;
        while put < rest.len() {
            // Held so that a thread that takes a due effect finds its ticket.
            let mut tokens = self.effects.tokens();
            let result = self.with(|timeline, now| {
                let mut tickets = Vec::with_capacity(rest.len() - put);
                for entry in &rest[put..] {
                    self.own_stream(timeline, entry.track)?;
                    let put = match entry.kind {
                        Kind::Command(command) => {
                            timeline.enqueue(entry.track, command, entry.token, now)
                        }
                        Kind::Kernel(launch) => {
                            timeline.launch_in(entry.track, launch.kernel, launch.footprint, now)
                        }
                        Kind::Await(event) => {
                            let record =
                                timeline.last_record(event).map_or(Command::Nothing, Command::Wait);
                            timeline.enqueue(entry.track, record, 0, now)
                        }
                    };
                    match put {
                        Ok(ticket) => tickets.push(ticket),
                        Err(full) => return Ok((tickets, Some(full), now)),
                    }
                }
                Ok((tickets, None, now))
            });
            let (tickets, full, now) = match result {
                Ok(result) => result,
                Err(error) => {
                    for entry in &rest[put..] {
                        tokens.take(entry.token);
                    }
                    return Err(error);
                }
            };
            let mut has_effects = false;
            for (entry, ticket) in rest[put..].iter().zip(&tickets) {
                if !matches!(entry.kind, Kind::Command(Command::Wait(_))) {
                    enqueued::note(*ticket);
                }
                if entry.token != 0 {
                    tokens.set_ticket(entry.token, *ticket);
                    has_effects = true;
                }
            }
            put += tickets.len();
            drop(tokens);
            if has_effects {
                self.alarm.notify_by(now + self.segment.figures().launch_latency);
            }
            if let Some(QueueFull { room }) = full {
                self.wait_for(&[room])?;
            }
        }
        Ok(())
    }
}
