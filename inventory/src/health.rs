//! Reads the health of a host's GPUs from NVML: whether they answer, and which errors (XID) they
//! report. The caller decides which errors make a GPU unhealthy, and for how long.
//!
//! The listener blocks instead of polling, on a thread of its own: for several errors between two
//! polls NVML reports only the last number, and a GPU's failure often comes before the errors that
//! programs report after it.

use std::collections::BTreeMap;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;

/// The result of a health check of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// [`cgpu_client::health::GpuHealth::index`].
    pub index: u32,
    /// [`cgpu_client::health::GpuHealth::answers`].
    pub answers: bool,
    /// [`cgpu_client::health::GpuHealth::needs_reset`].
    pub needs_reset: bool,
}

/// Checks all GPUs.
///
/// # Errors
/// NVML does not report their number.
pub fn health_checks(nvml: &Nvml) -> Result<Vec<HealthCheck>, NvmlError> {
    let health_check = |index| {
        let device = nvml.device_by_index(index);
        let answers = device.as_ref().is_ok_and(|device| device.memory_info().is_ok());
        let needs_reset =
            device.is_ok_and(|device| device.are_pages_pending_retired().unwrap_or(false));
        HealthCheck { index, answers, needs_reset }
    };
    Ok((0..nvml.device_count()?).map(health_check).collect())
}

/// An error, as reported by NVML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Report {
    /// Index of the GPU, the whole one for a MIG instance; none: not known.
    pub gpu: Option<u32>,
    /// [`cgpu_client::health::GpuError::xid`].
    pub xid: u64,
}

/// Receives the errors of all GPUs that support it.
pub struct Listener<'nvml> {
    set: EventSet<'nvml>,
    /// Whether a wait has succeeded.
    works: bool,
    /// GPUs that should support it, and refused.
    refusing: BTreeMap<u32, NvmlError>,
}

impl<'nvml> Listener<'nvml> {
    /// Registers for the errors of all GPUs.
    ///
    /// # Errors
    /// NVML's, if no GPU can be registered.
    pub fn new(nvml: &'nvml Nvml) -> Result<Self, NvmlError> {
        let mut refusing = BTreeMap::new();
        let set = loop {
            // A refusal by one GPU consumes the whole set.
            if let Some(set) = Self::register_others(nvml, &mut refusing)? {
                break set;
            }
        };
        Ok(Self { set, works: false, refusing })
    }

    /// Registers for all GPUs but `refusing`; returns `None` if one more refused.
    fn register_others(
        nvml: &'nvml Nvml,
        refusing: &mut BTreeMap<u32, NvmlError>,
    ) -> Result<Option<EventSet<'nvml>>, NvmlError> {
        let mut set = nvml.create_event_set()?;
        let mut registered = 0;
        for index in 0..nvml.device_count()? {
            if refusing.contains_key(&index) {
                continue;
            }
            let device = nvml.device_by_index(index);
            match device.and_then(|device| Ok((device.supported_event_types()?, device))) {
                Ok((types, device)) if types.contains(EventTypes::CRITICAL_XID_ERROR) => {
                    match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                        Ok(same) => set = same,
                        Err(failure) => {
                            refusing.insert(index, failure.error);
                            return Ok(None);
                        }
                    }
                    registered += 1;
                }
                Ok(_) | Err(NvmlError::NotSupported) => {}
                Err(error) => drop(refusing.insert(index, error)),
            }
        }
        if registered > 0 {
            return Ok(Some(set));
        }
        Err(refusing.pop_first().map_or(NvmlError::NotSupported, |(_, error)| error))
    }

    /// Waits for the next error; `None` after the timeout, or if the listener had to register
    /// again.
    ///
    /// Registers again after a failure, and when GPUs that refused may accept by now.
    ///
    /// # Errors
    /// NVML reports no more errors.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Report>, NvmlError> {
        match self.set.wait(u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX)) {
            Ok(event) => {
                self.works = true;
                Ok(event.event_data.map(|xid| Report {
                    gpu: event.device.index().ok(),
                    xid: if let XidError::Value(xid) = xid { xid } else { 0 },
                }))
            }
            Err(NvmlError::Timeout) => {
                self.works = true;
                if !self.refusing.is_empty()
                    && let Ok(renewed) = Self::new(self.set.nvml)
                    && renewed.refusing.len() < self.refusing.len()
                {
                    *self = renewed;
                }
                Ok(None)
            }
            // Usually one GPU has been lost, and the others still report.
            Err(_) if self.works => {
                *self = Self::new(self.set.nvml)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
