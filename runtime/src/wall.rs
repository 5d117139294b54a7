//! The driver's memory limit for a container's control group (`docs/internals/memory-wall.md`). The
//! monitor sets and removes it; this module asks for that, and refuses containers without one where
//! the host requires it.

use std::path::Path;

use cgpu_client::Client;
use cgpu_client::wall::{RegisteredWall, first_unset};
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
