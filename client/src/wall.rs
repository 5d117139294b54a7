//! The driver's memory limit for a container's control group, as the monitor reports it
//! (`docs/internals/memory-wall.md`).

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cgpu_shm::paths;
use serde::{Deserialize, Serialize};

/// What holds a container's memory limit on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WallState {
    /// The driver limits the container's control group, and all of its programs have the shim,
    /// which refuses managed memory beyond the limit.
    Driver,
    /// The driver limits the control group. A program without the shim could take managed memory,
    /// which the driver does not charge.
    DriverExceptManaged,
    /// The driver limits the control group, and does not charge all that the container holds.
    Partial,
    /// The shim alone.
    #[default]
    Shim,
}

impl WallState {
    /// All of them, the strongest first.
    pub const ALL: [Self; 4] = [Self::Driver, Self::DriverExceptManaged, Self::Partial, Self::Shim];

    /// Returns the name in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::DriverExceptManaged => "driver_except_managed",
            Self::Partial => "partial",
            Self::Shim => "shim",
        }
    }

    /// Whether the driver limits the control group.
    #[must_use]
    pub const fn is_set(self) -> bool {
        !matches!(self, Self::Shim)
    }
}

impl fmt::Display for WallState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(cgpu_text::wall::words(self.name()))
    }
}

/// A container's wall on a device, in the reply to its registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredWall {
    /// The device: `GPU-...` or `MIG-...`.
    pub uuid: String,
    /// What holds the limit.
    pub state: WallState,
    /// Why it is not [`WallState::Driver`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why the container must not start: the monitor's configuration cannot apply to this device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Returns why a container must not start, even where no wall is required: the monitor's
/// configuration cannot apply to one of its devices. None: it may.
#[must_use]
pub fn refusal(walls: &[RegisteredWall]) -> Option<String> {
    walls.iter().find_map(|RegisteredWall { uuid, error, .. }| {
        let error = error.as_ref()?;
        Some(format!("cannot set the driver's memory limit on {uuid}: {error}"))
    })
}

/// Returns the first of these devices that has no wall that holds all new memory, and why. `walls`:
/// what the monitor replied, or why there is no reply.
#[must_use]
pub fn first_unset<'a>(
    devices: impl IntoIterator<Item = &'a str>,
    walls: Result<&'a [RegisteredWall], &'a str>,
) -> Option<(&'a str, &'a str)> {
    devices.into_iter().find_map(|device| {
        let why = match walls.map(|walls| walls.iter().find(|wall| wall.uuid == device)) {
            Err(why) => why,
            Ok(Some(RegisteredWall {
                state: WallState::Driver | WallState::DriverExceptManaged,
                ..
            })) => return None,
            Ok(Some(wall)) => wall.reason.as_deref().unwrap_or(wall.state.name()),
            Ok(None) => "the monitor reports no state of it",
        };
        Some((device, why))
    })
}

/// The part of the monitor's record of walls that other programs read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Recorded {
    groups: Vec<RecordedGroup>,
}

#[derive(Deserialize)]
struct RecordedGroup {
    folder: PathBuf,
    /// Device and inode of the folder.
    identity: (u64, u64),
}

/// Returns the folders of the control groups that the driver limits for the containers of a
/// directory, by the monitor's record.
#[must_use]
pub fn limited_groups(root: &Path, dir: &Path) -> Vec<PathBuf> {
    let record = paths::walls(root).join(dir.file_name().unwrap_or_default());
    let recorded = fs::read(record).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let Recorded { groups } = recorded.unwrap_or_default();
    // A later group may have the same path.
    let is_there = |group: &RecordedGroup| {
        let about = fs::metadata(&group.folder);
        about.is_ok_and(|about| (about.dev(), about.ino()) == group.identity)
    };
    groups.into_iter().filter(is_there).map(|group| group.folder).collect()
}

/// A container's wall on a device, in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WallStatus {
    /// What holds the limit.
    pub state: WallState,
    /// Why it is not [`WallState::Driver`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the reason, where [`WallState::Shim`] holds the limit: `off`, `old_driver`,
    /// `refused` and others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    /// The driver's limit for the control group, in bytes, as last read; none: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard: Option<u64>,
    /// How much the limit that the monitor sets exceeds the container's, in bytes.
    #[serde(default)]
    pub margin: u64,
    /// What the driver charges the control group, in bytes; none: it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// The part of `used` that the ledger does not have, in bytes: it came past the shim.
    #[serde(default)]
    pub excess: u64,
    /// What another program did with the limit, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
    /// Whether the driver forgets the limit when no program uses the GPU and no monitor runs: it
    /// keeps limits in a list of its own, and the GPU's persistence mode is off.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_forgotten: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl fmt::Display for WallStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&cgpu_text::wall::held_by(self.state.name(), self.absent.as_deref()))?;
        let Some(hard) = self.hard else { return Ok(()) };
        write!(f, " ({} MiB, margin {} MiB", hard >> 20, self.margin >> 20)?;
        if self.is_forgotten {
            write!(f, ", {}", cgpu_text::wall::FORGOTTEN)?;
        }
        f.write_str(")")
    }
}

impl WallStatus {
    /// Least [`WallStatus::excess`] that says something, in bytes: a context is charged a little
    /// before it is accounted.
    pub const MIN_EXCESS: u64 = 256 << 20;

    /// Whether no container of the device can have such a limit: the reason is the host's.
    #[must_use]
    pub fn is_absent_everywhere(&self) -> bool {
        matches!(self.absent.as_deref(), Some("off" | "old_driver" | "no_nvml"))
    }

    /// Whether the driver refused to limit the group.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self.absent.as_deref(), Some("refused" | "no_dmem" | "not_found"))
    }

    /// Whether the driver charges the group more than the ledger has.
    #[must_use]
    pub const fn disagrees(&self) -> bool {
        self.excess >= Self::MIN_EXCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_its_name_in_data() {
        for state in WallState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
        assert_eq!(WallState::DriverExceptManaged.to_string(), "driver, except managed memory");
    }

    #[test]
    fn margin_that_cannot_apply_refuses_the_start() {
        let wall = |uuid: &str, error: Option<&str>| RegisteredWall {
            uuid: uuid.into(),
            state: WallState::Driver,
            reason: None,
            error: error.map(str::to_owned),
        };
        assert_eq!(refusal(&[wall("GPU-1", None)]), None);
        let refused = refusal(&[wall("GPU-1", None), wall("GPU-2", Some("a reason"))]);
        let expected = "cannot set the driver's memory limit on GPU-2: a reason";
        assert_eq!(refused.as_deref(), Some(expected));
        // A monitor of an earlier release does not say.
        let earlier: RegisteredWall =
            serde_json::from_str(r#"{"uuid":"GPU-1","state":"shim"}"#).unwrap();
        assert_eq!(refusal(&[earlier]), None);
    }

    #[test]
    fn what_holds_a_limit_is_said_in_words() {
        let text = |state, absent: Option<&str>, hard, margin| {
            let absent = absent.map(str::to_owned);
            WallStatus { state, absent, hard, margin, ..WallStatus::default() }.to_string()
        };
        let driver = text(WallState::DriverExceptManaged, None, Some(9 << 30), 1 << 30);
        assert_eq!(driver, "driver, except managed memory (9216 MiB, margin 1024 MiB)");
        let shim = |absent| text(WallState::Shim, Some(absent), None, 0);
        assert_eq!(shim("old_driver"), "shim (driver older than r615)");
        let (state, hard) = (WallState::Driver, Some(9 << 30));
        let forgotten =
            WallStatus { state, hard, is_forgotten: true, ..WallStatus::default() }.to_string();
        assert_eq!(forgotten, "driver (9216 MiB, margin 0 MiB, persistence mode off)");
    }
}
