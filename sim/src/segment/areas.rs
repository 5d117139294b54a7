//! Areas: several copies of the words, one of them in use. They allow the holder of the lock to be
//! preempted.
//!
//! A process that is stopped (SIGSTOP, a debugger) while it holds the lock would block all others;
//! a real GPU goes on. Its lock can be taken, but when it continues it will finish its stores. So
//! the words are copied to another area, where the others go on. The preempted holder finishes in
//! the old area, which is no longer read.
//!
//! ```text
//!   preempting process:  times out; takes the lock; marks the area as abandoned; copies its words,
//!                        then its log; notes how far the copy reaches (the log's round); makes the
//!                        new area current; rolls back there what was half done
//!   preempted holder:    continues; commits into the old area; sees that another is current, so
//!                        does not release the lock but takes it anew; checks whether the copy
//!                        reaches its commit. Yes: it is done. No: it runs again in the new area
//! ```
//!
//! The holder may run during the copy. Words are copied first, the log last: a word that changed
//! before or during the copy has its old value in the log, as long as the round is the same. If the
//! round has changed, the copy is made again. So it need not be known whether the holder is really
//! stopped; preemption only has to be rare.
//!
//! An area is reused once its preempted holder has left it, or has exited.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use cgpu_shm::atomic::{AtomicU64, Ordering};

use super::journal::{CAPACITY, Head};
use super::preamble::Preamble;
use crate::timeline::WORDS;
use crate::words::index;

/// Number of areas: one more than the processes that can be preempted at the same time.
pub(super) const AREAS: usize = 8;

const PAGE: usize = 4096;
const LOG: usize = 2 * CAPACITY;
/// Offset of the words, after the head, on a page of its own, and the log.
const WORDS_AT: usize = PAGE + LOG * size_of::<u64>();
pub(super) const LENGTH: usize = (WORDS_AT + WORDS * size_of::<u64>()).next_multiple_of(PAGE);

/// Flag in the preamble's word for the current area: its holder was preempted, so the next step is
/// to move to another area.
const ABANDONED: u64 = 1 << 63;

#[derive(Clone, Copy)]
pub(super) struct Area<'a> {
    pub(super) number: u64,
    /// The log's [`Head`].
    pub(super) head: &'a AtomicU64,
    pub(super) log: &'a [AtomicU64],
    pub(super) words: &'a [AtomicU64],
}

impl core::fmt::Debug for Area<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "area {}", self.number)
    }
}

impl<'a> Area<'a> {
    /// Returns the area `number` of the file's words after the preamble.
    pub(super) fn of(all: &'a [AtomicU64], number: u64) -> Self {
        let words =
            &all[index(number) * (LENGTH / size_of::<u64>())..][..LENGTH / size_of::<u64>()];
        let (front, words) = words.split_at(WORDS_AT / size_of::<u64>());
        let (head, log) = front.split_at(PAGE / size_of::<u64>());
        Self { number, head: &head[0], log, words: &words[..WORDS] }
    }
}

/// Returns the current area, abandoned or not.
pub(super) fn current(preamble: &Preamble) -> u64 {
    preamble.area.load(Ordering::Acquire) & !ABANDONED
}

/// Returns whether the current area is abandoned.
pub(super) fn is_abandoned(preamble: &Preamble) -> bool {
    // HB area.
    preamble.area.load(Ordering::Acquire) & ABANDONED != 0
}

/// Returns whether `area` is no longer current, so that a holder that works there was preempted.
#[inline]
pub(super) fn has_moved(preamble: &Preamble, area: u64) -> bool {
    preamble.area.load(Ordering::Acquire) != area
}

/// Marks the current area as abandoned: its holder `owner` has lost the lock, and may not know it.
pub(super) fn abandon(preamble: &Preamble, owner: u64) {
    let area = current(preamble);
    preamble.preempted_holder[index(area)].store(owner, Ordering::Relaxed);
    preamble.area.store(area | ABANDONED, Ordering::Release);
}

/// Notes that the preempted holder of an area will not access it again.
pub(super) fn release(preamble: &Preamble, area: u64) {
    preamble.preempted_holder[index(area)].store(0, Ordering::Release);
}

/// Returns up to which round an old area was copied; `None` if it is current. Only its preempted
/// holder may call this: for others the result can change.
pub(super) fn copied_round(preamble: &Preamble, area: u64) -> Option<u64> {
    (current(preamble) != area).then(|| preamble.copied_round[index(area)].load(Ordering::Relaxed))
}

/// Moves to another area, with the lock held. `is_gone`: whether a preempted process has exited.
pub(super) fn move_to_free_area(
    preamble: &Preamble,
    all: &[AtomicU64],
    file: &File,
    is_gone: impl Fn(u64) -> bool,
) -> io::Result<()> {
    let from = current(preamble);
    let is_free = |area: u64| {
        let owner = preamble.preempted_holder[index(area)].load(Ordering::Acquire);
        area != from && (owner == 0 || is_gone(owner))
    };
    let to = (0..AREAS as u64).find(|&area| is_free(area)).ok_or_else(|| {
        io::Error::other(format!(
            "{} processes are stopped inside calls: continue or end them",
            AREAS - 1
        ))
    })?;
    let source = Area::of(all, from);
    let round = loop {
        let round = Head::of(source.head.load(Ordering::Acquire)).round();
        clear(file, to)?;
        copy(file, from, to, WORDS_AT, LENGTH)?;
        // HB round: whatever is in the words by now is in the log's entries, and those are counted.
        copy(file, from, to, 0, WORDS_AT)?;
        if Head::of(source.head.load(Ordering::Acquire)).round() == round {
            break round;
        }
    };
    preamble.preempted_holder[index(to)].store(0, Ordering::Relaxed);
    preamble.copied_round[index(from)].store(round, Ordering::Relaxed);
    preamble.area.store(to, Ordering::Release);
    Ok(())
}

/// Returns the offset of an area's words in the file.
#[cfg(test)]
pub(super) fn words_at(area: u64) -> u64 {
    offset(area, WORDS_AT)
}

fn offset(area: u64, at: usize) -> u64 {
    (size_of::<Preamble>() + index(area) * LENGTH + at) as u64
}

/// Frees the pages of an area.
fn clear(file: &File, area: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: works on the file by its descriptor, which is open; this area is not in use.
    let answer = unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            mode,
            offset(area, 0).cast_signed(),
            (LENGTH as u64).cast_signed(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Copies the part of an area from `start` to `end`, skipping holes. The log's head is copied
/// before its entries. A writer counts an entry only after storing it, so every counted entry is
/// copied.
fn copy(file: &File, from: u64, to: u64, start: usize, end: usize) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let (mut at, end) = (offset(from, start), offset(from, end));
    while let Some(data) = seek(file, at, libc::SEEK_DATA)?.filter(|&data| data < end) {
        let hole = seek(file, data, libc::SEEK_HOLE)?.unwrap_or(end).min(end);
        at = data;
        while at < hole {
            let length = index(hole - at).min(buffer.len());
            file.read_exact_at(&mut buffer[..length], at)?;
            file.write_all_at(&buffer[..length], at - offset(from, 0) + offset(to, 0))?;
            at += length as u64;
        }
    }
    Ok(())
}

/// Returns the next offset of a kind (data or hole); `None` if there is none.
fn seek(file: &File, at: u64, kind: libc::c_int) -> io::Result<Option<u64>> {
    // SAFETY: moves the offset of a descriptor that only this function uses meanwhile.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at.cast_signed(), kind) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}
