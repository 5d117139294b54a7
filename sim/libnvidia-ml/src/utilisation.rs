//! Utilisation of the GPUs: delayed, coarse, and slow to query.
//!
//! Figures are integers for whole windows of 1/6 s (`CGPU_SIM_WINDOW_MS`), and stay the same until
//! the next window ends. Timestamps are microseconds since the epoch.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use cgpu_abi::nvml_types::*;
use cgpu_sim::machine::ProcessSample;
use cgpu_sim::{Machine, Nanos};

use crate::answer::{
    ARGUMENT_VERSION_MISMATCH, Answer, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND,
};
use crate::argument::{Out, Received};
use crate::board;
use crate::device::find;
use crate::processes::put_list;

pub(crate) fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    utilization: Out<nvmlUtilization_t>,
) -> Answer {
    let gpu = find(device)?.whole()?.sampled();
    let rates = gpu.machine.utilisation(gpu.index)?;
    utilization.put(nvmlUtilization_t { gpu: rates.gpu, memory: rates.memory })?;
    Ok(())
}

/// Wall-clock time at device time 0, in microseconds. Read once, so that a timestamp never changes.
static EPOCH: LazyLock<u64> = LazyLock::new(|| {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut since_boot = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut since_boot) };
    let since_boot =
        since_boot.tv_sec.unsigned_abs() * 1_000_000 + since_boot.tv_nsec.unsigned_abs() / 1_000;
    u64::try_from(wall.as_micros()).unwrap_or(u64::MAX).saturating_sub(since_boot)
});

pub(crate) fn stamp(machine: &Machine, at: Nanos) -> c_ulonglong {
    let real = u128::from(at.0) * u128::from(machine.time_scale_milli()) / 1_000_000;
    *EPOCH + u64::try_from(real).unwrap_or(u64::MAX)
}

/// Converts a timestamp to a device time that is not before the sample with that timestamp.
fn unstamp(machine: &Machine, time_stamp: c_ulonglong) -> Nanos {
    let real = u128::from(time_stamp.saturating_sub(*EPOCH)) + u128::from(time_stamp > *EPOCH);
    Nanos(
        u64::try_from(real * 1_000_000 / u128::from(machine.time_scale_milli()))
            .unwrap_or(u64::MAX),
    )
}

/// Returns the samples of all processes after a timestamp, as `describe` converts them.
fn samples<T>(
    device: nvmlDevice_t,
    since: c_ulonglong,
    describe: impl Fn(ProcessSample, c_ulonglong) -> T,
) -> Answer<Vec<T>> {
    let gpu = find(device)?.whole()?.sampled();
    let samples = gpu.machine.process_utilisation(gpu.index, unstamp(&gpu.machine, since))?;
    if samples.is_empty() {
        return Err(NOT_FOUND);
    }
    let described =
        samples.into_iter().map(|sample| describe(sample, stamp(&gpu.machine, sample.at)));
    Ok(described.collect())
}

pub(crate) fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    utilization: Out<nvmlProcessUtilizationSample_t>,
    process_samples_count: Out<c_uint>,
    last_seen_time_stamp: c_ulonglong,
) -> Answer {
    process_samples_count.required()?;
    let describe = |sample: ProcessSample, time_stamp| nvmlProcessUtilizationSample_t {
        pid: sample.pid,
        time_stamp,
        sm_util: sample.percent,
        mem_util: sample.percent / 3,
        enc_util: 0,
        dec_util: 0,
    };
    let samples = samples(device, last_seen_time_stamp, describe);
    if samples == Err(NOT_FOUND) {
        process_samples_count.put(0)?;
    }
    if utilization.is_null() {
        process_samples_count.put(count(&samples?))?;
        return Err(INSUFFICIENT_SIZE);
    }
    put_list(samples?, process_samples_count, utilization)
}

fn count<T>(list: &[T]) -> c_uint {
    c_uint::try_from(list.len()).unwrap_or(c_uint::MAX)
}

pub(crate) fn nvmlDeviceGetProcessesUtilizationInfo(
    device: nvmlDevice_t,
    info: Out<nvmlProcessesUtilizationInfo_t>,
) -> Answer {
    let version = info.start_as::<c_uint>().read()?;
    if version != NVML_PROCESSES_UTILIZATION_INFO_V1 {
        return Err(ARGUMENT_VERSION_MISMATCH);
    }
    let mut requested = info.read()?;
    let describe = |sample: ProcessSample, time_stamp| nvmlProcessUtilizationInfo_v1_t {
        time_stamp,
        pid: sample.pid,
        sm_util: sample.percent,
        mem_util: sample.percent / 3,
        ..Default::default()
    };
    let samples = samples(device, requested.last_seen_time_stamp, describe)?;
    let capacity = requested.process_samples_count;
    requested.process_samples_count = count(&samples);
    info.put(requested)?;
    if requested.proc_util_array.is_null() || requested.process_samples_count > capacity {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller's struct gives the space, and no more samples than that are written.
    let to = unsafe { Out::received(requested.proc_util_array) };
    to.put_all(samples, capacity as usize)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetSamples(
    device: nvmlDevice_t,
    kind: nvmlSamplingType_t,
    last_seen_time_stamp: c_ulonglong,
    sample_val_type: Out<nvmlValueType_t>,
    sample_count: Out<c_uint>,
    samples: Out<nvmlSample_t>,
) -> Answer {
    let gpu = find(device)?.whole()?.sampled();
    let (sample_val_type, sample_count) = (sample_val_type.required()?, sample_count.required()?);
    let value = |percent: u32| match kind {
        NVML_TOTAL_POWER_SAMPLES => Ok(board::milliwatts(&gpu, percent)),
        NVML_GPU_UTILIZATION_SAMPLES => Ok(percent),
        NVML_MEMORY_UTILIZATION_SAMPLES => Ok(percent / 3),
        NVML_ENC_UTILIZATION_SAMPLES | NVML_DEC_UTILIZATION_SAMPLES => Ok(0),
        NVML_PROCESSOR_CLK_SAMPLES => Ok(gpu.spec().model.core_mhz),
        NVML_MEMORY_CLK_SAMPLES => Ok(gpu.spec().model.memory_mhz),
        _ => Err(INVALID_ARGUMENT),
    };
    let windows =
        gpu.machine.gpu_utilisation(gpu.index, unstamp(&gpu.machine, last_seen_time_stamp))?;
    let sample = |window: cgpu_sim::machine::GpuSample| {
        let sample_value = nvmlValue_t(value(window.percent)?.into());
        Ok(nvmlSample_t { time_stamp: stamp(&gpu.machine, window.at), sample_value })
    };
    let list = windows.into_iter().map(sample).collect::<Answer<Vec<_>>>()?;
    sample_val_type.put(NVML_VALUE_TYPE_UNSIGNED_INT)?;
    if list.is_empty() {
        return Err(NOT_FOUND);
    }
    if samples.is_null() {
        sample_count.put(count(&list))?;
        return Ok(());
    }
    // The newest samples, as many as there is space for.
    let capacity = sample_count.read()? as usize;
    let newest: Vec<_> = list[list.len() - capacity.min(list.len())..].to_vec();
    sample_count.put(count(&newest))?;
    samples.put_all(newest, capacity)?;
    Ok(())
}
