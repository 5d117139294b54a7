//! The segment's file: created under another name, then linked into place; mapped by every client;
//! replaced only when it is not in use.
//!
//! The file is sparse: as long as all tables when full, but only touched pages take space. On a
//! full file system the first touch of a page kills the process (SIGBUS); that is accepted for a
//! simulator.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use cgpu_shm::atomic::AtomicU64;
use cgpu_shm::liveness::{Liveness, LivenessLocks};
use cgpu_shm::slots::SlotLocks;
use cgpu_shm::units::SlotIndex;
use memmap2::{Advice, MmapOptions, MmapRaw};

use super::areas::{self, AREAS};
use super::preamble::{Preamble, Validity};
use crate::error::Error;
use crate::gpu::GpuSpec;
use crate::instance::Part;
use crate::settings::Settings;

const LENGTH: usize = size_of::<Preamble>() + AREAS * areas::LENGTH;

/// The mapped file. A forked child does not have the mapping.
#[derive(Debug)]
pub(super) struct Mapping {
    map: MmapRaw,
    path: PathBuf,
    identity: (u64, u64),
    pub(super) liveness_locks: LivenessLocks,
}

impl Mapping {
    /// Opens the segment that the settings name. Creates it if it is missing, or if it differs from
    /// the settings and is not in use.
    pub(super) fn open(settings: &Settings) -> Result<Self, Error> {
        let path = &settings.state;
        let fail = |error: io::Error| Error::Segment(format!("{}: {error}", path.display()));
        // Another process may replace the file between two of our steps, but then its file is
        // valid.
        for _ in 0..100 {
            let file = match OpenOptions::new().read(true).write(true).open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    make(settings).map_err(fail)?;
                    continue;
                }
                Err(error) => return Err(fail(error)),
            };
            let about = file.metadata().map_err(fail)?;
            let liveness_locks = LivenessLocks::of(path, &file).map_err(fail)?;
            if about.len() != LENGTH as u64 {
                if !begins_like_ours(&file) {
                    return Err(foreign(path));
                }
                replace(path, &liveness_locks, "is of another build")?;
                continue;
            }
            let identity = (about.dev(), about.ino());
            let mapping = Self {
                map: map(&file).map_err(fail)?,
                path: path.clone(),
                identity,
                liveness_locks,
            };
            match mapping.mismatch(settings)? {
                None => return Ok(mapping),
                Some(Mismatch { why, fatal }) => match replace(path, &mapping.liveness_locks, &why)
                {
                    // In use with other figures: those apply.
                    Err(_) if !fatal => return Ok(mapping),
                    done => done?,
                },
            }
        }
        Err(Error::Segment(format!("{}: other processes keep replacing this file", path.display())))
    }

    /// Returns how the segment differs from the settings; `None` if it does not.
    fn mismatch(&self, settings: &Settings) -> Result<Option<Mismatch>, Error> {
        let preamble = self.preamble();
        match preamble.validity() {
            Validity::Foreign => return Err(foreign(&settings.state)),
            Validity::Stale => {
                let why = "is of another build or an earlier boot".to_owned();
                return Ok(Some(Mismatch { why, fatal: true }));
            }
            Validity::Valid => {}
        }
        let there = preamble.gpus()?;
        if let Some(asked) = &settings.gpus
            && *asked != there
        {
            let why =
                format!("holds the GPUs {}, but {} were requested", list(&there), list(asked));
            return Ok(Some(Mismatch { why, fatal: true }));
        }
        let same = preamble.figures() == settings.figures
            && preamble.time_scale_milli() == settings.time_scale_milli;
        Ok((!same).then(|| Mismatch { why: "has other figures".to_owned(), fatal: false }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    #[inline]
    pub(super) fn preamble(&self) -> &Preamble {
        #[allow(clippy::cast_ptr_alignment)]
        // a mapping starts at a page, and a Preamble is aligned to one
        let preamble = self.map.as_ptr().cast::<Preamble>();
        // SAFETY:
        // - the pointer is aligned, and the mapping longer than a Preamble;
        // - a Preamble is made of atomics: any bytes are valid, and other processes may change
        //   them;
        // - the mapping lives as long as the reference: both borrow self.
        unsafe { &*preamble }
    }

    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is longer than a Preamble.
        let start = unsafe { self.map.as_ptr().add(size_of::<Preamble>()) };
        // SAFETY: as for the preamble: aligned (a Preamble is whole pages), within the mapping
        // (LENGTH), atomics, borrowed.
        unsafe {
            core::slice::from_raw_parts(start.cast(), AREAS * areas::LENGTH / size_of::<u64>())
        }
    }

    /// Opens the mapped file again, by its name.
    pub(super) fn reopen(&self) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let about = file.metadata()?;
        if (about.dev(), about.ino()) == self.identity {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "another file has taken the segment's name"))
    }
}

/// A difference between a segment and the settings.
struct Mismatch {
    why: String,
    /// The segment cannot be used as it is.
    fatal: bool,
}

fn foreign(path: &Path) -> Error {
    Error::Segment(format!(
        "{} is not a segment of a simulated GPU: name another file in CGPU_SIM_STATE",
        path.display()
    ))
}

fn list(gpus: &[GpuSpec]) -> String {
    let each = |gpu: &GpuSpec| match gpu.part {
        Part::Instance(instance) => instance.profile(),
        Part::Partitioned => format!("{}:{}/mig", gpu.model.key, gpu.total.0 >> 20),
        Part::Whole => format!("{}:{}", gpu.model.key, gpu.total.0 >> 20),
    };
    gpus.iter().map(each).collect::<Vec<_>>().join(",")
}

fn map(file: &File) -> io::Result<MmapRaw> {
    let map = MmapOptions::new().len(LENGTH).map_raw(file)?;
    map.advise(Advice::DontFork)?;
    // Several hundred MiB of shared memory do not help to debug a crashed program.
    map.advise(Advice::DontDump)?;
    Ok(map)
}

fn begins_like_ours(file: &File) -> bool {
    let mut first = [0; 8];
    file.read_exact_at(&mut first, 0).is_ok()
        && u64::from_ne_bytes(first).to_be_bytes().starts_with(b"CGPUSIM")
}

/// Creates the file, unless it exists.
fn make(settings: &Settings) -> io::Result<()> {
    let draft = Draft::new(&settings.state)?;
    draft.file.set_len(LENGTH as u64)?;
    let words = Preamble::words(settings);
    draft
        .file
        .write_all_at(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>(), 0)?;
    match fs::hard_link(&draft.path, &settings.state) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn replace(path: &Path, liveness_locks: &LivenessLocks, why: &str) -> Result<(), Error> {
    let fail = |error: io::Error| Error::Segment(format!("{}: {error}", path.display()));
    // Locked, so that only one process removes it. The next one finds another file under the name.
    let alone = match liveness_locks.file() {
        Ok(alone) => alone,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error)),
    };
    let Some(_alone) = alone else {
        std::thread::yield_now();
        return Ok(());
    };
    for slot in SlotIndex::all() {
        if liveness_locks.liveness(slot).map_err(fail)? == Liveness::Alive {
            return Err(Error::Segment(format!(
                "{} {why}; a live process uses it: \
                 end that process, or name another file in CGPU_SIM_STATE",
                path.display()
            )));
        }
    }
    // First, while no process can create new ones.
    remove_exports(path);
    fs::remove_file(path).map_err(fail)
}

/// Removes exports that were left when all processes were killed at once. Leftovers do no harm.
fn remove_exports(segment: &Path) {
    let beginning =
        format!("{}.export-", segment.file_name().unwrap_or_default().to_string_lossy());
    let folder =
        segment.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&beginning) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A file under its temporary name.
struct Draft {
    file: File,
    path: PathBuf,
}

impl Draft {
    fn new(name: &Path) -> io::Result<Self> {
        for number in 0.. {
            let path = name.with_file_name(format!(
                ".{}.{}.{number}",
                name.file_name().unwrap_or_default().to_string_lossy(),
                process::id()
            ));
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o666).open(&path)
            {
                Ok(file) => return Ok(Self { file, path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1_000 => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("the range has no end")
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // A failure only leaves a stray name.
        let _ = fs::remove_file(&self.path);
    }
}
