//! Running a child one machine instruction at a time (ptrace).

use std::ptr;

/// In a child: lets the parent trace it; returns whether that is allowed here.
pub(crate) fn trace_me() -> bool {
    // SAFETY: takes no pointers that are used.
    let traced = unsafe {
        libc::ptrace(libc::PTRACE_TRACEME, 0, ptr::null_mut::<u8>(), ptr::null_mut::<u8>())
    };
    traced == 0
}

/// Waits for a traced child; returns the signal that it has stopped for, `None` if it has exited.
pub(crate) fn stopped(pid: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the child is ours; the call fills the one status, which outlives it.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

/// Runs one instruction; returns `false` if the child then stopped by itself.
pub(crate) fn step(pid: libc::pid_t) -> bool {
    // SAFETY: the child is ours and stopped; no signal is passed on, and the address is ignored.
    let stepped = unsafe {
        libc::ptrace(libc::PTRACE_SINGLESTEP, pid, ptr::null_mut::<u8>(), ptr::null_mut::<u8>())
    };
    assert_eq!(stepped, 0, "{}", std::io::Error::last_os_error());
    match stopped(pid) {
        Some(libc::SIGTRAP) => true,
        Some(libc::SIGSTOP) => false,
        other => panic!("the child stopped for {other:?}"),
    }
}
