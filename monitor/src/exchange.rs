//! How much of what a container's processes exported has gone from a card, told from what NVML says of them all. Pure.
//!
//! The driver has memory of several processes on the books of one: of its maker as long as that holds it, then of whoever holds it longest,
//! and of nobody's where only a descriptor holds it. So no process's figure tells whether what it exported is still there, but the sum does:
//! what is measured of all the container's processes, and what is on the card and nobody's, is the most that it can hold. What its books say
//! beyond that is gone; and what can be gone is what was exported and let go. First what dead processes have left, then the living's share.
//!
//! A charge is ahead of the driver, so a figure counts only when no books have moved between two looks, and of both looks the lesser.

use cgpu_proto::units::Bytes;

use crate::measured::Books;

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
    /// What is published of it beyond its books, by its own figure.
    pub growth: i64,
}

/// What was found to have gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// All that dead processes had exported.
    pub orphans: bool,
    /// Of what living ones have exported: by name.
    pub returned: Vec<((u8, u64), Bytes)>,
}

/// What is known of one container on one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    last: Option<Look>,
}

/// The books at a look, and what they said beyond what can be there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    books: Vec<((u8, u64), Books)>,
    orphans: Bytes,
    surplus: i64,
}

impl Exchange {
    /// Takes a look at all of the container's processes. `orphans` is what dead ones had exported, `unowned` what the card has that is
    /// nobody's. None: nothing is sure.
    pub fn look(&mut self, members: &[Member], orphans: Bytes, unowned: Bytes) -> Option<Gone> {
        let still = members.iter().all(|member| member.before == member.after && member.after.creating == 0);
        let books: Vec<_> = members.iter().map(|member| (member.name, member.after)).collect();
        let booked: i64 = members.iter().fold(signed(orphans), |sum, member| {
            sum.saturating_add(signed(member.after.used + member.after.implicit))
                .saturating_add(member.growth)
        });
        let there: Bytes = members.iter().map(|member| member.measured).sum::<Bytes>() + unowned;
        let surplus = booked.saturating_sub(signed(there));
        let last = self.last.take();
        if !still {
            return None;
        }
        let now = self.last.insert(Look { books, orphans, surplus });
        let last = last?;
        if last.books != now.books || last.orphans != orphans {
            return None;
        }
        let mut rest = Bytes(u64::try_from(surplus.min(last.surplus)).unwrap_or(0));
        let gone = rest >= orphans;
        rest = rest - if gone { orphans } else { Bytes::ZERO };
        let share = |member: &Member| {
            let returned = rest.min(member.after.exported);
            rest = rest - returned;
            (member.name, returned)
        };
        Some(Gone { orphans: gone && orphans > Bytes::ZERO, returned: members.iter().map(share).collect() })
    }
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

    fn returned(gone: Option<Gone>) -> Vec<u64> {
        gone.expect("sure").returned.iter().map(|(_, bytes)| bytes.0 >> 20).collect()
    }

    #[test]
    fn what_an_importer_holds_is_not_gone() {
        let mut exchange = Exchange::default();
        // The first one has let go of 6, which the second one has.
        let both = [member(0, 10, 6, 4), member(1, 0, 0, 6)];
        assert_eq!(exchange.look(&both, Bytes::ZERO, Bytes::ZERO), None, "once is not sure");
        assert_eq!(returned(exchange.look(&both, Bytes::ZERO, Bytes::ZERO)), [0, 0]);
        // Now nobody has it; then only a descriptor.
        let none = [member(0, 10, 6, 4), member(1, 0, 0, 0)];
        assert_eq!(
            returned(exchange.look(&none, Bytes::ZERO, Bytes::ZERO)),
            [0, 0],
            "it was there a look ago"
        );
        assert_eq!(returned(exchange.look(&none, Bytes::ZERO, Bytes::ZERO)), [6, 0]);
        assert_eq!(returned(exchange.look(&none, Bytes::ZERO, mib(6))), [0, 0]);
    }

    #[test]
    fn what_was_not_exported_never_goes() {
        let mut exchange = Exchange::default();
        let over = [member(0, 10, 2, 0)];
        exchange.look(&over, Bytes::ZERO, Bytes::ZERO);
        assert_eq!(returned(exchange.look(&over, Bytes::ZERO, Bytes::ZERO)), [2]);
    }

    #[test]
    fn orphans_go_when_none_of_them_can_be_there() {
        let mut exchange = Exchange::default();
        let holds = [member(1, 4, 0, 7)];
        exchange.look(&holds, mib(6), Bytes::ZERO);
        assert!(!exchange.look(&holds, mib(6), Bytes::ZERO).expect("sure").orphans, "3 of 6 are there");
        let free = [member(1, 4, 0, 4)];
        exchange.look(&free, mib(6), Bytes::ZERO);
        assert!(exchange.look(&free, mib(6), Bytes::ZERO).expect("sure").orphans);
        assert!(!exchange.look(&free, mib(6), mib(1)).expect("sure").orphans, "or nobody's");
    }

    #[test]
    fn books_that_move_say_nothing() {
        let mut exchange = Exchange::default();
        let moving = Member { after: Books { charges: 1, ..Books::default() }, ..member(0, 10, 6, 4) };
        assert_eq!(exchange.look(&[moving], Bytes::ZERO, Bytes::ZERO), None);
        let still = [member(0, 10, 6, 4)];
        assert_eq!(exchange.look(&still, Bytes::ZERO, Bytes::ZERO), None);
        let other = [member(0, 12, 8, 6)];
        assert_eq!(exchange.look(&other, Bytes::ZERO, Bytes::ZERO), None);
        assert_eq!(returned(exchange.look(&other, Bytes::ZERO, Bytes::ZERO)), [6]);
    }
}
