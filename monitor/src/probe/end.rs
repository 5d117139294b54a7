//! Ends a process on the watcher's order, if it is still the process that was meant.
//!
//! The kernel reuses process ids. So the process is first opened by a descriptor, which never names
//! a later one. Only then everything is checked again: its start time is unchanged, NVML still
//! lists it on the GPU, it still belongs to the same container, and the cause still holds. Then it
//! is signalled through the descriptor. A process that has exited in between gets no signal, nor
//! does a new one with its number.
//!
//! What it has mapped is read before, where that is not known. The order waits for it, and the
//! prober does not.

use cgpu_client::message::{Cause, Shim, Signal};
use cgpu_shm::units::{Bytes, Nanos};
use rustix::process::{Pid, PidfdFlags, Signal as Number, pidfd_open, pidfd_send_signal};

use super::gpu_processes::{ContainerIdentity, GpuProcess, ProcessIndex};
use super::mapped::Mapped;
use super::maps::{Maps, TIMEOUT};
use super::nvml::Library;
use crate::watcher::Order;

/// Orders that wait until their processes' maps have been read.
#[derive(Debug, Default)]
pub(super) struct Orders(Vec<(Nanos, Order)>);

impl Orders {
    pub(super) fn add(&mut self, now: Nanos, order: Order, maps: &mut Maps) {
        if suffices(&order, maps.mapped(order.id)).is_none() {
            maps.check(now, order.id, order.owner.0);
        }
        self.0.push((now, order));
    }

    /// Returns the orders that wait no longer, each with what its process has mapped; none: it
    /// cannot be read.
    pub(super) fn ready(&mut self, now: Nanos, maps: &mut Maps) -> Vec<(Order, Option<Mapped>)> {
        let checked = maps.take_checked();
        let outcome = |(since, order): &(Nanos, Order)| {
            let known = || suffices(order, maps.mapped(order.id)).map(Some);
            let too_long = || (now - *since >= TIMEOUT).then_some(None);
            checked.get(&order.id).copied().or_else(known).or_else(too_long)
        };
        let outcomes: Vec<_> = self.0.iter().map(outcome).collect();
        let mut ready = Vec::new();
        for ((since, order), outcome) in std::mem::take(&mut self.0).into_iter().zip(outcomes) {
            match outcome {
                Some(mapped) => ready.push((order, mapped)),
                None => self.0.push((since, order)),
            }
        }
        maps.keep_checks(|id| self.0.iter().any(|(_, order)| order.id == id));
        ready
    }
}

/// Returns what a process has mapped, if its order need not wait until that is read anew.
fn suffices(order: &Order, mapped: Option<Mapped>) -> Option<Mapped> {
    // Without a driver it is not ended, until it is read in turn and found to have one.
    mapped.filter(|mapped| !mapped.driver || order.cause == Cause::OverLimit)
}

/// Carries out an order. `mapped` is what its process has mapped; none: it cannot be read.
///
/// # Errors
/// The reason why the process was not signalled.
pub(super) fn end(
    order: &Order,
    library: Option<&Library>,
    identities: &[ContainerIdentity],
    mapped: Option<Mapped>,
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
    let found = on_gpu.iter().filter_map(|(pid, memory)| {
        let process = index.process(*pid)?;
        let mapped = if process.id == order.id { mapped } else { None };
        Some((process.on_gpu(order.gpu, mapped), *memory))
    });
    recheck(order, &found.collect::<Vec<_>>())?;
    if !mapped.ok_or("its maps cannot be read")?.driver {
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
    use std::time::{Duration, Instant};

    use cgpu_shm::uuid::Uuid;

    use super::super::gpu_processes::tests::{Holder, Sleeper};
    use super::*;
    use crate::watcher::{Bound, ProcessId};
    use cgpu_scheduler::TenantId;

    fn gpu_process(pid: u32, owner: u64, shim: Shim, memory: u64) -> (GpuProcess, Option<Bytes>) {
        let id = ProcessId { pid, start_time: 3 };
        (
            GpuProcess { id, comm: "p".into(), owner: Some(owner), shim, is_outside: false },
            Some(Bytes(memory)),
        )
    }

    fn order(cause: Cause) -> Order {
        Order {
            gpu: Uuid([7; 16]),
            id: ProcessId { pid: 5, start_time: 3 },
            comm: "p".into(),
            owner: TenantId(1),
            cause,
            bound: (cause == Cause::OverLimit).then_some(Bound {
                allowed: Bytes(95),
                margin: Bytes(5),
                charged: Bytes::ZERO,
            }),
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

    #[test]
    fn order_waits_for_the_maps_of_its_process_and_delays_no_other() {
        let [held, other] = [(); 2].map(|()| Sleeper::start());
        let ids = [&held, &other].map(|process| ProcessId::of(process.0.id()).unwrap());
        let order_for = |at: usize| Order {
            id: ids[at],
            owner: TenantId(at as u64),
            ..order(Cause::Unshimmed)
        };
        let _holder = Holder::new(ids[0].pid);
        let mut maps = Maps::new(Holder::open, Duration::ZERO, || ());
        let (mut orders, now) = (Orders::default(), Nanos::from_millis(1000));
        orders.add(now, order_for(0), &mut maps);
        orders.add(now, order_for(1), &mut maps);
        let hangs = Instant::now() + Duration::from_secs(100);
        let ready = loop {
            maps.take_readings(now);
            let ready = orders.ready(now, &mut maps);
            if !ready.is_empty() {
                break ready;
            }
            assert!(Instant::now() < hangs, "no order is ready");
            std::thread::yield_now();
        };
        assert_eq!(ready, [(order_for(1), Some(Mapped::default()))]);
        let late = now + TIMEOUT;
        assert_eq!(orders.ready(Nanos(late.0 - 1), &mut maps), []);
        assert_eq!(orders.ready(late, &mut maps), [(order_for(0), None)]);
    }
}
