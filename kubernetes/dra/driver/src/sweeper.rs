//! Unprepares claims that the API server no longer has. A kubelet that has lost its state never
//! does.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cgpu_client::record::holdings;
use cgpu_kubernetes_client::{Api, Failure};
use cgpu_kubernetes_dra::allocation::NodeClaim;
use cgpu_kubernetes_dra::prepared::PreparedClaims;
use cgpu_kubernetes_dra::store::Folders;
use cgpu_kubernetes_dra::sweep::Absences;
use tracing::{info, warn};

use crate::objects;

/// Looks at the prepared claims, without end. One that is gone for `after` is unprepared, unless a
/// container may still run with it. Looks are as far apart, to keep the API server's work small.
pub(crate) async fn run(
    api: &Api,
    root: &Path,
    claims: &Arc<PreparedClaims<Folders>>,
    after: Duration,
) {
    let (mut absences, start) = (Absences::new(after), Instant::now());
    loop {
        let prepared: Vec<NodeClaim> = claims.ledger().claims().cloned().collect();
        absences.retain(&prepared);
        for claim in prepared {
            let Some(is_gone) = is_gone(api, &claim).await else { continue };
            if !absences.is_due(&claim.uid, is_gone, start.elapsed()) {
                continue;
            }
            let (claims, root) = (Arc::clone(claims), root.to_owned());
            let swept = tokio::task::spawn_blocking(move || sweep(&root, &claims, &claim));
            // An error means that the driver ends.
            let _ = swept.await;
        }
        tokio::time::sleep(after).await;
    }
}

/// Returns whether the API server no longer has a claim; none: it does not say.
async fn is_gone(api: &Api, claim: &NodeClaim) -> Option<bool> {
    match api.get::<objects::Claim>(&claim.namespace, &claim.name).await {
        Ok(found) => Some(found.0.metadata.uid != claim.uid),
        Err(Failure::NotFound(_)) => Some(true),
        Err(_) => None,
    }
}

fn sweep(root: &Path, claims: &PreparedClaims<Folders>, claim: &NodeClaim) {
    let is_own = |name: &String| claim.shares.iter().any(|share| share.name == *name);
    let NodeClaim { namespace, name, uid, .. } = claim;
    let done = match holdings(root, |shares| shares.iter().any(is_own)) {
        Ok(held) if held.is_empty() => claims.unprepare(uid).map_err(|refusal| refusal.to_string()),
        // A container runs with it.
        Ok(_) => return,
        Err(error) => Err(error.to_string()),
    };
    match done {
        Ok(()) => info!(namespace, name, uid, "unprepared: the API server no longer has the claim"),
        Err(why) => warn!(namespace, name, uid, "a claim that is gone stays prepared: {why}"),
    }
}
