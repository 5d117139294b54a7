//! Events of GPUs: XID errors, which `cgpu-sim xid` injects.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cgpu_abi::nvml_types::*;

use crate::answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, TIMEOUT};
use crate::argument::{Out, Received, values};
use crate::device::{Gpu, find};
use crate::library::machine;

values!(nvmlEventSet_t, c_longlong);

/// `nvmlEventType...`
const SINGLE_BIT_ECC: c_ulonglong = 0x1;
const DOUBLE_BIT_ECC: c_ulonglong = 0x2;
const XID_CRITICAL_ERROR: c_ulonglong = 0x8;
/// Memory errors can be registered for, but are not simulated.
const SUPPORTED: c_ulonglong = SINGLE_BIT_ECC | DOUBLE_BIT_ECC | XID_CRITICAL_ERROR;

const FIRST: usize = 0x7000_0000;
/// Interval at which a wait polls the machine. It is long because monitors and device plugins wait
/// all day, and must not disturb measurements.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

static SETS: Mutex<Sets> = Mutex::new(Sets { made: 0, sets: None });

struct Sets {
    made: usize,
    sets: Option<HashMap<usize, Set>>,
}

/// The last error that was reported or is not to be, by GPU.
type Set = HashMap<usize, u64>;

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sets {
    fn get(&mut self, set: nvmlEventSet_t) -> Answer<&mut Set> {
        self.sets.get_or_insert_default().get_mut(&set.0).ok_or(INVALID_ARGUMENT)
    }
}

pub(crate) fn nvmlEventSetCreate(set: Out<nvmlEventSet_t>) -> Answer {
    machine()?;
    let set = set.required()?;
    let mut sets = sets();
    sets.made += 1;
    let handle = FIRST + sets.made;
    sets.sets.get_or_insert_default().insert(handle, Set::new());
    set.put(nvmlEventSet_t(handle))?;
    Ok(())
}

pub(crate) fn nvmlEventSetFree(set: nvmlEventSet_t) -> Answer {
    machine()?;
    sets().sets.get_or_insert_default().remove(&set.0).map(drop).ok_or(INVALID_ARGUMENT)
}

pub(crate) fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    event_types: Out<c_ulonglong>,
) -> Answer {
    find(device)?;
    event_types.put(SUPPORTED)?;
    Ok(())
}

/// Registers for errors that happen from now on.
pub(crate) fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    event_types: c_ulonglong,
    set: nvmlEventSet_t,
) -> Answer {
    let gpu = find(device)?;
    if event_types & !SUPPORTED != 0 || gpu.instance().is_some() {
        return Err(NOT_SUPPORTED);
    }
    let last = gpu.machine.xids_after(0)?.last().map_or(0, |xid| xid.number);
    let mut sets = sets();
    let set = sets.get(set)?;
    if event_types & XID_CRITICAL_ERROR != 0 {
        set.entry(gpu.index).or_insert(last);
    }
    Ok(())
}

/// Returns the next error of a GPU in the set; each is returned once.
fn next(set: nvmlEventSet_t) -> Answer<Option<(nvmlDevice_t, u64)>> {
    let machine = machine()?;
    let mut sets = sets();
    let set = sets.get(set)?;
    let Some(last) = set.values().copied().min() else { return Ok(None) };
    let xids = machine.xids_after(last)?;
    let news =
        xids.into_iter().find(|xid| set.get(&xid.gpu).is_some_and(|last| *last < xid.number));
    Ok(news.map(|xid| {
        set.insert(xid.gpu, xid.number);
        (Gpu { machine, index: xid.gpu }.handle(), xid.code)
    }))
}

fn wait(set: nvmlEventSet_t, timeout_ms: c_uint) -> Answer<nvmlEventData_t> {
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        if let Some((device, code)) = next(set)? {
            return Ok(nvmlEventData_t {
                device,
                event_type: XID_CRITICAL_ERROR,
                event_data: code,
                gpu_instance_id: c_uint::MAX,
                compute_instance_id: c_uint::MAX,
            });
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TIMEOUT);
        }
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
}

pub(crate) fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: Out<nvmlEventData_t>,
    timeout_ms: c_uint,
) -> Answer {
    let data = data.required()?;
    data.put(wait(set, timeout_ms)?)?;
    Ok(())
}

/// The first struct ends before the instances.
#[repr(C)]
struct EventDataFirst {
    device: nvmlDevice_t,
    event_type: c_ulonglong,
    event_data: c_ulonglong,
}

pub(crate) fn nvmlEventSetWait(
    set: nvmlEventSet_t,
    data: Out<nvmlEventData_t>,
    timeout_ms: c_uint,
) -> Answer {
    let data = data.required()?;
    let nvmlEventData_t { device, event_type, event_data, .. } = wait(set, timeout_ms)?;
    data.start_as::<EventDataFirst>().put(EventDataFirst { device, event_type, event_data })?;
    Ok(())
}
