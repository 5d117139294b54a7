//! The spans in which a process kept a GPU busy: a ring of a few, published by the process and read by the monitor.
//!
//! The interval numbered n lies at n modulo the ring's length. One place is always about to be overwritten, so that readers
//! believe all but that.

use crate::atomic::Ordering;
use crate::layout::{Cell, INTERVALS};
use crate::units::Nanos;

/// A span of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its first instant.
    pub start: Nanos,
    /// The instant after it.
    pub end: Nanos,
}

/// Intervals that a reader can rely on: those not overwritten while the next one is being published.
pub const READABLE: usize = INTERVALS - 1;

/// Publishes a span. One thread at a time; who that is is the caller's business.
pub fn publish(cell: &Cell, span: Span) {
    let number = cell.sequence.load(Ordering::Relaxed);
    if let Some(place) = cell.interval.get(place(number)) {
        place.start.store(span.start.0, Ordering::Relaxed);
        place.end.store(span.end.0, Ordering::Relaxed);
    }
    // HB interval: Release; the reader is another process's read(2), ordered by the kernel.
    cell.sequence.store(number.wrapping_add(1), Ordering::Release);
}

/// The spans numbered from `seen` on, out of a ring read when `sequence` had been published: the newest [`READABLE`] at most.
/// A `seen` that lies ahead (the slot has a new user) counts as 0.
pub fn since(ring: &[Span; INTERVALS], sequence: u64, seen: u64) -> impl Iterator<Item = Span> {
    let oldest = sequence.saturating_sub(READABLE as u64);
    let from = if seen > sequence { 0 } else { seen };
    (from.max(oldest)..sequence).filter_map(|number| ring.get(place(number)).copied())
}

fn place(number: u64) -> usize {
    // Below INTERVALS, which fits everywhere.
    #[allow(clippy::cast_possible_truncation)]
    let place = (number % INTERVALS as u64) as usize;
    place
}
