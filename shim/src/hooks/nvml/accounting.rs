//! NVML's accounting of the container's processes, if the host's root has enabled it.
//!
//! NVML also keeps exited processes, whose ids may be reused. So only processes are reported that
//! are alive here and, according to NVML, there.

use cgpu_abi::nvml_types::*;
use cgpu_memory::Bytes;

use super::{Scope, Sliced, read_list, scope, write_list};
use crate::nvml;

pub(crate) unsafe fn nvmlDeviceGetAccountingPids(
    device: nvmlDevice_t,
    count: *mut c_uint,
    pids: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the program's own call, or one with variables of ours.
    let call = |count, to| unsafe { nvml::nvmlDeviceGetAccountingPids(device, count, to) };
    let scope = scope(device);
    if count.is_null() || matches!(scope, Scope::Host) {
        return call(count, pids);
    }
    let reported = match read_list::<c_uint>(|count, to| call(count, to)) {
        Ok(reported) => reported,
        Err(answer) => return answer,
    };
    let Scope::Container(sliced) = scope else { return nvmlReturn_t::ERROR_NO_PERMISSION };
    let pid_map = sliced.pid_map();
    let alive = |nvml_pid: c_uint| {
        let read = |stats: *mut nvmlAccountingStats_t| {
            // SAFETY: the record is writable.
            unsafe { nvml::nvmlDeviceGetAccountingStats(device, nvml_pid, stats) }
        };
        nvml::get(read).is_ok_and(|stats| stats.is_running == 1)
    };
    let container_pid =
        |nvml_pid: c_uint| pid_map.container_pid(nvml_pid).filter(|_| alive(nvml_pid));
    let list: Vec<c_uint> = reported.into_iter().filter_map(container_pid).collect();
    // SAFETY: not null, so the program's count is writable and gives the length of its list.
    unsafe { write_list(&list, count, pids) }
}

pub(crate) unsafe fn nvmlDeviceGetAccountingStats(
    device: nvmlDevice_t,
    pid: c_uint,
    stats: *mut nvmlAccountingStats_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call, or one for another process with a record of ours.
    let call = |pid, to| unsafe { nvml::nvmlDeviceGetAccountingStats(device, pid, to) };
    let scope = scope(device);
    if stats.is_null() || matches!(scope, Scope::Host) {
        return call(pid, stats);
    }
    let mut reported = nvmlAccountingStats_t::default();
    let answer = match scope {
        Scope::Container(sliced) => sliced.account(pid, |nvml_pid| {
            let answer = call(nvml_pid, &raw mut reported);
            (answer, reported.is_running, &mut reported.max_memory_usage)
        }),
        _ => nvmlReturn_t::ERROR_NO_PERMISSION,
    };
    if answer == nvmlReturn_t::SUCCESS {
        // SAFETY: not null, so the program's record is writable.
        unsafe { stats.write(reported) };
    }
    answer
}

/// The same with the sums behind the percentages.
pub(crate) unsafe fn nvmlDeviceGetAccountingStats_v2(
    device: nvmlDevice_t,
    stats: *mut nvmlAccountingStats_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call, or one with a record of ours.
    let call = |to| unsafe { nvml::nvmlDeviceGetAccountingStats_v2(device, to) };
    let scope = scope(device);
    if stats.is_null() || matches!(scope, Scope::Host) {
        return call(stats);
    }
    // SAFETY: not null, so the program's record is readable.
    let mut reported = unsafe { stats.read() };
    let pid = reported.pid;
    let answer = match scope {
        Scope::Container(sliced) => sliced.account(pid, |nvml_pid| {
            reported.pid = nvml_pid;
            let answer = call(&raw mut reported);
            (answer, reported.is_running, &mut reported.max_memory_usage)
        }),
        _ => nvmlReturn_t::ERROR_NO_PERMISSION,
    };
    if answer == nvmlReturn_t::SUCCESS {
        reported.pid = pid;
        // SAFETY: not null, so the program's record is writable.
        unsafe { stats.write(reported) };
    }
    answer
}

impl Sliced {
    /// Queries by NVML's id of our process `pid`, and replaces its peak by the accounted one.
    /// `query` returns NVML's answer, whether the process is running, and a reference to its peak.
    fn account<'a>(
        &self,
        pid: c_uint,
        query: impl FnOnce(c_uint) -> (nvmlReturn_t, c_uint, &'a mut c_ulonglong),
    ) -> nvmlReturn_t {
        let Some(nvml_pid) = self.pid_map().nvml_pid(pid) else {
            return nvmlReturn_t::ERROR_NOT_FOUND;
        };
        let (answer, is_running, max_memory_usage) = query(nvml_pid);
        if answer != nvmlReturn_t::SUCCESS {
            return answer;
        }
        if is_running != 1 {
            return nvmlReturn_t::ERROR_NOT_FOUND;
        }
        if *max_memory_usage != NVML_VALUE_NOT_AVAILABLE {
            let peaks = self.members().filter(|(member, _)| member.pid == pid);
            *max_memory_usage = peaks.map(|(member, _)| member.peak).sum::<Bytes>().0;
        }
        answer
    }
}
