//! GPUs: their number, identity and properties.

use cgpu_abi::types::*;

use crate::answer::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::{In, Out};
use crate::attribute;
use crate::call::Call;
use crate::driver::count;
use crate::location::node_of;

pub(crate) fn cuDeviceGetCount(call: &Call, count: Out<c_int>) -> Answer {
    let gpus = call.driver()?.visible.count();
    count.put(c_int::try_from(gpus).unwrap_or(c_int::MAX))?;
    Ok(())
}

pub(crate) fn cuDeviceGet(call: &Call, device: Out<CUdevice>, ordinal: c_int) -> Answer {
    let driver = call.driver()?;
    let device = device.required()?;
    driver.gpu(ordinal)?;
    device.put(ordinal)?;
    Ok(())
}

pub(crate) fn cuDeviceGetName(call: &Call, name: Out<c_char>, len: c_int, dev: CUdevice) -> Answer {
    let spec = call.driver()?.spec(dev)?;
    name.put_text(&spec.name(), count(len)?)?;
    Ok(())
}

pub(crate) fn cuDeviceGetUuid_v2(call: &Call, uuid: Out<CUuuid>, dev: CUdevice) -> Answer {
    let driver = call.driver()?;
    let bytes = driver.spec(dev)?.uuid(driver.gpu(dev)?);
    uuid.put(CUuuid { bytes })?;
    Ok(())
}
pub(crate) use cuDeviceGetUuid_v2 as cuDeviceGetUuid;

/// Always fails: locally unique ids exist on Windows only.
pub(crate) fn cuDeviceGetLuid(
    call: &Call,
    _luid: Out<c_char>,
    _device_node_mask: Out<c_uint>,
    dev: CUdevice,
) -> Answer {
    call.driver()?.gpu(dev)?;
    Err(NOT_SUPPORTED)
}

pub(crate) fn cuDeviceTotalMem_v2(call: &Call, bytes: Out<usize>, dev: CUdevice) -> Answer {
    let driver = call.driver()?;
    let usable = driver.machine.memory_info(driver.gpu(dev)?)?.usable();
    bytes.put(count(usable.0)?)?;
    Ok(())
}

pub(crate) fn cuDeviceGetAttribute(
    call: &Call,
    pi: Out<c_int>,
    attrib: CUdevice_attribute,
    dev: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    let pi = pi.required()?;
    let gpu = driver.gpu(dev)?;
    pi.put(match (attrib, node_of(driver, gpu)) {
        (CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, Some(_)) => CU_DEVICE_NUMA_CONFIG_NUMA_NODE.cast_signed(),
        (CU_DEVICE_ATTRIBUTE_NUMA_ID, Some(node)) => node,
        (CU_DEVICE_ATTRIBUTE_MPS_ENABLED, _) => c_int::from(driver.machine.figures().mps != 0),
        _ => attribute::value(attrib, driver.spec(dev)?, gpu).ok_or(INVALID_VALUE)?,
    })?;
    Ok(())
}

pub(crate) fn cuDeviceComputeCapability(
    call: &Call,
    major: Out<c_int>,
    minor: Out<c_int>,
    dev: CUdevice,
) -> Answer {
    let (high, low) = call.driver()?.spec(dev)?.model.capability;
    major.required()?;
    minor.put(low.cast_signed())?;
    major.put(high.cast_signed())?;
    Ok(())
}

pub(crate) fn cuDeviceGetProperties(call: &Call, prop: Out<CUdevprop>, dev: CUdevice) -> Answer {
    let driver = call.driver()?;
    let (spec, gpu) = (driver.spec(dev)?, driver.gpu(dev)?);
    let value = |attrib| attribute::value(attrib, spec, gpu).unwrap_or(0);
    prop.put(CUdevprop {
        max_threads_per_block: value(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        max_threads_dim: [
            value(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
            value(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
            value(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
        ],
        max_grid_size: [
            value(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
            value(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
            value(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
        ],
        shared_mem_per_block: value(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        total_constant_memory: value(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        simd_width: value(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        mem_pitch: value(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        regs_per_block: value(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        clock_rate: value(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        texture_align: value(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
    })?;
    Ok(())
}

pub(crate) fn cuDeviceGetPCIBusId(
    call: &Call,
    pci_bus_id: Out<c_char>,
    len: c_int,
    dev: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    let (domain, bus, device) = driver.spec(dev)?.pci(driver.gpu(dev)?);
    pci_bus_id.put_text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0"), count(len)?)?;
    Ok(())
}

/// Accepts `domain:bus:device.function`, `domain:bus:device` and `bus:device.function`, in
/// hexadecimal.
pub(crate) fn cuDeviceGetByPCIBusId(
    call: &Call,
    dev: Out<CUdevice>,
    pci_bus_id: In<c_char>,
) -> Answer {
    let driver = call.driver()?;
    let dev = dev.required()?;
    let place = parse_pci_address(&pci_bus_id.text()?).ok_or(INVALID_VALUE)?;
    let gpus = driver.machine.gpus().iter().enumerate();
    // MIG instances share their GPU's address, and the GPU is not visible to the program.
    let mut matching = gpus.filter(|&(gpu, spec)| spec.pci(gpu) == place);
    dev.put(matching.find_map(|(gpu, _)| driver.visible.device(gpu)).ok_or(INVALID_DEVICE)?)?;
    Ok(())
}

fn parse_pci_address(text: &str) -> Option<(u32, u32, u32)> {
    let place = text.split_once('.').map_or(text, |(place, _function)| place);
    let numbers: Vec<u32> = place
        .split(':')
        .map(|part| u32::from_str_radix(part, 16))
        .collect::<Result<_, _>>()
        .ok()?;
    match numbers[..] {
        [domain, bus, device] => Some((domain, bus, device)),
        [bus, device] => Some((0, bus, device)),
        _ => None,
    }
}

pub(crate) fn cuDeviceGetTexture1DLinearMaxWidth(
    call: &Call,
    max_width_in_elements: Out<usize>,
    _format: CUarray_format,
    num_channels: c_uint,
    dev: CUdevice,
) -> Answer {
    call.driver()?.gpu(dev)?;
    if !matches!(num_channels, 1 | 2 | 4) {
        return Err(INVALID_VALUE);
    }
    max_width_in_elements.put(1 << 28)?;
    Ok(())
}

pub(crate) fn cuDeviceGetExecAffinitySupport(
    call: &Call,
    pi: Out<c_int>,
    _kind: CUexecAffinityType,
    dev: CUdevice,
) -> Answer {
    call.driver()?.gpu(dev)?;
    // An execution affinity is a part of the GPU's multiprocessors under MPS: not simulated.
    pi.put(0)?;
    Ok(())
}

pub(crate) fn cuDeviceCanAccessPeer(
    call: &Call,
    can_access_peer: Out<c_int>,
    dev: CUdevice,
    peer_dev: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    driver.gpu(dev)?;
    driver.gpu(peer_dev)?;
    can_access_peer.put(0)?;
    Ok(())
}

pub(crate) fn cuDeviceGetP2PAttribute(
    call: &Call,
    value: Out<c_int>,
    _attrib: CUdevice_P2PAttribute,
    src_device: CUdevice,
    dst_device: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    if driver.gpu(src_device)? == driver.gpu(dst_device)? {
        return Err(INVALID_DEVICE);
    }
    value.put(0)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_parse_in_all_three_forms() {
        assert_eq!(parse_pci_address("0000:07:00.0"), Some((0, 7, 0)));
        assert_eq!(parse_pci_address("00000001:1a:00"), Some((1, 26, 0)));
        assert_eq!(parse_pci_address("07:00.0"), Some((0, 7, 0)));
        assert_eq!(parse_pci_address("7"), None);
        assert_eq!(parse_pci_address("x:y:z"), None);
    }
}
