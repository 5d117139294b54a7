//! A process that is killed after any single store.
//!
//! The child joins a container, charges and refunds, one machine instruction at a time. Whenever
//! its file has changed, the test copies it: that is the file of a process killed at that instant,
//! because no process holds a byte of the copy. Everything must still be possible in each copy.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cgpu_shm::file::{Access, open as open_file};
use cgpu_shm::held::STEP;
use cgpu_shm::ledger::Column;
use cgpu_shm::preamble::Kind;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::State;
use cgpu_shm::units::{Bytes, SlotIndex};

use crate::child::{Child, signal};
use crate::container::{FOREVER, Member, open, reclaim_exited};
use crate::skip::skip;
use crate::trace::{step, stopped, trace_me};

const LIMIT: Bytes = Bytes(100 * STEP);

/// Role: stops, charges and refunds, stops.
pub(crate) fn charge_and_refund(directory: &Path, _: usize) {
    if !trace_me() {
        // A stop would never end.
        return;
    }
    let pid = libc::pid_t::try_from(std::process::id()).unwrap();
    signal(pid, libc::SIGSTOP);
    let member = Member::join(directory);
    let charge = |steps| member.charge(Bytes(steps * STEP), LIMIT);
    let refund = |steps| member.refund(Bytes(steps * STEP));
    assert_eq!(charge(60), Ok(()));
    assert!(charge(60).is_err());
    refund(20);
    let liveness = |owner| member.region.liveness(owner);
    member.account().force_charge(Column::Implicit, Bytes(5), || LIMIT, FOREVER, liveness);
    assert_eq!(charge(10), Ok(()));
    // The word is open: bytes are cached, taken from there, and dropped for a greater charge.
    refund(30);
    assert_eq!(charge(10), Ok(()));
    assert_eq!(charge(60), Ok(()));
    refund(60);
    signal(pid, libc::SIGSTOP);
}

/// Starts a process in a container whose only process was killed, and checks its accounting.
fn check_survivor(file: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    Region::make(directory.path(), RegionSpec::default()).unwrap();
    fs::write(directory.path().join(Kind::Use.name()), file).unwrap();
    let region = open(directory.path());
    // First the lock, which may have the exited process's name; then its slot.
    let member = Member::join(directory.path());
    let used = member.account().total();
    assert!(used <= LIMIT, "{used} are charged");
    let rest = LIMIT - used;
    assert_eq!(member.charge(rest, LIMIT), Ok(()), "the rest of the limit is available");
    assert!(member.charge(Bytes(1), LIMIT).is_err(), "and no more");
    reclaim_exited(&region);
    assert!(region.is_valid());
    assert_eq!(member.account().total(), rest, "nothing of the exited process stays");
    let is_used =
        |slot: &SlotIndex| region.slots().word(*slot).unwrap().state() != Some(State::Free);
    assert_eq!(SlotIndex::all().filter(is_used).collect::<Vec<_>>(), [member.claim.slot]);
    assert_eq!(region.gpus().count(), 1, "the GPU was registered once");
}

#[test]
fn crash_after_any_single_store_leaves_a_valid_region() {
    let directory = tempfile::tempdir().unwrap();
    Region::make(directory.path(), RegionSpec::default()).unwrap();
    let path = directory.path().join(Kind::Use.name());
    let child = Child::start("charge-and-refund", directory.path(), 0);
    let pid = child.pid();
    if stopped(pid) != Some(libc::SIGSTOP) {
        skip(
            "crash_after_any_single_store_leaves_a_valid_region",
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
        watched.read_exact_at(&mut now, 0).unwrap();
        if now != before {
            before.copy_from_slice(&now);
            if seen.insert(now.clone()) {
                check_survivor(&fs::read(&path).unwrap());
            }
        }
        if !step(pid) {
            break;
        }
    }
    // Claim: mark, pid, name, time, state. GPU: two words of UUID, total, limit, count (the ordinal
    // stays 0). Charges: lock, cell, peak, unlock.
    assert!(seen.len() >= 20, "only {} states were seen: the child was not watched", seen.len());
}
