//! The files and the environment that are examined: those of this process, in a container or on the
//! host, or those of another process, below `/proc/PID/root`.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// Larger than any library or program that is read completely.
const MAX_FILE_SIZE: u64 = 256 << 20;

/// The root of the file system, the variables, and the user.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) root: PathBuf,
    pub(crate) variables: BTreeMap<String, String>,
    /// Its effective user and group.
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// A folder within a view.
#[derive(Debug)]
pub(crate) struct Folder {
    /// Its path, valid as long as this value exists.
    pub(crate) path: PathBuf,
    _held: Option<File>,
}

impl View {
    pub(crate) fn own() -> anyhow::Result<Self> {
        let variables = std::env::vars_os().map(|(name, value)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        });
        let (user, group) = owner_of(Path::new("/proc/self"))?;
        Ok(Self { root: "/".into(), variables: variables.collect(), user, group })
    }

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

    /// Returns a file's path in this process's file system, for messages and tests. It is not safe
    /// to open: links would be followed out of the view's root.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns a variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Opens a path within the view. Links are resolved within its root, and no FIFO is waited for:
    /// the container may have put anything there.
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

    /// Opens a folder and keeps it open, so that it stays the same one even if it is replaced.
    pub(crate) fn folder(&self, path: &Path) -> io::Result<Folder> {
        if self.root == Path::new("/") {
            return Ok(Folder { path: path.to_owned(), _held: None });
        }
        let held = self.reach(path, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Folder { path: format!("/proc/self/fd/{}", held.as_raw_fd()).into(), _held: Some(held) })
    }

    /// Opens a regular file for reading.
    pub(crate) fn open(&self, path: impl AsRef<Path>) -> Option<File> {
        let file = self.reach(path.as_ref(), OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
        file.metadata().is_ok_and(|about| about.is_file()).then_some(file)
    }

    pub(crate) fn about(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.reach(path.as_ref(), OFlags::PATH)?.metadata()
    }

    /// Returns whether this is a regular file.
    pub(crate) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.about(path).is_ok_and(|about| about.is_file())
    }

    /// Reads a file, up to `MAX_FILE_SIZE`.
    pub(crate) fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path)?.take(MAX_FILE_SIZE).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes(path)?).into_owned())
    }

    /// Returns where the loader would find a library: in LD_LIBRARY_PATH, its cache, or its default
    /// folders.
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

/// Returns a process's effective user and group, which own its entry in /proc. If the process is
/// not dumpable, root does.
fn owner_of(process: &Path) -> anyhow::Result<(u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    let about = fs::metadata(process)
        .map_err(|_| anyhow::anyhow!("there is no process at {}", process.display()))?;
    Ok((about.uid(), about.gid()))
}
