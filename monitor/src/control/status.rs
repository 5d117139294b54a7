//! Reports the monitor's state, for `cgpu smi`.

use std::collections::BTreeMap;

use cgpu_client::health::Health;
use cgpu_client::inventory::{Inventory, ListedDevice};
use cgpu_client::message::{
    ContainerStatus, Errno, Gate, GpuStatus, GpuTurns, ProcessGpu, ProcessStatus, Refusal,
    ShareStatus, Sharing, Status, TurnAnomalies, TurnStatus,
};
use cgpu_scheduler::accounting;
use cgpu_scheduler::turn_history::PastTurn;
use cgpu_shm::grant::TurnState;
use cgpu_shm::reason::{Reason, counted};
use cgpu_shm::slots::State;
use cgpu_shm::snapshot::Cell;
use cgpu_shm::units::{Bytes, Nanos, SlotIndex};

use crate::host::Host;
use crate::host::container::Container;
use crate::host::device_state::DeviceState;

pub(crate) fn of(host: &mut Host, now: Nanos) -> Status {
    for container in host.containers.values_mut() {
        if let Some(region) = &mut container.region {
            region.refresh();
        }
        container.note_exits(now);
        container.count(now);
    }
    let mut containers: Vec<ContainerStatus> =
        host.containers.values().map(|container| self::container(host, container, now)).collect();
    containers.sort_by(|one, other| one.id.cmp(&other.id));
    let (found, ends) = host.findings().counts();
    Status {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_ms: (now - host.started).0 / 1_000_000,
        root: host.root.clone(),
        allow_overcommit: host.start.allow_overcommit,
        warnings: host.warnings.iter().cloned().chain(host.margin_warnings()).collect(),
        host_memory: host.exposures.iter().map(ToString::to_string).collect(),
        gpus: (0..host.devices.len()).map(|at| gpu(host, at)).collect(),
        containers,
        findings: host.findings().current(now),
        found,
        ends,
        ended: host.findings().ended(now),
    }
}

pub(crate) fn turns(host: &Host, now: Nanos) -> Vec<GpuTurns> {
    let name = |tenant| host.containers.get(&tenant).map(|container| container.id.clone());
    let entry = |turn: PastTurn| {
        let (ago_us, us) = ((now - turn.start).0 / 1000, (turn.end - turn.start).0 / 1000);
        // A turn of a container that was removed since is left out.
        Some(TurnStatus { container: name(turn.holder)?, ago_us, us })
    };
    let devices = host.devices.iter();
    devices
        .map(|device| GpuTurns {
            gpu: device.index,
            turns: device.scheduler.turn_history(now).filter_map(entry).collect(),
        })
        .collect()
}

/// Returns the GPUs of the host.
///
/// # Errors
/// `ENOENT` while not all of them are known.
pub(crate) fn inventory(host: &Host, now: Nanos) -> Result<Inventory, Refusal> {
    let Some((at, gpus)) = &host.inventory else {
        return Err(Refusal::new(Errno::ENOENT, "NVML has not listed all GPUs."));
    };
    Ok(Inventory {
        gpus: gpus.iter().map(ListedDevice::from).collect(),
        age_ms: (now - *at).0 / 1_000_000,
        simulated: cgpu_inventory::simulated(),
        allow_overcommit: host.start.allow_overcommit,
    })
}

/// Returns the health of the GPUs.
///
/// # Errors
/// `ENOENT` if NVML has never reported it.
pub(crate) fn health(host: &Host, now: Nanos) -> Result<Health, Refusal> {
    let Some((at, health_checks)) = &host.health_checks else {
        return Err(Refusal::new(Errno::ENOENT, "NVML has not reported the health of the GPUs."));
    };
    Ok(host.prober.health(health_checks, *at, now))
}

fn gpu(host: &Host, at: usize) -> GpuStatus {
    let device = &host.devices[at];
    let is_verified = |pid: &u32| {
        host.containers
            .values()
            .any(|container| container.host_ids.values().flatten().any(|id| id.pid == *pid))
    };
    let on_gpu = device.sample.processes.iter().flatten();
    GpuStatus {
        index: device.index,
        uuid: device.name(),
        name: device.sample.name.clone(),
        pci_bus_id: device.sample.pci_bus_id.clone(),
        memory_total: host.total(device),
        memory_used: device.sample.used,
        memory_unattributed: device.unattributed.bytes().0,
        policy: device.scheduler.policy().number(),
        max_inst: device.in_force().max_inst(),
        free_weight: host.capacity(device).free(),
        prio_ratio: device.in_force().prio_ratio(),
        work_conserving: u32::from(device.in_force().work_conserving()),
        sharing: sharing(device.scheduler.sharing()),
        turns: device.scheduler.turns(),
        utilization: device.sample.utilization,
        board: device.sample.board,
        switch_us: device.scheduler.learned_switch_cost().map(|cost| cost.0 / 1000),
        slice_us: device.scheduler.slice().0 / 1000,
        unknown_processes: on_gpu.map(|(pid, _)| *pid).filter(|pid| !is_verified(pid)).collect(),
        limits_unverified: host.limits_unverified(device).map(Into::into),
        mps: device.mps.clone(),
        walls_left: host.walls_left.get(&device.uuid).copied().unwrap_or_default(),
    }
}

fn container(host: &Host, container: &Container, now: Nanos) -> ContainerStatus {
    let (devices, gpus) = (&host.devices, container.gpus());
    let mut faults: BTreeMap<String, String> = container
        .faults
        .iter()
        .map(|(kind, message)| ((*kind).to_owned(), message.clone()))
        .collect();
    let shares = devices.iter().filter(|device| gpus.contains(&device.uuid));
    let of_gpus = shares.clone().filter_map(|gpu| gpu.scheduler.share(now, container.tenant));
    for share in of_gpus {
        if share.is_misreporting {
            let message =
                "Its reports are invalid: its turns are measured by the monitor's clock alone.";
            faults.insert("misreporting".into(), message.into());
        } else if share.hides_work {
            let message = "NVML measures more of its work than it reports: it pays for that.";
            faults.insert("misreporting".into(), message.into());
        }
    }
    if container.has_slow_files() {
        let message = "Its file has so many locks that exits of its processes are noticed late.";
        faults.insert("noisy".into(), message.into());
    }
    if container.doorbell.muted_until > now {
        let message = "Its doorbell is muted: it notifies the monitor without a reason.";
        faults.insert("noisy".into(), message.into());
    }
    let counted = container.counters.totals().contains_key(Reason::Tampered.name());
    if counted || container.region.as_ref().is_some_and(|region| region.is_tampered()) {
        faults.insert("tampered".into(), Reason::Tampered.message().into());
    } else if container.walls.is_tampered {
        let message = "The driver has charged it more memory than its ledger has for some seconds, \
                       though all of its processes have the shim.";
        faults.insert("tampered".into(), message.into());
    }
    if container.is_blocked {
        let message = "It holds more GPU memory than its limit and the margin: its allocations are \
                       refused until it holds less (over_limit in monitor.toml).";
        faults.insert("blocked".into(), message.into());
    }
    if host.is_unlisted(container) {
        let message = "NVML lists none of its processes that hold memory by its own ledger: what \
                       it holds cannot be compared with its limit.";
        faults.insert("unverified".into(), message.into());
    }
    if host.held.contains(&container.tenant) {
        let message = "A process of it keeps /proc/PID/maps from being read: whether that process \
                       has the shim is not known.";
        faults.insert("unverified".into(), message.into());
    }
    let shortfalls = host.registered(container.tenant).warnings;
    if !gpus.is_empty() && !shortfalls.is_empty() {
        faults.insert("no_weight".into(), shortfalls.join("; "));
    }
    let seen = container.region.as_ref().map(|region| &region.seen);
    ContainerStatus {
        id: container.id.clone(),
        name: container.name(),
        image: container.image.clone(),
        dir: container.dir.clone(),
        weight: container.weight(),
        percent: container.percent(),
        high_priority: container.is_high(),
        gpus: shares.map(|device| share(host, container, device, now)).collect(),
        processes: processes(container, devices, now),
        counters: container.counters.totals(),
        counted_ago_ms: container.counters.ages(now),
        export_tables: seen.map(|seen| seen.export_tables.clone()).unwrap_or_default(),
        unknown_functions: seen.map(|seen| seen.unknown_functions.clone()).unwrap_or_default(),
        refused: container.refusal.clone(),
        faults,
    }
}

fn sharing(sharing: cgpu_scheduler::Sharing) -> Sharing {
    match sharing {
        cgpu_scheduler::Sharing::Open => Sharing::Open,
        cgpu_scheduler::Sharing::Watched => Sharing::Watched,
        cgpu_scheduler::Sharing::Contended => Sharing::Contended,
    }
}

fn gate(turn: TurnState) -> Gate {
    match turn {
        TurnState::Open => Gate::Open,
        TurnState::Yours => Gate::Yours,
        TurnState::Wait => Gate::Wait,
    }
}

fn anomalies(anomalies: accounting::TurnAnomalies) -> TurnAnomalies {
    let accounting::TurnAnomalies { over, under, invalid, overruns, missed, hidden } = anomalies;
    TurnAnomalies { over, under, invalid, overruns, missed, hidden }
}

fn share(host: &Host, container: &Container, device: &DeviceState, now: Nanos) -> ShareStatus {
    let mut status = ShareStatus {
        gpu: device.index,
        uuid: device.name(),
        limit: container.limit(device.uuid).0,
        weight: Some(host.capacity(device).of(container).weight),
        ..ShareStatus::default()
    };
    if let Some(share) = device.scheduler.share(now, container.tenant) {
        status.share_set = f64::from(share.set) / 1000.0;
        status.share_second = share.second.map(|measured| f64::from(measured.share) / 1000.0);
        status.share_estimated = share.second.is_some_and(|measured| !measured.exact);
        status.waits = share.account.waits;
        status.waited_ms = millis(share.account.waited);
        status.share_total = share.total;
        status.gpu_time_ms = millis(share.account.charged);
        status.forgiven_ms = millis(share.account.forgiven);
        status.reported_ms = millis(share.account.reported);
        status.gate = gate(share.gate);
        status.turns = share.account.turns;
        status.anomalies = anomalies(share.account.anomalies);
    }
    status.utilization = device.sample.utilization_of(container.tenant.0);
    take_ledger(&mut status, container, device);
    status.wall = host.wall_status(container, device);
    status
}

/// Fills in what a container's ledger has of a device.
fn take_ledger(status: &mut ShareStatus, container: &Container, device: &DeviceState) {
    let Some(region) = &container.region else { return };
    let Some(seen) = region.gpu(device.uuid).and_then(|gpu| region.seen.gpus.get(gpu.get())) else {
        return;
    };
    let cells = || region.seen.present(seen).map(|(_, cell)| cell);
    let (orphan, used) = (region.seen.orphan(seen), cells().map(Cell::kept).sum::<Bytes>());
    status.orphan = orphan.0;
    status.used = (used - orphan).0;
    status.implicit = cells().map(Cell::corrected).sum::<Bytes>().0;
    status.unaccounted = cells().map(|cell| cell.unaccounted).fold(0, i64::saturating_add);
    let is_draining = |slot| container.draining.keys().any(|(other, _)| other.get() == slot);
    let draining = region.seen.present(seen).filter(|(slot, _)| is_draining(*slot));
    status.draining = draining.map(|(_, cell)| cell.total()).sum::<Bytes>().0;
}

fn processes(container: &Container, devices: &[DeviceState], now: Nanos) -> Vec<ProcessStatus> {
    let Some(region) = &container.region else { return Vec::new() };
    let slots = region.seen.slots.iter().enumerate();
    let slots = slots.filter_map(|(index, slot)| Some((SlotIndex::new(index)?, slot)));
    slots
        .filter(|(_, slot)| matches!(slot.word.state(), Some(State::Live | State::Draining)))
        .filter(|(_, slot)| !slot.drained)
        .map(|(index, slot)| {
            let key = (index, slot.word.generation().get());
            let gpus = devices.iter().filter_map(|device| {
                let seen = region.seen.gpus.get(region.gpu(device.uuid)?.get())?;
                let cell = seen.cells.get(index.get())?;
                Some(ProcessGpu {
                    gpu: device.index,
                    used: cell.kept().0,
                    implicit: cell.corrected().0,
                    unaccounted: cell.unaccounted,
                    peak: cell.peak.0,
                    busy_us: cell.busy.0 / 1000,
                    launches: cell.launches,
                    waiting: cell.waiting > 0,
                })
            });
            ProcessStatus {
                slot: u32::from(index.0),
                pid: slot.pid,
                host_pid: container.host_ids.get(&key).copied().flatten().map(|id| id.pid),
                comm: slot.comm.clone(),
                live: region.live.contains(&key),
                since_ms: (now - slot.since).0 / 1_000_000,
                gpus: gpus.collect(),
                counters: counted(&slot.counters)
                    .map(|(name, count)| (name.into(), count))
                    .collect(),
            }
        })
        .collect()
}

fn millis(time: Nanos) -> f64 {
    time.duration().as_secs_f64() * 1000.0
}
