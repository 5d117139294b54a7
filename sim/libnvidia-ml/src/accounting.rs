//! Accounting statistics of processes, including those that have ended.
//!
//! Accounting is off by default. Root can enable it, for processes that begin to use the GPU later;
//! disabling it drops all records. Partitioned GPUs have none. A process of another PID namespace
//! that has ended is not listed, because its id cannot be translated any more.

use cgpu_abi::nvml_types::*;
use cgpu_sim::machine::AccountingStats;
use cgpu_sim::timeline::ACCOUNTS;

use crate::answer::{Answer, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::argument::Out;
use crate::device::{Gpu, find};
use crate::permission::require_root;
use crate::processes::put_list;
use crate::utilisation::stamp;

pub(crate) fn nvmlDeviceGetAccountingMode(
    device: nvmlDevice_t,
    mode: Out<nvmlEnableState_t>,
) -> Answer {
    let gpu = find(device)?;
    mode.put(c_uint::from(gpu.machine.accounting_mode(gpu.index)?))?;
    Ok(())
}

pub(crate) fn nvmlDeviceSetAccountingMode(device: nvmlDevice_t, mode: nvmlEnableState_t) -> Answer {
    let gpu = find(device)?.whole()?;
    let keeps = match mode {
        NVML_FEATURE_ENABLED => true,
        NVML_FEATURE_DISABLED => false,
        _ => return Err(INVALID_ARGUMENT),
    };
    require_root()?;
    gpu.machine.set_accounting_mode(gpu.index, keeps)?;
    Ok(())
}

/// Answers whether or not accounting is enabled, as real GPUs do.
pub(crate) fn nvmlDeviceGetAccountingBufferSize(
    device: nvmlDevice_t,
    buffer_size: Out<c_uint>,
) -> Answer {
    find(device)?;
    buffer_size.put(c_uint::try_from(ACCOUNTS).unwrap_or(c_uint::MAX))?;
    Ok(())
}

pub(crate) fn nvmlDeviceClearAccountingPids(device: nvmlDevice_t) -> Answer {
    let gpu = accountant(device)?;
    require_root()?;
    gpu.machine.clear_accounting(gpu.index)?;
    Ok(())
}

/// Returns the GPU; fails unless accounting is enabled.
fn accountant(device: nvmlDevice_t) -> Answer<Gpu> {
    let gpu = find(device)?.whole()?.query();
    if gpu.machine.accounting_mode(gpu.index)? { Ok(gpu) } else { Err(NOT_SUPPORTED) }
}

/// Lists each id once, even if several processes had it.
pub(crate) fn nvmlDeviceGetAccountingPids(
    device: nvmlDevice_t,
    count: Out<c_uint>,
    pids: Out<c_uint>,
) -> Answer {
    let gpu = accountant(device)?;
    count.required()?;
    let mut all: Vec<c_uint> = Vec::new();
    for record in gpu.machine.accounting_stats(gpu.index)? {
        if !all.contains(&record.pid) {
            all.push(record.pid);
        }
    }
    put_list(all, count, pids)
}

/// Returns the record of the last process with an id.
fn record_of(device: nvmlDevice_t, pid: c_uint) -> Answer<(Gpu, AccountingStats)> {
    let gpu = accountant(device)?;
    let record =
        gpu.machine.accounting_stats(gpu.index)?.into_iter().rfind(|record| record.pid == pid);
    Ok((gpu, record.ok_or(NOT_FOUND)?))
}

/// Returns the busy part of a process's lifetime, in hundredths of a percent.
fn share(record: &AccountingStats) -> u64 {
    (record.busy.0 * 10_000).checked_div(record.length.0).unwrap_or(0).min(10_000)
}

/// Returns the lifetime in milliseconds; 0 while the process runs.
fn time(record: &AccountingStats) -> u64 {
    if record.ended.is_some() { record.length.0 / 1_000_000 } else { 0 }
}

/// Returns the parts of the lifetime, in percent, in which the process computed and in which it
/// accessed memory. The model's memory utilisation is a third of the GPU's.
fn percent(record: &AccountingStats) -> (c_uint, c_uint) {
    let gpu = c_uint::try_from(share(record) / 100).unwrap_or(100);
    (gpu, gpu / 3)
}

pub(crate) fn nvmlDeviceGetAccountingStats(
    device: nvmlDevice_t,
    pid: c_uint,
    stats: Out<nvmlAccountingStats_t>,
) -> Answer {
    let stats = stats.required()?;
    let (gpu, record) = record_of(device, pid)?;
    let (gpu_utilization, memory_utilization) = percent(&record);
    stats.put(nvmlAccountingStats_t {
        gpu_utilization,
        memory_utilization,
        max_memory_usage: record.highest.0,
        time: time(&record),
        start_time: stamp(&gpu.machine, record.begun),
        is_running: c_uint::from(record.ended.is_none()),
        reserved: [0; 5],
    })?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetAccountingStats_v2(
    device: nvmlDevice_t,
    stats: Out<nvmlAccountingStats_v2_t>,
) -> Answer {
    let pid = stats.start_as::<c_uint>().read()?;
    let (gpu, record) = record_of(device, pid)?;
    let (gpu_utilization, memory_utilization) = percent(&record);
    // One sample for each window of the lifetime.
    let samples = record.length.0 / gpu.machine.figures().window.0;
    let sum_gpu_util = share(&record) * samples;
    stats.put(nvmlAccountingStats_v2_t {
        pid,
        is_running: c_uint::from(record.ended.is_none()),
        gpu_utilization,
        memory_utilization,
        max_memory_usage: record.highest.0,
        sample_count: c_uint::try_from(samples).unwrap_or(c_uint::MAX),
        sum_gpu_util,
        sum_fb_util: sum_gpu_util / 3,
        time: time(&record),
        start_time: stamp(&gpu.machine, record.begun),
    })?;
    Ok(())
}
