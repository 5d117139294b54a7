//! Multicast objects: a write to one goes to the memory of several GPUs. The machine represents
//! them as teams.
//!
//! They require GPUs that are connected by a switch
//! ([`GpuSpec::has_switch`](cgpu_sim::GpuSpec::has_switch)). Their handles are those of physical
//! memory: the same calls map, export, import and release them.

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::{Member, PhysicalId, Sendable};

use crate::answer::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::driver::{Driver, count};
use crate::physical::GRANULARITY;
use crate::share::sendable;

/// Recommended granularity of sizes, in bytes.
const RECOMMENDED: u64 = 512 << 20;

/// Checks the parameters of a new object, except its size.
fn check(driver: &Driver, prop: &CUmulticastObjectProp) -> Answer<Sendable> {
    let gpus = driver.machine.gpus().iter().filter(|gpu| gpu.has_switch()).count();
    if gpus == 0 {
        return Err(NOT_SUPPORTED);
    }
    let handle_types = prop.handle_types.try_into().map_err(|_| INVALID_VALUE)?;
    let sendable = sendable(handle_types, true)?;
    if prop.flags != 0 || !(1..=gpus).contains(&count(prop.num_devices)?) {
        return Err(INVALID_VALUE);
    }
    Ok(sendable)
}

fn is_aligned(number: usize) -> bool {
    (number as u64).is_multiple_of(GRANULARITY)
}

pub(crate) fn cuMulticastCreate(
    call: &Call,
    mc_handle: Out<CUmemGenericAllocationHandle>,
    prop: In<CUmulticastObjectProp>,
) -> Answer {
    let driver = call.driver()?;
    let (to, prop) = (mc_handle.required()?, prop.read()?);
    let sendable = check(driver, &prop)?;
    if prop.size == 0 || !is_aligned(prop.size) {
        return Err(INVALID_VALUE);
    }
    let capacity = Bytes(prop.size as u64);
    to.put(driver.machine.create_team(prop.num_devices.into(), capacity, sendable)?.get())?;
    Ok(())
}

pub(crate) fn cuMulticastGetGranularity(
    call: &Call,
    granularity: Out<usize>,
    prop: In<CUmulticastObjectProp>,
    option: CUmulticastGranularity_flags,
) -> Answer {
    let driver = call.driver()?;
    check(driver, &prop.read()?)?;
    granularity.put(count(match option {
        CU_MULTICAST_GRANULARITY_MINIMUM => GRANULARITY,
        CU_MULTICAST_GRANULARITY_RECOMMENDED => RECOMMENDED,
        _ => return Err(INVALID_VALUE),
    })?)?;
    Ok(())
}

pub(crate) fn cuMulticastAddDevice(
    call: &Call,
    mc_handle: CUmemGenericAllocationHandle,
    dev: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    let gpu = driver.gpu(dev)?;
    if !driver.machine.gpus()[gpu].has_switch() {
        return Err(NOT_SUPPORTED);
    }
    driver.machine.add_to_team(PhysicalId::of(mc_handle), gpu)?;
    Ok(())
}

fn bind(
    call: &Call,
    mc_handle: CUmemGenericAllocationHandle,
    dev: Option<CUdevice>,
    (mc_offset, size): (usize, usize),
    member: Member,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let team = PhysicalId::of(mc_handle);
    let info = driver.machine.team(team)?;
    let gpu = dev.map(|dev| driver.gpu(dev)).transpose()?;
    let (Member::Address(at) | Member::Handle(_, at)) = member;
    if flags != 0 || size == 0 || !is_aligned(mc_offset | size) || !at.is_multiple_of(GRANULARITY) {
        return Err(INVALID_VALUE);
    }
    if gpu.is_some_and(|gpu| info.is_complete() && !info.has(gpu)) {
        return Err(INVALID_DEVICE);
    }
    driver.machine.bind(team, (mc_offset as u64, Bytes(size as u64)), member, gpu)?;
    Ok(())
}

pub(crate) fn cuMulticastBindMem(
    call: &Call,
    mc_handle: CUmemGenericAllocationHandle,
    mc_offset: usize,
    mem_handle: CUmemGenericAllocationHandle,
    mem_offset: usize,
    size: usize,
    flags: c_ulonglong,
) -> Answer {
    let member = Member::Handle(PhysicalId::of(mem_handle), mem_offset as u64);
    bind(call, mc_handle, None, (mc_offset, size), member, flags)
}

pub(crate) fn cuMulticastBindMem_v2(
    call: &Call,
    mc_handle: CUmemGenericAllocationHandle,
    dev: CUdevice,
    mc_offset: usize,
    mem_handle: CUmemGenericAllocationHandle,
    mem_offset: usize,
    size: usize,
    flags: c_ulonglong,
) -> Answer {
    let member = Member::Handle(PhysicalId::of(mem_handle), mem_offset as u64);
    bind(call, mc_handle, Some(dev), (mc_offset, size), member, flags)
}

pub(crate) fn cuMulticastBindAddr(
    call: &Call,
    mc_handle: CUmemGenericAllocationHandle,
    mc_offset: usize,
    memptr: CUdeviceptr,
    size: usize,
    flags: c_ulonglong,
) -> Answer {
    bind(call, mc_handle, None, (mc_offset, size), Member::Address(memptr), flags)
}

pub(crate) fn cuMulticastBindAddr_v2(
    call: &Call,
    mc_handle: CUmemGenericAllocationHandle,
    dev: CUdevice,
    mc_offset: usize,
    memptr: CUdeviceptr,
    size: usize,
    flags: c_ulonglong,
) -> Answer {
    bind(call, mc_handle, Some(dev), (mc_offset, size), Member::Address(memptr), flags)
}

pub(crate) fn cuMulticastUnbind(
    call: &Call,
    mc_handle: CUmemGenericAllocationHandle,
    dev: CUdevice,
    mc_offset: usize,
    size: usize,
) -> Answer {
    let driver = call.driver()?;
    let gpu = driver.gpu(dev)?;
    if size == 0 || !is_aligned(mc_offset | size) {
        return Err(INVALID_VALUE);
    }
    let team = PhysicalId::of(mc_handle);
    if !driver.machine.team(team)?.has(gpu) {
        return Err(INVALID_DEVICE);
    }
    driver.machine.unbind(team, gpu, (mc_offset as u64, Bytes(size as u64)))?;
    Ok(())
}
