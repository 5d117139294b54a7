//! A process that dies after any single store.
//!
//! The child joins a container, charges, refunds and charges again, one machine instruction at a time (ptrace). After each one
//! its file is compared with what it was; whenever it has changed, a copy is made, which is the file of a process that died
//! there: nobody holds a byte of a copy. Then everything must still be possible in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::ptr;

use cgpu_shm::file::{Access, open as open_file};
use cgpu_shm::held::STEP;
use cgpu_shm::ledger::Column;
use cgpu_shm::preamble::Kind;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::State;
use cgpu_shm::units::{Bytes, SlotIndex};

use crate::child::{Child, kill};
use crate::container::{FOREVER, Member, bury, open};
use crate::skip::skip;

const LIMIT: Bytes = Bytes(100 * STEP);

/// Role: stops, works, stops.
pub(crate) fn step(directory: &Path, _: usize) {
    // SAFETY: asks to be traced by the parent; the other arguments are ignored.
    let traced = unsafe {
        libc::ptrace(libc::PTRACE_TRACEME, 0, ptr::null_mut::<u8>(), ptr::null_mut::<u8>())
    };
    if traced != 0 {
        // To stop now would be to wait for nobody.
        return;
    }
    let pid = libc::pid_t::try_from(std::process::id()).unwrap();
    kill(pid, libc::SIGSTOP);
    let member = Member::join(directory);
    let account = member.account();
    let liveness = |owner| member.region.liveness(owner);
    let charge =
        |steps| account.charge(Column::Used, Bytes(steps * STEP), || LIMIT, FOREVER, liveness);
    let refund = |steps| account.own().refund(Column::Used, Bytes(steps * STEP));
    assert_eq!(charge(60), Ok(()));
    assert!(charge(60).is_err());
    assert_eq!(refund(20), Bytes(20 * STEP));
    account.force_charge(Column::Implicit, Bytes(5), || LIMIT, FOREVER, liveness);
    assert_eq!(charge(10), Ok(()));
    // Open now: given back to the spare part, taken from there, and closed for what does not fit beside it.
    assert_eq!(refund(30), Bytes(30 * STEP));
    assert_eq!(charge(10), Ok(()));
    assert_eq!(charge(60), Ok(()));
    assert_eq!(refund(60), Bytes(60 * STEP));
    kill(pid, libc::SIGSTOP);
}

/// The signal that the traced child has stopped for; `None` when it has ended.
fn stopped(pid: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the child is ours; the call fills the one status, which outlives it.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

fn one_instruction(pid: libc::pid_t) {
    // SAFETY: the child is ours and stopped; no signal is passed on, and the address is ignored.
    let stepped = unsafe {
        libc::ptrace(libc::PTRACE_SINGLESTEP, pid, ptr::null_mut::<u8>(), ptr::null_mut::<u8>())
    };
    assert_eq!(stepped, 0, "{}", std::io::Error::last_os_error());
}

/// What somebody can do who comes to a container whose only process has died.
fn survive(file: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    Region::make(directory.path(), RegionSpec::default()).unwrap();
    fs::write(directory.path().join(Kind::Use.name()), file).unwrap();
    let region = open(directory.path());
    // First the lock, while the dead one's name may still be in it; then its slot.
    let member = Member::join(directory.path());
    let left = member.account().total();
    assert!(left <= LIMIT, "{left} on the books");
    let charge = |bytes: Bytes| {
        member.account().charge(
            Column::Used,
            bytes,
            || LIMIT,
            FOREVER,
            |owner| region.liveness(owner),
        )
    };
    assert_eq!(charge(LIMIT - left), Ok(()), "what is left of the limit is to be had");
    assert!(charge(Bytes(1)).is_err(), "and no more");
    bury(&region);
    assert!(region.is_valid());
    let mine = LIMIT - left;
    assert_eq!(member.account().total(), mine, "nothing of the dead one stays");
    let lives = |slot: &SlotIndex| region.slots().word(*slot).unwrap().state() != Some(State::Free);
    assert_eq!(SlotIndex::all().filter(lives).collect::<Vec<_>>(), [member.claim.slot]);
    assert_eq!(region.gpus().count(), 1, "the GPU was registered once");
}

#[test]
fn a_crash_after_any_single_store_leaves_a_sound_region() {
    let directory = tempfile::tempdir().unwrap();
    Region::make(directory.path(), RegionSpec::default()).unwrap();
    let path = directory.path().join(Kind::Use.name());
    let child = Child::start("step", directory.path(), 0);
    let pid = child.pid();
    if stopped(pid) != Some(libc::SIGSTOP) {
        skip(
            "a_crash_after_any_single_store_leaves_a_sound_region",
            "ptrace",
            "a process may not trace its child here",
        );
        return;
    }

    // The header, the slots and one GPU's cells: all that the child writes to.
    let watched = open_file(directory.path(), Kind::Use, Access::Read).unwrap();
    let mut seen = BTreeSet::new();
    let mut before = vec![0; 4096 + 256 * 256 + 256 * 256];
    let mut now = before.clone();
    loop {
        std::os::unix::fs::FileExt::read_exact_at(&watched, &mut now, 0).unwrap();
        if now != before {
            before.copy_from_slice(&now);
            if seen.insert(now.clone()) {
                survive(&fs::read(&path).unwrap());
            }
        }
        one_instruction(pid);
        match stopped(pid) {
            Some(libc::SIGTRAP) => {}
            Some(libc::SIGSTOP) => break,
            other => panic!("the child stopped for {other:?}"),
        }
    }
    // Claim: mark, pid, name, time, state. GPU: two words of UUID, total, limit, count (the ordinal is 0, as was). Four charges
    // and growth: lock, cell, peak, unlock.
    assert!(seen.len() >= 20, "only {} states were seen: the child was not watched", seen.len());
}
