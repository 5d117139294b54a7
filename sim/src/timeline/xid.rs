//! Injected errors that a GPU reports to the host (XIDs). They have no other effect here: errors
//! that a program sees are injected into its calls.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::records::{Fault, Global, Gpu};
use crate::words::{Words, index};

/// A reported error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// Its number among all ever injected, from 1.
    pub number: u64,
    /// The GPU that reports it.
    pub gpu: usize,
    /// The vendor's code: 31 is a page fault, 79 a GPU that has fallen off the bus.
    pub code: u64,
    /// When.
    pub at: Nanos,
}

impl<W: Words> Timeline<'_, W> {
    /// Makes a GPU report an error.
    pub fn inject_xid(&mut self, gpu: usize, code: u64, now: Nanos) {
        let number = self.xids() + 1;
        let fault = Fault::of(number);
        self.set(fault.gpu(), Gpu(gpu as u64).0);
        self.set(fault.code(), code);
        self.set(fault.at(), now.0);
        self.set(Global(0).faults(), number);
    }

    /// Returns how many errors were ever injected.
    #[must_use]
    pub fn xids(&self) -> u64 {
        self.get(Global(0).faults())
    }

    /// Returns the errors after the `number`-th, at most the last 256, which are kept.
    #[must_use]
    pub fn xids_after(&self, number: u64) -> Vec<Xid> {
        let last = self.xids();
        let first = number.max(last.saturating_sub(Fault::COUNT));
        let xid = |number| {
            let fault = Fault::of(number);
            let (gpu, code, at) =
                (self.get(fault.gpu()), self.get(fault.code()), self.get(fault.at()));
            Xid { number, gpu: index(gpu), code, at: Nanos(at) }
        };
        (first + 1..=last).map(xid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::WORDS;
    use super::*;
    use crate::settings::Figures;
    use crate::words::Plain;

    #[test]
    fn last_256_xids_are_kept_in_order() {
        let (mut words, figures) = (Plain::new(WORDS), Figures::default());
        let mut timeline = Timeline::new(&mut words, &figures);
        assert_eq!(timeline.xids_after(0), []);
        for code in 0..300 {
            timeline.inject_xid(1, code, Nanos(code));
        }
        let after = timeline.xids_after(297);
        let xid = |number| Xid { number, gpu: 1, code: number - 1, at: Nanos(number - 1) };
        assert_eq!(after, [xid(298), xid(299), xid(300)]);
        assert_eq!(timeline.xids_after(0).len(), 256);
        assert_eq!(timeline.xids_after(300), []);
    }
}
