//! Everything the monitor knows, for `cgpu smi`.

use std::collections::BTreeMap;

use cgpu_proto::reason::counted;
use cgpu_proto::slots::State;
use cgpu_proto::units::{Bytes, Nanos, SlotIndex};

use crate::control::free_weight;
use crate::host::Host;
use crate::host::board::Board;
use crate::host::container::Container;
use crate::message::{CardStatus, ContainerStatus, ProcessCard, ProcessStatus, ShareStatus, Status};

/// The whole of it, as of now.
pub(crate) fn of(host: &mut Host, now: Nanos) -> Status {
    for container in host.containers.values_mut() {
        if let Some(region) = &mut container.region {
            region.look();
        }
        container.note_deaths(now);
    }
    let mut containers: Vec<ContainerStatus> =
        host.containers.values().map(|container| self::container(container, &host.boards, now)).collect();
    containers.sort_by(|one, other| one.id.cmp(&other.id));
    Status {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_ms: (now - host.started).0 / 1_000_000,
        root: host.root.clone(),
        cards: (0..host.boards.len()).map(|at| card(host, at)).collect(),
        containers,
    }
}

fn card(host: &Host, at: usize) -> CardStatus {
    let board = &host.boards[at];
    let ours = |pid: &u32| {
        host.containers
            .values()
            .any(|container| container.host_pids.values().any(|host_pid| *host_pid == Some(*pid)))
    };
    let on_card = board.sample.processes.iter().flatten();
    CardStatus {
        index: board.index,
        uuid: board.uuid.to_string(),
        name: board.sample.name.clone(),
        memory_total: host.total(board),
        memory_used: board.sample.used,
        policy: board.controller.policy().number(),
        max_inst: board.settings.max_inst,
        free_weight: free_weight(host, at),
        prio_ratio: board.settings.prio_ratio,
        work_conserving: u32::from(board.settings.work_conserving),
        sharing: board.controller.sharing(),
        turns: board.controller.turns(),
        strangers: on_card.copied().filter(|pid| !ours(pid)).collect(),
    }
}

fn container(container: &Container, boards: &[Board], now: Nanos) -> ContainerStatus {
    let cards = container.cards();
    let mut faults: BTreeMap<String, String> =
        container.faults.iter().map(|(kind, sentence)| ((*kind).to_owned(), sentence.clone())).collect();
    let shares = boards.iter().filter(|board| cards.contains(&board.uuid));
    for board in shares.clone() {
        if board.controller.share(now, container.tenant).is_some_and(|share| share.lying) {
            let sentence = "What it writes cannot be: its turns go by the clock alone.";
            faults.insert("lied".into(), sentence.into());
        }
    }
    ContainerStatus {
        id: container.id.clone(),
        name: container.name(),
        dir: container.dir.clone(),
        weight: container.weight(),
        cards: shares.map(|board| share(container, board, now)).collect(),
        processes: processes(container, boards, now),
        refused: container.refused(),
        faults,
    }
}

fn share(container: &Container, board: &Board, now: Nanos) -> ShareStatus {
    let mut status = ShareStatus {
        card: board.index,
        uuid: board.uuid.to_string(),
        limit: container.limit(board.uuid).0,
        ..ShareStatus::default()
    };
    if let Some(share) = board.controller.share(now, container.tenant) {
        status.share_set = f64::from(share.set) / 1000.0;
        status.share_second = share.second;
        status.share_total = share.total;
        status.gpu_time_ms = millis(share.books.charged);
        status.reported_ms = millis(share.books.reported);
        status.gate = share.gate;
        status.turns = share.books.turns;
        status.odd = share.books.odd;
    }
    let Some(region) = &container.region else { return status };
    let Some(seen) = region.card(board.uuid).and_then(|card| region.seen.cards.get(card.get())) else {
        return status;
    };
    status.orphan = seen.orphan.0;
    status.used = seen.cells.iter().map(|cell| cell.used).sum::<Bytes>().0;
    status.implicit = seen.cells.iter().map(|cell| cell.implicit).sum::<Bytes>().0;
    let dead = container.draining.keys().filter_map(|(slot, _)| seen.cells.get(slot.get()));
    status.draining = dead.map(|cell| cell.used + cell.implicit).sum::<Bytes>().0;
    status
}

fn processes(container: &Container, boards: &[Board], now: Nanos) -> Vec<ProcessStatus> {
    let Some(region) = &container.region else { return Vec::new() };
    let slots = region.seen.slots.iter().enumerate();
    let slots = slots.filter_map(|(index, slot)| Some((SlotIndex::new(index)?, slot)));
    slots
        .filter(|(_, slot)| matches!(slot.word.state(), Some(State::Live | State::Draining)))
        .map(|(index, slot)| {
            let key = (index, slot.word.generation().get());
            let cards = boards.iter().filter_map(|board| {
                let seen = region.seen.cards.get(region.card(board.uuid)?.get())?;
                let cell = seen.cells.get(index.get())?;
                Some(ProcessCard {
                    card: board.index,
                    used: cell.used.0,
                    implicit: cell.implicit.0,
                    peak: cell.peak.0,
                    busy_us: cell.busy.0 / 1000,
                    launches: cell.launches,
                    waiting: cell.waiting > 0,
                })
            });
            ProcessStatus {
                slot: u32::from(index.0),
                pid: slot.pid,
                host_pid: container.host_pids.get(&key).copied().flatten(),
                comm: slot.comm.clone(),
                live: region.live.contains(&key),
                since_ms: (now - slot.since).0 / 1_000_000,
                cards: cards.collect(),
                counters: counted(&slot.counters).map(|(name, count)| (name.into(), count)).collect(),
            }
        })
        .collect()
}

fn millis(time: Nanos) -> f64 {
    time.duration().as_secs_f64() * 1000.0
}
