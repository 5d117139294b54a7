//! Counts by names that only the container's processes know: private tables of the driver, and
//! functions that this release does not know.
//!
//! An entry is claimed word by word, each from 0, without a lock. A process that is killed in
//! between leaves an unfinished entry, which the next name with the same beginning completes. Names
//! are padded with spaces, so no name's words are the beginning of another's.

#[cfg(not(loom))]
use std::collections::BTreeMap;
#[cfg(not(loom))]
use std::mem::offset_of;

use crate::atomic::Ordering;
use crate::layout::{NamedCount, bytes_of};
#[cfg(not(loom))]
use crate::record::Record;

/// Words of a name.
const WORDS: usize = 7;
/// The name of the last entry, which counts all names for which there was no room.
const OTHERS: &str = "others";

/// Counts `name` once. Its first 56 bytes are kept; it is not empty and has no zero bytes.
pub fn count(entries: &[NamedCount], name: &str) {
    add(entries, name, 1);
}

/// Counts `name` as often as this.
pub fn add(entries: &[NamedCount], name: &str, times: u64) {
    let Some((last, entries)) = entries.split_last() else { return };
    let wanted = words(name);
    let entry = entries.iter().find(|entry| is_claimed(entry, &wanted));
    let entry = entry.or_else(|| is_claimed(last, &words(OTHERS)).then_some(last));
    if let Some(entry) = entry {
        entry.count.fetch_add(times, Ordering::Relaxed);
    }
}

/// Moves what `from` has counted to `to`.
pub fn transfer(from: &[NamedCount], to: &[NamedCount]) {
    for entry in from {
        let times = entry.count.swap(0, Ordering::Relaxed);
        if let Some(name) = text(&bytes_of(&entry.name).collect::<Vec<_>>()) {
            add(to, &name, times);
        }
    }
}

/// Claims the entry for the name, unless it has another one.
fn is_claimed(entry: &NamedCount, wanted: &[u64; WORDS]) -> bool {
    // A word is tried only if those before it are the name's.
    entry.name.iter().zip(wanted).all(|(word, wanted)| {
        let claimed = word.compare_exchange(0, *wanted, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok() || claimed == Err(*wanted)
    })
}

fn words(name: &str) -> [u64; WORDS] {
    let mut bytes = name.bytes();
    core::array::from_fn(|_| {
        u64::from_ne_bytes(core::array::from_fn(|_| bytes.next().unwrap_or(b' ')))
    })
}

/// Reads entries that a container wrote. Those that no process of ours could have written are left
/// out.
#[cfg(not(loom))]
pub(crate) fn read(entries: Record<'_>, count: usize) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for index in 0..count {
        let entry = entries.part(index * size_of::<NamedCount>(), size_of::<NamedCount>());
        let name: [u8; WORDS * size_of::<u64>()] = entry.array(offset_of!(NamedCount, name));
        let count = entry.u64(offset_of!(NamedCount, count));
        if let (Some(name), 1..) = (text(&name), count) {
            let sum: &mut u64 = counts.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    counts
}

/// Returns the name of a finished entry: letters, digits, `_` and `-`.
fn text(bytes: &[u8]) -> Option<String> {
    let name = str::from_utf8(bytes).ok()?.trim_end_matches(' ');
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (!name.is_empty() && name.bytes().all(is_valid)).then(|| name.to_owned())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entries<const N: usize>() -> [NamedCount; N] {
        core::array::from_fn(|_| NamedCount::default())
    }

    fn written(entries: &[NamedCount]) -> BTreeMap<String, u64> {
        let words = entries.iter().flat_map(|entry| entry.name.iter().chain([&entry.count]));
        let bytes: Vec<u8> =
            words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        read(Record(&bytes), entries.len())
    }

    fn counts<const N: usize>(expected: [(&str, u64); N]) -> BTreeMap<String, u64> {
        expected.map(|(name, count)| (name.to_owned(), count)).into()
    }

    #[test]
    fn names_are_counted_apart_also_if_one_begins_another() {
        let entries = entries::<8>();
        for name in ["cuMemAlloc_v3", "cuMemAll", "cuMemAlloc_v3", "cuMemAlloc_v30", "a"] {
            count(&entries, name);
        }
        let expected = [("cuMemAlloc_v3", 2), ("cuMemAll", 1), ("cuMemAlloc_v30", 1), ("a", 1)];
        assert_eq!(written(&entries), counts(expected));
    }

    #[test]
    fn endless_names_are_counted_together() {
        let entries = entries::<3>();
        for number in 0..100 {
            count(&entries, &format!("6bd5fb6c-5bf4-e74a-8987-{number:012x}"));
        }
        let first = "6bd5fb6c-5bf4-e74a-8987-000000000000";
        let second = "6bd5fb6c-5bf4-e74a-8987-000000000001";
        assert_eq!(written(&entries), counts([(first, 1), (second, 1), ("others", 98)]));
        count(&entries, second);
        assert_eq!(written(&entries)[second], 2);
    }

    #[test]
    fn entry_of_a_killed_process_is_completed_or_left() {
        let entries = entries::<3>();
        // The process was killed after two words.
        for (word, wanted) in entries[0].name.iter().zip(words("cuMemAllocSomewhere")).take(2) {
            word.store(wanted, Ordering::Relaxed);
        }
        assert_eq!(written(&entries), counts([]));
        count(&entries, "cuMemCreate_v2");
        count(&entries, "cuMemAllocSomewhere");
        assert_eq!(written(&entries), counts([("cuMemCreate_v2", 1), ("cuMemAllocSomewhere", 1)]));
    }

    #[test]
    fn invalid_names_are_left_out() {
        let entries = entries::<4>();
        for (entry, name) in entries.iter().zip(["\x1b[31mred", "a b", "", "cuMemAlloc_v3"]) {
            for (word, wanted) in entry.name.iter().zip(words(name)) {
                word.store(wanted, Ordering::Relaxed);
            }
            entry.count.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(written(&entries), counts([("cuMemAlloc_v3", u64::MAX)]));
    }

    #[test]
    fn transferred_counts_are_added() {
        let (from, to) = (entries::<3>(), entries::<3>());
        count(&to, "a");
        (0..3).for_each(|_| count(&from, "a"));
        count(&from, "b");
        transfer(&from, &to);
        transfer(&from, &to);
        assert_eq!(written(&to), counts([("a", 4), ("b", 1)]));
        assert_eq!(written(&from), counts([]));
    }
}
