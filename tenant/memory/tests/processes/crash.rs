//! A process that dies after any single store.
//!
//! The child accounts all that a program may do, one machine instruction at a time (ptrace). After
//! each one its words are compared with what they were; whenever one has changed, a copy of the
//! file is made, which is that of a process that died there: no process holds a byte of a copy. In
//! each copy another process must find a sound ledger. What the driver holds at that instant is a
//! word that the child writes beside them: the accounting must never say less.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::ptr;

use cgpu_memory::{Address, Bytes, CommitOutcome, ContextId, Denied, Reason};
use cgpu_shm::atomic::Ordering;
use cgpu_shm::preamble::Kind;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use crate::child::{Child, signal};
use crate::member::{Inside, Member, Truth, reclaim_exited, taken};

const MIB: u64 = 1 << 20;
const LIMIT_MIB: u64 = 64;
const LIMIT: Bytes = Bytes(LIMIT_MIB * MIB);
const CONTEXT: Bytes = Bytes(3 * MIB);

/// Word of the truth: what the driver holds for the child.
const HELD: usize = 0;

/// Role: stops, does all that a program may do, stops.
pub(crate) fn life(directory: &Path, _: usize) {
    // SAFETY: asks to be traced by the parent; takes no pointers.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, ptr::null_mut::<u8>(), ptr::null_mut::<u8>()) };
    let pid = libc::pid_t::try_from(std::process::id()).expect("a process id");
    let truth = Truth::open(directory);
    let driver = |change: i64| {
        truth.word(HELD).fetch_add(change.cast_unsigned(), Ordering::SeqCst);
    };
    let held = |bytes: Bytes| i64::try_from(bytes.0).expect("small");
    let member = Member::join();
    let (tenant, gpu) = (&member.tenant, member.gpu);
    signal(pid, libc::SIGSTOP);

    // A context whose size is not known: measured, and accounted only then.
    let starting = tenant.contexts().begin_create(gpu, || Some(Bytes(100 * MIB))).expect("it fits");
    let context = starting.created(ContextId(0x1000), Some(Bytes(100 * MIB) - CONTEXT));
    driver(held(CONTEXT));
    // One whose size is known; the driver makes it while the call is on its way.
    let starting = tenant.contexts().begin_create(gpu, || None).expect("it fits");
    driver(held(CONTEXT));
    starting.created(ContextId(0x2000), None);
    // Allocations that the driver makes, in a context and in none; that it refuses; that do not
    // fit.
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
    // A context goes, with what is in it.
    let leaving = tenant.contexts().begin_destroy(ContextId(0x1000)).expect("known");
    driver(-held(CONTEXT + Bytes(6 * MIB)));
    leaving.destroyed();
    signal(pid, libc::SIGSTOP);
    // The end is not what is looked at here.
    std::mem::forget(member);
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

/// What a process finds that starts in a container whose only process has died, with so many bytes
/// in the driver's hands.
fn survive(file: &[u8], held: Bytes) {
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
    // The lock, with the exited one's name in it perhaps, is to be had, and what is left of the
    // limit.
    let even = Bytes((LIMIT - usage.total()).0 & !(2 * MIB - 1));
    let charge = tenant.charge(gpu, even).expect("what is left is to be had");
    let address = Address(0x7f00_0000_0000);
    assert_eq!(charge.commit(address, None), CommitOutcome::Recorded);
    reclaim_exited(tenant.region());
    assert_eq!(tenant.view().usage(gpu).total(), even, "nothing of the exited one stays");
    assert_eq!(taken(tenant.region()), [tenant.slot_owner().slot()]);
    tenant.allocations().begin_free(address).expect("live").freed();
    assert!(tenant.charge(gpu, LIMIT).is_ok(), "all of it is there again");
}

#[test]
fn crash_after_any_single_store_leaves_a_sound_ledger() {
    let directory = tempfile::tempdir().expect("a directory");
    Region::make(directory.path(), RegionSpec::default()).expect("a region");
    let truth = Truth::open(directory.path());
    let path = directory.path().join(Kind::Use.name());
    let child = Child::start("life", directory.path(), LIMIT_MIB, 0);
    let pid = child.pid();
    assert_eq!(stopped(pid), Some(libc::SIGSTOP), "a process may trace its own child here");

    // The GPU, the slot and the cell: all that the child writes to.
    let region = Region::open(directory.path()).expect("the region");
    let (gpu, slot) = (DeviceIndex::new(0).expect("a GPU's index"), SlotIndex(0));
    let (mut seen, mut instructions) = (BTreeSet::new(), 0_u64);
    let look = || {
        let (gpu, slot, cell) = (region.gpu(gpu), region.slot(slot), region.cell(gpu, slot));
        let words = [&gpu.context, &slot.state, &cell.held, &cell.implicit, &cell.peak];
        let words = words.map(|word| word.load(Ordering::Relaxed));
        let counters = slot.counter.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        (words, counters, gpu.lock.owner().is_some(), truth.word(HELD).load(Ordering::SeqCst))
    };
    let mut before = None;
    loop {
        let now = Some(look());
        if now != before {
            before = now;
            let held = Bytes(truth.word(HELD).load(Ordering::SeqCst));
            if seen.insert(now) {
                survive(&fs::read(&path).expect("it is there"), held);
            }
        }
        one_instruction(pid);
        instructions += 1;
        match stopped(pid) {
            Some(libc::SIGTRAP) => {}
            Some(libc::SIGSTOP) => break,
            other => panic!("the child stopped for {other:?}"),
        }
    }
    println!("{} states after {instructions} instructions", seen.len());
    // Seven charges that succeed: lock, cell, peak where it is higher, unlock. Two refused
    // attempts: lock, unlock, count. Two contexts under creation and after; what one costs; a free;
    // a refused charge and free, counted; what two words release.
    assert!(seen.len() >= 35, "only {} states were seen: the child was not watched", seen.len());
}
