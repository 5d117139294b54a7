//! Forecasts by simulation: the timeline is advanced, then rolled back.
//!
//! A forecast is exact as long as nothing new is enqueued; a caller that sleeps by it checks again
//! when it wakes. So the attempt can be bounded. It is crash-safe as every other change is.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::agenda::{self, Due};
use super::stream::Ticket;
use crate::words::Words;

/// The result of a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forecast {
    /// It will happen at that instant.
    At(Nanos),
    /// Not before that instant; the attempt ended there.
    NotBefore(Nanos),
    /// Not unless something new is enqueued.
    Unknown,
}

/// Events that one forecast simulates: some 4 ms of 60 us kernels, in some 10 us.
const EVENTS: usize = 64;

impl<W: Words> Timeline<'_, W> {
    /// Forecasts when all of the tickets will be done.
    pub fn forecast(&mut self, tickets: &[Ticket]) -> Forecast {
        self.forecast_until(|this| tickets.iter().all(|&ticket| this.is_done(ticket)))
    }

    /// Forecasts when the process will next have an effect to perform.
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
                // The end of a process can change more than an attempt should hold.
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
