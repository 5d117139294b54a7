//! What was set for each container, in a file that only the host sees: a limit of our own is told
//! from another program's by it, also after the monitor was killed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use cgpu_shm::uuid::Uuid;
use serde::{Deserialize, Serialize};

use super::decision::Known;

/// A container's control groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Those that are to have limits.
    pub groups: Vec<Group>,
    /// Those whose limits are to be removed, where the driver has not done it yet.
    pub ending: Vec<Group>,
}

/// A control group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Its folder.
    pub folder: PathBuf,
    /// Device and inode of the folder.
    pub identity: (u64, u64),
    /// What is known of its limit on each device, by UUID.
    pub devices: BTreeMap<String, Known>,
}

impl Record {
    /// Whether there is nothing to keep.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.ending.is_empty()
    }
}

impl Group {
    /// Returns what is known of a device.
    #[must_use]
    pub fn known(&self, uuid: Uuid) -> Known {
        self.devices.get(&uuid.to_string()).cloned().unwrap_or_default()
    }
}

/// The folder with a record for each container.
#[derive(Debug)]
pub struct Records {
    folder: PathBuf,
}

impl Records {
    /// Returns that of this folder. It need not exist.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the name of the record of a container's directory.
    #[must_use]
    pub fn name(dir: &Path) -> OsString {
        dir.file_name().unwrap_or_default().to_owned()
    }

    /// Reads all records. What cannot be parsed is removed.
    #[must_use]
    pub fn load(&self) -> BTreeMap<OsString, Record> {
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let parsed = fs::read(entry.path())
                .ok()
                .and_then(|text| serde_json::from_slice::<Record>(&text).ok());
            match parsed {
                Some(record) => _ = records.insert(entry.file_name(), record),
                None => _ = fs::remove_file(entry.path()),
            }
        }
        records
    }

    /// Writes a container's record, or removes it if it has no group.
    ///
    /// # Errors
    /// The file cannot be written or removed.
    pub fn save(&self, name: &OsStr, record: &Record) -> io::Result<()> {
        let path = self.folder.join(name);
        if record.is_empty() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        fs::create_dir_all(&self.folder)?;
        // Beside the folder: what is in it is a record.
        let staged = self.folder.with_extension("new");
        fs::write(&staged, serde_json::to_vec(record)?)?;
        fs::rename(staged, path)
    }
}
