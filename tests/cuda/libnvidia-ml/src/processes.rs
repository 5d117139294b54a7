//! Who is on the cards, and how busy they keep them.

use std::time::{SystemTime, UNIX_EPOCH};

use cgpu_abi::nvml_types::*;
use cgpu_sim::machine::ProcessUse;
use cgpu_sim::{Machine, Nanos};

use crate::answer::{Answer, INSUFFICIENT_SIZE, NOT_FOUND};
use crate::argument::Out;
use crate::device::find;

/// No instance of a partitioned card.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// Hands out a list in two calls: the first asks for its length, the second brings room for it.
fn put_list<T>(list: Vec<T>, count: Out<c_uint>, to: Out<T>) -> Answer {
    let room = count.read()? as usize;
    let length = list.len();
    count.put(c_uint::try_from(length).unwrap_or(c_uint::MAX))?;
    if length > room {
        return Err(INSUFFICIENT_SIZE);
    }
    to.put_all(list, length)?;
    Ok(())
}

fn list<T>(
    device: nvmlDevice_t,
    info_count: Out<c_uint>,
    infos: Out<T>,
    describe: impl Fn(ProcessUse) -> T,
) -> Answer {
    let card = find(device)?;
    info_count.required()?;
    let processes = card.machine.processes(card.index)?;
    put_list(processes.into_iter().map(describe).collect(), info_count, infos)
}

fn nobody(device: nvmlDevice_t, info_count: Out<c_uint>) -> Answer {
    find(device)?;
    info_count.put(0)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetComputeRunningProcesses(
    device: nvmlDevice_t,
    info_count: Out<c_uint>,
    infos: Out<nvmlProcessInfo_v1_t>,
) -> Answer {
    list(device, info_count, infos, |process| nvmlProcessInfo_v1_t {
        pid: process.pid,
        used_gpu_memory: process.memory.0,
    })
}

pub(crate) fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: nvmlDevice_t,
    info_count: Out<c_uint>,
    infos: Out<nvmlProcessInfo_v2_t>,
) -> Answer {
    list(device, info_count, infos, |process| nvmlProcessInfo_v2_t {
        pid: process.pid,
        used_gpu_memory: process.memory.0,
        gpu_instance_id: NO_INSTANCE,
        compute_instance_id: NO_INSTANCE,
    })
}
pub(crate) use nvmlDeviceGetComputeRunningProcesses_v2 as nvmlDeviceGetComputeRunningProcesses_v3;

/// Makes the functions that list processes of a kind that is not played.
macro_rules! nobody {
    ($($symbol:ident: $type:ty;)*) => {$(
        pub(crate) fn $symbol(device: nvmlDevice_t, info_count: Out<c_uint>, _infos: Out<$type>) -> Answer {
            nobody(device, info_count)
        }
    )*};
}

nobody! {
    nvmlDeviceGetGraphicsRunningProcesses: nvmlProcessInfo_v1_t;
    nvmlDeviceGetGraphicsRunningProcesses_v2: nvmlProcessInfo_v2_t;
    nvmlDeviceGetGraphicsRunningProcesses_v3: nvmlProcessInfo_t;
    nvmlDeviceGetMPSComputeRunningProcesses: nvmlProcessInfo_v1_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: nvmlProcessInfo_v2_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: nvmlProcessInfo_t;
}

pub(crate) fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    utilization: Out<nvmlUtilization_t>,
) -> Answer {
    let card = find(device)?;
    let rates = card.machine.utilisation(card.index)?;
    utilization.put(nvmlUtilization_t { gpu: rates.gpu, memory: rates.memory })?;
    Ok(())
}

/// Microseconds since the epoch at device time 0.
fn epoch(machine: &Machine) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX).saturating_sub(machine.now().0 / 1000)
}

pub(crate) fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    utilization: Out<nvmlProcessUtilizationSample_t>,
    process_samples_count: Out<c_uint>,
    last_seen_time_stamp: c_ulonglong,
) -> Answer {
    let card = find(device)?;
    process_samples_count.required()?;
    let epoch = epoch(&card.machine);
    let since = Nanos::from_micros(last_seen_time_stamp.saturating_sub(epoch));
    let samples = card.machine.process_utilisation(card.index, since)?;
    if samples.is_empty() {
        process_samples_count.put(0)?;
        return Err(NOT_FOUND);
    }
    let describe = |sample: cgpu_sim::machine::ProcessSample| nvmlProcessUtilizationSample_t {
        pid: sample.pid,
        time_stamp: epoch + sample.at.0 / 1000,
        sm_util: sample.percent,
        mem_util: sample.percent / 3,
        enc_util: 0,
        dec_util: 0,
    };
    put_list(samples.into_iter().map(describe).collect(), process_samples_count, utilization)
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;
    use crate::answer::INVALID_ARGUMENT;
    use crate::argument::Received;

    #[test]
    fn lists_come_in_two_calls() {
        let mut count = 0;
        let mut room = [0_u32; 4];
        // SAFETY: a pointer to a living local.
        let counter = unsafe { Out::received(&raw mut count) };
        // SAFETY: a pointer to a living local.
        let to = unsafe { Out::received(room.as_mut_ptr()) };
        // SAFETY: NULL is allowed.
        let nowhere = unsafe { Out::received(ptr::null_mut::<u32>()) };
        assert_eq!(put_list(vec![7, 8], counter, nowhere), Err(INSUFFICIENT_SIZE));
        assert_eq!(counter.read(), Ok(2));
        counter.put(4).unwrap();
        assert_eq!(put_list(vec![7, 8], counter, to), Ok(()));
        assert_eq!(counter.read(), Ok(2));
        assert_eq!(room, [7, 8, 0, 0]);
        assert_eq!(put_list(vec![7, 8], counter, nowhere), Err(INVALID_ARGUMENT));
        assert_eq!(put_list(Vec::<u32>::new(), counter, nowhere), Ok(()));
        assert_eq!(counter.read(), Ok(0));
    }
}
