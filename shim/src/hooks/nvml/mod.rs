//! NVML under a limit: a GPU as large as the limit, with only the container's processes.
//!
//! | file | contents |
//! |---|---|
//! | [`memory`] | size and use of the GPU |
//! | [`processes`] | its processes |
//! | [`utilisation`] | their utilization |
//! | [`accounting`] | NVML's accounting of each |
//! | [`uses`] | counts the program's own uses |
//!
//! NVML is always called first: it checks handles, versions and null pointers, and its errors reach
//! the program unchanged. Only successful answers are replaced. Without a limit on the GPU a hook
//! is just the real call.

mod accounting;
mod memory;
mod processes;
mod uses;
mod utilisation;

pub(crate) use accounting::*;
pub(crate) use memory::*;
pub(crate) use processes::*;
pub(crate) use uses::*;
pub(crate) use utilisation::*;

use core::ptr;

use cgpu_abi::nvml_types::*;
use cgpu_memory::{DeviceIndex, Member, PidMap, Tenant};

use crate::namespace::Namespace;
use crate::process::{self, State, Trigger};
use crate::{gpus, nvml};

enum Scope {
    /// All processes on the GPU: it has no limit.
    Host,
    /// No process: the start was refused, so the container's are unknown.
    None,
    Container(Sliced),
}

/// A device of NVML with a limit: a GPU, an instance, or a GPU partitioned into instances some of
/// which have limits.
struct Sliced {
    tenant: &'static Tenant,
    device: nvmlDevice_t,
    parts: Vec<Part>,
}

/// An accounted part of a device.
struct Part {
    gpu: DeviceIndex,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Returns the scope of a query about the processes on `device`. A tool may use only NVML, so
/// accounting may start here.
fn scope(device: nvmlDevice_t) -> Scope {
    let tenant = match process::start(Trigger::Nvml) {
        State::On(tenant) => tenant,
        State::Off => return Scope::Host,
        State::Refused(_) => return Scope::None,
    };
    let whole = part(tenant, device);
    let parts: Vec<Part> = match whole {
        Some(part) => vec![part],
        None => gpus::instances_of(device).filter_map(|instance| part(tenant, instance)).collect(),
    };
    if parts.is_empty() { Scope::Host } else { Scope::Container(Sliced { tenant, device, parts }) }
}

fn part(tenant: &'static Tenant, device: nvmlDevice_t) -> Option<Part> {
    let gpu =
        tenant.gpu(gpus::nvml_uuid(device)?).filter(|gpu| tenant.view().limit(*gpu).is_some())?;
    let (mut gpu_instance, mut compute_instance) = (NO_INSTANCE, NO_INSTANCE);
    // For a whole GPU the calls fail, and the numbers stay as they are.
    // SAFETY: the number is writable.
    let _ = unsafe { nvml::nvmlDeviceGetGpuInstanceId(device, &raw mut gpu_instance) };
    // SAFETY: as above.
    let _ = unsafe { nvml::nvmlDeviceGetComputeInstanceId(device, &raw mut compute_instance) };
    Some(Part { gpu, gpu_instance, compute_instance })
}

/// The number of what is no instance.
const NO_INSTANCE: c_uint = c_uint::MAX;

impl Sliced {
    /// Returns the container's living processes with their memory on this device.
    fn members(&self) -> impl Iterator<Item = (Member, &Part)> {
        self.parts.iter().flat_map(|part| {
            self.tenant.view().members(part.gpu).into_iter().map(move |member| (member, part))
        })
    }

    fn pid_map(&self) -> PidMap {
        let members: Vec<Member> = self.members().map(|(member, _)| member).collect();
        let listed: Vec<c_uint> =
            Kind::ALL.into_iter().flat_map(|kind| kind.listed(self.device)).collect();
        PidMap::of(&members, &listed, &Namespace)
    }
}

trait ProcessRecord: Copy + Default {
    fn pid(&self) -> c_uint;
    fn with_pid(self, pid: c_uint) -> Self;
}

macro_rules! process_records {
    ($($type:ident)*) => {$(
        impl ProcessRecord for $type {
            fn pid(&self) -> c_uint {
                self.pid
            }

            fn with_pid(self, pid: c_uint) -> Self {
                Self { pid, ..self }
            }
        }
    )*};
}

process_records! {
    nvmlProcessUtilizationSample_t
    nvmlProcessUtilizationInfo_v1_t
    nvmlEncoderSessionInfo_t
    nvmlFBCSessionInfo_t
    nvmlProcessDetail_v1_t
}

/// Returns the records of the container's processes, with their ids in the container.
fn of_container<T: ProcessRecord>(reported: Vec<T>, pid_map: &PidMap) -> Vec<T> {
    reported
        .into_iter()
        .filter_map(|one| Some(one.with_pid(pid_map.container_pid(one.pid())?)))
        .collect()
}

/// Returns everything that a function of NVML lists. Calls it as programs do: once for the length,
/// once with room.
fn read_list<T: Copy + Default>(
    call: impl Fn(&mut c_uint, *mut T) -> nvmlReturn_t,
) -> Result<Vec<T>, nvmlReturn_t> {
    /// Room for processes that start between the calls.
    const EXTRA_ROOM: c_uint = 16;
    /// Most calls while the list keeps growing.
    const TRIES: u32 = 8;
    let mut count = 0;
    let mut list = Vec::new();
    for _ in 0..TRIES {
        let to = if list.is_empty() { ptr::null_mut() } else { list.as_mut_ptr() };
        match call(&mut count, to) {
            nvmlReturn_t::SUCCESS if count as usize <= list.len() => {
                list.truncate(count as usize);
                return Ok(list);
            }
            // Some functions return success when they report the length.
            nvmlReturn_t::SUCCESS | nvmlReturn_t::ERROR_INSUFFICIENT_SIZE => {
                count = count.saturating_add(EXTRA_ROOM)
            }
            other => return Err(other),
        }
        list.resize(count as usize, T::default());
    }
    Err(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE)
}

/// Returns a list to a program that calls in the same way.
///
/// # Safety
///
/// `count` is writable, and `to` is null or has room for that many.
unsafe fn write_list<T: Copy>(list: &[T], count: *mut c_uint, to: *mut T) -> nvmlReturn_t {
    // SAFETY: guaranteed by the caller.
    let room = unsafe { count.read() } as usize;
    // SAFETY: as above.
    unsafe { count.write(c_uint::try_from(list.len()).unwrap_or(c_uint::MAX)) };
    if list.len() > room {
        return nvmlReturn_t::ERROR_INSUFFICIENT_SIZE;
    }
    if list.is_empty() {
        return nvmlReturn_t::SUCCESS;
    }
    if to.is_null() {
        return nvmlReturn_t::ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: there is room for the whole list, and the program's memory does not overlap it.
    unsafe { to.copy_from_nonoverlapping(list.as_ptr(), list.len()) };
    nvmlReturn_t::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a function like NVML's that lists `these`.
    fn lists(these: &[c_uint]) -> impl Fn(&mut c_uint, *mut c_uint) -> nvmlReturn_t {
        // SAFETY: the count is writable, and the list has room for that many.
        move |count, to| unsafe { write_list(these, count, to) }
    }

    #[test]
    fn list_is_read_in_two_calls() {
        assert_eq!(read_list(lists(&[])), Ok(vec![]));
        assert_eq!(read_list(lists(&[7, 8])), Ok(vec![7, 8]));
        assert_eq!(
            read_list::<c_uint>(|_, _| nvmlReturn_t::ERROR_NOT_FOUND),
            Err(nvmlReturn_t::ERROR_NOT_FOUND)
        );
    }

    #[test]
    fn growing_list_is_read_again_a_bounded_number_of_times() {
        let sizes = core::cell::Cell::new(0);
        let grows = |count: &mut c_uint, to| {
            sizes.set(sizes.get() + 20);
            lists(&vec![1; sizes.get().min(60)])(count, to)
        };
        assert_eq!(read_list(grows).map(|list| list.len()), Ok(60));
        let never = |count: &mut c_uint, _: *mut c_uint| {
            *count += 100;
            nvmlReturn_t::ERROR_INSUFFICIENT_SIZE
        };
        assert_eq!(read_list(never), Err(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE));
    }

    #[test]
    fn success_without_room_returns_the_length() {
        let eager = |count: &mut c_uint, to: *mut c_uint| {
            let answer = lists(&[7])(count, to);
            if to.is_null() { nvmlReturn_t::SUCCESS } else { answer }
        };
        assert_eq!(read_list(eager), Ok(vec![7]));
    }

    #[test]
    fn program_is_answered_as_nvml_answers() {
        let mut room = [0; 3];
        for (count, answer, left) in [
            (0, nvmlReturn_t::ERROR_INSUFFICIENT_SIZE, [0; 3]),
            (3, nvmlReturn_t::SUCCESS, [7, 8, 0]),
        ] {
            let mut count = count;
            // SAFETY: the count is writable, and there is room for that many.
            assert_eq!(unsafe { write_list(&[7, 8], &raw mut count, room.as_mut_ptr()) }, answer);
            assert_eq!((count, room), (2, left));
        }
        let mut count = 3;
        // SAFETY: the count is writable, and the list is null.
        let answer = unsafe { write_list(&[7], &raw mut count, ptr::null_mut()) };
        assert_eq!((answer, count), (nvmlReturn_t::ERROR_INVALID_ARGUMENT, 1));
    }
}
