//! A container's files as the container will see them: its root and the mounts over it.
//!
//! They are read as root before the container starts, while other processes with write access to a
//! volume or a shared image can replace folders by links. So no name is resolved twice: each part
//! of a path is opened relative to the descriptor of the previous part, the file that was checked
//! is the one that is read, and only regular files of bounded size are read. Links are followed
//! here, and not by the kernel (`openat2` with the root as the root), because in the container they
//! lead from the image into mounts, and because hosts older than Linux 5.6 are supported.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Maximum number of links in a path.
const MAX_LINKS: usize = 40;
/// Larger than any loader or C library.
const MAX_FILE_SIZE: u64 = 64 << 20;

/// A container's files.
#[derive(Clone, Debug)]
pub struct Files {
    root: Rc<OwnedFd>,
    /// Destinations, without links, of the mounts that no later mount covers, and sources of bind
    /// mounts. `None`: its files cannot be seen from the host.
    mounts: Vec<(PathBuf, Option<PathBuf>)>,
}

/// Device and inode of a file.
pub type Identity = (u64, u64);

/// The path in the container, and the file there, if any.
type Location = (PathBuf, Option<Rc<OwnedFd>>);

impl Files {
    /// Returns the files of a root, with these mounts in order (destination, source).
    ///
    /// # Errors
    /// The root does not exist, or links form a loop.
    pub fn new(root: &Path, mounts: Vec<(PathBuf, Option<PathBuf>)>) -> io::Result<Self> {
        let mut files = Self { root: Rc::new(open(root, OFlags::DIRECTORY)?), mounts: Vec::new() };
        for (to, from) in mounts {
            let (to, _) = files.walk(&to)?;
            files.mounts.retain(|(earlier, _)| !earlier.starts_with(&to));
            files.mounts.push((to, from));
        }
        Ok(files)
    }

    /// Returns the path in the container after following links; the file need not exist.
    ///
    /// # Errors
    /// It cannot be resolved, or links form a loop.
    pub fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(self.walk(path)?.0)
    }

    /// Returns whether anything exists at that path.
    ///
    /// # Errors
    /// It cannot be resolved, or links form a loop.
    pub fn has(&self, path: &str) -> io::Result<bool> {
        Ok(self.walk(Path::new(path))?.1.is_some())
    }

    /// Returns what identifies the file at that path; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be resolved, or links form a loop.
    pub fn identity(&self, path: &Path) -> io::Result<Option<Identity>> {
        let Some(found) = self.walk(path)?.1 else { return Ok(None) };
        let about = rustix::fs::fstat(&found)?;
        Ok(Some((about.st_dev, about.st_ino)))
    }

    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read or is too large, or links form a loop.
    pub fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        self.open(path)?.map(|file| read(file, Path::new(path))).transpose()
    }

    /// Opens a file; `None` if it does not exist.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn open(&self, path: &str) -> io::Result<Option<File>> {
        let Some(found) = self.walk(Path::new(path))?.1 else { return Ok(None) };
        let about = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        if about.st_size.cast_unsigned() > MAX_FILE_SIZE {
            return Err(too_large(Path::new(path)));
        }
        reopen(&found).map(Some)
    }

    fn walk(&self, path: &Path) -> io::Result<Location> {
        let mut rest: VecDeque<OsString> = parts(path).collect();
        let mut here = PathBuf::from("/");
        // The descriptor of each part of `here`.
        let mut parents: Vec<Option<Rc<OwnedFd>>> = Vec::new();
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == ".." {
                here.pop();
                parents.pop();
                continue;
            }
            let next = here.join(&part);
            let above = parents.last().map_or(Some(&self.root), Option::as_ref);
            let found = self.step(above, &part, &next)?;
            if let Some(target) = found.as_deref().map(link).transpose()?.flatten() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::other(format!(
                        "the links of {} form a loop",
                        path.display()
                    )));
                }
                if target.is_absolute() {
                    here = PathBuf::from("/");
                    parents.clear();
                }
                for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                    rest.push_front(part);
                }
                continue;
            }
            here = next;
            parents.push(found);
        }
        let found = parents.pop().unwrap_or_else(|| Some(Rc::clone(&self.root)));
        Ok((here, found))
    }

    /// Returns what is at `path`, whose last part is `part`, in the folder `above`; `None` if
    /// nothing is, although a mount may be made further down.
    fn step(
        &self,
        above: Option<&Rc<OwnedFd>>,
        part: &OsStr,
        path: &Path,
    ) -> io::Result<Option<Rc<OwnedFd>>> {
        let mount = self.mounts.iter().find(|(to, _)| to == path);
        let found = match (mount, above) {
            // Engines follow links in the sources of mounts.
            (Some((_, Some(from))), _) => open(from, OFlags::empty()),
            (Some((_, None)), _) => return Ok(None),
            (None, Some(above)) => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(above, part, flags, Mode::empty())
            }
            (None, None) => return Ok(None),
        };
        match found {
            Ok(found) => Ok(Some(Rc::new(found))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads a file of the host that an untrusted user may have put there, without following a link;
/// `None` if it is not a regular file.
///
/// # Errors
/// The file cannot be read or is too large.
pub fn read_plain(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Opening a pipe would wait for a writer.
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    read(file, path).map(Some)
}

/// Reads a file that an engine or an administrator named, through links.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is too large. Nothing is waited for.
pub fn read_named(path: &Path) -> io::Result<Vec<u8>> {
    // The kernel opens a FIFO or a device only by the second call.
    let found = open(path, OFlags::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    if kind != FileType::RegularFile {
        return Err(io::Error::other(format!("expected a file, found {}", described(kind))));
    }
    read(reopen(&found)?, path)
}

/// Returns a kind of file as a message names it.
fn described(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a folder",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "a device",
    }
}

/// Opens a file that was found, for reading: its name may lead elsewhere by now.
fn reopen(found: &OwnedFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

fn read(file: File, path: &Path) -> io::Result<Vec<u8>> {
    // The size is only a hint; the file may grow.
    let size = file.metadata()?.len().min(MAX_FILE_SIZE);
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default() + 1);
    file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_SIZE { Err(too_large(path)) } else { Ok(bytes) }
}

fn too_large(path: &Path) -> io::Error {
    io::Error::other(format!("{} is larger than {} MiB", path.display(), MAX_FILE_SIZE >> 20))
}

fn open(path: &Path, more: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | more, Mode::empty())
}

/// Returns the target of a link; `None` if it is no link.
fn link(file: &OwnedFd) -> io::Result<Option<PathBuf>> {
    let about = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(about.st_mode) != FileType::Symlink {
        return Ok(None);
    }
    let target = rustix::fs::readlinkat(file, c"", Vec::new())?;
    Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes()))))
}

/// Returns the names and `..` in a path.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use cgpu_shm::atomic::{AtomicBool, Ordering};
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, RenameFlags};

    /// Writes a file of an image.
    pub(crate) fn put(root: &Path, path: &str, bytes: &[u8]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn text(files: &Files, path: &str) -> Option<String> {
        files.read(path).unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn link_resolves_as_in_the_container() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        put(&root, "usr/lib/x", b"inside");
        put(folder.path(), "usr/lib/x", b"outside");
        symlink("/usr/lib", root.join("lib")).unwrap();
        symlink("../../../../usr/lib/x", root.join("usr/up")).unwrap();
        symlink("/round", root.join("round")).unwrap();
        let files = Files::new(&root, vec![]).unwrap();
        assert_eq!(text(&files, "/lib/x").as_deref(), Some("inside"));
        assert_eq!(text(&files, "/usr/up").as_deref(), Some("inside"));
        assert_eq!(text(&files, "/nothing/there"), None);
        assert_eq!(text(&files, "/usr/lib"), None, "a folder");
        assert!(files.has("/usr/lib").unwrap() && !files.has("/usr/lib/x/y").unwrap());
        assert!(files.read("/round").is_err());
    }

    #[test]
    fn mounts_cover_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        put(&root, "usr/lib/x", b"image");
        symlink("usr/lib", root.join("lib")).unwrap();
        for name in ["mine", "late/x", "late/deep/x", "hidden"] {
            put(folder.path(), name, name.as_bytes());
        }
        let mounted = |binds: &[(&str, &str)]| {
            let binds =
                binds.iter().map(|(to, from)| (PathBuf::from(to), Some(folder.path().join(from))));
            Files::new(&root, binds.collect()).unwrap()
        };
        assert_eq!(text(&mounted(&[("/usr/lib/x", "mine")]), "/lib/x").as_deref(), Some("mine"));
        assert_eq!(text(&mounted(&[("/lib/x", "mine")]), "/usr/lib/x").as_deref(), Some("mine"));
        // Engines create missing folders of a destination.
        assert_eq!(
            text(&mounted(&[("/new/place", "mine")]), "/new/place").as_deref(),
            Some("mine")
        );
        assert_eq!(text(&mounted(&[("/new/place", "mine")]), "/new"), None);
        // A later mount hides earlier ones below it.
        let late =
            mounted(&[("/usr/lib/x", "hidden"), ("/usr/lib", "late"), ("/usr/lib/deep/x", "mine")]);
        assert_eq!(text(&late, "/lib/x").as_deref(), Some("late/x"));
        assert_eq!(text(&late, "/lib/deep/x").as_deref(), Some("mine"));
        // Other mounts hide the image, and their files cannot be read.
        let own = |more: &[(&str, Option<&str>)]| {
            let mounts = more
                .iter()
                .map(|(to, from)| (to.into(), from.map(|from| folder.path().join(from))));
            Files::new(&root, mounts.collect()).unwrap()
        };
        assert_eq!(text(&own(&[("/usr", None)]), "/lib/x"), None);
        assert_eq!(
            text(&own(&[("/usr", None), ("/usr/lib", Some("late"))]), "/lib/x").as_deref(),
            Some("late/x")
        );
        assert_eq!(
            own(&[]).resolve(Path::new("/lib/x/../gone")).unwrap(),
            Path::new("/usr/lib/gone")
        );
        // Links in a volume are resolved in the container.
        symlink("/usr/lib/x", folder.path().join("late/away")).unwrap();
        assert_eq!(text(&mounted(&[("/data", "late")]), "/data/away").as_deref(), Some("image"));
    }

    #[test]
    fn special_or_large_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        symlink("pipe", folder.path().join("link")).unwrap();
        File::create(folder.path().join("large")).unwrap().set_len(MAX_FILE_SIZE + 1).unwrap();
        let files = Files::new(folder.path(), vec![]).unwrap();
        assert_eq!(files.read("/pipe").unwrap(), None);
        assert_eq!(files.read("/link").unwrap(), None);
        assert!(files.read("/large").unwrap_err().to_string().contains("larger than 64 MiB"));
        assert_eq!(read_plain(&path).unwrap(), None);
        assert!(read_plain(&folder.path().join("link")).is_err());
        assert!(read_plain(&folder.path().join("large")).is_err());
    }

    #[test]
    fn named_file_is_a_regular_one() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o644), 0)
            .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        symlink("/dev/zero", at("device")).unwrap();
        fs::write(at("file"), "text").unwrap();
        symlink("file", at("link")).unwrap();
        File::create(at("large")).unwrap().set_len(MAX_FILE_SIZE + 1).unwrap();
        for (name, part) in [
            ("pipe", "expected a file, found a FIFO"),
            ("socket", "found a socket"),
            ("device", "found a device"),
            (".", "found a folder"),
            ("large", "is larger than 64 MiB"),
            ("nothing", "No such file"),
        ] {
            let error = read_named(&at(name)).unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
        for name in ["file", "link"] {
            assert_eq!(read_named(&at(name)).unwrap(), b"text");
        }
    }

    /// A folder is replaced by a link to the host's while it is read.
    #[test]
    fn folder_replaced_by_a_link_stays_inside() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        put(&root, "etc/file", b"inside");
        put(folder.path(), "host/file", b"outside");
        symlink(folder.path().join("host"), root.join("swap")).unwrap();
        let files = Files::new(&root, vec![]).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let (one, other) = (root.join("etc"), root.join("swap"));
                    rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                }
            });
            let found: Vec<_> = (0..20_000).map(|_| text(&files, "/etc/file")).collect();
            done.store(true, Ordering::Relaxed);
            assert!(found.iter().all(|text| text.as_deref() != Some("outside")));
            assert!(found.iter().any(Option::is_some));
        });
    }
}
