//! Areas: room for the words several times over, one in use; the way out when the holder of the lock is stopped.
//!
//! A process that is stopped (SIGSTOP, a debugger) inside the lock would keep everybody waiting; a real GPU goes on
//! without it. Its lock can be taken, but when it continues it will finish its stores. So it is left behind: the words
//! are copied to another area, the others go on there, and it finishes where nobody looks.
//!
//! ```text
//!   robber:  has waited long; takes the lock; marks the area as stranded; copies its words, then its log; says how far the
//!            copy reaches (the log's round); names the new area; rolls back there what was half done
//!   robbed:  continues; commits into the old area; finds another one named, so leaves the lock alone and takes it anew, and
//!            asks: does the copy reach my commit? yes: it stays. no: all over again, in the new area
//! ```
//!
//! The copy needs nobody to stand still. Words first, log last: a word that was changed before or while it was copied
//! has its old value in the log by then, as long as the round is the same; if it has changed, the copy is made again.
//! So whether the holder is really stopped does not matter, only that robbing is rare.
//!
//! An area is used again once the process stranded there has left it, or is dead.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use cgpu_shm::atomic::{AtomicU64, Ordering};

use super::journal::{CAPACITY, Head};
use super::preamble::Preamble;
use crate::timeline::WORDS;
use crate::words::index;

/// How many there are. One less is how many processes can be stranded at once.
pub(super) const AREAS: usize = 8;

const PAGE: usize = 4096;
const LOG: usize = 2 * CAPACITY;
/// Where the words begin; before them are the head, on a page of its own, and the log.
const WORDS_AT: usize = PAGE + LOG * size_of::<u64>();
/// Bytes of one area.
pub(super) const LENGTH: usize = (WORDS_AT + WORDS * size_of::<u64>()).next_multiple_of(PAGE);

/// In the preamble's word for the area in use: somebody is stranded there, so it must be left before anything else.
const STRANDED: u64 = 1 << 63;

/// An area, mapped.
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
    /// The area `number` of the file's words after the preamble.
    pub(super) fn of(all: &'a [AtomicU64], number: u64) -> Self {
        let words =
            &all[index(number) * (LENGTH / size_of::<u64>())..][..LENGTH / size_of::<u64>()];
        let (front, words) = words.split_at(WORDS_AT / size_of::<u64>());
        let (head, log) = front.split_at(PAGE / size_of::<u64>());
        Self { number, head: &head[0], log, words: &words[..WORDS] }
    }
}

/// The area in use; stranded or not.
pub(super) fn current(preamble: &Preamble) -> u64 {
    preamble.area.load(Ordering::Acquire) & !STRANDED
}

/// Whether somebody is stranded in the area in use.
pub(super) fn must_leave(preamble: &Preamble) -> bool {
    // HB area.
    preamble.area.load(Ordering::Acquire) & STRANDED != 0
}

/// Whether who works in `area` does so alone: it has not been left.
#[inline]
pub(super) fn is_left(preamble: &Preamble, area: u64) -> bool {
    preamble.area.load(Ordering::Acquire) != area
}

/// Marks the area in use: `who` holds the lock no more, and may not know it.
pub(super) fn strand(preamble: &Preamble, who: u64) {
    let area = current(preamble);
    preamble.stranded[index(area)].store(who, Ordering::Relaxed);
    preamble.area.store(area | STRANDED, Ordering::Release);
}

/// Whoever was stranded in an area will not touch it again.
pub(super) fn leave(preamble: &Preamble, area: u64) {
    preamble.stranded[index(area)].store(0, Ordering::Release);
}

/// Up to which round an area that was left lives on in its copy; `None`: it has not been left. To be asked by who is
/// stranded there: for nobody else does the answer stay the same.
pub(super) fn reached(preamble: &Preamble, area: u64) -> Option<u64> {
    (current(preamble) != area).then(|| preamble.reached[index(area)].load(Ordering::Relaxed))
}

/// Goes on in another area, with the lock held. `is_gone`: whether the process stranded somewhere is dead.
pub(super) fn move_on(
    preamble: &Preamble,
    all: &[AtomicU64],
    file: &File,
    is_gone: impl Fn(u64) -> bool,
) -> io::Result<()> {
    let from = current(preamble);
    let is_free = |area: u64| {
        let who = preamble.stranded[index(area)].load(Ordering::Acquire);
        area != from && (who == 0 || is_gone(who))
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
        // HB round: what is in the words by now is in the log's entries, and those are counted.
        copy(file, from, to, 0, WORDS_AT)?;
        if Head::of(source.head.load(Ordering::Acquire)).round() == round {
            break round;
        }
    };
    preamble.stranded[index(to)].store(0, Ordering::Relaxed);
    preamble.reached[index(from)].store(round, Ordering::Relaxed);
    preamble.area.store(to, Ordering::Release);
    Ok(())
}

/// Where an area's words lie in the file.
#[cfg(test)]
pub(super) fn words_at(area: u64) -> u64 {
    offset(area, WORDS_AT)
}

fn offset(area: u64, at: usize) -> u64 {
    (size_of::<Preamble>() + index(area) * LENGTH + at) as u64
}

/// Makes an area a hole.
fn clear(file: &File, area: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: works on the file by its descriptor, which is open; nobody uses this area.
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

/// Copies the part of an area from `start` to `end`, as far as it was ever touched. The log's head comes after its
/// entries: who adds entries meanwhile counts them only when they are there.
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

/// The next place of a kind; `None`: there is none up to the file's end.
fn seek(file: &File, at: u64, kind: libc::c_int) -> io::Result<Option<u64>> {
    // SAFETY: moves the offset of a descriptor that is ours alone.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at.cast_signed(), kind) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}
