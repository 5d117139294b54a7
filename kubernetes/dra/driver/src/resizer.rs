//! Resizes prepared claims as their annotations say.
//!
//! The driver may get claims, and neither list nor watch them. So it reads its prepared claims
//! again, one after another. A running container is changed through the monitor, as `cgpu set`
//! does, and again in each round if it differs: it may have started meanwhile, or another monitor.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cgpu_client::share;
use cgpu_kubernetes_client::{Api, timestamp};
use cgpu_kubernetes_core::refusal::Refusal;
use cgpu_kubernetes_dra::allocation::{NodeClaim, Share};
use cgpu_kubernetes_dra::ledger::Ledger;
use cgpu_kubernetes_dra::prepared::PreparedClaims;
use cgpu_kubernetes_dra::resize::{self, ANNOTATION, Outcome};
use cgpu_kubernetes_dra::status::{Condition, Conditions};
use cgpu_kubernetes_dra::store::Folders;
use cgpu_kubernetes_node::containers::Containers;
use cgpu_shm::limits::Limits;
use tracing::{debug, info, warn};

use crate::objects;

/// Shortest time between two reads.
const MIN_SPACING: Duration = Duration::from_secs(1);

/// Resizes the claims of a node.
pub(crate) struct Resizer {
    pub(crate) api: Api,
    pub(crate) claims: Arc<PreparedClaims<Folders>>,
    /// The monitor's.
    pub(crate) root: PathBuf,
    /// Time in which each claim is read once.
    pub(crate) interval: Duration,
    /// What became of the resizes.
    pub(crate) conditions: Mutex<Conditions>,
}

impl Resizer {
    /// Reads one claim after another, without end.
    pub(crate) async fn run(&self) {
        let mut last = String::new();
        loop {
            let (next, count) = self.following(&last);
            let Some(claim) = next else {
                self.conditions().clear();
                tokio::time::sleep(MIN_SPACING).await;
                continue;
            };
            tokio::time::sleep((self.interval / count).max(MIN_SPACING)).await;
            last.clone_from(&claim.uid);
            self.visit(&claim).await;
        }
    }

    /// Returns what became of the resizes.
    pub(crate) fn conditions(&self) -> MutexGuard<'_, Conditions> {
        // It is changed by whole entries.
        self.conditions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the claim after this one in the order of the uids, and the number of claims.
    fn following(&self, last: &str) -> (Option<NodeClaim>, u32) {
        let ledger = self.claims.ledger();
        let next = ledger.claims().find(|claim| claim.uid.as_str() > last);
        let count = ledger.claims().count();
        let next = next.or_else(|| ledger.claims().next()).cloned();
        self.conditions().retain(|uid, _| ledger.claim(uid).is_some());
        (next, u32::try_from(count).unwrap_or(u32::MAX).max(1))
    }

    /// Reads a claim, and does what its annotation says.
    async fn visit(&self, claim: &NodeClaim) {
        let NodeClaim { namespace, name, uid, .. } = claim;
        let found = match self.api.get::<objects::Claim>(namespace, name).await {
            Ok(found) => found.0,
            Err(failure) => {
                debug!(namespace, name, "cannot read the claim: {failure}");
                return;
            }
        };
        if found.metadata.uid != *uid {
            return;
        }
        let annotation = found.metadata.annotations.get(ANNOTATION).cloned();
        let (claims, root, uid) = (Arc::clone(&self.claims), self.root.clone(), uid.clone());
        let resized = tokio::task::spawn_blocking(move || {
            // It may have been prepared anew or unprepared meanwhile.
            let known = claims.ledger().claim(&uid).cloned()?;
            outcome(&claims, &root, &known, annotation.as_deref())
        });
        let Ok(outcome) = resized.await else { return };
        self.report(claim, outcome);
    }

    fn report(&self, claim: &NodeClaim, outcome: Option<Outcome>) {
        let NodeClaim { namespace, name, uid, .. } = claim;
        let mut conditions = self.conditions();
        let Some(outcome) = outcome else {
            conditions.remove(uid);
            return;
        };
        if conditions.get(uid).is_some_and(|known| known.outcome == outcome) {
            return;
        }
        match &outcome {
            Outcome::Applied(message) => info!(namespace, name, "resized: {message}"),
            Outcome::Waiting(message) => warn!(namespace, name, "resize waits: {message}"),
            Outcome::Refused(message) => warn!(namespace, name, "not resized: {message}"),
        }
        if let Ok(since) = timestamp() {
            conditions.insert(uid.clone(), Condition { outcome, since });
        }
    }
}

/// Resizes a claim, and says what became of it; none: it is as claimed, and always was.
fn outcome(
    claims: &PreparedClaims<Folders>,
    root: &Path,
    known: &NodeClaim,
    annotation: Option<&str>,
) -> Option<Outcome> {
    let refused = |refusal: Refusal| Some(Outcome::Refused(refusal.to_string()));
    let claim = match resize::resized(known, annotation) {
        Ok(claim) => claim,
        Err(refusal) => return refused(refusal),
    };
    if !claim.shares.iter().any(|share| share.is_resized()) {
        return None;
    }
    let monitor = Containers::read(root);
    let running = monitor.as_ref().map_or_else(|_| Vec::new(), Containers::with_shares);
    let others = claims.ledger().clone();
    let mut changes = Vec::new();
    for (container, shares) in running {
        match limits(&claim, &others, &shares) {
            Ok(limits) => changes.extend(limits.map(|limits| (container, limits))),
            Err(why) => return refused(Refusal::new(format!("{}: {why}", claim.title()))),
        }
    }
    if claim != *known
        && let Err(refusal) = claims.resize(&claim)
    {
        return Some(Outcome::Waiting(refusal.to_string()));
    }
    let applied = match monitor {
        Ok(mut monitor) => {
            changes.iter().try_for_each(|(at, limits)| monitor.apply(*at, limits, limits))
        }
        Err(why) => Err(why),
    };
    Some(match applied {
        Ok(()) => Outcome::Applied(resize::described(&claim)),
        Err(why) => Outcome::Waiting(format!(
            "{}; containers that run already wait: {why}",
            resize::described(&claim)
        )),
    })
}

/// Returns the limits of a container with these shares, some of which are of a claim in this form;
/// none: none of them is, or it has no limit.
fn limits(claim: &NodeClaim, ledger: &Ledger, shares: &[String]) -> Result<Option<Limits>, String> {
    let is_own = |name: &String| claim.shares.iter().any(|share| share.name == *name);
    if !shares.iter().any(is_own) {
        return Ok(None);
    }
    let others = ledger.claims().filter(|other| other.uid != claim.uid);
    let all = others.chain([claim]).flat_map(|claim| &claim.shares);
    let own: Vec<&Share> = all.filter(|share| shares.contains(&share.name)).collect();
    if own.len() < shares.len() {
        return Err("a container of it has a share that is not prepared any more".to_owned());
    }
    let own: Result<Vec<Limits>, Refusal> =
        own.into_iter().filter_map(|share| share.to_limits().transpose()).collect();
    let own = own.map_err(|refusal| refusal.to_string())?;
    if own.is_empty() { Ok(None) } else { share::combined(&own).map(Some) }
}
