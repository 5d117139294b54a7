//! Kernels that spin until others have started.
//!
//! A kernel joins its rendezvous when it first runs. Until all have joined it spins: it uses its
//! slices as any kernel does, without end. When the last one joins, each has its own time left to
//! compute. The place of a dropped member stays filled: as on a GPU, the flag that it set stays
//! set.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::records::{Member, Rendezvous, Slot, StreamId};
use crate::kernel::NEVER;
use crate::words::Words;

impl<W: Words> Timeline<'_, W> {
    /// Joins the rendezvous of a stream's head kernel.
    pub(super) fn join_rendezvous(&mut self, stream: StreamId, t: Nanos) {
        let slot = self.head_slot(stream);
        let size = self.rendezvous_size(slot);
        if size < 2 || self.get(stream.rendezvous()) != 0 {
            return;
        }
        let key = self.get(slot.subject());
        // With all of them in use, the kernel runs without waiting: better than a deadlock that no
        // GPU would have.
        let Some(rendezvous) = self.rendezvous(key, size) else { return };
        let place = self.get(rendezvous.members());
        self.set(Member::of(rendezvous, place).stream(), stream.0);
        self.set(rendezvous.members(), place + 1);
        // Numbered from 1, so that 0 is none.
        self.set(stream.rendezvous(), rendezvous.0 + 1);
        self.set_remaining(stream, NEVER, t);
        let missing = self.get(rendezvous.missing()) - 1;
        self.set(rendezvous.missing(), missing);
        if missing == 0 {
            self.release_rendezvous(rendezvous, t);
        }
    }

    fn rendezvous(&mut self, key: u64, size: u64) -> Option<Rendezvous> {
        let all = || (0..Rendezvous::COUNT).map(Rendezvous);
        let in_use = |this: &Self, rendezvous: Rendezvous| this.get(rendezvous.missing()) != 0;
        if let Some(open) = all().find(|&each| in_use(self, each) && self.get(each.key()) == key) {
            return Some(open);
        }
        let free = all().find(|&each| !in_use(self, each))?;
        self.set(free.key(), key);
        self.set(free.missing(), size);
        self.set(free.members(), 0);
        Some(free)
    }

    fn release_rendezvous(&mut self, rendezvous: Rendezvous, t: Nanos) {
        for place in 0..self.get(rendezvous.members()) {
            let stream = StreamId(self.get(Member::of(rendezvous, place).stream()));
            if stream.0 != 0 {
                let cost = self.head_cost(stream);
                self.set_remaining(stream, cost, t);
            }
        }
    }

    /// Resets the rendezvous of a stream whose kernel has ended.
    pub(super) fn reset_rendezvous(&mut self, stream: StreamId) {
        self.set(stream.rendezvous(), 0);
    }

    /// Removes the stream of a dropped kernel from its rendezvous.
    pub(super) fn leave_rendezvous(&mut self, stream: StreamId) {
        let number = self.get(stream.rendezvous());
        if number == 0 {
            return;
        }
        let rendezvous = Rendezvous(number - 1);
        for place in 0..self.get(rendezvous.members()) {
            let member = Member::of(rendezvous, place);
            if self.get(member.stream()) == stream.0 {
                self.set(member.stream(), 0);
            }
        }
        self.set(stream.rendezvous(), 0);
    }

    fn head_cost(&self, stream: StreamId) -> Nanos {
        let slot: Slot = self.head_slot(stream);
        Nanos(self.get(slot.cost()))
    }
}
