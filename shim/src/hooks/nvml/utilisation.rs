//! Utilization of a GPU by each of the container's processes, as measured by NVML.
//!
//! The GPU's own utilization (`nvmlDeviceGetUtilizationRates`, `nvmlDeviceGetSamples`) is returned
//! unchanged: it is of the shared GPU and reveals no process.

use cgpu_abi::nvml_types::*;

use super::{Scope, of_container, read_list, scope, write_list};
use crate::nvml;

pub(crate) unsafe fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    utilization: *mut nvmlProcessUtilizationSample_t,
    process_samples_count: *mut c_uint,
    last_seen_time_stamp: c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: the program's own call, or one with variables of ours.
    let call = |to, count| unsafe {
        nvml::nvmlDeviceGetProcessUtilization(device, to, count, last_seen_time_stamp)
    };
    let scope = scope(device);
    if process_samples_count.is_null() || matches!(scope, Scope::Host) {
        return call(utilization, process_samples_count);
    }
    let reported = read_list(|count, to| call(to, count));
    let list = match (reported, scope) {
        (Err(nvmlReturn_t::ERROR_NOT_FOUND), _) => Vec::new(),
        (Err(answer), _) => return answer,
        (Ok(reported), Scope::Container(sliced)) => of_container(reported, &sliced.pid_map()),
        (Ok(_), _) => return nvmlReturn_t::ERROR_NO_PERMISSION,
    };
    // SAFETY: not null, so the program's count is writable and gives the length of its list.
    unsafe { write_samples(&list, process_samples_count, utilization) }
}

/// The same with more engines, in one record.
pub(crate) unsafe fn nvmlDeviceGetProcessesUtilizationInfo(
    device: nvmlDevice_t,
    proceses_util_info: *mut nvmlProcessesUtilizationInfo_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call, or one with a record of ours.
    let call = |info| unsafe { nvml::nvmlDeviceGetProcessesUtilizationInfo(device, info) };
    let scope = scope(device);
    if proceses_util_info.is_null() || matches!(scope, Scope::Host) {
        return call(proceses_util_info);
    }
    // SAFETY: not null, and every version of the record begins with this number.
    if unsafe { proceses_util_info.cast::<c_uint>().read() } != NVML_PROCESSES_UTILIZATION_INFO_V1 {
        // An unknown version may contain ids of other containers' processes.
        return nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    // SAFETY: not null, and of the version with this layout. The program does not use it during the
    // call.
    let record = unsafe { &mut *proceses_util_info };
    let reported = read_list(|count, proc_util_array| {
        let mut info = nvmlProcessesUtilizationInfo_t {
            process_samples_count: *count,
            proc_util_array,
            ..*record
        };
        let answer = call(&raw mut info);
        *count = info.process_samples_count;
        answer
    });
    let list = match (reported, scope) {
        (Err(answer), _) => return answer,
        (Ok(reported), Scope::Container(sliced)) => of_container(reported, &sliced.pid_map()),
        (Ok(_), _) => return nvmlReturn_t::ERROR_NO_PERMISSION,
    };
    // SAFETY: the count is in the program's record and gives the length of its array.
    unsafe { write_samples(&list, &raw mut record.process_samples_count, record.proc_util_array) }
}

/// Returns samples to the program. If the list is null, only the count is written.
///
/// # Safety
///
/// As for [`write_list`].
unsafe fn write_samples<T: Copy>(list: &[T], count: *mut c_uint, to: *mut T) -> nvmlReturn_t {
    // SAFETY: guaranteed by the caller.
    let answer = unsafe { write_list(list, count, to) };
    if list.is_empty() {
        nvmlReturn_t::ERROR_NOT_FOUND
    } else if to.is_null() {
        nvmlReturn_t::ERROR_INSUFFICIENT_SIZE
    } else {
        answer
    }
}
