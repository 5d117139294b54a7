//! The GPUs: their number, identity and properties.

use std::sync::Arc;

use cgpu_abi::nvml_types::*;
use cgpu_sim::instance::{Instance, Part};
use cgpu_sim::{GpuSpec, Machine};

use crate::answer::{Answer, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::argument::{In, Out};
use crate::library::{machine, put_text};

/// A handle is a number that encodes the GPU's index.
const FIRST: usize = 0x6000_0000;
const STEP: usize = 0x100;

/// A GPU, found for one call.
pub(crate) struct Gpu {
    pub(crate) machine: Arc<Machine>,
    pub(crate) index: usize,
}

impl Gpu {
    pub(crate) fn spec(&self) -> &GpuSpec {
        &self.machine.gpus()[self.index]
    }

    /// Returns the instance, if the device is one.
    pub(crate) fn instance(&self) -> Option<Instance> {
        match self.spec().part {
            Part::Instance(instance) => Some(instance),
            Part::Whole | Part::Partitioned => None,
        }
    }

    /// Returns its MIG instances, if it is partitioned.
    pub(crate) fn instances(&self) -> Vec<(Self, Instance)> {
        let gpus = (0..self.machine.gpus().len())
            .map(|index| Self { machine: Arc::clone(&self.machine), index });
        let with_instance = gpus.filter_map(|gpu| gpu.instance().map(|instance| (gpu, instance)));
        with_instance.filter(|(_, instance)| instance.gpu == self.index).collect()
    }

    /// Fails on partitioned GPUs and on instances, for which NVML returns no utilisation.
    pub(crate) fn whole(self) -> Answer<Self> {
        if self.spec().part == Part::Whole { Ok(self) } else { Err(NOT_SUPPORTED) }
    }

    /// Spends the time that a query of changing data takes.
    pub(crate) fn query(self) -> Self {
        self.machine.spend(self.machine.figures().query);
        self
    }

    /// Spends the time that reading a buffer of samples takes.
    pub(crate) fn sampled(self) -> Self {
        self.machine.spend(self.machine.figures().sampling);
        self
    }

    /// Returns the UUID in NVML's format.
    fn uuid(&self) -> String {
        let digits: String =
            self.spec().uuid(self.index).iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        let kind = if self.instance().is_some() { "MIG" } else { "GPU" };
        format!("{kind}-{}", parts.join("-"))
    }

    /// Derives a serial number from the UUID.
    fn serial(&self) -> String {
        let uuid = self.spec().uuid(self.index);
        let number = u64::from_be_bytes([0, 0, 0, uuid[0], uuid[1], uuid[2], uuid[3], uuid[4]]);
        format!("{number:013}")
    }

    pub(crate) fn handle(&self) -> nvmlDevice_t {
        nvmlDevice_t(FIRST + self.index * STEP)
    }
}

pub(crate) fn find(device: nvmlDevice_t) -> Answer<Gpu> {
    let machine = machine()?;
    let offset =
        device.0.checked_sub(FIRST).filter(|offset| offset % STEP == 0).ok_or(INVALID_ARGUMENT)?;
    let index = offset / STEP;
    if index < machine.gpus().len() { Ok(Gpu { machine, index }) } else { Err(INVALID_ARGUMENT) }
}

/// Returns the GPUs, without instances.
fn gpus() -> Answer<Vec<Gpu>> {
    let machine = machine()?;
    let all = (0..machine.gpus().len()).map(|index| Gpu { machine: Arc::clone(&machine), index });
    Ok(all.filter(|gpu| gpu.instance().is_none()).collect())
}

/// Writes the handle of the first GPU that fits.
fn search(device: Out<nvmlDevice_t>, fits: impl Fn(&Gpu) -> bool) -> Answer {
    let gpu = gpus()?.into_iter().find(fits).ok_or(NOT_FOUND)?;
    device.put(gpu.handle())?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetCount_v2(device_count: Out<c_uint>) -> Answer {
    device_count.put(c_uint::try_from(gpus()?.len()).unwrap_or(c_uint::MAX))?;
    Ok(())
}
pub(crate) use nvmlDeviceGetCount_v2 as nvmlDeviceGetCount;

pub(crate) fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<nvmlDevice_t>) -> Answer {
    let gpus = gpus()?;
    device.put(gpus.get(index as usize).ok_or(INVALID_ARGUMENT)?.handle())?;
    Ok(())
}
pub(crate) use nvmlDeviceGetHandleByIndex_v2 as nvmlDeviceGetHandleByIndex;

pub(crate) fn nvmlDeviceGetHandleByUUID(uuid: In<c_char>, device: Out<nvmlDevice_t>) -> Answer {
    let requested = uuid.text()?;
    let all = gpus()?.into_iter().flat_map(|gpu| {
        let instances = gpu.instances().into_iter().map(|(instance, _)| instance);
        instances.chain([gpu]).collect::<Vec<_>>()
    });
    let mut fitting = all.filter(|gpu| gpu.uuid().eq_ignore_ascii_case(&requested));
    device.put(fitting.next().ok_or(NOT_FOUND)?.handle())?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetHandleBySerial(serial: In<c_char>, device: Out<nvmlDevice_t>) -> Answer {
    let requested = serial.text()?;
    search(device, |gpu| gpu.serial() == requested)
}

/// Accepts `domain:bus:device.function` in hexadecimal, with four or eight digits of the domain.
pub(crate) fn nvmlDeviceGetHandleByPciBusId_v2(
    pci_bus_id: In<c_char>,
    device: Out<nvmlDevice_t>,
) -> Answer {
    let requested = parse_pci_address(&pci_bus_id.text()?).ok_or(INVALID_ARGUMENT)?;
    search(device, |gpu| gpu.spec().pci(gpu.index) == requested)
}
pub(crate) use nvmlDeviceGetHandleByPciBusId_v2 as nvmlDeviceGetHandleByPciBusId;

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

/// Writes an instance's number on its GPU.
pub(crate) fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: Out<c_uint>) -> Answer {
    let gpu = find(device)?;
    let place = match gpu.instance() {
        Some(instance) => instance.number,
        None => {
            let before = gpus()?.iter().filter(|each| each.index < gpu.index).count();
            c_uint::try_from(before).unwrap_or(c_uint::MAX)
        }
    };
    index.put(place)?;
    Ok(())
}
pub(crate) use nvmlDeviceGetIndex as nvmlDeviceGetMinorNumber;

pub(crate) fn nvmlDeviceGetName(device: nvmlDevice_t, name: Out<c_char>, length: c_uint) -> Answer {
    put_text(name, length, &find(device)?.spec().name())
}

pub(crate) fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: Out<c_char>, length: c_uint) -> Answer {
    put_text(uuid, length, &find(device)?.uuid())
}

pub(crate) fn nvmlDeviceGetSerial(
    device: nvmlDevice_t,
    serial: Out<c_char>,
    length: c_uint,
) -> Answer {
    put_text(serial, length, &find(device)?.serial())
}

pub(crate) fn nvmlDeviceGetBoardId(device: nvmlDevice_t, board_id: Out<c_uint>) -> Answer {
    let gpu = find(device)?;
    let (domain, bus, _) = gpu.spec().pci(gpu.index);
    board_id.put(domain << 16 | bus << 8)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetVbiosVersion(
    device: nvmlDevice_t,
    version: Out<c_char>,
    length: c_uint,
) -> Answer {
    find(device)?;
    put_text(version, length, "00.00.00.00.00")
}

pub(crate) fn nvmlDeviceGetBrand(device: nvmlDevice_t, kind: Out<nvmlBrandType_t>) -> Answer {
    let tesla = find(device)?.spec().model.name.starts_with("Tesla");
    kind.put(if tesla { NVML_BRAND_TESLA } else { NVML_BRAND_NVIDIA })?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetArchitecture(
    device: nvmlDevice_t,
    arch: Out<nvmlDeviceArchitecture_t>,
) -> Answer {
    arch.put(match find(device)?.spec().model.capability {
        (6, _) => NVML_DEVICE_ARCH_PASCAL,
        (7, 0) => NVML_DEVICE_ARCH_VOLTA,
        (7, _) => NVML_DEVICE_ARCH_TURING,
        (8, 9) => NVML_DEVICE_ARCH_ADA,
        (8, _) => NVML_DEVICE_ARCH_AMPERE,
        (9, _) => NVML_DEVICE_ARCH_HOPPER,
        _ => NVML_DEVICE_ARCH_UNKNOWN,
    })?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: Out<c_int>,
    minor: Out<c_int>,
) -> Answer {
    let (high, low) = find(device)?.spec().model.capability;
    major.required()?;
    minor.put(low.cast_signed())?;
    major.put(high.cast_signed())?;
    Ok(())
}

/// Computes with the cores per multiprocessor of the programming guide, by compute capability.
pub(crate) fn nvmlDeviceGetNumGpuCores(device: nvmlDevice_t, num_cores: Out<c_uint>) -> Answer {
    let gpu = find(device)?;
    let model = gpu.spec().model;
    let cores = match model.capability {
        (6..=8, 0) | (7, _) => 64,
        _ => 128,
    };
    num_cores.put(gpu.spec().multiprocessors() * cores)?;
    Ok(())
}

/// Copies a text and its NUL into a field.
fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, byte) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([byte]);
    }
    field
}

fn pci_info(device: nvmlDevice_t) -> Answer<nvmlPciInfo_t> {
    let gpu = find(device)?;
    let (domain, bus, slot) = gpu.spec().pci(gpu.index);
    Ok(nvmlPciInfo_t {
        bus_id_legacy: field(&format!("{domain:04X}:{bus:02X}:{slot:02X}.0")),
        domain,
        bus,
        device: slot,
        pci_device_id: gpu.spec().model.pci_device,
        pci_sub_system_id: gpu.spec().model.pci_device,
        bus_id: field(&format!("{domain:08X}:{bus:02X}:{slot:02X}.0")),
    })
}

pub(crate) fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) -> Answer {
    pci.put(pci_info(device)?)?;
    Ok(())
}

/// The struct of version 2 ends before the long bus id.
#[repr(C)]
struct PciInfoOld {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_sub_system_id: c_uint,
}

pub(crate) fn nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) -> Answer {
    let nvmlPciInfo_t {
        bus_id_legacy, domain, bus, device, pci_device_id, pci_sub_system_id, ..
    } = pci_info(device)?;
    let old = PciInfoOld { bus_id_legacy, domain, bus, device, pci_device_id, pci_sub_system_id };
    pci.start_as::<PciInfoOld>().put(old)?;
    Ok(())
}

/// The first struct ends before the subsystem.
#[repr(C)]
struct PciInfoFirst {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
}

pub(crate) fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) -> Answer {
    let nvmlPciInfo_t { bus_id_legacy, domain, bus, device, pci_device_id, .. } = pci_info(device)?;
    let first = PciInfoFirst { bus_id_legacy, domain, bus, device, pci_device_id };
    pci.start_as::<PciInfoFirst>().put(first)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_parse_with_short_and_long_domains() {
        assert_eq!(parse_pci_address("0000:07:00.0"), Some((0, 7, 0)));
        assert_eq!(parse_pci_address("00000000:0A:00.0"), Some((0, 10, 0)));
        assert_eq!(parse_pci_address("GPU-1"), None);
    }

    #[test]
    fn fields_end_in_nul() {
        assert_eq!(field::<4>("abcdef"), [97, 98, 99, 0]);
        assert_eq!(field::<4>("a"), [97, 0, 0, 0]);
    }
}
