//! The timeline: what the GPUs do and when, exactly, without a clock.
//!
//! It is pure: it reads and changes [`Words`], takes the time as a parameter, and knows processes
//! only by number. Each call first replays everything up to now ([`Timeline::advance`]), event by
//! event in order of time over all GPUs, then reads or adds.
//!
//! ```text
//!   process ── context ── stream ── commands: compute, mark, write, copy, wait, outside
//!                 │          │ one head at a time
//!               group        ├── compute, mark, write ──> group's ready lists ───┐
//!                 │          ├── copy ──> copy engine, up or down                │ as many as fit,
//!   waiting ring <┘          ├── wait ──> another stream's waiters               │ while the group
//!     of the GPU             └── outside ──> the process answers                 │ has its slice
//!        └────────── compute engine: switch, slice, placement <──────────────────┘
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `records` | the state, word by word |
//! | `agenda` | the heap of timers |
//! | `list`, `pool` | lists threaded through records; free records |
//! | `command`, `stream`, `queue` | commands of streams |
//! | `track` | internal streams, for graphs |
//! | `head` | the state of a stream's first command |
//! | `group` | units that take turns: a context, or all of a GPU's under MPS |
//! | `engine` | the compute engine: round robin, slices, switches, preemption |
//! | `placement` | which kernels of a group compute concurrently, and how fast |
//! | `copier` | the two copy engines |
//! | `rendezvous` | kernels that spin until others have started |
//! | `event` | markers with a time |
//! | `clock` | the GPU's own clock, which stamps them |
//! | `semaphore` | order between several processes, and with other interfaces |
//! | `context`, `process` | ownership, memory, death |
//! | `checkpoint` | memory of a process that is off the GPUs |
//! | `domains` | memory of GPUs and of their locality domains |
//! | `exports` | memory that outlives its exporter |
//! | `teams` | multicast: one write goes to the memory of several GPUs |
//! | `accounting` | accounting statistics of processes |
//! | `wall` | limits of control groups |
//! | `xid` | errors that GPUs report |
//! | `usage` | busy time, windows |
//! | `trace` | spans of the engines' work |
//! | `forecast` | when something will be done |
//! | `check` | invariants |
//!
//! Two things are simpler than on a GPU: kernels are fluids (`placement` says why), and preemption
//! is possible at any instant, at the switch cost.

mod accounting;
mod agenda;
mod check;
mod checkpoint;
mod clock;
mod command;
mod context;
mod copier;
mod domains;
mod engine;
mod event;
mod exports;
mod forecast;
mod group;
mod head;
mod list;
mod placement;
mod pool;
mod process;
mod queue;
mod records;
mod rendezvous;
mod semaphore;
mod stream;
mod teams;
mod trace;
mod track;
mod usage;
mod wall;
mod xid;

use agenda::Due;
use cgpu_shm::units::Nanos;
use records::Global;

use crate::settings::Figures;
use crate::words::{At, Words, index};

pub use accounting::{ACCOUNTS, AccountStats};
pub use checkpoint::Progress;
pub use clock::ClockRate;
pub use command::{Command, RendezvousSpec};
pub use domains::Site;
pub use exports::{ExportKind, Lingering};
pub use forecast::Forecast;
pub use group::GREATEST_PRIORITY;
pub(crate) use group::urgency;
pub use process::{EffectDue, ProcessState};
pub(crate) use process::{process_state_at, progress_at};
pub use queue::QueueFull;
pub use records::{ContextId, EventId, ExportId, StreamId, WORDS};
pub use semaphore::SemaphoreId;
pub use stream::Ticket;
pub use teams::{Bindable, Bound, Team};
pub use trace::{Span, SpanKind};
pub use usage::{EngineTime, GpuSample, ProcessSample, ProcessUse};
pub use wall::{GroupLimit, GroupUse, Wall};
pub use xid::Xid;

/// A view of the state that can be advanced and changed. It is cheap to make and holds nothing
/// itself.
#[derive(Debug)]
pub struct Timeline<'a, W> {
    words: &'a mut W,
    figures: &'a Figures,
}

impl<'a, W: Words> Timeline<'a, W> {
    /// Creates a view of the state in `words`, which begin as zeros and must always be used with
    /// the same figures.
    pub fn new(words: &'a mut W, figures: &'a Figures) -> Self {
        Self { words, figures }
    }

    /// Replays everything up to `now`, unless that has passed. Returns the instant reached, the
    /// later of the two.
    pub fn advance(&mut self, now: Nanos) -> Nanos {
        while let Some((at, due)) = agenda::first(self.words)
            && at <= now
        {
            self.step(at, due);
            self.words.seam();
        }
        let now = self.now().max(now);
        self.set(Global(0).now(), now.0);
        now
    }

    /// Returns the model's figures.
    #[must_use]
    pub fn figures(&self) -> &'a Figures {
        self.figures
    }

    /// Returns the instant up to which everything is replayed.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(self.get(Global(0).now()))
    }

    /// Returns the instant of the next event on any GPU.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        agenda::first(self.words).map(|(at, _)| at)
    }

    fn step(&mut self, at: Nanos, due: Due) {
        self.set(Global(0).now(), at.0);
        match due {
            Due::Engine(gpu) => self.engine_due(gpu, at),
            Due::Up(gpu) => self.copy_due(copier::Direction::Up, gpu, at),
            Due::Down(gpu) => self.copy_due(copier::Direction::Down, gpu, at),
            Due::Process(process) => self.process_due(process, at),
            Due::Stream(stream) => self.stream_due(stream, at),
        }
    }

    #[inline]
    fn get(&self, at: At) -> u64 {
        self.words.get(at)
    }

    #[inline]
    fn set(&mut self, at: At, value: u64) {
        self.words.set(at, value);
    }

    /// Cannot overflow: sums are of nanoseconds, bytes and counts.
    #[inline]
    fn add(&mut self, at: At, more: u64) {
        let sum = self.get(at) + more;
        self.set(at, sum);
    }

    #[inline]
    fn subtract(&mut self, at: At, less: u64) {
        let rest = self.get(at) - less;
        self.set(at, rest);
    }
}

/// Defines an enumeration that is stored in a word, as a number from 0.
macro_rules! states {
    ($(#[$doc:meta])* $vis:vis $name:ident {
        $(#[$first_doc:meta])* $first:ident, $($(#[$state_doc:meta])* $state:ident,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u64)]
        $vis enum $name { $(#[$first_doc])* $first, $($(#[$state_doc])* $state,)* }

        impl $name {
            #[inline]
            pub(crate) const fn of(word: u64) -> Self {
                $(if word == Self::$state as u64 { return Self::$state; })*
                Self::$first
            }

            #[inline]
            pub(crate) const fn word(self) -> u64 {
                self as u64
            }
        }
    };
}
use states;
