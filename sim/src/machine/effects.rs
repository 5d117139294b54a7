//! Effects: the parts of the GPU's work that the host can see. The process itself performs them
//! when they are due.
//!
//! The timeline identifies an effect by a token, a number within the process; [`Effects`] maps it
//! to the work. Tokens become due in the order in which their commands end, and are taken in that
//! order. One lock lets one thread at a time take and perform, so that effects also become visible
//! in order.

use std::sync::Mutex;

use cgpu_shm::units::Nanos;

use super::bytes::{fill_bytes, is_met, move_bytes, read_word, write_word};
use super::work::{Fill, Pitched, WaitCondition, Width};
use super::{ContextId, Core, SemaphoreId, StreamId, Ticket, enqueued, lock};
use crate::clock::Clock;
use crate::error::Error;
use crate::timeline::{Command, EffectDue, Forecast, QueueFull};

/// The work behind a token.
pub(super) enum Effect {
    Copy(Pitched),
    Fill(Fill),
    Write {
        address: u64,
        width: Width,
        value: u64,
    },
    /// Calls a function while the stream waits.
    Call(Box<dyn FnOnce() + Send>),
    /// Signals a semaphore after everything that was due before; then the stream goes on.
    Signal(SemaphoreId, u64),
    /// Polls a word until it meets the stream's condition.
    Watch {
        address: u64,
        width: Width,
        condition: WaitCondition,
        value: u64,
    },
}

impl core::fmt::Debug for Effect {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Copy(_) => "Copy",
            Self::Fill(_) => "Fill",
            Self::Write { .. } => "Write",
            Self::Call(_) => "Call",
            Self::Signal(..) => "Signal",
            Self::Watch { .. } => "Watch",
        })
    }
}

pub(super) struct HostCall {
    call: Box<dyn FnOnce() + Send>,
    ticket: Ticket,
}

impl core::fmt::Debug for HostCall {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HostCall").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Watch {
    address: u64,
    width: Width,
    condition: WaitCondition,
    value: u64,
    ticket: Ticket,
}

#[derive(Debug, Default)]
pub(super) struct Effects {
    tokens: Mutex<Tokens>,
    performing: Mutex<Performing>,
}

impl Effects {
    /// Locks the tokens, to put several commands.
    pub(super) fn tokens(&self) -> std::sync::MutexGuard<'_, Tokens> {
        lock(&self.tokens)
    }
}

/// Locked before the segment, never after.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// At index token - 1. The ticket is set once the command is enqueued.
    entries: Vec<Option<(Effect, Option<Ticket>)>>,
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Performing {
    due: Vec<EffectDue>,
    watches: Vec<Watch>,
    /// Host functions that are due and not yet called.
    calls: Vec<HostCall>,
}

impl Tokens {
    pub(super) fn put(&mut self, effect: Effect) -> u64 {
        let place = self.free.pop().unwrap_or(self.entries.len());
        if place == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[place] = Some((effect, None));
        place as u64 + 1
    }

    pub(super) fn set_ticket(&mut self, token: u64, ticket: Ticket) {
        if let Some(Some((_, its))) = self.entries.get_mut(entry_index(token)) {
            *its = Some(ticket);
        }
    }

    pub(super) fn take(&mut self, token: u64) -> Option<(Effect, Option<Ticket>)> {
        let entry = self.entries.get_mut(entry_index(token))?.take()?;
        self.free.push(entry_index(token));
        Some(entry)
    }
}

fn entry_index(token: u64) -> usize {
    crate::words::index(token).wrapping_sub(1)
}

/// Poll interval of watched words.
const WATCH_INTERVAL: Nanos = Nanos::from_micros(20);

impl Core {
    /// Enqueues a command with an effect. Blocks while the queue is full.
    pub(super) fn enqueue_effect(
        &self,
        stream: StreamId,
        command: Command,
        mut effect: Effect,
    ) -> Result<Ticket, Error> {
        loop {
            let mut tokens = lock(&self.effects.tokens);
            let token = tokens.put(effect);
            let enqueued = self.with(|timeline, now| {
                self.own_stream(timeline, stream)?;
                let first_effect = timeline.effects_of(stream) == 0;
                Ok(timeline
                    .enqueue(stream, command, token, now)
                    .map(|ticket| (ticket, first_effect, now)))
            });
            match enqueued {
                Ok(Ok((ticket, first_effect, now))) => {
                    tokens.set_ticket(token, ticket);
                    enqueued::note(ticket);
                    // The helper already knows of a stream that holds effects.
                    if first_effect {
                        self.alarm.notify_by(now + self.segment.figures().launch_latency);
                    }
                    return Ok(ticket);
                }
                Ok(Err(QueueFull { room })) => {
                    let taken = tokens.take(token);
                    drop(tokens);
                    self.wait_for(&[room])?;
                    match taken {
                        Some((it, _)) => effect = it,
                        None => return Err(Error::NoStream),
                    }
                }
                Err(error) => {
                    tokens.take(token);
                    return Err(error);
                }
            }
        }
    }

    /// Performs the effects that are due. On a virtual clock it also calls host functions.
    /// Otherwise a thread of the helper calls them: a host function may wait for what this thread
    /// of the program does next.
    pub(super) fn perform_due(&self) -> Result<(), Error> {
        self.perform(false)?;
        if matches!(self.clock, Clock::Real { .. }) {
            if !lock(&self.effects.performing).calls.is_empty() {
                self.alarm.notify_by(Nanos::ZERO);
            }
            return Ok(());
        }
        let calls = self.take_calls();
        calls.into_iter().try_for_each(|call| self.call(call))
    }

    pub(super) fn take_calls(&self) -> Vec<HostCall> {
        std::mem::take(&mut lock(&self.effects.performing).calls)
    }

    /// Returns whether effects are still to be performed.
    pub(super) fn has_pending_effects(&self) -> Result<bool, Error> {
        // Effects that were taken have been performed once this lock is held.
        let _performing = lock(&self.effects.performing);
        self.with(|timeline, _| Ok(timeline.has_pending_effects(self.segment.process())))
    }

    /// Performs the effects that are due, and returns when the next may be; `None`: not before
    /// something is enqueued. Host functions are only queued.
    pub(super) fn perform(&self, with_forecast: bool) -> Result<Option<Nanos>, Error> {
        let mut performing = lock(&self.effects.performing);
        let Performing { due, watches, calls } = &mut *performing;
        let mut next = self.with(|timeline, now| {
            due.clear();
            timeline.take_effects(self.segment.process(), due);
            if !with_forecast || !timeline.has_queued_effects(self.segment.process()) {
                return Ok(None);
            }
            Ok(Some(match timeline.forecast_effect(self.segment.process()) {
                Forecast::At(instant) => instant + timeline.figures().visibility,
                Forecast::NotBefore(instant) => instant,
                Forecast::Unknown => now + super::POLL_INTERVAL,
            }))
        })?;
        let mut failed = Ok(());
        for EffectDue { token, .. } in due.drain(..) {
            let Some((effect, ticket)) = lock(&self.effects.tokens).take(token) else { continue };
            let done = match (effect, ticket) {
                (Effect::Copy(copy), _) => move_bytes(self, &mut lock(&self.memory), &copy),
                (Effect::Fill(fill), _) => fill_bytes(self, &mut lock(&self.memory), &fill),
                (Effect::Write { address, width, value }, _) => {
                    write_word(self, &mut lock(&self.memory), (address, width), value)
                }
                (Effect::Call(call), Some(ticket)) => {
                    calls.push(HostCall { call, ticket });
                    Ok(())
                }
                (Effect::Watch { address, width, condition, value }, Some(ticket)) => {
                    watches.push(Watch { address, width, condition, value, ticket });
                    Ok(())
                }
                (Effect::Signal(semaphore, value), Some(ticket)) => self.with(|timeline, now| {
                    timeline.signal(semaphore, value, now);
                    timeline.answer(ticket, now);
                    Ok(())
                }),
                // Its command was not enqueued after all.
                (Effect::Call(_) | Effect::Watch { .. } | Effect::Signal(..), None) => Ok(()),
            };
            // A failure does not stop the others.
            failed = failed.and(done);
        }
        let over: Vec<Ticket> =
            watches.extract_if(.., |watch| self.is_over(watch)).map(|watch| watch.ticket).collect();
        if !over.is_empty() {
            self.with(|timeline, now| {
                over.iter().for_each(|&ticket| timeline.answer(ticket, now));
                Ok(())
            })?;
            next = Some(Nanos::ZERO);
        }
        if !watches.is_empty() {
            let soon = self.clock.now() + WATCH_INTERVAL;
            next = Some(next.map_or(soon, |next| next.min(soon)));
        }
        failed.map(|()| next)
    }

    fn is_over(&self, watch: &Watch) -> bool {
        let word = read_word(self, &mut lock(&self.memory), (watch.address, watch.width));
        word.is_ok_and(|word| is_met(watch.condition, watch.width, word, watch.value))
    }

    /// Calls a host function, then lets its stream go on.
    pub(super) fn call(&self, call: HostCall) -> Result<(), Error> {
        (call.call)();
        self.with(|timeline, now| {
            timeline.answer(call.ticket, now);
            Ok(())
        })?;
        self.alarm.notify_by(Nanos::ZERO);
        Ok(())
    }

    /// Drops the effects that the context's streams hold, then destroys the context.
    pub(super) fn destroy_context(&self, context: ContextId) -> Result<(), Error> {
        let mut tokens = lock(&self.effects.tokens);
        let (dropped, streams) = self.with(|timeline, now| {
            self.own_context(timeline, context)?;
            let streams = timeline.streams(context);
            let dropped: Vec<u64> =
                streams.iter().flat_map(|&stream| timeline.queued_tokens(stream)).collect();
            timeline.destroy_context(context, now);
            Ok((dropped, streams))
        })?;
        for token in dropped {
            tokens.take(token);
        }
        drop(tokens);
        lock(&self.effects.performing)
            .watches
            .retain(|watch| !streams.contains(&watch.ticket.stream));
        self.tracks.forget(context);
        lock(&self.memory).forget(self, context);
        Ok(())
    }
}
