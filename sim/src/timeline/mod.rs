//! The timeline: what the GPUs do and when, exactly, without a clock.
//!
//! Pure: it reads and changes [`Words`], takes the time as a parameter, and knows nothing of processes but their
//! numbers. Whoever calls first replays everything up to now ([`Timeline::advance`]), event by event in order of their
//! instants over all GPUs, then asks or adds.
//!
//! ```text
//!   process ── context ── stream ── commands: compute, mark, write, copy, wait, outside
//!                 │          │ one head at a time
//!               group        ├── compute, mark, write ──> group's ready lists ───┐
//!                 │          ├── copy ──> copy engine, up or down                │ as many as fit,
//!   waiting ring <┘          ├── wait ──> another stream's waiters               │ while the group
//!     of the GPU            └── outside ──> the process answers                 │ has its slice
//!        └────────── computing engine: switch, slice, placement <────────────────┘
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `records` | the state, word by word |
//! | `agenda` | the heap of timers |
//! | `list`, `pool` | lists threaded through records; free records |
//! | `command`, `stream`, `queue` | what streams are given to do |
//! | `track` | streams that no program sees, for graphs |
//! | `head` | where a stream's first command is, and what comes of it |
//! | `group` | what takes turns: a context, or all of a GPU's under MPS |
//! | `engine` | the computing engine: round robin, slices, switches, preemption |
//! | `placement` | which kernels of a group compute beside each other, and how fast |
//! | `copier` | the two copy engines |
//! | `rendezvous` | kernels that spin until others have started |
//! | `event` | marks with a time |
//! | `clock` | the GPU's own clock, by which they are stamped |
//! | `semaphore` | what orders work of several processes, and of others than GPUs |
//! | `context`, `process` | who owns what, memory, death |
//! | `checkpoint` | memory of a process that leaves the GPUs for a while |
//! | `domains` | memory of GPUs and of their locality domains |
//! | `exports` | memory that outlives who made it |
//! | `teams` | GPUs to whose memory one write goes |
//! | `accounting` | what processes did in their lives |
//! | `xid` | errors that GPUs report |
//! | `usage` | books: busy time, windows |
//! | `trace` | what the engines did, for whoever looks at it later |
//! | `forecast` | when something will be done, found by trying |
//! | `check` | what always holds |
//!
//! What is simple here and not on a GPU: kernels are fluids (`placement` says why); preemption at any instant at the
//! switch cost.

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
mod xid;

use agenda::Due;
use cgpu_shm::units::Nanos;
use records::Global;

use crate::settings::Figures;
use crate::words::{At, Words, index};

pub use accounting::{ACCOUNTS, AccountOf, GroupLimit};
pub use checkpoint::Progress;
pub use clock::ClockRate;
pub use command::{Command, Meeting};
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
pub use xid::Xid;

/// A view of the state that can be advanced and changed. Cheap to make; holds nothing itself.
#[derive(Debug)]
pub struct Timeline<'a, W> {
    words: &'a mut W,
    figures: &'a Figures,
}

impl<'a, W: Words> Timeline<'a, W> {
    /// A view of the state in `words`, which start as zeros and always see the same figures.
    pub fn new(words: &'a mut W, figures: &'a Figures) -> Self {
        Self { words, figures }
    }

    /// Replays everything up to `now`. An instant already passed changes nothing. Returns the instant reached, the
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

    /// The model's figures.
    #[must_use]
    pub fn figures(&self) -> &'a Figures {
        self.figures
    }

    /// The instant up to which everything is played.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(self.get(Global(0).now()))
    }

    /// The instant of the next event on any GPU.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        agenda::first(self.words).map(|(at, _)| at)
    }

    fn step(&mut self, at: Nanos, due: Due) {
        self.set(Global(0).now(), at.0);
        match due {
            Due::Engine(gpu) => self.engine_due(gpu, at),
            Due::Up(gpu) => self.copy_due(copier::Way::Up, gpu, at),
            Due::Down(gpu) => self.copy_due(copier::Way::Down, gpu, at),
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

    /// Sums in the state are of nanoseconds, bytes and counts, and never come near the end of 64 bits.
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

/// A state that is kept in a word, as a number from 0.
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
