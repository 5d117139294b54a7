//! How the cards of a host are, for whoever gives them to pods: whether they answer, and which errors (XID) they have reported.
//!
//! NVML is asked by one piece of code, whoever asks, as for the [`crate::inventory`]. The monitor tells what it has heard, so that a device plugin in a pod without the
//! driver knows of sick cards as well. Which errors make a card sick, and for how long, is not said here: that is for whoever gives cards away.
//!
//! Errors are waited for, on a thread of their own, and not asked for now and then: of several that came meanwhile NVML tells the last one's number for all of them, and
//! what a program did to itself often follows upon what its card did.

use std::collections::BTreeMap;
use std::time::Duration;

use cgpu_proto::units::Nanos;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use serde::{Deserialize, Serialize};

/// Different errors of a card that are remembered; there are some two hundred in all.
const REMEMBERED: usize = 64;

/// What a monitor tells of its host's cards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// All that NVML counts, those that are cut into instances (MIG) as one.
    pub cards: Vec<CardHealth>,
    /// How long ago they were asked, in milliseconds.
    pub age_ms: u64,
    /// Whether errors would be told of.
    pub listens: bool,
}

/// How a card is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardHealth {
    /// Its number on the host.
    pub index: u32,
    /// Not so: it has fallen off its bus, or as good as that.
    pub answers: bool,
    /// It has pages to retire, and is to be reset before.
    #[serde(default)]
    pub wants_reset: bool,
    /// By number, each when it was last reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<CardError>,
}

/// An error that a card has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardError {
    /// The driver's number for it; 0: it is not known.
    pub xid: u64,
    /// How long ago it was last reported, in milliseconds.
    pub ago_ms: u64,
}

/// How a card answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// [`CardHealth::index`].
    pub index: u32,
    /// [`CardHealth::answers`].
    pub answers: bool,
    /// [`CardHealth::wants_reset`].
    pub wants_reset: bool,
}

/// Asks all cards.
///
/// # Errors
/// It is not told how many there are.
pub fn pulses(nvml: &Nvml) -> Result<Vec<Pulse>, NvmlError> {
    let pulse = |index| {
        let device = nvml.device_by_index(index);
        let answers = device.as_ref().is_ok_and(|device| device.memory_info().is_ok());
        let wants_reset = device.is_ok_and(|device| device.are_pages_pending_retired().unwrap_or(false));
        Pulse { index, answers, wants_reset }
    };
    Ok((0..nvml.device_count()?).map(pulse).collect())
}

/// An error, as it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Report {
    /// Of an instance (MIG) it is told of the whole; none: nobody knows which.
    pub card: Option<u32>,
    /// [`CardError::xid`].
    pub xid: u64,
}

/// Listens for errors of all cards that can be listened to.
pub struct Listener<'nvml> {
    set: EventSet<'nvml>,
    /// It has been waited for once, at least.
    works: bool,
    /// Cards that it does not hear, which they should let it.
    unheard: BTreeMap<u32, NvmlError>,
}

impl<'nvml> Listener<'nvml> {
    /// From now on.
    ///
    /// # Errors
    /// As NVML says; when none of the cards can be listened to.
    pub fn new(nvml: &'nvml Nvml) -> Result<Self, NvmlError> {
        let mut unheard = BTreeMap::new();
        let set = loop {
            // A set is lost with the first card that it is refused.
            if let Some(set) = Self::to_others(nvml, &mut unheard)? {
                break set;
            }
        };
        Ok(Self { set, works: false, unheard })
    }

    /// To all but these, and those that are found not to let anybody listen; none: one of them was found last.
    fn to_others(
        nvml: &'nvml Nvml,
        unheard: &mut BTreeMap<u32, NvmlError>,
    ) -> Result<Option<EventSet<'nvml>>, NvmlError> {
        let mut set = nvml.create_event_set()?;
        let mut heard = 0;
        for index in 0..nvml.device_count()? {
            if unheard.contains_key(&index) {
                continue;
            }
            let device = nvml.device_by_index(index);
            match device.and_then(|device| Ok((device.supported_event_types()?, device))) {
                Ok((types, device)) if types.contains(EventTypes::CRITICAL_XID_ERROR) => {
                    match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                        Ok(same) => set = same,
                        Err(failure) => {
                            unheard.insert(index, failure.error);
                            return Ok(None);
                        }
                    }
                    heard += 1;
                }
                Ok(_) | Err(NvmlError::NotSupported) => {}
                Err(error) => drop(unheard.insert(index, error)),
            }
        }
        if heard > 0 {
            return Ok(Some(set));
        }
        Err(unheard.pop_first().map_or(NvmlError::NotSupported, |(_, error)| error))
    }

    /// The next error; none: there was none for so long, or what had to be done first took the time.
    ///
    /// One that fails is made anew, and so is one that could hear more cards by now.
    ///
    /// # Errors
    /// NVML tells of no more.
    pub fn wait(&mut self, patience: Duration) -> Result<Option<Report>, NvmlError> {
        match self.set.wait(u32::try_from(patience.as_millis()).unwrap_or(u32::MAX)) {
            Ok(event) => {
                self.works = true;
                Ok(event.event_data.map(|xid| Report {
                    card: event.device.index().ok(),
                    xid: if let XidError::Value(xid) = xid { xid } else { 0 },
                }))
            }
            Err(NvmlError::Timeout) => {
                self.works = true;
                if !self.unheard.is_empty()
                    && let Ok(anew) = Self::new(self.set.nvml)
                    && anew.unheard.len() < self.unheard.len()
                {
                    *self = anew;
                }
                Ok(None)
            }
            // As a rule one card has been lost: the others still tell.
            Err(_) if self.works => {
                *self = Self::new(self.set.nvml)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// What was reported, by card and number: each error's last time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reports {
    /// Somebody listens.
    pub(crate) listens: bool,
    last: BTreeMap<Option<u32>, BTreeMap<u64, Nanos>>,
}

impl Reports {
    pub(crate) fn add(&mut self, report: Report, now: Nanos) {
        let errors = self.last.entry(report.card).or_default();
        errors.insert(report.xid, now);
        if errors.len() > REMEMBERED
            && let Some(oldest) = errors.iter().min_by_key(|(_, at)| **at).map(|(xid, _)| *xid)
        {
            errors.remove(&oldest);
        }
    }

    /// Those of a card, and those of which nobody knows whose they are.
    fn of(&self, card: u32, now: Nanos) -> Vec<CardError> {
        let mut errors: BTreeMap<u64, Nanos> = BTreeMap::new();
        for (xid, at) in [None, Some(card)].iter().filter_map(|whose| self.last.get(whose)).flatten() {
            let last = errors.entry(*xid).or_insert(*at);
            *last = (*last).max(*at);
        }
        let error = |(xid, at): (u64, Nanos)| CardError { xid, ago_ms: (now - at).0 / 1_000_000 };
        errors.into_iter().map(error).collect()
    }

    /// All of it, with how the cards answered `at` that time.
    pub(crate) fn health(&self, pulses: &[Pulse], at: Nanos, now: Nanos) -> Health {
        let card = |pulse: &Pulse| CardHealth {
            index: pulse.index,
            answers: pulse.answers,
            wants_reset: pulse.wants_reset,
            errors: self.of(pulse.index, now),
        };
        Health {
            cards: pulses.iter().map(card).collect(),
            age_ms: (now - at).0 / 1_000_000,
            listens: self.listens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn each_error_is_told_with_its_last_time_and_what_is_nobodys_of_all() {
        let mut reports = Reports { listens: true, ..Reports::default() };
        reports.add(Report { card: Some(1), xid: 48 }, at(10));
        reports.add(Report { card: Some(1), xid: 31 }, at(11));
        reports.add(Report { card: Some(1), xid: 48 }, at(12));
        reports.add(Report { card: None, xid: 0 }, at(13));
        let pulse = |index| Pulse { index, answers: index == 1, wants_reset: false };
        let health = reports.health(&[pulse(0), pulse(1)], at(14), at(15));
        let error = |xid, ago_ms| CardError { xid, ago_ms };
        assert_eq!(health.cards[0].errors, [error(0, 2000)]);
        assert_eq!(health.cards[1].errors, [error(0, 2000), error(31, 4000), error(48, 3000)]);
        assert!(health.listens && health.age_ms == 1000 && !health.cards[0].answers);
        let line = serde_json::to_string(&health).unwrap();
        assert_eq!(serde_json::from_str::<Health>(&line).unwrap(), health, "{line}");
    }

    #[test]
    fn of_many_errors_the_last_are_remembered() {
        let mut reports = Reports::default();
        for xid in 0..1000 {
            reports.add(Report { card: Some(0), xid }, at(xid));
        }
        let errors = reports.of(0, at(1000));
        assert_eq!((errors.len(), errors[0].xid), (REMEMBERED, 1000 - REMEMBERED as u64));
    }
}
