//! Clocks, power, temperature, links. The figures are the model's; power and temperature follow the
//! utilisation.

use cgpu_abi::nvml_types::*;

use crate::answer::{ARGUMENT_VERSION_MISMATCH, Answer, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::argument::Out;
use crate::device::{Gpu, find};

/// Defines functions that return one value of a GPU.
macro_rules! values {
    ($($symbol:ident(
        $($before:ident: $early:ty,)* => $type:ty $(, $after:ident: $late:ty)*
    ) |$gpu:ident| $value:expr;)*) => {$(
        pub(crate) fn $symbol(
            device: nvmlDevice_t,
            $($before: $early,)*
            to: Out<$type>
            $(, $after: $late)*
        ) -> Answer {
            let $gpu = find(device)?;
            $(let _ = $before;)*
            $(let _ = $after;)*
            let value: Answer<$type> = $value;
            to.put(value?)?;
            Ok(())
        }
    )*};
}

fn clock(gpu: &Gpu, kind: nvmlClockType_t) -> Answer<c_uint> {
    let model = gpu.spec().model;
    match kind {
        NVML_CLOCK_GRAPHICS | NVML_CLOCK_SM | NVML_CLOCK_VIDEO => Ok(model.core_mhz),
        NVML_CLOCK_MEM => Ok(model.memory_mhz),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Returns the power: a tenth of the limit when idle, all of it when busy.
pub(crate) fn milliwatts(gpu: &Gpu, busy_percent: u32) -> c_uint {
    gpu.spec().model.watts * (100 + 9 * busy_percent.min(100))
}

fn power(gpu: Gpu) -> Answer<c_uint> {
    let gpu = gpu.sampled();
    Ok(milliwatts(&gpu, gpu.machine.utilisation(gpu.index)?.gpu))
}

/// Returns the temperature: 30 degrees when idle, 70 when busy.
pub(crate) fn degrees(gpu: &Gpu) -> Answer<c_uint> {
    Ok(30 + gpu.machine.utilisation(gpu.index)?.gpu.min(100) * 2 / 5)
}

/// Returns the power limit in milliwatts.
pub(crate) fn limit(gpu: &Gpu) -> c_uint {
    gpu.spec().model.watts * 1000
}

values! {
    nvmlDeviceGetClockInfo(kind: nvmlClockType_t, => c_uint) |gpu| clock(&gpu, kind);
    nvmlDeviceGetMaxClockInfo(kind: nvmlClockType_t, => c_uint) |gpu| clock(&gpu, kind);
    nvmlDeviceGetApplicationsClock(kind: nvmlClockType_t, => c_uint) |gpu| clock(&gpu, kind);
    nvmlDeviceGetDefaultApplicationsClock(kind: nvmlClockType_t, => c_uint) |gpu| clock(&gpu, kind);
    nvmlDeviceGetClock(kind: nvmlClockType_t, clock_id: nvmlClockId_t, => c_uint) |gpu|
        clock(&gpu, kind);
    nvmlDeviceGetMemoryBusWidth(=> c_uint) |gpu| Ok(gpu.spec().model.bus_bits);

    nvmlDeviceGetPowerUsage(=> c_uint) |gpu| power(gpu);
    nvmlDeviceGetEnforcedPowerLimit(=> c_uint) |gpu| Ok(limit(&gpu));
    nvmlDeviceGetPowerManagementLimit(=> c_uint) |gpu| Ok(limit(&gpu));
    nvmlDeviceGetPowerManagementDefaultLimit(=> c_uint) |gpu| Ok(limit(&gpu));
    nvmlDeviceGetPowerManagementMode(=> nvmlEnableState_t) |_gpu| Ok(NVML_FEATURE_ENABLED);
    nvmlDeviceGetPowerState(=> nvmlPstates_t) |_gpu| Ok(NVML_PSTATE_0);
    nvmlDeviceGetPerformanceState(=> nvmlPstates_t) |_gpu| Ok(NVML_PSTATE_0);
    nvmlDeviceGetPersistenceMode(=> nvmlEnableState_t) |gpu| {
        let keeps = gpu.machine.figures().persistence != 0;
        Ok(if keeps { NVML_FEATURE_ENABLED } else { NVML_FEATURE_DISABLED })
    };
    nvmlDeviceGetCurrentClocksEventReasons(=> c_ulonglong) |_gpu| Ok(0);
    nvmlDeviceGetCurrentClocksThrottleReasons(=> c_ulonglong) |_gpu| Ok(0);
    nvmlDeviceGetSupportedClocksThrottleReasons(=> c_ulonglong) |_gpu| Ok(0x1ff);

    nvmlDeviceGetTemperature(sensor: nvmlTemperatureSensors_t, => c_uint) |gpu|
        degrees(&gpu.query());
    nvmlDeviceGetTemperatureThreshold(threshold: nvmlTemperatureThresholds_t, => c_uint) |_gpu| {
        match threshold {
            NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => Ok(98),
            NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => Ok(95),
            NVML_TEMPERATURE_THRESHOLD_MEM_MAX | NVML_TEMPERATURE_THRESHOLD_GPU_MAX => Ok(88),
            _ => Err(NOT_SUPPORTED),
        }
    };

    nvmlDeviceGetCurrPcieLinkGeneration(=> c_uint) |gpu| Ok(generation(&gpu));
    nvmlDeviceGetMaxPcieLinkGeneration(=> c_uint) |gpu| Ok(generation(&gpu));
    nvmlDeviceGetCurrPcieLinkWidth(=> c_uint) |_gpu| Ok(16);
    nvmlDeviceGetMaxPcieLinkWidth(=> c_uint) |_gpu| Ok(16);
    nvmlDeviceGetPcieThroughput(counter: nvmlPcieUtilCounter_t, => c_uint) |_gpu| Ok(0);
    nvmlDeviceGetMultiGpuBoard(=> c_uint) |_gpu| Ok(0);

    nvmlDeviceGetComputeMode(=> nvmlComputeMode_t) |_gpu| Ok(NVML_COMPUTEMODE_DEFAULT);
    nvmlDeviceGetDisplayActive(=> nvmlEnableState_t) |_gpu| Ok(NVML_FEATURE_DISABLED);
    nvmlDeviceGetDisplayMode(=> nvmlEnableState_t) |_gpu| Ok(NVML_FEATURE_DISABLED);
    nvmlDeviceGetDefaultEccMode(=> nvmlEnableState_t) |_gpu| Ok(NVML_FEATURE_ENABLED);

    // Server GPUs have no fan of their own. Links between GPUs and energy meters are not simulated.
    nvmlDeviceGetNumFans(=> c_uint) |_gpu| Ok(0);
    nvmlDeviceGetFanSpeed(=> c_uint) |_gpu| Err(NOT_SUPPORTED);
    nvmlDeviceGetFanSpeed_v2(fan: c_uint, => c_uint) |_gpu| Err(NOT_SUPPORTED);
    nvmlDeviceGetNvLinkState(link: c_uint, => nvmlEnableState_t) |_gpu| Err(NOT_SUPPORTED);
    nvmlDeviceGetTotalEnergyConsumption(=> c_ulonglong) |_gpu| Err(NOT_SUPPORTED);
}

/// Returns the newest PCIe generation of the architecture.
fn generation(gpu: &Gpu) -> c_uint {
    match gpu.spec().model.capability.0 {
        6 | 7 => 3,
        8 => 4,
        _ => 5,
    }
}

pub(crate) fn nvmlDeviceGetTemperatureV(
    device: nvmlDevice_t,
    temperature: Out<nvmlTemperature_t>,
) -> Answer {
    let gpu = find(device)?.query();
    let version = temperature.start_as::<c_uint>().read()?;
    if version != NVML_TEMPERATURE_V1 {
        return Err(ARGUMENT_VERSION_MISMATCH);
    }
    let requested = temperature.read()?;
    if requested.sensor_type != NVML_TEMPERATURE_GPU {
        return Err(INVALID_ARGUMENT);
    }
    temperature
        .put(nvmlTemperature_t { temperature: degrees(&gpu)?.cast_signed(), ..requested })?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: nvmlDevice_t,
    min_limit: Out<c_uint>,
    max_limit: Out<c_uint>,
) -> Answer {
    let maximum = limit(&find(device)?);
    min_limit.put(maximum / 2)?;
    max_limit.put(maximum)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetEccMode(
    device: nvmlDevice_t,
    current: Out<nvmlEnableState_t>,
    pending: Out<nvmlEnableState_t>,
) -> Answer {
    find(device)?;
    current.put(NVML_FEATURE_ENABLED)?;
    pending.put(NVML_FEATURE_ENABLED)?;
    Ok(())
}

/// Returns 0: video is not simulated.
pub(crate) fn nvmlDeviceGetEncoderUtilization(
    device: nvmlDevice_t,
    utilization: Out<c_uint>,
    sampling_period_us: Out<c_uint>,
) -> Answer {
    let gpu = find(device)?;
    let window = gpu.machine.figures().window.0 / 1000;
    utilization.put(0)?;
    sampling_period_us.put(c_uint::try_from(window).unwrap_or(c_uint::MAX))?;
    Ok(())
}
pub(crate) use nvmlDeviceGetEncoderUtilization as nvmlDeviceGetDecoderUtilization;
