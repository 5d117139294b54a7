//! Intervals in which a process kept a GPU busy: a short ring, published by the process and read by
//! the monitor.
//!
//! Interval n is at n modulo the ring's length. One entry may be overwritten at any time, so
//! readers use all but that one.

use crate::atomic::Ordering;
use crate::layout::{Cell, INTERVALS};
use crate::units::Nanos;

/// An interval of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its first nanosecond.
    pub start: Nanos,
    /// The nanosecond after its last.
    pub end: Nanos,
}

/// Intervals that a reader can rely on: all but the one that may be being overwritten.
pub const READABLE: usize = INTERVALS - 1;

/// Publishes an interval. The caller ensures that only one thread does so at a time.
pub fn publish(cell: &Cell, span: Span) {
    let number = cell.sequence.load(Ordering::Relaxed);
    if let Some(entry) = cell.interval.get(ring_index(number)) {
        entry.start.store(span.start.0, Ordering::Relaxed);
        entry.end.store(span.end.0, Ordering::Relaxed);
    }
    // HB interval: Release; the reader is another process's read(2), ordered by the kernel.
    cell.sequence.store(number.wrapping_add(1), Ordering::Release);
}

/// Returns the intervals numbered from `seen` on, at most the newest [`READABLE`], from a ring read
/// after `sequence` was. A `seen` beyond `sequence` (the slot has a new process) counts as 0.
pub fn since(ring: &[Span; INTERVALS], sequence: u64, seen: u64) -> impl Iterator<Item = Span> {
    let oldest = sequence.saturating_sub(READABLE as u64);
    let from = if seen > sequence { 0 } else { seen };
    (from.max(oldest)..sequence).filter_map(|number| ring.get(ring_index(number)).copied())
}

fn ring_index(number: u64) -> usize {
    // Below INTERVALS, so no bits are lost.
    #[allow(clippy::cast_possible_truncation)]
    let index = (number % INTERVALS as u64) as usize;
    index
}
