//! A process that is killed after any single store.
//!
//! The child accounts everything that a program may do, one machine instruction at a time (ptrace).
//! Whenever a word of its region has changed, the test copies the file: that is the file of a
//! process killed at that instant, because no process has locks on the copy. A new process must
//! find a sound ledger in each copy. The child also writes what the driver holds at each instant;
//! at least that must be charged.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cgpu_memory::{Address, Bytes, CommitOutcome, ContextId, Denied, Reason};
use cgpu_shm::atomic::Ordering;
use cgpu_shm::preamble::Kind;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use crate::child::signal;
use crate::member::{Inside, Member, reclaim_exited, start_child, taken};
use crate::trace::{step, stopped, trace_me};
use crate::words::SharedWords;

const MIB: u64 = 1 << 20;
const LIMIT_MIB: u64 = 64;
const LIMIT: Bytes = Bytes(LIMIT_MIB * MIB);
const CONTEXT: Bytes = Bytes(3 * MIB);

/// Index of the word with the bytes that the driver holds for the child.
const HELD: usize = 0;

/// Role: stops, makes every kind of call, stops.
pub(crate) fn all_calls(directory: &Path, _: usize) {
    assert!(trace_me(), "a process may be traced by its parent here");
    let pid = libc::pid_t::try_from(std::process::id()).expect("a process id");
    let words = SharedWords::open(directory);
    let driver = |change: i64| {
        words.word(HELD).fetch_add(change.cast_unsigned(), Ordering::SeqCst);
    };
    let held = |bytes: Bytes| i64::try_from(bytes.0).expect("small");
    let member = Member::join();
    let (tenant, gpu) = (&member.tenant, member.gpu);
    signal(pid, libc::SIGSTOP);

    // A context of unknown size: measured, and charged only then.
    let starting = tenant.contexts().begin_create(gpu, || Some(Bytes(100 * MIB))).expect("it fits");
    let context = starting.created(ContextId(0x1000), || Some(Bytes(100 * MIB) - CONTEXT));
    driver(held(CONTEXT));
    // A context of known size; the driver creates it during the call.
    let starting = tenant.contexts().begin_create(gpu, || None).expect("it fits");
    driver(held(CONTEXT));
    starting.created(ContextId(0x2000), || None);
    // Allocations in a context and in none; one that the driver refuses; one that does not fit.
    let mut next = 0x7f00_0000_0000;
    for owner in [Some(context), None, Some(context)] {
        let charge = tenant.charge(gpu, Bytes(5 * MIB)).expect("it fits");
        let bytes = charge.bytes();
        driver(held(bytes));
        next += 16 * MIB;
        assert_eq!(charge.commit(Address(next), owner), CommitOutcome::Recorded);
    }
    drop(tenant.charge(gpu, Bytes(9 * MIB)).expect("it fits"));
    let denied = tenant.charge(gpu, Bytes(60 * MIB)).expect_err("it does not fit");
    assert!(matches!(denied, Denied { reason: Reason::OverLimit, .. }));
    // Frees: one that succeeds, one that the driver refuses.
    let taken = tenant.allocations().begin_free(Address(next)).expect("live");
    driver(-held(Bytes(6 * MIB)));
    taken.freed();
    drop(tenant.allocations().begin_free(Address(next - 16 * MIB)).expect("live"));
    // A context is destroyed, with what is in it.
    let leaving = tenant.contexts().begin_destroy(ContextId(0x1000)).expect("known");
    driver(-held(CONTEXT + Bytes(6 * MIB)));
    leaving.destroyed();
    signal(pid, libc::SIGSTOP);
    // The exit is not part of this test.
    std::mem::forget(member);
}

/// Starts a process in a container whose only process was killed while the driver held `held`
/// bytes, and checks its accounting.
fn check_survivor(file: &[u8], held: Bytes) {
    let directory = tempfile::tempdir().expect("a directory");
    Region::make(directory.path(), RegionSpec::default()).expect("a region");
    fs::write(directory.path().join(Kind::Use.name()), file).expect("a copy");
    let member = Member::join_by(&Inside { directory: directory.path(), limit_mib: LIMIT_MIB });
    let (tenant, gpu) = (&member.tenant, member.gpu);
    let usage = tenant.view().usage(gpu);
    assert!(usage.total() >= held, "{usage:?} accounted, and {held} with the driver");
    assert!(usage.total() <= LIMIT, "{usage:?}");
    assert_eq!(usage.draining, usage.total(), "it is the exited one's");
    let view = tenant.view().memory(gpu, LIMIT).expect("a limit is set");
    assert_eq!(view.free, LIMIT - usage.total());
    // The lock, which the exited process may have held, and the rest of the limit are available.
    let even = Bytes((LIMIT - usage.total()).0 & !(2 * MIB - 1));
    let charge = tenant.charge(gpu, even).expect("the rest is available");
    let address = Address(0x7f00_0000_0000);
    assert_eq!(charge.commit(address, None), CommitOutcome::Recorded);
    reclaim_exited(tenant.region());
    assert_eq!(tenant.view().usage(gpu).total(), even, "nothing of the exited one stays");
    assert_eq!(taken(tenant.region()), [tenant.slot_owner().slot()]);
    tenant.allocations().begin_free(address).expect("live").freed();
    assert!(tenant.charge(gpu, LIMIT).is_ok(), "the whole limit is available again");
}

#[test]
fn crash_after_any_single_store_leaves_a_sound_ledger() {
    let directory = tempfile::tempdir().expect("a directory");
    Region::make(directory.path(), RegionSpec::default()).expect("a region");
    let words = SharedWords::open(directory.path());
    let path = directory.path().join(Kind::Use.name());
    let child = start_child("all_calls", directory.path(), LIMIT_MIB, 0);
    let pid = child.pid();
    assert_eq!(stopped(pid), Some(libc::SIGSTOP), "a process may trace its own child here");

    // The GPU, the slot and the cell are all that the child writes to.
    let region = Region::open(directory.path()).expect("the region");
    let (gpu, slot) = (DeviceIndex::new(0).expect("a GPU's index"), SlotIndex(0));
    let (mut seen, mut instructions) = (BTreeSet::new(), 0_u64);
    let sample = || {
        let (gpu, slot, cell) = (region.gpu(gpu), region.slot(slot), region.cell(gpu, slot));
        let fields = [&gpu.context, &slot.state, &cell.held, &cell.implicit, &cell.peak];
        let fields = fields.map(|field| field.load(Ordering::Relaxed));
        let counters = slot.counter.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        (fields, counters, gpu.lock.owner().is_some(), words.word(HELD).load(Ordering::SeqCst))
    };
    let mut before = None;
    loop {
        let now = Some(sample());
        if now != before {
            before = now;
            let held = Bytes(words.word(HELD).load(Ordering::SeqCst));
            if seen.insert(now) {
                check_survivor(&fs::read(&path).expect("it is there"), held);
            }
        }
        instructions += 1;
        if !step(pid) {
            break;
        }
    }
    println!("{} states after {instructions} instructions", seen.len());
    // Seven successful charges: lock, cell, sometimes peak, unlock. Two refused attempts: lock,
    // unlock, count. Two contexts during and after creation; the learned size; a free; a counted
    // refusal of a charge and of a free; two words of a release.
    assert!(seen.len() >= 35, "only {} states were seen: the child was not watched", seen.len());
}
