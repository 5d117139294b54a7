//! What always holds between two operations. For tests, and for whoever doubts a segment.

use super::agenda::{self, Due};
use super::command::Kind;
use super::copier::Way;
use super::engine::{State, Turn, ready_of, ring_of};
use super::event::events_of;
use super::head::Head;
use super::process::contexts_of;
use super::records::{CARDS, Card, ContextId, Holding, PROCESSES, Process, StreamId};
use super::stream::streams_of;
use super::{Ticket, Timeline};
use crate::words::{Words, index};

macro_rules! demand {
    ($condition:expr, $($what:tt)*) => {
        if !$condition {
            return Err(format!($($what)*));
        }
    };
}

impl<W: Words> Timeline<'_, W> {
    /// Whether the state is one that operations lead to.
    ///
    /// # Errors
    /// A sentence that names the first thing found wrong.
    pub fn check(&self) -> Result<(), String> {
        demand!(agenda::is_valid(self.words), "the agenda is no heap");
        if let Some((at, due)) = agenda::first(self.words) {
            demand!(at >= self.now(), "{due:?} is due at {at}, and it is {} already", self.now());
        }
        for card in (0..CARDS).map(Card) {
            self.check_card(card)?;
        }
        for process in (0..PROCESSES).map(Process) {
            self.check_process(process)?;
        }
        Ok(())
    }

    fn check_card(&self, card: Card) -> Result<(), String> {
        let held: u64 = (0..PROCESSES).map(|p| self.get(Holding::of(Process(p), card).memory())).sum();
        let used = self.get(card.used());
        demand!(used == held, "{card:?}: {used} bytes used, processes hold {held}");
        demand!(used <= self.get(card.usable()), "{card:?}: more used than there is");
        let spent = self.get(card.busy()) + self.get(card.switching());
        demand!(spent <= self.now().0, "{card:?}: busy for {spent} of {}", self.now());
        for context in ring_of(card).members(self.words).into_iter().map(ContextId) {
            demand!(self.turn(context) == Turn::Waiting, "{context:?} is in the ring and does not wait");
            demand!(!ready_of(context).is_empty(self.words), "{context:?} waits and has no work");
        }
        match self.engine_state(card) {
            State::Idle => {
                demand!(ring_of(card).is_empty(self.words), "{card:?} is idle while contexts wait");
            }
            State::Switching => {
                let context = ContextId(self.get(card.target()));
                demand!(self.turn(context) == Turn::Current, "{card:?} switches to {context:?}, not current");
            }
            State::Running => {
                let context = ContextId(self.get(card.resident()));
                demand!(self.turn(context) == Turn::Current, "{card:?} runs {context:?}, not current");
                let running = self.get(card.running());
                demand!(ready_of(context).first(self.words) == running, "{card:?} does not run the first");
                demand!(self.get(card.run_start()) <= self.now().0, "{card:?} will have begun to run");
            }
        }
        for way in [Way::Up, Way::Down] {
            for stream in way.queue(card).members(self.words).into_iter().map(StreamId) {
                demand!(
                    self.head(stream) == Head::Copying,
                    "{stream:?} is in a copy queue and does not copy"
                );
            }
        }
        Ok(())
    }

    fn check_process(&self, process: Process) -> Result<(), String> {
        let mut memory = [0; index(CARDS)];
        let mut queued = 0;
        for context in contexts_of(process).members(self.words).into_iter().map(ContextId) {
            demand!(self.get(context.alive()) == 1, "{context:?} is dead and listed");
            demand!(self.process_of(context) == process, "{context:?} is listed with {process:?}");
            memory[index(self.get(context.card()))] += self.get(context.memory());
            for stream in streams_of(context).members(self.words).into_iter().map(StreamId) {
                self.check_stream(context, stream)?;
                let tokens = self.queued_tokens(stream).len() as u64;
                demand!(
                    self.effects_of(stream) == tokens,
                    "{stream:?} holds {tokens} effects and counts otherwise"
                );
                queued += tokens;
            }
            for event in events_of(context).members(self.words).into_iter().map(super::EventId) {
                demand!(self.get(event.context()) == context.0, "{event:?} is listed with {context:?}");
            }
        }
        for card in (0..CARDS).map(Card) {
            let held = self.get(Holding::of(process, card).memory());
            let sum = memory[index(card.0)];
            demand!(held == sum, "{process:?} holds {held} bytes of {card:?}, its contexts {sum}");
        }
        let counted = self.get(process.effects_queued());
        demand!(counted == queued, "{process:?} counts {counted} effects to come, its streams hold {queued}");
        Ok(())
    }

    fn check_stream(&self, context: ContextId, stream: StreamId) -> Result<(), String> {
        demand!(self.get(stream.context()) == context.0, "{stream:?} is listed with {context:?}");
        let (issued, completed) = (self.get(stream.issued()), self.get(stream.completed()));
        let head = self.head(stream);
        demand!((issued == completed) == (head == Head::Empty), "{stream:?}: {completed}/{issued}, {head:?}");
        demand!(self.get(stream.done_at()) <= self.now().0, "{stream:?} completed in the future");
        let ready = ready_of(context).members(self.words).contains(&stream.0);
        demand!(ready == (head == Head::Computing), "{stream:?} is {head:?}, ready: {ready}");
        if head == Head::Computing {
            demand!(self.turn(context) != Turn::Parked, "{context:?} is parked, {stream:?} wants to compute");
        }
        let timed = matches!(head, Head::Arriving | Head::Timed | Head::Woken | Head::Stalled);
        demand!(timed == agenda::runs(self.words, Due::Stream(stream)), "{stream:?}: {head:?} and its timer");
        if head == Head::Blocked {
            let slot = self.head_slot(stream);
            demand!(self.kind(slot) == Kind::Wait, "{stream:?} is blocked by no wait");
            let ticket =
                Ticket { stream: StreamId(self.get(slot.subject())), number: self.get(slot.number()) };
            demand!(!self.is_done(ticket), "{stream:?} is blocked by what is done");
        }
        Ok(())
    }
}
