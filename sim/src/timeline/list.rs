//! Lists threaded through records: operations take constant time at any position.

use crate::words::{At, Words};

/// A list: the words of its ends, and of each member's neighbours. Members are ids, 0 is none.
#[derive(Clone, Copy)]
pub(crate) struct List {
    pub(crate) first: At,
    pub(crate) last: At,
    pub(crate) next: fn(u64) -> At,
    pub(crate) previous: fn(u64) -> At,
}

impl List {
    #[inline]
    pub(crate) fn first(&self, words: &impl Words) -> u64 {
        words.get(self.first)
    }

    #[inline]
    pub(crate) fn is_empty(&self, words: &impl Words) -> bool {
        self.first(words) == 0
    }

    #[inline]
    pub(crate) fn next(&self, words: &impl Words, member: u64) -> u64 {
        words.get((self.next)(member))
    }

    #[inline]
    pub(crate) fn push(&self, words: &mut impl Words, member: u64) {
        let last = words.get(self.last);
        words.set((self.next)(member), 0);
        words.set((self.previous)(member), last);
        words.set(if last == 0 { self.first } else { (self.next)(last) }, member);
        words.set(self.last, member);
    }

    #[inline]
    pub(crate) fn remove(&self, words: &mut impl Words, member: u64) {
        let next = self.next(words, member);
        let previous = words.get((self.previous)(member));
        words.set(if previous == 0 { self.first } else { (self.next)(previous) }, next);
        words.set(if next == 0 { self.last } else { (self.previous)(next) }, previous);
    }

    #[inline]
    pub(crate) fn pop(&self, words: &mut impl Words) -> Option<u64> {
        let first = self.first(words);
        (first != 0).then(|| {
            self.remove(words, first);
            first
        })
    }

    /// Returns the current members in order. For rare operations.
    pub(crate) fn members(&self, words: &impl Words) -> Vec<u64> {
        let mut all = Vec::new();
        let mut member = self.first(words);
        while member != 0 {
            all.push(member);
            member = self.next(words, member);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Plain, index};

    const LIST: List = List {
        first: At(0),
        last: At(1),
        next: |member| At(index(2 * member)),
        previous: |member| At(index(2 * member + 1)),
    };

    #[test]
    fn list_member_is_removed_from_any_position() {
        for leaver in 1..=4 {
            let mut words = Plain::new(16);
            (1..=4).for_each(|member| LIST.push(&mut words, member));
            LIST.remove(&mut words, leaver);
            let rest: Vec<u64> = (1..=4).filter(|&member| member != leaver).collect();
            assert_eq!(LIST.members(&words), rest);
            LIST.push(&mut words, leaver);
            assert_eq!(LIST.members(&words).last(), Some(&leaver));
        }
    }

    #[test]
    fn list_is_empty_after_popping_all() {
        let mut words = Plain::new(16);
        LIST.push(&mut words, 3);
        LIST.push(&mut words, 1);
        assert_eq!(
            [LIST.pop(&mut words), LIST.pop(&mut words), LIST.pop(&mut words)],
            [Some(3), Some(1), None]
        );
        assert!(LIST.is_empty(&words));
    }
}
