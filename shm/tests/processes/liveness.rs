//! A slot's byte lives exactly as long as the memory of the process that took it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use cgpu_shm::liveness::{Liveness, LivenessLocks};
use cgpu_shm::slots::SlotLocks;
use cgpu_shm::units::SlotIndex;

use crate::child::{self, Child, listen, say, stay_for_ever};

const FILE: &str = "file";

fn locks(directory: &Path) -> LivenessLocks {
    LivenessLocks::open(&directory.join(FILE)).unwrap()
}

fn slot(index: usize) -> SlotIndex {
    SlotIndex::new(index).unwrap()
}

/// Takes the byte and keeps it until the process's end.
fn take(directory: &Path, index: usize) {
    let lock = locks(directory).hold(slot(index)).unwrap().expect("the byte is free");
    std::mem::forget(lock);
}

/// Role: takes a byte, and nothing else.
pub(crate) fn stay(directory: &Path, index: usize) {
    take(directory, index);
    say("taken");
    stay_for_ever();
}

/// Role: as daemons do, closes every descriptor it does not know.
pub(crate) fn close_all(directory: &Path, index: usize) {
    take(directory, index);
    for descriptor in 3..1024 {
        // SAFETY: whatever they are, nobody here uses them any more.
        unsafe { libc::close(descriptor) };
    }
    say("taken");
    stay_for_ever();
}

/// Role: opens and closes the file once more, which would drop a record lock.
pub(crate) fn reopen(directory: &Path, index: usize) {
    take(directory, index);
    drop(File::open(directory.join(FILE)).unwrap());
    assert_eq!(locks(directory).liveness(slot(index)).unwrap(), Liveness::Alive);
    say("taken");
    stay_for_ever();
}

/// Role: has a child of its own, which lives on.
pub(crate) fn fork(directory: &Path, index: usize) {
    take(directory, index);
    // SAFETY: there is one thread, so that the child may do what any process may.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: takes no pointers; ends this child even if the test cannot.
        unsafe { libc::alarm(60) };
        stay_for_ever();
    }
    say(&pid.to_string());
    stay_for_ever();
}

/// Role: becomes another program when told.
pub(crate) fn exec(directory: &Path, index: usize) {
    take(directory, index);
    say("taken");
    listen();
    // It says a lock of its own as soon as it runs, and then waits.
    let error = Command::new("/bin/sh").args(["-c", "echo other; exec sleep 100"]).exec();
    panic!("{error}");
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(FILE), []).unwrap();
    directory
}

#[test]
fn a_byte_is_free_when_its_process_is_killed() {
    let directory = directory();
    let locks = locks(directory.path());
    for role in ["stay", "close-all", "reopen"] {
        let mut owner = Child::start(role, directory.path(), 3);
        assert_eq!(owner.hear(), "taken");
        assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Alive, "{role}");
        assert!(locks.hold(slot(3)).unwrap().is_none(), "{role}");
        assert!(locks.try_lock(slot(3)).unwrap().is_none(), "{role}");
        assert_eq!(
            locks.liveness(slot(4)).unwrap(),
            Liveness::Exited,
            "another slot's byte is another's"
        );
        owner.kill();
        assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Exited, "{role}");
    }
}

#[test]
fn a_byte_is_not_a_childs() {
    let directory = directory();
    let locks = locks(directory.path());
    let mut owner = Child::start("fork", directory.path(), 3);
    let grandchild: libc::pid_t = owner.hear().parse().unwrap();
    assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Alive);
    owner.kill();
    let liveness = locks.liveness(slot(3)).unwrap();
    let lives = Path::new(&format!("/proc/{grandchild}")).exists();
    child::kill(grandchild, libc::SIGKILL);
    assert!(lives, "the child was to outlive its parent");
    assert_eq!(liveness, Liveness::Exited);
}

#[test]
fn a_byte_is_not_the_next_programs() {
    let directory = directory();
    let locks = locks(directory.path());
    let mut owner = Child::start("exec", directory.path(), 3);
    assert_eq!(owner.hear(), "taken");
    assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Alive);
    owner.tell();
    assert_eq!(owner.hear(), "other");
    assert_eq!(locks.liveness(slot(3)).unwrap(), Liveness::Exited);
    owner.kill();
}

#[test]
fn a_stopped_process_lives() {
    let directory = directory();
    let mut owner = Child::start("stay", directory.path(), 3);
    assert_eq!(owner.hear(), "taken");
    owner.signal(libc::SIGSTOP);
    assert_eq!(locks(directory.path()).liveness(slot(3)).unwrap(), Liveness::Alive);
}

#[test]
fn another_file_under_the_name_is_not_believed() {
    let directory = directory();
    let locks = locks(directory.path());
    // The first file is still there when the second is made, so that they differ in number.
    fs::write(directory.path().join("other"), []).unwrap();
    fs::rename(directory.path().join("other"), directory.path().join(FILE)).unwrap();
    let error = locks.liveness(slot(3)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}
