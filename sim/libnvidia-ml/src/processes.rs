//! Processes on the GPUs.
//!
//! Under MPS (`CGPU_SIM_MPS=1`) a process with a context is a client of the server: it is on the
//! list of MPS clients, and on the list of compute processes as well, as `nvidia-smi` shows it
//! (`M+C`). The server itself, a process of the name `nvidia-cuda-mps-server`, only computes (`C`).

use std::fs;

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

/// A list of the processes on a GPU.
type List = fn(&Gpu) -> Answer<Vec<Resident>>;

fn no_residents(_gpu: &Gpu) -> Answer<Vec<Resident>> {
    Ok(Vec::new())
}

fn mps_clients(gpu: &Gpu) -> Answer<Vec<Resident>> {
    if gpu.machine.figures().mps == 0 {
        return no_residents(gpu);
    }
    let all = residents(gpu)?.into_iter();
    Ok(all.filter(|resident| !is_mps_server(resident.process.pid)).collect())
}

/// Returns whether a process is the server of MPS. The kernel keeps 15 bytes of its name.
fn is_mps_server(pid: c_uint) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim_end() == "nvidia-cuda-mps")
}

fn list<T>(
    device: nvmlDevice_t,
    (info_count, infos): (Out<c_uint>, Out<T>),
    list: List,
    describe: impl Fn(Resident) -> T,
) -> Answer {
    let gpu = find(device)?.query();
    info_count.required()?;
    put_list(list(&gpu)?.into_iter().map(describe).collect(), info_count, infos)
}

/// Lists processes of one kind, or of all kinds.
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
        NVML_PROCESS_MODE_GRAPHICS => no_residents(&gpu)?,
        NVML_PROCESS_MODE_MPS => mps_clients(&gpu)?,
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

fn info_v1(resident: Resident) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t { pid: resident.process.pid, used_gpu_memory: resident.process.memory.0 }
}

fn info_v2(resident: Resident) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid: resident.process.pid,
        used_gpu_memory: resident.process.memory.0,
        gpu_instance_id: resident.gpu_instance,
        compute_instance_id: resident.compute_instance,
    }
}

/// Defines the functions that list processes of a kind.
macro_rules! lists {
    ($($symbol:ident: $list:ident $type:ident $describe:ident;)*) => {$(
        pub(crate) fn $symbol(
            device: nvmlDevice_t,
            info_count: Out<c_uint>,
            infos: Out<$type>,
        ) -> Answer {
            list(device, (info_count, infos), $list, $describe)
        }
    )*};
}

lists! {
    nvmlDeviceGetComputeRunningProcesses: residents nvmlProcessInfo_v1_t info_v1;
    nvmlDeviceGetComputeRunningProcesses_v2: residents nvmlProcessInfo_v2_t info_v2;
    nvmlDeviceGetComputeRunningProcesses_v3: residents nvmlProcessInfo_t info_v2;
    nvmlDeviceGetGraphicsRunningProcesses: no_residents nvmlProcessInfo_v1_t info_v1;
    nvmlDeviceGetGraphicsRunningProcesses_v2: no_residents nvmlProcessInfo_v2_t info_v2;
    nvmlDeviceGetGraphicsRunningProcesses_v3: no_residents nvmlProcessInfo_t info_v2;
    nvmlDeviceGetMPSComputeRunningProcesses: mps_clients nvmlProcessInfo_v1_t info_v1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: mps_clients nvmlProcessInfo_v2_t info_v2;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: mps_clients nvmlProcessInfo_t info_v2;
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
