//! A container's directory as its own processes use it: both files, mapped.
//!
//! ```text
//!   use    read-write    slots, accounting, progress    written by the container
//!   grant  read-only     turns, limits, gate            written by the monitor
//! ```
//!
//! The program that starts the container creates both files; otherwise the first process that needs
//! them does. They are never resized or replaced.

use std::ffi::{CString, NulError};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::atomic::Ordering;
use crate::file::{self, Access, Error, Fault};
use crate::grant::GrantView;
use crate::layout::{self, Cell, Grant, NAME, Slot, Use, store_bytes};
use crate::ledger::{self, Account, OwnCell};
use crate::liveness::{Liveness, LivenessLock, LivenessLocks};
use crate::lock::Owner;
use crate::mapping::{Mapping, Shared};
use crate::paths::Candidate;
use crate::preamble::{InvalidPreamble, Kind};
use crate::slots::{self, Claim, SlotOwner, State, Swept, Table, Word};
use crate::units::{DeviceIndex, Nanos, SlotIndex, TimeScale};

/// Mode of `use`. A container's processes may belong to several users; its directory restricts
/// access.
const USE_MODE: u32 = 0o666;
/// Mode of `grant`. Its owner is its creator: the monitor or, without one, a user of the container.
const GRANT_MODE: u32 = 0o644;

/// The FIFO that wakes the monitor.
const DOORBELL: &str = "doorbell";

/// The byte that a process writes to the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bell {
    /// The monitor has requested it.
    Notification = b'!',
    /// The region says less than the process has charged: it was written to by something else.
    Tampered = b'T',
}

/// Tries of a file that is not ready, one per millisecond: 100 ms in all. Creating it takes less
/// than one.
const TRIES: u32 = 100;
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The container's properties, for a new region.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionSpec<'a> {
    /// For display; 63 bytes of it are kept.
    pub name: &'a str,
    /// Creation time, by `CLOCK_REALTIME`.
    pub created: Nanos,
    /// Time scale of simulated GPUs; `None`: real GPUs.
    pub time_scale: Option<TimeScale>,
}

/// A container's two files, mapped by one of its processes.
#[derive(Debug)]
pub struct Region {
    directory: PathBuf,
    doorbell: CString,
    shared: Mapping<Use>,
    grant: Mapping<Grant>,
    locks: LivenessLocks,
}

impl Region {
    /// Creates the files that are missing, and the doorbell, in an existing directory. Returns
    /// whether this call created `use`.
    ///
    /// # Errors
    /// [`Error`] for the first file that cannot be created.
    pub fn make(directory: &Path, spec: RegionSpec<'_>) -> Result<bool, Error> {
        // `use` comes last: where it exists, both do.
        file::make(directory, Kind::Grant, GRANT_MODE, |file| {
            Mapping::<Grant>::writable(file)?.get().preamble().publish(Kind::Grant);
            Ok(())
        })?;
        make_doorbell(directory);
        file::make(directory, Kind::Use, USE_MODE, |file| {
            let mapping = Mapping::<Use>::writable(file)?;
            let header = &mapping.get().header;
            let name = spec.name.as_bytes();
            store_bytes(&header.name, name.get(..NAME - 1).unwrap_or(name));
            header.created.store(spec.created.0, Ordering::Relaxed);
            header.time_scale.store(spec.time_scale.map_or(0, |scale| scale.0), Ordering::Relaxed);
            mapping.get().preamble().publish(Kind::Use);
            Ok(())
        })
    }

    /// Opens the files of a directory.
    ///
    /// # Errors
    /// [`Error`] for the first file that is missing or cannot be used.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(Kind::Use.name());
        let file = file::open(directory, Kind::Use, Access::Write)?;
        let fault = |error| Error::new(&path, Fault::System(error));
        let locks = LivenessLocks::of(&path, &file).map_err(fault)?;
        let shared = Mapping::writable(&file).map_err(fault)?;
        let grant = map_grant(directory)?;
        let doorbell = doorbell(directory).map_err(|error| fault(error.into()))?;
        let directory = directory.to_path_buf();
        let region = Self { directory, doorbell, shared, grant, locks };
        region.check()?;
        Ok(region)
    }

    /// Opens the region of the first candidate that has one, else creates one in the first
    /// candidate that allows it.
    ///
    /// A candidate that has a `use` file is the container's, even if the file is broken: a broken
    /// file must not be a way around a limit. Waits for a file that is being created, 100 ms at
    /// most.
    ///
    /// # Errors
    /// [`Error`] of the candidate that has a region, else of the last one tried.
    pub fn open_or_make(candidates: &[Candidate], spec: RegionSpec<'_>) -> Result<Self, Error> {
        for candidate in candidates {
            check_owner(candidate)?;
            match Self::open_when_ready(&candidate.directory) {
                Err(Error { fault: Fault::Missing, .. }) => {}
                other => return other,
            }
        }
        let mut last = Error::new(Path::new(Kind::Use.name()), Fault::Missing);
        for candidate in candidates {
            let directory = &candidate.directory;
            match prepare(candidate).and_then(|()| Self::make(directory, spec)) {
                Ok(_) => return Self::open_when_ready(directory),
                Err(error)
                    if error.is_elsewhere() && !directory.join(Kind::Use.name()).exists() =>
                {
                    last = error
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Opens the region of the first candidate that has a usable one; `None` if none has.
    #[must_use]
    pub fn find(candidates: &[Candidate]) -> Option<Self> {
        let open = |candidate: &Candidate| {
            check_owner(candidate).and_then(|()| Self::open(&candidate.directory)).ok()
        };
        candidates.iter().find_map(open)
    }

    fn open_when_ready(directory: &Path) -> Result<Self, Error> {
        for _ in 0..TRIES {
            match Self::open(directory) {
                Err(Error { fault: Fault::InvalidPreamble(InvalidPreamble::NotYet), .. }) => {
                    thread::sleep(RETRY_INTERVAL)
                }
                other => return other,
            }
        }
        Self::open(directory)
    }

    fn check(&self) -> Result<(), Error> {
        check(&self.directory, self.shared.get())?;
        check(&self.directory, self.grant.get())
    }

    /// The container's directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file `use`.
    #[inline]
    #[must_use]
    pub fn shared(&self) -> &Use {
        self.shared.get()
    }

    /// Time scale of the container's GPUs.
    #[must_use]
    pub fn time_scale(&self) -> TimeScale {
        TimeScale::of_word(self.shared().header.time_scale.load(Ordering::Relaxed))
    }

    /// The file `grant`.
    #[inline]
    #[must_use]
    pub fn grant(&self) -> GrantView<'_> {
        GrantView::new(self.grant.get())
    }

    /// The lock bytes that say which slots live.
    #[must_use]
    pub fn liveness_locks(&self) -> &LivenessLocks {
        &self.locks
    }

    /// Writes a byte to the doorbell. Best effort.
    ///
    /// Opens it each time: programs close descriptors that they do not know, and the number may
    /// then be another file's. Opens it for reading, too: a write without a reader would end the
    /// program by SIGPIPE.
    pub fn ring(&self, bell: Bell) {
        let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        let name = self.doorbell.as_ptr();
        // SAFETY: `doorbell` is NUL-terminated and lives through the call; no mode is needed
        // without O_CREAT. A raw system call, because `open` is a cancellation point.
        let opened = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name, flags, 0) };
        let Ok(doorbell) = libc::c_int::try_from(opened) else { return };
        if doorbell < 0 {
            return;
        }
        let byte = [bell as u8];
        // SAFETY: the byte is readable for the length of 1, and the descriptor was opened above. A
        // write that the full pipe refuses is not needed: the monitor has a byte to wake on.
        unsafe { libc::syscall(libc::SYS_write, doorbell, byte.as_ptr(), byte.len()) };
        // SAFETY: the descriptor was opened above, and is not used after this.
        unsafe { libc::syscall(libc::SYS_close, doorbell) };
    }

    /// The slots.
    #[must_use]
    pub fn slots(&self) -> Table<'_> {
        Table::new(&self.shared().slot, &self.shared().header.high_water)
    }

    /// One slot.
    #[inline]
    #[must_use]
    pub fn slot(&self, slot: SlotIndex) -> &Slot {
        slot.of(&self.shared().slot)
    }

    /// The cell of a slot's process on a GPU.
    #[inline]
    #[must_use]
    pub fn cell(&self, gpu: DeviceIndex, slot: SlotIndex) -> &Cell {
        slot.of(gpu.of(&self.shared().cell))
    }

    /// As [`Region::cell`], for the calling process.
    #[inline]
    #[must_use]
    pub fn own_cell(&self, gpu: DeviceIndex, slot: SlotIndex) -> OwnCell<'_> {
        OwnCell::new(self.cell(gpu, slot))
    }

    /// A GPU's record.
    #[inline]
    #[must_use]
    pub fn gpu(&self, gpu: DeviceIndex) -> &layout::Gpu {
        gpu.of(&self.shared().header.gpu)
    }

    /// A GPU's accounting, for the process that `me` names.
    #[inline]
    #[must_use]
    pub fn account(&self, gpu: DeviceIndex, me: Owner) -> Account<'_> {
        let cells = gpu.of(&self.shared().cell);
        let (slots, measured) = (&self.shared().slot, self.grant().measured(gpu));
        let (high_water, mine) = (&self.shared().header.high_water, self.cell(gpu, me.slot()));
        Account::new(self.gpu(gpu), cells, slots, measured, high_water, mine, me)
    }

    /// Claims a slot for this process until it exits. Returns `None` if all slots belong to living
    /// processes or to exited ones whose memory is not gone.
    ///
    /// Sweeps first; `monitor` as for [`Region::sweep`].
    ///
    /// # Errors
    /// The system's; see [`LivenessLocks`].
    pub fn claim(
        &self,
        who: SlotOwner<'_>,
        now: Nanos,
        monitor: bool,
    ) -> io::Result<Option<Claim<LivenessLock>>> {
        self.sweep(now, monitor)?;
        self.slots().release_unseen(now);
        self.slots().claim(&self.locks, who, now)
    }

    /// Finds exited processes and frees the slots of those whose memory is gone. `monitor`: a
    /// monitor runs, and its confirmation counts; else the time since the exit was found counts.
    ///
    /// # Errors
    /// The system's.
    pub fn sweep(&self, now: Nanos, monitor: bool) -> io::Result<Swept> {
        let gone = |slot, word, since| {
            slots::is_gone(word, since, now, monitor.then(|| Word(self.grant().drained(slot))))
        };
        let gone = |slot, word: Word, since| match word.state() {
            // An orphan that no process holds is gone, whatever the monitor has found.
            Some(State::Orphan) => {
                self.slots().is_released(slot) || (monitor && self.grant().drained(slot) == word.0)
            }
            _ => gone(slot, word, since),
        };
        self.slots().sweep(&self.locks, now, gone, |slot, state| self.reclaim(slot, state))
    }

    /// As [`Table::opened_handles`].
    #[must_use]
    pub fn opened_handles(&self) -> u64 {
        self.slots().opened_handles()
    }

    /// As [`Table::set_opened_handles`].
    pub fn set_opened_handles(&self, slot: SlotIndex, bits: u64) {
        self.slots().set_opened_handles(slot, bits);
    }

    /// As [`Table::mark_exported`].
    pub fn mark_exported(&self, slot: SlotIndex, bits: u64) {
        self.slots().mark_exported(slot, bits);
    }

    /// Whether the owner named in a shared lock lives.
    #[must_use]
    pub fn liveness(&self, owner: Owner) -> Liveness {
        self.slots().liveness(&self.locks, owner)
    }

    /// Whether the region is consistent: the slots are, and free ones have empty cells. Valid only
    /// while no process works in it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.slots()
            .is_valid(|slot| DeviceIndex::all().all(|gpu| ledger::is_clear(self.cell(gpu, slot))))
    }

    /// Reduces an exited process to what it had exported, if anything; else zeroes all that belongs
    /// to its slot.
    fn reclaim(&self, slot: SlotIndex, state: State) -> State {
        let cell = |gpu| (self.cell(gpu, slot), &self.gpu(gpu).withdrawn);
        let becomes = self.slots().reclaim(slot, state, DeviceIndex::all().map(cell));
        if becomes == State::Free {
            let entry = self.slot(slot);
            entry.acked.store(0, Ordering::Relaxed);
            for counter in &entry.counter {
                counter.store(0, Ordering::Relaxed);
            }
        }
        becomes
    }
}

/// Returns the path of a directory's doorbell.
fn doorbell(directory: &Path) -> Result<CString, NulError> {
    CString::new(directory.join(DOORBELL).into_os_string().into_vec())
}

/// Creates the FIFO by which the container wakes the monitor. Without it, the monitor polls more
/// often.
fn make_doorbell(directory: &Path) {
    let Ok(name) = doorbell(directory) else { return };
    // SAFETY: the name is NUL-terminated and outlives the call.
    if unsafe { libc::mkfifo(name.as_ptr(), USE_MODE) } == 0 {
        // Set explicitly, because of the umask: a user that may write `use` may ring the doorbell.
        let _ = fs::set_permissions(directory.join(DOORBELL), Permissions::from_mode(USE_MODE));
    }
}

fn map_grant(directory: &Path) -> Result<Mapping<Grant>, Error> {
    let file = file::open(directory, Kind::Grant, Access::Read)?;
    Mapping::read_only(&file)
        .map_err(|error| Error::new(&directory.join(Kind::Grant.name()), Fault::System(error)))
}

fn check<T: Shared>(directory: &Path, mapped: &T) -> Result<(), Error> {
    mapped.preamble().check(T::KIND).map_err(|invalid| {
        Error::new(&directory.join(T::KIND.name()), Fault::InvalidPreamble(invalid))
    })
}

/// Creates a candidate's directory unless it exists. Its parent must exist.
fn prepare(candidate: &Candidate) -> Result<(), Error> {
    let mode = if candidate.owner.is_some() { 0o700 } else { 0o755 };
    match DirBuilder::new().mode(mode).create(&candidate.directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::new(&candidate.directory, Fault::of_making(error, 0)))
        }
        _ => check_owner(candidate),
    }
}

/// Checks a candidate's owner and mode. Below `/dev/shm` another user may have taken the name
/// first.
fn check_owner(candidate: &Candidate) -> Result<(), Error> {
    let Some(owner) = candidate.owner else { return Ok(()) };
    let Ok(about) = fs::symlink_metadata(&candidate.directory) else { return Ok(()) };
    if about.is_dir() && about.uid() == owner && about.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = format!(
        "expected a directory of user {owner} alone, found another's: remove it, or set CGPU_DIR"
    );
    let error = io::Error::new(io::ErrorKind::PermissionDenied, message);
    Err(Error::new(&candidate.directory, Fault::System(error)))
}
