//! Counts by name.

use cgpu_shm::layout::NamedCount;
use cgpu_shm::named_count;

use super::*;

/// Two processes count names with the same beginning: each name gets its own entry, and no count is
/// lost.
#[test]
fn names_with_one_beginning_get_two_entries() {
    model(|| {
        let entries: Arc<[NamedCount; 4]> = Arc::new(Default::default());
        let other = beside(&entries, |entries| named_count::count(entries, "cuMemAlloc_v3"));
        named_count::count(&*entries, "cuMemAllocAsync");
        other.join().unwrap();
        named_count::count(&*entries, "cuMemAlloc_v3");
        let mut counts = entries.each_ref().map(|entry| entry.count.load(Ordering::Relaxed));
        counts.sort_unstable();
        assert_eq!(counts, [0, 0, 1, 2]);
    });
}
