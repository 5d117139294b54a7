//! Where the files of whoever is looked at lie, and what its environment says.
//!
//! Doctor looks at itself (inside a container, or on the host), or at another process, whose files are below `/proc/PID/root`.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// More than any library or program of which all is read.
const MAX_FILE_SIZE: u64 = 256 << 20;

/// Below which root, and with which variables.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) root: PathBuf,
    pub(crate) variables: BTreeMap<String, String>,
    /// Its effective user and group.
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// A folder of whoever is looked at.
#[derive(Debug)]
pub(crate) struct Folder {
    /// It, as long as this is there.
    pub(crate) path: PathBuf,
    _held: Option<File>,
}

impl View {
    /// Of this process.
    pub(crate) fn own() -> anyhow::Result<Self> {
        let variables = std::env::vars_os().map(|(name, value)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        });
        let (user, group) = owner_of(Path::new("/proc/self"))?;
        Ok(Self { root: "/".into(), variables: variables.collect(), user, group })
    }

    /// Of another one.
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let bytes = fs::read(process.join("environ")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let variables = text.split('\0').filter_map(|one| one.split_once('='));
        let variables =
            variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let (user, group) = owner_of(&process)?;
        Ok(Self { root: process.join("root"), variables, user, group })
    }

    /// A file by its path as the one that is looked at would say it: for people to read. Its links would be followed out of the root.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A variable that is set to something.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Opens a file. What is looked at may have anything there: its links lead nowhere but within its own root, and no FIFO is waited for.
    fn reach(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC;
        if self.root == Path::new("/") {
            return Ok(openat(CWD, path, flags, Mode::empty())?.into());
        }
        let root = openat(
            CWD,
            &self.root,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let within = path.strip_prefix("/").unwrap_or(path);
        Ok(openat2(
            root,
            within,
            flags,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )?
        .into())
    }

    /// A folder, to look at what is in it. It is held, so that it stays the one that was found, whatever is put in its place.
    pub(crate) fn folder(&self, path: &Path) -> io::Result<Folder> {
        if self.root == Path::new("/") {
            return Ok(Folder { path: path.to_owned(), _held: None });
        }
        let held = self.reach(path, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Folder { path: format!("/proc/self/fd/{}", held.as_raw_fd()).into(), _held: Some(held) })
    }

    /// A plain file, to be read.
    pub(crate) fn open(&self, path: impl AsRef<Path>) -> Option<File> {
        let file = self.reach(path.as_ref(), OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
        file.metadata().is_ok_and(|about| about.is_file()).then_some(file)
    }

    /// What the file system says of a file or folder.
    pub(crate) fn about(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.reach(path.as_ref(), OFlags::PATH)?.metadata()
    }

    /// Whether there is a plain file.
    pub(crate) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.about(path).is_ok_and(|about| about.is_file())
    }

    /// A file's bytes, not without end.
    pub(crate) fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path)?.take(MAX_FILE_SIZE).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// A text file.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes(path)?).into_owned())
    }

    /// Where the loader would find a library: the folders of LD_LIBRARY_PATH, the loader's cache, its own folders.
    pub(crate) fn library(&self, name: &str) -> Option<PathBuf> {
        let listed = self.variable("LD_LIBRARY_PATH").unwrap_or_default();
        let listed = listed
            .split([':', ';'])
            .filter(|folder| !folder.is_empty())
            .map(|folder| Path::new(folder).join(name));
        let cached = self.bytes("/etc/ld.so.cache").unwrap_or_default();
        let cached: Vec<PathBuf> = cached
            .split(|byte| *byte == 0)
            .filter_map(|text| std::str::from_utf8(text).ok())
            .filter(|text| {
                text.starts_with('/') && Path::new(text).file_name().is_some_and(|it| it == name)
            })
            .map(PathBuf::from)
            .collect();
        let usual = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
        listed.chain(cached).chain(usual).find(|path| self.has(path))
    }
}

/// Where loaders look without being told.
const FOLDERS: &[&str] = &[
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// The owner of a process's entry in /proc is its effective user; what it may not show is root's.
fn owner_of(process: &Path) -> anyhow::Result<(u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    let about = fs::metadata(process)
        .map_err(|_| anyhow::anyhow!("there is no process at {}", process.display()))?;
    Ok((about.uid(), about.gid()))
}
