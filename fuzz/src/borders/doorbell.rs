//! A container that writes anything to its doorbell, at any time, and anything into the cell that
//! the monitor reads then. The monitor answers, and the neighbour has no fault.
//!
//! An input is a list of pairs: an action and its value.

use std::io::Write;

use cgpu_shm::atomic::Ordering::Relaxed;

use crate::daemon::{Daemon, now};

thread_local! {
    static DAEMON: Daemon = Daemon::start();
}

fn act(daemon: &Daemon, action: u8, value: u8) {
    let (mut doorbell, cell) = (&daemon.tenant.doorbell, daemon.tenant.cell());
    let size = usize::from(value);
    // Small values are close to now, where the monitor has to decide; others are anywhere.
    let time = now().0.wrapping_add(u64::from(value) << (value % 64));
    match action % 8 {
        // A full pipe refuses.
        0 => _ = doorbell.write(&vec![value; size * 64]),
        1 => _ = doorbell.write(&[value]),
        2 if daemon.tenant.notify_requested() => _ = doorbell.write(&[1]),
        3 => _ = rustix::pipe::fcntl_setpipe_size(doorbell, size << 12),
        4 => cell.waiting.store(value.into(), Relaxed),
        5 => cell.active.store(time, Relaxed),
        6 => {
            cell.inflight.store(u64::from(value) << (value % 64), Relaxed);
            cell.ends.store(time, Relaxed);
        }
        7 => {
            cell.busy.store(time, Relaxed);
            cell.spent.store(u64::from(value) << (value % 64), Relaxed);
        }
        _ => {}
    }
}

pub(crate) fn check(input: &[u8]) {
    DAEMON.with(|daemon| {
        for pair in input.chunks_exact(2) {
            act(daemon, pair[0], pair[1]);
        }
        daemon.check();
    });
}
