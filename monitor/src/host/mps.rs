//! MPS: whether it runs the work of several containers on a GPU at the same time.
//!
//! The clients of a server of MPS compute at the same time, so a turn would hold back containers
//! without giving one of them the GPU, and no clock tells whose time it was. Where two containers
//! are clients, the GPU has the native policy until they no longer are.
//!
//! Only NVML and the kernel are heard. A program learns from the driver whether it is a client
//! (`CU_DEVICE_ATTRIBUTE_MPS_ENABLED`), but its word would let one container end the turns of the
//! others. For the same reason a server counts only if it belongs to no container, and a container
//! only if it has no server: each container has the programs of MPS, and a server of its own runs
//! its own work alone.

use std::collections::BTreeSet;

use crate::probe::GpuSample;

/// The name of a server, as far as the kernel keeps it: `nvidia-cuda-mps-server`.
const SERVER: &str = "nvidia-cuda-mps";

/// Returns why containers on a GPU have no turns, by a sample; none: they can have turns.
pub(super) fn overlap(gpu: &GpuSample) -> Option<String> {
    let is_client = |pid| gpu.mps_clients.contains(&pid);
    let processes = || gpu.gpu_processes.iter();
    let servers =
        || processes().filter(|process| process.comm == SERVER && !is_client(process.id.pid));
    let server = servers().find(|process| process.owner.is_none())?;
    let has_server = |container: &u64| servers().any(|process| process.owner == Some(*container));
    let clients = processes().filter(|process| is_client(process.id.pid));
    let containers: BTreeSet<u64> = clients
        .filter_map(|process| process.owner)
        .filter(|container| !has_server(container))
        .collect();
    (containers.len() >= 2).then(|| {
        format!(
            "MPS runs the work of {} containers at the same time (server: process {}).",
            containers.len(),
            server.id.pid
        )
    })
}

#[cfg(test)]
mod tests {
    use cgpu_client::message::Shim;
    use cgpu_shm::units::{Bytes, Nanos};
    use cgpu_shm::uuid::Uuid;

    use super::super::findings::tests::host;
    use super::*;
    use crate::probe::{BusyProcesses, GpuProcess, Sample};
    use crate::watcher::ProcessId;

    const GPU: Uuid = Uuid([7; 16]);

    fn process(pid: u32, owner: Option<u64>, comm: &str) -> GpuProcess {
        let id = ProcessId { pid, start_time: 1 };
        GpuProcess { id, comm: comm.into(), owner, shim: Shim::Bound, is_outside: false }
    }

    /// Makes a sample of processes 1 and up, with their owners. `server`: its owner.
    fn sample(owners: &[Option<u64>], clients: &[u32], server: Option<Option<u64>>) -> GpuSample {
        let programs = (1..).zip(owners).map(|(pid, owner)| process(pid, *owner, "python3"));
        let server = server.map(|owner| process(99, owner, SERVER));
        let gpu_processes: Vec<_> = programs.chain(server).collect();
        let processes = gpu_processes.iter().map(|one| (one.id.pid, Some(Bytes(1)))).collect();
        GpuSample {
            uuid: GPU,
            processes: Some(processes),
            mps_clients: clients.iter().copied().collect(),
            gpu_processes,
            ..GpuSample::default()
        }
    }

    #[test]
    fn containers_overlap_only_as_clients_of_a_server_outside_of_them() {
        let (a, b, outside) = (Some(1), Some(2), Some(None));
        for (case, owners, clients, server, expected) in [
            ("two containers", vec![a, b], vec![1, 2], outside, true),
            ("and a process of the host", vec![a, b, None], vec![1, 2, 3], outside, true),
            ("one container", vec![a, a], vec![1, 2], outside, false),
            ("one, and a process of the host", vec![a, None], vec![1, 2], outside, false),
            ("the other one is no client", vec![a, b], vec![1], outside, false),
            ("no clients", vec![a, b], vec![], outside, false),
            ("a container's own server", vec![a, b], vec![1, 2], Some(a), false),
            ("no server", vec![a, b], vec![1, 2], None, false),
            ("a client of the server's name", vec![a, b], vec![1, 2, 99], outside, false),
        ] {
            assert_eq!(overlap(&sample(&owners, &clients, server)).is_some(), expected, "{case}");
        }
        // A tenant's two containers, each with its own server, beside that of the host.
        let mut own = sample(&[a, b], &[1, 2], outside);
        own.gpu_processes.push(process(98, a, SERVER));
        assert_eq!(overlap(&own), None);
    }

    #[test]
    fn gpu_has_the_native_policy_as_long_as_containers_overlap() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut host = host(directory.path());
        let overlapping = || sample(&[Some(1), Some(2)], &[1, 2], Some(None));
        let policy = |host: &mut super::super::Host, second: u64, gpu: Option<GpuSample>| {
            let at = Nanos::from_millis(1000 * second);
            let sample = gpu.map(|gpu| Sample { at, gpus: vec![gpu], ..Sample::default() });
            host.take_sample(at, sample);
            (host.devices[0].scheduler.policy().number(), host.devices[0].mps.is_some())
        };
        assert_eq!(policy(&mut host, 1, Some(sample(&[Some(1)], &[], None))), (1, false));
        assert_eq!(policy(&mut host, 2, Some(overlapping())), (5, true));
        host.devices[0].settings.policy = Some(2);
        assert_eq!(policy(&mut host, 3, Some(overlapping())), (5, true), "set meanwhile");
        assert_eq!(policy(&mut host, 4, Some(sample(&[Some(1)], &[1], Some(None)))), (2, false));
        assert_eq!(policy(&mut host, 5, Some(overlapping())), (5, true));
        assert_eq!(policy(&mut host, 6, None), (2, false), "NVML does not answer");
    }

    /// Clients compute at the same time, so their percents add up to more than they had.
    #[test]
    fn clients_of_mps_have_at_most_the_time_that_others_leave() {
        let measured = |clients: &[u32], percents: &[(u32, u32)]| {
            let busy = BusyProcesses { span: None, percents: percents.iter().copied().collect() };
            let sample = GpuSample {
                busy: Some(busy),
                ..sample(&[Some(1), Some(1), Some(2)], clients, None)
            };
            [1, 2].map(|tenant| sample.measured(tenant))
        };
        let percents = [(1, 50), (2, 50), (3, 50)];
        assert_eq!(measured(&[1, 2], &percents), [50, 50]);
        assert_eq!(measured(&[], &percents), [66, 33], "what NVML rounds up");
        assert_eq!(
            measured(&[1, 2], &[(1, 30), (2, 45), (3, 25)]),
            [75, 25],
            "one after the other"
        );
        assert_eq!(measured(&[1, 2], &[(3, 100)]), [0, 100]);
        assert_eq!(measured(&[1], &[]), [0, 0]);
    }
}
