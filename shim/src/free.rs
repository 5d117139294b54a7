//! Free memory of a device before and after an operation that takes some.
//!
//! | source | used when |
//! |---|---|
//! | the driver (`cuMemGetInfo`) | a context of the device is current |
//! | NVML ([`crate::nvml_uses`]) | it is started, or no monitor reports the value |
//! | the monitor before, the driver after | a context's size is unknown, with a monitor |
//! | the accounting before, the driver after | the same if neither is available |
//!
//! In the last case all memory that is not accounted counts as the context's. Where the driver
//! limits the container's control group, its values are the group's, so that what the group has
//! beyond the accounting counts as the context's.
//!
//! Nothing is measured once the size is known. With a monitor that is so from the second context
//! on: it is charged like the first one, and the monitor's figure for each process corrects it
//! (`docs/internals/memory.md`). Without a monitor it is so when two contexts in a row took the
//! same.

use core::cell::Cell;

use cgpu_abi::types::{CUcontext, CUresult};
use cgpu_memory::{Bytes, DeviceIndex, Tenant};

use crate::current::{current_device, pop};
use crate::devices::DriverOrdinal;
use crate::order::RelaxedCapture;
use crate::{captures, driver, gpus, nvml_uses};

/// Returns the free memory of the current context's device, to be compared with a later value;
/// none: no context is current, or the driver does not answer. The limit of a control group does
/// not count, since it may change meanwhile.
pub(crate) fn of_current() -> Option<Bytes> {
    let (free, total) = relaxed()?;
    let whole = current_device().ok().and_then(gpus::driver_total);
    Some(whole.unwrap_or(total) - (total - free))
}

/// Returns what the driver reports as free, in whatever capture mode the thread is.
pub(crate) fn reported() -> Option<Bytes> {
    free_and_total().map(|(free, _)| free)
}

fn free_and_total() -> Option<(Bytes, Bytes)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both variables are writable.
    let answer = unsafe { driver::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    (answer == CUresult::SUCCESS).then_some((Bytes(free as u64), Bytes(total as u64)))
}

/// Returns the same of a context's device; the context need not be current.
pub(crate) fn of_context(context: CUcontext) -> Option<Bytes> {
    in_context(context, of_current)
}

fn in_context<T>(context: CUcontext, read: impl Fn() -> Option<T>) -> Option<T> {
    // SAFETY: the caller's context exists; the previous one is restored below.
    if unsafe { driver::cuCtxPushCurrent_v2(context) } != CUresult::SUCCESS {
        return None;
    }
    let found = read();
    pop();
    found
}

/// Returns free memory and total; a global-mode capture may forbid the query.
fn relaxed() -> Option<(Bytes, Bytes)> {
    let _unbound = captures::any_global().then(RelaxedCapture::begin);
    free_and_total()
}

/// Measures free memory before and after a context is created, from the same source.
pub(crate) struct Gauge<'a> {
    tenant: &'a Tenant,
    gpu: DeviceIndex,
    device: DriverOrdinal,
    measure: Cell<Measure>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    Nothing,
    /// The current context, before and after.
    Current,
    Nvml,
    /// The new context after; before, this value: the monitor's, or by the accounting.
    Made(Bytes),
}

impl<'a> Gauge<'a> {
    pub(crate) fn new(tenant: &'a Tenant, gpu: DeviceIndex, device: DriverOrdinal) -> Self {
        Self { tenant, gpu, device, measure: Cell::new(Measure::Nothing) }
    }

    pub(crate) fn before(&self) -> Option<Bytes> {
        let by = |measure, free| {
            self.measure.set(measure);
            free
        };
        let made = |free: Bytes| by(Measure::Made(free), Some(free));
        if current_device() == Ok(self.device) {
            return by(Measure::Current, of_current());
        }
        if nvml_uses::is_started() {
            return by(Measure::Nvml, gpus::nvml_free(self.device));
        }
        let is_known = self.tenant.contexts().size_is_known(self.gpu);
        if let Some(free) = self.tenant.view().monitor_free(self.gpu) {
            return if is_known { None } else { made(free) };
        }
        if self.tenant.contexts().size_is_agreed(self.gpu) {
            return None;
        }
        if nvml_uses::start() {
            return by(Measure::Nvml, gpus::nvml_free(self.device));
        }
        if is_known { None } else { self.unaccounted().and_then(made) }
    }

    pub(crate) fn after(&self, made: CUcontext) -> Option<Bytes> {
        match self.measure.get() {
            Measure::Nothing => None,
            Measure::Current => of_current(),
            Measure::Nvml => gpus::nvml_free(self.device),
            Measure::Made(before) => self.comparable(before, made),
        }
    }

    /// Returns the free memory to compare with that of the GPU before. A smaller total than the
    /// GPU's is that of a limited control group, which has the container's memory alone.
    fn comparable(&self, before: Bytes, made: CUcontext) -> Option<Bytes> {
        let (free, total) = in_context(made, relaxed)?;
        if total >= gpus::driver_total(self.device)? {
            return Some(free);
        }
        let accounted = self.tenant.view().usage(self.gpu).total();
        Some(before - ((total - free) - accounted))
    }

    /// Returns an upper bound: what would be free if only this container used the device.
    fn unaccounted(&self) -> Option<Bytes> {
        let total = gpus::driver_total(self.device)?;
        Some(total - self.tenant.view().usage(self.gpu).total())
    }
}
