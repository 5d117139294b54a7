//! What a container's root file system has for preloading: its C library and the version, the
//! folder of libraries, and the preload files.
//!
//! The loader ignores a library that it cannot preload, and the limit would not be enforced. So
//! this is checked before the start.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::ReadCache;
use object::read::elf::{FileHeader, SectionTable};

use crate::files::Files;

/// Maximum number of versions of a library.
const MAX_VERSIONS: usize = 1000;
/// The fixed paths of glibc's loaders.
const LOADERS: &[&str] = &["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
/// Default folders of libraries, of all distributions.
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
/// The preload file of Nix's loader.
const NIX_PRELOAD: &str = "/etc/ld-nix.so.preload";
/// The preload files of all known loaders; glibc's default comes first.
pub const PRELOADS: &[&str] = &["/etc/ld.so.preload", NIX_PRELOAD];
/// Nix's package folder. Programs in it name a loader there, whatever else the image has.
const STORE: &str = "/nix/store";

/// The kind of C library in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// glibc.
    Glibc {
        /// Its version, such as 2.36.
        version: Version,
        /// Its folder of libraries.
        libraries: PathBuf,
        /// The preload files of its loaders, the main loader's first; empty if that reads no known
        /// file.
        preloads: Vec<&'static str>,
    },
    /// musl.
    Musl,
    /// No known loader: only statically linked programs, or nothing.
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

impl Image {
    /// Returns the paths of the preload files inside.
    #[must_use]
    pub fn preloads(&self) -> &[&'static str] {
        match self {
            Self::Glibc { preloads, .. } => preloads,
            Self::Musl | Self::Bare => &[],
        }
    }

    /// Examines an image.
    ///
    /// # Errors
    /// An existing file cannot be read.
    pub fn of(files: &Files) -> io::Result<Self> {
        let mut loader = None;
        for name in LOADERS {
            if let Some(bytes) = files.read(name)? {
                loader = Some(bytes);
                break;
            }
        }
        let Some(loader) = loader else {
            for machine in ["x86_64", "aarch64"] {
                if files.has(&format!("/lib/ld-musl-{machine}.so.1"))? {
                    return Ok(Self::Musl);
                }
            }
            return Ok(Self::Bare);
        };
        for libraries in LIBRARIES {
            let Some(library) = files.open(&format!("{libraries}/libc.so.6"))? else { continue };
            if let Some(version) = defined(library) {
                let own = PRELOADS.iter().find(|name| contains(&loader, name.as_bytes())).copied();
                let mut preloads: Vec<&str> = own.into_iter().collect();
                if own.is_some_and(|own| own != NIX_PRELOAD) && files.has(STORE)? {
                    preloads.push(NIX_PRELOAD);
                }
                return Ok(Self::Glibc { version, libraries: libraries.into(), preloads });
            }
        }
        Ok(Self::Bare)
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    memchr::memmem::find(bytes, wanted).is_some()
}

/// Returns the newest version that a C library defines; `None` if it is not a 64-bit library.
fn defined(library: File) -> Option<Version> {
    let cache = ReadCache::new(library);
    let (endian, sections) = sections(&cache)?;
    let (mut entries, link) = sections.gnu_verdef(endian, &cache).ok()??;
    let strings = sections.strings(endian, &cache, link).ok()?;
    let mut newest = None;
    for _ in 0..MAX_VERSIONS {
        let Ok(Some((_, mut names))) = entries.next() else { break };
        // The first name is the entry's own, the others are its predecessors.
        if let Ok(Some(name)) = names.next() {
            newest = newest.max(name.name(endian, strings).ok().and_then(Version::parse));
        }
    }
    newest
}

/// Returns the newest version of glibc that a library needs; `None` if it needs none, or is not a
/// library.
///
/// # Errors
/// The file cannot be read.
pub fn needed(library: &std::path::Path) -> io::Result<Option<Version>> {
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

/// Reads parts on demand: a library is large, and few parts are needed.
type Cache = ReadCache<File>;

fn sections(
    cache: &Cache,
) -> Option<(Endianness, SectionTable<'_, FileHeader64<Endianness>, &Cache>)> {
    let header = FileHeader64::<Endianness>::parse(cache).ok()?;
    let endian = header.endian().ok()?;
    Some((endian, header.sections(endian, cache).ok()?))
}

/// Returns the text of a preload file: the shim, then what the image preloads already.
#[must_use]
pub fn merged(shim: &str, present: &[u8]) -> Vec<u8> {
    let mut text = format!("{shim}\n").into_bytes();
    let ours = |line: &[u8]| line.trim_ascii() == shim.as_bytes();
    for line in present
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.trim_ascii().is_empty() && !ours(line))
    {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::put;
    use std::fs;
    use std::path::Path;

    fn image_at(root: &Path) -> Image {
        Image::of(&Files::new(root, vec![]).unwrap()).unwrap()
    }

    #[test]
    fn image_kind_follows_its_loader() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(image_at(folder.path()), Image::Bare);
        put(folder.path(), "lib/ld-musl-x86_64.so.1", b"");
        assert_eq!(image_at(folder.path()), Image::Musl);
        put(folder.path(), "lib64/ld-linux-x86-64.so.2", b"xx/etc/ld.so.preloadxx");
        put(folder.path(), "lib64/libc.so.6", b"no library");
        assert_eq!(image_at(folder.path()), Image::Bare, "a loader without a C library");
    }

    #[test]
    fn image_of_this_host_is_glibc() {
        let Image::Glibc { version, preloads, .. } = image_at(Path::new("/")) else { return };
        assert!(version >= Version(2, 17) && !preloads.is_empty(), "{version}");
        let needed = needed(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(needed <= version, "{needed}");
    }

    /// Some loaders read another file, some none.
    #[test]
    fn preload_file_is_the_one_the_loader_reads() {
        let own = image_at(Path::new("/"));
        let Image::Glibc { libraries, .. } = own else { return };
        let folder = tempfile::tempdir().unwrap();
        let library = fs::read(Path::new("/").join(libraries).join("libc.so.6")).unwrap();
        put(folder.path(), "lib64/libc.so.6", &library);
        let found = |loader: &str| {
            put(folder.path(), "lib64/ld-linux-x86-64.so.2", loader.as_bytes());
            let Image::Glibc { preloads, .. } = image_at(folder.path()) else { panic!("no glibc") };
            preloads
        };
        let (usual, of_nix) = ("../etc/ld.so.preload..", "../etc/ld-nix.so.preload..");
        assert_eq!(found(usual), ["/etc/ld.so.preload"]);
        assert_eq!(found(of_nix), ["/etc/ld-nix.so.preload"]);
        assert!(found("..nothing..").is_empty());
        // Nix programs in another distribution's image bring their own loader.
        fs::create_dir_all(folder.path().join("nix/store")).unwrap();
        assert_eq!(found(usual), ["/etc/ld.so.preload", "/etc/ld-nix.so.preload"]);
        assert_eq!(found(of_nix), ["/etc/ld-nix.so.preload"]);
        assert!(found("..nothing..").is_empty());
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(Version::parse(b"GLIBC_2.2.5"), Some(Version(2, 2)));
        assert!(Version::parse(b"GLIBC_2.34") > Version::parse(b"GLIBC_2.9"));
        assert_eq!(Version::parse(b"GLIBC_PRIVATE"), None);
        assert_eq!(Version::parse(b"GCC_3.0"), None);
    }

    #[test]
    fn merged_puts_the_shim_first_and_once() {
        assert_eq!(merged("/run/cgpu/libcgpu.so", b""), b"/run/cgpu/libcgpu.so\n");
        let merged = merged("/s", b"/image.so\n\n /s \n/other.so");
        assert_eq!(merged, b"/s\n/image.so\n/other.so\n");
    }
}
