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

    /// Returns where this process writes a record first: beside the folder, since what is in it is
    /// a record. The monitor that this one replaces may still write its own.
    fn staged(&self) -> PathBuf {
        self.folder.with_extension(format!("new-{}", std::process::id()))
    }

    /// Removes what killed monitors have left.
    fn sweep(&self) -> Option<()> {
        let prefix = format!("{}.new-", self.folder.file_name()?.to_str()?);
        for entry in fs::read_dir(self.folder.parent()?).ok()?.flatten() {
            let name = entry.file_name();
            let pid =
                name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Some(())
    }

    /// Reads all records. What cannot be parsed is removed.
    #[must_use]
    pub fn load(&self) -> BTreeMap<OsString, Record> {
        let _ = self.sweep();
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
        let staged = self.staged();
        fs::write(&staged, serde_json::to_vec(record)?)?;
        fs::rename(staged, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_that_another_monitor_writes_is_left() {
        let root = tempfile::tempdir().unwrap();
        let records = Records::new(root.path().join("walls"));
        // That of a living process, and that of none.
        let [living, gone] = [1, u32::MAX].map(|pid| root.path().join(format!("walls.new-{pid}")));
        for file in [&living, &gone] {
            fs::write(file, "begun").unwrap();
        }
        assert!(records.load().is_empty());
        let group = Group { folder: "/cg/a".into(), ..Group::default() };
        let record = Record { groups: vec![group], ..Record::default() };
        records.save(OsStr::new("a"), &record).unwrap();
        assert_eq!(records.load().get(OsStr::new("a")), Some(&record));
        assert_eq!(fs::read(living).unwrap(), b"begun");
        assert!(!gone.exists() && !records.staged().exists());
    }
}
