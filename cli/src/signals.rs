//! What happens to `cgpu run` while its program runs.

use std::thread;

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Signals that were caught since before the program started.
pub(crate) struct Caught(Signals);

/// Catches what would end us. Handlers, unlike ignored signals, do not pass through exec: the program starts with the
/// dispositions that we were started with.
pub(crate) fn catch() -> Result<Caught> {
    Ok(Caught(Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])?))
}

impl Caught {
    /// Passes on to the program what was sent to us alone. The terminal's keys (interrupt, quit) reach the whole process
    /// group by themselves; of those we only survive ours, so that the program's exit code can still be told.
    pub(crate) fn forward(mut self, child: u32) {
        let Some(child) = i32::try_from(child).ok().and_then(Pid::from_raw) else { return };
        thread::spawn(move || {
            for number in self.0.forever() {
                let signal = match number {
                    SIGTERM => Signal::TERM,
                    SIGHUP => Signal::HUP,
                    SIGUSR1 => Signal::USR1,
                    SIGUSR2 => Signal::USR2,
                    _ => continue,
                };
                // A program that is gone cannot be told; its exit code is being fetched.
                let _ = kill_process(child, signal);
            }
        });
    }
}
