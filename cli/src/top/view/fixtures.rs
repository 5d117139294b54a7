//! Models for the tests of views and updates.

use std::time::Duration;

use cgpu_client::board::Board;
use cgpu_client::message::{
    ContainerStatus, Gate, GpuStatus, GpuTurns, ProcessGpu, ProcessStatus, ShareStatus, Sharing,
    Status, TurnStatus,
};

use crate::fixtures::gpu;
use crate::top::model::{Model, Sample};

fn container(id: &str, gpus: &[(u32, f64, f64, u64)]) -> ContainerStatus {
    let share = |&(gpu, set, got, mib): &(u32, f64, f64, u64)| ShareStatus {
        gpu: gpu.into(),
        limit: 8 << 30,
        used: mib << 20,
        implicit: 256 << 20,
        share_set: set,
        share_second: Some(got),
        gate: if gpu == 0 { Gate::Yours } else { Gate::Wait },
        turns: 77,
        waits: 12,
        waited_ms: 3456.0,
        gpu_time_ms: got * 100.0,
        ..ShareStatus::default()
    };
    let used = |&(gpu, _, _, mib): &(u32, f64, f64, u64)| ProcessGpu {
        gpu: gpu.into(),
        used: mib << 20,
        ..ProcessGpu::default()
    };
    let process = ProcessStatus {
        pid: 7,
        host_pid: Some(4711),
        comm: "trainer".into(),
        live: true,
        gpus: gpus.iter().map(used).collect(),
        ..ProcessStatus::default()
    };
    ContainerStatus {
        id: id.into(),
        name: format!("{id}-job"),
        weight: 1,
        gpus: gpus.iter().map(share).collect(),
        processes: vec![process],
        ..ContainerStatus::default()
    }
}

fn turns(gpu: u32, holders: &[(&str, u64)]) -> GpuTurns {
    let mut ago_us = holders.iter().map(|(_, us)| us).sum();
    let turn = |(container, us): &(&str, u64)| {
        let turn = TurnStatus { container: (*container).into(), ago_us, us: *us };
        ago_us -= us;
        turn
    };
    GpuTurns { gpu: gpu.into(), turns: holders.iter().map(turn).collect() }
}

fn model(gpus: Vec<GpuStatus>, containers: Vec<ContainerStatus>, turns: Vec<GpuTurns>) -> Model {
    let status = Status {
        version: "1.2.3".into(),
        pid: 4700,
        uptime_ms: 7_260_000,
        root: "/run/cgpu".into(),
        gpus,
        containers,
        ..Status::default()
    };
    let mut sample = Sample { status, turns };
    let mut model = Model::new(sample.clone(), Duration::from_secs(1));
    for step in 0..40_u32 {
        for container in &mut sample.status.containers {
            for share in &mut container.gpus {
                share.share_second = share.share_second.map(|_| f64::from(step * 7 % 100));
                share.used = (u64::from(step) * 50) << 20;
            }
        }
        model.history.push(&sample.status);
    }
    model
}

/// Two containers that take turns.
pub(crate) fn one_gpu() -> Model {
    let containers = vec![
        container("alpha", &[(0, 33.3, 33.1, 2048)]),
        container("bravo", &[(0, 66.7, 66.4, 4000)]),
    ];
    let held =
        [("alpha", 6000), ("bravo", 12_000), ("alpha", 6000), ("bravo", 12_000), ("alpha", 5000)];
    model(vec![gpu(0)], containers, vec![turns(0, &held)])
}

/// Three containers on two GPUs, one of them on both.
pub(crate) fn two_gpus() -> Model {
    let containers = vec![
        container("alpha", &[(0, 50.0, 40.0, 2048)]),
        container("bravo", &[(0, 50.0, 60.0, 4000), (1, 25.0, 10.0, 100)]),
        container("charlie", &[(1, 75.0, 90.0, 300)]),
    ];
    let second = GpuStatus {
        sharing: Sharing::Watched,
        name: String::new(),
        board: Board::default(),
        ..gpu(1)
    };
    model(vec![gpu(0), second], containers, vec![turns(0, &[("alpha", 40_000), ("bravo", 60_000)])])
}

/// More GPUs and containers than fit on a screen.
pub(crate) fn many() -> Model {
    let containers =
        (0..60).map(|number| container(&format!("tenant-{number}"), &[(0, 1.0, 1.0, 10)]));
    model((0..9).map(gpu).collect(), containers.collect(), Vec::new())
}
