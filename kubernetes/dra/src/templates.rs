//! Which templates of translated pods there are to be: those that pods name, and for a while those
//! that pods have named.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dialect::ClaimRequest;

/// Most unused templates of a namespace. Otherwise pods with ever other amounts, made and deleted
/// in a loop, would leave any number of templates.
const MAX_UNUSED: usize = 100;

/// Namespace and name of a template.
pub type Key = (String, String);

/// A template to create or to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A pod names it, and it does not exist.
    Create(Key, ClaimRequest),
    /// No pod has named it for long enough.
    Delete(Key),
}

/// The templates that no pod names, and since when.
#[derive(Clone, Debug, Default)]
pub struct UnusedTemplates(BTreeMap<Key, Duration>);

impl UnusedTemplates {
    /// Returns the changes that are due at `now`. `used` has the names in pods, `existing` the
    /// controller's own templates. A template is deleted when it was unused for `retention`.
    pub fn changes(
        &mut self,
        used: &BTreeSet<Key>,
        existing: &BTreeSet<Key>,
        now: Duration,
        retention: Duration,
    ) -> Vec<Change> {
        // A name that says no request is no name of ours, whatever its labels.
        let request = |key: &Key| ClaimRequest::named(&key.1);
        let missing = used.difference(existing);
        let created = missing.filter_map(|key| Some(Change::Create(key.clone(), request(key)?)));
        let unused: BTreeSet<&Key> =
            existing.difference(used).filter(|key| request(key).is_some()).collect();
        self.0.retain(|key, _| unused.contains(key));
        for key in unused {
            self.0.entry(key.clone()).or_insert(now);
        }
        let mut latest_first: Vec<(&Key, &Duration)> = self.0.iter().collect();
        latest_first.sort_by_key(|(_, since)| std::cmp::Reverse(**since));
        let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
        let deleted = latest_first.into_iter().filter(|((namespace, _), since)| {
            let kept = kept.entry(namespace).or_default();
            let is_kept = now.saturating_sub(**since) < retention && *kept < MAX_UNUSED;
            *kept += usize::from(is_kept);
            !is_kept
        });
        created.chain(deleted.map(|(key, _)| Change::Delete(key.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: Duration = Duration::from_secs(100);

    fn key(mib: u64) -> Key {
        ("test".to_owned(), format!("cgpu-memory-{mib}mi-gpus-1"))
    }

    fn keys<const N: usize>(all: [u64; N]) -> BTreeSet<Key> {
        all.into_iter().map(key).collect()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn template_that_a_pod_names_is_created() {
        let mut unused = UnusedTemplates::default();
        let mut used = keys([1, 2]);
        used.insert(("test".to_owned(), "of-its-author".to_owned()));
        let changes = unused.changes(&used, &keys([2]), at(0), RETENTION);
        let request = ClaimRequest::named(&key(1).1).expect("a request");
        assert_eq!(changes, [Change::Create(key(1), request)]);
    }

    #[test]
    fn template_is_deleted_after_it_was_unused_for_its_retention() {
        let mut unused = UnusedTemplates::default();
        let existing = keys([1]);
        let mut changes = |used, seconds| unused.changes(&used, &existing, at(seconds), RETENTION);
        assert_eq!(changes(keys([]), 0), []);
        assert_eq!(changes(keys([]), 99), []);
        // A pod uses it again, so the time begins anew.
        assert_eq!(changes(keys([1]), 150), []);
        assert_eq!(changes(keys([]), 160), []);
        assert_eq!(changes(keys([]), 259), []);
        // It is deleted at each call until it is gone.
        assert_eq!(changes(keys([]), 260), [Change::Delete(key(1))]);
        assert_eq!(changes(keys([]), 261), [Change::Delete(key(1))]);
    }

    #[test]
    fn template_without_a_request_in_its_name_is_left_alone() {
        let mut unused = UnusedTemplates::default();
        let existing = [("test".to_owned(), "cgpu-gpus-01".to_owned())].into();
        for seconds in [0, 1000] {
            assert_eq!(unused.changes(&keys([]), &existing, at(seconds), RETENTION), []);
        }
    }

    #[test]
    fn namespace_keeps_only_its_latest_unused_templates() {
        let mut unused = UnusedTemplates::default();
        let mut existing = BTreeSet::new();
        existing.insert(("other".to_owned(), key(1).1));
        let most = MAX_UNUSED as u64;
        for number in 1..=most {
            existing.insert(key(number));
            assert_eq!(unused.changes(&keys([]), &existing, at(number / 10), RETENTION), []);
        }
        existing.insert(key(most + 1));
        let changes = unused.changes(&keys([]), &existing, at(50), RETENTION);
        let [Change::Delete((namespace, name))] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!(namespace, "test");
        // One of the oldest.
        assert!((1..10).any(|number| *name == key(number).1), "{name}");
    }
}
