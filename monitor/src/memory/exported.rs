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
//! two observations that are [`SETTLED`] apart with a ledger that has not moved, and of both by the
//! lesser figure: what is under way at one of them is not at the other. It falls by any two, to the
//! greater figure of both: a container that never stands still keeps no figure that is too high.

use cgpu_shm::units::{Bytes, Nanos};

use super::unaccounted::{Books, SETTLED};

/// A process at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which slot, and which of its users.
    pub name: (u8, u64),
    /// Its books, before and after the look.
    pub before: Books,
    /// As above.
    pub after: Books,
    /// What the driver has for it.
    pub measured: Bytes,
    /// What is published of it beyond its books.
    pub growth: i64,
}

/// What was read of all of a container's processes on a GPU.
#[derive(Clone, Debug)]
pub struct Observation<'a> {
    /// When.
    pub at: Nanos,
    /// The living.
    pub members: &'a [Member],
    /// What dead ones had exported.
    pub orphans: Bytes,
    /// What of the GPU's memory no process has.
    pub unowned: Bytes,
    /// What had been taken off the books.
    pub withdrawn: Bytes,
}

/// What was found to have left the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// All that dead processes had exported, and it is something. So has all that the living have
    /// exported: less may as well be theirs.
    pub orphans: bool,
    /// Of what the living and the dead have exported.
    pub returned: Bytes,
}

/// What follows from an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// At most so much has left the GPU; none: not known. A higher finding from before is wrong.
    pub most: Option<Bytes>,
    /// What has left; none: nothing is sure.
    pub gone: Option<Gone>,
}

/// What is known of one container on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    last: Option<Seen>,
    /// What can have left the GPU by the last observation.
    most: Option<Bytes>,
}

/// What was seen: the books, and what they said beyond what can be there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    at: Nanos,
    books: Vec<((u8, u64), Books)>,
    orphans: Bytes,
    withdrawn: Bytes,
    surplus: Bytes,
}

impl Exchange {
    /// Takes an observation.
    pub fn observe(&mut self, seen: &Observation<'_>) -> Found {
        let creating = seen.members.iter().any(|member| member.before.creating + member.after.creating > 0);
        let most = (!creating).then(|| surplus(seen));
        // What came and went during one observation is measured, and on no books.
        let last = std::mem::replace(&mut self.most, most);
        Found { most: most.zip(last).map(|(now, last)| now.max(last)), gone: self.settled(seen) }
    }

    fn settled(&mut self, seen: &Observation<'_>) -> Option<Gone> {
        let Observation { at, members, orphans, withdrawn, .. } = *seen;
        let still = members.iter().all(|member| member.before == member.after && member.after.creating == 0);
        if !still {
            self.last = None;
            return None;
        }
        let books = members.iter().map(|member| (member.name, member.after)).collect();
        let surplus = surplus(seen);
        let now = Seen { at, books, orphans, withdrawn, surplus };
        let last = self.last.get_or_insert_with(|| now.clone());
        if (&last.books, last.orphans, last.withdrawn) != (&now.books, orphans, withdrawn) {
            *last = now;
            return None;
        }
        if at - last.at < SETTLED {
            return None;
        }
        let surplus = surplus.min(std::mem::replace(last, now).surplus);
        let exported = members.iter().map(|member| member.after.exported).sum::<Bytes>() + orphans;
        Some(Gone { orphans: orphans > Bytes::ZERO && surplus >= exported, returned: surplus.min(exported) })
    }
}

/// What the books say beyond what can be on the GPU: the greater of them, before and after.
fn surplus(seen: &Observation<'_>) -> Bytes {
    let booked = seen.members.iter().fold(signed(seen.orphans), |sum, member| {
        let books = |books: &Books| books.used + books.implicit;
        let greater = books(&member.before).max(books(&member.after));
        sum.saturating_add(signed(greater)).saturating_add(member.growth)
    });
    let there: Bytes = seen.members.iter().map(|member| member.measured).sum::<Bytes>() + seen.unowned;
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

    fn member(slot: u8, used: u64, exported: u64, measured: u64) -> Member {
        let books = Books { used: mib(used), exported: mib(exported), ..Books::default() };
        Member { name: (slot, 1), before: books, after: books, measured: mib(measured), growth: 0 }
    }

    /// Observations a second apart.
    #[derive(Default)]
    struct Observations {
        exchange: Exchange,
        seconds: u64,
    }

    impl Observations {
        fn at(&mut self, at: Nanos, members: &[Member], orphans: u64, unowned: u64) -> Option<Gone> {
            let (orphans, unowned, withdrawn) = (mib(orphans), mib(unowned), Bytes(7));
            self.exchange.observe(&Observation { at, members, orphans, unowned, withdrawn }).gone
        }

        fn see(&mut self, members: &[Member], orphans: u64, unowned: u64) -> Option<Gone> {
            self.seconds += 1;
            self.at(Nanos::from_millis(self.seconds * 1000), members, orphans, unowned)
        }

        fn returned(&mut self, members: &[Member], orphans: u64, unowned: u64) -> u64 {
            self.see(members, orphans, unowned).expect("sure").returned.0 >> 20
        }
    }

    #[test]
    fn what_an_importer_holds_has_not_left_the_gpu() {
        let mut seen = Observations::default();
        // The first one has let go of 6, which the second one has.
        let both = [member(0, 10, 6, 4), member(1, 0, 0, 6)];
        assert_eq!(seen.see(&both, 0, 0), None, "once is not sure");
        assert_eq!(seen.returned(&both, 0, 0), 0);
        // Now no process has it; then only a descriptor.
        let none = [member(0, 10, 6, 4), member(1, 0, 0, 0)];
        assert_eq!(seen.returned(&none, 0, 0), 0, "it was there a look ago");
        let found = Gone { orphans: false, returned: mib(6) };
        assert_eq!(seen.see(&none, 0, 0), Some(found));
        assert_eq!(seen.returned(&none, 0, 6), 0);
    }

    #[test]
    fn what_was_not_exported_never_leaves() {
        let mut seen = Observations::default();
        let over = [member(0, 10, 2, 0), member(1, 5, 1, 5)];
        seen.see(&over, 0, 0);
        assert_eq!(seen.returned(&over, 0, 0), 3);
    }

    #[test]
    fn orphans_have_left_when_none_of_them_can_be_there() {
        let mut seen = Observations::default();
        let holds = [member(1, 4, 0, 7)];
        seen.see(&holds, 6, 0);
        let some = seen.see(&holds, 6, 0).expect("sure");
        assert_eq!((some.orphans, some.returned), (false, mib(3)), "3 of 6 are there");
        let free = [member(1, 4, 0, 4)];
        seen.see(&free, 6, 0);
        assert!(seen.see(&free, 6, 0).expect("sure").orphans);
        assert!(!seen.see(&free, 6, 1).expect("sure").orphans, "or no process's");
        assert!(!seen.see(&free, 0, 0).is_some_and(|gone| gone.orphans));
        assert!(!seen.see(&free, 0, 0).expect("sure").orphans, "there are none");
    }

    /// An orphan was freed that a living process held, because what had left was the living one's
    /// own.
    #[test]
    fn orphans_have_not_left_while_it_may_be_what_the_living_exported() {
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
    fn books_that_move_say_nothing() {
        let mut seen = Observations::default();
        let moving = Member { after: Books { charges: 1, ..Books::default() }, ..member(0, 10, 6, 4) };
        assert_eq!(seen.see(&[moving], 0, 0), None);
        let creating = Books { creating: 1, ..member(0, 10, 6, 4).after };
        let creating = Member { before: creating, after: creating, ..member(0, 10, 6, 4) };
        let still = [member(0, 10, 6, 4)];
        assert_eq!(seen.see(&still, 0, 0), None);
        assert_eq!(seen.see(&[creating], 0, 0), None);
        assert_eq!(seen.see(&still, 0, 0), None, "it moved in between");
        let other = [member(0, 12, 8, 6)];
        assert_eq!(seen.see(&other, 0, 0), None);
        assert_eq!(seen.returned(&other, 0, 0), 6);
        assert_eq!(seen.see(&other, 3, 0), None, "another one has died");
        let look = |seconds: u64, withdrawn| Observation {
            at: Nanos::from_millis(seconds * 1000),
            members: &other,
            orphans: mib(3),
            unowned: Bytes::ZERO,
            withdrawn,
        };
        assert_eq!(seen.exchange.observe(&look(21, Bytes(8))).gone, None, "some was withdrawn");
        assert!(seen.exchange.observe(&look(22, Bytes(8))).gone.is_some());
    }

    /// A charge that no driver had answered was taken for memory that has left the GPU, and the
    /// books never stood still again.
    #[test]
    fn no_more_has_left_than_two_looks_allow_whatever_moves() {
        let mut exchange = Exchange::default();
        let mut most = |member: Member| {
            let (orphans, unowned) = (Bytes::ZERO, Bytes::ZERO);
            let look =
                Observation { at: Nanos(1), members: &[member], orphans, unowned, withdrawn: Bytes(7) };
            exchange.observe(&look).most.map(|most| most.0 >> 20)
        };
        let moving = |before: Member, after: Member| Member { before: before.before, ..after };
        let (less, more) = (member(0, 10, 6, 8), member(0, 14, 6, 8));
        assert_eq!(most(moving(less, more)), None, "once is not sure");
        assert_eq!(most(moving(more, less)), Some(6), "the greater books");
        assert_eq!(most(less), Some(6), "or a look ago");
        assert_eq!(most(less), Some(2));
        let creating = Books { creating: 1, ..less.after };
        assert_eq!(most(Member { after: creating, ..less }), None, "it is measured before it is booked");
    }

    #[test]
    fn looks_that_a_slow_call_may_outlast_say_nothing() {
        let mut seen = Observations::default();
        // The driver has freed 6, and the call has not come back to take them off the books.
        let freed = [member(0, 10, 6, 4)];
        let at = |ms: u64| Nanos::from_millis(10_000 + ms);
        assert_eq!(seen.at(at(0), &freed, 0, 0), None);
        assert_eq!(seen.at(at(1), &freed, 0, 0), None);
        assert_eq!(seen.at(at(799), &freed, 0, 0), None);
        assert!(seen.at(at(800), &freed, 0, 0).is_some());
        assert_eq!(seen.at(at(801), &freed, 0, 0), None);
    }
}
