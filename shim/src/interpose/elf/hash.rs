//! The hash tables of an object, which find a symbol's index in its symbol table by name.

/// A hash table of an object. The pointer must be that of a valid table, which stays mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hash {
    /// `DT_GNU_HASH`.
    Gnu(*const u32),
    /// `DT_HASH`.
    SystemV(*const u32),
}

impl Hash {
    /// Returns the first result of `matching` for a symbol that may be called `name`.
    pub(super) fn find<T>(self, name: &[u8], matching: impl FnMut(u32) -> Option<T>) -> Option<T> {
        match self {
            Hash::Gnu(table) => {
                // SAFETY: the pointer is that of a valid table.
                let table = unsafe { GnuTable::new(table) };
                table.chain(gnu_hash(name)).find_map(matching)
            }
            Hash::SystemV(table) => {
                // SAFETY: the pointer is that of a valid table.
                let table = unsafe { SystemVTable::new(table) };
                table.chain(system_v_hash(name)).find_map(matching)
            }
        }
    }

    pub(super) fn symbols(self) -> u32 {
        match self {
            // SAFETY: the pointer is that of a valid table.
            Hash::Gnu(table) => unsafe { GnuTable::new(table) }.symbols(),
            // SAFETY: the pointer is that of a valid table.
            Hash::SystemV(table) => unsafe { SystemVTable::new(table) }.chains,
        }
    }
}

/// `DT_GNU_HASH`: a header, a Bloom filter, buckets, and one word per hashed symbol. A chain is a
/// run of consecutive words that ends with an odd one.
struct GnuTable {
    buckets: *const u32,
    bucket_count: u32,
    chains: *const u32,
    /// Symbols before this one are not hashed.
    first: u32,
    filter: *const usize,
    filter_words: usize,
    filter_shift: u32,
}

impl GnuTable {
    /// # Safety
    ///
    /// `table` is a valid table, which stays mapped while the result is used.
    unsafe fn new(table: *const u32) -> GnuTable {
        // SAFETY: a valid table begins with four words.
        let [bucket_count, first, filter_words, filter_shift] =
            unsafe { table.cast::<[u32; 4]>().read() };
        let filter_words = filter_words as usize;
        #[allow(
            clippy::cast_ptr_alignment,
            reason = "the format aligns the table to words of the filter"
        )]
        let filter = table.wrapping_add(4).cast::<usize>();
        let buckets = filter.wrapping_add(filter_words).cast::<u32>();
        let chains = buckets.wrapping_add(bucket_count as usize);
        GnuTable { buckets, bucket_count, chains, first, filter, filter_words, filter_shift }
    }

    /// Returns the symbols that may have a name of this hash.
    fn chain(self, hash: u32) -> impl Iterator<Item = u32> {
        let mut next = if self.may_have(hash) { self.bucket(hash % self.bucket_count) } else { 0 };
        let first = self.first;
        core::iter::from_fn(move || {
            while next >= first && next != 0 {
                let index = next;
                let word = self.word(index);
                next = if word & 1 == 1 { 0 } else { index + 1 };
                if word | 1 == hash | 1 {
                    return Some(index);
                }
            }
            None
        })
    }

    /// Returns the number of symbols, by walking to the end of the last chain.
    fn symbols(&self) -> u32 {
        let last = (0..self.bucket_count).map(|number| self.bucket(number)).max().unwrap_or(0);
        if last < self.first {
            return self.first;
        }
        let mut index = last;
        while self.word(index) & 1 == 0 {
            index += 1;
        }
        index + 1
    }

    fn may_have(&self, hash: u32) -> bool {
        if self.bucket_count == 0 || self.filter_words == 0 {
            return false;
        }
        let place = (hash / usize::BITS) as usize % self.filter_words;
        // SAFETY: `place` is below the number of the filter's words.
        let word = unsafe { self.filter.wrapping_add(place).read() };
        let bits = (1 << (hash % usize::BITS)) | (1 << ((hash >> self.filter_shift) % usize::BITS));
        word & bits == bits
    }

    fn bucket(&self, number: u32) -> u32 {
        // SAFETY: all callers pass a `number` below `bucket_count`.
        unsafe { self.buckets.wrapping_add(number as usize).read() }
    }

    fn word(&self, index: u32) -> u32 {
        // SAFETY: callers start from a bucket, which is zero or a hashed symbol, and continue only
        // while the chain does.
        unsafe { self.chains.wrapping_add((index - self.first) as usize).read() }
    }
}

/// `DT_HASH`: buckets, and for every symbol the next one of its chain; 0 ends it.
struct SystemVTable {
    buckets: *const u32,
    bucket_count: u32,
    next: *const u32,
    chains: u32,
}

impl SystemVTable {
    /// # Safety
    ///
    /// `table` is a valid table, which stays mapped while the result is used.
    unsafe fn new(table: *const u32) -> SystemVTable {
        // SAFETY: a valid table begins with two words.
        let [bucket_count, chains] = unsafe { table.cast::<[u32; 2]>().read() };
        let buckets = table.wrapping_add(2);
        SystemVTable {
            buckets,
            bucket_count,
            next: buckets.wrapping_add(bucket_count as usize),
            chains,
        }
    }

    /// Returns the symbols that may have a name of this hash; bounded even if a chain is circular.
    fn chain(self, hash: u32) -> impl Iterator<Item = u32> {
        let first = match self.bucket_count {
            0 => 0,
            // SAFETY: the remainder is below the number of buckets.
            count => unsafe { self.buckets.wrapping_add((hash % count) as usize).read() },
        };
        let valid = move |index: &u32| *index != 0 && *index < self.chains;
        let follow = move |index: &u32| {
            // SAFETY: `index` is below the number of chains.
            Some(unsafe { self.next.wrapping_add(*index as usize).read() }).filter(valid)
        };
        core::iter::successors(Some(first).filter(valid), follow).take(self.chains as usize)
    }
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

fn system_v_hash(name: &[u8]) -> u32 {
    name.iter().fold(0, |hash: u32, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(*byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_equal_those_of_the_format() {
        // The two values that the format's documents give.
        assert_eq!(gnu_hash(b"printf"), 0x156b_2bb8);
        assert_eq!(system_v_hash(b"printf"), 0x0779_05a6);
    }
}
