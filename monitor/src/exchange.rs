//! How much of what a container's processes exported has left a card, told from what NVML says of them all. Pure.
//!
//! The driver has memory of several processes on the books of one: of its maker as long as that holds it, then of whoever holds it longest,
//! and of nobody's where only a descriptor holds it. So no process's figure tells whether what it exported is still there, but the sum does:
//! what is measured of all the container's processes, and what is on the card and nobody's, is the most that it can hold. What its books say
//! beyond that has left the card; and what can have left it is what was exported and let go. Whose it was, the sum does not tell: so it is
//! taken off the container's sum, and each byte that leaves the books afterwards may be one of these (`withdrawn` in `cgpu_card`).
//!
//! A charge is ahead of the driver, and a free behind it. So what has left the card rises only by two looks that are [`SETTLED`] apart with
//! books that have not moved, and of both by the lesser figure: what is under way at one of them is not at the other. It falls by any two
//! looks, to the greater figure of both: a container that never stands still keeps no figure that is too high.

use cgpu_proto::units::{Bytes, Nanos};

use crate::measured::{Books, SETTLED};

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

/// A look at all of a container's processes on a card.
#[derive(Clone, Debug)]
pub struct Look<'a> {
    /// When.
    pub at: Nanos,
    /// The living.
    pub members: &'a [Member],
    /// What dead ones had exported.
    pub orphans: Bytes,
    /// What the card has that is nobody's.
    pub unowned: Bytes,
    /// What had been taken off the books.
    pub withdrawn: Bytes,
}

/// What was found to have left the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// All that dead processes had exported, and it is something. So has all that the living have
    /// exported: less may as well be theirs.
    pub orphans: bool,
    /// Of what the living and the dead have exported.
    pub returned: Bytes,
}

/// What follows from a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// No more than this can have left the card; none: the look does not tell. An earlier finding that is
    /// higher is wrong.
    pub most: Option<Bytes>,
    /// What has left; none: nothing is sure.
    pub gone: Option<Gone>,
}

/// What is known of one container on one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    last: Option<Seen>,
    /// What can have left the card by the last look.
    most: Option<Bytes>,
}

/// What a look saw: the books, and what they said beyond what can be there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    at: Nanos,
    books: Vec<((u8, u64), Books)>,
    orphans: Bytes,
    withdrawn: Bytes,
    surplus: Bytes,
}

impl Exchange {
    /// Takes a look.
    pub fn look(&mut self, look: &Look<'_>) -> Found {
        let creating = look.members.iter().any(|member| member.before.creating + member.after.creating > 0);
        let most = (!creating).then(|| surplus(look));
        // What came and went during one look is measured, and on no books.
        let last = std::mem::replace(&mut self.most, most);
        Found { most: most.zip(last).map(|(now, last)| now.max(last)), gone: self.settled(look) }
    }

    fn settled(&mut self, look: &Look<'_>) -> Option<Gone> {
        let Look { at, members, orphans, withdrawn, .. } = *look;
        let still = members.iter().all(|member| member.before == member.after && member.after.creating == 0);
        if !still {
            self.last = None;
            return None;
        }
        let books = members.iter().map(|member| (member.name, member.after)).collect();
        let surplus = surplus(look);
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

/// What the books say beyond what can be on the card: the greater of them, before and after.
fn surplus(look: &Look<'_>) -> Bytes {
    let booked = look.members.iter().fold(signed(look.orphans), |sum, member| {
        let books = |books: &Books| books.used + books.implicit;
        let greater = books(&member.before).max(books(&member.after));
        sum.saturating_add(signed(greater)).saturating_add(member.growth)
    });
    let there: Bytes = look.members.iter().map(|member| member.measured).sum::<Bytes>() + look.unowned;
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

    /// Looks a second apart.
    #[derive(Default)]
    struct Looks {
        exchange: Exchange,
        seconds: u64,
    }

    impl Looks {
        fn at(&mut self, at: Nanos, members: &[Member], orphans: u64, unowned: u64) -> Option<Gone> {
            let (orphans, unowned, withdrawn) = (mib(orphans), mib(unowned), Bytes(7));
            self.exchange.look(&Look { at, members, orphans, unowned, withdrawn }).gone
        }

        fn look(&mut self, members: &[Member], orphans: u64, unowned: u64) -> Option<Gone> {
            self.seconds += 1;
            self.at(Nanos::from_millis(self.seconds * 1000), members, orphans, unowned)
        }

        fn returned(&mut self, members: &[Member], orphans: u64, unowned: u64) -> u64 {
            self.look(members, orphans, unowned).expect("sure").returned.0 >> 20
        }
    }

    #[test]
    fn what_an_importer_holds_has_not_left_the_card() {
        let mut looks = Looks::default();
        // The first one has let go of 6, which the second one has.
        let both = [member(0, 10, 6, 4), member(1, 0, 0, 6)];
        assert_eq!(looks.look(&both, 0, 0), None, "once is not sure");
        assert_eq!(looks.returned(&both, 0, 0), 0);
        // Now nobody has it; then only a descriptor.
        let none = [member(0, 10, 6, 4), member(1, 0, 0, 0)];
        assert_eq!(looks.returned(&none, 0, 0), 0, "it was there a look ago");
        let found = Gone { orphans: false, returned: mib(6) };
        assert_eq!(looks.look(&none, 0, 0), Some(found));
        assert_eq!(looks.returned(&none, 0, 6), 0);
    }

    #[test]
    fn what_was_not_exported_never_leaves() {
        let mut looks = Looks::default();
        let over = [member(0, 10, 2, 0), member(1, 5, 1, 5)];
        looks.look(&over, 0, 0);
        assert_eq!(looks.returned(&over, 0, 0), 3);
    }

    #[test]
    fn orphans_have_left_when_none_of_them_can_be_there() {
        let mut looks = Looks::default();
        let holds = [member(1, 4, 0, 7)];
        looks.look(&holds, 6, 0);
        let some = looks.look(&holds, 6, 0).expect("sure");
        assert_eq!((some.orphans, some.returned), (false, mib(3)), "3 of 6 are there");
        let free = [member(1, 4, 0, 4)];
        looks.look(&free, 6, 0);
        assert!(looks.look(&free, 6, 0).expect("sure").orphans);
        assert!(!looks.look(&free, 6, 1).expect("sure").orphans, "or nobody's");
        assert!(!looks.look(&free, 0, 0).is_some_and(|gone| gone.orphans));
        assert!(!looks.look(&free, 0, 0).expect("sure").orphans, "there are none");
    }

    /// An orphan was freed that a living process held, because what had left was the living one's own.
    #[test]
    fn orphans_have_not_left_while_it_may_be_what_the_living_exported() {
        let mut looks = Looks::default();
        // It holds 2 of the orphan's 6, and 6 of its own 8 have left the card.
        let holds = [member(1, 8, 8, 4)];
        looks.look(&holds, 6, 0);
        let found = looks.look(&holds, 6, 0).expect("sure");
        assert_eq!((found.orphans, found.returned), (false, mib(10)));
        let none = [member(1, 8, 8, 0)];
        looks.look(&none, 6, 0);
        assert!(looks.look(&none, 6, 0).expect("sure").orphans);
    }

    #[test]
    fn books_that_move_say_nothing() {
        let mut looks = Looks::default();
        let moving = Member { after: Books { charges: 1, ..Books::default() }, ..member(0, 10, 6, 4) };
        assert_eq!(looks.look(&[moving], 0, 0), None);
        let creating = Books { creating: 1, ..member(0, 10, 6, 4).after };
        let creating = Member { before: creating, after: creating, ..member(0, 10, 6, 4) };
        let still = [member(0, 10, 6, 4)];
        assert_eq!(looks.look(&still, 0, 0), None);
        assert_eq!(looks.look(&[creating], 0, 0), None);
        assert_eq!(looks.look(&still, 0, 0), None, "it moved in between");
        let other = [member(0, 12, 8, 6)];
        assert_eq!(looks.look(&other, 0, 0), None);
        assert_eq!(looks.returned(&other, 0, 0), 6);
        assert_eq!(looks.look(&other, 3, 0), None, "another one has died");
        let look = |seconds: u64, withdrawn| Look {
            at: Nanos::from_millis(seconds * 1000),
            members: &other,
            orphans: mib(3),
            unowned: Bytes::ZERO,
            withdrawn,
        };
        assert_eq!(looks.exchange.look(&look(21, Bytes(8))).gone, None, "some was withdrawn");
        assert!(looks.exchange.look(&look(22, Bytes(8))).gone.is_some());
    }

    /// A charge that no driver had answered was taken for memory that has left the card, and the books never
    /// stood still again.
    #[test]
    fn no_more_has_left_than_two_looks_allow_whatever_moves() {
        let mut exchange = Exchange::default();
        let mut most = |member: Member| {
            let (orphans, unowned) = (Bytes::ZERO, Bytes::ZERO);
            let look = Look { at: Nanos(1), members: &[member], orphans, unowned, withdrawn: Bytes(7) };
            exchange.look(&look).most.map(|most| most.0 >> 20)
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
        let mut looks = Looks::default();
        // The driver has freed 6, and the call has not come back to take them off the books.
        let freed = [member(0, 10, 6, 4)];
        let at = |ms: u64| Nanos::from_millis(10_000 + ms);
        assert_eq!(looks.at(at(0), &freed, 0, 0), None);
        assert_eq!(looks.at(at(1), &freed, 0, 0), None);
        assert_eq!(looks.at(at(799), &freed, 0, 0), None);
        assert!(looks.at(at(800), &freed, 0, 0).is_some());
        assert_eq!(looks.at(at(801), &freed, 0, 0), None);
    }
}
