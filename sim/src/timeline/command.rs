//! Commands of streams.

use cgpu_shm::units::Nanos;

use super::queue::QueueFull;
use super::records::{ContextId, EventId, MEMBERS, Slot, StreamId};
use super::semaphore::SemaphoreId;
use super::stream::Ticket;
use super::{Timeline, states};
use crate::footprint::Footprint;
use crate::kernel::{self, Kernel, mix};
use crate::words::Words;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Uses the compute engine.
    Compute {
        /// For how long.
        cost: Nanos,
        /// Whether it counts as a kernel; copies within the GPU do not.
        kernel: bool,
        /// Kernels that must have started before it ends.
        rendezvous: Option<RendezvousSpec>,
        /// The part of the GPU that it occupies.
        footprint: Footprint,
    },
    /// Records an event.
    Mark(EventId),
    /// Writes a word of memory.
    Write,
    /// Uses a copy engine.
    Copy {
        /// From host to GPU.
        up: bool,
        /// For how long.
        cost: Nanos,
    },
    /// Waits until a ticket, of any stream of any GPU, is done.
    Wait(Ticket),
    /// Signals a semaphore; a counting one gets the value.
    Signal(SemaphoreId, u64),
    /// Waits for a semaphore: for its signal, or until it has at least this value.
    Acquire(SemaphoreId, u64),
    /// Has an effect at its start, and ends when the process says so: host functions, waits on
    /// memory.
    Outside,
    /// Takes no time; has only its effect.
    Nothing,
}

/// Kernels that spin until enough of them have started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousSpec {
    /// Identifies the group of kernels.
    pub key: u64,
    /// The number of kernels; below 2 there is no wait.
    pub size: u64,
}

/// The bits of a group's size, below the footprint.
const RENDEZVOUS_SIZE: u64 = 0xff;
const _: () = assert!(MEMBERS <= RENDEZVOUS_SIZE);

states! {
    /// The kind of a command in a ring.
    pub(crate) Kind {
        Nothing,
        /// A copy within the GPU.
        Move,
        Kernel,
        Mark,
        Write,
        Up,
        Down,
        Wait,
        Outside,
        Signal,
        Acquire,
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Enqueues a kernel that fills the GPU.
    ///
    /// # Errors
    /// As [`Timeline::enqueue`].
    pub fn launch(
        &mut self,
        stream: StreamId,
        kernel: Kernel,
        now: Nanos,
    ) -> Result<Ticket, QueueFull> {
        self.launch_in(stream, kernel, Footprint::WHOLE, now)
    }

    /// Enqueues a kernel.
    ///
    /// # Errors
    /// As [`Timeline::enqueue`].
    pub fn launch_in(
        &mut self,
        stream: StreamId,
        kernel: Kernel,
        footprint: Footprint,
        now: Nanos,
    ) -> Result<Ticket, QueueFull> {
        // Checked before anything is drawn, so that a repeated launch draws the same.
        self.room(stream)?;
        let context = ContextId(self.get(stream.context()));
        let kernel = kernel.at_launch(self.get(context.launches()));
        let seed = self.draw(context);
        let rendezvous = match kernel {
            Kernel::WaitPeer(key) => Some(RendezvousSpec { key: mix(key), size: 2 }),
            Kernel::Collective(key) => {
                let process = self.get(context.process());
                Some(RendezvousSpec {
                    key: mix(key ^ mix(process)),
                    size: self.gpus_of_process(context),
                })
            }
            _ => None,
        };
        let cost =
            kernel::noisy(kernel.duration(self.figures.kernel, seed), self.figures.noise, seed);
        self.enqueue(stream, Command::Compute { cost, kernel: true, rendezvous, footprint }, 0, now)
    }

    pub(super) fn store_command(
        &mut self,
        slot: Slot,
        command: Command,
        token: u64,
        available: Nanos,
    ) {
        let (kind, cost, subject, number) = match command {
            Command::Compute { cost, kernel, rendezvous, footprint } => {
                // A kernel of no length would let the engine run without time passing.
                let cost = cost.0.max(1);
                let (key, size) = rendezvous
                    .map_or((0, 0), |rendezvous| (rendezvous.key, rendezvous.size.min(MEMBERS)));
                let kind = if kernel { Kind::Kernel } else { Kind::Move };
                (kind, cost, key, footprint.word() | size)
            }
            Command::Mark(event) => {
                (Kind::Mark, self.figures.event_cost.0, event.0, Footprint::NONE.word())
            }
            Command::Write => (Kind::Write, self.figures.write_cost.0, 0, Footprint::NONE.word()),
            // Its cost is a figure, so the value is stored in its place.
            Command::Signal(semaphore, value) => {
                (Kind::Signal, value, semaphore.word(), Footprint::NONE.word())
            }
            Command::Acquire(semaphore, value) => (Kind::Acquire, 0, semaphore.word(), value),
            Command::Copy { up, cost } => (if up { Kind::Up } else { Kind::Down }, cost.0, 0, 0),
            Command::Wait(ticket) => (Kind::Wait, 0, ticket.stream.0, ticket.number),
            Command::Outside => (Kind::Outside, 0, 0, 0),
            Command::Nothing => (Kind::Nothing, 0, 0, 0),
        };
        self.set(slot.kind(), kind.word());
        self.set(slot.cost(), cost);
        self.set(slot.subject(), subject);
        self.set(slot.number(), number);
        self.set(slot.token(), token);
        self.set(slot.available(), available.0);
    }

    /// Returns the footprint of the head of a stream, a command of the compute engine.
    #[inline]
    pub(super) fn head_footprint(&self, stream: StreamId) -> Footprint {
        Footprint::of_word(self.get(self.head_slot(stream).number()))
    }

    /// Returns how many kernels must have started, itself included; below 2: no wait.
    #[inline]
    pub(super) fn rendezvous_size(&self, slot: Slot) -> u64 {
        self.get(slot.number()) & RENDEZVOUS_SIZE
    }

    #[inline]
    pub(super) fn kind(&self, slot: Slot) -> Kind {
        Kind::of(self.get(slot.kind()))
    }
}
