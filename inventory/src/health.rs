//! How the cards of a host are, for whoever gives them to pods: whether they answer, and which errors (XID) they have reported.
//!
//! NVML is asked by one piece of code, whoever asks, as for the [inventory](crate). The monitor tells what it has heard, so that a device plugin in a pod without the
//! driver knows of sick cards as well. Which errors make a card sick, and for how long, is not said here: that is for whoever gives cards away.
//!
//! Errors are waited for, on a thread of their own, and not asked for now and then: of several that came meanwhile NVML tells the last one's number for all of them, and
//! what a program did to itself often follows upon what its card did.

use std::collections::BTreeMap;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;

/// How a card answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// [`cgpu_client::health::CardHealth::index`].
    pub index: u32,
    /// [`cgpu_client::health::CardHealth::answers`].
    pub answers: bool,
    /// [`cgpu_client::health::CardHealth::wants_reset`].
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
    /// [`cgpu_client::health::CardError::xid`].
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
