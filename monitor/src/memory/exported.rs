//! How much of what a container's processes exported has left a GPU, told from what NVML says of
//! them all. Pure.
//!
//! The driver counts memory that several processes share as one process's: its maker's as long as
//! that holds it, then the one's that has held it longest, and no process's where only a descriptor
//! holds it. So no process's figure tells whether what it exported is still there, but the sum
//! does: what is measured of all the container's processes, and what of the GPU's memory no process has,
//! is the most that the container can hold. What its ledger says beyond that has left the GPU; and
//! only what was exported can have left it. Whose it was, the sum does not tell: so it is taken off
//! the container's sum, and each byte that leaves the ledger afterwards may be one of these
//! (`withdrawn` in `cgpu_device`).
//!
//! A charge is ahead of the driver, and a free behind it. So what has left the GPU rises only by
//! two observations that are [`STABLE_INTERVAL`] apart with a ledger that has not moved, and of both by the
//! lesser figure: what is under way at one of them is not at the other. It falls by any two, to the
//! greater figure of both: a container that never stands still keeps no figure that is too high.

use cgpu_shm::units::{Bytes, Nanos};

use super::unaccounted::{Accounted, STABLE_INTERVAL};

/// A process at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportingProcess {
    /// Which slot, and which of its users.
    pub name: (u8, u64),
    /// What it accounted, before and after the sample.
    pub before: Accounted,
    /// As above.
    pub after: Accounted,
    /// What the driver has for it.
    pub measured: Bytes,
    /// Its unaccounted memory, as published.
    pub growth: i64,
}

/// What was read of all of a container's processes on a GPU.
#[derive(Clone, Debug)]
pub struct ExportSample<'a> {
    /// When.
    pub at: Nanos,
    /// The living.
    pub members: &'a [ExportingProcess],
    /// What dead ones had exported.
    pub orphans: Bytes,
    /// What of the GPU's memory no process has.
    pub unowned: Bytes,
    /// What had been withdrawn from the ledger.
    pub withdrawn: Bytes,
}

/// What was found to have left the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// All that dead processes had exported, and it is something. So has all that the living have
    /// exported: less may as well be theirs.
    pub orphans: bool,
    /// Of what the living and the dead have exported.
    pub returned: Bytes,
}

/// What follows from an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// At most so much has left the GPU; none: not known. A higher finding from before is wrong.
    pub most: Option<Bytes>,
    /// What has left; none: nothing is sure.
    pub released: Option<Released>,
}

/// What is known of one container on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportedMemory {
    last: Option<LastSample>,
    /// What can have left the GPU by the last observation.
    most: Option<Bytes>,
}

/// A sample: what was accounted, and its surplus over what can be on the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LastSample {
    at: Nanos,
    accounted: Vec<((u8, u64), Accounted)>,
    orphans: Bytes,
    withdrawn: Bytes,
    surplus: Bytes,
}

impl ExportedMemory {
    /// Takes an observation.
    pub fn observe(&mut self, seen: &ExportSample<'_>) -> Outcome {
        let creating =
            seen.members.iter().any(|member| member.before.creating + member.after.creating > 0);
        let most = (!creating).then(|| surplus(seen));
        // Memory that came and went during one sample is measured, and not accounted.
        let last = std::mem::replace(&mut self.most, most);
        Outcome {
            most: most.zip(last).map(|(now, last)| now.max(last)),
            released: self.stable(seen),
        }
    }

    fn stable(&mut self, seen: &ExportSample<'_>) -> Option<Released> {
        let ExportSample { at, members, orphans, withdrawn, .. } = *seen;
        let still = members
            .iter()
            .all(|member| member.before == member.after && member.after.creating == 0);
        if !still {
            self.last = None;
            return None;
        }
        let accounted = members.iter().map(|member| (member.name, member.after)).collect();
        let surplus = surplus(seen);
        let now = LastSample { at, accounted, orphans, withdrawn, surplus };
        let last = self.last.get_or_insert_with(|| now.clone());
        if (&last.accounted, last.orphans, last.withdrawn) != (&now.accounted, orphans, withdrawn) {
            *last = now;
            return None;
        }
        if at - last.at < STABLE_INTERVAL {
            return None;
        }
        let surplus = surplus.min(std::mem::replace(last, now).surplus);
        let exported = members.iter().map(|member| member.after.exported).sum::<Bytes>() + orphans;
        Some(Released {
            orphans: orphans > Bytes::ZERO && surplus >= exported,
            returned: surplus.min(exported),
        })
    }
}

/// What is accounted beyond what can be on the GPU: the greater value of before and after.
fn surplus(seen: &ExportSample<'_>) -> Bytes {
    let booked = seen.members.iter().fold(signed(seen.orphans), |sum, member| {
        let accounted = |accounted: &Accounted| accounted.used + accounted.implicit;
        let greater = accounted(&member.before).max(accounted(&member.after));
        sum.saturating_add(signed(greater)).saturating_add(member.growth)
    });
    let there: Bytes =
        seen.members.iter().map(|member| member.measured).sum::<Bytes>() + seen.unowned;
    Bytes(u64::try_from(booked.saturating_sub(signed(there))).unwrap_or(0))
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(count: u64) -> Bytes {
        Bytes(count << 20)
    }

    fn member(slot: u8, used: u64, exported: u64, measured: u64) -> ExportingProcess {
        let accounted =
            Accounted { used: mib(used), exported: mib(exported), ..Accounted::default() };
        ExportingProcess {
            name: (slot, 1),
            before: accounted,
            after: accounted,
            measured: mib(measured),
            growth: 0,
        }
    }

    /// Observations a second apart.
    #[derive(Default)]
    struct Observations {
        exported_memory: ExportedMemory,
        seconds: u64,
    }

    impl Observations {
        fn at(
            &mut self,
            at: Nanos,
            members: &[ExportingProcess],
            orphans: u64,
            unowned: u64,
        ) -> Option<Released> {
            let (orphans, unowned, withdrawn) = (mib(orphans), mib(unowned), Bytes(7));
            self.exported_memory
                .observe(&ExportSample { at, members, orphans, unowned, withdrawn })
                .released
        }

        fn see(
            &mut self,
            members: &[ExportingProcess],
            orphans: u64,
            unowned: u64,
        ) -> Option<Released> {
            self.seconds += 1;
            self.at(Nanos::from_millis(self.seconds * 1000), members, orphans, unowned)
        }

        fn returned(&mut self, members: &[ExportingProcess], orphans: u64, unowned: u64) -> u64 {
            self.see(members, orphans, unowned).expect("sure").returned.0 >> 20
        }
    }

    #[test]
    fn memory_held_by_an_importer_is_not_released() {
        let mut seen = Observations::default();
        // The first one has let go of 6, which the second one has.
        let both = [member(0, 10, 6, 4), member(1, 0, 0, 6)];
        assert_eq!(seen.see(&both, 0, 0), None, "once is not sure");
        assert_eq!(seen.returned(&both, 0, 0), 0);
        // Now no process has it; then only a descriptor.
        let none = [member(0, 10, 6, 4), member(1, 0, 0, 0)];
        assert_eq!(seen.returned(&none, 0, 0), 0, "it was there a look ago");
        let found = Released { orphans: false, returned: mib(6) };
        assert_eq!(seen.see(&none, 0, 0), Some(found));
        assert_eq!(seen.returned(&none, 0, 6), 0);
    }

    #[test]
    fn unexported_memory_is_never_released() {
        let mut seen = Observations::default();
        let over = [member(0, 10, 2, 0), member(1, 5, 1, 5)];
        seen.see(&over, 0, 0);
        assert_eq!(seen.returned(&over, 0, 0), 3);
    }

    #[test]
    fn orphans_are_released_when_none_can_be_on_the_gpu() {
        let mut seen = Observations::default();
        let holds = [member(1, 4, 0, 7)];
        seen.see(&holds, 6, 0);
        let some = seen.see(&holds, 6, 0).expect("sure");
        assert_eq!((some.orphans, some.returned), (false, mib(3)), "3 of 6 are there");
        let free = [member(1, 4, 0, 4)];
        seen.see(&free, 6, 0);
        assert!(seen.see(&free, 6, 0).expect("sure").orphans);
        assert!(!seen.see(&free, 6, 1).expect("sure").orphans, "or no process's");
        assert!(!seen.see(&free, 0, 0).is_some_and(|released| released.orphans));
        assert!(!seen.see(&free, 0, 0).expect("sure").orphans, "there are none");
    }

    /// An orphan was freed that a living process held, because what had left was the living one's
    /// own.
    #[test]
    fn orphans_are_kept_while_living_exports_may_explain_the_memory() {
        let mut seen = Observations::default();
        // It holds 2 of the orphan's 6, and 6 of its own 8 have left the GPU.
        let holds = [member(1, 8, 8, 4)];
        seen.see(&holds, 6, 0);
        let found = seen.see(&holds, 6, 0).expect("sure");
        assert_eq!((found.orphans, found.returned), (false, mib(10)));
        let none = [member(1, 8, 8, 0)];
        seen.see(&none, 6, 0);
        assert!(seen.see(&none, 6, 0).expect("sure").orphans);
    }

    #[test]
    fn changing_ledger_shows_nothing() {
        let mut seen = Observations::default();
        let moving = ExportingProcess {
            after: Accounted { charges: 1, ..Accounted::default() },
            ..member(0, 10, 6, 4)
        };
        assert_eq!(seen.see(&[moving], 0, 0), None);
        let creating = Accounted { creating: 1, ..member(0, 10, 6, 4).after };
        let creating =
            ExportingProcess { before: creating, after: creating, ..member(0, 10, 6, 4) };
        let still = [member(0, 10, 6, 4)];
        assert_eq!(seen.see(&still, 0, 0), None);
        assert_eq!(seen.see(&[creating], 0, 0), None);
        assert_eq!(seen.see(&still, 0, 0), None, "it moved in between");
        let other = [member(0, 12, 8, 6)];
        assert_eq!(seen.see(&other, 0, 0), None);
        assert_eq!(seen.returned(&other, 0, 0), 6);
        assert_eq!(seen.see(&other, 3, 0), None, "another one has died");
        let look = |seconds: u64, withdrawn| ExportSample {
            at: Nanos::from_millis(seconds * 1000),
            members: &other,
            orphans: mib(3),
            unowned: Bytes::ZERO,
            withdrawn,
        };
        assert_eq!(
            seen.exported_memory.observe(&look(21, Bytes(8))).released,
            None,
            "some was withdrawn"
        );
        assert!(seen.exported_memory.observe(&look(22, Bytes(8))).released.is_some());
    }

    /// A charge that no driver had answered was taken for memory that has left the GPU, and the
    /// books never stood still again.
    #[test]
    fn no_more_is_released_than_two_samples_allow() {
        let mut exported_memory = ExportedMemory::default();
        let mut most = |member: ExportingProcess| {
            let (orphans, unowned) = (Bytes::ZERO, Bytes::ZERO);
            let look = ExportSample {
                at: Nanos(1),
                members: &[member],
                orphans,
                unowned,
                withdrawn: Bytes(7),
            };
            exported_memory.observe(&look).most.map(|most| most.0 >> 20)
        };
        let moving = |before: ExportingProcess, after: ExportingProcess| ExportingProcess {
            before: before.before,
            ..after
        };
        let (less, more) = (member(0, 10, 6, 8), member(0, 14, 6, 8));
        assert_eq!(most(moving(less, more)), None, "once is not sure");
        assert_eq!(most(moving(more, less)), Some(6), "the greater books");
        assert_eq!(most(less), Some(6), "or a look ago");
        assert_eq!(most(less), Some(2));
        let creating = Accounted { creating: 1, ..less.after };
        assert_eq!(
            most(ExportingProcess { after: creating, ..less }),
            None,
            "it is measured before it is booked"
        );
    }

    #[test]
    fn samples_within_one_slow_call_show_nothing() {
        let mut seen = Observations::default();
        // The driver has freed 6, and the call has not returned to account that.
        let freed = [member(0, 10, 6, 4)];
        let at = |ms: u64| Nanos::from_millis(10_000 + ms);
        assert_eq!(seen.at(at(0), &freed, 0, 0), None);
        assert_eq!(seen.at(at(1), &freed, 0, 0), None);
        assert_eq!(seen.at(at(799), &freed, 0, 0), None);
        assert!(seen.at(at(800), &freed, 0, 0).is_some());
        assert_eq!(seen.at(at(801), &freed, 0, 0), None);
    }
}
