//! What lasts: an excess over the ledger, limits while NVML is away or the driver forgets them,
//! limits of groups that are gone, soft limits.

use std::collections::BTreeSet;

use cgpu_client::message::Cause;
use rustix::process::{Signal, kill_process};

use super::*;

/// A process that has mapped its container's region counts as one with the shim, also if it
/// accounts nothing. NVML shows no process for memory that a program without CUDA keeps by a
/// descriptor.
#[test]
fn memory_that_the_ledger_lacks_is_tampering_and_over_the_limit() {
    const LIMIT: u64 = 600;
    const KEPT: u64 = 800;
    Fixture::each("tampered", |fixture| {
        let monitor = fixture.monitor_with("wall_margin_mib = 512\n");
        let folder = fixture.folder(ID);
        let mut client = fixture.client(&folder);
        let dir = fixture.container(ID, LIMIT, client.pid());
        fixture.register(&monitor, &dir, client.pid());
        assert_eq!(client.command(&format!("map {}", dir.display())), "done");
        assert_eq!(client.command("context"), "done");
        let mut other = fixture.client(&folder);
        assert_eq!(other.command(&format!("keep {KEPT}")), "done");
        other.end();
        let is_tampered = || {
            let container = status(&monitor).containers.into_iter().next().unwrap();
            let fault = container.faults.get("tampered").cloned();
            fault.is_some_and(|message| message.contains("The driver has charged it more"))
        };
        eventually("tampering", is_tampered);
        eventually("a container over its limit", || {
            let mut findings = status(&monitor).findings.into_iter();
            findings.any(|finding| {
                let memory = (CONTEXT + KEPT) * MIB;
                finding.cause == Cause::OverLimit
                    && (finding.memory, finding.container_memory) == (Some(CONTEXT * MIB), memory)
            })
        });
        fs::write(folder.join("cgroup.kill"), "1").unwrap();
    });
}

/// NVML loses its GPUs again and again, and the driver forgets its list.
#[test]
fn limits_that_the_driver_forgets_are_set_again_and_no_other_program_is_blamed() {
    for wall_kind in [Wall::Dmem, Wall::Misc] {
        let figures = Figures { persistence: 0, ..figures_of(wall_kind) };
        let Some(fixture) = Fixture::with("forgets", figures) else { return };
        let fault = "nvmlDeviceGetCount_v2:p0.1:NVML_ERROR_GPU_IS_LOST";
        let variables = vec![("CGPU_SIM_FAULT", PathBuf::from(fault))];
        let monitor = fixture.monitor_in("wall_margin_mib = 0\n", variables);
        let folder = fixture.folder(ID);
        let mut client = fixture.client(&folder);
        let dir = fixture.container(ID, 1000, client.pid());
        fixture.register(&monitor, &dir, client.pid());
        let is_set = || {
            let wall = wall(&monitor, ID);
            fixture.hard(&folder) == Some(1000) && wall.hard == Some(1000 * MIB)
        };
        eventually("the limit", is_set);
        assert_eq!(client.command("context"), "done");
        assert_eq!(client.command("take 300"), "done");
        for _ in 0..2 {
            eventually("NVML away", || wall(&monitor, ID).absent.as_deref() == Some("no_nvml"));
            fixture.machine.clear_limits().unwrap();
            eventually("the limit again", is_set);
            assert_eq!(wall(&monitor, ID).changed, None, "{wall_kind:?}");
        }
        fixture.machine.clear_limits().unwrap();
        eventually("the limit again, while NVML answers", is_set);
        // Of what it held before, this back end charges nothing.
        let is_misc = wall_kind == Wall::Misc;
        eventually("its state", || {
            let wall = wall(&monitor, ID);
            assert_eq!(wall.changed, None, "{wall_kind:?}");
            wall.hard.is_some()
                && (wall.state == WallState::Partial, wall.is_forgotten) == (is_misc, is_misc)
        });
    }
}

/// The group goes with its processes, before the monitor can remove the limit.
#[test]
fn limits_of_groups_that_go_before_their_release_are_counted() {
    const ROUNDS: u64 = 8;
    Fixture::each("left", |fixture| {
        let monitor = fixture.monitor();
        let pid = monitor.pid();
        for number in 0..ROUNDS {
            let id = format!("{number:064}");
            let folder = fixture.folder(&id);
            let mut client = fixture.client(&folder);
            let dir = fixture.container(&id, 1000, client.pid());
            fixture.register(&monitor, &dir, client.pid());
            assert_eq!(fixture.hard(&folder), Some(1000));
            // The monitor does not run while the container ends.
            kill_process(pid, Signal::STOP).unwrap();
            client.end();
            ControlGroups::remove(&folder);
            kill_process(pid, Signal::CONT).unwrap();
            fs::remove_dir_all(&dir).unwrap();
        }
        let expected = if fixture.wall == Wall::Misc { ROUNDS } else { 0 };
        eventually("all of them", || {
            fixture.recorded() == 0 && status(&monitor).gpus[0].walls_left == expected
        });
        let uses = fixture.machine.group_uses(0).unwrap();
        let has_limit = |group: &&cgpu_sim::timeline::GroupUse| group.limit != GroupLimit::NONE;
        // With dmem the driver notices that a folder is gone when it sets the next limit.
        let left = uses.iter().filter(has_limit).count() as u64;
        assert!(left == expected || fixture.wall == Wall::Dmem && left <= 1, "{left}");
    });
}

/// A soft limit, which a container has under MPS, stays with the ancestors of a group that goes
/// before it is 0.
#[test]
fn soft_limits_of_many_containers_leave_nothing_on_their_ancestors() {
    let count: usize = std::env::var("CGPU_WALL_CONTAINERS")
        .map_or(1000, |count| count.parse().expect("CGPU_WALL_CONTAINERS is a number"));
    for wall in [Wall::Dmem, Wall::Misc] {
        let figures = Figures { mps: 1, ..figures_of(wall) };
        let Some(fixture) = Fixture::with("soft", figures) else { return };
        let monitor = fixture.monitor();
        let waiting = fixture.groups.create("waiting");
        let start = || {
            let mut client = fixture.client(&waiting);
            assert_eq!(client.command("context"), "done");
            eventually("a client of MPS", || {
                status(&monitor).gpus[0].unknown_processes.contains(&client.pid())
            });
            client
        };
        let soft = || -> BTreeSet<u64> {
            let uses = fixture.machine.group_uses(0).unwrap();
            uses.iter().map(|group| group.limit.soft / MIB).filter(|soft| *soft > 0).collect()
        };
        let mut client = start();
        for number in 0..count {
            // A client's watchdog ends it after a while.
            if number % 100 == 99 {
                client = start();
            }
            let id = format!("{number:064}");
            let folder = fixture.folder(&id);
            ControlGroups::move_to(client.pid(), &folder);
            let dir = fixture.container(&id, 1000, client.pid());
            fixture.register(&monitor, &dir, client.pid());
            // The group's own, and with dmem that of all of its ancestors.
            assert_eq!(soft(), BTreeSet::from([1000]), "{wall:?}: {id}");
            monitor.client().release(&dir, None).unwrap();
            assert_eq!(soft(), BTreeSet::new(), "{wall:?}: {id}");
            assert_eq!(fixture.hard(&folder), None, "{wall:?}: {id}");
            ControlGroups::move_to(client.pid(), &waiting);
            ControlGroups::remove(&folder);
            fs::remove_dir_all(&dir).unwrap();
        }
        assert_eq!((fixture.recorded(), status(&monitor).gpus[0].walls_left), (0, 0));
        let uses = fixture.machine.group_uses(0).unwrap();
        assert!(uses.iter().all(|group| group.limit == GroupLimit::NONE), "{uses:?}");
    }
}
