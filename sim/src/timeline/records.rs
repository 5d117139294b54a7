//! The state of the timeline, word by word.
//!
//! All of it begins as zeros. The id 0 of a context, a stream, an event or a rendezvous means none,
//! so these tables do not use their first record. Instants and spans are nanoseconds of device
//! time, sizes are bytes.

use super::accounting::ACCOUNTS;
use super::wall::CHARGES;
use crate::gpu::{MAX_DOMAINS, MAX_GPUS};
use crate::words::{At, index, records};

pub(crate) const GPUS: u64 = MAX_GPUS as u64;
pub(crate) const DOMAINS: u64 = MAX_DOMAINS as u64;
/// Processes at a time: as many as a lock can name.
pub(crate) const PROCESSES: u64 = 256;
/// Commands that fit a stream's ring: more than the deepest queue, as barriers of the legacy stream
/// are added.
pub(crate) const RING: u64 = 2_048;
/// Due effects that a process may leave untaken before its streams wait.
pub(crate) const EFFECTS: u64 = 16_384;
/// Windows of utilisation that are kept.
pub(crate) const WINDOWS: u64 = 16;
/// Urgencies for the compute engine: the front end first, then kernels by their stream's priority.
pub(crate) const LEVELS: u64 = 1 + PRIORITIES;
pub(crate) const PRIORITIES: u64 = 6;
pub(crate) const MEMBERS: u64 = GPUS;
/// Timers: per GPU the compute engine and two copy engines; every process; every stream.
pub(crate) const TIMERS: u64 = 3 * GPUS + PROCESSES + StreamId::COUNT;

records! {
    /// Global state.
    pub(crate) Global[1] from 0;
    /// The instant up to which everything is replayed.
    now,
    /// Timers that run.
    timers,
    /// Contexts ever created.
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
    /// Exports ever created.
    exports,
    /// Exports that no process holds.
    first_lingering, last_lingering,
    /// Errors that GPUs have reported, ever.
    faults,
    /// Time of the last check for exited processes.
    reaped,
}

records! {
    pub(crate) Gpu[GPUS] from Global::END;
    /// `engine::State`.
    state,
    /// The group whose registers are loaded, computing or not.
    resident,
    /// While switching: the next group, and since when.
    target, switch_start,
    slice_start,
    /// When the current group loses its slice for lack of work; 0: it has work.
    idle_until,
    /// Running commands, and since when there are any; those that occupy a part of the GPU, if
    /// kernels slow each other down.
    running, run_start, kernels,
    /// Groups with work that wait for their slice.
    first_waiting, last_waiting,
    busy, switching, switches,
    /// Usable and used memory.
    usable, used,
    /// Of the latter, what no process holds: exports that only a descriptor keeps.
    orphaned,
    /// 1: accounting mode is enabled; records ever created.
    accounting, accounts,
    /// Streams with a copy to the GPU, the first one being copied; and from it.
    first_up, last_up,
    first_down, last_down,
    /// The clock: its rate above that of the figures, when it was last changed, and its offset
    /// then. Signed.
    clock_rate, clock_since, clock_ahead,
}

records! {
    /// A locality domain of a GPU.
    pub(crate) Domain[GPUS * DOMAINS] from Gpu::END;
    /// Its memory, what was requested there, and of that what no process holds.
    room, used, orphaned,
}

records! {
    pub(crate) Process[PROCESSES] from Domain::END;
    /// `process::ProcessState`.
    state,
    pid,
    first_context, last_context,
    first_hold, last_hold,
    first_binding, last_binding,
    /// Effects that the process has taken, and that were due, ever.
    effects_taken, effects_due,
    /// Queued commands with an effect.
    effects_queued,
    /// `identity::Identity`.
    namespace, device, inode,
    /// 1: it uses CUDA, not only NVML.
    uses_cuda,
    /// `checkpoint::Progress`; while it is being locked, the locking process, from 1.
    progress, locker,
    /// Its control group; 0: unknown.
    group,
}

records! {
    /// A process's use of a GPU.
    pub(crate) Holding[PROCESSES * GPUS] from Process::END;
    /// All of its memory.
    memory,
    /// The part that belongs to none of its contexts.
    own,
    /// While checkpointed, all of its memory; then none of it is on the GPU.
    checkpointed,
    /// The number of its accounting record on the GPU; 0: none.
    account,
    contexts,
    busy,
    kernels,
}

records! {
    /// A process's own memory in a locality domain.
    pub(crate) DomainHolding[PROCESSES * Domain::COUNT] from Holding::END;
    memory,
}

records! {
    /// A context.
    pub ContextId[1_024] from DomainHolding::END;
    /// Neighbours in the chain of free records, or in the process's list.
    next_in_process, previous_in_process,
    /// 0: a free record.
    alive,
    gpu, process,
    memory,
    /// Its number among all contexts ever created; part of the seed of its draws.
    serial,
    legacy_stream,
    first_stream, last_stream, streams,
    first_event, last_event,
    /// Under MPS: running commands, and since when there are any.
    running, run_start,
    busy,
    launches,
    /// Code on the GPU, and memory charged for it.
    code, code_memory,
}

records! {
    /// A unit that takes turns on a GPU: a context, with its number, or all contexts of a GPU under
    /// MPS.
    pub(crate) Group[ContextId::COUNT + GPUS] from ContextId::END;
    /// `group::Turn`, and the neighbours while it waits for a slice.
    turn, next_waiting, previous_waiting,
    /// Streams whose command has all of the GPU that it needs, running or interrupted.
    first_placed, last_placed,
    /// The sum of the shares, in parts of `Footprint::GPU`.
    taken,
}

records! {
    /// The streams of a group with a command of one urgency that does not have all it needs, in
    /// order of arrival.
    pub(crate) Level[Group::COUNT * LEVELS] from Group::END;
    first, last,
}

records! {
    /// A stream.
    pub StreamId[4_096] from Level::END;
    /// Neighbours in the chain of free records, or in the context's list.
    next_in_context, previous_in_context,
    /// `head::Head`.
    head,
    context,
    /// `stream::BLOCKING` and others.
    flags,
    /// Commands ever enqueued and completed. Never reset, not even for the record's next user, so
    /// that a ticket stays done.
    issued, completed,
    /// When the last one completed.
    done_at,
    /// `group::Level` of its kernels.
    level,
    /// The head command's remaining work at `since`, as nanoseconds at full rate; its share of the
    /// GPU; and its rate, 0 while it does not run.
    remaining, since, share, rate,
    /// Neighbours in the queue of the head command: of a group, a copy engine, or another stream's
    /// waiters.
    next_queued, previous_queued,
    /// Streams whose head waits for a command of this one.
    first_waiter, last_waiter,
    /// The engine of the last command that used one: markers and writes after a copy do not need
    /// the context's turn.
    lane,
    /// Of a blocking stream: up to which of its commands the legacy stream waits, and up to which
    /// legacy command it waits itself.
    legacy_waits, waits_legacy,
    /// The rendezvous of the head command.
    rendezvous,
    /// Queued commands with an effect.
    effects,
}

records! {
    /// An event.
    pub EventId[262_144] from StreamId::END;
    /// Neighbours in the chain of free records, or in the context's list.
    next_in_context, previous_in_context,
    context,
    timing,
    /// Its name for other processes, never reused; 0: none.
    name,
    /// Its last record: the stream, the command's number there, and when it completed.
    stream, number, at,
    /// The same instant by the GPU's own clock.
    stamp,
}

records! {
    /// An object that several processes may hold: memory, a pool's identity, a semaphore.
    pub ExportId[16_384] from EventId::END;
    /// Neighbours in the chain of free records, or among those that no process holds.
    next_lingering, previous_lingering,
    /// Its number among all exports ever created; 0: a free record.
    serial,
    gpu, size,
    /// The locality domain, from 1; 0: none.
    domain,
    /// The file with its bytes.
    inode,
    /// The process that it is charged to, from 1; 0: none.
    owner,
    /// The process that created it, from 1; 0: that no longer holds it.
    exporter,
    first_hold, last_hold,
    /// 1: descriptors of it may exist.
    sent,
    /// `exports::ExportKind`.
    kind,
    /// Of a semaphore: its value, and the streams that wait for more.
    value, first_waiter, last_waiter,
    /// Of a team: the number of GPUs it is for (0: not a team), a bit for each one added, the
    /// memory of each that can be bound, and the bindings.
    team, gpus, room,
    first_binding, last_binding,
    /// The control group that it is charged to, and how much of it.
    group, charged,
}

records! {
    /// A process's references to an export.
    pub(crate) Hold[65_536] from ExportId::END;
    /// Neighbours in the chain of free records, or in the process's list.
    next_in_process, previous_in_process,
    next_of_export, previous_of_export,
    process, export,
    /// Their number.
    count,
}

records! {
    /// Memory that is bound to a team.
    pub(crate) Binding[16_384] from Hold::END;
    /// Neighbours in the chain of free records, or in the list of the process that bound it.
    next_in_process, previous_in_process,
    next_of_team, previous_of_team,
    process, team,
    /// The memory's GPU, and the part of the team's room.
    gpu, offset, size,
    /// The memory: an export, of which the process holds one more reference for this, and the
    /// offset in it.
    export, at,
}

records! {
    /// A command in a stream's ring.
    pub(crate) Slot[StreamId::COUNT * RING] from Binding::END;
    /// `command::Kind`.
    kind,
    /// Time on an engine.
    cost,
    /// The event, stream, or rendezvous key that it concerns.
    subject,
    /// The number of the command that it waits for; or a kernel's footprint and the size of its
    /// rendezvous.
    number,
    /// The process's number for its effect; 0: none.
    token,
    /// The earliest start.
    available,
}

records! {
    /// A due effect.
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
    pub(crate) Timer[TIMERS] from Window::END;
    at,
    /// Index in the heap, from 1; 0: it does not run.
    index,
}

records! {
    /// The heap of running timers, the earliest first.
    pub(crate) HeapEntry[TIMERS] from Timer::END;
    timer,
}

records! {
    /// The trace: whether it is on; spans recorded and taken, ever.
    pub(crate) Trace[1] from HeapEntry::END;
    on, recorded, taken,
}

records! {
    /// A recorded span.
    pub(crate) SpanRecord[65_536] from Trace::END;
    /// GPU, kind, and whether the command ended with it.
    what,
    pid,
    /// The context's serial.
    context,
    stream, number,
    from, to,
}

records! {
    /// An error that a GPU reported.
    pub(crate) Fault[256] from SpanRecord::END;
    gpu, code, at,
}

records! {
    /// Accounting statistics of a process on a GPU.
    pub(crate) Account[GPUS * ACCOUNTS] from Fault::END;
    /// Its number on the GPU.
    number,
    /// 0: unused; 1: the process runs; 2: it has ended.
    state,
    pid, namespace, device, inode,
    begun, ended,
    /// While the process runs, its busy time before; afterwards, its busy time since.
    busy,
    highest,
}

records! {
    /// A control group. The first record is none.
    pub(crate) ControlGroup[1_024] from Account::END;
    /// The inode of its folder; 0: a free record.
    id,
    /// 0: none, or unknown.
    parent,
    /// 1: its folder has no files of the controller.
    bare,
}

records! {
    /// Limits of a control group on a GPU.
    pub(crate) Limit[GPUS * ControlGroup::COUNT] from ControlGroup::END;
    soft,
    /// The complement of the hard limit, so that 0 is none.
    ceiling,
}

records! {
    /// The part of a process's memory on a GPU that is charged to a control group.
    pub(crate) Charge[Holding::COUNT * CHARGES] from Limit::END;
    group,
    /// 0: a free record.
    bytes,
}

/// Words of a timeline.
pub const WORDS: usize = Charge::END;

macro_rules! numbers {
    ($($id:ident)*) => {$(
        impl $id {
            /// Returns it as a number, unique among the live ones of its kind on a machine.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }
    )*};
}
numbers!(ContextId StreamId EventId ExportId);

impl Holding {
    pub(crate) const fn of(process: Process, gpu: Gpu) -> Self {
        Self(process.0 * GPUS + gpu.0)
    }
}

impl Limit {
    pub(crate) const fn of(gpu: Gpu, group: ControlGroup) -> Self {
        Self(gpu.0 * ControlGroup::COUNT + group.0)
    }
}

impl Domain {
    pub(crate) const fn of(gpu: Gpu, domain: u64) -> Self {
        Self(gpu.0 * DOMAINS + domain)
    }
}

impl DomainHolding {
    pub(crate) const fn of(process: Process, domain: Domain) -> Self {
        Self(process.0 * Domain::COUNT + domain.0)
    }
}

impl Group {
    /// Returns the group of a single context.
    pub(crate) const fn of_context(context: ContextId) -> Self {
        Self(context.0)
    }

    /// Returns the group of all contexts of a GPU.
    pub(crate) const fn of_gpu(gpu: Gpu) -> Self {
        Self(ContextId::COUNT + gpu.0)
    }

    /// Returns the context of the group; `None` if it is a GPU's.
    pub(crate) const fn context(self) -> Option<ContextId> {
        if self.0 < ContextId::COUNT { Some(ContextId(self.0)) } else { None }
    }
}

impl Level {
    pub(crate) const fn of(group: Group, urgency: u64) -> Self {
        Self(group.0 * LEVELS + urgency)
    }
}

impl Slot {
    pub(crate) const fn of(stream: StreamId, number: u64) -> Self {
        Self(stream.0 * RING + number % RING)
    }
}

impl Effect {
    pub(crate) const fn of(process: Process, number: u64) -> Self {
        Self(process.0 * EFFECTS + number % EFFECTS)
    }
}

impl SpanRecord {
    pub(crate) const fn of(number: u64) -> Self {
        Self(number % Self::COUNT)
    }
}

impl Fault {
    pub(crate) const fn of(number: u64) -> Self {
        Self(number % Self::COUNT)
    }
}

impl Account {
    pub(crate) const fn of(gpu: Gpu, number: u64) -> Self {
        Self(gpu.0 * ACCOUNTS + number % ACCOUNTS)
    }
}

impl Member {
    pub(crate) const fn of(rendezvous: Rendezvous, place: u64) -> Self {
        Self(rendezvous.0 * MEMBERS + place)
    }
}

impl Window {
    pub(crate) const fn of_gpu(gpu: Gpu, window: u64) -> Self {
        Self((PROCESSES * GPUS + gpu.0) * WINDOWS + window % WINDOWS)
    }

    pub(crate) const fn of_holding(holding: Holding, window: u64) -> Self {
        Self(holding.0 * WINDOWS + window % WINDOWS)
    }
}

const _: () = assert!(index(RING) > index(crate::settings::Figures::MAX_DEPTH) && At(0).0 == 0);
