//! Logical endpoints: memory of one GPU or of several that is addressed by an id and an offset. The
//! machine represents them as teams.
//!
//! A program reserves ids, and creates or imports an endpoint under each. A unicast endpoint is
//! constructed at once, a multicast one as soon as all its GPUs were added. Nothing can be bound
//! before the program has queried that. Only kernels access memory through an endpoint, and
//! simulated kernels move no data.

use std::collections::BTreeMap;

use cgpu_abi::types::*;
use cgpu_sim::machine::{ExportNumber, Member, Offer, PhysicalId, Sendable};
use cgpu_sim::{Bytes, GpuSpec};

use crate::answer::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::driver::{Driver, lock};
use crate::ipc::{pack, unpack};
use crate::physical::GRANULARITY;

/// First eight bytes of an endpoint's handle.
const MAGIC: u64 = u64::from_be_bytes(*b"cgpusimE");
/// Number of ids that can be reserved at once.
const IDS: u64 = 65_536;

#[derive(Clone, Copy, Debug)]
struct Endpoint {
    team: PhysicalId,
    multicast: bool,
    imported: bool,
    exportable: bool,
    /// Whether the program has learned that it is constructed.
    ready: bool,
}

/// Reserved ids, and the endpoints created under them.
#[derive(Debug, Default)]
pub(crate) struct Endpoints(BTreeMap<CUlogicalEndpointId, Option<Endpoint>>);

impl Endpoints {
    fn reserve(&mut self, count: u64) -> Option<CUlogicalEndpointId> {
        if self.0.len() as u64 + count > IDS {
            return None;
        }
        // The first gap that is large enough; 0 is never an id.
        let mut first = 1_u64;
        for &taken in self.0.keys() {
            if u64::from(taken) >= first + count {
                break;
            }
            first = u64::from(taken) + 1;
        }
        let base = CUlogicalEndpointId::try_from(first).ok()?;
        let ids = (first..first + count).map(CUlogicalEndpointId::try_from);
        for id in ids.collect::<Result<Vec<_>, _>>().ok()? {
            self.0.insert(id, None);
        }
        Some(base)
    }

    fn vacant(&mut self, id: CUlogicalEndpointId) -> Answer<&mut Option<Endpoint>> {
        self.0.get_mut(&id).filter(|endpoint| endpoint.is_none()).ok_or(INVALID_VALUE)
    }

    fn find(&mut self, id: CUlogicalEndpointId) -> Answer<&mut Endpoint> {
        self.0.get_mut(&id).and_then(Option::as_mut).ok_or(INVALID_VALUE)
    }

    /// Returns a range of ids; fails if it exceeds the type.
    fn range(
        id: CUlogicalEndpointId,
        count: cuuint32_t,
    ) -> Answer<core::ops::Range<CUlogicalEndpointId>> {
        let end = id.checked_add(count).ok_or(INVALID_VALUE)?;
        if count == 0 { Err(INVALID_VALUE) } else { Ok(id..end) }
    }
}

pub(crate) fn supports(gpu: &GpuSpec) -> bool {
    gpu.model.capability >= (10, 0) && gpu.has_switch()
}

fn some_gpu_supports(driver: &Driver) -> Answer {
    if driver.machine.gpus().iter().any(supports) { Ok(()) } else { Err(NOT_SUPPORTED) }
}

/// Parameters of a new endpoint: its GPUs, and a unicast endpoint's owner.
struct Parameters {
    gpus: u64,
    owner: Option<usize>,
    maximum: u64,
}

fn parameters(driver: &Driver, prop: &CUlogicalEndpointProp) -> Answer<Parameters> {
    some_gpu_supports(driver)?;
    let memory = |gpu: usize| driver.machine.gpus()[gpu].usable().0 / GRANULARITY * GRANULARITY;
    let able =
        || (0..driver.machine.gpus().len()).filter(|&gpu| supports(&driver.machine.gpus()[gpu]));
    if prop.ipc_handle_types & !CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC != 0 {
        return Err(INVALID_VALUE);
    }
    match prop.flags {
        CU_LOGICAL_ENDPOINT_FLAG_NONE => {}
        CU_LOGICAL_ENDPOINT_FLAG_COUNTED_OPS => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    }
    match prop.kind {
        CU_LOGICAL_ENDPOINT_TYPE_UNICAST => {
            let gpu = driver.gpu(prop.device_or_devices.cast_signed())?;
            if !supports(&driver.machine.gpus()[gpu]) {
                return Err(NOT_SUPPORTED);
            }
            Ok(Parameters { gpus: 1, owner: Some(gpu), maximum: memory(gpu) })
        }
        CU_LOGICAL_ENDPOINT_TYPE_MULTICAST => {
            let gpus = u64::from(prop.device_or_devices);
            if !(1..=able().count() as u64).contains(&gpus) {
                return Err(INVALID_VALUE);
            }
            Ok(Parameters { gpus, owner: None, maximum: able().map(memory).min().unwrap_or(0) })
        }
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) fn cuLogicalEndpointIdReserve(
    call: &Call,
    base_le_id: Out<CUlogicalEndpointId>,
    count: cuuint32_t,
) -> Answer {
    let driver = call.driver()?;
    let to = base_le_id.required()?;
    some_gpu_supports(driver)?;
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    to.put(lock(&driver.endpoints).reserve(count.into()).ok_or(OUT_OF_MEMORY)?)?;
    Ok(())
}

/// Fails if an endpoint exists under any of the ids.
pub(crate) fn cuLogicalEndpointIdRelease(
    call: &Call,
    base_le_id: CUlogicalEndpointId,
    count: cuuint32_t,
) -> Answer {
    let driver = call.driver()?;
    let mut endpoints = lock(&driver.endpoints);
    let ids = Endpoints::range(base_le_id, count)?;
    for id in ids.clone() {
        endpoints.vacant(id)?;
    }
    for id in ids {
        endpoints.0.remove(&id);
    }
    Ok(())
}

pub(crate) fn cuLogicalEndpointCreate(
    call: &Call,
    le_id: CUlogicalEndpointId,
    prop: In<CUlogicalEndpointProp>,
) -> Answer {
    let driver = call.driver()?;
    let prop = prop.read()?;
    let Parameters { gpus, owner, maximum } = parameters(driver, &prop)?;
    if prop.size == 0 || !prop.size.is_multiple_of(GRANULARITY) || prop.size > maximum {
        return Err(INVALID_VALUE);
    }
    let mut endpoints = lock(&driver.endpoints);
    let place = endpoints.vacant(le_id)?;
    let exportable = prop.ipc_handle_types != CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_NONE;
    let sendable = Sendable { by_descriptor: false, by_number: exportable };
    let team = driver.machine.create_team(gpus, Bytes(prop.size), sendable)?;
    if let Some(gpu) = owner {
        driver.machine.add_to_team(team, gpu)?;
    }
    let multicast = owner.is_none();
    *place = Some(Endpoint { team, multicast, imported: false, exportable, ready: false });
    Ok(())
}

pub(crate) fn cuLogicalEndpointAddDevice(
    call: &Call,
    le_id: CUlogicalEndpointId,
    dev: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    let gpu = driver.gpu(dev)?;
    let endpoint = *lock(&driver.endpoints).find(le_id)?;
    if !supports(&driver.machine.gpus()[gpu]) {
        return Err(NOT_SUPPORTED);
    }
    if !endpoint.multicast {
        return Err(INVALID_VALUE);
    }
    driver.machine.add_to_team(endpoint.team, gpu)?;
    Ok(())
}

/// Unbinds what this process has bound. The endpoint ends with the last process that has it.
pub(crate) fn cuLogicalEndpointDestroy(call: &Call, le_id: CUlogicalEndpointId) -> Answer {
    let driver = call.driver()?;
    let mut endpoints = lock(&driver.endpoints);
    driver.machine.leave_team(endpoints.find(le_id)?.team)?;
    endpoints.0.insert(le_id, None);
    Ok(())
}

fn is_aligned(numbers: &[u64]) -> bool {
    numbers.iter().all(|number| number.is_multiple_of(GRANULARITY))
}

fn bind(
    call: &Call,
    le_id: CUlogicalEndpointId,
    dev: CUdevice,
    (offset, size): (u64, u64),
    member: Member,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let gpu = driver.gpu(dev)?;
    let endpoint = *lock(&driver.endpoints).find(le_id)?;
    let (Member::Address(at) | Member::Handle(_, at)) = member;
    if flags != 0 || size == 0 || !is_aligned(&[offset, size, at]) {
        return Err(INVALID_VALUE);
    }
    if !endpoint.ready || (endpoint.imported && !endpoint.multicast) {
        return Err(INVALID_VALUE);
    }
    if !driver.machine.team(endpoint.team)?.has(gpu) {
        return Err(INVALID_DEVICE);
    }
    driver.machine.bind(endpoint.team, (offset, Bytes(size)), member, Some(gpu))?;
    Ok(())
}

pub(crate) fn cuLogicalEndpointBindAddr(
    call: &Call,
    le_id: CUlogicalEndpointId,
    dev: CUdevice,
    offset: cuuint64_t,
    ptr: Out<c_void>,
    size: cuuint64_t,
    flags: c_ulonglong,
) -> Answer {
    bind(call, le_id, dev, (offset, size), Member::Address(ptr.address() as u64), flags)
}

pub(crate) fn cuLogicalEndpointBindMem(
    call: &Call,
    le_id: CUlogicalEndpointId,
    dev: CUdevice,
    offset: cuuint64_t,
    mem_handle: CUmemGenericAllocationHandle,
    mem_offset: cuuint64_t,
    size: cuuint64_t,
    flags: c_ulonglong,
) -> Answer {
    let member = Member::Handle(PhysicalId::of(mem_handle), mem_offset);
    bind(call, le_id, dev, (offset, size), member, flags)
}

pub(crate) fn cuLogicalEndpointUnbind(
    call: &Call,
    le_id: CUlogicalEndpointId,
    dev: CUdevice,
    offset: cuuint64_t,
    size: cuuint64_t,
) -> Answer {
    let driver = call.driver()?;
    let gpu = driver.gpu(dev)?;
    let endpoint = *lock(&driver.endpoints).find(le_id)?;
    if size == 0 || !is_aligned(&[offset, size]) {
        return Err(INVALID_VALUE);
    }
    if !driver.machine.team(endpoint.team)?.has(gpu) {
        return Err(INVALID_DEVICE);
    }
    driver.machine.unbind(endpoint.team, gpu, (offset, Bytes(size)))?;
    Ok(())
}

pub(crate) fn cuLogicalEndpointExport(
    call: &Call,
    handle: Out<c_void>,
    le_id: CUlogicalEndpointId,
    handle_type: CUlogicalEndpointIpcHandleType,
) -> Answer {
    let driver = call.driver()?;
    let to = handle.required()?;
    let endpoint = *lock(&driver.endpoints).find(le_id)?;
    if handle_type != CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC || !endpoint.exportable {
        return Err(INVALID_VALUE);
    }
    let ExportNumber { export, serial } = driver.machine.number_physical(endpoint.team)?;
    let offer = Offer { export, serial, offset: 0, size: Bytes::ZERO };
    to.cast::<[u8; 64]>().put(pack(MAGIC, endpoint.multicast.into(), &offer))?;
    Ok(())
}

pub(crate) fn cuLogicalEndpointImport(
    call: &Call,
    le_id: CUlogicalEndpointId,
    handle: In<c_void>,
    handle_type: CUlogicalEndpointIpcHandleType,
) -> Answer {
    let driver = call.driver()?;
    some_gpu_supports(driver)?;
    if handle_type != CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC {
        return Err(INVALID_VALUE);
    }
    let (multicast, offer) =
        unpack(MAGIC, &handle.cast::<[u8; 64]>().read()?).ok_or(INVALID_VALUE)?;
    let mut endpoints = lock(&driver.endpoints);
    let place = endpoints.vacant(le_id)?;
    let team = driver
        .machine
        .import_numbered(ExportNumber { export: offer.export, serial: offer.serial })?;
    let multicast = multicast != 0;
    *place = Some(Endpoint { team, multicast, imported: true, exportable: true, ready: false });
    Ok(())
}

pub(crate) fn cuLogicalEndpointGetLimits(
    call: &Call,
    bind_alignment: Out<cuuint64_t>,
    max_size: Out<cuuint64_t>,
    prop: In<CUlogicalEndpointProp>,
) -> Answer {
    let driver = call.driver()?;
    let (alignment, size) = (bind_alignment.required()?, max_size.required()?);
    let Parameters { maximum, .. } = parameters(driver, &prop.read()?)?;
    alignment.put(GRANULARITY)?;
    size.put(maximum)?;
    Ok(())
}

/// Writes whether all endpoints of a range are constructed.
pub(crate) fn cuLogicalEndpointQuery(
    call: &Call,
    le_id: CUlogicalEndpointId,
    count: cuuint32_t,
    query_status: Out<c_int>,
) -> Answer {
    let driver = call.driver()?;
    let to = query_status.required()?;
    let mut endpoints = lock(&driver.endpoints);
    let mut all = true;
    for id in Endpoints::range(le_id, count)? {
        let endpoint = endpoints.find(id)?;
        let constructed = driver.machine.team(endpoint.team)?.is_complete();
        endpoint.ready |= constructed;
        all &= constructed;
    }
    to.put(c_int::from(all))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_reserved_contiguously_and_reused() {
        let mut endpoints = Endpoints::default();
        assert_eq!(endpoints.reserve(3), Some(1));
        assert_eq!(endpoints.reserve(2), Some(4));
        for id in [2, 3] {
            endpoints.0.remove(&id);
        }
        assert_eq!(endpoints.reserve(3), Some(6), "the gap is too small");
        assert_eq!(endpoints.reserve(2), Some(2));
        assert_eq!(endpoints.reserve(IDS), None);
        assert_eq!(endpoints.reserve(IDS - 8), Some(9));
        assert_eq!(endpoints.reserve(1), None);
    }
}
