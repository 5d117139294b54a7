//! The cells of exited processes: reduced to what they exported, and cleared.

use super::{count_withdrawn, get, held, update};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::layout::Cell;
use crate::units::Bytes;

/// Reduces an exited process's cell to what it had exported; returns whether that is anything.
/// `withdrawn` is the GPU's. Must be repeated if a caller exited inside.
pub fn keep_exported(cell: &Cell, withdrawn: &AtomicU64) -> bool {
    let exported = get(&cell.exported);
    // What was measured beyond the implicit memory goes, too, but its amount is not known here.
    count_withdrawn(withdrawn, held(cell).used() - exported + get(&cell.implicit));
    // `held` first: whatever was cleared before it would be uncounted if we exited here.
    let _ = update(cell, |held| Some(held.left(exported)));
    process_words(cell).0.for_each(|word| _ = word.swap(0, Ordering::Relaxed));
    cell.creating.swap(0, Ordering::Relaxed);
    // What was measured of the process does not apply to what is left.
    cell.implicit_epoch.fetch_add(1, Ordering::Relaxed);
    held(cell).used() > Bytes::ZERO
}

/// Zeroes a cell, for a slot that is reclaimed. `withdrawn` is the GPU's.
pub fn clear(cell: &Cell, withdrawn: &AtomicU64) {
    count_withdrawn(withdrawn, get(&cell.implicit) + get(&cell.exported));
    // Swapped, not stored: another process may be closing `held` now, and loom keeps no order
    // between an exchange and a store.
    let (words, halves) = words(cell);
    words.for_each(|word| _ = word.swap(0, Ordering::Relaxed));
    halves.into_iter().for_each(|half| _ = half.swap(0, Ordering::Relaxed));
}

/// Whether a cell is as [`clear`] leaves it.
#[must_use]
pub fn is_clear(cell: &Cell) -> bool {
    let (mut words, halves) = words(cell);
    words.all(|word| word.load(Ordering::Relaxed) == 0)
        && halves.into_iter().all(|half| half.load(Ordering::Relaxed) == 0)
}

fn words(cell: &Cell) -> (impl Iterator<Item = &AtomicU64>, [&AtomicU32; 4]) {
    let (process_words, halves) = process_words(cell);
    ([&cell.held, &cell.exported].into_iter().chain(process_words), halves)
}

/// Returns the words that end with the process, even if it exported memory.
fn process_words(cell: &Cell) -> (impl Iterator<Item = &AtomicU64>, [&AtomicU32; 4]) {
    // No `..`, so that a new field cannot be forgotten.
    let Cell {
        held: _,
        implicit,
        peak,
        limit_word,
        waiting,
        creating,
        implicit_epoch,
        charges,
        exported: _,
        checkpointed,
        busy,
        inflight,
        launches,
        active,
        turn,
        first,
        last,
        spent,
        sequence,
        interval,
        ends,
    } = cell;
    let memory = [implicit, peak, limit_word, waiting];
    let time = [busy, inflight, launches, active, turn, first, last, spent, sequence, ends];
    let spans = interval.iter().flat_map(|span| [&span.start, &span.end]);
    (memory.into_iter().chain(time).chain(spans), [creating, implicit_epoch, charges, checkpointed])
}
