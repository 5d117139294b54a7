//! Watches of a container's folder. For each read of a file in it, the kernel looks at all.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::neighbours::event_loop_cpu;
use super::*;

/// Most watches: each is an open file.
const WATCHES: usize = 15_000;
/// From `linux/fcntl.h`: a signal for each access to a file of the folder.
const F_NOTIFY: i32 = 1026;
const DN_ACCESS: u32 = 1;
const DN_MULTISHOT: u32 = 1 << 31;

/// Watches the folder as often as this process may have files open.
fn watch_often(folder: &Path) -> Vec<OwnedFd> {
    // SAFETY: no handler. The signals have no effect.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let free = fs::read_dir("/proc/self/fd").unwrap().count() + 100;
    let limit = usize::try_from(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)).unwrap();
    let watches = (0..WATCHES.min(limit.saturating_sub(free))).map(|_| {
        let watch = OwnedFd::from(fs::File::open(folder).unwrap());
        // SAFETY: a plain call.
        let made = unsafe { libc::fcntl(watch.as_raw_fd(), F_NOTIFY, DN_ACCESS | DN_MULTISHOT) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        watch
    });
    watches.collect()
}

#[test]
fn watches_of_a_folder_cost_the_event_loop_nothing() {
    let fixture = Fixture::new();
    let noisy = fixture.container("noisy");
    let monitor = Monitor::start(fixture.root());
    eventually("the container", || status(&monitor).containers.len() == 1);
    let _process = Process::start(&noisy, 1, Bytes::ZERO);
    let without = event_loop_cpu(&monitor);
    let watches = watch_often(&noisy);
    let file = fs::File::open(noisy.join("use")).unwrap();
    let read = || {
        let start = clock_gettime(ClockId::ThreadCPUTime);
        file.read_exact_at(&mut [0; 16], 0).unwrap();
        let used = clock_gettime(ClockId::ThreadCPUTime) - start;
        Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.try_into().unwrap())
    };
    let read = (0..3).map(|_| read()).min().unwrap();
    let with = event_loop_cpu(&monitor);
    let count = watches.len();
    println!("{with:?} with {count} watches, {without:?} without, a read takes {read:?}");
    let noise = Duration::from_millis(10);
    assert!(with < without + 5 * read + noise, "{with:?}, {without:?} without");
}
