//! The hot upgrade: what a monitor leaves to its successor, and how the successor comes to be.
//!
//! ```text
//!   running                             successor (cgpu-monitor --replace)
//!     |   told to: SIGUSR2, "upgrade"      |  reads its configuration, loads NVML
//!     |   <------- "transfer" ------------ |  when it is ready
//!     |   closes the turns, writes down    |
//!     |   -------- upgrade state --------> |  takes the state, the socket's name, the tree's place
//!   ends, gates as they are                |  beats: within the second in which gates believe in a monitor
//! ```
//!
//! Until the state is transferred nothing has changed: a successor that fails before costs nothing. Clients that were connected are cut off and
//! ask again, which every request allows.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use cgpu_client::message::{Errno, Refusal, Registration};
use cgpu_scheduler::upgrade::{GpuState, TenantState};
use serde::{Deserialize, Serialize};

use crate::settings::Settings;
use crate::watcher::WatcherState;

/// All of it. What a later release adds has a default, so that each can take over from the one before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpgradeState {
    /// The release that wrote it.
    pub release: String,
    /// What people have set.
    pub settings: Settings,
    /// Containers, in the order in which they became known.
    pub containers: Vec<TransferredContainer>,
    /// The scheduler's state of each GPU and container.
    pub gpus: Vec<TransferredGpu>,
    /// What the watcher has found.
    pub watcher: WatcherState,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferredContainer {
    /// Its folder in the control tree.
    pub id: String,
    /// Its directory on the host.
    pub dir: PathBuf,
    /// The last registration.
    pub registration: Option<Registration>,
    /// The processes that registered it and live.
    pub registrants: Vec<i32>,
}

/// The scheduler's state of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferredGpu {
    /// `GPU-...`.
    pub uuid: String,
    /// Of the whole GPU.
    pub gpu: GpuState,
    /// By container's directory.
    pub containers: Vec<(PathBuf, TenantState)>,
}

/// How to start a successor, and the one that has been started.
#[derive(Debug, Default)]
pub(crate) struct Successor {
    program: Option<PathBuf>,
    successor: Option<Child>,
}

impl Successor {
    /// By the program's place as of now: what lies there later is the successor.
    pub(crate) fn prepare() -> Self {
        Self { program: std::env::current_exe().ok(), successor: None }
    }

    /// Starts one, with our own arguments. It shows itself when it requests the state.
    pub(crate) fn begin(&mut self) -> Result<(), Refusal> {
        if self.successor.is_some() {
            return Err(Refusal::new(Errno::EBUSY, "A successor is being started."));
        }
        let missing = || Refusal::new(Errno::EIO, "It is not known where this program lies.");
        let program = self.program.as_ref().ok_or_else(missing)?;
        let own = std::env::args_os().skip(1).filter(|argument| argument != "--replace");
        let mut command = Command::new(program);
        command.args(own).arg("--replace").stdin(Stdio::null());
        let child = command.spawn().map_err(|error| {
            Refusal::new(Errno::EIO, format!("{} cannot be started: {error}.", program.display()))
        })?;
        tracing::info!("successor {} is starting", child.id());
        self.successor = Some(child);
        Ok(())
    }

    /// Notices that one has failed.
    pub(crate) fn check(&mut self) {
        if let Some(child) = &mut self.successor
            && let Ok(Some(status)) = child.try_wait()
        {
            tracing::warn!("the successor has failed ({status}); this monitor goes on");
            self.successor = None;
        }
    }
}
