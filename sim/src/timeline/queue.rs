//! Enqueuing of commands.
//!
//! The legacy default stream's barrier consists of plain waits, enqueued before a command. A legacy
//! command waits for the work of the context's blocking streams, and a blocking stream's command
//! for that of the legacy stream.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::command::Command;
use super::head::{Begun, Head};
use super::records::{ContextId, RING, Slot, StreamId};
use super::stream::{BLOCKING, LEGACY, Ticket, streams_of};
use crate::words::Words;

/// The stream holds as many commands as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull {
    /// Done when there is room for several commands: a caller that waited for one place would be
    /// woken for every command.
    pub room: Ticket,
}

impl<W: Words> Timeline<'_, W> {
    /// Enqueues a command at the instant `now`, to which the timeline has been advanced. A `token`
    /// that is not 0 becomes due as an effect of the process when the command is done (for
    /// [`Command::Outside`], when it begins).
    ///
    /// # Errors
    /// [`QueueFull`]; then nothing has changed.
    pub fn enqueue(
        &mut self,
        stream: StreamId,
        command: Command,
        token: u64,
        now: Nanos,
    ) -> Result<Ticket, QueueFull> {
        self.room(stream)?;
        let available = now + self.figures.launch_latency;
        let context = ContextId(self.get(stream.context()));
        match self.get(stream.flags()) & (LEGACY | BLOCKING) {
            LEGACY => self.wait_for_blocking(stream, context, available, now),
            BLOCKING => self.wait_for_legacy(stream, context, available, now),
            _ => {}
        }
        if let Command::Mark(event) = command {
            let number = self.get(stream.issued()) + 1;
            self.set(event.stream(), stream.0);
            self.set(event.number(), number);
        }
        if token != 0 {
            let process = self.process_of(context);
            self.add(process.effects_queued(), 1);
            self.add(stream.effects(), 1);
        }
        Ok(self.append(stream, command, token, available, now))
    }

    /// Checks that the stream's queue has room for one more command, and for its barrier in a
    /// legacy stream.
    pub(super) fn room(&self, stream: StreamId) -> Result<(), QueueFull> {
        let issued = self.get(stream.issued());
        let held = issued - self.get(stream.completed());
        let barrier = if self.get(stream.flags()) & LEGACY == 0 {
            1
        } else {
            self.get(ContextId(self.get(stream.context())).streams())
        };
        let depth = self.depth(stream);
        if held < depth && held + barrier < RING {
            return Ok(());
        }
        let number = issued.saturating_sub(depth * 15 / 16);
        Err(QueueFull {
            room: Ticket { stream, number: number.max(self.get(stream.completed()) + 1) },
        })
    }

    fn wait_for_blocking(
        &mut self,
        legacy: StreamId,
        context: ContextId,
        available: Nanos,
        now: Nanos,
    ) {
        let mut stream = StreamId(streams_of(context).first(self.words));
        while stream.0 != 0 {
            let issued = self.get(stream.issued());
            let open =
                self.get(stream.completed()) < issued && self.get(stream.legacy_waits()) < issued;
            if open && self.get(stream.flags()) & BLOCKING != 0 {
                self.set(stream.legacy_waits(), issued);
                let wait = Command::Wait(Ticket { stream, number: issued });
                self.append(legacy, wait, 0, available, now);
            }
            stream = StreamId(streams_of(context).next(self.words, stream.0));
        }
    }

    fn wait_for_legacy(
        &mut self,
        stream: StreamId,
        context: ContextId,
        available: Nanos,
        now: Nanos,
    ) {
        let legacy = StreamId(self.get(context.legacy_stream()));
        let issued = self.get(legacy.issued());
        if self.get(legacy.completed()) < issued && self.get(stream.waits_legacy()) < issued {
            self.set(stream.waits_legacy(), issued);
            let wait = Command::Wait(Ticket { stream: legacy, number: issued });
            self.append(stream, wait, 0, available, now);
        }
    }

    fn append(
        &mut self,
        stream: StreamId,
        command: Command,
        token: u64,
        available: Nanos,
        now: Nanos,
    ) -> Ticket {
        let issued = self.get(stream.issued());
        self.store_command(Slot::of(stream, issued), command, token, available);
        self.set(stream.issued(), issued + 1);
        if self.head(stream) == Head::Empty && self.begin(stream, now) == Begun::Done {
            self.complete(stream, now);
        }
        Ticket { stream, number: issued + 1 }
    }

    /// Returns the tokens of commands that are not due yet. A caller that drops the stream's
    /// context drops their effects.
    #[must_use]
    pub fn queued_tokens(&self, stream: StreamId) -> Vec<u64> {
        let begun = u64::from(self.head(stream) == Head::Outside);
        (self.get(stream.completed()) + begun..self.get(stream.issued()))
            .map(|number| self.get(Slot::of(stream, number).token()))
            .filter(|&token| token != 0)
            .collect()
    }
}
