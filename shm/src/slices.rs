//! Scheduler time slices of the calling thread.

use std::io;

/// The shortest slice that the scheduler gives, in nanoseconds.
const SLICE_NS: u64 = 100_000;

/// Requests the shortest time slices for the calling thread and those it starts. The kernel then
/// runs the thread sooner after it wakes, even if all processors are busy (EEVDF, Linux 6.12 and
/// newer); older kernels ignore it. It needs no privilege, and leaves threads with another
/// scheduling policy alone.
///
/// # Errors
/// The system's.
pub fn request_short_slices() -> io::Result<()> {
    let mut attributes = attributes()?;
    if i32::try_from(attributes.sched_policy) != Ok(libc::SCHED_OTHER) {
        return Ok(());
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: the record is the kernel's own, with another slice, and outlives the call.
    done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

fn attributes() -> io::Result<libc::sched_attr> {
    let size = u32::try_from(size_of::<libc::sched_attr>()).map_err(io::Error::other)?;
    // SAFETY: all zeroes is a valid value of a record of integers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is the calling thread; the kernel fills at most `size` bytes of the record, which
    // outlives the call.
    done(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) })?;
    Ok(attributes)
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_changes_only_the_slice() {
        let before = attributes().expect("attributes");
        request_short_slices().expect("no rights are needed");
        let after = attributes().expect("attributes");
        assert_eq!(
            (after.sched_policy, after.sched_nice),
            (before.sched_policy, before.sched_nice)
        );
        // Old kernels report 0.
        assert!(matches!(after.sched_runtime, 0 | SLICE_NS), "{}", after.sched_runtime);
    }
}
