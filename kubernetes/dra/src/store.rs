//! The files of prepared claims.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Record of a claim, by its uid. It persists over a restart of the node.
    Record,
    /// Limits of a share, by its name.
    Limits,
    /// CDI specification of a claim, by its uid.
    Cdi,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Record, Self::Limits, Self::Cdi];

    /// Returns whether its files survive a failure of power. The others are written again, as the
    /// records say.
    const fn is_durable(self) -> bool {
        matches!(self, Self::Record)
    }

    /// Returns prefix and suffix of its file names.
    const fn affixes(self) -> (&'static str, &'static str) {
        match self {
            Self::Record => ("", ".json"),
            Self::Limits => ("", ""),
            // The folder has specifications of others, and engines read `.json` alone.
            Self::Cdi => ("cgpu-dra-", ".json"),
        }
    }
}

/// Suffix of files that are being written.
const STAGED: &str = ".new";

/// Where the files are. Names are plain: letters, digits and `-`.
pub trait Store {
    /// Writes a file aside. It has no effect until [`Self::publish`], which then cannot fail for
    /// lack of room.
    ///
    /// # Errors
    /// As the system says; nothing has changed.
    fn stage(&self, kind: Kind, name: &str, text: &str) -> io::Result<()>;

    /// Puts a staged file into place, in one step. Of a record, returns when that survives a
    /// failure of power.
    ///
    /// # Errors
    /// As the system says. The file may be in place all the same.
    fn publish(&self, kind: Kind, name: &str) -> io::Result<()>;

    /// Removes a file, if it exists. Of a record, returns when that survives a failure of power.
    ///
    /// # Errors
    /// As the system says. The file may be gone all the same.
    fn remove(&self, kind: Kind, name: &str) -> io::Result<()>;

    /// Removes all files that were staged and not published. Returns when which records are in
    /// place survives a failure of power: the last process may have been killed before.
    ///
    /// # Errors
    /// As the system says.
    fn recover(&self) -> io::Result<()>;

    /// Returns the names of all files in place.
    ///
    /// # Errors
    /// As the system says.
    fn names(&self, kind: Kind) -> io::Result<Vec<String>>;

    /// Returns the text of a file in place; `None` if there is none.
    ///
    /// # Errors
    /// As the system says.
    fn read(&self, kind: Kind, name: &str) -> io::Result<Option<String>>;
}

/// Folders of a node.
#[derive(Debug)]
pub struct Folders {
    records: PathBuf,
    limits: PathBuf,
    cdi: PathBuf,
    /// Held as long as this process lives.
    _lock: File,
}

impl Folders {
    /// Creates the folders, and locks that of the records: it has one writer. `records` and
    /// `limits` are for this driver alone.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] while another process has the lock; else as the system says.
    pub fn lock(records: &Path, limits: &Path, cdi: &Path) -> io::Result<Self> {
        for folder in [records, limits] {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        fs::create_dir_all(cdi)?;
        let path = records.join(".lock");
        let lock =
            File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        lock.try_lock().map_err(io::Error::from)?;
        let [records, limits, cdi] = [records, limits, cdi].map(Path::to_path_buf);
        Ok(Self { records, limits, cdi, _lock: lock })
    }

    fn folder(&self, kind: Kind) -> &Path {
        match kind {
            Kind::Record => &self.records,
            Kind::Limits => &self.limits,
            Kind::Cdi => &self.cdi,
        }
    }

    fn path(&self, kind: Kind, name: &str) -> PathBuf {
        let (prefix, suffix) = kind.affixes();
        self.folder(kind).join(format!("{prefix}{name}{suffix}"))
    }

    fn staged(&self, kind: Kind, name: &str) -> PathBuf {
        let (prefix, _) = kind.affixes();
        self.folder(kind).join(format!("{prefix}{name}{STAGED}"))
    }

    /// Returns the names of files with this suffix.
    fn with_suffix(&self, kind: Kind, suffix: &str) -> io::Result<Vec<String>> {
        let (prefix, _) = kind.affixes();
        let mut names = Vec::new();
        for entry in fs::read_dir(self.folder(kind))? {
            let name = entry?.file_name();
            let name = name.to_str().and_then(|name| name.strip_prefix(prefix));
            let name = name.and_then(|name| name.strip_suffix(suffix));
            names.extend(name.filter(|name| is_plain(name)).map(str::to_owned));
        }
        Ok(names)
    }

    /// Waits until changes of a folder are on the disk, if they must be.
    fn sync(&self, kind: Kind) -> io::Result<()> {
        if !kind.is_durable() {
            return Ok(());
        }
        File::open(self.folder(kind))?.sync_all()
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

impl Store for Folders {
    fn stage(&self, kind: Kind, name: &str, text: &str) -> io::Result<()> {
        let path = self.staged(kind, name);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(text.as_bytes())?;
            if kind.is_durable() { file.sync_all() } else { Ok(()) }
        };
        write().inspect_err(|_| drop(fs::remove_file(&path)))
    }

    fn publish(&self, kind: Kind, name: &str) -> io::Result<()> {
        fs::rename(self.staged(kind, name), self.path(kind, name))?;
        self.sync(kind)
    }

    fn remove(&self, kind: Kind, name: &str) -> io::Result<()> {
        absent_is_fine(fs::remove_file(self.path(kind, name)))?;
        self.sync(kind)
    }

    fn recover(&self) -> io::Result<()> {
        for kind in Kind::ALL {
            for name in self.with_suffix(kind, STAGED)? {
                absent_is_fine(fs::remove_file(self.staged(kind, &name)))?;
            }
            self.sync(kind)?;
        }
        Ok(())
    }

    fn names(&self, kind: Kind) -> io::Result<Vec<String>> {
        self.with_suffix(kind, kind.affixes().1)
    }

    fn read(&self, kind: Kind, name: &str) -> io::Result<Option<String>> {
        match fs::read_to_string(self.path(kind, name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => text.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(root: &Path) -> io::Result<Folders> {
        Folders::lock(&root.join("claims"), &root.join("shares"), &root.join("cdi"))
    }

    #[test]
    fn staged_file_has_no_effect_until_it_is_published() {
        let root = tempfile::tempdir().unwrap();
        let store = folders(root.path()).unwrap();
        // Files of others, which are neither listed nor removed.
        for other in ["cdi/nvidia.json", "cdi/cgpu-slice-7-2.json", "cdi/nvidia.new"] {
            fs::write(root.path().join(other), "").unwrap();
        }
        for kind in Kind::ALL {
            store.stage(kind, "u1-0", "one").unwrap();
            assert_eq!(store.names(kind).unwrap(), [""; 0]);
            assert_eq!(store.read(kind, "u1-0").unwrap(), None);
            store.publish(kind, "u1-0").unwrap();
            store.stage(kind, "u1-0", "two").unwrap();
            store.stage(kind, "u2-0", "two").unwrap();
            assert_eq!(store.names(kind).unwrap(), ["u1-0"]);
            assert_eq!(store.read(kind, "u1-0").unwrap().as_deref(), Some("one"));
        }
        store.recover().unwrap();
        for kind in Kind::ALL {
            assert!(store.publish(kind, "u2-0").is_err());
            store.remove(kind, "u1-0").unwrap();
            store.remove(kind, "u1-0").unwrap();
            assert_eq!(store.names(kind).unwrap(), [""; 0]);
        }
        assert_eq!(fs::read_dir(root.path().join("cdi")).unwrap().count(), 3);
    }

    #[test]
    fn second_instance_waits_for_the_first() {
        let root = tempfile::tempdir().unwrap();
        let first = folders(root.path()).unwrap();
        assert_eq!(folders(root.path()).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(first);
        folders(root.path()).unwrap();
    }
}
