//! Signals to `cgpu run` while its program runs.

use std::thread;

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Signals caught since before the program's start.
pub(crate) struct Caught(Signals);

/// Catches the signals that would end this process. Unlike ignored signals, handlers are not
/// inherited through exec, so the program starts with the original dispositions.
pub(crate) fn catch() -> Result<Caught> {
    Ok(Caught(Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])?))
}

impl Caught {
    /// Passes on signals sent to this process alone. The terminal sends interrupt and quit to the
    /// whole process group: those are only caught, to outlive the program and return its exit code.
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
                // The program may have ended; its exit code is being read.
                let _ = kill_process(child, signal);
            }
        });
    }
}
