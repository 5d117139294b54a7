//! A slot's byte is locked exactly as long as the memory of the process that holds it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use cgpu_shm::liveness::{Liveness, LivenessLocks};
use cgpu_shm::slots::SlotLocks;
use cgpu_shm::units::SlotIndex;

use crate::child::{Child, send, signal, sleep_until_killed, wait_for_parent};

const FILE: &str = "file";

fn locks(directory: &Path) -> LivenessLocks {
    LivenessLocks::open(&directory.join(FILE)).unwrap()
}

fn slot(index: usize) -> SlotIndex {
    SlotIndex::new(index).unwrap()
}

/// Locks the byte until the process exits.
fn hold_byte(directory: &Path, index: usize) {
    let lock = locks(directory).hold(slot(index)).unwrap().expect("the byte is free");
    std::mem::forget(lock);
}

/// Role: locks a byte, and nothing else.
pub(crate) fn hold(directory: &Path, index: usize) {
    hold_byte(directory, index);
    send("held");
    sleep_until_killed();
}

/// Role: closes every descriptor it does not know, as daemons do.
pub(crate) fn close_all(directory: &Path, index: usize) {
    hold_byte(directory, index);
    for descriptor in 3..1024 {
        // SAFETY: no code of this process uses any of them any more.
        unsafe { libc::close(descriptor) };
    }
    send("held");
    sleep_until_killed();
}

/// Role: opens and closes the file once more, which would drop a record lock.
pub(crate) fn reopen(directory: &Path, index: usize) {
    hold_byte(directory, index);
    drop(File::open(directory.join(FILE)).unwrap());
    assert_eq!(locks(directory).liveness(slot(index)).unwrap(), Liveness::Alive);
    send("held");
    sleep_until_killed();
}

/// Role: forks a child, which lives on.
pub(crate) fn fork(directory: &Path, index: usize) {
    hold_byte(directory, index);
    // SAFETY: there is one thread, so the child may do anything.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: takes no pointers; ends this child even if the test cannot.
        unsafe { libc::alarm(60) };
        sleep_until_killed();
    }
    send(&pid.to_string());
    sleep_until_killed();
}

/// Role: calls exec when the parent resumes it.
pub(crate) fn exec(directory: &Path, index: usize) {
    hold_byte(directory, index);
    send("held");
    wait_for_parent();
    // The new program sends a message of its own.
    let error = Command::new("/bin/sh").args(["-c", "echo other; exec sleep 100"]).exec();
    panic!("{error}");
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(FILE), []).unwrap();
    directory
}

#[test]
fn byte_is_free_when_its_process_is_killed() {
    let directory = directory();
    let locks = locks(directory.path());
    for role in ["hold", "close-all", "reopen"] {
        let mut owner = Child::start(role, directory.path(), 3);
        assert_eq!(owner.receive(), "held");
        assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Alive, "{role}");
        assert!(locks.hold(slot(3)).unwrap().is_none(), "{role}");
        assert!(locks.try_lock(slot(3)).unwrap().is_none(), "{role}");
        assert_eq!(locks.liveness(slot(4)).unwrap(), Liveness::Exited, "another slot's byte");
        owner.kill();
        assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Exited, "{role}");
    }
}

#[test]
fn byte_is_not_held_by_a_forked_child() {
    let directory = directory();
    let locks = locks(directory.path());
    let mut owner = Child::start("fork", directory.path(), 3);
    let grandchild: libc::pid_t = owner.receive().parse().unwrap();
    assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Alive);
    owner.kill();
    let liveness = locks.liveness(slot(3)).unwrap();
    let lives = Path::new(&format!("/proc/{grandchild}")).exists();
    signal(grandchild, libc::SIGKILL);
    assert!(lives, "the child should outlive its parent");
    assert_eq!(liveness, Liveness::Exited);
}

#[test]
fn byte_is_free_after_exec() {
    let directory = directory();
    let locks = locks(directory.path());
    let mut owner = Child::start("exec", directory.path(), 3);
    assert_eq!(owner.receive(), "held");
    assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Alive);
    owner.resume();
    assert_eq!(owner.receive(), "other");
    assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Exited);
    owner.kill();
}

#[test]
fn stopped_process_is_alive() {
    let directory = directory();
    let mut owner = Child::start("hold", directory.path(), 3);
    assert_eq!(owner.receive(), "held");
    owner.signal(libc::SIGSTOP);
    assert_eq!(locks(directory.path()).liveness(slot(3)).unwrap(), Liveness::Alive);
}

#[test]
fn another_file_under_the_name_is_rejected() {
    let directory = directory();
    let locks = locks(directory.path());
    // The first file still exists when the second is created, so their inodes differ.
    fs::write(directory.path().join("other"), []).unwrap();
    fs::rename(directory.path().join("other"), directory.path().join(FILE)).unwrap();
    let error = locks.liveness(slot(3)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}
