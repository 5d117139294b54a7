//! The processes on a GPU: the container's, by their ids in the container, with their accounted
//! memory. The sum is the GPU's used memory, except for what exited processes have left.
//!
//! NVML has a list for each kind of process. A process of ours that NVML lists as a client of MPS
//! is in that list, and among the compute processes only if NVML lists it there, too. One with
//! graphics is also in the graphics list. [`cgpu_memory::PidMap`] maps ids.

use core::ptr;

use cgpu_abi::nvml_types::*;
use cgpu_memory::Member;

use super::{Part, Scope, Sliced, of_container, read_list, scope, write_list};
use crate::nvml;

/// Kind of use of a GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Compute,
    Graphics,
    Mps,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Compute, Kind::Graphics, Kind::Mps];

    /// Returns NVML's ids of the listed processes; empty if NVML cannot list them.
    pub(super) fn listed(self, device: nvmlDevice_t) -> Vec<c_uint> {
        // Every driver has the oldest functions.
        let list = read_list::<nvmlProcessInfo_v1_t>(|count, to| match self {
            // SAFETY: the count is writable, and the list has room for that many.
            Kind::Compute => unsafe {
                nvml::nvmlDeviceGetComputeRunningProcesses(device, count, to)
            },
            // SAFETY: as above.
            Kind::Graphics => unsafe {
                nvml::nvmlDeviceGetGraphicsRunningProcesses(device, count, to)
            },
            // SAFETY: as above.
            Kind::Mps => unsafe {
                nvml::nvmlDeviceGetMPSComputeRunningProcesses(device, count, to)
            },
        });
        list.unwrap_or_default().into_iter().map(|process| process.pid).collect()
    }
}

impl Sliced {
    /// Returns our processes on the GPU, of one kind or all.
    fn residents(&self, kind: Option<Kind>) -> Vec<(Member, &Part)> {
        let mut residents: Vec<_> =
            self.members().filter(|(member, _)| member.is_resident()).collect();
        let (listed, of_these) = match kind {
            None => return residents,
            // An accounted process computes, unless NVML lists it as a client of MPS alone.
            Some(Kind::Compute) => {
                let mut clients = Kind::Mps.listed(self.device);
                if !clients.is_empty() {
                    let computing = Kind::Compute.listed(self.device);
                    clients.retain(|pid| !computing.contains(pid));
                }
                (clients, false)
            }
            Some(kind) => (kind.listed(self.device), true),
        };
        let pid_map = if listed.is_empty() { None } else { Some(self.pid_map()) };
        let listed: Vec<c_uint> =
            listed.into_iter().filter_map(|pid| pid_map.as_ref()?.container_pid(pid)).collect();
        residents.retain(|(member, _)| listed.contains(&member.pid) == of_these);
        residents
    }
}

/// Lists our processes of a kind, if the GPU has a limit.
///
/// # Safety
///
/// `call` is NVML's function for the program's device, and may be called with `count` and `to`.
unsafe fn list<T: Copy>(
    device: nvmlDevice_t,
    (count, to): (*mut c_uint, *mut T),
    kind: Kind,
    call: impl Fn(*mut c_uint, *mut T) -> nvmlReturn_t,
    describe: impl Fn(&(Member, &Part)) -> T,
) -> nvmlReturn_t {
    let scope = scope(device);
    if count.is_null() || matches!(scope, Scope::Host) {
        return call(count, to);
    }
    // NVML reports all errors.
    let mut none = 0;
    match call(&raw mut none, ptr::null_mut()) {
        nvmlReturn_t::SUCCESS | nvmlReturn_t::ERROR_INSUFFICIENT_SIZE => {}
        answer => return answer,
    }
    let Scope::Container(sliced) = scope else { return nvmlReturn_t::ERROR_NO_PERMISSION };
    let list: Vec<T> = sliced.residents(Some(kind)).iter().map(describe).collect();
    // SAFETY: not null, so the program's count is writable and gives the length of its list.
    unsafe { write_list(&list, count, to) }
}

/// Makes the record of the first version.
fn info_v1((member, _): &(Member, &Part)) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t { pid: member.pid, used_gpu_memory: member.memory.0 }
}

/// Makes the record with the process's instance.
fn info_v2((member, part): &(Member, &Part)) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid: member.pid,
        used_gpu_memory: member.memory.0,
        gpu_instance_id: part.gpu_instance,
        compute_instance_id: part.compute_instance,
    }
}

macro_rules! lists {
    ($($symbol:ident: $kind:ident $type:ident $describe:ident;)*) => {$(
        pub(crate) unsafe fn $symbol(
            device: nvmlDevice_t,
            info_count: *mut c_uint,
            infos: *mut $type,
        ) -> nvmlReturn_t {
            // SAFETY: the program's own call, or one with a count of ours that asks for the length.
            let call = |count, to| unsafe { nvml::$symbol(device, count, to) };
            // SAFETY: the count and the list are the program's, for which `call` meets the
            // contract.
            unsafe { list(device, (info_count, infos), Kind::$kind, call, $describe) }
        }
    )*};
}

lists! {
    nvmlDeviceGetComputeRunningProcesses: Compute nvmlProcessInfo_v1_t info_v1;
    nvmlDeviceGetComputeRunningProcesses_v2: Compute nvmlProcessInfo_v2_t info_v2;
    nvmlDeviceGetComputeRunningProcesses_v3: Compute nvmlProcessInfo_t info_v2;
    nvmlDeviceGetGraphicsRunningProcesses: Graphics nvmlProcessInfo_v1_t info_v1;
    nvmlDeviceGetGraphicsRunningProcesses_v2: Graphics nvmlProcessInfo_v2_t info_v2;
    nvmlDeviceGetGraphicsRunningProcesses_v3: Graphics nvmlProcessInfo_t info_v2;
    nvmlDeviceGetMPSComputeRunningProcesses: Mps nvmlProcessInfo_v1_t info_v1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: Mps nvmlProcessInfo_v2_t info_v2;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: Mps nvmlProcessInfo_t info_v2;
}

/// Lists the container's processes of a kind, with their protected memory (confidential computing)
/// from NVML.
pub(crate) unsafe fn nvmlDeviceGetRunningProcessDetailList(
    device: nvmlDevice_t,
    plist: *mut nvmlProcessDetailList_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let call = || unsafe { nvml::nvmlDeviceGetRunningProcessDetailList(device, plist) };
    let scope = scope(device);
    if plist.is_null() || matches!(scope, Scope::Host) {
        return call();
    }
    // SAFETY: not null, and every version of the record begins with this number.
    if unsafe { plist.cast::<c_uint>().read() } != NVML_PROCESS_DETAIL_LIST_V1 {
        // An unknown version may contain ids of other containers' processes.
        return nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    // SAFETY: not null, and of the version with this layout. The program does not use it during the
    // call.
    let record = unsafe { &mut *plist };
    let reported = read_list(|count, proc_array| {
        let mut list =
            nvmlProcessDetailList_t { num_proc_array_entries: *count, proc_array, ..*record };
        // SAFETY: the record is ours, and its array has room for that many.
        let answer = unsafe { nvml::nvmlDeviceGetRunningProcessDetailList(device, &raw mut list) };
        *count = list.num_proc_array_entries;
        answer
    });
    let reported = match reported {
        Ok(reported) => reported,
        Err(answer) => return answer,
    };
    let Scope::Container(sliced) = scope else { return nvmlReturn_t::ERROR_NO_PERMISSION };
    let kind = match record.mode {
        NVML_PROCESS_MODE_COMPUTE => Some(Kind::Compute),
        NVML_PROCESS_MODE_GRAPHICS => Some(Kind::Graphics),
        NVML_PROCESS_MODE_MPS => Some(Kind::Mps),
        // A mode newer than this list: all processes, as accounting does not tell kinds apart.
        _ => None,
    };
    let reported = of_container(reported, &sliced.pid_map());
    let describe = |resident: &(Member, &Part)| {
        let nvmlProcessInfo_v2_t { pid, used_gpu_memory, gpu_instance_id, compute_instance_id } =
            info_v2(resident);
        let protected = reported.iter().find(|one: &&nvmlProcessDetail_v1_t| one.pid == pid);
        let used_gpu_cc_protected_memory =
            protected.map_or(0, |one| one.used_gpu_cc_protected_memory.min(used_gpu_memory));
        nvmlProcessDetail_v1_t {
            pid,
            used_gpu_memory,
            gpu_instance_id,
            compute_instance_id,
            used_gpu_cc_protected_memory,
        }
    };
    let list: Vec<_> = sliced.residents(kind).iter().map(describe).collect();
    // SAFETY: the count is in the program's record and gives the length of its array.
    unsafe { write_list(&list, &raw mut record.num_proc_array_entries, record.proc_array) }
}

macro_rules! sessions {
    ($($symbol:ident: $type:ident;)*) => {$(
        pub(crate) unsafe fn $symbol(
            device: nvmlDevice_t,
            session_count: *mut c_uint,
            session_infos: *mut $type,
        ) -> nvmlReturn_t {
            // SAFETY: the program's own call, or one with variables of ours.
            let call = |count, to| unsafe { nvml::$symbol(device, count, to) };
            let scope = scope(device);
            if session_count.is_null() || matches!(scope, Scope::Host) {
                return call(session_count, session_infos);
            }
            let reported = match read_list::<$type>(|count, to| call(count, to)) {
                Ok(reported) => reported,
                Err(answer) => return answer,
            };
            let Scope::Container(sliced) = scope else { return nvmlReturn_t::ERROR_NO_PERMISSION };
            let list = of_container(reported, &sliced.pid_map());
            // SAFETY: not null, so the program's count is writable and gives the length of its
            // list.
            let answer = unsafe { write_list(&list, session_count, session_infos) };
            // These functions return success when asked for the length.
            if session_infos.is_null() { nvmlReturn_t::SUCCESS } else { answer }
        }
    )*};
}

sessions! {
    nvmlDeviceGetEncoderSessions: nvmlEncoderSessionInfo_t;
    nvmlDeviceGetFBCSessions: nvmlFBCSessionInfo_t;
}
