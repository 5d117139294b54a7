//! When something will be done, found by trying: the timeline is played on, and what was played is taken back.
//!
//! Exact as long as nothing new arrives; whoever sleeps by it looks again when it wakes. The attempt is bounded, since
//! the sleeper can as well look again half way; and it is crash-safe for the same reason as every other change.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::agenda::{self, Due};
use super::stream::Ticket;
use crate::words::Words;

/// What playing on has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forecast {
    /// It will be at that instant.
    At(Nanos),
    /// Not before that instant; no further was tried.
    NotBefore(Nanos),
    /// Not unless something new arrives.
    Unknown,
}

/// Events that one forecast plays: some 4 ms of 60 us kernels, in some 10 us.
const EVENTS: usize = 64;

impl<W: Words> Timeline<'_, W> {
    /// When all of the tickets will be done.
    pub fn forecast(&mut self, tickets: &[Ticket]) -> Forecast {
        self.forecast_until(|this| tickets.iter().all(|&ticket| this.is_done(ticket)))
    }

    /// When the process will next have an effect to perform.
    pub fn forecast_effect(&mut self, process: usize) -> Forecast {
        let seen = self.effects_due(process);
        self.forecast_until(|this| this.effects_due(process) != seen)
    }

    fn forecast_until(&mut self, done: impl Fn(&Self) -> bool) -> Forecast {
        self.words.attempt();
        let mut simulated = 0;
        let answer = loop {
            if done(self) {
                break Forecast::At(self.now());
            }
            match agenda::first(self.words) {
                None => break Forecast::Unknown,
                // What a death takes with it can be more than an attempt should hold.
                Some((at, Due::Process(_))) => break Forecast::NotBefore(at),
                Some((at, _)) if simulated == EVENTS => break Forecast::NotBefore(at),
                Some((at, due)) => self.step(at, due),
            }
            simulated += 1;
        };
        self.words.forget();
        answer
    }
}
