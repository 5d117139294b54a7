//! Which prepared claims are gone at the API server for so long that they are unprepared. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::allocation::NodeClaim;

/// Claims that are gone at the API server, and since when.
#[derive(Debug)]
pub struct Absences {
    after: Duration,
    since: BTreeMap<String, Duration>,
}

impl Absences {
    /// Knows of none yet. A claim is due when it is gone for `after`.
    #[must_use]
    pub fn new(after: Duration) -> Self {
        Self { after, since: BTreeMap::new() }
    }

    /// Forgets claims that are no longer prepared.
    pub fn retain(&mut self, prepared: &[NodeClaim]) {
        self.since.retain(|uid, _| prepared.iter().any(|claim| claim.uid == *uid));
    }

    /// Records an answer of the API server; returns whether the claim is due. `now` counts from any
    /// time. The API server is asked each time: an answer that never came says nothing.
    pub fn is_due(&mut self, uid: &str, is_gone: bool, now: Duration) -> bool {
        if !is_gone {
            self.since.remove(uid);
            return false;
        }
        let since = *self.since.entry(uid.to_owned()).or_insert(now);
        now.saturating_sub(since) >= self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{claim, pool, result};
    use serde_json::{Value, json};

    #[test]
    fn claim_is_due_when_it_was_gone_for_the_whole_time() {
        let at = Duration::from_secs;
        let mut absences = Absences::new(at(600));
        assert!(!absences.is_due("u1", true, at(100)));
        assert!(!absences.is_due("u1", true, at(699)));
        assert!(absences.is_due("u1", true, at(700)));
        // Not known meanwhile: still gone. There again: the time starts anew.
        assert!(absences.is_due("u1", true, at(5000)));
        assert!(!absences.is_due("u1", false, at(5001)));
        assert!(!absences.is_due("u1", true, at(5002)));
        assert!(!absences.is_due("u2", true, at(5602)));
        assert!(absences.is_due("u1", true, at(5602)));
        // Prepared again later: the same.
        let claim = claim(&json!([result("gpu-0", "1Gi", 1)]), &Value::Null);
        let claim = NodeClaim::of(&claim, &pool()).unwrap();
        absences.retain(std::slice::from_ref(&claim));
        assert!(absences.is_due("u1", true, at(5603)));
        absences.retain(&[]);
        assert!(!absences.is_due("u1", true, at(5604)));
    }
}
