//! Processes on the GPUs.

use cgpu_abi::nvml_types::*;
use cgpu_sim::machine::ProcessUse;

use crate::answer::{ARGUMENT_VERSION_MISMATCH, Answer, INSUFFICIENT_SIZE, INVALID_ARGUMENT};
use crate::argument::{Out, Received};
use crate::device::{Gpu, find};
use crate::partition;

const NO_INSTANCE: c_uint = c_uint::MAX;

/// Writes a list by NVML's protocol of two calls: the first one gets the length, the second one
/// provides space for it.
pub(crate) fn put_list<T>(list: Vec<T>, count: Out<c_uint>, to: Out<T>) -> Answer {
    let capacity = count.read()? as usize;
    let length = list.len();
    count.put(c_uint::try_from(length).unwrap_or(c_uint::MAX))?;
    if length > capacity {
        return Err(INSUFFICIENT_SIZE);
    }
    to.put_all(list, length)?;
    Ok(())
}

/// A process, and the instance that it runs on.
struct Resident {
    process: ProcessUse,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

fn residents(gpu: &Gpu) -> Answer<Vec<Resident>> {
    let (gpu_instance, compute_instance) =
        gpu.instance().map_or((NO_INSTANCE, NO_INSTANCE), partition::ids);
    let processes = gpu.machine.processes(gpu.index)?.into_iter();
    let mut all: Vec<_> =
        processes.map(|process| Resident { process, gpu_instance, compute_instance }).collect();
    for (instance, _) in gpu.instances() {
        all.extend(residents(&instance)?);
    }
    Ok(all)
}

fn list<T>(
    device: nvmlDevice_t,
    info_count: Out<c_uint>,
    infos: Out<T>,
    describe: impl Fn(Resident) -> T,
) -> Answer {
    let gpu = find(device)?.query();
    info_count.required()?;
    put_list(residents(&gpu)?.into_iter().map(describe).collect(), info_count, infos)
}

/// Lists processes of one kind, or of all kinds. Only compute processes exist here.
pub(crate) fn nvmlDeviceGetRunningProcessDetailList(
    device: nvmlDevice_t,
    plist: Out<nvmlProcessDetailList_t>,
) -> Answer {
    let gpu = find(device)?.query();
    // A struct of another version may be shorter.
    if plist.start_as::<c_uint>().read()? != NVML_PROCESS_DETAIL_LIST_V1 {
        return Err(ARGUMENT_VERSION_MISMATCH);
    }
    let mut requested = plist.read()?;
    let all = match requested.mode {
        NVML_PROCESS_MODE_COMPUTE | NVML_PROCESS_MODE_ALL => residents(&gpu)?,
        NVML_PROCESS_MODE_GRAPHICS | NVML_PROCESS_MODE_MPS => Vec::new(),
        _ => return Err(INVALID_ARGUMENT),
    };
    let capacity = requested.num_proc_array_entries as usize;
    let length = all.len();
    requested.num_proc_array_entries = c_uint::try_from(length).unwrap_or(c_uint::MAX);
    plist.put(requested)?;
    if length > capacity {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: NULL, or space for as many as the caller says, which were checked to be enough.
    let to: Out<nvmlProcessDetail_v1_t> = unsafe { Out::received(requested.proc_array) };
    let details = all.into_iter().map(|resident| nvmlProcessDetail_v1_t {
        pid: resident.process.pid,
        used_gpu_memory: resident.process.memory.0,
        gpu_instance_id: resident.gpu_instance,
        compute_instance_id: resident.compute_instance,
        used_gpu_cc_protected_memory: 0,
    });
    to.put_all(details, length)?;
    Ok(())
}

fn no_processes(device: nvmlDevice_t, info_count: Out<c_uint>) -> Answer {
    find(device)?;
    info_count.put(0)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetComputeRunningProcesses(
    device: nvmlDevice_t,
    info_count: Out<c_uint>,
    infos: Out<nvmlProcessInfo_v1_t>,
) -> Answer {
    list(device, info_count, infos, |resident| nvmlProcessInfo_v1_t {
        pid: resident.process.pid,
        used_gpu_memory: resident.process.memory.0,
    })
}

pub(crate) fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: nvmlDevice_t,
    info_count: Out<c_uint>,
    infos: Out<nvmlProcessInfo_v2_t>,
) -> Answer {
    list(device, info_count, infos, |resident| nvmlProcessInfo_v2_t {
        pid: resident.process.pid,
        used_gpu_memory: resident.process.memory.0,
        gpu_instance_id: resident.gpu_instance,
        compute_instance_id: resident.compute_instance,
    })
}
pub(crate) use nvmlDeviceGetComputeRunningProcesses_v2 as nvmlDeviceGetComputeRunningProcesses_v3;

/// Defines the functions that list processes of a kind that is not simulated.
macro_rules! no_processes {
    ($($symbol:ident: $type:ty;)*) => {$(
        pub(crate) fn $symbol(
            device: nvmlDevice_t,
            info_count: Out<c_uint>,
            _infos: Out<$type>,
        ) -> Answer {
            no_processes(device, info_count)
        }
    )*};
}

no_processes! {
    nvmlDeviceGetGraphicsRunningProcesses: nvmlProcessInfo_v1_t;
    nvmlDeviceGetGraphicsRunningProcesses_v2: nvmlProcessInfo_v2_t;
    nvmlDeviceGetGraphicsRunningProcesses_v3: nvmlProcessInfo_t;
    nvmlDeviceGetMPSComputeRunningProcesses: nvmlProcessInfo_v1_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: nvmlProcessInfo_v2_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: nvmlProcessInfo_t;
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    #[test]
    fn lists_are_returned_in_two_calls() {
        let mut count = 0;
        let mut buffer = [0_u32; 4];
        // SAFETY: a pointer to a live local.
        let counter = unsafe { Out::received(&raw mut count) };
        // SAFETY: a pointer to a live local.
        let to = unsafe { Out::received(buffer.as_mut_ptr()) };
        // SAFETY: NULL is allowed.
        let nowhere = unsafe { Out::received(ptr::null_mut::<u32>()) };
        assert_eq!(put_list(vec![7, 8], counter, nowhere), Err(INSUFFICIENT_SIZE));
        assert_eq!(counter.read(), Ok(2));
        counter.put(4).unwrap();
        assert_eq!(put_list(vec![7, 8], counter, to), Ok(()));
        assert_eq!(counter.read(), Ok(2));
        assert_eq!(buffer, [7, 8, 0, 0]);
        assert_eq!(put_list(vec![7, 8], counter, nowhere), Err(INVALID_ARGUMENT));
        assert_eq!(put_list(Vec::<u32>::new(), counter, nowhere), Ok(()));
        assert_eq!(counter.read(), Ok(0));
    }
}
