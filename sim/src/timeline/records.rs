//! What the timeline remembers, word by word.
//!
//! All of it may start as zeros: an id 0 of a context, a stream, an event or a rendezvous means none, so these tables
//! never use their first record. Instants and spans are nanoseconds of device time, sizes are bytes.

use super::accounting::{ACCOUNTS, LIMITS};
use crate::gpu::{MAX_DOMAINS, MAX_GPUS};
use crate::words::{At, index, records};

/// GPUs.
pub(crate) const GPUS: u64 = MAX_GPUS as u64;
/// Locality domains of a GPU.
pub(crate) const DOMAINS: u64 = MAX_DOMAINS as u64;
/// Processes at once: as many as a lock can name.
pub(crate) const PROCESSES: u64 = 256;
/// Commands that fit a stream's ring. More than the deepest queue, because barriers of the legacy stream come on top.
pub(crate) const RING: u64 = 2_048;
/// Effects that a process may be behind with before its streams wait for it.
pub(crate) const EFFECTS: u64 = 16_384;
/// Windows of utilisation that are remembered.
pub(crate) const WINDOWS: u64 = 16;
/// Urgencies of what waits for the computing engine: the front end's own first, then kernels by their stream's priority.
pub(crate) const LEVELS: u64 = 1 + PRIORITIES;
/// Priorities of streams.
pub(crate) const PRIORITIES: u64 = 6;
/// Members of a rendezvous.
pub(crate) const MEMBERS: u64 = GPUS;
/// Anything with a timer: per GPU the computing engine and two copy engines, every process, every stream.
pub(crate) const TIMERS: u64 = 3 * GPUS + PROCESSES + StreamId::COUNT;

records! {
    /// What there is one of.
    pub(crate) Global[1] from 0;
    /// The instant up to which all has been played.
    now,
    /// Timers that run.
    timers,
    /// Contexts ever made.
    contexts,
    /// Free records are chained through their first word; those from `top` on were never used.
    free_context, top_context,
    free_stream, top_stream,
    free_event, top_event,
    /// Events ever named to other processes.
    named_events,
    free_export, top_export,
    free_hold, top_hold,
    free_binding, top_binding,
    /// Exports ever made.
    exports,
    /// Exports that nobody holds and that are not gone yet.
    first_lingering, last_lingering,
    /// Errors that GPUs have reported, ever.
    faults,
    /// When dead processes were last looked for.
    reaped,
}

records! {
    /// A GPU.
    pub(crate) Gpu[GPUS] from Global::END;
    /// `engine::State`.
    state,
    /// The group whose registers are loaded, computing or not.
    resident,
    /// While switching: to whom, since when.
    target, switch_start,
    /// Start of the present slice.
    slice_start,
    /// When the group that runs forfeits its slice, because it has no work; 0: it has some.
    idle_until,
    /// Commands that compute, and since when there are any; of them those that take a part of the GPU, where kernels
    /// slow each other down.
    running, run_start, kernels,
    /// Groups with work that wait for their slice.
    first_waiting, last_waiting,
    busy, switching, switches,
    /// Memory that contexts and programs may have at most, and have.
    usable, used,
    /// Of that, what no process has: exports that only a descriptor keeps.
    orphaned,
    /// 1: it keeps accounts; accounts ever made.
    accounting, accounts,
    /// Streams with a copy to the GPU, the first one's under way; and from it.
    first_up, last_up,
    first_down, last_down,
    /// Its clock: how much more than the figures' rate it runs fast, since when, and how far it was
    /// ahead then. Signed.
    clock_rate, clock_since, clock_ahead,
}

records! {
    /// A locality domain of a GPU.
    pub(crate) Domain[GPUS * DOMAINS] from Gpu::END;
    /// Memory that it has, that was asked for there, and of that what no process has.
    room, used, orphaned,
}

records! {
    /// A process.
    pub(crate) Process[PROCESSES] from Domain::END;
    /// `process::State`.
    state,
    pid,
    first_context, last_context,
    first_hold, last_hold,
    first_binding, last_binding,
    /// Effects taken by the process, and effects that came due, ever.
    effects_taken, effects_due,
    /// Commands with an effect that are still queued.
    effects_queued,
    /// Who it is: `identity::Identity`.
    namespace, device, inode,
    /// 1: it drives GPUs, and does not only look.
    drives,
    /// `checkpoint::Progress`; while it is being locked, who does that, from 1.
    progress, locker,
}

records! {
    /// What a process has on a GPU.
    pub(crate) Holding[PROCESSES * GPUS] from Process::END;
    /// All of its memory.
    memory,
    /// What belongs to none of its contexts.
    own,
    /// All of it, while it is away for a checkpoint; then none of it is on the GPU.
    away,
    /// Which of the GPU's accounts is its; 0: none.
    account,
    contexts,
    busy,
    kernels,
}

records! {
    /// What a process has by itself in a locality domain.
    pub(crate) Lodging[PROCESSES * Domain::COUNT] from Holding::END;
    memory,
}

records! {
    /// A context: what takes turns.
    pub ContextId[1_024] from Lodging::END;
    /// Neighbour in the chain of free records, or, alive, in the process's list.
    next_in_process, previous_in_process,
    /// 0: a free record.
    alive,
    gpu, process,
    memory,
    /// Which of all contexts ever made; part of the seed of its draws.
    serial,
    legacy_stream,
    first_stream, last_stream, streams,
    first_event, last_event,
    /// Under MPS: commands that compute, and since when there are any.
    running, run_start,
    busy,
    launches,
    /// Code on the GPU, and memory taken for it.
    code, code_memory,
}

records! {
    /// What takes turns on a GPU: a context, of its number, or all contexts of a GPU under MPS.
    pub(crate) Group[ContextId::COUNT + GPUS] from ContextId::END;
    /// `group::Turn`, and the neighbours where it waits for a slice.
    turn, next_waiting, previous_waiting,
    /// Streams whose command has been given all of the GPU that it takes, computing or interrupted.
    first_placed, last_placed,
    /// How much of the GPU is given out, in parts of `Footprint::GPU`.
    taken,
}

records! {
    /// The streams of a group with a command of one urgency that has not been given all that it takes, in order of
    /// arrival.
    pub(crate) Level[Group::COUNT * LEVELS] from Group::END;
    first, last,
}

records! {
    /// A stream: a queue of commands.
    pub StreamId[4_096] from Level::END;
    /// Neighbour in the chain of free records, or, alive, in the context's list.
    next_in_context, previous_in_context,
    /// `head::Head`.
    head,
    context,
    /// `stream::flag`s.
    flags,
    /// Commands ever enqueued and completed; never reset, also not for the next user of the record, so that a ticket
    /// stays done.
    issued, completed,
    /// When the last completed one completed.
    done_at,
    /// `group::Level` of its kernels.
    level,
    /// What the head command has left to compute at `since`, as nanoseconds at full rate; how much of the GPU it has;
    /// and its rate, 0 where it does not compute.
    remaining, since, share, rate,
    /// Neighbours in the one queue that the head command is in: of a context, a copy engine, or of another stream's
    /// waiters.
    next_queued, previous_queued,
    /// Streams whose head waits for a command of this one.
    first_waiter, last_waiter,
    /// The engine of the last command that used one: marks and writes that follow a copy do not need the context's
    /// turn.
    lane,
    /// As a blocking stream: up to which of its commands the legacy stream waits, up to which legacy command it waits
    /// itself.
    legacy_waits, waits_legacy,
    /// The rendezvous that the head command has come to.
    rendezvous,
    /// Commands with an effect that are queued.
    effects,
}

records! {
    /// An event.
    pub EventId[262_144] from StreamId::END;
    /// Neighbour in the chain of free records, or, alive, in the context's list.
    next_in_context, previous_in_context,
    context,
    timing,
    /// Its name for other processes, unique for ever; 0: it is this process's alone.
    name,
    /// Its last record: the stream, the number of the command there, and when it completed.
    stream, number, at,
    /// The same instant by the GPU's own clock.
    stamp,
}

records! {
    /// What several processes may hold: memory, a pool's name, a semaphore.
    pub ExportId[16_384] from EventId::END;
    /// Neighbour in the chain of free records, or among those that nobody holds.
    next_lingering, previous_lingering,
    /// Which of all exports ever made; 0: a free record.
    serial,
    gpu, size,
    /// In which locality domain, from 1; 0: in none.
    domain,
    /// The file with its bytes.
    inode,
    /// Whose books bear it, from 1; 0: nobody's.
    owner,
    /// Who made it, from 1; 0: does not hold it any more.
    exporter,
    first_hold, last_hold,
    /// 1: descriptors of it may be about.
    sent,
    /// `exports::ExportKind`.
    kind,
    /// Of a semaphore: what it counts to, and the streams that wait for more.
    value, first_waiter, last_waiter,
    /// Of a team: how many GPUs it is to have, 0 for anything else; those that it has, a bit for each; how much memory of each
    /// can be bound, and what is.
    team, gpus, room,
    first_binding, last_binding,
}

records! {
    /// A process's hold on an export.
    pub(crate) Hold[65_536] from ExportId::END;
    /// Neighbour in the chain of free records, or in the process's list.
    next_in_process, previous_in_process,
    next_of_export, previous_of_export,
    process, export,
    /// How many times it holds it.
    count,
}

records! {
    /// Memory that is bound to a team.
    pub(crate) Binding[16_384] from Hold::END;
    /// Neighbour in the chain of free records, or in the list of the process that bound it.
    next_in_process, previous_in_process,
    next_of_team, previous_of_team,
    process, team,
    /// Whose memory it is, and which part of the team's room it takes.
    gpu, offset, size,
    /// The memory: an export that the process holds once more for this, and where in it.
    export, at,
}

records! {
    /// A command in a stream's ring.
    pub(crate) Slot[StreamId::COUNT * RING] from Binding::END;
    /// `command::Kind`.
    kind,
    /// Time on an engine.
    cost,
    /// The event, stream, or rendezvous key that it is about.
    subject,
    /// The number of the command that it waits for, or a kernel's footprint and how many meet.
    number,
    /// The process's name for what the host sees of it; 0: nothing.
    token,
    /// Not before this instant.
    available,
}

records! {
    /// An effect that came due.
    pub(crate) Effect[PROCESSES * EFFECTS] from Slot::END;
    at,
    token,
}

records! {
    /// Kernels that wait for each other.
    pub(crate) Rendezvous[64] from Effect::END;
    /// 0: not in use.
    missing,
    key,
    members,
}

records! {
    /// A member of a rendezvous: a stream.
    pub(crate) Member[Rendezvous::COUNT * MEMBERS] from Rendezvous::END;
    stream,
}

records! {
    /// Busy time in one window: of a GPU, or of a process on a GPU.
    pub(crate) Window[(PROCESSES + 1) * GPUS * WINDOWS] from Member::END;
    index,
    busy,
}

records! {
    /// A timer.
    pub(crate) Timer[TIMERS] from Window::END;
    at,
    /// Place in the heap, from 1; 0: does not run.
    place,
}

records! {
    /// The heap of running timers, the earliest first.
    pub(crate) Place[TIMERS] from Timer::END;
    timer,
}

records! {
    /// The trace: whether it is on, spans told and taken, ever.
    pub(crate) Trace[1] from Place::END;
    on, told, taken,
}

records! {
    /// A span that was told.
    pub(crate) Stretch[65_536] from Trace::END;
    /// The GPU, the kind, whether it was the command's end.
    what,
    pid,
    /// The context's serial.
    context,
    stream, number,
    from, to,
}

records! {
    /// An error that a GPU reported.
    pub(crate) Fault[256] from Stretch::END;
    gpu, code, at,
}

records! {
    /// What a process did on a GPU.
    pub(crate) Account[GPUS * ACCOUNTS] from Fault::END;
    /// Which of the GPU's.
    number,
    /// 0: nobody's; 1: the process lives; 2: it has ended.
    state,
    pid, namespace, device, inode,
    begun, ended,
    /// What it had computed before, and in the end for how long it has.
    busy,
    highest,
}

records! {
    /// What a control group was given of a GPU.
    pub(crate) Limit[GPUS * LIMITS] from Account::END;
    device, inode,
    soft, hard,
}

/// All words of a timeline.
pub const WORDS: usize = Limit::END;

macro_rules! numbers {
    ($($id:ident)*) => {$(
        impl $id {
            /// As a number, unique among the living of its kind on a machine.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }
    )*};
}
numbers!(ContextId StreamId EventId ExportId);

impl Holding {
    /// What `process` has on `gpu`.
    pub(crate) const fn of(process: Process, gpu: Gpu) -> Self {
        Self(process.0 * GPUS + gpu.0)
    }
}

impl Domain {
    /// A GPU's.
    pub(crate) const fn of(gpu: Gpu, domain: u64) -> Self {
        Self(gpu.0 * DOMAINS + domain)
    }
}

impl Lodging {
    /// What `process` has in `domain`.
    pub(crate) const fn of(process: Process, domain: Domain) -> Self {
        Self(process.0 * Domain::COUNT + domain.0)
    }
}

impl Group {
    /// A context of its own.
    pub(crate) const fn of_context(context: ContextId) -> Self {
        Self(context.0)
    }

    /// All contexts of a GPU.
    pub(crate) const fn of_gpu(gpu: Gpu) -> Self {
        Self(ContextId::COUNT + gpu.0)
    }

    /// The context that the group is; `None`: it is a GPU's.
    pub(crate) const fn context(self) -> Option<ContextId> {
        if self.0 < ContextId::COUNT { Some(ContextId(self.0)) } else { None }
    }
}

impl Level {
    /// Those of an urgency of a group.
    pub(crate) const fn of(group: Group, urgency: u64) -> Self {
        Self(group.0 * LEVELS + urgency)
    }
}

impl Slot {
    /// Where the command `number` of a stream lies.
    pub(crate) const fn of(stream: StreamId, number: u64) -> Self {
        Self(stream.0 * RING + number % RING)
    }
}

impl Effect {
    /// Where the effect `number` of a process lies.
    pub(crate) const fn of(process: Process, number: u64) -> Self {
        Self(process.0 * EFFECTS + number % EFFECTS)
    }
}

impl Stretch {
    /// Where the span `number` lies.
    pub(crate) const fn of(number: u64) -> Self {
        Self(number % Self::COUNT)
    }
}

impl Fault {
    /// Where the error `number` lies.
    pub(crate) const fn of(number: u64) -> Self {
        Self(number % Self::COUNT)
    }
}

impl Account {
    /// Where a GPU's account of that number lies.
    pub(crate) const fn of(gpu: Gpu, number: u64) -> Self {
        Self(gpu.0 * ACCOUNTS + number % ACCOUNTS)
    }
}

impl Member {
    /// A place at a rendezvous.
    pub(crate) const fn of(rendezvous: Rendezvous, place: u64) -> Self {
        Self(rendezvous.0 * MEMBERS + place)
    }
}

impl Window {
    /// A GPU's window.
    pub(crate) const fn of_gpu(gpu: Gpu, window: u64) -> Self {
        Self((PROCESSES * GPUS + gpu.0) * WINDOWS + window % WINDOWS)
    }

    /// The window of a process on a GPU.
    pub(crate) const fn of_holding(holding: Holding, window: u64) -> Self {
        Self(holding.0 * WINDOWS + window % WINDOWS)
    }
}

const _: () = assert!(index(RING) > index(crate::settings::Figures::MAX_DEPTH) && At(0).0 == 0);
