//! Orphans: memory that exited processes had exported and others may still hold.
//!
//! No driver call tells which processes hold it. A handle that is valid only while its exporter
//! holds the memory is opened by a hooked call, and the importer's slot records it
//! (`opened_handles`, one bit by the hash of the handle). Memory exported in other ways
//! ([`EXPORTED_UNSEEN`]) stays charged while any process lives that may hold it.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::layout::{Cell, EXPORTED_UNSEEN, Slot};
use crate::ledger;
use crate::slots::{State, Table};
use crate::units::{Nanos, SlotIndex};

impl Table<'_> {
    /// Records that others may hold memory of a slot's process, by handles with these bits.
    pub fn mark_exported(&self, slot: SlotIndex, bits: u64) {
        let Some(Slot { exported_handles: exported, .. }) = self.slot(slot) else { return };
        let more = |exported: u64| Some(exported | bits).filter(|more| *more != exported);
        let _ = exported.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Returns the handles that the container's processes have open, as bits of their hashes.
    ///
    /// A process records a handle before it calls the driver to open it. The caller here does so
    /// after the driver has freed the memory. So every process that has the handle open is seen.
    #[must_use]
    pub fn opened_handles(&self) -> u64 {
        // HB opened: meets the fence in `Table::set_opened_handles`, in the order of the two driver
        // calls.
        fence(Ordering::SeqCst);
        // Those of exited processes count until their memory is gone.
        let opened = |(slot, _)| {
            self.slot(slot).map_or(0, |slot| slot.opened_handles.load(Ordering::Relaxed))
        };
        self.occupied().map(opened).fold(0, |all, opened| all | opened)
    }

    /// Records which handles the process of a slot has open.
    pub fn set_opened_handles(&self, slot: SlotIndex, bits: u64) {
        let Some(Slot { opened_handles: opened, .. }) = self.slot(slot) else { return };
        opened.store(bits, Ordering::Relaxed);
        // HB opened: see `Table::opened_handles`.
        fence(Ordering::SeqCst);
    }

    /// Whether no process of the container is known to hold what the slot's process had exported. A
    /// process that opens a handle records it; one that has a descriptor does not.
    #[must_use]
    pub fn is_released(&self, orphan: SlotIndex) -> bool {
        let Some(entry) = self.slot(orphan) else { return false };
        let mut others = self.occupied();
        let since = |slot: &Slot| slot.since.load(Ordering::Relaxed);
        match entry.exported_handles.load(Ordering::Relaxed) {
            // No living process could have held it; the last holder may still be draining. A
            // process that started and exited later never held it: short-lived processes in a row
            // do not keep it.
            0 => others.all(|(other, state)| {
                state != State::Draining
                    || self.slot(other).is_some_and(|other| since(other) > since(entry))
            }),
            exported if exported & EXPORTED_UNSEEN != 0 => others.next().is_none(),
            exported => self.opened_handles() & exported == 0,
        }
    }

    /// Releases what exited processes had exported by unseen routes, if no process lives: then none
    /// holds it and no later one will.
    pub fn release_unseen(&self, now: Nanos) {
        if self.occupied().all(|(_, state)| state != State::Live) {
            for slot in self.orphans().filter_map(|slot| self.slot(slot)) {
                if slot.exported_handles.swap(0, Ordering::Relaxed) != 0 {
                    slot.since.store(now.get(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Reduces an exited process to what it had exported, if anything; else zeroes its cells and
    /// its exported handles. Must be repeated if a caller exited inside. `cells` are its cells,
    /// each with its GPU's `withdrawn`.
    pub fn reclaim<'c>(
        &self,
        slot: SlotIndex,
        state: State,
        cells: impl Iterator<Item = (&'c Cell, &'c AtomicU64)> + Clone,
    ) -> State {
        let Some(entry) = self.slot(slot) else { return state };
        entry.opened_handles.store(0, Ordering::Relaxed);
        if state == State::Draining {
            // All of them: `count` evaluates every cell, `any` would stop at the first.
            let kept = cells
                .clone()
                .filter(|(cell, withdrawn)| ledger::keep_exported(cell, withdrawn))
                .count();
            if kept > 0 {
                return State::Orphan;
            }
        }
        entry.exported_handles.store(0, Ordering::Relaxed);
        cells.for_each(|(cell, withdrawn)| ledger::clear(cell, withdrawn));
        State::Free
    }
}
