//! What NVML tells, and the simulator's own truth.

use cgpu_shm::units::Nanos;

use super::{CardSample, ClockRate, ContextId, EngineTime, Machine, ProcessSample, ProcessUse, Xid};
use crate::error::Error;
use crate::identity::{Asker, Identity};

/// NVML's utilisation: integer percent of the last whole window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilisation {
    /// Percent of time in which the card computed or switched.
    pub gpu: u32,
    /// Percent of time in which memory was read or written. The model has no such thing: a third of `gpu`.
    pub memory: u32,
}

/// How often readers of the books look for dead processes, if no client does.
pub(super) const REAP: Nanos = Nanos::from_millis(20);

impl Machine {
    /// Processes with contexts on a card that exist in this process's PID namespace, with their ids there.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn processes(&self, card: usize) -> Result<Vec<ProcessUse>, Error> {
        self.check_card(card)?;
        self.core.segment.reap(self.now(), REAP)?;
        self.core.bury_exports()?;
        let uses: Vec<_> = self.core.with(|timeline, now| {
            timeline.settle(card, now);
            let uses = timeline.processes(card).into_iter();
            Ok(uses.map(|each| (self.core.segment.identity(each.process, each.pid), each)).collect())
        })?;
        Ok(self.named(uses, |each, pid| ProcessUse { pid, ..each }))
    }

    /// A card's utilisation.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn utilisation(&self, card: usize) -> Result<Utilisation, Error> {
        self.check_card(card)?;
        self.core.with(|timeline, now| {
            timeline.settle(card, now);
            let gpu = timeline.utilisation(card, now);
            Ok(Utilisation { gpu, memory: gpu / 3 })
        })
    }

    /// One sample for each process that computed in the whole windows that ended after `since`, at most the last 14: their mean.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn process_utilisation(&self, card: usize, since: Nanos) -> Result<Vec<ProcessSample>, Error> {
        self.check_card(card)?;
        let samples: Vec<_> = self.core.with(|timeline, now| {
            timeline.settle(card, now);
            let samples = timeline.process_samples(card, since, now).into_iter();
            Ok(samples.map(|each| (self.core.segment.identity(each.process, each.pid), each)).collect())
        })?;
        Ok(self.named(samples, |each, pid| ProcessSample { pid, ..each }))
    }

    /// A card's utilisation in each whole window that ended after `since`, oldest first; at most the last 14 windows.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn card_utilisation(&self, card: usize, since: Nanos) -> Result<Vec<CardSample>, Error> {
        self.check_card(card)?;
        self.core.with(|timeline, now| {
            timeline.settle(card, now);
            Ok(timeline.card_samples(card, since, now))
        })
    }

    /// Lets a card report an error (an XID) to whoever watches it.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn inject_xid(&self, card: usize, code: u64) -> Result<(), Error> {
        self.check_card(card)?;
        self.core.with(|timeline, now| {
            timeline.inject_xid(card, code, now);
            Ok(())
        })
    }

    /// The rate of a GPU's clock, by which events are stamped.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn clock_rate(&self, gpu: usize) -> Result<ClockRate, Error> {
        self.check_card(gpu)?;
        self.core.with(|timeline, _| Ok(timeline.clock_rate(gpu)))
    }

    /// Changes the rate of a GPU's clock from now on, and sets the clock forward by `step`
    /// nanoseconds; back if it is negative.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn set_clock(&self, gpu: usize, rate: ClockRate, step: i64) -> Result<(), Error> {
        self.check_card(gpu)?;
        self.core.with(|timeline, _| {
            timeline.set_clock(gpu, rate, step);
            Ok(())
        })
    }

    /// Errors that cards have reported after the `number`-th of all.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`], [`Error::System`].
    pub fn xids_after(&self, number: u64) -> Result<Vec<Xid>, Error> {
        self.core.with(|timeline, _| Ok(timeline.xids_after(number)))
    }

    /// Keeps the caller for that long: what asking the driver's kernel half takes.
    pub fn spend(&self, span: Nanos) {
        self.core.clock.wait_until(self.now() + span);
    }

    /// How a card's time was spent.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn engine_time(&self, card: usize) -> Result<EngineTime, Error> {
        self.check_card(card)?;
        self.core.with(|timeline, now| {
            timeline.settle(card, now);
            Ok(timeline.engine_time(card))
        })
    }

    /// Time that one context's commands ran, exact.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn context_busy(&self, context: ContextId) -> Result<Nanos, Error> {
        self.core.with(|timeline, now| {
            let card = self.core.own_context(timeline, context)?;
            timeline.settle(card, now);
            Ok(timeline.context_busy(context))
        })
    }

    /// How many processes have died inside the segment's lock. For tests.
    #[must_use]
    pub fn deaths_in_lock(&self) -> u64 {
        self.core.segment.takeovers()
    }

    /// Whether the machine's state is one that operations lead to. For tests: it looks at everything.
    ///
    /// # Errors
    /// [`Error::Segment`] with the first thing found wrong.
    pub fn check(&self) -> Result<(), Error> {
        self.core.with(|timeline, _| timeline.check().map_err(Error::Segment))
    }

    /// As NVML names them: [`as_seen`], or on a card that speaks as the host does, all of them by their ids there.
    fn named<T>(&self, all: Vec<(Identity, T)>, with: impl Fn(T, u32) -> T) -> Vec<T> {
        let asker = if self.figures().host_pids == 1 { Asker::host() } else { Asker::new() };
        seen_by(asker, all, with)
    }
}

/// Those that exist in this process's PID namespace, with their ids there.
pub(super) fn as_seen<T, U>(all: Vec<(Identity, T)>, with: impl Fn(T, u32) -> U) -> Vec<U> {
    seen_by(Asker::new(), all, with)
}

fn seen_by<T, U>(mut asker: Asker, all: Vec<(Identity, T)>, with: impl Fn(T, u32) -> U) -> Vec<U> {
    all.into_iter().filter_map(|(who, each)| Some(with(each, asker.pid_of(&who)?))).collect()
}
