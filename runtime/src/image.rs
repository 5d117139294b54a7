//! What a container's root file system is like, as far as a preload is concerned: which C library it has, how new that is, where libraries
//! lie, and what is preloaded already.
//!
//! A preload that cannot be loaded is passed over by the loader, and the limit would vanish with it. So it is looked at beforehand.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use object::Endianness;
use object::elf::FileHeader64;
use object::read::ReadCache;
use object::read::elf::{FileHeader, SectionTable};

/// More than any sane chain of links.
const LINKS: usize = 40;
/// The loaders of glibc by their fixed names, and what its library is called beside them.
const LOADERS: &[&str] = &["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
/// Where libraries lie without anybody telling, in the order of distributions.
const LIBRARIES: &[&str] = &[
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
/// What glibc's loader preloads for every program.
pub const PRELOAD: &str = "/etc/ld.so.preload";

/// A container's files as the container will see them: its root, and what is mounted over that.
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
    /// Destination and source of bind mounts, in order.
    binds: Vec<(PathBuf, PathBuf)>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// glibc, of this version, with its library in that folder of the container.
    Glibc {
        /// Such as 2.36.
        version: Version,
        /// Where libraries lie in there.
        libraries: PathBuf,
        /// Its loader reads [`PRELOAD`]; some distributions have changed theirs.
        reads_preload: bool,
    },
    /// musl.
    Musl,
    /// No loader that is known: statically linked programs, or nothing.
    Bare,
}

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Version {
    fn parse(symbol: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(symbol.strip_prefix(b"GLIBC_")?).ok()?;
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        Some(Self(numbers.next()??, numbers.next()??))
    }
}

impl Files {
    /// The root, and the bind mounts over it, each as destination and source.
    #[must_use]
    pub fn new(root: PathBuf, binds: Vec<(PathBuf, PathBuf)>) -> Self {
        Self { root, binds }
    }

    /// The contents of a file in there; none if there is no such file.
    ///
    /// # Errors
    /// It is there and cannot be read, or links lead round in circles.
    pub fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(host) = self.find(Path::new(path))? else { return Ok(None) };
        if !host.is_file() {
            return Ok(None);
        }
        fs::read(host).map(Some)
    }

    /// Where a path of the container lies on the host, links followed as in the container. None: there is no such file.
    fn find(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let mut rest: VecDeque<OsString> = parts(path).collect();
        let mut here = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&part);
            let host = self.host(&next);
            let about = match fs::symlink_metadata(&host) {
                Ok(about) => about,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            if !about.is_symlink() {
                here = next;
                continue;
            }
            links += 1;
            if links > LINKS {
                return Err(io::Error::other(format!("links of {} lead round in circles", path.display())));
            }
            let target = fs::read_link(&host)?;
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                rest.push_front(part);
            }
        }
        Ok(Some(self.host(&here)))
    }

    /// One path without links to follow: below the last mount that covers it, else below the root.
    fn host(&self, path: &Path) -> PathBuf {
        let bind = self.binds.iter().rev().find_map(|(to, from)| Some((from, path.strip_prefix(to).ok()?)));
        match bind {
            Some((from, rest)) if rest.as_os_str().is_empty() => from.clone(),
            Some((from, rest)) => from.join(rest),
            None => self.root.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }

    /// Looks.
    ///
    /// # Errors
    /// A file that is there cannot be read.
    pub fn look(&self) -> io::Result<Image> {
        let mut loader = None;
        for name in LOADERS {
            if let Some(bytes) = self.read(name)? {
                loader = Some(bytes);
                break;
            }
        }
        let Some(loader) = loader else {
            let has_musl = ["x86_64", "aarch64"]
                .iter()
                .map(|machine| self.find(Path::new(&format!("/lib/ld-musl-{machine}.so.1"))));
            let has_musl = has_musl.collect::<io::Result<Vec<_>>>()?;
            return Ok(if has_musl.iter().any(Option::is_some) { Image::Musl } else { Image::Bare });
        };
        for libraries in LIBRARIES {
            let library = self.find(Path::new(&format!("{libraries}/libc.so.6")))?;
            let Some(library) = library.filter(|library| library.is_file()) else { continue };
            if let Some(version) = defined(&library)? {
                let reads_preload = holds(&loader, PRELOAD.as_bytes());
                return Ok(Image::Glibc { version, libraries: libraries.into(), reads_preload });
            }
        }
        Ok(Image::Bare)
    }
}

/// The parts of a path that lead somewhere.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    })
}

fn holds(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// The newest version that a C library says it is: none if it is none of 64 bits.
fn defined(library: &Path) -> io::Result<Option<Version>> {
    let cache = ReadCache::new(File::open(library)?);
    let names = || {
        let (endian, sections) = sections(&cache)?;
        let (mut entries, link) = sections.gnu_verdef(endian, &cache).ok()??;
        let strings = sections.strings(endian, &cache, link).ok()?;
        let mut found = Vec::new();
        while let Ok(Some((_, mut names))) = entries.next() {
            // The first name is its own, the others are those it comes after.
            if let Ok(Some(name)) = names.next() {
                found.extend(name.name(endian, strings).ok().and_then(Version::parse));
            }
        }
        found.into_iter().max()
    };
    Ok(names())
}

/// The newest version of glibc that a library asks for; none: it asks for none, or is no library.
///
/// # Errors
/// It cannot be read.
pub fn needed(library: &Path) -> io::Result<Option<Version>> {
    let cache = ReadCache::new(File::open(library)?);
    let names = || {
        let (endian, sections) = sections(&cache)?;
        let (mut entries, link) = sections.gnu_verneed(endian, &cache).ok()??;
        let strings = sections.strings(endian, &cache, link).ok()?;
        let mut found = Vec::new();
        while let Ok(Some((_, mut names))) = entries.next() {
            while let Ok(Some(name)) = names.next() {
                found.extend(name.name(endian, strings).ok().and_then(Version::parse));
            }
        }
        found.into_iter().max()
    };
    Ok(names())
}

/// Read piece by piece: a library is large, and little of it is asked for.
type Cache = ReadCache<File>;

fn sections(cache: &Cache) -> Option<(Endianness, SectionTable<'_, FileHeader64<Endianness>, &Cache>)> {
    let header = FileHeader64::<Endianness>::parse(cache).ok()?;
    let endian = header.endian().ok()?;
    Some((endian, header.sections(endian, cache).ok()?))
}

/// The preload file of a container: ours, then what the image preloads already.
#[must_use]
pub fn merged(shim: &str, present: &[u8]) -> Vec<u8> {
    let mut text = format!("{shim}\n").into_bytes();
    let ours = |line: &[u8]| line.trim_ascii() == shim.as_bytes();
    for line in
        present.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty() && !ours(line))
    {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn place(root: &Path, path: &str, bytes: &[u8]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn links_are_followed_as_in_the_container() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        place(&root, "usr/lib/x", b"inside");
        place(folder.path(), "usr/lib/x", b"outside");
        symlink("/usr/lib", root.join("lib")).unwrap();
        symlink("../../../../usr/lib/x", root.join("usr/up")).unwrap();
        symlink("/round", root.join("round")).unwrap();
        let files = Files::new(root, vec![]);
        assert_eq!(files.read("/lib/x").unwrap().as_deref(), Some(&b"inside"[..]));
        assert_eq!(files.read("/usr/up").unwrap().as_deref(), Some(&b"inside"[..]));
        assert_eq!(files.read("/nothing/there").unwrap(), None);
        assert_eq!(files.read("/usr/lib").unwrap(), None, "a folder");
        assert!(files.read("/round").is_err());
    }

    #[test]
    fn what_is_mounted_covers_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        place(&root, "etc/ld.so.preload", b"image");
        place(folder.path(), "mine", b"mine");
        let files = Files::new(root, vec![("/etc/ld.so.preload".into(), folder.path().join("mine"))]);
        assert_eq!(files.read(PRELOAD).unwrap().as_deref(), Some(&b"mine"[..]));
    }

    #[test]
    fn an_image_is_what_its_loader_is() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::new(folder.path().to_owned(), vec![]);
        assert_eq!(files.look().unwrap(), Image::Bare);
        place(folder.path(), "lib/ld-musl-x86_64.so.1", b"");
        assert_eq!(files.look().unwrap(), Image::Musl);
        place(folder.path(), "lib64/ld-linux-x86-64.so.2", b"xx/etc/ld.so.preloadxx");
        place(folder.path(), "lib64/libc.so.6", b"no library");
        assert_eq!(files.look().unwrap(), Image::Bare, "a loader without a library loads nothing");
    }

    #[test]
    fn this_hosts_own_files_are_understood() {
        let files = Files::new("/".into(), vec![]);
        let Ok(Image::Glibc { version, reads_preload, .. }) = files.look() else { return };
        assert!(version >= Version(2, 17) && reads_preload, "{version}");
        let needed = needed(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(needed <= version, "{needed}");
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(Version::parse(b"GLIBC_2.2.5"), Some(Version(2, 2)));
        assert!(Version::parse(b"GLIBC_2.34") > Version::parse(b"GLIBC_2.9"));
        assert_eq!(Version::parse(b"GLIBC_PRIVATE"), None);
        assert_eq!(Version::parse(b"GCC_3.0"), None);
    }

    #[test]
    fn ours_comes_first_and_once() {
        assert_eq!(merged("/run/cgpu/libcgpu.so", b""), b"/run/cgpu/libcgpu.so\n");
        let merged = merged("/s", b"/image.so\n\n /s \n/other.so");
        assert_eq!(merged, b"/s\n/image.so\n/other.so\n");
    }
}
