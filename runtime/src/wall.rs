//! The driver's memory limit for a container's control group (`docs/internals/memory-wall.md`). The
//! monitor sets and removes it; this module asks for that, and refuses containers without one where
//! the host requires it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cgpu_client::Client;
use cgpu_client::control_group::{is_populated, named};
use cgpu_client::wall::{RegisteredWall, first_unset, limited_groups};
use cgpu_shm::limits::Limits;
use cgpu_shm::paths;
use serde::Deserialize;

use crate::config::PATH;
use crate::folder::Folder;
use crate::gpus::MONITOR_TIMEOUT;
use crate::plan::Refusal;

/// Variables by which NVIDIA's container toolkit sets the driver's limit. An image could replace
/// the monitor's limit by them.
pub const VARIABLES: [&str; 2] = ["NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"];

/// The warning where a container's environment has these variables.
pub const REMOVED: &str = "NVIDIA_GPU_MEMORY_REQUEST and NVIDIA_GPU_MEMORY_LIMIT are removed from \
    the container's environment: they would replace the limit that cgpu sets; \
    ALIYUN_COM_GPU_MEM_CONTAINER requests one";

/// Timeout for the processes of a container to stop.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for them to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks of them.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Whether a container starts without the driver's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wall {
    /// It starts: the driver may be older.
    #[default]
    Auto,
    /// It does not.
    Required,
}

/// Checks that the driver limits the container on each of its GPUs. `registered`: what the monitor
/// replied, or why there is no reply.
///
/// # Errors
/// It does not on one of them.
pub(crate) fn check(
    limits: &Limits,
    registered: Result<&[RegisteredWall], &str>,
) -> Result<(), Refusal> {
    let gpus: Vec<String> = limits.gpus.iter().map(|(uuid, _)| uuid.to_string()).collect();
    match first_unset(gpus.iter().map(String::as_str), registered) {
        None => Ok(()),
        Some((gpu, why)) => Err(Refusal(format!(
            "the driver does not hold the container's memory limit on {gpu}: {why} (wall = \
             \"required\" in {PATH}; \"auto\" starts containers without it)"
        ))),
    }
}

/// The control groups of a container that is deleted, whose processes are stopped. Otherwise they
/// could take memory between the end of the driver's limit and their own. They end after it, since
/// service managers remove empty groups at once.
#[derive(Debug)]
pub struct Frozen(Vec<PathBuf>);

/// Stops the processes of a container in the groups that the driver limits. `is_known`: whether the
/// next runtime has the container, so that its `delete` ends them.
#[must_use]
pub fn freeze(root: &Path, folder: &Folder, id: &str, is_known: impl FnOnce() -> bool) -> Frozen {
    let mut groups = limited_groups(root, folder.path());
    // Containers that share a claim have a folder together.
    groups.retain(|group| named(group, id).as_ref() == Some(group) && is_populated(group));
    if groups.is_empty() || !is_known() {
        return Frozen(Vec::new());
    }
    groups.retain(|group| fs::write(group.join("cgroup.freeze"), "1").is_ok());
    // One that is in the kernel for longer stops when it comes back.
    wait_for(FREEZE_TIMEOUT, || groups.iter().all(|group| is_frozen(group)));
    Frozen(groups)
}

impl Frozen {
    /// Ends the processes.
    pub fn kill(self) {
        let Self(mut groups) = self;
        // An older kernel has no such file: then the next runtime ends them.
        groups.retain(|group| fs::write(group.join("cgroup.kill"), "1").is_ok());
        wait_for(END_TIMEOUT, || !groups.iter().any(|group| is_populated(group)));
        for group in groups.iter().filter(|group| !is_populated(group)) {
            // The next runtime would take it for a container that is paused.
            let _ = fs::write(group.join("cgroup.freeze"), "0");
        }
    }
}

/// Whether all processes of a group, and of those below it, are stopped.
fn is_frozen(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "frozen 1")
}

fn wait_for(timeout: Duration, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() && begun.elapsed() < timeout {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Removes the driver's limits of a container that ends, before its control group is removed. A
/// monitor that is absent or hangs removes them later, or there are none.
pub fn release(root: &Path, folder: &Path, pid: Option<i32>) {
    let _ = Client::connect_within(&paths::socket(root), MONITOR_TIMEOUT)
        .and_then(|mut monitor| monitor.release(folder, pid));
}

/// As [`release`], of a container that may have its folder with others.
pub fn release_own(root: &Path, folder: &Folder) {
    match folder.first_process() {
        None if folder.has_others() => {}
        pid => release(root, folder.path(), pid.filter(|_| folder.has_others())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use cgpu_client::wall::WallState;
    use cgpu_shm::units::Bytes;

    use super::*;

    #[test]
    fn release_names_the_folder_and_a_hanging_monitor_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        release(root.path(), Path::new("/absent"), None);
        let listener = UnixListener::bind(paths::socket(root.path())).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            sender.send(request).unwrap();
            // It never answers.
            std::thread::park();
        });
        release(root.path(), Path::new("/c/a"), Some(7));
        let request: serde_json::Value = serde_json::from_str(&receiver.recv().unwrap()).unwrap();
        assert_eq!(request, serde_json::json!({ "op": "release", "dir": "/c/a", "pid": 7 }));
    }

    #[test]
    fn container_without_a_required_wall_is_refused_with_gpu_and_reason() {
        let gpus = [
            "GPU-8c6ea7d1-3d61-4d23-ae64-341c70d54062",
            "GPU-8c6ea7d1-3d61-4d23-ae64-341c70d54063",
        ];
        let limits = Limits {
            gpus: gpus.iter().map(|uuid| (uuid.parse().unwrap(), Bytes(1 << 30))).collect(),
            ..Limits::default()
        };
        let wall = |gpu: usize, state, reason: Option<&str>| RegisteredWall {
            uuid: gpus[gpu].into(),
            state,
            reason: reason.map(str::to_owned),
            error: None,
        };
        let set = wall(0, WallState::Driver, None);
        let managed = wall(1, WallState::DriverExceptManaged, Some("managed memory"));
        check(&limits, Ok(&[set.clone(), managed])).unwrap();
        for (second, why) in [
            (Some(wall(1, WallState::Shim, Some("the driver is older"))), "the driver is older"),
            (Some(wall(1, WallState::Partial, None)), "partial"),
            (None, "reports no state"),
        ] {
            let walls: Vec<_> = [set.clone()].into_iter().chain(second).collect();
            let refused = check(&limits, Ok(&walls)).unwrap_err().to_string();
            assert!(refused.contains(gpus[1]) && refused.contains(why), "{refused}");
        }
        let refused = check(&limits, Err("no monitor")).unwrap_err().to_string();
        assert!(
            refused.contains(gpus[0]) && refused.contains(": no monitor (wall = \"required\""),
            "{refused}"
        );
    }
}
