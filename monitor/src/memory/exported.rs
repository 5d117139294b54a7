//! Derives how much of the memory that a container's processes exported has left a GPU, from NVML's
//! figures of all of them. Pure.
//!
//! The driver attributes memory that several processes share to one of them: the one that allocated
//! it as long as that holds it, then the one that has held it longest, and to no process where only
//! a descriptor holds it. So no single figure tells whether exported memory is still there, but the
//! sum does: what is measured of all the container's processes, plus the GPU's memory that no
//! process has, is the most that the container can hold. What its ledger says beyond that has left
//! the GPU, and only exported memory can have left it. The sum does not tell which process exported
//! it. So it is subtracted from the container's sum, and each byte that leaves the ledger
//! afterwards may be one of these (`withdrawn` in `cgpu_device`).
//!
//! A charge runs ahead of the driver, and a free behind it. So the figure rises only by two
//! observations [`STABLE_INTERVAL`] apart with an unchanged ledger, and to the smaller figure of
//! both: a call in flight at one of them is not in flight at the other. It falls by any two
//! observations, to the greater figure of both, so that a container that never pauses keeps no
//! figure that is too high.

use cgpu_shm::units::{Bytes, Nanos};

use super::unaccounted::{Accounted, STABLE_INTERVAL};

/// A process in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportingProcess {
    /// Slot and generation.
    pub name: (u8, u64),
    /// What it accounted before NVML was called.
    pub before: Accounted,
    /// What it accounted afterwards.
    pub after: Accounted,
    /// What the driver holds for it.
    pub measured: Bytes,
    /// Its published unaccounted delta.
    pub delta: i64,
}

/// A sample of all of a container's processes on a GPU.
#[derive(Clone, Debug)]
pub struct ExportSample<'a> {
    /// Time of the sample.
    pub at: Nanos,
    /// The living processes.
    pub members: &'a [ExportingProcess],
    /// What exited processes had exported.
    pub orphans: Bytes,
    /// The GPU's memory that no process has.
    pub unowned: Bytes,
    /// What had been withdrawn from the ledger.
    pub withdrawn: Bytes,
}

/// Exported memory that has left the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Whether all that exited processes had exported has left, and it is not zero. True only if
    /// all that the living have exported has left, too: a part may as well be theirs.
    pub orphans: bool,
    /// The sum, of what living and exited processes have exported.
    pub returned: Bytes,
}

/// Result of an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The most that can have left the GPU; none: unknown. An earlier, higher figure is wrong.
    pub most: Option<Bytes>,
    /// What has left; none: not known yet.
    pub released: Option<Released>,
}

/// State of one container on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportedMemory {
    last: Option<LastSample>,
    /// The most that can have left the GPU, by the last observation.
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
    /// Takes a sample.
    pub fn observe(&mut self, seen: &ExportSample<'_>) -> Outcome {
        let creating =
            seen.members.iter().any(|member| member.before.creating + member.after.creating > 0);
        let most = (!creating).then(|| surplus(seen));
        // Memory allocated and freed during one sample may be measured and not accounted.
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

/// Returns what is accounted beyond what can be on the GPU, by the greater value of before and
/// after.
fn surplus(seen: &ExportSample<'_>) -> Bytes {
    let accounted = seen.members.iter().fold(signed(seen.orphans), |sum, member| {
        let total = |one: &Accounted| one.used + one.implicit;
        let greater = total(&member.before).max(total(&member.after));
        sum.saturating_add(signed(greater)).saturating_add(member.delta)
    });
    let there: Bytes =
        seen.members.iter().map(|member| member.measured).sum::<Bytes>() + seen.unowned;
    Bytes(u64::try_from(accounted.saturating_sub(signed(there))).unwrap_or(0))
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
            delta: 0,
        }
    }

    /// Takes samples a second apart.
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

        fn sample(
            &mut self,
            members: &[ExportingProcess],
            orphans: u64,
            unowned: u64,
        ) -> Option<Released> {
            self.seconds += 1;
            self.at(Nanos::from_millis(self.seconds * 1000), members, orphans, unowned)
        }

        fn returned(&mut self, members: &[ExportingProcess], orphans: u64, unowned: u64) -> u64 {
            self.sample(members, orphans, unowned).expect("sure").returned.0 >> 20
        }
    }

    #[test]
    fn memory_held_by_an_importer_is_not_released() {
        let mut seen = Observations::default();
        // The first process has released 6, which the second one holds.
        let both = [member(0, 10, 6, 4), member(1, 0, 0, 6)];
        assert_eq!(seen.sample(&both, 0, 0), None, "one sample is not enough");
        assert_eq!(seen.returned(&both, 0, 0), 0);
        // Now no process holds it; at the end only a descriptor does.
        let none = [member(0, 10, 6, 4), member(1, 0, 0, 0)];
        assert_eq!(seen.returned(&none, 0, 0), 0, "it was there in the last sample");
        let found = Released { orphans: false, returned: mib(6) };
        assert_eq!(seen.sample(&none, 0, 0), Some(found));
        assert_eq!(seen.returned(&none, 0, 6), 0);
    }

    #[test]
    fn unexported_memory_is_never_released() {
        let mut seen = Observations::default();
        let over = [member(0, 10, 2, 0), member(1, 5, 1, 5)];
        seen.sample(&over, 0, 0);
        assert_eq!(seen.returned(&over, 0, 0), 3);
    }

    #[test]
    fn orphans_are_released_when_none_can_be_on_the_gpu() {
        let mut seen = Observations::default();
        let holds = [member(1, 4, 0, 7)];
        seen.sample(&holds, 6, 0);
        let some = seen.sample(&holds, 6, 0).expect("sure");
        assert_eq!((some.orphans, some.returned), (false, mib(3)), "3 of 6 are still there");
        let free = [member(1, 4, 0, 4)];
        seen.sample(&free, 6, 0);
        assert!(seen.sample(&free, 6, 0).expect("sure").orphans);
        assert!(!seen.sample(&free, 6, 1).expect("sure").orphans, "no process has that 1");
        assert!(!seen.sample(&free, 0, 0).is_some_and(|released| released.orphans));
        assert!(!seen.sample(&free, 0, 0).expect("sure").orphans, "there are none");
    }

    /// Regression: an orphan that a living process held was freed, because the living process's own
    /// exported memory had left.
    #[test]
    fn orphans_are_kept_while_living_exports_may_explain_the_memory() {
        let mut seen = Observations::default();
        // It holds 2 of the orphan's 6, and 6 of its own 8 have left the GPU.
        let holds = [member(1, 8, 8, 4)];
        seen.sample(&holds, 6, 0);
        let found = seen.sample(&holds, 6, 0).expect("sure");
        assert_eq!((found.orphans, found.returned), (false, mib(10)));
        let none = [member(1, 8, 8, 0)];
        seen.sample(&none, 6, 0);
        assert!(seen.sample(&none, 6, 0).expect("sure").orphans);
    }

    #[test]
    fn changing_ledger_shows_nothing() {
        let mut seen = Observations::default();
        let moving = ExportingProcess {
            after: Accounted { charges: 1, ..Accounted::default() },
            ..member(0, 10, 6, 4)
        };
        assert_eq!(seen.sample(&[moving], 0, 0), None);
        let creating = Accounted { creating: 1, ..member(0, 10, 6, 4).after };
        let creating =
            ExportingProcess { before: creating, after: creating, ..member(0, 10, 6, 4) };
        let still = [member(0, 10, 6, 4)];
        assert_eq!(seen.sample(&still, 0, 0), None);
        assert_eq!(seen.sample(&[creating], 0, 0), None);
        assert_eq!(seen.sample(&still, 0, 0), None, "it changed in between");
        let other = [member(0, 12, 8, 6)];
        assert_eq!(seen.sample(&other, 0, 0), None);
        assert_eq!(seen.returned(&other, 0, 0), 6);
        assert_eq!(seen.sample(&other, 3, 0), None, "another process has exited");
        let withdrawing = |seconds: u64, withdrawn| ExportSample {
            at: Nanos::from_millis(seconds * 1000),
            members: &other,
            orphans: mib(3),
            unowned: Bytes::ZERO,
            withdrawn,
        };
        assert_eq!(
            seen.exported_memory.observe(&withdrawing(21, Bytes(8))).released,
            None,
            "some was withdrawn"
        );
        assert!(seen.exported_memory.observe(&withdrawing(22, Bytes(8))).released.is_some());
    }

    /// Regression: a charge that the driver had not answered yet counted as memory that has left
    /// the GPU, and the ledger never became stable again.
    #[test]
    fn no_more_is_released_than_two_samples_allow() {
        let mut exported_memory = ExportedMemory::default();
        let mut most = |member: ExportingProcess| {
            let (orphans, unowned) = (Bytes::ZERO, Bytes::ZERO);
            let sample = ExportSample {
                at: Nanos(1),
                members: &[member],
                orphans,
                unowned,
                withdrawn: Bytes(7),
            };
            exported_memory.observe(&sample).most.map(|most| most.0 >> 20)
        };
        let moving = |before: ExportingProcess, after: ExportingProcess| ExportingProcess {
            before: before.before,
            ..after
        };
        let (less, more) = (member(0, 10, 6, 8), member(0, 14, 6, 8));
        assert_eq!(most(moving(less, more)), None, "one sample is not enough");
        assert_eq!(most(moving(more, less)), Some(6), "the greater accounting");
        assert_eq!(most(less), Some(6), "the greater of two samples");
        assert_eq!(most(less), Some(2));
        let creating = Accounted { creating: 1, ..less.after };
        assert_eq!(
            most(ExportingProcess { after: creating, ..less }),
            None,
            "it is measured before it is accounted"
        );
    }

    #[test]
    fn samples_within_one_slow_call_show_nothing() {
        let mut seen = Observations::default();
        // The driver has freed 6, and the call has not returned to refund it.
        let freed = [member(0, 10, 6, 4)];
        let at = |ms: u64| Nanos::from_millis(10_000 + ms);
        assert_eq!(seen.at(at(0), &freed, 0, 0), None);
        assert_eq!(seen.at(at(1), &freed, 0, 0), None);
        assert_eq!(seen.at(at(799), &freed, 0, 0), None);
        assert!(seen.at(at(800), &freed, 0, 0).is_some());
        assert_eq!(seen.at(at(801), &freed, 0, 0), None);
    }
}
