//! What the dead leave: memory that they had handed out, which others may hold.
//!
//! ```text
//!   lends ----> dies ----> its own memory is gone: draining ----> orphan ----> nobody has it open: free
//!   opens: says so in its slot before the driver is asked, and takes it back after the driver has closed
//! ```
//!
//! No call tells who holds an orphan. Who opens bytes that are good only while their maker has the memory does so by a call of ours, and its
//! slot says so (`opened`, a bit for the hash of the bytes); what can hold memory by itself ([`EXPORTED_UNSEEN`]) stays as long as anybody
//! lives who may have it.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::layout::{Cell, EXPORTED_UNSEEN, Slot};
use crate::ledger;
use crate::slots::{State, Table};
use crate::units::{Nanos, SlotIndex};

impl Table<'_> {
    /// Others may hold what the process of a slot exported, by handles with these bits.
    pub fn mark_exported(&self, slot: SlotIndex, bits: u64) {
        let Some(Slot { exported_handles: lent, .. }) = self.slot(slot) else { return };
        let more = |lent: u64| Some(lent | bits).filter(|more| *more != lent);
        let _ = lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// The handles that processes of the container have open, as bits of their hashes.
    ///
    /// Whoever opens a handle says so before the driver is asked; who asks here does so after the driver has let the memory go. So whoever
    /// has it open is seen.
    #[must_use]
    pub fn opened_handles(&self) -> u64 {
        // HB opened: meets the fence in `Table::set_opened_handles`, in the order in which the driver has answered the two.
        fence(Ordering::SeqCst);
        // Those of the dead count until their memory is gone.
        let opened = |(slot, _)| {
            self.slot(slot).map_or(0, |slot| slot.opened_handles.load(Ordering::Relaxed))
        };
        self.occupied().map(opened).fold(0, |all, opened| all | opened)
    }

    /// Says which handles the process of a slot has open.
    pub fn set_opened_handles(&self, slot: SlotIndex, bits: u64) {
        let Some(Slot { opened_handles: opened, .. }) = self.slot(slot) else { return };
        opened.store(bits, Ordering::Relaxed);
        // HB opened: see `Table::opened`.
        fence(Ordering::SeqCst);
    }

    /// Whether none of the container's processes holds what the slot's process had exported, as far as can be seen from here: who opens a
    /// handle says so, who has a descriptor does not.
    #[must_use]
    pub fn is_released(&self, orphan: SlotIndex) -> bool {
        let Some(entry) = self.slot(orphan) else { return false };
        let mut others = self.occupied();
        let since = |slot: &Slot| slot.since.load(Ordering::Relaxed);
        match entry.exported_handles.load(Ordering::Relaxed) {
            // Nobody lives who could have had it; whoever had it last may still be on the GPU. Who came and died later never had it: short-lived
            // processes, one after the other, do not keep it.
            0 => others.all(|(other, state)| {
                state != State::Draining
                    || self.slot(other).is_some_and(|other| since(other) > since(entry))
            }),
            lent if lent & EXPORTED_UNSEEN != 0 => others.next().is_none(),
            lent => self.opened_handles() & lent == 0,
        }
    }

    /// Where no process lives, nobody holds what dead ones had exported, and nobody who comes later will: what is lent in a way that cannot be
    /// seen ends here.
    pub fn release_unseen(&self, now: Nanos) {
        if self.occupied().all(|(_, state)| state != State::Live) {
            for slot in self.orphans().filter_map(|slot| self.slot(slot)) {
                if slot.exported_handles.swap(0, Ordering::Relaxed) != 0 {
                    slot.since.store(now.get(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Leaves of a dead process what it had exported, if it had; else zeroes its cells and what it
    /// had lent. To be called again where a caller has died. `cells` are its cells, each with its
    /// GPU's `withdrawn`.
    pub fn reclaim<'c>(
        &self,
        slot: SlotIndex,
        state: State,
        cells: impl Iterator<Item = (&'c Cell, &'c AtomicU64)> + Clone,
    ) -> State {
        let Some(entry) = self.slot(slot) else { return state };
        entry.opened_handles.store(0, Ordering::Relaxed);
        if state == State::Draining {
            // All of them: none may be left out for what another one keeps.
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
