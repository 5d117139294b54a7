//! Appends lines to a file in the user's process.
//!
//! The file is opened and closed for each line: the program may close every descriptor at any time,
//! as daemons do after a fork, and reuse its number.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Size limit of the log: a program that runs for months must not fill its disk.
const LARGEST: u64 = 256 << 20;

/// Room below the process's file size limit for lines that other processes append meanwhile: a
/// write beyond that limit ends the process (SIGXFSZ).
const MARGIN: u64 = 64 << 10;

/// Appends `line` with one write, so that lines of several threads and processes stay whole. If
/// that fails, the line is lost.
pub(super) fn append(path: &Path, line: &[u8]) {
    // Without O_NOFOLLOW, `/dev/stderr` could be any file that a child has opened under that
    // number. Without O_NONBLOCK, a pipe without a reader would block.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut options = OpenOptions::new();
    let opened = options.append(true).create(true).mode(0o644).custom_flags(flags).open(path);
    if let Ok(mut file) = opened
        && has_room(&file)
    {
        let _ = file.write(line);
    }
}

/// Returns whether it is a regular file to which a line can be written without a signal.
fn has_room(file: &File) -> bool {
    let most = LARGEST.min(most_by_limit().saturating_sub(MARGIN));
    file.metadata().is_ok_and(|about| about.is_file() && about.len() < most)
}

/// Returns the process's limit for the size of a file.
fn most_by_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is writable. If the call fails it stays 0, and nothing is written.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}
