//! Ends a process on the watcher's order, if it is still the process that was meant.
//!
//! The kernel reuses process ids. So the process is first opened by a descriptor, which never names
//! a later one. Only then everything is checked again: its start time is unchanged, NVML still
//! lists it on the GPU, it still belongs to the same container, and the cause still holds. Then it
//! is signalled through the descriptor. A process that has exited in between gets no signal, nor
//! does a new one with its number.

use cgpu_client::message::{Cause, Shim, Signal};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::units::Bytes;
use rustix::process::{Pid, PidfdFlags, Signal as Number, pidfd_open, pidfd_send_signal};

use super::gpu_processes::{ContainerIdentity, GpuProcess, ProcessIndex};
use super::maps::Maps;
use super::nvml::Library;
use crate::watcher::Order;

/// Carries out an order.
///
/// # Errors
/// The reason why the process was not signalled.
pub(super) fn end(
    order: &Order,
    library: Option<&Library>,
    identities: &[ContainerIdentity],
    maps: &mut Maps,
) -> Result<(), String> {
    let pid = i32::try_from(order.id.pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or("its id is not a process id")?;
    let process = pidfd_open(pid, PidfdFlags::empty())
        .map_err(|error| format!("it cannot be opened: {error}"))?;
    let library = library.ok_or("NVML does not answer")?;
    let on_gpu = library.processes(order.gpu).ok_or("NVML does not list the GPU's processes")?;
    let index = ProcessIndex::new(identities);
    let mapped = match maps.mapped(order.id) {
        // It is not ended, until it is read in turn and found to have one.
        Some(mapped) if !mapped.driver => Some(mapped),
        Some(mapped) if order.cause == Cause::OverLimit => Some(mapped),
        _ => maps.check(Monotonic.now(), order.id, order.owner.0, &index.regions()),
    };
    let found = on_gpu.iter().filter_map(|(pid, memory)| {
        let process = index.process(*pid)?;
        let mapped = if process.id == order.id { mapped } else { None };
        Some((process.on_gpu(order.gpu, mapped), *memory))
    });
    recheck(order, &found.collect::<Vec<_>>())?;
    if mapped.is_none_or(|mapped| !mapped.driver) {
        return Err("it has no driver mapped: NVML may mean another process".into());
    }
    let signal = match order.signal {
        Signal::Term => Number::TERM,
        Signal::Kill => Number::KILL,
    };
    pidfd_send_signal(&process, signal).map_err(|error| format!("it cannot be signalled: {error}"))
}

/// Checks that the cause still holds, by the processes that are on the GPU now, each with what the
/// driver holds for it.
fn recheck(order: &Order, on_gpu: &[(GpuProcess, Option<Bytes>)]) -> Result<(), String> {
    let on_gpu_is = |(gpu_process, _): &&(GpuProcess, _)| gpu_process.id.pid == order.id.pid;
    let (found, _) = on_gpu.iter().find(on_gpu_is).ok_or("it has left the GPU")?;
    if found.id != order.id {
        return Err("its id belongs to another process now".into());
    }
    if found.owner != Some(order.owner.0) {
        return Err("it belongs to another container now".into());
    }
    match order.cause {
        Cause::Unshimmed => {
            if !matches!(found.shim, Shim::Absent | Shim::Loaded) {
                return Err("it has the shim now, or may have it".into());
            }
        }
        Cause::OverLimit => {
            let bound = order.bound.ok_or("its container's bound is not known")?;
            let own = on_gpu.iter().filter(|(one, _)| one.owner == found.owner);
            let held = own.map(|(one, memory)| (one.id, memory.unwrap_or_default()));
            if !bound.largest_beyond(held).contains(&order.id) {
                return Err("its container is within its bound without ending it".into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cgpu_shm::uuid::Uuid;

    use super::*;
    use crate::watcher::{Bound, ProcessId};
    use cgpu_scheduler::TenantId;

    fn gpu_process(pid: u32, owner: u64, shim: Shim, memory: u64) -> (GpuProcess, Option<Bytes>) {
        let id = ProcessId { pid, start_time: 3 };
        (GpuProcess { id, comm: "p".into(), owner: Some(owner), shim }, Some(Bytes(memory)))
    }

    fn order(cause: Cause) -> Order {
        Order {
            gpu: Uuid([7; 16]),
            id: ProcessId { pid: 5, start_time: 3 },
            comm: "p".into(),
            owner: TenantId(1),
            cause,
            bound: (cause == Cause::OverLimit)
                .then_some(Bound { allowed: Bytes(95), margin: Bytes(5) }),
            signal: Signal::Term,
        }
    }

    #[test]
    fn cause_is_checked_again_before_ending_a_process() {
        let (absent, bound, unknown) = (Shim::Absent, Shim::Bound, Shim::Unknown);
        let other = |memory| gpu_process(6, 1, bound, memory);
        let foreign = || gpu_process(7, 2, absent, 5000);
        let later = (
            GpuProcess {
                id: ProcessId { pid: 5, start_time: 4 },
                ..gpu_process(5, 1, absent, 0).0
            },
            None,
        );
        for (cause, on_gpu, is_ended) in [
            (Cause::Unshimmed, vec![gpu_process(5, 1, absent, 9)], true),
            (Cause::Unshimmed, vec![gpu_process(5, 1, Shim::Loaded, 9), foreign()], true),
            (Cause::Unshimmed, vec![gpu_process(5, 1, bound, 9)], false),
            (Cause::Unshimmed, vec![gpu_process(5, 1, unknown, 9)], false),
            (Cause::Unshimmed, vec![gpu_process(5, 2, absent, 9)], false),
            (Cause::Unshimmed, vec![later], false),
            (Cause::Unshimmed, vec![foreign()], false),
            (Cause::OverLimit, vec![gpu_process(5, 1, bound, 101)], true),
            (Cause::OverLimit, vec![gpu_process(5, 1, bound, 60), other(50)], true),
            // A second process adds a quarter of the margin.
            (Cause::OverLimit, vec![gpu_process(5, 1, bound, 51), other(50)], false),
            (Cause::OverLimit, vec![gpu_process(5, 1, bound, 52), other(50)], true),
            // It freed memory in time, or the end of a larger process of its container suffices.
            (Cause::OverLimit, vec![gpu_process(5, 1, bound, 100), foreign()], false),
            (Cause::OverLimit, vec![gpu_process(5, 1, bound, 50), other(60)], false),
        ] {
            assert_eq!(recheck(&order(cause), &on_gpu).is_ok(), is_ended, "{cause:?} {on_gpu:?}");
        }
        let unbounded = Order { bound: None, ..order(Cause::OverLimit) };
        assert!(recheck(&unbounded, &[gpu_process(5, 1, bound, 5000)]).is_err());
    }
}
