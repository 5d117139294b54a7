//! The files of a container: created once, checked when opened; full, read-only, truncated, of
//! another version, hostile.
#![cfg(not(loom))]

mod orphans;
#[path = "../skip/mod.rs"]
mod skip;

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::file::{Error, Fault};
use cgpu_shm::gpus::{self, Gpu};
use cgpu_shm::grant::{GrantWriter, Heartbeat, MAX_WOKEN, Monitor, STALE, Turn, TurnState};
use cgpu_shm::intervals::{self, READABLE, Span};
use cgpu_shm::layout::{EXPORTED_UNSEEN, GPUS, LAYOUT_VERSION, SLOTS};
use cgpu_shm::ledger::Column;
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::paths::Candidate;
use cgpu_shm::preamble::{InvalidPreamble, Kind};
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::{Claim, DRAIN_PERIOD, SlotLocks, SlotOwner, State, Swept, Word};
use cgpu_shm::snapshot::{Reader, Slot};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos, SlotIndex, TimeScale};
use cgpu_shm::uuid::Uuid;
use proptest::prelude::*;
use skip::skip;
use tempfile::TempDir;

const NOW: Nanos = Nanos::from_millis(5_000);

fn spec() -> RegionSpec<'static> {
    RegionSpec { name: "trainer", created: Nanos(77), time_scale: Some(TimeScale(10_000)) }
}

fn made() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    assert!(Region::make(directory.path(), spec()).unwrap());
    directory
}

fn candidate(directory: &Path) -> Candidate {
    Candidate { directory: directory.to_path_buf(), owner: None }
}

fn gpu(number: u8) -> Gpu {
    Gpu {
        uuid: Uuid([number; 16]),
        total: Bytes(1000),
        limit: Bytes(100),
        ordinal: u32::from(number),
    }
}

fn first_gpu() -> DeviceIndex {
    DeviceIndex::new(0).unwrap()
}

/// A mounted file system.
struct Tmpfs(PathBuf, #[allow(dead_code)] TempDir);

impl Tmpfs {
    /// Mounts one; where that is not allowed, records the test as skipped and returns `None`.
    fn mount(test: &str, kind: &str, options: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mounted");
        fs::create_dir(&path).unwrap();
        let mounted =
            Command::new("mount").args(["-t", kind, "-o", options, "none"]).arg(&path).output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self(path, directory));
        }
        skip(test, "mount", "this user may not mount file systems");
        None
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(
            Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success()
        );
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily: a process that another test has just forked may have a file of it open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

// ---- creation
// ------------------------------------------------------------------------------------

#[test]
fn files_are_created_once_and_complete() {
    let directory = made();
    let path = |kind: Kind| directory.path().join(kind.name());
    let before = fs::metadata(path(Kind::Use)).unwrap();
    assert!(!Region::make(directory.path(), RegionSpec::default()).unwrap(), "they exist");
    assert_eq!(fs::metadata(path(Kind::Use)).unwrap().ino(), before.ino());
    assert_eq!(before.len(), 1_118_208);
    assert!(before.blocks() * 512 >= before.len(), "all space is allocated");
    assert_eq!(before.mode() & 0o777, 0o666);
    assert_eq!(fs::metadata(path(Kind::Grant)).unwrap().mode() & 0o777, 0o644);
    let mut names: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["doorbell", "grant", "use"], "no draft is left");

    let snapshot = Reader::open(directory.path()).unwrap().read().unwrap();
    assert_eq!((snapshot.name.as_str(), snapshot.created), ("trainer", Nanos(77)));
    assert!(snapshot.gpus.is_empty() && snapshot.slots.is_empty());
}

#[test]
fn missing_directory_is_created() {
    let parent = tempfile::tempdir().unwrap();
    let (nowhere, here) = (parent.path().join("a/b"), parent.path().join("c"));
    let region = Region::open_or_make(&[candidate(&nowhere), candidate(&here)], spec()).unwrap();
    assert_eq!(region.directory(), here);
    // It is found again, although nothing can be created in the first candidate.
    let again = Region::open_or_make(&[candidate(&nowhere), candidate(&here)], spec()).unwrap();
    assert_eq!(again.directory(), here);
    let none = Region::open_or_make(&[candidate(&nowhere)], spec()).unwrap_err();
    assert!(matches!(none.fault, Fault::Missing), "{none}");
}

#[test]
fn existing_region_is_preferred_to_creating_one() {
    let (empty, full) = (tempfile::tempdir().unwrap(), made());
    let region =
        Region::open_or_make(&[candidate(empty.path()), candidate(full.path())], spec()).unwrap();
    assert_eq!(region.directory(), full.path());
}

#[test]
fn broken_region_is_not_bypassed() {
    let (broken, other) = (made(), tempfile::tempdir().unwrap());
    fs::write(broken.path().join("use"), b"").unwrap();
    let error = Region::open_or_make(&[candidate(broken.path()), candidate(other.path())], spec())
        .unwrap_err();
    assert!(
        matches!(error.fault, Fault::InvalidPreamble(InvalidPreamble::WrongSize { found: 0, .. })),
        "{error}"
    );
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn directory_in_a_shared_place_must_belong_to_the_user_alone() {
    // SAFETY: takes no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    let parent = tempfile::tempdir().unwrap();
    let ours = |name: &str| Candidate { directory: parent.path().join(name), owner: Some(user) };
    Region::open_or_make(&[ours("made")], spec()).unwrap();
    assert_eq!(fs::metadata(parent.path().join("made")).unwrap().mode() & 0o777, 0o700);

    fs::create_dir(parent.path().join("open")).unwrap();
    fs::set_permissions(parent.path().join("open"), Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::symlink(parent.path().join("made"), parent.path().join("link")).unwrap();
    let others = Candidate { directory: parent.path().join("made"), owner: Some(user + 1) };
    for candidate in [ours("open"), ours("link"), others] {
        let error = Region::open_or_make(&[candidate], spec()).unwrap_err().to_string();
        assert!(error.contains("expected a directory of user"), "{error}");
    }
}

// ---- faults
// --------------------------------------------------------------------------------------

fn open_fault(directory: &Path) -> Fault {
    let error: Error = Region::open(directory).unwrap_err();
    let message = error.to_string();
    assert!(message.contains(directory.to_str().unwrap()), "{message}");
    error.fault
}

fn edit(directory: &Path, kind: Kind, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(directory.join(kind.name())).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

#[test]
fn each_fault_of_a_file_is_distinguished() {
    for kind in [Kind::Use, Kind::Grant] {
        let truncated = |length| {
            let directory = made();
            OpenOptions::new()
                .write(true)
                .open(directory.path().join(kind.name()))
                .unwrap()
                .set_len(length)
                .unwrap();
            open_fault(directory.path())
        };
        let size = kind.size();
        for length in [0, 15, 16, 4096, size - 1, size + 1] {
            let fault = truncated(length);
            let Fault::InvalidPreamble(InvalidPreamble::WrongSize { found, expected }) = fault
            else {
                panic!("{length}: {fault:?}");
            };
            assert_eq!((found, expected), (length, size));
        }
        let edited = |offset, bytes: &[u8]| {
            let directory = made();
            edit(directory.path(), kind, offset, bytes);
            open_fault(directory.path())
        };
        assert!(matches!(
            edited(0, &0u32.to_ne_bytes()),
            Fault::InvalidPreamble(InvalidPreamble::NotYet)
        ));
        assert!(matches!(
            edited(0, &9u32.to_ne_bytes()),
            Fault::InvalidPreamble(InvalidPreamble::WrongVersion { found: 9 })
        ));
        assert!(matches!(
            edited(4, &9u32.to_ne_bytes()),
            Fault::InvalidPreamble(InvalidPreamble::WrongMagic { found: 9, .. })
        ));
        assert!(matches!(
            edited(8, &9u64.to_ne_bytes()),
            Fault::InvalidPreamble(InvalidPreamble::WrongSize { found: 9, .. })
        ));
        let missing = made();
        fs::remove_file(missing.path().join(kind.name())).unwrap();
        assert!(matches!(open_fault(missing.path()), Fault::Missing));
        let folder = made();
        fs::remove_file(folder.path().join(kind.name())).unwrap();
        fs::create_dir(folder.path().join(kind.name())).unwrap();
        open_fault(folder.path());
    }
}

#[test]
fn wait_for_a_file_that_is_never_ready_is_bounded() {
    let directory = made();
    edit(directory.path(), Kind::Use, 0, &0u32.to_ne_bytes());
    let error = Region::open_or_make(&[candidate(directory.path())], spec()).unwrap_err();
    assert!(matches!(error.fault, Fault::InvalidPreamble(InvalidPreamble::NotYet)), "{error}");
}

#[test]
fn file_that_becomes_ready_is_waited_for() {
    let directory = made();
    edit(directory.path(), Kind::Use, 0, &0u32.to_ne_bytes());
    std::thread::scope(|scope| {
        let opened = scope
            .spawn(|| Region::open_or_make(&[candidate(directory.path())], spec()).map(|_| ()));
        edit(directory.path(), Kind::Use, 0, &LAYOUT_VERSION.to_ne_bytes());
        opened.join().unwrap().unwrap();
    });
}

#[test]
fn region_keeps_the_time_scale_it_was_created_with() {
    let directory = made();
    let scale = Region::open(directory.path()).unwrap().time_scale();
    assert_eq!(scale.host(Nanos(12)), Nanos(120));
    assert_eq!(scale.host(Nanos(u64::MAX)), Nanos(u64::MAX));
    edit(
        directory.path(),
        Kind::Use,
        std::mem::offset_of!(cgpu_shm::layout::UseHeader, time_scale) as u64,
        &0u32.to_ne_bytes(),
    );
    assert_eq!(Region::open(directory.path()).unwrap().time_scale(), TimeScale::REAL);
}

#[test]
fn full_tmpfs_is_reported_and_skipped() {
    let test = "full_tmpfs_is_reported_and_skipped";
    let Some(tmpfs) = Tmpfs::mount(test, "tmpfs", "size=1m") else { return };
    let error = Region::open_or_make(&[candidate(&tmpfs.0)], spec()).unwrap_err();
    assert!(matches!(error.fault, Fault::NoSpace { needed: 1_118_208 }), "{error}");
    let mut left: Vec<_> =
        fs::read_dir(&tmpfs.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["doorbell", "grant"], "only what fitted");
    // The next candidate is used.
    let other = tempfile::tempdir().unwrap();
    let region =
        Region::open_or_make(&[candidate(&tmpfs.0), candidate(other.path())], spec()).unwrap();
    assert_eq!(region.directory(), other.path());
}

/// The file has a hole, and the tmpfs has no room for it: accessing it through a mapping would
/// raise SIGBUS.
#[test]
fn hole_on_a_full_tmpfs_is_reported_when_opening() {
    let test = "hole_on_a_full_tmpfs_is_reported_when_opening";
    let Some(tmpfs) = Tmpfs::mount(test, "tmpfs", "size=3m") else { return };
    Region::make(&tmpfs.0, spec()).unwrap();
    let path = tmpfs.0.join("use");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    file.set_len(Kind::Use.size()).unwrap();
    // Less than a region is free.
    let other = fs::File::create(tmpfs.0.join("other")).unwrap();
    other.write_all_at(&vec![1; 2 << 20], 0).unwrap();
    assert!(matches!(open_fault(&tmpfs.0), Fault::NoSpace { .. }));
    // With room the hole is filled. (Truncated, not removed: a process that another test has just
    // forked may have the file open.)
    other.set_len(0).unwrap();
    Region::open(&tmpfs.0).unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= Kind::Use.size());
}

#[test]
fn read_only_file_system_is_reported() {
    let test = "read_only_file_system_is_reported";
    let Some(tmpfs) = Tmpfs::mount(test, "tmpfs", "size=8m") else { return };
    tmpfs.remount("ro");
    let error = Region::open_or_make(&[candidate(&tmpfs.0)], spec()).unwrap_err();
    assert!(matches!(error.fault, Fault::ReadOnly), "{error}");
    tmpfs.remount("rw");
    Region::make(&tmpfs.0, spec()).unwrap();
    tmpfs.remount("ro");
    assert!(matches!(open_fault(&tmpfs.0), Fault::ReadOnly));
    // The monitor can still read.
    assert!(Reader::open(&tmpfs.0).unwrap().read().is_ok());
    // A read-only region is still the container's: no other may be created beside it.
    let other = tempfile::tempdir().unwrap();
    let error =
        Region::open_or_make(&[candidate(&tmpfs.0), candidate(other.path())], spec()).unwrap_err();
    assert!(matches!(error.fault, Fault::ReadOnly), "{error}");
}

/// Locks are lost on overlayfs, where a container's plain directories are.
#[test]
fn overlayfs_is_refused() {
    let test = "overlayfs_is_refused";
    let Some(tmpfs) = Tmpfs::mount(test, "tmpfs", "size=16m") else { return };
    for name in ["lower", "upper", "work"] {
        fs::create_dir(tmpfs.0.join(name)).unwrap();
    }
    let at = |name: &str| tmpfs.0.join(name).display().to_string();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    let Some(overlay) = Tmpfs::mount(test, "overlay", &options) else { return };
    let error = Region::make(&overlay.0, spec()).unwrap_err();
    assert!(matches!(error.fault, Fault::Unsupported), "{error}");
    // The liveness lock notices it, too: a lock there does not outlive its descriptor.
    fs::write(overlay.0.join("file"), []).unwrap();
    let locks = cgpu_shm::liveness::LivenessLocks::open(&overlay.0.join("file")).unwrap();
    let held = locks.hold(SlotIndex(0)).map(|lock| lock.is_some());
    assert_eq!(held.unwrap_err().kind(), std::io::ErrorKind::Unsupported);
    drop(overlay);
}

// ---- slots and GPUs
// ------------------------------------------------------------------------------

#[test]
fn process_257_gets_no_slot() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let who = SlotOwner { pid: 42, comm: b"a name of more than fifteen bytes" };
    let claims: Vec<_> =
        (0..SLOTS).map(|_| region.claim(who, NOW, false).unwrap().unwrap()).collect();
    assert!(claims.iter().enumerate().all(|(index, claim)| claim.slot.get() == index));
    assert!(region.claim(who, NOW, false).unwrap().is_none());
    assert_eq!(region.slots().high_water(), SLOTS);
    // One exits; when its memory is gone, its slot is free.
    let mut claims = claims;
    drop(claims.remove(100));
    assert!(region.claim(who, NOW, false).unwrap().is_none(), "it is draining");
    let later = NOW + Nanos::from_millis(600);
    let again = region.claim(who, later, false).unwrap().unwrap();
    assert_eq!((again.slot.get(), again.generation.get()), (100, 2));
    let snapshot = Reader::open(directory.path()).unwrap().read().unwrap();
    assert_eq!(snapshot.slots[100].comm, "a name of more ");
    assert_eq!(snapshot.slots[100].pid, 42);
}

#[test]
fn slot_is_freed_only_by_the_monitors_confirmation() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let monitor = GrantWriter::open(directory.path()).unwrap();
    let claim = region.claim(SlotOwner::default(), NOW, true).unwrap().unwrap();
    let slot = claim.slot;
    let draining = Word::new(claim.generation, State::Draining);
    drop(claim);
    let later = NOW + Nanos::from_millis(60_000);
    assert_eq!(region.sweep(NOW, true).unwrap().exited, 1);
    assert_eq!(region.sweep(later, true).unwrap().draining, 1);
    // A confirmation for an earlier process of the slot does not count.
    monitor
        .set_drained(slot, Word::new(cgpu_shm::units::Generation::from_bits(0), State::Draining));
    assert_eq!(region.sweep(later, true).unwrap().draining, 1);
    assert_eq!(region.slots().word(slot), Some(draining));
    monitor.set_drained(slot, draining);
    assert_eq!(region.sweep(later, true).unwrap().freed, 1);
}

#[test]
fn freed_slot_is_all_zero() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let claim = region.claim(SlotOwner::default(), NOW, false).unwrap().unwrap();
    let slot = claim.slot;
    for gpu in DeviceIndex::all() {
        region.account(gpu, claim.owner()).force_charge(
            Column::Implicit,
            Bytes(9),
            || Bytes::MAX,
            Nanos::ZERO,
            |owner| region.liveness(owner),
        );
        region.cell(gpu, slot).sequence.store(9, Ordering::Relaxed);
        region.cell(gpu, slot).interval[6].end.store(9, Ordering::Relaxed);
    }
    region.slot(slot).counter[47].store(9, Ordering::Relaxed);
    region.slot(slot).acked.store(9, Ordering::Relaxed);
    drop(claim);
    region.sweep(NOW, false).unwrap();
    assert_eq!(region.sweep(NOW + Nanos::from_millis(500), false).unwrap().freed, 1);
    let bytes = fs::read(directory.path().join("use")).unwrap();
    let zero =
        |from: usize, length: usize| bytes[from..from + length].iter().all(|byte| *byte == 0);
    assert!(zero(4096 + 40, 256 - 40), "counters");
    assert!((0..GPUS).all(|gpu| zero(69_632 + gpu * 65_536, 256)), "cells");
}

#[test]
fn gpu_is_registered_once() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let me = region.claim(SlotOwner::default(), NOW, false).unwrap().unwrap();
    let first = region.register(me.slot, &gpu(1)).unwrap();
    let second = region.register(me.slot, &gpu(2)).unwrap();
    assert_eq!((first.get(), second.get()), (0, 1));
    assert_eq!(region.register(me.slot, &gpu(1)).unwrap(), first);
    let found: Vec<_> = region.gpus().map(|(_, gpu)| gpu).collect();
    assert_eq!(found, [gpu(1), gpu(2)]);
    for number in 3..=GPUS {
        region.register(me.slot, &gpu(u8::try_from(number).unwrap())).unwrap();
    }
    assert!(matches!(region.register(me.slot, &gpu(99)), Err(gpus::Error::Full)));
}

/// A container has one limit per GPU; a directory that outlives its container does not keep it.
#[test]
fn registered_limit_is_kept_while_another_process_lives() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let elder = region.claim(SlotOwner::default(), NOW, false).unwrap().unwrap();
    let index = region.register(elder.slot, &gpu(1)).unwrap();
    let younger = region.claim(SlotOwner::default(), NOW, false).unwrap().unwrap();
    let more = Gpu { limit: Bytes(500), ..gpu(1) };
    let limit = || region.gpus().next().unwrap().1.limit;
    region.register(younger.slot, &more).unwrap();
    assert_eq!(limit(), Bytes(100));
    drop(elder);
    region.sweep(NOW, false).unwrap();
    assert_eq!(region.register(younger.slot, &more).unwrap(), index);
    assert_eq!(limit(), Bytes(500));
}

// ---- the monitor's page
// --------------------------------------------------------------------------

#[test]
fn container_reads_what_the_monitor_wrote() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let monitor = GrantWriter::open(directory.path()).unwrap();
    let gpu = first_gpu();
    let granted = region.grant();
    assert_eq!((granted.gate(), granted.turn(gpu).state()), (0, TurnState::Open));
    assert_eq!(granted.limit(gpu, Bytes::ZERO), Bytes::MAX);
    assert_eq!(granted.limit(gpu, Bytes(7)), Bytes(7));
    assert!(!granted.notify_requested());

    let turn = Turn::new(5, TurnState::Wait);
    monitor.set_turn(gpu, turn, Nanos(6), Nanos(7));
    monitor.gpu(gpu).limit.store(9, Ordering::Relaxed);
    monitor.set_notify_slot(gpu, Some(SlotIndex(255)));
    monitor.request_notification();
    monitor.wake_gate();
    assert_eq!(granted.acknowledge(), 1);
    assert_eq!((granted.turn(gpu), granted.turn(gpu).epoch()), (turn, 5));
    assert_eq!((granted.budget(gpu), granted.until(gpu)), (Nanos(6), Nanos(7)));
    assert_eq!(granted.limit(gpu, Bytes(7)), Bytes(9));
    assert!(granted.notify_requested() && granted.is_notify_slot(gpu, SlotIndex(255)));
    monitor.set_notify_slot(gpu, None);
    monitor.clear_notification();
    assert!(
        !granted.notify_requested()
            && SlotIndex::all().all(|slot| !granted.is_notify_slot(gpu, slot))
    );
    assert_eq!(Turn(7 << 8 | 99).state(), TurnState::Open, "a state of another version");

    // The word that means "no monitor ever wrote" does not recur.
    monitor.page().gate.store(u32::MAX, Ordering::Relaxed);
    monitor.bump_gate();
    assert_eq!(granted.gate(), 1);
}

/// The container's mapping is read-only; the kernel identifies the word by its file.
#[test]
fn waiter_at_the_gate_is_woken_through_the_monitors_mapping() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let monitor = GrantWriter::open(directory.path()).unwrap();
    let hour = Nanos::from_millis(3_600_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while region.grant().gate() == 0 {
                region.grant().wait(0, hour);
            }
        });
        // It sleeps by now, most often.
        std::thread::sleep(std::time::Duration::from_millis(20));
        monitor.wake_gate();
    });
}

/// A container may have as many threads wait as it likes, and the monitor wakes them itself.
#[test]
fn wake_up_of_many_waiters_is_bounded() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let monitor = GrantWriter::open(directory.path()).unwrap();
    let waiters = 3 * MAX_WOKEN as usize;
    let hour = Nanos::from_millis(3_600_000);
    std::thread::scope(|scope| {
        let wait = || {
            while region.grant().gate() == 0 {
                region.grant().wait(0, hour);
            }
        };
        let threads: Vec<_> = (0..waiters).map(|_| scope.spawn(wait)).collect();
        // They sleep by now, most often.
        std::thread::sleep(std::time::Duration::from_millis(200));
        while threads.iter().any(|thread| !thread.is_finished()) {
            assert!(monitor.wake_gate() <= MAX_WOKEN);
        }
    });
}

#[test]
fn heartbeat_is_timed_by_the_reader() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let monitor = GrantWriter::open(directory.path()).unwrap();
    let heartbeat = Heartbeat::default();
    let at = |time| heartbeat.observe(region.grant(), time);
    assert_eq!(at(NOW), Monitor::Never);
    monitor.adopt(3);
    assert_eq!(at(NOW), Monitor::Lives);
    let almost = NOW + STALE - Nanos(1);
    assert_eq!(at(almost), Monitor::Lives);
    assert_eq!(at(NOW + STALE), Monitor::Stale);
    monitor.beat();
    assert_eq!(at(NOW + STALE + STALE), Monitor::Lives);
    assert!(!at(NOW + STALE + STALE + STALE).lives());
}

// ---- the container's page
// ------------------------------------------------------------------------

#[test]
fn monitor_reads_what_the_container_wrote() {
    let directory = made();
    let region = Region::open(directory.path()).unwrap();
    let who = SlotOwner { pid: 42, comm: b"python3" };
    let me = region.claim(who, NOW, false).unwrap().unwrap();
    let index = region.register(me.slot, &gpu(1)).unwrap();
    let account = region.account(index, me.owner());
    let charge = |column, bytes| {
        account.charge(column, bytes, || Bytes(100), Nanos::ZERO, |owner| region.liveness(owner))
    };
    charge(Column::Used, Bytes(40)).unwrap();
    charge(Column::Implicit, Bytes(20)).unwrap();
    account.own().refund(Column::Used, Bytes(10));
    account.own().export(Bytes(5));
    region.cell(index, me.slot).busy.store(8, Ordering::Relaxed);
    for number in 0..10 {
        intervals::publish(
            region.cell(index, me.slot),
            Span { start: Nanos(number), end: Nanos(number + 1) },
        );
    }

    let mut reader = Reader::open(directory.path()).unwrap();
    let snapshot = reader.read().unwrap();
    let gpu = &snapshot.gpus[0];
    assert_eq!(
        (gpu.uuid, gpu.total, gpu.limit, gpu.cells[0].exported),
        (Uuid([1; 16]), Bytes(1000), Bytes(100), Bytes(5))
    );
    let cell = &gpu.cells[0];
    assert_eq!(
        (cell.used, cell.implicit, cell.peak, cell.busy),
        (Bytes(30), Bytes(20), Bytes(60), Nanos(8))
    );
    assert_eq!(gpu.used(), account.total());
    let slot = &snapshot.slots[0];
    assert_eq!((slot.pid, slot.comm.as_str(), slot.since), (42, "python3", NOW));
    assert_eq!(slot.word, Word::new(me.generation, State::Live));
    let spans: Vec<_> = cell.spans_since(0).map(|span| span.start.0).collect();
    assert_eq!(spans, [4, 5, 6, 7, 8, 9]);
    assert_eq!(spans.len(), READABLE);
    assert_eq!(cell.spans_since(8).count(), 2);
    assert_eq!(cell.spans_since(10).count(), 0);
    assert_eq!(cell.spans_since(11).count(), READABLE, "a new process of the slot began again");
}

#[test]
fn file_truncated_under_the_monitor_is_an_error() {
    let directory = made();
    let mut reader = Reader::open(directory.path()).unwrap();
    for length in [100_000, 4096, 100, 0] {
        // The counts of GPUs and slots.
        edit(directory.path(), Kind::Use, 16, &u64::MAX.to_ne_bytes());
        OpenOptions::new()
            .write(true)
            .open(directory.path().join("use"))
            .unwrap()
            .set_len(length)
            .unwrap();
        let error = reader.read().unwrap_err();
        let Fault::InvalidPreamble(InvalidPreamble::WrongSize { found, .. }) = error.fault else {
            panic!("{error}");
        };
        assert_eq!(found, length);
    }
}

#[test]
fn monitor_follows_no_link_and_waits_for_no_fifo() {
    let (directory, other) = (made(), made());
    let path = directory.path().join("use");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(other.path().join("use"), &path).unwrap();
    assert!(Reader::open(directory.path()).is_err());
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(Reader::open(directory.path()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes that a container writes give a bounded snapshot or an error, and never a panic.
    #[test]
    fn hostile_bytes_give_a_bounded_snapshot_or_an_error(
        writes in prop::collection::vec(
            (0u64..140_000, prop::collection::vec(any::<u8>(), 1..64)),
            1..40,
        ),
        counts in any::<[u32; 2]>(),
    ) {
        let directory = made();
        let mut reader = Reader::open(directory.path()).unwrap();
        for (offset, bytes) in writes {
            edit(directory.path(), Kind::Use, offset, &bytes);
        }
        edit(directory.path(), Kind::Use, 16, &counts[0].to_ne_bytes());
        edit(directory.path(), Kind::Use, 20, &counts[1].to_ne_bytes());
        if let Ok(snapshot) = reader.read() {
            prop_assert!(snapshot.gpus.len() <= GPUS && snapshot.slots.len() <= SLOTS);
            for gpu in &snapshot.gpus {
                prop_assert_eq!(gpu.cells.len(), snapshot.slots.len());
                prop_assert!(gpu.used() >= snapshot.orphan(gpu));
                for cell in &gpu.cells {
                    prop_assert!(cell.spans_since(u64::MAX).count() <= READABLE);
                    prop_assert!(cell.spans_since(0).count() <= READABLE);
                }
            }
        }
        // The container itself does not panic either.
        if let Ok(region) = Region::open(directory.path()) {
            region.sweep(NOW, false).unwrap();
            let gpus: Vec<_> = region.gpus().collect();
            prop_assert!(gpus.len() <= GPUS);
        }
    }
}
