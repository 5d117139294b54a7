//! The hot upgrade: the state that a monitor transfers to its successor, and the successor's start.
//!
//! ```text
//!   running                             successor (cgpu-monitor --replace)
//!     |   SIGUSR2 or "upgrade" arrives     |  reads its configuration, loads NVML
//!     |   <------- "transfer" ------------ |  when it is ready
//!     |   closes turns, collects its state |
//!     |   -------- upgrade state --------> |  restores it, takes over the socket and the tree
//!   ends, leaves the gates as they are     |  writes heartbeats, within the second in which the
//!                                          |  gates count the monitor as running
//! ```
//!
//! Until the state is transferred nothing has changed, so a successor that fails earlier does no
//! harm. Connected clients are disconnected and send their requests again, which every request
//! allows.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cgpu_client::message::{Errno, Refusal, Registration};
use cgpu_scheduler::upgrade::{GpuState, TenantState};
use serde::{Deserialize, Serialize};

use crate::settings::Settings;
use crate::watcher::WatcherState;

/// The whole state. Fields that a later release adds have a default, so that each release can take
/// over from the one before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpgradeState {
    /// The release that wrote it.
    pub release: String,
    /// Settings made at run time.
    pub settings: Settings,
    /// Containers, in the order of their registration.
    pub containers: Vec<TransferredContainer>,
    /// The scheduler's state of each GPU and container.
    pub gpus: Vec<TransferredGpu>,
    /// Findings of the watcher.
    pub watcher: WatcherState,
}

impl UpgradeState {
    /// Parses the state of a predecessor. Settings that are out of range are left out; the message
    /// says why. To refuse the state would leave the host without a monitor.
    ///
    /// # Errors
    /// It is not a state.
    pub fn parse(state: serde_json::Value) -> serde_json::Result<(Self, Option<String>)> {
        let mut state: Self = serde_json::from_value(state)?;
        let refused = state.settings.check().err().map(|reason| {
            state.settings = Settings::default();
            format!("the predecessor's settings are not in force: {reason}")
        });
        Ok((state, refused))
    }
}

/// State of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferredContainer {
    /// Name of its folder in the control tree.
    pub id: String,
    /// Its directory on the host.
    pub dir: PathBuf,
    /// The last registration.
    pub registration: Option<Registration>,
    /// Living processes that registered it.
    pub registrants: Vec<i32>,
}

/// The scheduler's state of a GPU and its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferredGpu {
    /// `GPU-...`.
    pub uuid: String,
    /// State of the whole GPU.
    pub gpu: GpuState,
    /// State of each container, by its directory.
    pub containers: Vec<(PathBuf, TenantState)>,
}

impl TransferredGpu {
    /// Takes the state of the container of a directory.
    pub(crate) fn take(&mut self, dir: &Path) -> Option<TenantState> {
        let at = self.containers.iter().position(|own| own.0 == dir)?;
        Some(self.containers.swap_remove(at).1)
    }
}

/// Starts a successor and watches it.
#[derive(Debug, Default)]
pub(crate) struct Successor {
    program: Option<PathBuf>,
    successor: Option<Child>,
}

impl Successor {
    /// Records the path of the running program. A file that is installed there later is the
    /// successor.
    pub(crate) fn prepare() -> Self {
        Self { program: std::env::current_exe().ok(), successor: None }
    }

    /// Starts a successor with this process's arguments. It will request the state when it is
    /// ready.
    pub(crate) fn begin(&mut self) -> Result<(), Refusal> {
        if self.successor.is_some() {
            return Err(Refusal::new(Errno::EBUSY, "A successor is already starting."));
        }
        let missing = || Refusal::new(Errno::EIO, "The path of this program is unknown.");
        let program = self.program.as_ref().ok_or_else(missing)?;
        let own = std::env::args_os().skip(1).filter(|argument| argument != "--replace");
        let mut command = Command::new(program);
        command.args(own).arg("--replace").stdin(Stdio::null());
        let child = command.spawn().map_err(|error| {
            Refusal::new(Errno::EIO, format!("Cannot start {}: {error}.", program.display()))
        })?;
        tracing::info!("successor {} is starting", child.id());
        self.successor = Some(child);
        Ok(())
    }

    pub(crate) fn check(&mut self) {
        if let Some(child) = &mut self.successor
            && let Ok(Some(status)) = child.try_wait()
        {
            tracing::warn!("the successor has failed ({status}); this monitor continues");
            self.successor = None;
        }
    }
}
