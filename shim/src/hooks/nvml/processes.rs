//! Who is on a GPU: the container's processes, by the ids that they have in there, with what the
//! accounting says that each has. Their sum is what the GPU says is used, but for what exited
//! processes have left.
//!
//! NVML has a list for each kind of process. A process of ours that it lists as computing through
//! MPS is in that list and not in the one of those who compute; one that draws is in the list of
//! those who draw, too. Who NVML means by a number: [`cgpu_memory::PidMap`].

use core::ptr;

use cgpu_abi::nvml_types::*;
use cgpu_memory::Member;

use super::{Part, Scope, Sliced, all, of_container, put, scope};
use crate::nvml;

/// Why a process is on a GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Computes,
    Draws,
    ComputesByMps,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Computes, Kind::Draws, Kind::ComputesByMps];

    /// Those that NVML lists, by its names; none where it cannot.
    pub(super) fn listed(self, device: nvmlDevice_t) -> Vec<c_uint> {
        // The oldest functions are those that every driver has.
        let list = all::<nvmlProcessInfo_v1_t>(|count, to| match self {
            // SAFETY: the count is writable, and the place as long as it says.
            Kind::Computes => unsafe {
                nvml::nvmlDeviceGetComputeRunningProcesses(device, count, to)
            },
            // SAFETY: as above.
            Kind::Draws => unsafe {
                nvml::nvmlDeviceGetGraphicsRunningProcesses(device, count, to)
            },
            // SAFETY: as above.
            Kind::ComputesByMps => unsafe {
                nvml::nvmlDeviceGetMPSComputeRunningProcesses(device, count, to)
            },
        });
        list.unwrap_or_default().into_iter().map(|process| process.pid).collect()
    }
}

impl Sliced {
    /// Our processes on the GPU, of a kind or all.
    fn residents(&self, kind: Option<Kind>) -> Vec<(Member, &Part)> {
        let mut residents: Vec<_> =
            self.members().filter(|(member, _)| member.is_resident()).collect();
        // Who is accounted computes, by itself or by MPS.
        let (reported, of_these) = match kind {
            None => return residents,
            Some(Kind::Computes) => (Kind::ComputesByMps, false),
            Some(kind) => (kind, true),
        };
        let listed = reported.listed(self.device);
        let pid_map = if listed.is_empty() { None } else { Some(self.pid_map()) };
        let listed: Vec<c_uint> =
            listed.into_iter().filter_map(|pid| pid_map.as_ref()?.container_pid(pid)).collect();
        residents.retain(|(member, _)| listed.contains(&member.pid) == of_these);
        residents
    }
}

/// Answers with our processes of a kind, where the GPU has a limit.
///
/// # Safety
///
/// `call` is NVML's function with two of the program's arguments replaced, and may be called with
/// `count` and `to`.
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
    // Anything but a list is NVML's to say.
    let mut none = 0;
    match call(&raw mut none, ptr::null_mut()) {
        nvmlReturn_t::SUCCESS | nvmlReturn_t::ERROR_INSUFFICIENT_SIZE => {}
        answer => return answer,
    }
    let Scope::Ours(sliced) = scope else { return nvmlReturn_t::ERROR_NO_PERMISSION };
    let list: Vec<T> = sliced.residents(Some(kind)).iter().map(describe).collect();
    // SAFETY: the count is not null, and the caller vouches for the rest.
    unsafe { put(&list, count, to) }
}

/// As the functions without a version give it.
fn short((member, _): &(Member, &Part)) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t { pid: member.pid, used_gpu_memory: member.memory.0 }
}

/// With the instance that it is on.
fn long((member, part): &(Member, &Part)) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid: member.pid,
        used_gpu_memory: member.memory.0,
        gpu_instance_id: part.gpu_instance,
        compute_instance_id: part.compute_instance,
    }
}

macro_rules! lists {
    ($($symbol:ident: $kind:ident $type:ident $describe:ident;)*) => {$(
        /// The container's processes of this kind.
        pub(crate) unsafe fn $symbol(
            device: nvmlDevice_t,
            info_count: *mut c_uint,
            infos: *mut $type,
        ) -> nvmlReturn_t {
            // SAFETY: the program's own call, or one with a count of ours that asks how many there
            // are.
            let call = |count, to| unsafe { nvml::$symbol(device, count, to) };
            // SAFETY: the count and the list are those of the program's call.
            unsafe { list(device, (info_count, infos), Kind::$kind, call, $describe) }
        }
    )*};
}

lists! {
    nvmlDeviceGetComputeRunningProcesses: Computes nvmlProcessInfo_v1_t short;
    nvmlDeviceGetComputeRunningProcesses_v2: Computes nvmlProcessInfo_v2_t long;
    nvmlDeviceGetComputeRunningProcesses_v3: Computes nvmlProcessInfo_t long;
    nvmlDeviceGetGraphicsRunningProcesses: Draws nvmlProcessInfo_v1_t short;
    nvmlDeviceGetGraphicsRunningProcesses_v2: Draws nvmlProcessInfo_v2_t long;
    nvmlDeviceGetGraphicsRunningProcesses_v3: Draws nvmlProcessInfo_t long;
    nvmlDeviceGetMPSComputeRunningProcesses: ComputesByMps nvmlProcessInfo_v1_t short;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: ComputesByMps nvmlProcessInfo_v2_t long;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: ComputesByMps nvmlProcessInfo_t long;
}

/// The container's processes of a kind, with their memory under confidential computing as NVML
/// tells it.
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
    // SAFETY: every version of the record begins with this number.
    if unsafe { plist.cast::<c_uint>().read() } != NVML_PROCESS_DETAIL_LIST_V1 {
        // One that we do not know may have names of others.
        return nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    // SAFETY: not null, and of the version whose layout this is.
    let asked = unsafe { &mut *plist };
    let reported = all(|count, proc_array| {
        let mut list =
            nvmlProcessDetailList_t { num_proc_array_entries: *count, proc_array, ..*asked };
        // SAFETY: the record is ours, and its array as long as it says.
        let answer = unsafe { nvml::nvmlDeviceGetRunningProcessDetailList(device, &raw mut list) };
        *count = list.num_proc_array_entries;
        answer
    });
    let reported = match reported {
        Ok(reported) => reported,
        Err(answer) => return answer,
    };
    let Scope::Ours(sliced) = scope else { return nvmlReturn_t::ERROR_NO_PERMISSION };
    let kind = match asked.mode {
        NVML_PROCESS_MODE_COMPUTE => Some(Kind::Computes),
        NVML_PROCESS_MODE_GRAPHICS => Some(Kind::Draws),
        NVML_PROCESS_MODE_MPS => Some(Kind::ComputesByMps),
        // Of unaccounted ones nothing is known: a mode that is newer than this list is the widest
        // one.
        _ => None,
    };
    let reported = of_container(reported, &sliced.pid_map());
    let describe = |resident: &(Member, &Part)| {
        let nvmlProcessInfo_v2_t { pid, used_gpu_memory, gpu_instance_id, compute_instance_id } =
            long(resident);
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
    // SAFETY: the count is the record's own, and its array the program's.
    unsafe { put(&list, &raw mut asked.num_proc_array_entries, asked.proc_array) }
}

macro_rules! sessions {
    ($($symbol:ident: $type:ident;)*) => {$(
        /// The container's sessions of this kind.
        pub(crate) unsafe fn $symbol(
            device: nvmlDevice_t,
            session_count: *mut c_uint,
            session_infos: *mut $type,
        ) -> nvmlReturn_t {
            // SAFETY: the program's own call, or one with room of ours.
            let call = |count, to| unsafe { nvml::$symbol(device, count, to) };
            let scope = scope(device);
            if session_count.is_null() || matches!(scope, Scope::Host) {
                return call(session_count, session_infos);
            }
            let reported = match all::<$type>(|count, to| call(count, to)) {
                Ok(reported) => reported,
                Err(answer) => return answer,
            };
            let Scope::Ours(sliced) = scope else { return nvmlReturn_t::ERROR_NO_PERMISSION };
            // SAFETY: the count is not null, and the list the program's.
            let answer = unsafe { put(&of_container(reported, &sliced.pid_map()), session_count, session_infos) };
            // These answer so when they are asked for the length.
            if session_infos.is_null() { nvmlReturn_t::SUCCESS } else { answer }
        }
    )*};
}

sessions! {
    nvmlDeviceGetEncoderSessions: nvmlEncoderSessionInfo_t;
    nvmlDeviceGetFBCSessions: nvmlFBCSessionInfo_t;
}
