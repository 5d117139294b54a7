//! Hosts to draw.

use std::time::Duration;

use cgpu_client::message::{
    CardStatus, CardTurns, ContainerStatus, Gate, ProcessCard, ProcessStatus, ShareStatus, Sharing, Status,
    TurnStatus,
};

use crate::top::model::{Model, Seen};

fn card(index: u32) -> CardStatus {
    CardStatus {
        index: index.into(),
        uuid: format!("GPU-{index}"),
        name: "NVIDIA A10".into(),
        memory_total: 23028 << 20,
        memory_used: Some(9216 << 20),
        policy: 2,
        max_inst: 20,
        free_weight: 17,
        sharing: Sharing::Contended,
        turns: 1234,
        utilization: Some(97),
        switch_us: Some(104),
        slice_us: 6000,
        ..CardStatus::default()
    }
}

fn container(id: &str, cards: &[(u32, f64, f64, u64)]) -> ContainerStatus {
    let share = |&(card, set, got, mib): &(u32, f64, f64, u64)| ShareStatus {
        card: card.into(),
        limit: 8 << 30,
        used: mib << 20,
        implicit: 256 << 20,
        share_set: set,
        share_second: Some(got),
        gate: if card == 0 { Gate::Yours } else { Gate::Wait },
        turns: 77,
        waits: 12,
        waited_ms: 3456.0,
        gpu_time_ms: got * 100.0,
        ..ShareStatus::default()
    };
    let used = |&(card, _, _, mib): &(u32, f64, f64, u64)| ProcessCard {
        card: card.into(),
        used: mib << 20,
        ..ProcessCard::default()
    };
    let process = ProcessStatus {
        pid: 7,
        host_pid: Some(4711),
        comm: "trainer".into(),
        live: true,
        cards: cards.iter().map(used).collect(),
        ..ProcessStatus::default()
    };
    ContainerStatus {
        id: id.into(),
        name: format!("{id}-job"),
        weight: 1,
        cards: cards.iter().map(share).collect(),
        processes: vec![process],
        ..ContainerStatus::default()
    }
}

fn turns(card: u32, holders: &[(&str, u64)]) -> CardTurns {
    let mut ago_us = holders.iter().map(|(_, us)| us).sum();
    let turn = |(container, us): &(&str, u64)| {
        let turn = TurnStatus { container: (*container).into(), ago_us, us: *us };
        ago_us -= us;
        turn
    };
    CardTurns { card: card.into(), turns: holders.iter().map(turn).collect() }
}

fn model(cards: Vec<CardStatus>, containers: Vec<ContainerStatus>, turns: Vec<CardTurns>) -> Model {
    let status = Status {
        version: "1.2.3".into(),
        pid: 4700,
        uptime_ms: 7_260_000,
        root: "/run/cgpu".into(),
        cards,
        containers,
        ..Status::default()
    };
    let mut seen = Seen { status, turns };
    let mut model = Model::new(seen.clone(), Duration::from_secs(1));
    for step in 0..40_u32 {
        for container in &mut seen.status.containers {
            for share in &mut container.cards {
                share.share_second = share.share_second.map(|_| f64::from(step * 7 % 100));
                share.used = (u64::from(step) * 50) << 20;
            }
        }
        model.history.note(&seen.status);
    }
    model
}

/// Two containers take turns.
pub(crate) fn one_card() -> Model {
    let containers =
        vec![container("alpha", &[(0, 33.3, 33.1, 2048)]), container("bravo", &[(0, 66.7, 66.4, 4000)])];
    let held = [("alpha", 6000), ("bravo", 12_000), ("alpha", 6000), ("bravo", 12_000), ("alpha", 5000)];
    model(vec![card(0)], containers, vec![turns(0, &held)])
}

/// Three containers on two cards, one of them on both.
pub(crate) fn two_cards() -> Model {
    let containers = vec![
        container("alpha", &[(0, 50.0, 40.0, 2048)]),
        container("bravo", &[(0, 50.0, 60.0, 4000), (1, 25.0, 10.0, 100)]),
        container("charlie", &[(1, 75.0, 90.0, 300)]),
    ];
    let second = CardStatus { sharing: Sharing::Watched, name: String::new(), ..card(1) };
    model(vec![card(0), second], containers, vec![turns(0, &[("alpha", 40_000), ("bravo", 60_000)])])
}

/// More than fit.
pub(crate) fn crowd() -> Model {
    let containers = (0..60).map(|number| container(&format!("tenant-{number}"), &[(0, 1.0, 1.0, 10)]));
    model((0..9).map(card).collect(), containers.collect(), Vec::new())
}
