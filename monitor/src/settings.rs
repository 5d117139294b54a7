//! Settings made at run time, which survive a restart: one JSON file, replaced as a whole.
//!
//! It contains only what was set; for the rest the configuration counts, then the default. A file
//! that cannot be parsed, or is no regular file, is renamed, so that it is neither ignored nor
//! overwritten.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::ops::RangeInclusive;
use std::path::Path;

use cgpu_shm::regular_file;
use serde::{Deserialize, Serialize};

/// Ranges of settings in the control tree, and of the configuration keys with the same names.
pub(crate) mod bounds {
    use std::ops::RangeInclusive;

    pub(crate) const POLICY: RangeInclusive<u64> = 0..=cgpu_scheduler::policy::Policy::HIGHEST;
    /// Capacity units of a GPU.
    pub(crate) const MAX_INST: RangeInclusive<u64> = 1..=25;
    pub(crate) const PRIO_RATIO: RangeInclusive<u64> = 20..=99;
    pub(crate) const SWITCH: RangeInclusive<u64> = 0..=1;
    pub(crate) const WEIGHT: RangeInclusive<u64> = 1..=25;
    pub(crate) const PERCENT: RangeInclusive<u64> = 0..=100;
    pub(crate) const BYTES: RangeInclusive<u64> = 0..=u64::MAX;
}

/// All settings that survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Version of the file; absent in the first version.
    version: Version,
    /// Memory limit in bytes for containers that come without one; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_memsize: Option<u64>,
    /// By the GPU's UUID.
    pub gpus: BTreeMap<String, GpuSettings>,
    /// By the container's id.
    pub containers: BTreeMap<String, ContainerSettings>,
}

/// The file's version. This release writes and reads the first only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
struct Version;

const VERSION: u32 = 1;

impl TryFrom<u32> for Version {
    type Error = String;

    fn try_from(version: u32) -> Result<Self, String> {
        if version == VERSION {
            Ok(Self)
        } else {
            Err(format!("expected version {VERSION}, found {version}: it is another release's"))
        }
    }
}

impl From<Version> for u32 {
    fn from(_: Version) -> Self {
        VERSION
    }
}

/// Settings of a GPU; none: never set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuSettings {
    /// 0..5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<u32>,
    /// 1..25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_inst: Option<u32>,
    /// 20..99.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prio_ratio: Option<u32>,
    /// Idle shares are used by others under policy 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_conserving: Option<bool>,
}

impl GpuSettings {
    /// Returns these settings where they are set, else those of `below`.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            policy: self.policy.or(below.policy),
            max_inst: self.max_inst.or(below.max_inst),
            prio_ratio: self.prio_ratio.or(below.prio_ratio),
            work_conserving: self.work_conserving.or(below.work_conserving),
        }
    }

    /// Returns the GPU's capacity in units.
    #[must_use]
    pub fn max_inst(&self) -> u32 {
        self.max_inst.unwrap_or(20)
    }

    /// Returns the percentage of the GPU that high priority may take.
    #[must_use]
    pub fn prio_ratio(&self) -> u32 {
        self.prio_ratio.unwrap_or(80)
    }

    /// Idle shares are used by others under policy 2.
    #[must_use]
    pub fn work_conserving(&self) -> bool {
        self.work_conserving.unwrap_or(false)
    }

    /// Checks that each value is within its range.
    fn check(&self) -> Result<(), String> {
        for (name, value, bounds) in [
            ("policy", self.policy, bounds::POLICY),
            ("max_inst", self.max_inst, bounds::MAX_INST),
            ("prio_ratio", self.prio_ratio, bounds::PRIO_RATIO),
        ] {
            within(name, value, &bounds)?;
        }
        Ok(())
    }
}

fn within(name: &str, value: Option<u32>, bounds: &RangeInclusive<u64>) -> Result<(), String> {
    match value.filter(|value| !bounds.contains(&u64::from(*value))) {
        Some(value) => {
            Err(format!("{name}: expected {} to {}, found {value}", bounds.start(), bounds.end()))
        }
        None => Ok(()),
    }
}

/// Settings of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContainerSettings {
    /// 1..25; none: the weight that it was started with.
    pub weight: Option<u32>,
    /// Its share of each GPU, 1..100; none: the percentage that it was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// Whether it has high priority; none: as it was started.
    pub high: Option<bool>,
    /// Memory limit in bytes by the GPU's UUID.
    pub memsize: BTreeMap<String, u64>,
}

const SETTINGS_FILE: &str = "settings.json";
/// Name of a settings file that could not be parsed.
const REFUSED_FILE: &str = "settings.json.refused";

/// Outcome of reading the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The settings; the default if there is no file.
    Settings(Settings),
    /// The file could not be parsed and was renamed; this message says where and why.
    Refused(String),
}

impl Settings {
    /// Reads the settings.
    ///
    /// # Errors
    /// When the file cannot be read, or one that cannot be parsed cannot be renamed: it must not be
    /// overwritten then.
    pub fn load(directory: &Path) -> io::Result<Found> {
        let path = directory.join(SETTINGS_FILE);
        let found = match regular_file::read_to_string(&path) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error)
                if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData) =>
            {
                Err(error.to_string())
            }
            Err(error) => return Err(error),
        };
        match found {
            Ok(settings) => Ok(Found::Settings(settings)),
            Err(reason) => {
                let aside = directory.join(REFUSED_FILE);
                fs::rename(&path, &aside)?;
                Ok(Found::Refused(format!(
                    "cannot parse {}: {reason}; it was set aside as {}, and its settings are not \
                     in force: set them again (cgpu set)",
                    path.display(),
                    aside.display()
                )))
            }
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let settings: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        settings.check().map(|()| settings)
    }

    /// Checks that each value is within its range.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (uuid, gpu) in &self.gpus {
            gpu.check().map_err(|reason| format!("GPU {uuid}: {reason}"))?;
        }
        for (id, container) in &self.containers {
            within("weight", container.weight, &bounds::WEIGHT)
                .and_then(|()| within("percent", container.percent, &bounds::PERCENT))
                .map_err(|reason| format!("container {id}: {reason}"))?;
        }
        Ok(())
    }

    /// Writes the settings. The file is replaced as a whole. It survives the end of this process at
    /// once, and a power cut after [`Settings::sync`].
    ///
    /// # Errors
    /// I/O errors, such as a full or a read-only disk.
    pub fn save(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let draft = directory.join(".settings.json");
        let write = || {
            // What a killed monitor left, or anything else.
            match fs::remove_file(&draft) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            File::create_new(&draft)?.write_all(&serde_json::to_vec_pretty(self)?)?;
            fs::rename(&draft, directory.join(SETTINGS_FILE))
        };
        write().inspect_err(|_| {
            // A partial draft would take room on a full disk.
            let _ = fs::remove_file(&draft);
        })
    }

    /// Waits until the saved file is on the disk.
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync(directory: &Path) -> io::Result<()> {
        regular_file::open(&directory.join(SETTINGS_FILE))?.sync_all()?;
        File::open(directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_settings_are_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        assert_eq!(Settings::load(&state).unwrap(), Found::Settings(Settings::default()));
        let mut settings = Settings { default_memsize: Some(7), ..Settings::default() };
        settings
            .gpus
            .insert("GPU-1".into(), GpuSettings { policy: Some(2), ..GpuSettings::default() });
        let container = ContainerSettings {
            weight: Some(3),
            percent: Some(30),
            high: Some(true),
            memsize: [("GPU-1".to_string(), 1 << 30)].into_iter().collect(),
        };
        settings.containers.insert("a".into(), container);
        settings.save(&state).unwrap();
        Settings::sync(&state).unwrap();
        assert_eq!(Settings::load(&state).unwrap(), Found::Settings(settings));
    }

    #[test]
    fn settings_file_without_a_version_is_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let text = r#"{"default_memsize":5,
            "gpus":{"GPU-1":{"policy":null,"max_inst":20,"prio_ratio":80,"work_conserving":false}},
            "containers":{"a":{"weight":3,"high":null,"memsize":{}}}}"#;
        fs::write(directory.path().join(SETTINGS_FILE), text).unwrap();
        let Found::Settings(settings) = Settings::load(directory.path()).unwrap() else { panic!() };
        assert_eq!(
            (settings.default_memsize, settings.gpus["GPU-1"].max_inst),
            (Some(5), Some(20))
        );
    }

    #[test]
    fn invalid_settings_file_is_set_aside_and_reported() {
        for (text, reason) in [
            ("{", "EOF"),
            ("", "EOF"),
            (r#"{"version":2}"#, "expected version 1, found 2"),
            (r#"{"gpus":{"GPU-1":{"policy":6}}}"#, "policy: expected 0 to 5, found 6"),
            (r#"{"gpus":{"GPU-1":{"max_inst":0}}}"#, "max_inst: expected 1 to 25, found 0"),
            (r#"{"gpus":{"GPU-1":{"prio":50}}}"#, "unknown field"),
            (r#"{"containers":{"a":{"weight":26}}}"#, "weight: expected 1 to 25, found 26"),
            (r#"{"default_memsize":-1}"#, "invalid value"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join(SETTINGS_FILE), text).unwrap();
            let found = Settings::load(directory.path()).unwrap();
            let Found::Refused(message) = found else { panic!("{text}: {found:?}") };
            assert!(message.contains(reason), "{text}: {message}");
            assert_eq!(fs::read_to_string(directory.path().join(REFUSED_FILE)).unwrap(), text);
            assert!(!directory.path().join(SETTINGS_FILE).exists());
        }
    }

    #[test]
    fn unwritable_directory_is_an_error() {
        assert!(Settings::default().save(Path::new("/proc/cgpu")).is_err());
    }
}
