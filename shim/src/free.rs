//! How much memory of a device is free, around something that takes some of it.
//!
//! | whose figure | when |
//! |---|---|
//! | the driver's (`cuMemGetInfo`) | a context of the device is current |
//! | NVML's | it is started already, or no monitor tells the same: then it is started ([`crate::nvml_uses`]) |
//! | the monitor's before, the driver's after | the first context of a container that has a monitor, whose size is not known yet |
//! | what is not accounted before, the driver's after | the same where neither can be asked: all that is in use counts as the context's |
//!
//! Nothing is measured where nothing is left to learn. With a monitor that is so from the second
//! context on: it is charged what the first one was seen to take, and the monitor's own figure for
//! each process sets it right (`docs/internals/memory.md`). Without one, when two contexts in turn took the
//! same.

use core::cell::Cell;

use cgpu_abi::types::{CUcontext, CUresult};
use cgpu_memory::{Bytes, DeviceIndex, Tenant};
use cgpu_shm::atomic::{AtomicU64, Ordering::Relaxed};

use crate::devices::DriverOrdinal;
use crate::order::RelaxedCapture;
use crate::{captures, driver, gpus, nvml_uses};

/// The current context's device, as the driver says; none: no context is current, or the driver
/// does not answer.
pub(crate) fn of_current() -> Option<Bytes> {
    // In a capture's global mode the driver may take a question amiss.
    let _unbound = captures::any_global().then(RelaxedCapture::begin);
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are writable.
    let answer = unsafe { driver::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    (answer == CUresult::SUCCESS).then_some(Bytes(free as u64))
}

/// The same, while no other thread of this process is in the middle of an allocation or a free on
/// the GPU: what these take or give back is on the GPU before or after it is accounted, and
/// would be measured as something else's. None: others are at it all the time.
pub(crate) fn of_current_at_rest(tenant: &Tenant, gpu: DeviceIndex) -> Option<Bytes> {
    /// What the process had done when it was last seen at rest.
    static AT_REST: AtomicU64 = AtomicU64::new(0);

    let look = || (tenant.view().activity(gpu), of_current());
    let mut last = look();
    if AT_REST.load(Relaxed) == last.0 {
        return last.1;
    }
    let mut same = 0;
    for _ in 0..LOOKS {
        // A thread in the middle of something that lacks a processor goes on now.
        // SAFETY: no obligations.
        unsafe { libc::sched_yield() };
        let now = look();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        if same == LOOKS_ALIKE {
            AT_REST.store(now.0, Relaxed);
            return now.1;
        }
    }
    None
}

/// How often a process is looked at that is not at rest, and how many looks must be alike.
const LOOKS: u32 = 20;
const LOOKS_ALIKE: u32 = 2;

/// The same of a context that need not be the current one.
pub(crate) fn of_context(context: CUcontext) -> Option<Bytes> {
    // SAFETY: the context is alive; whatever is current is so again below.
    if unsafe { driver::cuCtxPushCurrent_v2(context) } != CUresult::SUCCESS {
        return None;
    }
    let free = of_current();
    let mut popped = CUcontext::NULL;
    // SAFETY: the place is writable; what was pushed above is on top.
    let _ = unsafe { driver::cuCtxPopCurrent_v2(&raw mut popped) };
    free
}

/// What is free before a context is created and after, by one and the same measure.
pub(crate) struct Gauge<'a> {
    tenant: &'a Tenant,
    gpu: DeviceIndex,
    device: DriverOrdinal,
    measure: Cell<Measure>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// Nothing is measured.
    Nothing,
    /// By the current context, before and after.
    Current,
    /// By NVML.
    Nvml,
    /// By the new context, after; before, by what the monitor has told or the accounting says.
    Made,
}

impl<'a> Gauge<'a> {
    /// Of a context on `device`, which is `gpu`.
    pub(crate) fn new(tenant: &'a Tenant, gpu: DeviceIndex, device: DriverOrdinal) -> Self {
        Self { tenant, gpu, device, measure: Cell::new(Measure::Nothing) }
    }

    /// Before the context is created.
    pub(crate) fn before(&self) -> Option<Bytes> {
        let by = |measure, free| {
            self.measure.set(measure);
            free
        };
        if current_device() == Some(self.device) {
            return by(Measure::Current, of_current());
        }
        if nvml_uses::is_started() {
            return by(Measure::Nvml, gpus::nvml_free(self.device));
        }
        let is_known = self.tenant.contexts().size_is_known(self.gpu);
        if let Some(free) = self.tenant.view().monitor_free(self.gpu) {
            return if is_known { None } else { by(Measure::Made, Some(free)) };
        }
        if self.tenant.contexts().size_is_agreed(self.gpu) {
            return None;
        }
        if nvml_uses::start() {
            return by(Measure::Nvml, gpus::nvml_free(self.device));
        }
        if is_known { None } else { by(Measure::Made, self.unaccounted()) }
    }

    /// When `made` is there.
    pub(crate) fn after(&self, made: CUcontext) -> Option<Bytes> {
        match self.measure.get() {
            Measure::Nothing => None,
            Measure::Current => of_current(),
            Measure::Nvml => gpus::nvml_free(self.device),
            Measure::Made => of_context(made),
        }
    }

    /// What would be free if only this container had anything on the device: no more than
    /// that is.
    fn unaccounted(&self) -> Option<Bytes> {
        let mut total = 0;
        // SAFETY: the total is writable.
        let answer = unsafe { driver::cuDeviceTotalMem_v2(&raw mut total, self.device.0) };
        (answer == CUresult::SUCCESS)
            .then(|| Bytes(total as u64) - self.tenant.view().usage(self.gpu).total())
    }
}

fn current_device() -> Option<DriverOrdinal> {
    let mut device = DriverOrdinal::default();
    // SAFETY: the device is writable.
    let answer = unsafe { driver::cuCtxGetDevice(&raw mut device.0) };
    (answer == CUresult::SUCCESS).then_some(device)
}
